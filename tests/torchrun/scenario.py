"""One kind of failure: what is done to which rank of what run, and what may be concluded from what the run leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

__all__ = ["Scenario"]


@dataclass(frozen=True)
class Scenario:
    """``part`` is what train.py does on ranks ``on``, ``habit`` what it does on all; see there.

    ``culprits`` are the ranks that really stopped first. ``determinable``: what the run writes proves that, as judged
    by ``why`` and before any verdict was seen. ``failure_class`` is what happened; ``accept``: other classes that are
    no error where less than that is proven. ``actions``: next steps that are right.

    ``output`` is how torchrun's workers write: ``console`` (nothing set), ``tee`` (--log-dir, --tee 3), ``template``
    (as ``tee``, with a prefix that has the global rank), ``files`` (--log-dir, --redirects 3). ``merged``: the agents
    of all nodes print into one file, as the tasks of one srun do. ``agents`` start out of ``nodes``. ``earlier`` ran
    before into the same folder of dumps, and left nothing else. ``fixed``: it means these ranks and no others.
    ``in_turn``: the first of ``on`` in the first attempt, the next in the next.
    """

    name: str
    part: str
    on: Sequence[int]
    failure_class: str
    why: str
    culprits: Sequence[int] = ()
    determinable: bool = False
    accept: Sequence[str] = ()
    actions: Sequence[str] = ("fix-code",)
    habit: str = ""
    nodes: int = 1
    per_node: int = 3
    at: int = 3
    output: str = "tee"
    merged: bool = False
    detail: bool = False
    record: bool = False
    dumps: bool = False
    restarts: int = 0
    fresh_store: bool = False
    only_attempt: int | None = None
    in_turn: bool = False
    deaf: Sequence[int] = ()
    say: str = "all"
    world_told: bool = True
    wait: float = 8.0
    start_wait: float = 60.0
    endpoint: str = ""
    agents: int | None = None
    rendezvous: str = ""
    earlier: Scenario | None = None
    ends_well: bool = False
    fixed: bool = False

    def shifted(self, by: int) -> Scenario:
        """The same done to other ranks, and written in another way: a scenario that no rule was made on."""
        if self.fixed or not by:
            return self
        forms = ("tee", "template", "files")
        other = forms[(forms.index(self.output) + by) % len(forms)] if self.output in forms else self.output
        return replace(self, on=self._moved(self.on, by), culprits=self._moved(self.culprits, by), output=other)

    def _moved(self, ranks: Sequence[int], by: int) -> tuple[int, ...]:
        return tuple(sorted((rank + by) % self.world for rank in ranks))

    @property
    def world(self) -> int:
        return self.nodes * self.per_node

    def node_of(self, rank: int) -> str:
        return f"tw{rank // self.per_node + 1:02d}"
