"""What one run of the doctor found, as an object and as JSON (``nccl-slurm/doctor/1``, data/schemas/doctor-1.json)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor import pointer
from nccl_slurm.doctor.check import STATUSES, Finding
from nccl_slurm.doctor.fold import worst
from nccl_slurm.doctor.judge import UNREACHABLE
from nccl_slurm.doctor.reader import Reader
from nccl_slurm.hosts import fold
from nccl_slurm.recommend.site import Site
from nccl_slurm.report.escalation import Escalation, as_json, of_findings
from nccl_slurm.report.visible import visible

__all__ = ["SCHEMA", "Looked", "Result"]

SCHEMA = "nccl-slurm/doctor/1"
_TEXT = 600
_CLEAN, _FOUND, _UNSEEN = 0, 1, 3
#: Settings of the whole cluster, which any node shows.
_OF_ANY_NODE = ("scheduler.limits", "scheduler.remove-ipc")


@dataclass(frozen=True)
class Looked:
    """``chosen``: to be looked at; ``of``: those it was sampled from, None: no sample. ``ways``: way → nodes that gave
    an answer. ``silent``: node → why it gave none. ``with_ranks``: nodes on which ranks were seen. ``blind``: nodes
    were asked for, and Slurm does not tell which there are. ``unasked``: no check reads anything on those chosen."""

    chosen: Sequence[str] = ()
    of: int | None = None
    ways: Mapping[str, Sequence[str]] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    with_ranks: Sequence[str] = ()
    blind: bool = False
    unasked: bool = False


@dataclass(frozen=True)
class Result:
    """``findings``: folded. ``checks``: id → title of all that were made. ``left_out``: what is not covered, and why.
    ``compute``: nodes that certainly run no controller, database or login: no other one is ever to be rebooted.
    ``since``: events before it did not matter; None: those since each node's boot did. ``narrowed``: why less was
    looked at than could be, in words: options, nodes without ranks.
    """

    at: float
    seconds: float
    findings: Sequence[Finding]
    checks: Mapping[str, str]
    cluster: str | None = None
    job: str | None = None
    looked: Looked = Looked()
    left_out: Sequence[str] = ()
    site: Site = field(default_factory=Site)
    compute: frozenset[str] = frozenset()
    since: float | None = None
    narrowed: Sequence[str] = ()

    @property
    def status(self) -> int:
        """0 nothing at P0 or P1, 1 findings, 3 nothing could be looked at: that no node answers is no finding then."""
        asked = bool(self.looked.chosen) and not self.looked.unasked
        silent = self.looked.blind or (asked and not any(self.looked.ways.values()))
        told = [one for one in self.findings if not (silent and one.check == UNREACHABLE)]
        if (worst(told) or "P2") < "P2":
            return _FOUND
        unseen = not told or any(one.status == "UNKNOWN" for one in told)
        seen = not unseen or any(one.status in ("PASS", "WARN", "FAIL") for one in told)
        return _CLEAN if seen and not silent else _UNSEEN

    @property
    def escalation(self) -> Escalation | None:
        """None while something is left to try here."""
        return of_findings(self.findings, self.job, whole=not (self.narrowed or self.left_out))

    def commands(self, finding: Finding) -> Sequence[str]:
        """What the finding itself does not name is that of the run: job, a node, controller, region. What Slurm or AWS
        says of no node is of none of those that were looked at either."""
        ours = self._values()
        if not finding.nodes and finding.check.startswith(("scheduler.", "aws.")) and finding.check not in _OF_ANY_NODE:
            ours = {key: value for key, value in ours.items() if key not in ("node", "nodes")}
        if finding.values.get("job", self.job) == self.job:
            ours |= self._step()
        if peer := next((node for node in self.looked.chosen if node not in finding.nodes[:1]), None):
            ours |= {"peer": peer} if finding.nodes else {}
        told = replace(finding, values={**ours, **finding.values})
        return pointer.commands(told, self.site, self.compute, Reader.here(local="local" in self.looked.ways))

    def _step(self) -> Mapping[str, str]:
        """Of the job that was asked for, while it runs: what a step beside it takes."""
        of_job = (one.values for one in self.findings if one.values.get("job") == self.job and "owner" in one.values)
        told = next(of_job, {})
        return {key: told[key] for key in ("owner", "raw_job", "batch_job") if key in told}

    def _values(self) -> dict[str, str]:
        chosen = list(self.looked.chosen)
        site = self.site
        told = {
            "job": self.job,
            "node": chosen[0] if chosen else None,
            "nodes": fold(chosen),
            "controller": site.controllers[0] if site.controllers else None,
            "region": site.region,
            "cluster": site.aws_cluster,
        }
        return {name: value for name, value in told.items() if value}

    def to_json(self) -> dict[str, Any]:
        looked = self.looked
        counts = Counter(one.status for one in self.findings)
        return {
            "schema": SCHEMA,
            "time": rfc3339(self.at),
            "seconds": round(self.seconds, 3),
            "exit": self.status,
            "cluster": self.cluster,
            "job": self.job,
            "since": rfc3339(self.since),
            "nodes": {
                "chosen": list(looked.chosen),
                "of": looked.of,
                "ways": {way: sorted(nodes) for way, nodes in looked.ways.items()},
                "silent": [{"node": node, "why": visible(why, _TEXT)} for node, why in sorted(looked.silent.items())],
                "with_ranks": sorted(looked.with_ranks),
            },
            "checks": sorted(self.checks),
            "left_out": list(self.left_out),
            "narrowed": list(self.narrowed),
            "counts": {status: counts.get(status, 0) for status in STATUSES},
            "findings": [self._json(one) for one in self.findings],
            "escalation": as_json(self.escalation),
        }

    def _json(self, finding: Finding) -> dict[str, Any]:
        return {
            "check": finding.check,
            "title": self.checks.get(finding.check, finding.check),
            "status": finding.status,
            "priority": finding.priority,
            "text": visible(finding.text, _TEXT),
            "nodes": [visible(node, 255) for node in finding.nodes],
            "since": rfc3339(finding.since),
            "proofs": [
                {"source": visible(one.source, _TEXT), "line": visible(one.line, _TEXT)} for one in finding.proofs
            ],
            "explained_by": finding.explained_by,
            "values": {key: visible(value, _TEXT) for key, value in sorted(finding.values.items())},
            "commands": list(self.commands(finding)),
            "guide": pointer.pointer(finding.check),
        }
