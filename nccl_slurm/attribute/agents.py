"""What torchrun's agents tell beside the rows of their failure tables: who had finished, and who is who.

A table lists all workers of its node but those that had ended with exit 0, and speaks of the last attempt alone, while
``failed (exitcode: …)`` is printed for every attempt (both measured with torch 2.13). Workers of one node have
consecutive ranks, and every node has as many of them.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.model import Fact, Rank

__all__ = ["Agents"]

_HEADER = re.compile(r"\b[EWI]\d{4} \d\d:\d\d:\d\d\.\d{1,9} (\d{1,10}) ")
_OF_NO_ATTEMPT = reading.MACHINE_PRODUCERS | {"slurm"}
#: An agent prints its line a moment after the failure that it tells.
_STAMP_S = 1.0
#: What torch gives a worker between SIGTERM and SIGKILL (multiprocessing/api.py, close); tables have whole seconds.
_GRACE_S = 30.0


class Agents:
    """``world``: number of ranks, None where it is not known."""

    def __init__(
        self, facts: Sequence[Fact], rows: Mapping[int, Rank], world: int | None, sorts: Sorts | None = None
    ) -> None:
        self._facts, self._rows, self._world = facts, rows, world
        self._sorts = Sorts(facts) if sorts is None else sorts

    def read(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        """Each of them `placed` and `dated`. Most can't be either, and are not asked about."""
        found = [self.placed(fact) if fact.rank is None and "local_rank" in fact.data else fact for fact in facts]
        if any(len(ends) > 1 for ends in self._ends.values()):
            return tuple(self.dated(fact) for fact in found)
        return tuple(found)

    def dated(self, fact: Fact) -> Fact:
        """With the attempt that it is of, where only its line among those of the one agent that prints there tells:
        each attempt ends with ``failed``, and the table after the last one is of that one."""
        ends = self._ends.get(fact.file, ())
        if len(ends) < 2 or fact.line is None or "attempt" in fact.data or fact.producer in _OF_NO_ATTEMPT:
            return fact
        return replace(fact, data={**fact.data, "attempt": min(bisect_left(ends, fact.line), len(ends) - 1)})

    def placed(self, fact: Fact) -> Fact:
        """With the rank behind a local rank, where the job had one agent and so both are the same.

        Without the number of ranks there may have been another agent whose end left no table: then only what its
        workers say of others' absence is believed to be of these ranks, and only in the table's own file.
        """
        local = reading.number(fact.data, "local_rank")
        if fact.rank is not None or local is None or local >= self._per_node:
            return fact
        sure = self._alone if self._world is not None else fact.role == "consequence" and self._lists_all(fact.file)
        return replace(fact, rank=local) if sure else fact

    @cached_property
    def finished(self) -> frozenset[int]:
        """Ranks that had ended with exit 0 when their agent printed its table, which lacks them.

        A worker in uninterruptible sleep outlives SIGKILL and is not listed either: then nothing is concluded.
        """
        if not self._tables:
            return frozenset()
        even = not any(offset % self._per_node for offset in self._offsets)
        if self._world is None or self._restarted or self._outlived or not even:
            return frozenset()
        told = {rank for offset in self._offsets for rank in range(offset, offset + self._per_node)}
        return frozenset(rank for rank in told - self._listed if rank < self._world)

    def is_later(self, fact: Fact) -> bool:
        """Of a later attempt than the first, where `first_exits` tells that one: by its folder, by its line in the
        agent's own output, by the newest entry of a dump. What machines and Slurm tell is of no attempt."""
        if self.first_exits is None or fact.producer in _OF_NO_ATTEMPT:
            return False
        first, attempt = self._failed[0], reading.number(fact.data, "attempt")
        if attempt is not None:
            return attempt > 0
        if fact.producer == "flight-recorder":
            until = fact.data.get("until")
            return not isinstance(until, float) or first.time is None or until > first.time + _STAMP_S
        return fact.file == first.file and (fact.line or 0) > (first.line or 0)

    def host(self, rank: int) -> str | None:
        """Node of a rank that had finished: no row of the table tells it."""
        tables = (table for table in self._tables.values() if rank in self.finished)
        return next((t[0].host for t in tables if 0 <= rank - _offset(t[0]) < self._per_node), None)

    @cached_property
    def first_exits(self) -> dict[int, int] | None:
        """Rank → exit status, as the agent saw it in the first of several attempts; None where there was one attempt,
        or several agents, whose attempts are counted apart."""
        if not self._failed:
            return None
        codes = [reading.number(fact.data, "exitcode") for fact in self._failed]
        first = next(iter(self._failed), None)
        local = None if first is None else reading.number(first.data, "local_rank")
        one_file = len({fact.file for fact in self._failed}) == 1
        if not (self._alone and self._restarted and one_file) or local is None or codes[0] is None:
            return None
        return {local: codes[0]}

    @cached_property
    def forced(self) -> frozenset[int]:
        """Ranks that SIGKILL ended a worker's grace after the first failure in their agent's table, while it ended
        others with SIGTERM: the agent's own words on that may be lost."""
        return frozenset(rank for table in self._tables.values() for rank in _forced(table))

    @cached_property
    def _rows_of_tables(self) -> list[Fact]:
        return self._sorts.of_kind(reading.FAILURE)

    @cached_property
    def _tables(self) -> dict[str, list[Fact]]:
        """Host, or file where none is told → rows of its table."""
        tables: dict[str, list[Fact]] = defaultdict(list)
        for fact in self._rows_of_tables:
            if fact.rank is not None:
                tables[fact.host or fact.file or ""].append(fact)
        return dict(tables)

    @cached_property
    def _listed(self) -> frozenset[int]:
        return frozenset(f.rank for table in self._tables.values() for f in table if f.rank is not None)

    @cached_property
    def _offsets(self) -> frozenset[int]:
        """First rank of each agent that printed a table; none where a table contradicts itself."""
        offsets = [{_offset(fact) for fact in table} for table in self._tables.values()]
        good = all(len(one) == 1 and min(one) >= 0 for one in offsets)
        return frozenset(min(one) for one in offsets) if good else frozenset()

    @cached_property
    def _per_node(self) -> int:
        """Workers of a node: one more than the largest local rank that anything tells."""
        told = [row.local_rank for row in self._rows.values() if row.local_rank is not None]
        locals_ = (reading.number(fact.data, "local_rank") for table in self._tables.values() for fact in table)
        return max((*told, *(local for local in locals_ if local is not None)), default=0) + 1

    @cached_property
    def _alone(self) -> bool:
        return self._offsets == {0} and len(self._tables) == 1 and self._world == self._per_node

    def _lists_all(self, file: str | None) -> bool:
        here = {fact.rank for fact in self._rows_of_tables if fact.file == file}
        return self._offsets == {0} and here == set(range(self._per_node))

    @cached_property
    def _failed(self) -> list[Fact]:
        """The agents' words on the first failure of each attempt, in the order of their lines."""
        lines = self._sorts.of_kind(*reading.FAILED)
        failed = {(fact.file, reading.number(fact.data, "pid")): fact for fact in lines}
        return sorted(failed.values(), key=lambda fact: fact.line or 0)

    @cached_property
    def _outlived(self) -> bool:
        """Some worker that an agent sent SIGKILL is in no table."""
        listed = {reading.number(fact.data, "pid") for table in self._tables.values() for fact in table}
        kills = self._sorts.where(lambda fact: reading.is_agent_kill(fact, forced=True))
        return any(reading.number(fact.data, "pid") not in listed for fact in kills)

    @cached_property
    def _ends(self) -> dict[str | None, list[int]]:
        """File of one agent → lines at which an attempt ended. Agents of two containers may have one pid."""
        ends: dict[str | None, list[int]] = defaultdict(list)
        pids: dict[str | None, set[str]] = defaultdict(set)
        for fact in self._failed:
            ends[fact.file].append(fact.line or 0)
            pids[fact.file].add(_agent(fact))
        hosts: dict[str | None, set[str]] = defaultdict(set)
        for host, table in self._tables.items():
            for fact in table:
                hosts[fact.file].add(host)
        alone = (file for file in ends if len(pids[file]) == 1 and "" not in pids[file] and len(hosts[file]) < 2)
        return {file: ends[file] for file in alone}

    @cached_property
    def _restarted(self) -> bool:
        attempts = (reading.number(fact.data, "attempt") for fact in self._sorts.having("attempt"))
        return len(self._failed) > max(1, len(self._tables)) or any(attempt for attempt in attempts)


def _forced(table: Sequence[Fact]) -> list[int]:
    """Times are those at which the agent looked, but for rows with an error file: that is the exception's own time."""
    by_code: dict[int | None, list[Fact]] = defaultdict(list)
    for fact in table:
        by_code[reading.number(fact.data, "exitcode")].append(fact)
    first = min((fact for fact in table if fact.time is not None), key=lambda fact: fact.time or 0.0, default=None)
    if first is None or first.time is None or -15 not in by_code or _has_error_file(first):
        return []
    late = first.time + _GRACE_S - _STAMP_S
    return [f.rank for f in by_code[-9] if f.rank is not None and f.time is not None and f.time >= late]


def _has_error_file(fact: Fact) -> bool:
    return str(fact.data.get("error_file", "<N/A>")) != "<N/A>"


def _offset(fact: Fact) -> int:
    """-1 where the row does not tell it."""
    local = reading.number(fact.data, "local_rank")
    return -1 if local is None or fact.rank is None else fact.rank - local


def _agent(fact: Fact) -> str:
    """Pid of the agent that printed a line (torch 2.x); empty where it tells none."""
    match = _HEADER.search(fact.text)
    return match.group(1) if match else ""
