"""The way that ranks send by, as NCCL's lines tell it, against the adapters of their nodes and against one another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from nccl_slurm.doctor.check import Finding, NotObserved
from nccl_slurm.doctor.checks.job.asked import SHOWN, JobCheck, lines_of
from nccl_slurm.doctor.checks.job.fabric import SOURCES, doubtful_nodes, rdma_nodes
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.observation import JobObserved
from nccl_slurm.hosts import HOST
from nccl_slurm.info.path import NVLS, Odd, odd_paths, paths
from nccl_slurm.info.teller import teller, told
from nccl_slurm.model import Fact

__all__ = ["CHECKS", "ID"]

ID = "job.transport"
HOW = (
    "no line of NCCL's tells which way data takes; one short run with NCCL_DEBUG=INFO and "
    "NCCL_DEBUG_SUBSYS=INIT,NET,ENV shows it"
)
_NODES_SHOWN = 6

_Ways = Mapping[str, Sequence[Fact]]


def judge(observed: JobObserved) -> Iterator[Finding]:
    facts = observed.parsed().facts
    ways: dict[str, list[Fact]] = {}
    for name, fact in paths(facts):
        ways.setdefault(name, []).append(fact)
    if not ways:
        raise NotObserved(HOW)
    wrong = [*_sockets(observed, ways), *_staged(observed, ways), *_odd(observed, facts)]
    yield from wrong
    if not wrong and not any(_is_socket(name) or _is_rdma(name) for name in ways):
        yield Finding(ID, "UNKNOWN", f"only ways inside a node are told ({_names(ways)}); {HOW}")
    elif not wrong and not _unjudged(observed, ways):
        yield Finding(ID, "PASS", f"{_names(ways)} on {_who(_all(ways))}", proofs=lines_of(_all(ways)[:1]))
    elif not wrong:
        doubtful = doubtful_nodes(observed)
        unseen = "whether their nodes have RDMA adapters was not seen"
        why = "whether the Ethernet adapters of their nodes are meant for RDMA is not told" if doubtful else unseen
        yield Finding(ID, "UNKNOWN", f"ranks use sockets; {why}", nodes=doubtful)


def _sockets(observed: JobObserved, ways: _Ways) -> Iterator[Finding]:
    """Sockets where the nodes have RDMA adapters: it runs, and slowly."""
    lines = [fact for name, facts in ways.items() if _is_socket(name) for fact in facts]
    fabric = {node: kinds for node, kinds in rdma_nodes(observed).items() if kinds}
    if not lines or not fabric:
        return
    hosts = {fact.host for fact in lines if fact.host}
    ours = [fact for fact in lines if fact.host in fabric] if hosts & fabric.keys() else lines
    if hosts and not hosts & fabric.keys():
        return
    kind = ", ".join(sorted({kind for kinds in fabric.values() for kind in kinds}))
    yield Finding(
        ID,
        "FAIL",
        f"{_who(ours)} sent through TCP sockets although the nodes have {kind} adapters",
        "P1",
        nodes=_known(observed, (fact.host for fact in ours)),
        proofs=lines_of(ours[:SHOWN]),
    )


def _unjudged(observed: JobObserved, ways: _Ways) -> bool:
    """Sockets on nodes of which it is not known whether they have anything better."""
    fabric = rdma_nodes(observed).keys() - set(doubtful_nodes(observed))
    hosts = {fact.host for name, facts in ways.items() if _is_socket(name) for fact in facts}
    return any(_is_socket(name) for name in ways) and not (hosts - {None} <= fabric if hosts - {None} else fabric)


def _staged(observed: JobObserved, ways: _Ways) -> Iterator[Finding]:
    """RDMA through host memory: no channel to another node shows GPUDirect."""
    between = {name: facts for name, facts in ways.items() if name.startswith("NET/") and not _is_socket(name)}
    if _none_can(observed):
        return
    if between and not any("GDRDMA" in name for name in between):
        lines = _all(between)
        yield Finding(
            ID,
            "WARN",
            f"no channel between nodes of {_who(lines)} uses GPUDirect RDMA: data goes through host memory",
            "P1",
            proofs=lines_of(lines[:SHOWN]),
        )


def _none_can(observed: JobObserved) -> bool:
    """Whether all nodes are of types whose EFA is not known to reach GPUs."""
    rows = [machine.instance(node) for node in observed.fleet.nodes.values()]
    return bool(rows) and all(row is not None and not row.gpudirect for row in rows)


def _odd(observed: JobObserved, facts: Sequence[Fact]) -> Iterator[Finding]:
    for odd in odd_paths(facts):
        if odd.what == NVLS and not odd.split.odd:
            continue
        yield Finding(
            ID,
            "WARN",
            f"{odd.what} differs: {_values(odd)}",
            "P1",
            nodes=_known(observed, (who for who in odd.split.odd if isinstance(who, str))),
            proofs=lines_of(odd.facts[:SHOWN]),
        )


def _values(odd: Odd) -> str:
    groups = list(odd.split.values.items())
    return "; ".join(f"{value} on {told(who)}" for value, who in groups[:4])


def _is_socket(name: str) -> bool:
    return name == "Socket" or name.startswith("NET/Socket")


def _is_rdma(name: str) -> bool:
    return not _is_socket(name) and not name.startswith(("P2P", "SHM", NVLS))


def _all(ways: _Ways) -> list[Fact]:
    return [fact for facts in ways.values() for fact in facts]


def _names(ways: Iterable[str]) -> str:
    return ", ".join(sorted(ways)[:_NODES_SHOWN])


def _who(facts: Iterable[Fact]) -> str:
    tellers = {who for fact in facts if (who := teller(fact)) is not None}
    return told(tellers) if tellers else "ranks that are not told"


def _known(observed: JobObserved, hosts: Iterable[str | None]) -> list[str]:
    """Nodes of the job alone: a line may name any host."""
    nodes = observed.fleet.nodes.keys() | observed.fleet.silent.keys()
    return sorted({host for host in hosts if host and HOST.match(host) and host in nodes})


CHECKS: Iterable[JobCheck] = (JobCheck(ID, "Ranks use their nodes' adapters, all alike", (*SOURCES, "dmi"), judge),)
