"""From a verdict to an open recommendation, and what a late record makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.model import Fact
from nccl_slurm.review import decision
from tests.daemon.test_loop import Lab, end_badly
from tests.daemon.test_loop import lab as lab

LOST = Fact(
    kind="kernel.xid",
    text="NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.",
    producer="kernel",
    role="cause",
    trust="root",
    hint="gpu-hw-lost",
    host="n1",
    data={"xid": 79, "pci": "0000:a1:00"},
)


def lost_gpu(lab: Lab, at: float) -> dict[str, object]:
    from tests.collect.test_shared import record

    machine = {**record()["machine"], "identity": "i-1", "role": {"slurmctld_running": False, "node_type": None}}
    return {"machine": machine, "kernel_events": [{**LOST.to_json(), "time": at, "uncertainty_s": 0.0}]}


def states(lab: Lab) -> list[tuple[str, str, str]]:
    return [(one.identity, one.action, one.state) for one in lab.store.recommendations_on("n1")]


def test_one_open_recommendation_for_two_jobs(lab: Lab) -> None:
    for _ in range(2):
        job = end_badly(lab, "n1")
        lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
        lab.run(5)
    assert states(lab) == [("i-1", "reboot", "open")]
    assert [line.what for line in lab.store.audit_log()] == ["seen again", "opened"]
    (kept,) = lab.store.active_recommendations()
    assert kept.raw_id == job and kept.commands[-1].startswith("scontrol reboot ASAP")


def test_judged_again_it_is_not_asked_again_once_declined(lab: Lab) -> None:
    job = end_badly(lab, "n[1-2]")
    began = lab.clock.now() - 3
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
    lab.run(70)
    (kept,) = lab.store.active_recommendations()
    who = decision.Person("alice", 7001, None, "ctl")
    declined = decision.decline(kept, who, "known", lab.clock.now())
    assert lab.store.save_recommendations([(declined, decision.line(declined, who, 1.0))], was=[kept])
    lab.record(job, "n2", at=began)  # a late record: the run is judged again
    lab.run(5)
    assert states(lab) == [("i-1", "reboot", "declined")]


def test_a_success_asks_for_nothing(lab: Lab) -> None:
    job = lab.slurm.submit("n1")
    lab.run(3)
    lab.slurm.end(job, "COMPLETED")
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
    lab.run(70)
    assert states(lab) == []


@pytest.mark.parametrize("days", [13, 15])
def test_what_nobody_decides_expires(lab: Lab, days: int) -> None:
    job = end_badly(lab, "n1")
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
    lab.run(5)
    lab.clock.sleep(days * 86400.0)
    lab.run(2)
    assert states(lab) == [("i-1", "reboot", "open" if days < 14 else "expired")]


def test_out_of_scope_nothing_is_recommended(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scope="none")
    job = end_badly(lab, "n1")
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
    lab.run(70)
    assert lab.verdict(job) is not None and states(lab) == []
    lab.store.close()
