"""What nccl-tests measured, beside what the same test gave elsewhere in this cluster and before.

No fixed table: published figures for one instance type differ by a factor of ten. Runs are compared only with runs of
the same test, kind of GPU, number of nodes and ranks, and message size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from nccl_slurm.doctor.check import Area, Finding, NotObserved, Proof
from nccl_slurm.doctor.observation import Fleet
from nccl_slurm.doctor.read.nccltests import Run, read
from nccl_slurm.doctor.table import table
from nccl_slurm.hosts import fold

__all__ = ["CHECKS", "Measured", "judged", "measured"]

_ID = "fleet.bandwidth"


@dataclass(frozen=True)
class Measured:
    """One run's figure: bus bandwidth in GB/s (10^9 bytes) at its largest size. ``name``: the file it is from."""

    name: str
    test: str
    hosts: tuple[str, ...]
    ranks: int
    size: int
    busbw: float
    gpu: str = ""

    @property
    def kind(self) -> tuple[str, int, int, int, str]:
        return self.test, len(self.hosts), self.ranks, self.size, self.gpu


def measured(texts: Mapping[str, str]) -> tuple[list[Measured], list[Finding]]:
    """Runs that came to their end, and findings of those that did not, or whose results were wrong."""
    good: list[Measured] = []
    bad: list[Finding] = []
    for name, text in sorted(texts.items()):
        runs = read(text)
        if not runs:
            bad.append(Finding(_ID, "UNKNOWN", f"{name}: no output of nccl-tests"))
        for run in runs:
            bad += _faulty(name, run)
            one = _figure(name, run)
            if one is not None:
                good.append(one)
            elif run.whole:
                bad.append(Finding(_ID, "UNKNOWN", f"{name}: does not tell its nodes or its figures"))
    return good, bad


def _figure(name: str, run: Run) -> Measured | None:
    line = run.largest
    if line is None or not run.whole or not run.hosts:
        return None
    return Measured(name, run.test, tuple(sorted(run.hosts)), run.ranks, line.size, line.busbw, run.gpu)


def _faulty(name: str, run: Run) -> Iterator[Finding]:
    if run.wrong:
        proof = Proof(name, f"# Out of bounds values : {run.wrong}")
        yield Finding(_ID, "FAIL", "collectives give wrong results", "P0", run.hosts, proofs=[proof])
    if not run.whole:
        proof = Proof(name, f"{len(run.lines)} sizes, and no average at its end")
        yield Finding(_ID, "WARN", "a run of nccl-tests did not come to its end", "P1", run.hosts, proofs=[proof])


def judged(runs: Sequence[Measured], history: Sequence[Measured] = ()) -> Iterator[Finding]:
    """``history``: earlier runs of this cluster. A run of its own nodes counts as its past, others' as peers."""
    for run in runs:
        peers = [one for one in (*runs, *history) if one.kind == run.kind and one.hosts != run.hosts]
        past = [one for one in history if one.kind == run.kind and one.hosts == run.hosts]
        middle, beside = _middle(peers, past)
        share = run.busbw / middle if middle else 1.0
        if middle is None:
            words = f"{len(peers)} runs like it: too few to tell whether it is slow"
            yield Finding(_ID, "UNKNOWN", words, nodes=run.hosts, proofs=[_proof(run)])
        elif share < table()["bandwidth-share"]:
            yield from _slow(run, beside, share, _blamed(run, middle, runs))
        elif share < table()["bandwidth-watch-share"]:
            text = f"bus bandwidth {1 - share:.0%} below that of {beside}"
            yield Finding(_ID, "WARN", text, "P2", run.hosts, proofs=[_proof(run)])
        else:
            yield Finding(_ID, "PASS", f"bus bandwidth as that of {beside}", nodes=run.hosts, proofs=[_proof(run)])


def _middle(peers: Sequence[Measured], past: Sequence[Measured]) -> tuple[float | None, str]:
    """The median of its peers, else of its own past."""
    least = table()["bandwidth-peers"] - 1
    for group, words in ((peers, "its peers"), (past, "its own past")):
        if len(group) >= max(least, 1):
            middle = median(one.busbw for one in group)
            if middle > 0:
                return middle, words
    return None, ""


def _slow(run: Measured, beside: str, share: float, blamed: Sequence[str]) -> Iterator[Finding]:
    proofs = [_proof(run)]
    text = f"bus bandwidth {1 - share:.0%} below that of {beside}"
    if blamed:
        yield Finding(_ID, "FAIL", text, "P1", blamed, proofs=proofs, values={"file": run.name})
    else:
        text += ", and each of its nodes is fast with others: what lies between them, or a load of that moment"
        yield Finding(_ID, "WARN", text, "P1", run.hosts, proofs=proofs, values={"file": run.name})


def _blamed(run: Measured, middle: float, runs: Sequence[Measured]) -> Sequence[str]:
    """Of a slow group the nodes that are fast nowhere else, by what this run was held against."""
    least = middle * table()["bandwidth-share"]
    others = (one for one in runs if one is not run and one.kind == run.kind)
    fast = {host for one in others if one.busbw >= least for host in one.hosts}
    return tuple(host for host in run.hosts if host not in fast)


def _proof(run: Measured) -> Proof:
    return Proof(
        run.name, f"{run.test}: {run.busbw:g} GB/s at {run.size} bytes, {run.ranks} ranks on {fold(run.hosts)}"
    )


@dataclass
class _Bandwidth:
    id: str = _ID
    title: str = "Bandwidth is that of the peers"
    area: Area = "fleet"
    sources: Sequence[str] = ()
    explains: Sequence[str] = ()

    def judge(self, observed: Fleet) -> Iterable[Finding]:
        if not observed.bandwidth:
            text = "no output of nccl-tests was given (--bandwidth FILE); --sweep prints commands that make some"
            yield Finding(_ID, "NOT-APPLICABLE", text)
            return
        runs, bad = measured(observed.bandwidth)
        earlier, _ = measured(observed.bandwidth_before)
        yield from bad
        if not runs and not bad:
            raise NotObserved("none of the files holds a whole run of nccl-tests")
        yield from judged(runs, earlier)


CHECKS = (_Bandwidth(),)
