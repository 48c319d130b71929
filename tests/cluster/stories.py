"""Tests that mostly wait, so several of them run at the same time on one cluster, each in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

from tests.cluster.harness import Cluster

__all__ = ["Stories", "Story"]

Story = Callable[[Cluster], None]


class Stories:
    """``waves``: the stories of one are played together, on a healed cluster, when the first of them is asked for."""

    def __init__(self, cluster: Cluster, *waves: Sequence[Story]) -> None:
        self._cluster, self._waves = cluster, waves
        self._pool = ThreadPoolExecutor(max(map(len, waves)))
        self._played: dict[Story, Future[None]] = {}

    def __enter__(self) -> Stories:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pool.shutdown()

    def play(self, story: Story) -> None:
        """Raises what the story raised."""
        if story not in self._played:
            self._cluster.heal()
            (wave,) = (wave for wave in self._waves if story in wave)
            self._played.update({each: self._pool.submit(each, self._cluster) for each in wave})
            wait(self._played.values())
        self._played[story].result()
