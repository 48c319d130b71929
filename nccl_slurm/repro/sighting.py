"""Which collective calls the lines of a report tell of, and of which rank.

A report keeps the lines, not what was taken out of them: so reports of older versions, and those that the daemon
published, are read the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nccl_slurm.repro.call import Call, call_of

__all__ = ["Sighting", "of_rank", "sightings", "usual"]

#: A fingerprint with a tensor of many dimensions has some hundred characters; what is longer is no line of torch's.
_LOOK = 4096
#: Work::toString in torch's ProcessGroupNCCL; sizes from torch 2.1 on.
_WORK = re.compile(
    r"Work\w{2,10}\((?:SeqNum=(?P<seq>\d{1,18}), )?OpType=(?P<op>\w{1,60})"
    r"(?:, NumelIn=(?P<numel_in>\d{1,18}), NumelOut=(?P<numel_out>\d{1,18}))?"
)
_GUID = re.compile(r"PG GUID (?P<guid>[^\s(\]]{1,80})")
#: CollectiveFingerPrint in torch's ProcessGroupWrapper. Without a tensor there is no comma before OpType.
_FINGERPRINT = re.compile(
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d{1,18})(?:, )?)?OpType=(?P<op>\w{1,60})"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]{0,400})\], TensorDtypes=(?P<dtype>\w{1,40}))?"
)
_SIDES = re.compile(
    r"Rank (?P<rank>\d{1,8}) is running (?:inconsistent )?collective: (?P<call>CollectiveFingerPrint\(.{0,600}?"
    r"(?=\)+(?:,|\.|\Z)))"
)
#: What `parse.folder` says of a dump.
_DUMP = re.compile(
    r"flight recorder: group (?P<group>\S{0,80}) .{0,130}?: (?P<op>\S{1,80}) (?P<seq>\d{1,19}) open"
    r"(?:, (?P<size>\d{1,8}) ranks)?"
    r"(?:, in \[\[(?P<shape>[\d, ]{0,400})\][^;]{0,200}?\] \['(?P<dtype>\w{1,40})')?"
    r"(?:[^;]{0,400}; then \d{1,19} (?P<op2>\S{1,80}) \[\[(?P<shape2>[\d, ]{0,400})\])?"
)
#: FlightRecorder's analyser in torch, Collective.log; its block has at most these lines between the two.
_BLOCK = 4
_ANALYSED_OP = re.compile(r"\bcollective: (?P<op>\w{1,8}:\w{1,60})")
_ANALYSED_SIZES = re.compile(r"\binput sizes: \[\[(?P<shape>[\d, ]{1,400})\]")


@dataclass(frozen=True)
class Sighting:
    """``rank``: global rank, or a rank in the group where the line tells no other. ``then``: the call after this one
    on the same rank, and ``size``, the ranks in the group, where a dump tells them. ``fact``: id of the line.
    """

    call: Call
    fact: str
    rank: int | None
    seq: int | None = None
    group: str | None = None
    then: Call | None = None
    size: int | None = None


def sightings(facts: Iterable[Mapping[str, Any]]) -> list[Sighting]:
    """In the order of ``facts``, which are those of a report. Never raises on any text."""
    listed = list(facts)
    return [found for fact in listed for found in (*_of(fact), *_analysed(fact, listed)) if found.call.op]


def of_rank(found: Iterable[Sighting], rank: int | None) -> Sighting | None:
    return next((one for one in found if rank is not None and one.rank == rank), None)


def usual(found: Iterable[Sighting]) -> Sighting | None:
    """One of the calls that most ranks issued; the first of those at a tie."""
    who: dict[Call, set[Any]] = {}
    first: dict[Call, Sighting] = {}
    for one in found:
        first.setdefault(one.call, one)
        who.setdefault(one.call, set()).add(one.fact if one.rank is None else one.rank)
    most = max(who, key=lambda call: len(who[call]), default=None)
    return None if most is None else first[most]


def _of(fact: Mapping[str, Any]) -> Iterator[Sighting]:
    text = fact["text"][:_LOOK]
    if fact["producer"] == "flight-recorder":
        yield from _dump(fact, text)
    sides = list(_SIDES.finditer(text))
    for side in sides:
        yield from _fingerprint(fact, side["call"], int(side["rank"]))
    if not sides:
        yield from _fingerprint(fact, text, fact["rank"])
    work = _WORK.search(text)
    if work is not None:
        guid = _GUID.search(text)
        size = next((n for n in (work["numel_in"], work["numel_out"]) if n and int(n)), None)
        group = guid["guid"] if guid else None
        yield Sighting(call_of(work["op"], size), fact["id"], fact["rank"], _number(work["seq"]), group)


def _fingerprint(fact: Mapping[str, Any], text: str, rank: int | None) -> Iterator[Sighting]:
    found = _FINGERPRINT.search(text)
    if found is not None:
        call = call_of(found["op"], found["shape"], found["dtype"])
        yield Sighting(call, fact["id"], rank, _number(found["seq"]))


def _dump(fact: Mapping[str, Any], text: str) -> Iterator[Sighting]:
    found = _DUMP.match(text)
    if found is not None:
        then = call_of(found["op2"], found["shape2"]) if found["op2"] else None
        call = call_of(found["op"], found["shape"], found["dtype"])
        yield Sighting(
            call, fact["id"], fact["rank"], _number(found["seq"]), found["group"], then, _number(found["size"])
        )


def _analysed(fact: Mapping[str, Any], facts: Iterable[Mapping[str, Any]]) -> Iterator[Sighting]:
    """torchfrtrace prints the operation, and the sizes a few lines below."""
    op = _ANALYSED_OP.search(fact["text"][:_LOOK]) if fact["kind"] == "flight-recorder.collective" else None
    if op is not None:
        sizes = (_ANALYSED_SIZES.search(other["text"][:_LOOK]) for other in facts if _is_below(other, fact))
        shape = next((found["shape"] for found in sizes if found), None)
        yield Sighting(call_of(op["op"], shape), fact["id"], None)


def _is_below(other: Mapping[str, Any], fact: Mapping[str, Any]) -> bool:
    known = other["kind"] == "flight-recorder.sizes" and other["file"] == fact["file"]
    return known and bool(other["line"] and fact["line"]) and 0 < other["line"] - fact["line"] <= _BLOCK


def _number(digits: str | None) -> int | None:
    return int(digits) if digits else None
