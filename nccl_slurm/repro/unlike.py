"""The two sides of a mismatch: what one rank issued, and what the others did."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from nccl_slurm.repro.call import UNTOLD, Call, call_of
from nccl_slurm.repro.material import Material
from nccl_slurm.repro.sighting import Sighting, of_rank, usual

__all__ = ["Unlike", "unlike"]

#: Parameters of a model that a script makes; more show nothing more.
PARAMETERS_MAX = 1000
_NOBODY = "nothing tells which side is wrong"
#: What torch prints for the other side where the numbers of dimensions differ: it reads a tensor of the wrong length.
_NO_TENSOR = ("barrier", "monitored_barrier")
#: MatchInfo in torch's flight recorder analyser; of dtypes the middle set is that of the other rank's input.
_ANALYSED = re.compile(
    r"Expected (?:collective type: '(?P<op_a>\w{1,60})' does not match found collective type: '(?P<op_b>\w{1,60})'"
    r"|input sizes: '\[\[(?P<shape_a>[\d, ]{1,400})\]\]' does not match found input sizes: "
    r"'\[\[(?P<shape_b>[\d, ]{1,400})\]\]'"
    r"|dtypes: '\{'(?P<dtype_a>\w{1,40})'\}' does not match found dtype: '[^/]{1,80}/\{'(?P<dtype_b>\w{1,40})'\}/)"
)


@dataclass(frozen=True)
class Unlike:
    """``kind``: ``op``, ``shape``, ``dtype``, ``order``, ``ddp``. ``rank`` issued ``other``, the rest ``call``."""

    kind: str
    rank: int | None
    call: Call = UNTOLD
    other: Call = UNTOLD
    parameters: tuple[int, int] = (0, 0)
    seen: Sighting | None = None
    unsure: tuple[str, ...] = ()


def unlike(material: Material) -> Unlike | None:
    """None where no line shows both sides."""
    ways = (_by_fingerprint, _by_analyser, _by_number, _by_bytes, _by_parameters)
    return next((found for found in (way(material) for way in ways) if found), None)


def _by_fingerprint(material: Material) -> Unlike | None:
    ids = {fact["id"] for fact, _ in material.data("torch.mismatch")}
    sides = _own_words(one for one in material.sightings if one.fact in ids)
    return _compared(material, sides)


def _by_analyser(material: Material) -> Unlike | None:
    """torchfrtrace's own comparison: it names the rank whose entry differs from the first one's."""
    told = next(iter(material.sightings), None)
    base = told.call if told is not None else UNTOLD
    for fact, data in material.data("flight-recorder.mismatch"):
        found = _ANALYSED.search(fact["text"])
        if found is not None:
            rank = data.get("culprit")
            call, other = (_analysed(base, found.groupdict(), side) for side in ("a", "b"))
            kind = _kind(call, other, set())
            if kind is not None and None not in (call.op, other.op):
                return Unlike(kind, rank if isinstance(rank, int) else None, call, other, seen=told, unsure=(_NOBODY,))
    return None


def _analysed(base: Call, found: Mapping[str, str | None], side: str) -> Call:
    op, shape, dtype = (found[f"{name}_{side}"] for name in ("op", "shape", "dtype"))
    told = call_of(op, shape, dtype)
    return Call(told.op or base.op, told.shape or base.shape, told.dtype or base.dtype)


def _own_words(found: Iterable[Sighting]) -> list[Sighting]:
    """One a rank: what it prints of itself stands first in its line; what it prints of another may be garbage."""
    first: dict[str, None] = {}
    own: dict[int | None, Sighting] = {}
    heard: dict[int | None, Sighting] = {}
    for one in found:
        target = heard if one.fact in first else own
        first[one.fact] = None
        target.setdefault(one.rank, one)
    return list({**heard, **own}.values())


def _by_number(material: Material) -> Unlike | None:
    """Unlike calls at one sequence number of one group."""
    at: dict[tuple[str, int], list[Sighting]] = defaultdict(list)
    for one in material.sightings:
        if one.seq is not None and one.rank is not None and one.group is not None:
            at[one.group, one.seq].append(one)
    for _, sides in sorted(at.items()):
        found = _compared(material, sides)
        if found is not None:
            return found
    return None


def _compared(material: Material, sides: list[Sighting]) -> Unlike | None:
    one_named = material.report["verdict"]["culprits"] or len(material.report["verdict"]["suspects"]) == 1
    named, unsure = material.rank() if one_named else (None, ())
    odd = of_rank(sides, named) or min(sides, key=lambda one: _support(one, sides), default=None)
    rest = usual(one for one in sides if odd is not None and one.rank != odd.rank)
    if odd is None or rest is None:
        return None
    call, other = rest.call, odd.call
    said = unsure if material.report["verdict"]["culprits"] else (_NOBODY,)
    if other.shape is None and call.shape is not None and other.op not in _NO_TENSOR:
        other = replace(call, shape=(*call.shape, 1))
        said = (*said, "what the odd rank issued: torch prints garbage where the numbers of dimensions differ")
    kind = _kind(call, other, {_size(then) for one in (rest, odd) for then in _after(material, one)})
    return None if kind is None else Unlike(kind, odd.rank, call, other, seen=rest, unsure=said)


def _support(one: Sighting, sides: list[Sighting]) -> tuple[int, int]:
    """How many ranks issued the same; of equal ones the last rank is the odd one."""
    return sum(other.call == one.call for other in sides), -(one.rank or 0)


def _kind(call: Call, other: Call, after: set[tuple[str | None, int | None]]) -> str | None:
    """``after``: what either side had enqueued behind its call."""
    if _size(call) != _size(other):
        swapped = after & {_size(call), _size(other)}
        return "order" if swapped else "op" if call.op != other.op else "shape"
    if call.shape != other.shape:
        return "shape"
    return "dtype" if call != other else None


def _after(material: Material, one: Sighting) -> Iterator[Call]:
    for other in material.all_sightings:
        if other.then is not None and (other.rank, other.seq) == (one.rank, one.seq):
            yield other.then


def _size(call: Call) -> tuple[str | None, int | None]:
    """Watchdog lines tell a number of elements, dumps a shape."""
    return call.op, None if call.shape is None else prod(call.shape)


def _by_bytes(material: Material) -> Unlike | None:
    """The transport's word: so many bytes came in place of so many. It knows no operation and no dtype."""
    for _, data in material.data("gloo.size-mismatch", "nccl.truncated", "nccl.ib-mismatch"):
        sizes = _two(data, ("received", "expected"), ("remote_size", "local_size"))
        if sizes is not None:
            dtype, wide = ("float32", 4) if not sizes[0] % 4 and not sizes[1] % 4 else ("uint8", 1)
            other, call = (Call("all_reduce", (size // wide,), dtype) for size in sizes)
            said = (_NOBODY, "operation and dtype: the transport tells bytes alone", "which rank sent them")
            return Unlike("shape", None, call, other, unsure=said)
    return None


def _by_parameters(material: Material) -> Unlike | None:
    for _, data in material.data("torch.ddp-unequal"):
        counts = _two(data, ("params_a", "params_b"))
        if counts is not None:
            many = tuple(min(count, PARAMETERS_MAX + at) for at, count in enumerate(counts))
            rank = data.get("rank_a")
            odd = rank if isinstance(rank, int) else None
            return Unlike("ddp", odd, parameters=(many[1], many[0]), unsure=(_NOBODY,))
    return None


def _two(data: Mapping[str, Any], *names: tuple[str, str]) -> tuple[int, int] | None:
    """Two numbers that differ and are above zero."""
    for pair in names:
        one, two = (data.get(name) for name in pair)
        if isinstance(one, int) and isinstance(two, int) and one != two and min(one, two) > 0:
            return one, two
    return None
