"""From a verdict to an open recommendation, and what a late record makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.model import Fact
from nccl_slurm.review import decision
from nccl_slurm.review.outcome import outcome
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


def lost_gpu(lab: Lab, at: float, **boot: object) -> dict[str, object]:
    from tests.collect.test_shared import record

    role = {"slurmctld_running": False, "node_type": None}
    machine = {**record()["machine"], "identity": "i-1", "role": role, **boot}
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


def fails_on_n1(lab: Lab, **boot: object) -> int:
    """A job whose node loses a GPU; ``boot``: boot id and time as the node's record has them."""
    job = end_badly(lab, "n1")
    lab.record(job, "n1", written=lab.clock.now(), **lost_gpu(lab, lab.clock.now() - 1, **boot))
    lab.run(5)
    return job


def test_the_ladder_goes_on_where_a_reboot_did_not_help(lab: Lab) -> None:
    """Reboot, the same fault on the same GPU after it, replace: with the words that it destroys volumes."""
    first = lab.clock.now() - 86400
    fails_on_n1(lab, boot_id="a", boot_time=first)
    (asked,) = lab.store.active_recommendations()
    who = decision.Person("alice", 7001, None, "ctl")
    accepted = decision.accept(asked, who, "", lab.clock.now())
    assert lab.store.save_recommendations([(accepted, decision.line(accepted, who, 1.0))], was=[asked])
    lab.clock.sleep(3600.0)
    again = fails_on_n1(lab, boot_id="b", boot_time=lab.clock.now() - 1800)
    assert states(lab) == [("i-1", "replace", "open"), ("i-1", "reboot", "done")]
    (now,) = lab.store.active_recommendations()
    assert (now.step, now.raw_id) == (2, again) and "destroys root and secondary volumes" in now.why
    assert "replace n1" in lab.comment(again)
    came = outcome(accepted, lab.store.machine_of("i-1"))
    assert came is not None and came.carried_out is not None and came.came_back is not None


def test_another_machine_under_the_name_starts_anew(lab: Lab) -> None:
    fails_on_n1(lab, boot_id="a", boot_time=lab.clock.now() - 86400)
    lab.clock.sleep(3600.0)
    job = end_badly(lab, "n1")
    fields = lost_gpu(lab, lab.clock.now() - 1, identity="i-2", boot_id="b", boot_time=lab.clock.now() - 1800)
    lab.record(job, "n1", written=lab.clock.now(), **fields)
    lab.run(5)
    newest = lab.store.recommendations_on("n1")[0]
    assert (newest.identity, newest.action, newest.step) == ("i-2", "reboot", 1)


def test_the_controller_is_never_to_be_rebooted_or_replaced(lab: Lab) -> None:
    for boot in "abc":
        job = end_badly(lab, "n1")
        fields = lost_gpu(lab, lab.clock.now() - 1, boot_id=boot, boot_time=lab.clock.now() - 1800)
        fields["machine"]["role"]["slurmctld_running"] = True  # type: ignore[index]
        lab.record(job, "n1", written=lab.clock.now(), **fields)
        lab.run(5)
        assert "investigate n1" in lab.comment(job)
        lab.clock.sleep(3600.0)
    assert {action for _, action, _ in states(lab)} == {"investigate"}
    assert "fail-over" in lab.store.recommendations_on("n1")[0].why


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
