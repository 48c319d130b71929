"""The fake keeps the traps of the real one (each is shown on the real one by test_real)."""

from __future__ import annotations

import pytest

from nccl_slurm.clock import MovableClock
from nccl_slurm.errors import SlurmRefused, SlurmUnreachable
from nccl_slurm.model import Step
from nccl_slurm.scheduler.client import SchedulerClient
from nccl_slurm.scheduler.fake import FakeSlurm


def test_it_is_a_scheduler_client() -> None:
    client: SchedulerClient = FakeSlurm(version=(22, 5))
    assert client.lower_cases_text()
    assert client.version() == (22, 5)
    assert client.settings().cluster == "fake"
    assert client.controllers()[0].role == "primary"


def test_a_job_from_submit_to_purge() -> None:
    clock = MovableClock(100.0)
    slurm = FakeSlurm(clock=clock)
    job = slurm.submit("n[1-2]", gpus=8, script="#!/bin/sh\n", stdout="/w/out", name="train")
    assert slurm.jobs()[0].nodes == ("n1", "n2")
    assert slurm.batch_script(str(job)) == "#!/bin/sh\n"
    assert not slurm.accounting([job])[0].final
    clock.sleep(10)
    slurm.end(job, "FAILED", exit="1:0", steps=[Step("1.0", "python", "FAILED", 1, 0, ("n1",))])
    (record,) = slurm.accounting([job])
    assert (record.final, record.end, record.steps[0].exit) == (True, 110.0, 1)
    assert slurm.jobs()[0].state == "FAILED"
    slurm.purge(job)
    assert slurm.jobs() == ()
    assert slurm.batch_script(str(job)) is None
    assert slurm.accounting(since=105.0) == (record,)
    assert slurm.accounting(since=111.0) == ()
    assert slurm.accounting() == ()


def test_the_comment_moves_from_slurmctld_to_accounting() -> None:
    slurm = FakeSlurm()
    job = slurm.submit(comment="mine")
    slurm.write_accounted_comment([str(job)], "lost at the end")
    slurm.write_accounted_comment([str(job)], "kept", "admincomment")
    slurm.write_live_comment(str(job), "mine and ours")
    slurm.held = True
    slurm.end(job, "FAILED")
    with pytest.raises(SlurmRefused, match="already finished"):
        slurm.write_live_comment(str(job), "x")
    assert not slurm.comments([job])[job].final
    slurm.write_accounted_comment([str(job)], "lost too")
    slurm.flush()
    state = slurm.comments([job])[job]
    assert (state.final, state.comment, state.admin_comment) == (True, "mine and ours", "kept")
    assert slurm.write_accounted_comment([str(job)], 'Say "it\'s"') == {job}
    assert slurm.comments([job])[job].comment == "Say `it`s`"


def test_parts_of_arrays_and_het_jobs() -> None:
    slurm = FakeSlurm(version=(22, 5))
    first, second = slurm.submit(array=(1, 0)), slurm.submit(array=(1, 1))
    leader, other = slurm.submit(het=(3, 0)), slurm.submit(het=(3, 1))
    assert slurm.write_accounted_comment(["1"], "ALL") == {first, second}
    assert slurm.write_accounted_comment(["1_1", "3+1"], "One") == {second, other}
    assert slurm.write_accounted_comment(["3"], "x") == {leader, other}
    assert slurm.write_accounted_comment(["99"], "x") == frozenset()
    assert slurm.comments([first])[first].comment == "all"
    with pytest.raises(SlurmRefused, match="is no job id"):
        slurm.write_accounted_comment(["1,2"], "x")


def test_a_requeued_run_can_not_be_reached_any_more() -> None:
    clock = MovableClock(100.0)
    slurm = FakeSlurm(clock=clock)
    job = slurm.submit("n1", comment="c")
    clock.sleep(10)
    slurm.requeue(job, "NODE_FAIL", failed_node="n1")
    assert slurm.comments([job])[job].state == "PENDING"
    slurm.write_live_comment(str(job), "on the waiting job")
    clock.sleep(10)
    slurm.restart(job, "n2")
    slurm.end(job, "COMPLETED")
    first, second = slurm.accounting([job])
    assert (first.state, first.failed_node, first.nodes, first.end) == ("NODE_FAIL", "n1", ("n1",), 110.0)
    assert (second.state, second.nodes, second.restarts, second.start) == ("COMPLETED", ("n2",), 1, 120.0)
    assert first.record != second.record
    slurm.write_accounted_comment([str(job)], "new")
    assert slurm.comments([job])[job].comment == "new"


def test_nodes_and_their_events() -> None:
    clock = MovableClock(100.0)
    slurm = FakeSlurm(clock=clock)
    slurm.set_node("n1", "DOWN*", "Not responding", by="slurm")
    clock.sleep(5)
    slurm.set_node("n1", "IDLE")
    slurm.reboot("n1")
    slurm.set_node("n2", "IDLE+DRAIN", "fan")
    found = slurm.node_events(0)
    assert [(event.node, event.start, event.end) for event in found] == [("n1", 100.0, 105.0), ("n2", 105.0, None)]
    assert slurm.node_events(0, until=101.0) == found[:1]
    node = slurm.nodes()[0]
    assert (node.failed, node.reason, node.boot_time) == (False, None, 105.0)


def test_daemons_that_are_away() -> None:
    slurm = FakeSlurm()
    job = slurm.submit()
    slurm.away = {"slurmdbd"}
    with pytest.raises(SlurmUnreachable):
        slurm.accounting([job])
    assert slurm.jobs()
    slurm.away = {"slurmctld"}
    with pytest.raises(SlurmUnreachable):
        slurm.nodes()
    without = FakeSlurm(accounting=False)
    assert not without.settings().accounting
    with pytest.raises(SlurmRefused):
        without.comments([1])
    assert slurm.calls == [("accounting", (job,), None, None)]
