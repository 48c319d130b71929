"""One simulated job through the daemon's own path: node records and output → evidence → verdict, against the truth."""

from __future__ import annotations

import json
from dataclasses import dataclass

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.daemon.diagnose import Parts, evidence_of
from nccl_slurm.history.rows import NodeEventRow, RecordRow
from nccl_slurm.model import Evidence, Verdict
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.schema import loads
from nccl_slurm.testing.records import job, node_records, output
from nccl_slurm.testing.scenario import Scenario
from nccl_slurm.testing.simulate import simulate
from nccl_slurm.testing.story import Story
from nccl_slurm.testing.truth import Truth, truth

__all__ = ["Case", "case_of", "evidence", "parts"]


@dataclass(frozen=True)
class Case:
    """``culprit``: ``right`` (only those were named who may be), ``nobody`` (nobody was named, and nobody is proven),
    ``missed`` (nobody was named, though it is proven), ``false`` (another rank or node was named)."""

    scenario: Scenario
    truth: Truth
    verdict: Verdict

    @property
    def class_right(self) -> bool:
        return self.verdict.failure_class in self.truth.accept

    @property
    def culprit(self) -> str:
        named = self.verdict.culprits
        if not named:
            return "missed" if self.truth.determinable else "nobody"
        return "right" if all(self.truth.allows(one.rank, one.host) for one in named) else "false"


def case_of(scenario: Scenario, rows: Rows) -> Case:
    """Simulates, records, judges. The records pass their JSON schema on the way, as in the daemon."""
    story = simulate(scenario)
    return Case(scenario, truth(story), attribute(evidence(story, rows)))


def evidence(story: Story, rows: Rows) -> Evidence:
    """As the daemon puts it together."""
    return evidence_of(parts(story, rows))


def parts(story: Story, rows: Rows) -> Parts:
    """What the daemon's store and Slurm would hold of this run."""
    records = []
    for host, record in node_records(story, rows):
        checked = loads(json.dumps(record, allow_nan=False).encode(), "node-record/1")
        records.append(_row(story, host, checked))
    failed = [
        NodeEventRow(host, at, "DOWN+NOT_RESPONDING", "Not responding", "slurm")
        for host, at in story.failed_nodes.items()
    ]
    return Parts(job(story), records, failed, output(story, rows), ("head",))


def _row(story: Story, host: str, record: dict[str, object]) -> RecordRow:
    return RecordRow("simulated", story.scenario.job_id, 1, host, story.end, "", False, record)
