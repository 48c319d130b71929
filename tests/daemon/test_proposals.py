"""From a verdict to an open recommendation, and what a late record makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.model import Fact
from nccl_slurm.report.text import render
from nccl_slurm.review import decision
from nccl_slurm.review.outcome import outcome
from nccl_slurm.scheduler.client import Controller
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
    lab.days(days)
    lab.run(2)
    assert states(lab) == [("i-1", "reboot", "open" if days < 14 else "expired")]


def test_out_of_scope_nothing_is_recommended(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scope="none")
    job = end_badly(lab, "n1")
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1))
    lab.run(70)
    found = lab.verdict(job)
    assert found is not None and states(lab) == []
    assert found["gaps"][0]["source"] == "scope" and "no comment is written" in found["gaps"][0]["why"]
    assert "\nNOTE scope: out of scope (none): jobs of its partition are only recorded" in render(found)
    lab.store.close()


def loses_a_gpu(lab: Lab, number: int, **boot: object) -> int:
    """A job on a machine of its own loses its GPU now."""
    node = f"n{number}"
    job = end_badly(lab, node)
    fields = lost_gpu(lab, lab.clock.now() - 1, identity=f"i-{number}", **boot)
    fields["kernel_events"][0]["host"] = node  # type: ignore[index]
    lab.record(job, node, written=lab.clock.now(), **fields)
    lab.run(5)
    return job


def boots(lab: Lab, number: int) -> None:
    """The machine was booted a minute ago, as the record of a job that went well on it tells."""
    job = lab.slurm.submit(f"n{number}")
    lab.run(3)
    lab.slurm.end(job, "COMPLETED")
    fields = lost_gpu(lab, 0.0, identity=f"i-{number}", boot_id="b", boot_time=lab.clock.now() - 60)
    lab.record(job, f"n{number}", written=lab.clock.now(), machine=fields["machine"])


def active(lab: Lab) -> dict[str, tuple[str, str]]:
    return {row.node: (row.action, row.rule) for row in lab.store.active_recommendations()}


def test_what_looked_like_one_node_is_taken_back_when_it_was_the_site(lab: Lab) -> None:
    """Jobs of three nodes, each of its own: the first two look like single nodes until the third shows."""
    jobs = [loses_a_gpu(lab, number) for number in (1, 2)]
    assert {action for action, _ in active(lab).values()} == {"reboot"}
    jobs.append(loses_a_gpu(lab, 3))
    lab.run(5)
    assert set(active(lab).values()) == {("investigate", "ladder.site-event")}
    assert all("investigate" in lab.comment(job) for job in jobs)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_neighbour_whose_job_asked_for_nothing_makes_a_site_event_too(lab: Lab, restarted: bool) -> None:
    """A run that went well recommends nothing; its node's kernel lost a GPU at the same time all the same."""
    for number in (1, 2):
        job = lab.slurm.submit(f"n{number}")
        lab.run(3)
        lab.slurm.end(job, "COMPLETED")
        lab.record(job, f"n{number}", **lost_gpu(lab, lab.clock.now() - 1, identity=f"i-{number}"))
    lab.run(5)
    if restarted:
        lab.restart()
    loses_a_gpu(lab, 3)
    assert active(lab) == {"n3": ("investigate", "ladder.site-event")}


def test_who_waits_below_the_cap_has_its_turn_when_one_was_carried_out(lab: Lab) -> None:
    """Two of four nodes may be asked for at a time; a reboot that was accepted and seen makes room."""
    before = lab.clock.now() - 86400
    for number in (1, 2, 3):
        loses_a_gpu(lab, number, boot_id="a", boot_time=before)
        lab.clock.sleep(3600.0)
    assert active(lab)["n3"] == ("investigate", "ladder.queued")
    asked = lab.store.active_recommendations("n1")[0]
    who = decision.Person("alice", 7001, None, "ctl")
    accepted = decision.accept(asked, who, "", lab.clock.now())
    assert lab.store.save_recommendations([(accepted, decision.line(accepted, who, 1.0))], was=[asked])
    lab.run(70)
    assert active(lab)["n3"] == ("investigate", "ladder.queued")
    lab.clock.sleep(600.0)
    boots(lab, 1)
    lab.run(130)
    assert active(lab) == {"n2": ("reboot", "ladder.reboot"), "n3": ("reboot", "ladder.reboot")}
    assert states(lab)[0] == ("i-1", "reboot", "done")


def test_a_reboot_that_nobody_accepted_is_not_asked_for_any_more(lab: Lab) -> None:
    loses_a_gpu(lab, 1, boot_id="a", boot_time=lab.clock.now() - 86400)
    lab.clock.sleep(3600.0)
    boots(lab, 1)
    lab.run(130)
    assert active(lab)["n1"][0] == "investigate" and states(lab)[1] == ("i-1", "reboot", "superseded")
    log = len(lab.store.audit_log())
    lab.run(300)
    assert len(lab.store.audit_log()) == log  # judged once, not each minute


def test_a_node_that_became_a_controller_is_not_to_be_rebooted_any_more(lab: Lab) -> None:
    lab.run(40)
    fails_on_n1(lab)
    assert active(lab) == {"n1": ("reboot", "ladder.reboot")}
    lab.slurm.controller_list = (Controller("n1.site", "primary", True),)
    lab.run(700)
    assert active(lab) == {"n1": ("investigate", "ladder.controller")}
    log = len(lab.store.audit_log())
    lab.run(300)
    assert len(lab.store.audit_log()) == log


def comes(lab: Lab, node: str, identity: str, **boot: object) -> None:
    """A machine runs a job well."""
    job = lab.slurm.submit(node)
    lab.run(12)
    lab.slurm.end(job)
    fields = lost_gpu(lab, 0.0, identity=identity, **boot)
    lab.record(job, node, written=lab.clock.now(), machine=fields["machine"])
    lab.run(70)


@pytest.mark.parametrize(("accepted", "state"), [(False, "withdrawn"), (True, "done")])
def test_nothing_is_asked_of_a_name_that_has_another_machine(lab: Lab, accepted: bool, state: str) -> None:
    lab.run(40)
    fails_on_n1(lab, boot_id="a", boot_time=lab.clock.now() - 86400)
    (asked,) = lab.store.active_recommendations()
    if accepted:
        decided = decision.accept(asked, decision.Person("alice", 7001, None, "ctl"), "", lab.clock.now())
        lab.store.save_recommendations([(decided, decision.line(decided, decision.person(), 1.0))], was=[asked])
    lab.clock.sleep(3600)
    comes(lab, "n1", "i-2", boot_id="x", boot_time=lab.clock.now() - 600)
    assert lab.store.active_recommendations() == () and lab.store.recommendation(1).state == state  # type: ignore[union-attr]


def test_what_is_asked_of_a_name_stays_when_its_machine_is_learned(lab: Lab) -> None:
    lab.run(40)
    job = end_badly(lab, "n1")
    fields = lost_gpu(lab, lab.clock.now() - 1, identity="n1", identity_source="node-name")
    lab.record(job, "n1", written=lab.clock.now(), **fields)
    lab.run(5)
    assert states(lab) == [("n1", "reboot", "open")]
    comes(lab, "n1", "i-1", boot_time=lab.clock.now() - 86400)
    assert states(lab) == [("i-1", "reboot", "open")]


def test_machines_that_tell_one_identity_have_a_recommendation_each(lab: Lab) -> None:
    lab.run(40)
    up = {"identity_source": "dmi-uuid", "boot_time": lab.clock.now() - 86400}
    for node in ("n1", "n2"):
        comes(lab, node, "same", boot_id=node, **up)
    for node in ("n1", "n2"):
        job = end_badly(lab, node)
        fields = lost_gpu(lab, lab.clock.now() - 1, identity="same", boot_id=node, **up)
        fields["kernel_events"][0]["host"] = node  # type: ignore[index]
        lab.record(job, node, written=lab.clock.now(), **fields)
        lab.run(700)
    found = [(row.identity, row.node, row.state) for row in lab.store.active_recommendations()]
    assert found == [("same", "n1", "open"), ("n2", "n2", "open")]


def test_the_hosts_of_the_database_and_the_switches_are_asked_for(lab: Lab) -> None:
    lab.slurm.database_list = ("n1",)
    lab.slurm.switch_of = {"n2": "leaf1", "n3": "leaf1"}
    lab.run(610)
    for number in (1, 2, 3):
        loses_a_gpu(lab, number)
    lab.run(70)
    rules = {node: rule for node, (_, rule) in active(lab).items()}
    assert rules == {"n1": "ladder.controller", "n2": "ladder.site-event", "n3": "ladder.site-event"}


def test_a_late_record_does_not_end_what_was_accepted_and_is_under_way(lab: Lab) -> None:
    job = end_badly(lab, "n[1-2]")
    began = lab.clock.now() - 3
    lab.record(job, "n1", **lost_gpu(lab, lab.clock.now() - 1, boot_id="a", boot_time=lab.clock.now() - 86400))
    lab.run(70)
    (asked,) = lab.store.active_recommendations()
    who = decision.Person("alice", 7001, None, "ctl")
    accepted = decision.accept(asked, who, "", lab.clock.now())
    assert lab.store.save_recommendations([(accepted, decision.line(accepted, who, 1.0))], was=[asked])
    lab.slurm.set_node("n1", "DOWN+REBOOT_ISSUED", "nccl-slurm : reboot issued")
    lab.run(40)
    lab.record(job, "n2", at=began)
    lab.run(5)
    assert states(lab) == [("i-1", "reboot", "accepted")]
    lab.slurm.reboot("n1")
    lab.slurm.set_node("n1", "IDLE")
    lab.run(70)
    assert states(lab) == [("i-1", "reboot", "done")]


def test_what_one_run_takes_back_another_may_still_ask_for(lab: Lab) -> None:
    before = {"boot_id": "a", "boot_time": lab.clock.now() - 86400}
    fails_on_n1(lab, **before)
    lab.clock.sleep(300)
    job = end_badly(lab, "n[1-2]")
    began = lab.clock.now() - 3
    lab.record(job, "n1", written=lab.clock.now(), **lost_gpu(lab, lab.clock.now() - 1, **before))
    lab.run(70)
    (asked,) = lab.store.active_recommendations()
    assert (asked.raw_id, asked.action) == (job, "reboot")
    fields = lost_gpu(lab, lab.clock.now() - 75, identity="i-2")  # a late record: both nodes of that run lost a GPU
    fields["kernel_events"][0]["host"] = "n2"  # type: ignore[index]
    lab.record(job, "n2", at=began, **fields)
    lab.run(10)
    assert active(lab)["n1"] == ("reboot", "ladder.reboot")
    assert lab.store.active_recommendations("n1")[0].raw_id != job


def test_nothing_is_asked_of_a_node_that_slurm_has_no_more(lab: Lab) -> None:
    fails_on_n1(lab)
    gone = lab.slurm._nodes.pop("n1")
    lab.run(100)
    assert states(lab) == [("i-1", "reboot", "withdrawn")]
    assert [edge.state for edge in lab.store.node_events(["n1"])][-1] == "REMOVED"
    lab.restart()
    lab.slurm._nodes["n1"] = gone
    lab.run(100)
    assert [edge.state for edge in lab.store.node_events(["n1"])] == ["UP", "REMOVED", "UP"]
    assert lab.store.machine("n1").identity == "i-1"


def test_an_answer_without_nodes_removes_none(lab: Lab) -> None:
    lab.run(40)
    lab.slurm._nodes.clear()
    lab.run(100)
    assert [edge.state for edge in lab.store.node_events(["n1"])] == ["UP"]


@pytest.mark.parametrize(("answered", "comes_to"), [(True, ("replace", "ladder.replace")), (False, None)])
def test_a_node_that_stays_away_after_its_reboot(lab: Lab, answered: bool, comes_to: tuple[str, str] | None) -> None:
    """Nothing new while it may be booting still; then the next step, if it was alive when Slurm issued the reboot."""
    lab.run(40)
    fails_on_n1(lab, boot_id="a", boot_time=lab.clock.now() - 86400)
    asked = ("reboot", "ladder.reboot")
    assert active(lab) == {"n1": asked}
    if not answered:
        lab.slurm.set_node("n1", "DOWN+NOT_RESPONDING", "Not responding")
        lab.run(40)
    for state, reason in (
        ("DOWN+DRAIN+REBOOT_ISSUED" + ("" if answered else "+NOT_RESPONDING"), "x : reboot issued"),
        ("DOWN+NOT_RESPONDING", "x : reboot issued : reboot timed out"),
    ):
        lab.slurm.set_node("n1", state, reason)
        lab.run(70)
    assert active(lab) == {"n1": asked}
    lab.clock.sleep(1200.0)
    lab.run(70)
    assert active(lab) == {"n1": asked}
    lab.clock.sleep(900.0)
    lab.run(130)
    assert active(lab) == {"n1": comes_to or asked}
    log = len(lab.store.audit_log())
    lab.run(300)
    assert len(lab.store.audit_log()) == log
