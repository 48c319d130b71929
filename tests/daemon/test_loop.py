"""The daemon over a Slurm in memory, a movable clock and a real store: when it speaks, what it survives."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.capture.spool import CAPTURE_OFF
from nccl_slurm.clock import MovableClock
from nccl_slurm.collect.shared import Inbox
from nccl_slurm.config import Config, Paths, Scope
from nccl_slurm.config import Daemon as Waits
from nccl_slurm.daemon.intake import Hints
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.daemon.output import OutputReader, Wanted
from nccl_slurm.daemon.settle import in_groups
from nccl_slurm.history.store import Store
from nccl_slurm.model import Fact, Parsed, Step
from nccl_slurm.scheduler.fake import FakeSlurm
from tests.collect.test_shared import record as empty_record

FAILED: dict[str, Any] = {"exit": "1:0", "derived_exit": "1:0", "steps": (Step("1.0", "python", "FAILED", 1, 0),)}


class Output(OutputReader):
    """Stands in for the child process that reads files as the job's user; ``said`` is what it finds."""

    said: Parsed = Parsed()

    def read_each(self, wanted: Sequence[Wanted], uid: int) -> list[Parsed | None]:
        return [self.said] * len(wanted)


class Lab:
    """A daemon and all around it. ``restart`` makes a new daemon over the same store, as after a kill."""

    def __init__(self, folder: Path, *, scope: str = "all", accounting: bool = True, comment: str = "") -> None:
        self.clock = MovableClock(1_000_000_000.0)
        self.slurm = FakeSlurm(clock=self.clock, cluster="c", accounting=accounting)
        self.shared = folder / "shared"
        for part in ("new", "tmp", "quarantine", "reports"):
            (self.shared / part).mkdir(parents=True, mode=0o700)
        self.events = folder / "events"
        (self.events / "new").mkdir(parents=True)
        self.config = Config(
            paths=Paths(str(folder), str(self.shared), str(self.events)),
            daemon=Waits(record_uids=[os.geteuid()]),
            scope=Scope(default=scope),
        )
        self.store = Store.open(f"sqlite:///{folder}/store.db")
        self.output = Output("", 1.0)
        self.restart()

    def restart(self) -> None:
        settings = self.slurm.settings()
        self.daemon = Daemon(self.config, self.slurm, self.store, self.clock, self.output, settings)

    def run(self, seconds: float = 1.0, step: float = 1.0) -> None:
        """Ticks once a ``step`` for so long."""
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            self.daemon.tick()
            self.clock.sleep(step)

    def days(self, days: float) -> None:
        """They go by while the daemon runs: a clock that leaps is not believed for a day."""
        for _ in range(int(2 * days)):
            self.clock.sleep(43_000.0)
            self.daemon.tick()
        self.clock.sleep(2 * days * 200.0)

    def record(self, job: int, node: str, **fields: Any) -> None:
        """A node record arrives. Its folder is named by now, or ``at``."""
        at = int(fields.pop("at", self.clock.now()))
        content = empty_record(cluster="c", job_id=job, node=node, **fields)
        (self.shared / "new" / f"{job}.{at}.{node}.json").write_text(json.dumps(content))

    def hint(self, job: int) -> None:
        (self.events / "new" / f"{job}.0").touch()

    def verdict(self, job: int, run: int = 1) -> dict[str, Any] | None:
        kept = self.store.report("c", job, run)
        return None if kept is None else dict(kept.report)

    def comment(self, job: int) -> str:
        return self.slurm.comments([job])[job].comment


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


def end_badly(lab: Lab, nodes: str = "n[1-2]") -> int:
    job = lab.slurm.submit(nodes, comment="mine")
    lab.run(3)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.hint(job)
    return job


def test_tasks_of_an_array_are_kept_together_and_their_script_is_asked_for_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    told = lab.slurm.batch_script

    def counted(job_id: str) -> str | None:
        asked.append(job_id)
        return told(job_id)

    monkeypatch.setattr(lab.slurm, "batch_script", counted)
    script = "#!/bin/sh\nsrun -o /w/logs/$SLURM_JOB_ID.%t python train.py\n"
    tasks = [
        lab.slurm.submit("n1", array=(4000, task), script=script, workdir="/w", stdout=f"/w/{task}")
        for task in range(9)
    ]
    lab.daemon.tick()
    writes = lab.store.writes
    kept = [run for task in tasks for run in lab.store.runs_of_raw("c", task)]
    assert [run.id for run in kept] == [f"4000_{task}" for task in range(9)] and len(asked) == 1
    assert all(any(str(run.raw_id) in path for path in run.log_paths) for run in kept)  # each has its own folders
    for task in tasks:
        lab.slurm.end(task, "FAILED", **FAILED)
        lab.hint(task)
    lab.run(2)
    assert {run.status for task in tasks for run in lab.store.runs_of_raw("c", task)} == {"settling"}
    assert lab.store.writes - writes < len(tasks)


def test_speaks_when_the_last_record_is_there(lab: Lab) -> None:
    job = end_badly(lab)
    lab.record(job, "n1")
    lab.run(2)
    assert lab.verdict(job) is None and lab.comment(job) == "mine"
    lab.record(job, "n2")
    lab.run(2)
    assert lab.comment(job).startswith("mine [nccl-slurm: ") and lab.comment(job).endswith(f"report {job}]")


def test_waits_for_a_record_and_then_calls_it_a_gap(lab: Lab) -> None:
    job = end_badly(lab)
    lab.record(job, "n1")
    lab.run(55)
    assert lab.verdict(job) is None
    lab.run(10)
    found = lab.verdict(job)
    assert found and [node["record"] for node in found["nodes"]] == ["present", "missing"]
    assert any("n2" in gap["source"] for gap in found["gaps"])


def test_a_node_has_its_time_from_when_it_left_completing(lab: Lab) -> None:
    lab.slurm.set_node("n2", "IDLE+COMPLETING")
    job = end_badly(lab)
    lab.run(120)
    assert lab.verdict(job) is None
    lab.slurm.set_node("n2", "IDLE")
    lab.run(75)
    assert lab.verdict(job) is not None


def test_nobody_is_waited_for_beyond_the_cap(lab: Lab) -> None:
    lab.slurm.set_node("n2", "IDLE+COMPLETING")
    job = end_badly(lab)
    lab.run(905, step=5)
    assert lab.verdict(job) is not None


def test_a_late_record_makes_a_new_report(lab: Lab) -> None:
    job = end_badly(lab)
    began = lab.clock.now() - 3
    lab.run(70)
    assert lab.store.report("c", job, 1).revision == 1  # type: ignore[union-attr]
    for node in ("n1", "n2"):
        lab.record(job, node, at=began)
    lab.run(3)
    kept = lab.store.report("c", job, 1)
    assert kept and kept.revision > 1
    assert [node["record"] for node in kept.report["nodes"]] == ["late", "late"]


def test_a_late_record_of_a_failure_out_of_scope_makes_it_no_success(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scope="none")
    job = end_badly(lab, "n1")
    began = lab.clock.now() - 3
    lab.run(70)
    lab.record(job, "n1", at=began)
    lab.run(3)
    found = lab.verdict(job)
    assert found and found["nodes"][0]["record"] == "late" and found["verdict"]["class"] != "benign"
    assert lab.comment(job) == "mine"
    lab.store.close()


def test_success_is_recorded_without_a_word(lab: Lab) -> None:
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(3)
    lab.slurm.end(job)
    lab.record(job, "n1")
    lab.run(40)
    found = lab.verdict(job)
    assert found and found["verdict"]["class"] == "benign" and lab.comment(job) == "mine"


def test_a_lost_hint_costs_half_a_minute(lab: Lab) -> None:
    job = end_badly(lab)
    (lab.events / "new" / f"{job}.0").unlink()
    for node in ("n1", "n2"):
        lab.record(job, node)
    lab.run(35)
    assert "report" in lab.comment(job)


def test_what_ended_while_the_daemon_was_down_is_found(lab: Lab) -> None:
    job = lab.slurm.submit("n1")
    lab.clock.sleep(100)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.slurm.purge(job)
    lab.clock.sleep(7200)
    lab.restart()
    lab.run(5)
    assert lab.verdict(job) is not None and "report" in lab.comment(job)


def test_a_kill_between_verdict_and_comment_doubles_nothing(lab: Lab) -> None:
    job = end_badly(lab, "n1")
    lab.slurm.away = {"slurmdbd"}
    lab.record(job, "n1")
    lab.run(3)
    lab.slurm.away = set()
    lab.restart()
    lab.run(90)
    lab.restart()
    lab.slurm.purge(job)
    lab.run(400, step=5)
    assert lab.comment(job).count("[nccl-slurm:") == 1
    assert lab.store.comment_counts() == {"verified": 1}


def test_a_comment_that_slurmctld_overwrites_after_a_restart_is_written_again(lab: Lab) -> None:
    job = end_badly(lab, "n1")
    lab.record(job, "n1")
    lab.run(100)
    lab.slurm._records[-1].comment = "mine"  # what a restarted slurmctld sends again is the comment of the submission
    lab.run(400, step=5)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")


def test_as_long_as_slurmctld_knows_the_job_it_may_overwrite_the_comment(lab: Lab) -> None:
    """Two fail-overs one after the other: MinJobAge and more has gone by, and nobody has forgotten the job."""
    job = end_badly(lab, "n1")
    lab.record(job, "n1")
    lab.run(1000, step=5)
    assert lab.store.comment_counts() == {"written": 1}
    lab.slurm._records[-1].comment = "mine"
    lab.slurm.purge(job)
    lab.run(300, step=5)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")
    assert lab.store.comment_counts() == {"verified": 1}


def test_what_ended_before_the_first_start_and_was_not_captured_is_left_alone(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    captured, foreign = lab.slurm.submit("n1", comment="mine"), lab.slurm.submit("n2", comment="mine")
    for one in (captured, foreign):
        lab.slurm.end(one, "FAILED", **FAILED)
    lab.record(captured, "n1")
    lab.clock.sleep(30)
    lab.store.set_value("born", int(lab.clock.now()))
    lab.run(90)
    assert "report" in lab.comment(captured) and lab.comment(foreign) == "mine"
    lab.store.close()


def test_not_while_the_end_record_is_queued(lab: Lab) -> None:
    lab.slurm.held = True
    job = end_badly(lab, "n1")
    lab.record(job, "n1")
    lab.run(30)
    assert lab.comment(job) == ""  # slurmctld has not told slurmdbd yet, so nobody has a final state
    lab.slurm.flush()
    lab.run(60)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")


def test_requeued_run_speaks_by_the_waiting_job(lab: Lab) -> None:
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(3)
    lab.slurm.set_node("n1", "DOWN*", "Not responding", "slurm")
    lab.slurm.requeue(job, "NODE_FAIL")
    lab.run(100)
    waiting = next(one for one in lab.slurm.jobs() if one.raw_id == job)
    assert waiting.comment.startswith("mine [nccl-slurm: n1 ")
    lab.slurm.restart(job, "n2")
    lab.run(15)
    lab.slurm.end(job)
    lab.record(job, "n2")
    lab.run(100)
    assert [run.state for run in lab.store.runs_of_raw("c", job)] == ["NODE_FAIL", "COMPLETED"]
    assert lab.comment(job).count("[nccl-slurm: n1 ") == 1


def test_what_is_no_event_is_no_hint(tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    (new / "5.0").mkdir()
    (new / "6.0").symlink_to("/nonexistent")
    for name in ("7.1", "x", "8", "9.0.0", "-1.0"):
        (new / name).touch()
    hints = Hints(str(tmp_path))
    assert hints.take() == {6, 7} and hints.take() == set()
    assert [path.name for path in new.iterdir()] == ["5.0"]


@pytest.mark.parametrize("off", [True, False])
def test_a_job_that_switched_capture_off_has_its_output_left_alone(lab: Lab, off: bool) -> None:
    lab.output.said = Parsed(facts=(Fact("cuda.oom", "SECRET", "cuda", "cause", "job", "cuda-oom", rank=0),))
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(3)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.hint(job)
    lab.record(job, "n1", gaps=[{"source": "user files", "why": CAPTURE_OFF}] if off else [])
    lab.run(5)
    found = lab.verdict(job)
    assert found is not None and ("SECRET" in json.dumps(found)) is not off
    assert ({"source": "job output", "why": CAPTURE_OFF} in found["gaps"]) is off
    assert lab.comment(job).startswith("mine [nccl-slurm: ")


def test_the_records_of_a_failed_run_are_unpacked_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []
    read = lab.store.records

    def records(*key: Any) -> Any:
        asked.append(key)
        return read(*key)

    monkeypatch.setattr(lab.store, "records", records)
    job = end_badly(lab)
    for node in ("n1", "n2"):
        lab.record(job, node)
    lab.run(10)
    assert lab.verdict(job) is not None and asked == [("c", job, 1)]


def test_a_record_that_is_here_before_its_run_is_known(lab: Lab) -> None:
    """A requeued job runs again on the same node and ends within a second; both of its runs have their own record."""
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(12)
    lab.record(job, "n1", at=lab.clock.now() - 12)
    lab.slurm.requeue(job)
    lab.run(4)
    lab.slurm.restart(job, "n1")
    hook: dict[str, Any] = {"time": lab.clock.now(), "boot_id": None, "env": {}}
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.record(job, "n1", prolog=hook)
    lab.run(5)
    assert [lab.store.record_nodes("c", job, run) for run in (1, 2)] == [{"n1"}, {"n1"}]
    assert len(lab.store.records("c", job, 1)) == 1 and lab.comment(job).startswith("mine [nccl-slurm: ")


def test_a_first_run_that_nobody_saw_takes_no_place(lab: Lab) -> None:
    """It was over between two looks, and accounting is slow: the later run is known first, and its line stays."""
    job = lab.slurm.submit("n1", comment="mine")
    first = lab.clock.now()
    lab.clock.sleep(5.0)
    lab.slurm.held = True
    lab.slurm.requeue(job, derived_exit="0:15")
    lab.slurm.restart(job, "n1")
    lab.run(3)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.slurm.held = False
    lab.slurm.flush()
    lab.record(job, "n1", at=first)
    lab.record(job, "n1", at=first + 5.0)
    lab.run(100)
    runs = lab.store.runs_of_raw("c", job)
    assert [(run.run, run.state) for run in runs] == [(1, "REQUEUED"), (2, "FAILED")]
    assert lab.comment(job).startswith("mine [nccl-slurm: ") and lab.comment(job).endswith(f"report {job}]")


def test_requeued_and_cancelled_while_it_waits_it_still_speaks(lab: Lab) -> None:
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(3)
    lab.slurm.set_node("n1", "DOWN*", "Not responding", "slurm")
    lab.slurm.requeue(job, "NODE_FAIL")
    lab.run(5)
    lab.slurm.end(job, "CANCELLED")
    lab.run(200)
    assert lab.comment(job).startswith("mine [nccl-slurm: n1 ")
    assert [row.text for row in lab.store.comments_given_up()] == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_that_is_set_back_holds_nothing_up(lab: Lab, restarted: bool) -> None:
    before = end_badly(lab, "n1")
    lab.run(2)
    lab.clock.sleep(-3600.0)
    if restarted:
        lab.restart()
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(1)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.hint(job)
    lab.record(job, "n1")
    lab.run(5)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")
    assert bool(lab.store.notes("clock")) is not restarted
    lab.record(before, "n1", at=lab.clock.now() + 3600.0)
    lab.run(10)
    assert lab.comment(before).startswith("mine [nccl-slurm: ")


def test_a_look_back_by_a_clock_that_was_ahead_counts_for_nothing(lab: Lab) -> None:
    lab.clock.sleep(7200.0)
    lab.run(2)
    lab.clock.sleep(-7000.0)
    job = lab.slurm.submit("n1", comment="mine")
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.slurm.purge(job)
    lab.clock.sleep(4000.0)
    lab.restart()
    lab.run(70)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")


@pytest.mark.parametrize(
    ("change", "told"), [({"restarts": 0}, False), ({"uid": 1001}, False), ({"restarts": 1}, True), ({}, True)]
)
def test_a_strangers_job_with_the_same_id_is_left_alone(lab: Lab, change: dict[str, Any], told: bool) -> None:
    """slurmctld came back with an older state, in which the id was yet to be given."""
    job = lab.slurm.submit("n1", comment="mine")
    lab.run(3)
    lab.slurm.set_node("n1", "DOWN*", "Not responding", "slurm")
    lab.slurm.requeue(job, "NODE_FAIL")
    lab.slurm.change(job, **change)
    lab.run(100)
    other = next(one for one in lab.slurm.jobs() if one.raw_id == job)
    assert ("[nccl-slurm: " in other.comment) is told and other.comment.startswith("mine")
    assert lab.verdict(job) is not None


@pytest.mark.parametrize(("state", "reason"), [("DOWN*", "Not responding"), ("IDLE+FAIL", "Action:Reboot")])
def test_a_node_that_fails_under_a_running_job_is_told_at_once(lab: Lab, state: str, reason: str) -> None:
    job = lab.slurm.submit("n[1-2]", comment="mine")
    lab.run(40)
    lab.slurm.set_node("n2", state, reason, "slurm")
    lab.run(40)
    found = lab.verdict(job)
    assert found and found["status"] == "live"
    assert [one["host"] for one in found["verdict"]["culprits"]] == ["n2"]
    live = next(one for one in lab.slurm.jobs() if one.raw_id == job)
    assert live.comment.startswith("mine [nccl-slurm: live; n2 ")


def test_a_slurmd_that_is_restarted_is_no_failed_node(lab: Lab) -> None:
    job = lab.slurm.submit("n[1-2]", comment="mine")
    lab.run(40)
    lab.slurm.set_node("n2", "MIXED*")
    lab.run(40)
    lab.slurm.set_node("n2", "MIXED")
    lab.slurm.end(job)
    for node in ("n1", "n2"):
        lab.record(job, node, at=lab.clock.now() - 70)
    lab.run(90)
    assert lab.comment(job) == "mine"


def test_a_live_verdict_that_the_end_does_not_bear_out_is_taken_back(lab: Lab) -> None:
    job = lab.slurm.submit("n[1-2]", comment="mine")
    lab.run(40)
    lab.slurm.set_node("n2", "DOWN", "admin", "root")
    lab.run(40)
    lab.slurm.set_node("n2", "MIXED")
    lab.slurm.end(job)
    lab.run(200)
    assert lab.comment(job) == f"mine [nccl-slurm: no failure seen (benign); report {job}]"


def test_a_requeued_job_that_takes_its_time_to_end_makes_no_runs_of_it(lab: Lab) -> None:
    job = lab.slurm.submit("n1")
    lab.run(12)
    for second in range(10):
        lab.slurm.change(job, state="COMPLETING", start=lab.clock.now() + second, restarts=1)
        lab.run(12)
    assert [run.run for run in lab.store.runs_of_raw("c", job)] == [1]


def test_an_old_drain_reason_does_not_date_a_later_failure_back(lab: Lab) -> None:
    lab.run(40)
    job = end_badly(lab, "n[1-2]")
    lab.slurm.set_node("n2", "MIXED+DRAIN", "maintenance")
    lab.run(70)
    before = lab.clock.now()
    stamp = next(node.reason_at for node in lab.slurm.nodes() if node.name == "n2")
    lab.slurm.set_node("n2", "DOWN+DRAIN", "maintenance")
    lab.slurm._nodes["n2"] = dataclasses.replace(lab.slurm._nodes["n2"], reason_at=stamp)
    lab.run(40)
    assert [event.time >= before for event in lab.store.node_events(["n2"]) if "DOWN" in event.state] == [True]
    assert lab.verdict(job) is not None


def test_a_node_whose_clock_is_off_is_still_told(lab: Lab) -> None:
    job = end_badly(lab, "n1")
    lab.record(job, "n1", at=lab.clock.now() - 5000)
    lab.run(3)
    assert "report" in lab.comment(job)


def test_a_run_that_was_taken_off_its_nodes_before_it_began_leaves_a_record_that_waits(lab: Lab) -> None:
    """Preempted while its prolog ran: slurmdbd has never heard of that run, and the job waits for its next one."""
    job = lab.slurm.submit("n1", comment="mine")
    lab.slurm.change(job, state="PENDING", start=None, nodes=(), node_list="")
    lab.slurm._records.clear()
    lab.record(job, "n1", at=lab.clock.now(), written=lab.clock.now() + 1)
    lab.run(1800, step=15)
    name = next((lab.shared / "new").iterdir()).name
    assert not list((lab.shared / "quarantine").iterdir()) and not lab.store.notes()
    lab.slurm.change(job, state="RUNNING", start=lab.clock.now(), nodes=("n1",), node_list="n1")
    lab.slurm._add_record(lab.slurm._live[job])
    lab.run(400, step=15)
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.record(job, "n1", at=lab.clock.now() - 390, written=lab.clock.now(), gaps=[{"source": "own", "why": "record"}])
    lab.run(60, step=5)
    found = lab.verdict(job)
    assert found is not None and {"source": "n1: own", "why": "record"} in found["gaps"]
    lab.run(1200, step=15)  # the job is over, and nothing was told of an earlier run
    assert [path.name for path in (lab.shared / "quarantine").iterdir()] == [name]
    assert ["never begun" in note.text for note in lab.store.notes() if note.kind == "quarantine"] == [True]


def test_a_name_that_can_not_be_moved_away_holds_up_nobody(lab: Lab) -> None:
    (lab.shared / "quarantine").rmdir()
    (lab.shared / "new" / "0rubbish").touch()
    (lab.shared / "new" / ".nfs0001").touch()
    job = end_badly(lab, "n1")
    lab.record(job, "n1")
    lab.run(3)
    assert "report" in lab.comment(job)


def test_names_that_stay_are_noted_once_and_tried_ever_more_rarely(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root of a node makes folders that a rename can't replace."""
    for name in ("new", "quarantine"):
        (lab.shared / name / "stuck" / "full").mkdir(parents=True)
    tries: list[str] = []

    class Counting(Inbox):
        def quarantine(self, name: str) -> None:
            tries.append(name)
            super().quarantine(name)

    monkeypatch.setattr("nccl_slurm.daemon.loop.Inbox", Counting)
    lab.restart()
    lab.run(600)
    assert len(lab.store.notes("quarantine")) == 1
    lab.run(4 * 3600, step=10)
    assert 3 <= len(tries) <= 12 and len(lab.store.notes("quarantine")) == 1
    (lab.shared / "quarantine" / "stuck" / "full").rmdir()
    lab.run(3700, step=10)
    assert not list((lab.shared / "new").iterdir())


def test_rank_numbers_of_a_file_that_jobs_share_are_not_used(lab: Lab) -> None:
    word = Fact("cuda.oom", "CUDA out of memory", "cuda", "cause", "job", "cuda-oom", rank=2)
    lab.output.__class__.said = Parsed(facts=(word,), world_size=4)
    try:
        jobs = [lab.slurm.submit("n1", stdout="/home/alice/arr.log") for _ in range(2)]
        lab.run(12)
        for job in jobs:
            lab.slurm.end(job, "FAILED", **FAILED)
            lab.record(job, "n1")
        lab.run(40)
    finally:
        lab.output.__class__.said = Parsed()
    for job in jobs:
        found = lab.verdict(job)
        assert found and not found["verdict"]["culprits"] and "rank 2" not in lab.comment(job)


def test_a_report_that_could_not_be_published_is_published_later(lab: Lab) -> None:
    reports = lab.shared / "reports"
    reports.rename(lab.shared / "away")
    job = end_badly(lab, "n1")
    lab.record(job, "n1")
    lab.run(5)
    (lab.shared / "away").rename(reports)
    lab.run(70)
    assert (reports / f"{job}.json").exists()


def test_a_drain_under_a_running_job_is_nobodys_fault(lab: Lab) -> None:
    job = lab.slurm.submit("n[1-2]")
    lab.run(40)
    lab.slurm.set_node("n2", "MIXED+DRAIN", "fan")
    lab.run(40)
    assert lab.verdict(job) is None


def test_without_slurmdbd_store_and_report_only(tmp_path: Path) -> None:
    lab = Lab(tmp_path, accounting=False)
    job = lab.slurm.submit("n1")
    lab.run(12)
    lab.slurm.end(job, "FAILED", **{key: FAILED[key] for key in ("exit", "derived_exit")})
    lab.record(job, "n1")
    lab.run(30)
    assert lab.verdict(job) is not None
    assert [note.text for note in lab.store.notes("comment")] == [
        f"job {job} run 1: no slurmdbd: store and report only"
    ]
    lab.store.close()


def test_scope_needs_gpus_or_evidence(tmp_path: Path) -> None:
    lab = Lab(tmp_path, scope="gpu-or-evidence")
    plain, with_gpus = lab.slurm.submit("n1"), lab.slurm.submit("n2", gpus=8)
    lab.run(3)
    for job, node in ((plain, "n1"), (with_gpus, "n2")):
        lab.slurm.end(job, "FAILED", **FAILED)
        lab.record(job, node)
        lab.hint(job)
    lab.run(40)
    assert lab.comment(plain) == "" and "report" in lab.comment(with_gpus)
    hook = {"time": 1.0, "boot_id": None, "env": {"SLURM_JOB_GPUS": "0,1"}}
    untracked = lab.slurm.submit("n4")
    lab.run(3)
    lab.slurm.end(untracked, "FAILED", **FAILED)
    lab.record(untracked, "n4", prolog=hook)
    lab.run(40)
    assert "report" in lab.comment(untracked)
    lab.output.__class__.said = Parsed(facts=(Fact("gloo.timeout", "t", "gloo", "consequence", "job"),))
    try:
        talks = lab.slurm.submit("n3")
        lab.run(3)
        lab.slurm.end(talks, "FAILED", **FAILED)
        lab.record(talks, "n3")
        lab.run(40)
    finally:
        lab.output.__class__.said = Parsed()
    assert "report" in lab.comment(talks)
    lab.store.close()


def test_a_made_up_record_of_slurmdbd_is_not_believed(lab: Lab) -> None:
    """22.05 shows user root and no partition for some seconds when a job's end reaches slurmdbd before its start."""
    job = end_badly(lab, "n1")
    kept = lab.slurm._records[-1]
    kept.job = dataclasses.replace(kept.job, user="root", uid=0, partition=None, name="allocation")
    lab.run(5)
    run = lab.store.run("c", job, 1)
    assert run and (run.status, run.user, run.uid) == ("pending", "alice", 1000)


def test_a_record_for_a_node_outside_the_run_is_refused(lab: Lab) -> None:
    job = end_badly(lab, "n1")
    lab.record(job, "n3")
    lab.run(3)
    assert [path.name.split(".")[2] for path in (lab.shared / "quarantine").iterdir()] == ["n3"]
    assert any("n3" in note.text for note in lab.store.notes("quarantine"))


def test_a_record_of_no_job_is_kept_for_ten_minutes(lab: Lab) -> None:
    lab.record(77, "n1")
    lab.run(590, step=10)
    assert not list((lab.shared / "quarantine").iterdir())
    lab.run(60, step=10)
    assert list((lab.shared / "quarantine").iterdir())


def test_slurm_away_is_noted_and_survived(lab: Lab) -> None:
    lab.slurm.away = {"slurmctld", "slurmdbd"}
    lab.run(60)
    assert {note.kind for note in lab.store.notes()} >= {"nodes", "jobs"}
    lab.slurm.away = set()
    job = end_badly(lab, "n1")
    lab.record(job, "n1")
    lab.run(70)
    assert "report" in lab.comment(job)


def test_what_a_reader_did_not_come_to_is_read_in_the_next_turn(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def only_the_first(_: OutputReader, wanted: Sequence[Wanted], uid: int) -> list[Parsed | None]:
        asked.append(len(wanted))
        return [Parsed(), *[None] * (len(wanted) - 1)]

    monkeypatch.setattr(Output, "read_each", only_the_first)
    jobs = [lab.slurm.submit("n1") for _ in range(5)]
    lab.run(3)
    for job in jobs:
        lab.slurm.end(job, "FAILED", **FAILED)
        lab.hint(job)
        lab.record(job, "n1")
    lab.run(20)
    assert asked == [5, 1, 1, 1, 1]
    assert all(lab.verdict(job) for job in jobs)


def test_a_reader_is_given_outputs_of_one_user_only(lab: Lab) -> None:
    jobs = [lab.slurm.submit("n1") for _ in range(6)]
    lab.run(3)
    runs = [dataclasses.replace(lab.store.runs_of_raw("c", job)[0], uid=job % 2) for job in jobs]
    sizes = [[run.uid for run in group] for group in in_groups(runs, 2)]
    first, second = jobs[0] % 2, jobs[1] % 2
    assert sizes == [[first, first], [second, second], [first], [second]]
