"""One look at a running job: what its nodes and its own output say now → evidence. Look after look → `Quiet`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.live import Quiet
from nccl_slurm.daemon.evidence import assemble
from nccl_slurm.live.pace import Mark, Pace
from nccl_slurm.model import Evidence, Fact, Gap, Job, NodeView, Parsed, Rank

__all__ = ["Answer", "File", "Look", "Looks", "evidence_of"]

#: Of a record what a running job has none of yet.
_NOT_YET: Mapping[str, Any] = {
    "kernel_events": [],
    "task_exits": [],
    "snapshots": {"before": None, "after": None},
    "prolog": None,
    "epilog": None,
}


class File(NamedTuple):
    """``age_s``: since it was written to, by the clock of the host that read it."""

    name: str
    size: int
    mtime: float
    age_s: float


class Answer(NamedTuple):
    """Of one node. ``told`` None: nothing came, and ``why``. It is `cleaned`, and believed in nothing but its shape."""

    told: Mapping[str, Any] | None
    why: str = ""
    files: Sequence[File] = ()


@dataclass(frozen=True)
class Look:
    """``at``: seconds since 1970 by the looking host's clock. ``whole``: all nodes of the job gave an answer."""

    at: float
    evidence: Evidence
    files: Sequence[File] = ()
    whole: bool = True


def evidence_of(job: Job, answers: Mapping[str, Answer], output: Parsed, gaps: Iterable[Gap] = ()) -> Evidence:
    """``answers`` by node name; nodes without one are a gap, and ``record`` stays missing: the job has not ended."""
    views = [NodeView(name) for name in job.nodes]
    told = {name: {**_NOT_YET, **answer.told} for name, answer in answers.items() if answer.told is not None}
    silent = [Gap(f"{name}: ranks' files", answer.why) for name, answer in answers.items() if answer.told is None]
    return assemble(job, views, told, output, [*gaps, *silent])


@dataclass
class Looks:
    """What changed from look to look. ``floor_s``: shorter silences are none."""

    floor_s: float
    _pace: Pace = field(default_factory=Pace)

    def see(self, look: Look) -> Quiet:
        files = {one.name: one for one in look.files}
        marks = _marks(look.evidence, files)
        self._pace.see(look.at, marks)
        ranks = self._pace.with_rhythm(key for key in marks if _is(key, "rank"))
        too_long = self._pace.too_long_s(ranks, self.floor_s)
        quiet = {_number(key): self._pace.quiet_s(key, look.at) for key in ranks}
        silent = {rank: seconds for rank, seconds in quiet.items() if seconds >= too_long}
        still, rose = self._counts(marks, look.at)
        all_s, written = self._all(marks, look.at)
        return Quiet(
            ranks=silent,
            moving=frozenset(quiet) - frozenset(silent),
            longest_s=self._pace.longest_s(ranks or [key for key in marks if _is(key, "file")]),
            still_s=still,
            rose=rose and look.whole,
            all_s=all_s,
            written=written,
            ras_s=self._of_ras(look),
        )

    def _counts(self, marks: Mapping[Hashable, Mark], at: float) -> tuple[float | None, bool]:
        keys = [key for key in marks if _is(key, "count")]
        still = min((self._pace.quiet_s(key, at) for key in keys), default=0.0)
        if not keys or still < self._pace.too_long_s(keys, self.floor_s):
            return None, False
        return still, all(self._pace.changed(key) for key in keys)

    def _all(self, marks: Mapping[Hashable, Mark], at: float) -> tuple[float | None, bool]:
        """By all that has a rhythm: ranks, and files, since output that does not tell its rank is the job's too."""
        keys = self._pace.with_rhythm(key for key in marks if _is(key, "rank") or _is(key, "file"))
        quiet = min((self._pace.quiet_s(key, at) for key in keys), default=0.0)
        silent = bool(keys) and quiet >= self._pace.too_long_s(keys, self.floor_s)
        return (quiet, False) if silent else (None, bool(keys))

    def _of_ras(self, look: Look) -> dict[str, float]:
        """RAS reads its ranks one after the other: only a difference that stays is one."""
        found = {_key_of_ras(fact): fact for fact in look.evidence.facts if fact.kind in reading.RAS_RANK}
        self._pace.see(look.at, {key: Mark(fact.data.get("count")) for key, fact in found.items()})
        quiet = {fact.id: self._pace.quiet_s(key, look.at) for key, fact in found.items()}
        return {name: seconds for name, seconds in quiet.items() if seconds >= self.floor_s}


def _key_of_ras(fact: Fact) -> Hashable:
    return ("ras", *(str(fact.data.get(key)) for key in ("comm_hash", "op", "group_rank")))


def _is(key: Hashable, kind: str) -> bool:
    return isinstance(key, tuple) and key[0] == kind


def _number(key: Hashable) -> int:
    assert isinstance(key, tuple)
    return int(key[1])


def _marks(evidence: Evidence, files: Mapping[str, File]) -> dict[Hashable, Mark]:
    """Of each file; of each rank: its last words and its own files; and its counts of collectives. A file of several
    ranks is nobody's own."""
    shared = Counter(name for rank in evidence.ranks for name in rank.files)
    dumps = _dumps(evidence, files)
    marks: dict[Hashable, Mark] = {("file", one.name): Mark((one.size, one.mtime), one.age_s) for one in files.values()}
    for rank in evidence.ranks:
        own = [files[name] for name in rank.files if name in files and shared[name] == 1]
        marks["rank", rank.rank] = _of_rank(rank, own)
        if rank.progress:
            counts = json.dumps(rank.progress, sort_keys=True)
            marks["count", rank.rank] = Mark(counts, _age(dumps.get(rank.rank, ())))
    return marks


def _of_rank(rank: Rank, own: Sequence[File]) -> Mark:
    progress = json.dumps(rank.progress, sort_keys=True)
    value = (rank.last_line, rank.last, progress, tuple((one.name, one.size, one.mtime) for one in own))
    return Mark(value, _age(own) if own else None)


def _dumps(evidence: Evidence, files: Mapping[str, File]) -> dict[int, list[File]]:
    """By rank: where its counts stand."""
    found: dict[int, list[File]] = {}
    for fact in evidence.facts:
        if fact.rank is not None and fact.file is not None and fact.file in files and "enqueued" in fact.data:
            found.setdefault(fact.rank, []).append(files[fact.file])
    return found


def _age(files: Iterable[File]) -> float | None:
    return min((one.age_s for one in files), default=None)
