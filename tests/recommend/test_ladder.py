from __future__ import annotations

from dataclasses import replace

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Culprit, Evidence, Recommendation, Verdict
from nccl_slurm.recommend.ladder import recommend
from tests.attribute.scenarios import SCENARIOS, cuda, evidence, job, nodes, peer_closed, table, xid


def items(run: Evidence) -> tuple[Recommendation, ...]:
    return recommend(attribute(run), run)


def test_reboot_on_the_kernels_word_for_a_compute_node() -> None:
    (item,) = items(SCENARIOS["node-fail"]())
    assert (item.target, item.action, item.rule, item.step, item.run_by) == (
        "n2",
        "reboot",
        "ladder.reboot",
        1,
        "a person",
    )
    assert item.commands == (
        "scontrol show node n2",
        'squeue --nodelist=n2 --states=RUNNING,SUSPENDED,COMPLETING --format="%i %u %D %j"',
        'scontrol reboot ASAP nextstate=RESUME reason="nccl-slurm: gpu-hw-lost, report 42" n2',
    )
    assert item.evidence == ("f1",)


@pytest.mark.parametrize("role", ["controller", "unknown"])
def test_a_controller_is_never_rebooted(role: str) -> None:
    run = evidence([xid("n2")], nodes=nodes(n2={"role": role}))
    (item,) = items(run)
    assert (item.action, item.rule) == ("investigate", "ladder.controller")
    assert "plan a fail-over first" in item.why
    assert item.commands == ("scontrol show node n2",)


def test_a_node_that_was_not_looked_at_counts_as_controller() -> None:
    (item,) = items(evidence([xid("n2")], nodes=nodes()[:1]))
    assert item.rule == "ladder.controller"


def test_what_a_job_prints_earns_a_look_at_most() -> None:
    for read_in, target in (("n2/rank1.log", "n2"), ("slurm-42.out", None)):
        word = cuda(1, "gpu-hw-ecc", "uncorrectable ECC error", host="n2", file=read_in)
        (item,) = items(evidence([word, peer_closed(0)], table(2), world=2))
        assert (item.target, item.action) == (target, "investigate")


def test_reboot_asked_for_without_roots_facts_becomes_a_look() -> None:
    run = evidence([cuda(1, "gpu-hw-lost", "GPU is lost")], table(2), world=2)
    verdict = Verdict("gpu-hw-lost", "proven", "s", "reboot", culprits=[Culprit("w", 1, "n2", None, ["f1"])])
    assert [item.action for item in recommend(verdict, run)] == ["investigate"]


def test_no_target_outside_the_run_or_unfit_for_a_command() -> None:
    for host in ("n9", "n2; rm -rf /", "", "-n2"):
        run = evidence([replace(xid("n2"), host=host)], job=job(nodes=("n2", "n2; rm -rf /", "-n2")), nodes=())
        verdict = Verdict("gpu-hw-lost", "proven", "s", "reboot", culprits=[Culprit("w", None, host, None, ["f1"])])
        assert [item.target for item in recommend(verdict, run)] in ([], [None])


def test_software_goes_to_the_owner() -> None:
    (item,) = items(SCENARIOS["exception"]())
    assert (item.target, item.action, item.commands) == (None, "fix-code", ())


@pytest.mark.parametrize("scenario", ["cancelled", "nothing-observed"])
def test_nothing_to_do(scenario: str) -> None:
    assert items(SCENARIOS[scenario]()) == ()


def test_failed_node_of_slurm_is_looked_at() -> None:
    run = evidence(job=job("NODE_FAIL"), nodes=nodes(n1={"failed_in_run": True}))
    assert [(item.target, item.action) for item in items(run)] == [("n1", "investigate")]


def test_xids_on_two_nodes_are_two_looks() -> None:
    run = evidence([xid("n1"), xid("n2", at=xid("n1").time or 0.0)])
    assert [(item.target, item.action) for item in items(run)] == [("n1", "investigate"), ("n2", "investigate")]


def test_unsafe_job_id_stays_out_of_the_command() -> None:
    run = evidence([xid("n2")], job=job(id='42"; reboot'))
    assert items(run)[0].commands[-1] == 'scontrol reboot ASAP nextstate=RESUME reason="nccl-slurm: gpu-hw-lost" n2'
