"""Ranks that issued a different operation, shape or order than the others.

With ``TORCH_DISTRIBUTED_DEBUG=DETAIL`` each rank compares its fingerprint with the others' and names the first that
differs: the good ranks agree on "but Rank N", the odd one names some good rank. So the majority's word counts, and a
tie (or what may be one, with those who printed nothing) or a single reporter proves nobody. Without it, timeouts at one
sequence number of one group with unlike operations show the same, and so do flight recorder dumps.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import Finding, cite, rank_list
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["find"]

_CLASS = "collective-mismatch"
#: Ranks that must agree before the odd one out is called odd.
AGREE_MIN = 2
#: Entries that the reader of dumps keeps of a group (`parse.flight_recorder`).
_RECENT_MAX = 32
_SHAPE = re.compile(r"\[([\d, ]+)\]")
#: What must be equal on all ranks: the operation, and the element count where it can't differ. Empty where not known.
_Operation = tuple[str, ...]
#: Operations in which all ranks pass the same number of elements.
_EVEN_OPS = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE"})


class _Call(NamedTuple):
    fact: Fact
    operation: _Operation


#: Sequence number → rank → call.
_Calls = dict[int, dict[int, _Call]]


def find(scene: Scene) -> Finding | None:
    return _detail(scene) or _unlike_timeouts(scene) or _recorded(scene) or _other_words(scene)


def _detail(scene: Scene) -> Finding | None:
    facts = scene.sorts.of_kind(*reading.DETAIL_MISMATCH)
    votes: dict[int, int] = {}  # reporter → the rank that it names
    for fact in facts:
        reporter, other = reading.number(fact.data, "rank_a"), reading.number(fact.data, "rank_b")
        if reporter is not None and other is not None:
            votes.setdefault(reporter if fact.rank is None else fact.rank, other)
    if not facts:
        return None
    odd = _odd_one(votes, scene.expected) if _global_numbers(facts) else None
    if odd is not None and scene.known(odd):
        why = f"{Counter(votes.values())[odd]} ranks name it as the one whose collective differs"
        culprit = scene.culprit(odd, why, cite(facts))
        return _finding(
            "mismatch.detail", f"Rank {odd} issued another collective than the rest: {why}.", facts, [culprit], True
        )
    both = sorted({rank for pair in votes.items() for rank in pair if scene.known(rank)} or _pair(facts))
    suspects = [scene.culprit(rank, "one side of the mismatch", cite(facts)) for rank in both]
    text = f"Collectives differ between {rank_list(both)}; nothing tells which of them is wrong."
    return _finding("mismatch.detail", text, facts, suspects, False)


def _global_numbers(facts: Sequence[Fact]) -> bool:
    """The text counts ranks inside its group; they are global ranks only where each reporter's two numbers agree."""
    return all(fact.rank in (None, reading.number(fact.data, "rank_a")) for fact in facts)


def _odd_one(votes: Mapping[int, int], expected: frozenset[int]) -> int | None:
    """The rank that every other reporter names, at least `AGREE_MIN` of them, and more than could side with it: a rank
    that printed nothing may have issued what the named one did."""
    for rank, count in Counter(votes.values()).most_common(1):
        against = [reporter for reporter, other in votes.items() if other != rank and reporter != rank]
        silent = expected - votes.keys() - {rank}
        if count >= AGREE_MIN and not against and count > 1 + len(silent):
            return rank
    return None


def _pair(facts: Sequence[Fact]) -> set[int]:
    pairs = (reading.number(fact.data, key) for fact in facts for key in ("rank_a", "rank_b"))
    return {rank for rank in pairs if rank is not None}


def _unlike_timeouts(scene: Scene) -> Finding | None:
    """Ranks that time out at one sequence number of one group, in unlike operations."""
    at: dict[tuple[str, int], dict[int, _Call]] = defaultdict(dict)
    status = scene.words(scene.sorts.of_kind(reading.STATUS))
    for rank, facts in scene.waits.items():
        groups = _groups(status.get(rank, ()))
        for fact in facts:
            seq = reading.number(fact.data, "seq")
            group = fact.data.get("pg") or groups.get(seq)
            if seq is None or not isinstance(group, str) or rank in at.get((group, seq), ()):
                continue
            operation = _operation(fact.data)
            if operation and not reading.is_p2p(fact):
                at[group, seq].setdefault(rank, _Call(fact, operation))
    for (group, seq), by_rank in sorted(at.items()):
        found = _compare(scene, group, seq, by_rank)
        if found:
            return found
    return None


def _groups(facts: Sequence[Fact]) -> dict[int | None, str]:
    """Sequence number → process group, by the rank's own status lines: the line with the operation often names no
    group, the one that follows has its GUID from torch 2.4 on (the ``PG 1`` of 2.3 is a number of that process alone,
    and no group here). A sequence number that stood in two groups tells none."""
    told: dict[int | None, set[str]] = defaultdict(set)
    for fact in facts:
        group = fact.data.get("pg")
        if isinstance(group, str):
            told[reading.number(fact.data, "seq")].add(group)
    return {seq: groups.pop() for seq, groups in told.items() if len(groups) == 1}


def _recorded(scene: Scene) -> Finding | None:
    """Dumps of one group hold unlike operations at one sequence number."""
    calls: dict[str, _Calls] = defaultdict(lambda: defaultdict(dict))
    apart = set()  # groups whose numbers count the messages between two ranks as well (torch to 2.2)
    for fact in scene.sorts.of_kind(reading.DUMPED):
        if fact.rank is None:
            continue
        group = str(fact.data.get("pg"))
        for entry in _entries(fact):
            calls[group][entry.seq].setdefault(fact.rank, _Call(fact, entry.operation))
            if entry.between_two:
                apart.add(group)
    found = (_first_unlike(scene, group, calls[group]) for group in sorted(set(calls) - apart))
    return next((finding for finding in found if finding), None)


def _first_unlike(scene: Scene, group: str, calls: _Calls) -> Finding | None:
    """Only after a collective in which the odd one agreed: else its dump may be of another program or attempt."""
    agreed: set[int] = set()
    for seq, by_rank in sorted(calls.items()):
        found = _compare(scene, group, seq, by_rank)
        if found:
            return replace(found, rule="mismatch.recorded") if seq == 1 or found.named() <= agreed else None
        agreed |= set(by_rank) if len(by_rank) > 1 else set()
    return None


class _Entry(NamedTuple):
    """``operation``: empty where the entry is no whole one."""

    seq: int
    operation: _Operation
    between_two: bool


def _entries(fact: Fact) -> Iterator[_Entry]:
    """Of a dump. Several entries of one number are one coalesced call: the first one tells, and is missing of the
    oldest number where the list was cut there."""
    recent = fact.data.get("recent")
    lines = [_entry(str(line)) for line in recent] if isinstance(recent, list) else []
    seen = {lines[0].seq} if len(lines) >= _RECENT_MAX and lines[0] else set()
    for entry in lines:
        if entry is not None and entry.operation and entry.seq not in seen:
            seen.add(entry.seq)
            yield entry


@lru_cache(maxsize=4096)
def _entry(line: str) -> _Entry | None:
    """``7 gloo:all_reduce [[64]]``: number, operation, sizes. All ranks tell the same ones."""
    seq, op, sizes = (*line.split(" ", 2), "", "")[:3]
    if not seq.isdecimal() or len(seq) > 18:
        return None
    between_two = op.rpartition(":")[2].startswith(("send", "recv"))
    return _Entry(int(seq), _called(op, _elements(sizes)) if sizes else (), between_two)


def _elements(sizes: Any) -> str | None:
    return _counted(sizes) if isinstance(sizes, str) else None


@lru_cache(maxsize=256)
def _counted(sizes: str) -> str | None:
    """Number of elements of ``[[64, 64], [8]]``; None where a list was cut short. All ranks tell the same sizes."""
    if "…" in sizes or not sizes.endswith("]"):
        return None
    shapes = (part.replace(",", " ").split() for part in _SHAPE.findall(sizes))
    return str(sum(prod(int(size) for size in shape) for shape in shapes))


def _compare(scene: Scene, group: str, seq: int, by_rank: Mapping[int, _Call]) -> Finding | None:
    calls: dict[_Operation, list[int]] = defaultdict(list)
    for rank, call in by_rank.items():
        calls[call.operation].append(rank)
    if len(calls) < 2:
        return None
    sides = sorted(calls.values(), key=lambda ranks: (len(ranks), ranks))
    clear = len(sides) == 2 and len(sides[0]) == 1 and len(sides[1]) >= AGREE_MIN
    facts = [by_rank[rank].fact for side in sides for rank in side[:4]]
    why = f"issued another operation as collective {seq} of process group {group} than {len(sides[-1])} others"
    named = sides[0] if clear else [rank for side in sides[:-1] for rank in side]
    text = f"At collective {seq} of process group {group} the ranks issued unlike operations."
    return _finding(
        "mismatch.timeouts",
        text,
        facts,
        [scene.culprit(rank, why, cite([by_rank[rank].fact])) for rank in named],
        clear,
    )


def _operation(data: Mapping[str, Any]) -> _Operation:
    """Of a line that tells what its rank timed out in."""
    op = data.get("op")
    if not isinstance(op, str):
        return ()
    count = reading.number(data, "numel_in", "numelin")
    return _called(op, _elements(data.get("sizes")) if count is None else str(count))


@lru_cache(maxsize=256)
def _called(op: str, elements: str | None) -> _Operation:
    """All ranks of a collective ask for the same."""
    name = op.rpartition(":")[2].replace("_", "").upper()
    return (op, elements) if name in _EVEN_OPS and elements is not None else (op,)


def _other_words(scene: Scene) -> Finding | None:
    """Any other line that speaks of a mismatch: the one who prints it received what it did not expect."""
    facts = scene.sorts.where(lambda fact: fact.hint == _CLASS and fact.role == "cause")
    if not facts:
        return None
    ranks = sorted({fact.rank for fact in facts if fact.rank is not None})
    suspects = [scene.culprit(rank, "reports data of another size than it expected", cite(facts)) for rank in ranks]
    return _finding("mismatch.reported", "Ranks issued collectives that don't fit together.", facts, suspects, False)


def _finding(rule: str, text: str, facts: Sequence[Fact], named: Sequence[Culprit], proven: bool) -> Finding:
    return Finding(
        rule=rule,
        failure_class=_CLASS,
        confidence="proven" if proven else "likely",
        summary=text,
        facts=cite(facts),
        time=min((fact.time for fact in facts if fact.time is not None), default=None),
    ).naming(named, proven=proven)
