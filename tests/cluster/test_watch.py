"""`nccl-slurm watch` and live verdicts on a real Slurm: steps in running jobs, their accounting, who is named."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.capture.test_ras import rightly, server
from tests.cluster import jobs
from tests.cluster.harness import Cluster
from tests.cluster.job_python import torch_of_jobs
from tests.cluster.outcome import outcome, report
from tests.cluster.processes import wait_until
from tests.cluster.scratch import USERS
from tests.cluster.stories import Stories, Story
from tests.parse.test_ras import TEXT

START = "from nccl_slurm.cli.main import main; main()"
LIVE = """
[scope]
default = "all"

[live]
reader = "{reader}"
silent_s = 15
look_s = 1
limit_s = 120
"""


@pytest.fixture(scope="module")
def live(cluster: Cluster) -> Iterator[Cluster]:
    cluster.heal()
    before = cluster.daemon_config.read_text()
    reader = cluster.scratch / "prefix" / "slurm" / "nccl-slurm-node"
    cluster.write_daemon_config(before + LIVE.format(reader=reader))
    if cluster.alive("nccl-slurm"):
        cluster.stop_daemon()
    yield cluster
    cluster.write_daemon_config(before)


@pytest.fixture
def lab(live: Cluster) -> Cluster:
    live.heal()
    return live


def hanging(lab: Cluster, *, at: int, mode: str = "hang") -> str:
    """Rank 2 of four on two nodes stops before collective ``at`` + 1; the others would wait for ten minutes."""
    arguments = (f"--mode={mode}", "--rank=2", f"--at={at}", "--steps=100000", "--pause=0.5", "--timeout=600")
    script = jobs.plain(lab.job_python(), lab.programs, *arguments)
    job = lab.sbatch(script, "-N2", "-n4", "--comment=mine")
    assert wait_until(lambda: "step 0 of" in lab.output(job), 120)
    return job


def looked(lab: Cluster, job: str, *options: str, user: str | None = "alice") -> dict[str, Any]:
    value: dict[str, Any] = json.loads(lab.nccl_slurm("watch", job, "--once", "--json", *options, user=user).stdout)
    return value


@contextmanager
def watching(lab: Cluster, job: str, *options: str) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Gives the reports of all looks until now."""
    command = [str(lab.job_python()), "-c", START, "watch", job, "--json", *options]
    path = lab.log / f"watch.{job}"
    with path.open("wb") as out:
        who: dict[str, Any] = {
            "user": 7001,
            "group": 7001,
            "extra_groups": [],
            "env": {**lab.env, "HOME": str(lab.home)},
        }
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=lab.home, **who)
        try:
            yield lambda: [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
            lab.slurm("scancel", job)
            assert child.wait(300) == 0, path.read_text()[-2000:]
        finally:
            child.kill()
            child.wait()


def as_alice(lab: Cluster, command: list[str], out: Any) -> subprocess.Popen[bytes]:
    uid = USERS["alice"]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        cwd=lab.home,
        env={**lab.env, "HOME": str(lab.home)},
        user=uid,
        group=uid,
        extra_groups=[],
    )


def named(value: dict[str, Any], key: str) -> list[tuple[int | None, str | None]]:
    return [(one["rank"], one["host"]) for one in value["verdict"][key]]


def a_rank_that_hangs_is_named_while_the_job_runs(lab: Cluster) -> None:
    """Its counts rose at looks before: then they stand still, and it is one short."""
    job = hanging(lab, at=120)
    with watching(lab, job, "--interval=1", "--silent=5", "--ras=off") as looks:
        assert wait_until(lambda: bool(looks()) and bool(named(looks()[-1], "culprits")), 400, every=1.0), looks()[-1:]
        found, first = looks()[-1], looks()[0]
        assert lab.job_states(job) == ["RUNNING"]
    assert first["status"] == "live" and named(first, "culprits") == []
    assert found["verdict"]["class"] == "collective-missing-rank" and found["verdict"]["action"] == "investigate"
    (who,) = named(found, "culprits")
    assert who[0] == 2 and who[1] in found["job"]["nodes"]
    assert {rank["rank"] for rank in found["ranks"]} == {0, 1, 2, 3}


@pytest.mark.torch
def test_a_real_torchrun_that_hangs_names_nobody(lab: Cluster) -> None:
    """All four print each step, and stop together: rank 2 sleeps, the others wait in all_reduce. Nothing tells whom
    they wait for: no flight recorder dump is there before a time-out fires."""
    if torch_of_jobs(lab.job_python()) is None:
        pytest.skip("torch is not there; ./install.sh --test --with-torch brings it")
    arguments = ("--mode=sleep", "--rank=2", "--at=60", "--steps=100000", "--pause=0.5", "--timeout=900")
    script = jobs.torchrun(lab.job_python(), lab.programs, *arguments)
    job = lab.sbatch(script, "-N2", "--ntasks-per-node=1")
    assert wait_until(lambda: "step 0 of" in lab.output(job), 300), lab.output(job)[-2000:]
    with watching(lab, job, "--interval=1", "--silent=10", "--ras=off") as looks:
        assert wait_until(lambda: bool(looks()) and "Nothing was written" in summary(looks()[-1]), 400, every=1.0)
        found = looks()
    assert found[-1]["verdict"]["class"] == "collective-hang-unattributed"
    assert [one for each in found for key in ("culprits", "suspects") for one in named(each, key)] == []


def summary(value: dict[str, Any]) -> str:
    return str(value["verdict"]["summary"])


def a_step_of_ours_leaves_the_jobs_end_as_it_was(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsrun -n2 sleep 1\nwhile [ ! -e go ]; do sleep 0.2; done\nrm go\n", "-N2", "-n2")
    lab.wait_job(job, {"RUNNING"})
    assert looked(lab, job)["job"]["id"] == job and looked(lab, job, user=None)["job"]["id"] == job
    steps = {row["jobname"] for row in lab.sacct(job, "jobname", steps=True)}
    assert "nccl-slurm-watch" in steps
    (lab.home / "go").touch()
    found = outcome(lab, job, ready=lambda made: all(node["record"] != "missing" for node in made["nodes"]))
    assert (found.state, found.failure_class) == ("COMPLETED", "benign")
    rows = lab.sacct(job, "jobname,state,exitcode,derivedexitcode", steps=True)
    assert {(row["state"], row["exitcode"]) for row in rows if row["jobname"] == "nccl-slurm-watch"} == {
        ("COMPLETED", "0:0")
    }
    assert rows[0]["derivedexitcode"] == "0:0"


def a_reader_that_is_not_there_fails_no_step(lab: Cluster) -> None:
    """On a node without nccl-slurm: a gap, and nothing in the job's exit codes."""
    config = lab.daemon_config.with_name("no-reader.toml")
    config.write_text(lab.daemon_config.read_text().replace("nccl-slurm-node", "not-there"))
    job = lab.sbatch("#!/bin/sh\nsleep 600\n", "-N2", "-n2")
    lab.wait_job(job, {"RUNNING"})
    found = looked(lab, job, f"--config={config}")
    why = {gap["source"]: gap["why"] for gap in found["gaps"] if "ranks' files" in gap["source"]}
    assert len(why) == 2 and all("not-there" in text for text in why.values())
    lab.slurm("scancel", job)
    lab.wait_job(job)
    rows = [row for row in lab.sacct(job, "jobname,exitcode", steps=True) if row["jobname"] == "nccl-slurm-watch"]
    assert [row["exitcode"] for row in rows] == ["0:0"]


def who_may_look(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsleep 600\n", "-N1")
    lab.wait_job(job, {"RUNNING"})
    for command in (("watch", job, "--once"), ("watch", job, "--once", "--no-step"), ("report", job)):
        done = lab.nccl_slurm(*command, user="bob", check=False)
        assert (done.returncode in (1, 3), done.stdout) == (True, "") and len(done.stderr.splitlines()) == 1
    lab.slurm("scancel", job)
    lab.wait_job(job)
    done = lab.nccl_slurm("watch", job, "--once", user="alice", check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr


def without_a_step_accounting_has_none(lab: Cluster) -> None:
    """`report` on a running job looks in the same way."""
    job = hanging(lab, at=100_000)
    found = looked(lab, job, "--no-step")
    assert any("not read" in gap["why"] for gap in found["gaps"])
    assert report(lab, job, user="alice")["status"] == "live"
    steps = {row["jobname"] for row in lab.sacct(job, "jobname", steps=True)}
    assert len(steps) <= 4 and "nccl-slurm-watch" not in steps
    lab.slurm("scancel", job)


def ras_is_asked_on_the_first_node(lab: Cluster) -> None:
    """A stand-in for NCCL's RAS thread; the nodes of this cluster share one loopback device."""
    job = lab.sbatch("#!/bin/sh\nsleep 600\n", "-N2", "-n2")
    lab.wait_job(job, {"RUNNING"})
    with server(lambda talk: rightly(talk, TEXT.encode())) as where:
        found = looked(lab, job, f"--ras={where}")
    lab.slurm("scancel", job)
    hosts = {fact["host"] for fact in found["facts"] if fact["kind"].startswith("nccl.ras-")}
    assert hosts == {found["job"]["nodes"][0]}
    assert named(found, "culprits") == named(found, "suspects") == []  # one look proves nothing


def the_daemon_tells_of_a_job_that_shows_nothing_any_more(lab: Cluster) -> None:
    job = hanging(lab, at=40)

    def comment() -> str:
        return lab.slurm("squeue", "-h", "-j", job, "-O", "Comment:250", check=False).stdout.strip()

    assert wait_until(lambda: "[nccl-slurm: live; " in comment(), 300, every=0.5), lab.tail("nccl-slurm")
    assert comment() == f"mine [nccl-slurm: live; collective-hang-unattributed, nobody proven; report {job}]"
    found = report(lab, job)
    assert (found["status"], lab.job_states(job)) == ("live", ["RUNNING"])
    assert found["verdict"]["culprits"] == [] and "srun" not in {row["jobname"] for row in lab.sacct(job, "jobname")}
    lab.slurm("scancel", job, user="alice")
    last = outcome(lab, job)
    assert "live" not in last.comment and last.comment.startswith("mine [nccl-slurm: ")


def an_interrupted_watch_ends_no_step(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsleep 600\n", "-N2", "-n2")
    lab.wait_job(job, {"RUNNING"})
    command = [str(lab.job_python()), "-c", START, "watch", job, "--once", "--ras=off"]
    child = as_alice(lab, command, subprocess.DEVNULL)

    def step() -> list[dict[str, str]]:
        rows = lab.sacct(job, "jobname,state,exitcode", steps=True)
        return [row for row in rows if row["jobname"] == "nccl-slurm-watch"]

    assert wait_until(lambda: bool(step()) or child.poll() is not None, 120)
    child.send_signal(2)
    child.wait(60)
    assert wait_until(lambda: bool(step()) and step()[0]["state"] != "RUNNING", 200, every=0.5)
    assert (step()[0]["state"], step()[0]["exitcode"]) == ("COMPLETED", "0:0")
    assert lab.job_states(job) == ["RUNNING"]
    lab.slurm("scancel", job)


ALONE: tuple[Story, ...] = (
    a_rank_that_hangs_is_named_while_the_job_runs,
    a_reader_that_is_not_there_fails_no_step,
    who_may_look,
    without_a_step_accounting_has_none,
    ras_is_asked_on_the_first_node,
    an_interrupted_watch_ends_no_step,
)
BESIDE_THE_DAEMON: tuple[Story, ...] = (
    a_step_of_ours_leaves_the_jobs_end_as_it_was,
    the_daemon_tells_of_a_job_that_shows_nothing_any_more,
)


@pytest.fixture(scope="module")
def alone(live: Cluster) -> Iterator[Stories]:
    live.job_python()
    with Stories(live, ALONE) as made:
        yield made


@pytest.mark.parametrize("story", ALONE, ids=lambda story: story.__name__)
def test_a_look(alone: Stories, story: Story) -> None:
    alone.play(story)


@pytest.fixture(scope="module")
def beside_the_daemon(live: Cluster) -> Iterator[Stories]:
    live.start_daemon()
    with Stories(live, BESIDE_THE_DAEMON) as made:
        yield made
    live.stop_daemon()


@pytest.mark.parametrize("story", BESIDE_THE_DAEMON, ids=lambda story: story.__name__)
def test_a_look_beside_the_daemon(beside_the_daemon: Stories, story: Story) -> None:
    beside_the_daemon.play(story)
