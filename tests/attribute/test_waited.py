"""Exceptions of ranks that may have waited for another one: by their type, by their words, by another rank's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribute.texts import ended, verdict, waited

#: Exception of rank 0 → whether it may be a reaction.
WORDS = {
    "TimeoutError: shard did not appear within 600 s": True,
    "concurrent.futures._base.TimeoutError: 600": True,
    "queue.Empty": True,
    "filelock._error.Timeout: The file lock '/ckpt/.lock' could not be acquired.": True,
    "zmq.error.Again: Resource temporarily unavailable": True,
    "asyncio.exceptions.TimeoutError": True,
    "subprocess.TimeoutExpired: Command 'rsync' timed out after 600 seconds": True,
    "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])": True,
    "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/step_100/shard_2.pt'": False,
    "ValueError: heartbeat missing for 600 s": True,
    "ValueError: no sample from rank 2": True,
    "ValueError: no sample on rank 0": False,
    "KeyError: 'x'": False,
    "AssertionError: expected 4 shards, found 3": False,
}


def raised(rank: int, error: str) -> str:
    return f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]: {error}\n"


@pytest.mark.parametrize("error", WORDS)
def test_whoever_may_have_waited_is_a_suspect(tmp_path: Path, error: str) -> None:
    found = verdict(tmp_path, raised(0, error) + ended(1, -15, -15, -15))
    named, suspects = ([one["rank"] for one in found[key]] for key in ("culprits", "suspects"))
    assert (named, suspects) == (([], [0]) if WORDS[error] else ([0], []))


@pytest.mark.parametrize("error", WORDS)
def test_where_all_others_tell_that_they_waited_it_alone_did_not_wait_with_them(tmp_path: Path, error: str) -> None:
    found = verdict(tmp_path, raised(0, error) + "".join(map(waited, (1, 2, 3))) + ended(1, -6, -6, -6))
    assert [one["rank"] for one in found["culprits"]] == [0]


def test_one_that_nobody_heard_of_may_be_whom_it_waited_for(tmp_path: Path) -> None:
    crowd = "".join(map(waited, (*range(1, 7), *range(8, 32))))
    found = verdict(tmp_path, raised(0, "TimeoutError: no heartbeat for 600 s") + crowd, world=32)
    assert found["culprits"] == []
