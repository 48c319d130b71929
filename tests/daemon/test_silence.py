"""Running jobs that show nothing any more (``live.silent_s``): when the daemon speaks, when not, and takes it back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.config import Live
from nccl_slurm.daemon.output import Wanted
from nccl_slurm.model import Fact, Parsed
from tests.daemon.test_loop import Lab, Output

OUT = "/home/alice/slurm-1.out"
WAITS = Fact("torch.pg-status", "[rank0] waits", "torch", "context", "job", file=OUT, rank=0)


class Files(Output):
    """What the child of the user says of the run's files: size and time of the only one. None: it says nothing."""

    file: tuple[int, float] | None = (0, 0.0)
    asked: int = 0

    def files_each(self, wanted: Sequence[Wanted], uid: int) -> list[list[Any] | None]:
        object.__setattr__(self, "asked", self.asked + 1)
        if self.file is None:
            return [None] * len(wanted)
        size, mtime = self.file
        return [[{"path": path, "size": size, "mtime": mtime} for path in one.paths] for one in wanted]


class Silence(Lab):
    output: Files

    def write(self, seconds: float, every: float = 10.0) -> None:
        """The job writes a line now and then."""
        end, size = self.clock.now() + seconds, self.output.file[0] if self.output.file else 0
        while self.clock.now() < end:
            size += 1
            object.__setattr__(self.output, "file", (size, self.clock.now()))
            self.run(every)

    def live_comment(self, job: int) -> str:
        return next(one.comment for one in self.slurm.jobs() if one.raw_id == job)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Silence]:
    made = Silence(tmp_path, scope="gpu-or-evidence")
    made.output = Files("", 1.0)
    object.__setattr__(made.output, "said", Parsed(facts=[WAITS]))
    made.config = dataclasses.replace(made.config, live=Live(silent_s=300, look_s=10.0))
    made.restart()
    yield made
    made.store.close()


def submit(lab: Silence, **more: Any) -> int:
    return lab.slurm.submit("n[1-2]", **{"comment": "mine", "stdout": OUT, **more})


def test_off_by_default(lab: Silence) -> None:
    lab.config = dataclasses.replace(lab.config, live=Live())
    lab.restart()
    job = submit(lab)
    lab.write(60)
    lab.run(3600, step=10)
    assert lab.output.asked == 0 and lab.live_comment(job) == "mine"


def test_a_job_that_shows_nothing_any_more_is_told_live(lab: Silence) -> None:
    job = submit(lab)
    lab.write(60)
    lab.run(280)
    assert lab.verdict(job) is None and lab.live_comment(job) == "mine"
    lab.run(40)
    found = lab.verdict(job)
    assert found and found["status"] == "live" and found["recommendations"] == []
    assert found["verdict"]["class"] == "collective-hang-unattributed" and found["verdict"]["culprits"] == []
    assert found["verdict"]["action"] == "investigate"
    said = f"mine [nccl-slurm: live; collective-hang-unattributed, nobody proven; report {job}]"
    assert lab.live_comment(job) == said


def test_the_last_word_is_the_ends(lab: Silence) -> None:
    job = submit(lab)
    lab.write(60)
    lab.run(400)
    lab.slurm.end(job)
    lab.run(200)
    assert lab.comment(job) == f"mine [nccl-slurm: no failure seen (benign); report {job}]"


def test_a_job_that_goes_on_takes_it_back(lab: Silence) -> None:
    job = submit(lab)
    lab.write(60)
    lab.run(400)
    assert "nobody proven" in lab.live_comment(job)
    lab.write(30)
    assert lab.live_comment(job) == f"mine [nccl-slurm: live; no failure seen (benign); report {job}]"
    found = lab.verdict(job)
    assert found and "goes on" in found["verdict"]["summary"]


def test_a_daemon_that_was_restarted_takes_it_back_when_something_is_written(lab: Silence) -> None:
    job = submit(lab)
    lab.write(60)
    lab.run(400)
    lab.restart()
    lab.run(100)
    assert "nobody proven" in lab.live_comment(job)
    lab.write(30)
    assert "live; no failure seen" in lab.live_comment(job)


def test_a_node_that_failed_is_not_talked_over(lab: Silence) -> None:
    job = submit(lab)
    lab.write(60)
    lab.slurm.set_node("n2", "DOWN*", "Not responding", "slurm")
    lab.run(60)
    told = lab.live_comment(job)
    assert "live; n2 " in told
    lab.run(600)
    lab.write(30)
    assert lab.live_comment(job) == told


def test_an_error_in_the_output_makes_a_suspect_in_the_report(lab: Silence) -> None:
    failed = Fact("python.exception", "ValueError: x", "python", "cause", "job", "rank-exception", OUT, 3, rank=1)
    object.__setattr__(lab.output, "said", Parsed(facts=[WAITS, failed], world_size=4))
    job = submit(lab)
    lab.write(60)
    lab.run(400)
    found = lab.verdict(job)
    assert found and found["verdict"]["culprits"] == []
    assert [one["rank"] for one in found["verdict"]["suspects"]] == [1]
    assert lab.live_comment(job) == f"mine [nccl-slurm: live; rank-exception, nobody proven; report {job}]"
    lab.write(30)
    assert "live; no failure seen" in lab.live_comment(job)


def test_a_job_that_always_takes_its_time_is_not_silent(lab: Silence) -> None:
    """A pause of 200 s is its rhythm: 500 s are not yet out of it, 700 s are."""
    job = submit(lab)
    lab.write(900, every=200)
    lab.run(300)
    assert lab.live_comment(job) == "mine"
    lab.run(300)
    assert "live; " in lab.live_comment(job)


def test_a_job_that_never_wrote_has_no_rhythm(lab: Silence) -> None:
    job = submit(lab)
    lab.run(3600, step=10)
    assert lab.live_comment(job) == "mine" and lab.output.asked > 10


@pytest.mark.parametrize("file", [None])
def test_where_its_files_cant_be_seen_nothing_is_said(lab: Silence, file: None) -> None:
    job = submit(lab)
    lab.write(60)
    object.__setattr__(lab.output, "file", file)
    lab.run(3600, step=10)
    assert lab.live_comment(job) == "mine"


def test_a_suspended_job_is_not_silent(lab: Silence) -> None:
    job = submit(lab)
    lab.write(60)
    lab.slurm.change(job, state="SUSPENDED")
    lab.run(3600, step=10)
    assert lab.live_comment(job) == "mine"


def test_out_of_scope_is_not_told(lab: Silence) -> None:
    object.__setattr__(lab.output, "said", Parsed())
    job = submit(lab)
    lab.write(60)
    lab.run(600)
    assert lab.live_comment(job) == "mine" and lab.verdict(job) is None


def test_each_run_is_looked_at_in_its_own_time(lab: Silence) -> None:
    for _ in range(3):
        submit(lab)
    lab.write(60)
    before = lab.output.asked
    lab.run(100)
    assert 9 <= lab.output.asked - before <= 11  # one child for all runs of one user
