"""The ranks' environment, rank by rank: who belongs to which world, and who has another setting than the rest."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from nccl_slurm.doctor.check import Finding, NotObserved, Priority, Proof, Status
from nccl_slurm.doctor.checks.job.asked import SHOWN, JobCheck, proof
from nccl_slurm.doctor.checks.job.ranks import (
    LOOPBACK,
    Ranks,
    Seen,
    about,
    at_home,
    number,
    programs,
    ranks,
    unseen,
    whose,
    whose_nodes,
)
from nccl_slurm.doctor.observation import JobObserved, Observation
from nccl_slurm.doctor.read.addresses import addresses
from nccl_slurm.hosts import fold, fold_numbers
from nccl_slurm.info.setting import OF_ONE_PROCESS
from nccl_slurm.info.split import split
from nccl_slurm.parse.redact import redacted
from nccl_slurm.report.visible import visible

__all__ = ["CHECKS", "ID", "worlds"]

ID = "job.environment"
NOT_SET = "not set"
#: Where a world's ranks meet, and how many they are.
_MEETING = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
#: Read by what ranks must agree in.
_COMPARED = re.compile(
    r"(?:NCCL|FI|OFI|TORCH|GLOO|UCX|EFA|RDMAV|NVSHMEM|PYTORCH)_[A-Z0-9_]+|CUDA_(?:LAUNCH_BLOCKING|DEVICE_ORDER"
    r"|DEVICE_MAX_CONNECTIONS|MODULE_LOADING)|LD_LIBRARY_PATH|LD_PRELOAD|OMP_NUM_THREADS"
)
#: Other for each process or node by design, or ours.
_OWN = re.compile(r"NCCL_SLURM_.*|TORCHELASTIC_.*|OFI_NCCL_TRACE.*|TORCH_.*_(?:FILE|DIR|PATH)")
#: A node may need another one than its peers: its adapters have other names.
_OF_A_NODE = frozenset(
    {"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "UCX_NET_DEVICES", "OMP_NUM_THREADS"}
)
_VALUE_MAX = 80
#: An address, of IPv4 or IPv6.
_NUMERIC = re.compile(r"[0-9.]{7,15}\Z|[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\Z")
#: In the place of a node's own name.
_PLACE = "%h"
#: Seconds in which nodes start one after the other, and more where one fetches an image first.
_YOUNG_S = 120.0

_World = tuple[str, ...]
_Worlds = Mapping[_World, Sequence[Seen]]


def judge(observed: JobObserved) -> Iterator[Finding]:
    found = ranks(observed)
    places = _places(observed)
    groups = worlds(found.seen, places)
    wrong = [
        *_meetings(found, groups, places),
        *_doubles(groups),
        *_absent(found, groups),
        *_differences(found, groups),
    ]
    yield from wrong
    yield from unseen(ID, found)
    if not wrong:
        nodes = whose_nodes(found.seen)
        names = {name for one in found.seen for name in one.environment if _COMPARED.fullmatch(name)}
        yield Finding(ID, "PASS", f"{len(found.seen)} ranks on {len(nodes)} nodes agree in {len(names)} settings")


def worlds(seen: Iterable[Seen], places: Mapping[str, str] | None = None) -> dict[_World, list[Seen]]:
    """(address, port, size) → its ranks, the largest first. Processes that were told none are in no world.

    ``places``: names and addresses of nodes → the node, so that two words for one host are one place. A number that is
    none of these may be rank 0's own, where that one goes by its loopback."""
    found: dict[_World, list[Seen]] = {}
    told = [one for one in seen if one.rank is not None and one.told_by == "RANK" and one.world is not None]
    homes = {_door(one): one.node for one in at_home(told)}
    for one in told:
        said = one.environment.get(_MEETING[0], NOT_SET)
        own = LOOPBACK.fullmatch(said.strip())
        address = one.node if own else _place(said, places or {}, homes.get(_door(one)))
        found.setdefault((address, *_door(one)), []).append(one)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def _door(one: Seen) -> tuple[str, ...]:
    return tuple(one.environment.get(name, NOT_SET) for name in _MEETING[1:])


def _place(said: str, places: Mapping[str, str], home: str | None) -> str:
    known = places.get(_spelled(said))
    return known or (home if home and _NUMERIC.match(said) else said)


def _places(observed: JobObserved) -> dict[str, str]:
    """Names and addresses → the node: as Slurm and the nodes themselves call them, and as their resolvers do. One of
    two nodes is in neither. An address of no node may be one's all the same (public ones, of NAT)."""
    found: dict[str, set[str]] = {}
    for name, node in observed.fleet.nodes.items():
        told = (name, node.host, *(node.slurm.get(key, "") for key in ("NodeAddr", "NodeHostName")), *_own(node))
        for word in told:
            if word and not LOOPBACK.fullmatch(word):
                found.setdefault(_spelled(word), set()).add(name)
    places = {word: next(iter(nodes)) for word, nodes in found.items() if len(nodes) == 1}
    for word, numbers in _resolved(observed).items():
        homes = {places.get(one, "") for one in numbers}
        if len(homes) == 1 and "" not in homes:
            places.setdefault(word, next(iter(homes)))
    return places


def _spelled(word: str) -> str:
    return word if _NUMERIC.match(word) else word.partition(".")[0].lower()


def _own(node: Observation) -> frozenset[str]:
    """Addresses of its interfaces; empty where they were not seen."""
    try:
        return addresses(node.present("own-addresses"))
    except NotObserved:
        return frozenset()


def _resolved(observed: JobObserved) -> dict[str, set[str]]:
    """What ranks go by → its addresses, on any node; without loopbacks, which are another node's on each."""
    found: dict[str, set[str]] = {}
    for node in observed.fleet.nodes.values():
        try:
            names = node.reader("names")["names"].items()
            told = [(str(name), [str(one) for one in row["addresses"]]) for name, row in names if "addresses" in row]
        except (NotObserved, AttributeError, KeyError, TypeError):
            continue
        for name, numbers in told:
            found.setdefault(_spelled(name), set()).update(one for one in numbers if not LOOPBACK.fullmatch(one))
    return {name: numbers for name, numbers in found.items() if numbers}


def _are_apart(groups: _Worlds) -> bool:
    """Several worlds in a job are no fault where each is whole: several programs may run side by side. Nor where they
    have ranks of the same numbers, and are in other steps or one of them is whole: who lacks a rank waits for its own.
    """
    worlds_of = list(groups.values())
    if len(worlds_of) < 2:
        return False
    return all(map(_is_whole, worlds_of)) or all(_are_programs(one, two) for one, two in combinations(worlds_of, 2))


def _are_programs(one: Sequence[Seen], two: Sequence[Seen]) -> bool:
    if {each.rank for each in one}.isdisjoint(each.rank for each in two):
        return False
    if _is_whole(one) or _is_whole(two):
        return True
    steps = [{each.environment.get("SLURM_STEP_ID") for each in members} for members in (one, two)]
    told = None not in steps[0] | steps[1]
    return told and steps[0].isdisjoint(steps[1])


def _meetings(found: Ranks, groups: _Worlds, places: Mapping[str, str]) -> Iterator[Finding]:
    if len(groups) < 2 or _are_apart(groups):
        return
    usual = next(iter(groups))
    for place, name in enumerate(_MEETING):
        odd = {world: members for world, members in groups.items() if world[place] != usual[place]}
        if not odd:
            continue
        processes = [one for members in odd.values() for one in members]
        said = ", ".join(f"{_told(name, members)} on {whose(members)}" for members in list(odd.values())[:4])
        known = set(places.values())
        sure = place > 0 or (usual[0] in known and any(world[0] in known for world in odd))
        status: Status = "FAIL" if found.whole and sure else "WARN"
        effect = "so these ranks wait for one another at different places"
        if not sure:
            effect = "and whether these are words for one host is not known: ranks may wait at different places"
        yield Finding(
            ID,
            status,
            f"{name} differs, {effect}: {said}; the others have {_told(name, groups[usual])}",
            "P0" if sure else "P1",
            nodes=whose_nodes(processes),
            proofs=[_line(one, name) for one in (*processes[: SHOWN - 1], groups[usual][0])],
            values=about(name, processes[0]),
        )


def _told(name: str, members: Sequence[Seen]) -> str:
    """A loopback is another host on each node."""
    value = members[0].environment.get(name, NOT_SET)
    return _shown(value) + (f" (which is {members[0].node})" if LOOPBACK.fullmatch(value.strip()) else "")


def _is_whole(members: Sequence[Seen]) -> bool:
    return {one.rank for one in members} == set(range(members[0].world or 0))


def _doubles(groups: _Worlds) -> Iterator[Finding]:
    """One number twice in one world: one of the two waits for ever. A world of one waits for nobody."""
    for members in (group for group in groups.values() if group[0].world != 1):
        places: dict[int, list[Seen]] = {}
        for one in members:
            places.setdefault(one.rank or 0, []).append(one)
        twice = {rank: ones for rank, ones in places.items() if len(ones) > 1}
        if twice:
            processes = [one for ones in twice.values() for one in ones]
            yield Finding(
                ID,
                "FAIL",
                f"{len(twice)} of {members[0].world} ranks are there more than once: {fold_numbers(twice)}",
                "P0",
                nodes=whose_nodes(processes),
                proofs=[_line(one, "RANK") for one in processes[:SHOWN]],
                values=about("RANK", processes[0]),
            )


def _absent(found: Ranks, groups: _Worlds) -> Iterator[Finding]:
    """Only where all was seen: a rank on a node that did not answer is not gone."""
    judged = found.whole and (len(groups) == 1 or _are_apart(groups))
    for members in groups.values() if judged else ():
        size = members[0].world or 0
        gone = sorted(set(range(size)) - {one.rank for one in members})
        if gone:
            yield _gone(found, members, gone, size)


def _gone(found: Ranks, members: Sequence[Seen], gone: Sequence[int], size: int) -> Finding:
    which = f"rank{'s' if len(gone) > 1 else ''} {fold_numbers(gone)}"
    short, age = _short_of_ranks(found, members), min((one.age for one in members if one.age is not None), default=None)
    if age is not None and age < _YOUNG_S:
        text = f"no process of {which} yet, while the last of the other {len(members)} of {size} is {age:.0f} s old"
        return Finding(ID, "UNKNOWN", f"{text}: nodes may still start", nodes=short)
    elsewhere = _may_be_elsewhere(members) and len(gone) > _lacking(members)
    text = f"no process of {which} on any node of the job, while the other {len(members)} of {size} are there: "
    text += "ended, or never started; its exit is not known here"
    text += "; what ssh starts is not the job's, and may be there all the same" if elsewhere else ""
    return Finding(
        ID,
        "WARN" if elsewhere else "FAIL",
        f"{text}{_where(short, members)}",
        "P1" if elsewhere else "P0",
        nodes=short,
        proofs=[_line(members[0], "WORLD_SIZE")],
    )


def _may_be_elsewhere(members: Sequence[Seen]) -> bool:
    """No rank is of a step: a launcher in a batch script or a shell reaches other nodes by ssh (DeepSpeed's pdsh,
    mpirun's rsh), and only pam_slurm_adopt makes what starts there the job's."""
    return all(
        "SLURM_JOB_ID" in one.environment and number(one.environment.get("SLURM_STEP_ID")) is None for one in members
    )


def _where(short: Sequence[str], members: Sequence[Seen]) -> str:
    """Of one node that is short; one without any rank tells no LOCAL_WORLD_SIZE."""
    told = "fewer than its LOCAL_WORLD_SIZE" if short and short[0] in whose_nodes(members) else "none"
    return f"; {fold(short)} has {told}" if len(short) == 1 else ""


def _short_of_ranks(found: Ranks, members: Sequence[Seen]) -> list[str]:
    """Nodes with fewer ranks than each of them is to have; where none has, those without any."""
    return sorted(_few(members) or found.idle)


def _lacking(members: Sequence[Seen]) -> int:
    """How many are to be on the nodes that have some."""
    return sum(_few(members).values())


def _few(members: Sequence[Seen]) -> dict[str, int]:
    """Node → how many of its ranks are not there."""
    counts = Counter(one.node for one in members)
    wanted = {one.node: number(one.environment.get("LOCAL_WORLD_SIZE")) for one in members}
    return {node: size - counts[node] for node, size in wanted.items() if size is not None and counts[node] < size}


def _differences(found: Ranks, groups: _Worlds) -> Iterator[Finding]:
    """Within each program, where several run side by side."""
    for members in groups.values() if _are_apart(groups) else programs(found.seen):
        ours = {name for one in members for name in one.ours}
        for name in sorted({name for one in members for name in one.environment if _is_compared(name)} - ours):
            yield from _difference(name, members)


def _is_compared(name: str) -> bool:
    return bool(_COMPARED.fullmatch(name)) and name not in OF_ONE_PROCESS and not _OWN.fullmatch(name)


def _difference(name: str, seen: Sequence[Seen]) -> Iterator[Finding]:
    by_place = dict(enumerate(seen))
    one = split((place, _own_words_out(process, name)) for place, process in by_place.items())
    nodes = len({process.node for process in seen})
    if one is None or (len(one.values) > 2 and len(one.values) in (len(seen), nodes)):
        return  # another one on each rank or node is so by design
    usual = next(iter(one.values))
    groups = {value: [by_place[int(place)] for place in places] for value, places in one.values.items()}
    odd = [by_place[int(place)] for place in one.odd]
    shown = list(groups.items())[1:4] if odd else list(groups.items())[:4]
    said = ", ".join(f"{_shown(value)} on {whose(processes)}" for value, processes in shown)
    yield Finding(
        ID,
        "WARN",
        f"{name}: {said}" + (f"; the others have {_shown(usual)}" if odd else ""),
        _priority(name),
        nodes=whose_nodes(odd),
        proofs=[_line(process, name) for process in _some(groups)],
        values=about(name, (odd or seen)[0]),
    )


def _own_words_out(one: Seen, name: str) -> str:
    """A value may hold the node's own name."""
    return one.environment.get(name, NOT_SET).replace(one.node, _PLACE)


def _priority(name: str) -> Priority:
    return "P2" if name in _OF_A_NODE else "P1"


def _some(groups: Mapping[str, Sequence[Seen]]) -> list[Seen]:
    """One process a value."""
    return [processes[0] for processes in groups.values()][:SHOWN]


def _line(one: Seen, name: str) -> Proof:
    value = one.environment.get(name)
    return proof(one.node, one.pid, "environ", f"{name} is not set" if value is None else redacted(f"{name}={value}"))


def _shown(value: str) -> str:
    return value if value == NOT_SET else visible(redacted(value), _VALUE_MAX)


CHECKS: Iterable[JobCheck] = (
    JobCheck(ID, "Ranks have the same settings and meet at one place", ("ranks", "names", "own-addresses"), judge),
)
