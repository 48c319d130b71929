"""Variables of the ranks: names that nothing reads, values that harm, settings that contradict one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nccl_slurm.doctor.check import Finding, Priority, Status
from nccl_slurm.doctor.checks.job.asked import SHOWN, JobCheck, proof
from nccl_slurm.doctor.checks.job.fabric import SOURCES, rdma_nodes
from nccl_slurm.doctor.checks.job.ranks import Seen, about, at_home, ranks, unseen, whose, whose_nodes
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.observation import JobObserved
from nccl_slurm.doctor.variables import Conflict, Value, conflicts, names, near, unread, values
from nccl_slurm.parse.redact import redacted
from nccl_slurm.report.visible import visible

__all__ = ["CHECKS", "NAMES", "VALUES"]

NAMES, VALUES = "job.nccl-names", "job.nccl-values"
_SHOWN_MAX = 80

#: What rows ask for that `_Conditions` knows by the nodes' adapters.
_BESIDE_ADAPTERS = ("efa", "infiniband", "adapters")

_Has = Mapping[str, list[Seen]]


def judge_names(observed: JobObserved) -> Iterator[Finding]:
    found = ranks(observed)
    judged = sorted({name for one in found.seen for name in one.environment if names().is_judged(name)})
    wrong = [name for name in judged if not names().is_read(name) or name in unread()]
    for name in wrong:
        yield _unread(name, [one for one in found.seen if name in one.environment])
    yield from unseen(NAMES, found)
    if not wrong:
        yield Finding(NAMES, "PASS", f"all {len(judged)} NCCL, libfabric and torch variables of the ranks are read")


def _unread(name: str, has: Sequence[Seen]) -> Finding:
    """What is near to a known name is most likely a slip, so the setting that was meant is not in force."""
    row, meant = unread().get(name), near(name)
    if row is not None:
        text, priority = f"{name} is read by nothing: {row.instead}", "P2"
    elif meant is not None:
        text, priority = f"{name} is no variable that is known; {meant} is, and it is not set by this", "P1"
    else:
        text, priority = f"{name} is no variable that NCCL, its plugins, libfabric or torch are known to read", "P2"
    return _finding(NAMES, "WARN", "P1" if priority == "P1" else "P2", text, name, has)


def judge_values(observed: JobObserved) -> Iterator[Finding]:
    found = ranks(observed)
    wrong = [*_values(observed, found.seen), *_conflicts(found.seen)]
    unsure = list(_unsure(observed, found.seen))
    yield from wrong
    yield from unsure
    yield from unseen(VALUES, found)
    if not wrong and not unsure:
        yield Finding(VALUES, "PASS", f"no setting of the {len(found.seen)} ranks is known to harm")


def _values(observed: JobObserved, seen: Sequence[Seen]) -> Iterator[Finding]:
    applies = _Conditions(observed, seen)
    for row in values():
        sets = [one for one in seen if row.name in one.chosen]
        has = [one for one in sets if row.holds(one.environment[row.name]) and applies.to(row, one)]
        by_value: dict[str, list[Seen]] = {}
        for one in has:
            by_value.setdefault(one.environment[row.name], []).append(one)
        for value, processes in by_value.items():
            yield _harm(row, value, processes)


def _unsure(observed: JobObserved, seen: Sequence[Seen]) -> Iterator[Finding]:
    """What does harm only beside adapters, where nobody could see whether there are some."""
    dark = _nodes_in_the_dark(observed)
    told: set[tuple[str, str]] = set()
    for row in values():
        sets = [
            one for one in seen if row.when in _BESIDE_ADAPTERS and one.node in dark and row.name in one.environment
        ]
        for value in sorted({one.environment[row.name] for one in sets if row.holds(one.environment[row.name])}):
            if (row.name, value) not in told:
                has = [one for one in sets if one.environment[row.name] == value]
                text = (
                    f"{row.name}={_shown(value)}: whether it does harm is not known: it does where a node has RDMA "
                    f"adapters, and that could not be seen ({whose(has)})"
                )
                told.add((row.name, value))
                yield Finding(VALUES, "UNKNOWN", text, nodes=whose_nodes(has), values=about(row.name, has[0]))


def _nodes_in_the_dark(observed: JobObserved) -> set[str]:
    """As `node.ib-ports` has it: without DMI, that there are none is no answer (a container, another's /sys)."""
    adapters = rdma_nodes(observed)
    bare = {name for name, node in observed.fleet.nodes.items() if not adapters.get(name)}
    return {name for name in bare if name not in adapters or not machine.dmi(observed.fleet.nodes[name])}


def _harm(row: Value, value: str, has: Sequence[Seen]) -> Finding:
    status: Status = "FAIL" if row.status == "FAIL" else "WARN"
    return _finding(
        VALUES, status, row.priority, f"{row.name}={_shown(value)}: {row.says}; {row.instead}", row.name, has
    )


class _Conditions:
    """Whether what a row asks for beside its value holds for a rank. What was not observed does not hold."""

    def __init__(self, observed: JobObserved, seen: Sequence[Seen]) -> None:
        self._nodes = observed.fleet.nodes.keys() | observed.fleet.silent.keys()
        self._adapters = rdma_nodes(observed)
        self._counts: dict[str, int] = {}
        self._at_home = {(one.node, one.pid) for one in at_home(seen)}
        for one in seen:
            self._counts[one.node] = self._counts.get(one.node, 0) + 1

    def to(self, row: Value, one: Seen) -> bool:
        adapters = self._adapters.get(one.node, {})
        return {
            "": True,
            "several-nodes": len(self._nodes) > 1 and self._spans(one),
            "away-from-rank-0": len(self._nodes) > 1 and self._spans(one) and not self._is_at_home(one),
            "several-ranks": self._counts[one.node] > 1,
            "efa": "EFA" in adapters,
            "infiniband": any(kind != "EFA" for kind in adapters),
            "adapters": bool(adapters),
        }[row.when]

    def _is_at_home(self, one: Seen) -> bool:
        return (one.node, one.pid) in self._at_home

    def _spans(self, one: Seen) -> bool:
        """Its world is larger than what its node holds: programs of one node each may run side by side."""
        return one.world is None or one.world > self._counts[one.node]


def _conflicts(seen: Sequence[Seen]) -> Iterator[Finding]:
    for row in conflicts():
        first, second = row.names
        has = [one for one in seen if row.holds(one.chosen.get(first, ""), one.chosen.get(second, ""))]
        if has:
            yield _clash(row, has)


def _clash(row: Conflict, has: Sequence[Seen]) -> Finding:
    said = " and ".join(f"{name}={_shown(has[0].environment[name])}" for name in row.names)
    return _finding(VALUES, "WARN", row.priority, f"{said}: {row.says}; {row.instead}", row.names[0], has)


def _finding(check: str, status: Status, priority: Priority, text: str, name: str, has: Sequence[Seen]) -> Finding:
    lines = [proof(one.node, one.pid, "environ", redacted(f"{name}={one.environment[name]}")) for one in has[:SHOWN]]
    return Finding(
        check,
        status,
        f"{text} ({whose(has)})",
        priority,
        nodes=whose_nodes(has),
        proofs=lines,
        values=about(name, has[0]),
    )


def _shown(value: str) -> str:
    return visible(redacted(value), _SHOWN_MAX)


CHECKS: Iterable[JobCheck] = (
    JobCheck(NAMES, "Variables that are set are read by something", ("ranks",), judge_names),
    JobCheck(VALUES, "No setting does harm", ("ranks", *SOURCES, "dmi"), judge_values),
)
