"""Slurm does not answer: nothing is decided on that, however long it takes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.daemon.test_loop import FAILED, Lab, end_badly


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


@pytest.mark.parametrize("away", ["slurmdbd", "slurmctld"])
def test_a_record_of_an_unknown_job_waits_until_slurm_has_answered(lab: Lab, away: str) -> None:
    lab.run(3)
    lab.slurm.away = {away}
    lab.slurm.held = True
    job = lab.slurm.submit("n1", comment="mine")
    lab.slurm.end(job, "FAILED", **FAILED)
    lab.slurm._records.clear()  # slurmctld could not tell slurmdbd of it
    if away == "slurmdbd":
        lab.slurm.purge(job)
    lab.record(job, "n1")
    lab.run(1500, step=10)
    assert not list((lab.shared / "quarantine").iterdir())
    assert any("records of unknown jobs wait" in note.text for note in lab.store.notes("records"))
    (record, ended, comment), *_ = lab.slurm._queued
    lab.slurm._records.append(record)
    lab.slurm.flush()
    assert (ended.state, comment) == ("FAILED", "mine")
    lab.slurm.away = set()
    lab.run(200, step=5)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")


def test_a_record_of_an_unknown_job_holds_up_no_other(lab: Lab) -> None:
    lab.slurm.away = {"slurmdbd"}
    lab.record(77, "n1")
    lab.run(5)
    lab.slurm.away = set()
    job = end_badly(lab, "n1")
    lab.run(1)
    lab.slurm.away = {"slurmdbd"}
    lab.record(78, "n1")
    lab.record(job, "n1")
    lab.run(3)
    assert lab.store.record_nodes("c", job, 1) == {"n1"}


def test_slurm_is_asked_once_for_many_unknown_jobs(lab: Lab) -> None:
    lab.run(3)
    for job in range(70, 90):
        lab.record(job, "n1")
    before = len(lab.slurm.calls)
    lab.run(2)
    asked = [call[1] for call in lab.slurm.calls[before:] if call[0] == "accounting"]
    assert asked == [tuple(range(70, 90))]


def test_no_text_is_given_up_because_slurm_was_away(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nccl_slurm.daemon.comments._TRIES_MAX", 3)
    job = end_badly(lab, "n1")
    lab.run(1)
    lab.slurm.away = {"slurmdbd"}
    lab.record(job, "n1")
    lab.run(3600, step=10)
    assert lab.store.comment_counts() == {"queued": 1}
    lab.slurm.away = set()
    lab.run(120, step=5)
    assert lab.comment(job).startswith("mine [nccl-slurm: ")


def test_no_live_line_stands_where_it_could_not_be_changed_later(lab: Lab) -> None:
    """It would accuse n2 for ever: sacctmgr can't take it out of a comment with quotes without spoiling that."""
    job = lab.slurm.submit("n[1-2]", comment="it's mine")
    lab.run(40)
    lab.slurm.set_node("n2", "DOWN", "admin", "root")
    lab.run(40)
    assert next(one for one in lab.slurm.jobs() if one.raw_id == job).comment == "it's mine"
    lab.slurm.set_node("n2", "MIXED")
    lab.slurm.end(job)
    lab.run(200)
    state = lab.slurm.comments([job])[job]
    assert state.comment == "it's mine"
    assert state.admin_comment == f"[nccl-slurm: no failure seen (benign); report {job}]"


@pytest.fixture
def read_only(lab: Lab) -> Iterator[Callable[[], None]]:
    """The shared folder is a file system of its own: read-only when this is called, and writable when called again."""
    shared = str(lab.shared)
    mount("-t", "tmpfs", "-o", "mode=700", "tmpfs", shared)
    for part in ("new", "tmp", "quarantine", "reports"):
        (lab.shared / part).mkdir(mode=0o700)
    how = iter(["ro", "rw"])
    yield lambda: mount("-o", f"remount,{next(how)}", shared)
    subprocess.run(["umount", "--lazy", shared], check=True)


def mount(*words: str) -> None:
    if os.geteuid() != 0 or subprocess.run(["mount", *words], capture_output=True).returncode:
        pytest.skip("needs root on a machine that lets it mount")


def test_a_record_that_can_not_be_taken_away_holds_up_no_other(lab: Lab, read_only: Callable[[], None]) -> None:
    jobs = [end_badly(lab, "n1") for _ in range(3)]
    for job in jobs:
        lab.record(job, "n1")
    (lab.shared / "new" / "0.junk").touch()  # its name comes first, and it can't go to quarantine either
    read_only()
    lab.run(5)
    assert all(lab.store.record_nodes("c", job, 1) == {"n1"} for job in jobs)
    lab.run(60)
    assert all(lab.comment(job).startswith("mine [nccl-slurm: ") for job in jobs)
    assert any("stays in new: Read-only" in note.text for note in lab.store.notes("records"))
    read_only()
    lab.run(60)
    assert not list((lab.shared / "new").iterdir())
    assert [path.name for path in (lab.shared / "quarantine").iterdir()] == ["0.junk"]


def test_half_written_records_of_yesterday_are_removed(lab: Lab) -> None:
    part = lab.shared / "tmp" / "7.1000.n1.json.99.12345"
    part.touch()
    os.utime(part, (lab.clock.now(), lab.clock.now()))
    lab.run(3 * 3600, step=600)
    assert part.exists()
    lab.run(23 * 3600, step=600)
    assert not part.exists()


def test_a_live_verdict_of_a_run_that_is_requeued_is_taken_back(lab: Lab) -> None:
    job = lab.slurm.submit("n[1-2]", comment="mine")
    lab.run(40)
    lab.slurm.set_node("n2", "DOWN", "admin", "root")
    lab.run(40)
    assert "n2" in next(one for one in lab.slurm.jobs() if one.raw_id == job).comment
    lab.slurm.set_node("n2", "MIXED")
    lab.slurm.requeue(job)
    lab.run(200)
    kept = lab.store.comment_of("c", job, 1)
    assert kept and "no failure seen" in kept.text
