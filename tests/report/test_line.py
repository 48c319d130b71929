from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Culprit, Evidence, Recommendation, Verdict
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.report.build import build
from nccl_slurm.report.line import COMMENT_MAX, comment
from tests.attribute.scenarios import SCENARIOS, evidence, job, nodes, xid


def report(
    of: Evidence, verdict: Verdict | None = None, items: tuple[Recommendation, ...] | None = None
) -> dict[str, Any]:
    judged = attribute(of) if verdict is None else verdict
    return build(of, judged, recommend(judged, of) if items is None else items, "final")


def test_the_line_of_the_design() -> None:
    host = "ip-10-1-2-3"
    run = evidence([xid(host)], job=job(id="4711", nodes=[host]), nodes=[replace(nodes()[0], name=host)])
    verdict = attribute(run)
    named = replace(verdict, culprits=[replace(verdict.culprits[0], rank=13)])
    expected = "[nccl-slurm: rank 13 ip-10-1-2-3 stalled first (gpu-hw-lost, Xid 79); reboot ip-10-1-2-3; report 4711]"
    assert comment(report(run, named)) == expected


@pytest.mark.parametrize(
    ("scenario", "line"),
    [
        ("missing-rank", "rank 5 n2 stalled first (collective-missing-rank); fix-code; report 42"),
        ("exception", "rank 2 n2 failed first (rank-exception); fix-code; report 42"),
        ("mismatch", "rank 3 n2 diverged first (collective-mismatch); fix-code; report 42"),
        ("cancelled", "cancelled, nobody proven; report 42"),
        ("nothing-observed", "unknown, nobody proven; report 42"),
    ],
)
def test_lines(scenario: str, line: str) -> None:
    assert comment(report(SCENARIOS[scenario]())) == f"[nccl-slurm: {line}]"


def test_an_older_run_is_said() -> None:
    assert comment(report(SCENARIOS["cancelled"]()), run=1) == (
        "[nccl-slurm: cancelled, nobody proven; report 42 --run 1]"
    )


def test_suspects_never_appear() -> None:
    verdict = Verdict("rank-exception", "likely", "s", "investigate", suspects=[Culprit("w", 3, "n2")])
    line = comment(report(evidence(), verdict))
    assert line == "[nccl-slurm: rank-exception, nobody proven; investigate; report 42]"


def test_a_node_is_not_named_by_a_recommendation_alone() -> None:
    item = Recommendation("n2", "investigate", "r", 1, "w")
    verdict = Verdict("unknown", "possible", "s", "unknown", suspects=[Culprit("w", None, "n2")])
    assert "n2" not in (comment(report(evidence(), verdict, (item,))) or "")


def test_nothing_judged_or_no_job_id() -> None:
    assert comment(build(evidence(), None, (), "pending")) is None
    assert comment(report(Evidence())) is None


def test_odd_job_ids() -> None:
    assert "report 42_1]" in (comment(report(evidence(job=job(id="42_1")))) or "")
    assert "report 43+1]" in (comment(report(evidence(job=job(id="43+1")))) or "")
    assert "report 7]" in (comment(report(evidence(job=job(id="42_[1-3]", raw_id=7)))) or "")


def many(count: int, hosts: list[str]) -> Verdict:
    named = [Culprit("w", rank * 2, hosts[rank % len(hosts)]) for rank in range(count)]
    return Verdict("collective-missing-rank", "proven", "s", "fix-code", culprits=named)


def test_many_culprits_are_counted() -> None:
    hosts = [f"node-{number}" for number in range(40)]
    run = evidence(job=job(nodes=hosts), nodes=())
    line = comment(report(run, many(200, hosts)))
    assert line == "[nccl-slurm: 200 ranks on 40 nodes stalled first (collective-missing-rank); fix-code; report 42]"


def test_long_names_are_cut() -> None:
    host = "n" * 70 + "." + "d" * 180
    run = evidence(job=job(nodes=[host]), nodes=())
    line = comment(report(run, many(1, [host]))) or ""
    assert len(line) <= COMMENT_MAX
    assert "rank 0 " + "n" * 58 + ".. stalled first" in line


def test_hostile_names_do_not_appear() -> None:
    verdict = Verdict("unknown", "proven", "s", "investigate", culprits=[Culprit("w", 1, "a'b|[x]\n")])
    assert (
        comment(report(evidence(), verdict)) == "[nccl-slurm: rank 1 stalled first (unknown); investigate; report 42]"
    )
