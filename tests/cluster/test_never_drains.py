"""Whatever is wrong with our side of a node: the job ends as it would without us, and the node is idle, undrained.

The table is in `conditions`; docs/never-drains.md has what was measured.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import mounts
from tests.cluster.conditions import CONDITIONS, Condition
from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until
from tests.cluster.spoiled import Node, hangs, kill, prepare
from tests.cluster.waves import Fate, job_facts, node_facts, run_all, wait_settled

FINE = ("COMPLETED", "0:0", "0")
IDLE = ("IDLE", None)
SHORT = "#!/bin/sh\nsrun true\n"


@pytest.fixture(scope="module")
def cluster(release: str | None) -> Iterator[Cluster]:
    """In place of the one that all tests share: with mounts of its own, and a capture.conf for each node."""
    with mounts.private_mounts(), scratch_slot() as folder, Cluster(folder, release=release) as made:
        nodes = prepare(made)
        with mounts.mounted(Path("/usr/local/sbin"), "--bind", str(nodes[0].smi.parent)):
            yield made


@pytest.fixture(scope="module")
def lab(cluster: Cluster) -> list[Node]:
    return [Node(cluster, name) for name in cluster.nodes]


@pytest.fixture
def nodes(lab: list[Node]) -> Iterator[list[Node]]:
    """Healed before the test, and as they were after it."""
    lab[0].cluster.heal()
    yield lab
    for node in lab:
        node.mend()


@pytest.fixture(scope="module")
def fates(lab: list[Node]) -> dict[str, Fate]:
    """Of all conditions that can stand here, by name."""
    able = [one for one in CONDITIONS if one.needs is None or one.needs[0]()]
    lab[0].cluster.heal()
    found = run_all(lab, able)
    _keep(lab[0].cluster, found)
    return {one.condition.name: one for one in found}


def _keep(cluster: Cluster, fates: Sequence[Fate]) -> None:
    """``log/never-drains.tsv`` outlives the cluster: the figures of docs/never-drains.md."""
    with (cluster.log / "never-drains.tsv").open("a") as file:
        for one in fates:
            print(
                one.condition.name, one.job, one.state, f"{one.seconds:.1f}", one.left, one.record, sep="\t", file=file
            )


@pytest.mark.timeout(1800)  # the first waits for all
@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda one: one.name)
def test_node_is_idle_and_the_job_what_it_is_without_us(
    fates: dict[str, Fate], lab: list[Node], condition: Condition
) -> None:
    if condition.needs and not condition.needs[0]():
        pytest.skip(condition.needs[1])
    seen = fates[condition.name]
    assert (seen.job, seen.state) == (FINE, IDLE)
    assert condition.record in (None, seen.record)
    assert seen.left > 0 or not condition.left
    assert (seen.next_job, seen.captured) == (FINE, True)
    assert not (lab[0].cluster.scratch / "owned").exists() and not list(lab[0].cluster.home.rglob("owned"))


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
def test_one_process_hangs_with_the_spool(nodes: list[Node]) -> None:
    """Not one a job: from the second on, the node's hooks leave its disks alone."""
    node = nodes[0]
    with ExitStack() as stack:
        hangs(node.spool, stack)
        for _ in range(4):
            settle(node, node.cluster.sbatch(SHORT, "-w", node.name))
        assert all_idle(nodes) and len(node.hooks()) == 1
    node.mend()
    job = node.cluster.sbatch(SHORT, "-w", node.name)
    settle(node, job)
    assert captured([node], job) == 1


# Jobs of every kind


def settle(node: Node, *jobs: str) -> None:
    wait_settled(node, jobs)
    for job in jobs:
        assert job_facts(node, job) == FINE


def all_idle(nodes: Sequence[Node]) -> bool:
    """Soon: a het job's other components may still end. A node that was drained stays so, whoever waits."""
    return wait_until(lambda: {node_facts(node) for node in nodes} == {IDLE}, 60, every=0.3)


def captured(nodes: Sequence[Node], job: str) -> int:
    """Runs of the job that an epilog closed."""
    return sum((run / "root" / "epilog.env").exists() for node in nodes for run in node.runs(job))


def has_record(node: Node, job: str) -> bool:
    return wait_until(lambda: len(node.records(job)) == 1, 60, every=0.2)


def raw_ids(node: Node, job: str) -> list[str]:
    """Of an array's tasks or of a het job's components."""
    shown = node.cluster.slurm("scontrol", "-o", "show", "job", job).stdout
    return [line.partition(" ")[0].partition("=")[2] for line in shown.splitlines() if line.startswith("JobId=")]


def test_two_jobs_at_once_on_one_node(nodes: list[Node]) -> None:
    script = "#!/bin/sh\nsrun sleep 3\n"
    jobs = [nodes[0].cluster.sbatch(script, "-w", "n1", "-n1", user=user) for user in ("alice", "bob")]
    settle(nodes[0], *jobs)
    assert all_idle(nodes) and all(captured(nodes, job) == 1 for job in jobs)


def test_requeued_onto_the_same_node(nodes: list[Node]) -> None:
    node = nodes[0]
    job = node.cluster.sbatch("#!/bin/sh\n[ $SLURM_RESTART_COUNT ] || srun sleep 300\nsrun true\n", "-w", "n1")
    node.cluster.wait_job(job, {"RUNNING"})
    node.cluster.slurm("scontrol", "requeue", job)
    wait_settled(node, [job])
    assert job_facts(node, job) == ("COMPLETED", "0:0", "1")
    assert all_idle(nodes) and captured(nodes, job) == 2


def test_het_job(nodes: list[Node]) -> None:
    script = "#!/bin/sh\n#SBATCH -w n1\n#SBATCH hetjob\n#SBATCH -w n2\nsrun --het-group=0,1 true\n"
    job = nodes[0].cluster.sbatch(script)
    wait_settled(nodes[0], [job])
    parts = raw_ids(nodes[0], job)
    assert len(parts) == 2 and [job_facts(nodes[0], part) for part in parts] == [FINE] * 2
    assert all_idle(nodes) and [captured(nodes, part) for part in parts] == [1, 1]


def test_no_kill_job_that_loses_a_node(nodes: list[Node]) -> None:
    """n4 is down for as long as its slurmd is; it comes back by itself, without a reason."""
    cluster = nodes[0].cluster
    job = cluster.sbatch("#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.5; done\n", "--no-kill", "-w", "n3,n4")
    cluster.wait_job(job, {"RUNNING"})
    cluster.kill_slurmd("n4")
    assert wait_until(lambda: cluster.node_state("n4").startswith("DOWN"), 60, every=0.5)
    (cluster.home / "go").touch()
    settle(nodes[0], job)
    cluster.start_slurmd("n4")
    assert wait_until(lambda: cluster.node_state("n4") == "IDLE", 240, every=0.5), cluster.node("n4")
    assert all_idle(nodes)


@pytest.mark.timeout(900)
def test_100_jobs_at_once(nodes: list[Node]) -> None:
    """Each run closed by its epilog, each record handed over, and then nothing of ours runs."""
    job = nodes[0].cluster.sbatch("#!/bin/sh\ntrue\n", "-n1", "--array=1-100")
    wait_settled(nodes[0], [job], 400.0)
    tasks = raw_ids(nodes[0], job)
    states = nodes[0].cluster.slurm("scontrol", "-o", "show", "job", job).stdout.count("JobState=COMPLETED ")
    assert (len(tasks), states, all_idle(nodes)) == (100, 100, True)
    assert sum(captured(nodes, task) for task in tasks) == 100
    new = nodes[0].cluster.shared / "new"
    assert wait_until(lambda: {name.partition(".")[0] for name in os.listdir(new)} >= set(tasks), 300, every=1.0)
    assert wait_until(lambda: not any(node.hooks() for node in nodes), 60, every=0.5)


# Signals


SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
@pytest.mark.parametrize("context", ["prolog_slurmd", "epilog_slurmd"])
def test_hooks_that_get_a_signal(nodes: list[Node], context: str) -> None:
    """While they wait for a spool that hangs, another one on each node."""
    to_come = dict(zip((node.name for node in nodes), SIGNALS, strict=True))

    def all_sent() -> bool:
        for node in nodes:
            if node.name in to_come and _signal(node, context, to_come[node.name]):
                del to_come[node.name]
        return not to_come

    with ExitStack() as stack:
        jobs = _jobs_that_meet_a_hung_spool(nodes, context, stack)
        assert wait_until(all_sent, 60), f"not met: {to_come}"
        settle(nodes[0], *jobs)
        assert all_idle(nodes)


def _jobs_that_meet_a_hung_spool(nodes: Sequence[Node], context: str, stack: ExitStack) -> list[str]:
    """One a node: in its prolog, or in its epilog alone. Where a prolog gave up, the epilog waits for nothing."""
    go, script = nodes[0].cluster.home / "go", "#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.2; done\n"
    go.unlink(missing_ok=True)

    def hang() -> None:
        for node in nodes:
            hangs(node.spool, stack)

    if context == "prolog_slurmd":
        hang()
    jobs = [node.cluster.sbatch(script, "-w", node.name) for node in nodes]
    if context == "epilog_slurmd":
        for job in jobs:
            nodes[0].cluster.wait_job(job, {"RUNNING"})
            assert wait_until(nodes[0].cluster.home.joinpath(f"slurm-{job}.out").exists, 60)
        hang()
    go.touch()
    return jobs


def _signal(node: Node, context: str, number: signal.Signals) -> bool:
    hook = node.hook_of(context)
    if hook is not None:
        kill([hook], number)
    return hook is not None


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
def test_sigkill_of_an_epilogs_own_shell_is_what_no_script_survives(nodes: list[Node]) -> None:
    """Somebody else's kill -9, of the one process that slurmd waits for: Slurm sees the signal and drains the node."""
    node = nodes[0]
    with ExitStack() as stack:
        (job,) = _jobs_that_meet_a_hung_spool([node], "epilog_slurmd", stack)
        assert wait_until(lambda: _signal(node, "epilog_slurmd", signal.SIGKILL), 60)
        wait_settled(node, [job])
        assert job_facts(node, job) == FINE
        assert "DRAIN" in node_facts(node)[0] and node_facts(node)[1] == "Epilog"  # … error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_that_is_killed(nodes: list[Node], number: signal.Signals) -> None:
    node = nodes[0]
    node.smi.hardlink_to(node.program("smi", "exec sleep 600"))
    job = node.cluster.sbatch(SHORT, "-w", node.name)
    assert wait_until(lambda: _kill_workers(node, number), 60)
    settle(node, job)
    assert all_idle(nodes)
    node.smi.unlink()
    following = node.cluster.sbatch(SHORT, "-w", node.name)
    settle(node, following)
    assert has_record(node, following)


def _kill_workers(node: Node, number: signal.Signals) -> bool:
    workers = node.workers()
    kill(workers, number)
    return bool(workers)


# Clocks


WAITS = "#!/bin/sh\nwhile [ ! -e go-$SLURM_JOB_ID ]; do sleep 0.2; done\nsrun true\n"


def test_the_clock_jumps_between_prolog_and_epilog(nodes: list[Node]) -> None:
    """Simulated: what the prolog stamped is moved by as much the other way, on each node by another time."""
    cluster = nodes[0].cluster
    jobs = [cluster.sbatch(WAITS, "-w", node.name) for node in nodes]
    for node, job, jump_s in zip(nodes, jobs, (-86400, -1, 3600, 86400), strict=True):
        run = _begun(node, job)
        stamped = int(run.name.partition(".")[2]) - jump_s
        _move(run, run.with_name(f"{job}.{stamped}"), stamped)
    for job in jobs:
        (cluster.home / f"go-{job}").touch()
    settle(nodes[0], *jobs)
    assert all_idle(nodes) and [captured(nodes, job) for job in jobs] == [1] * 4
    assert all(has_record(node, job) for node, job in zip(nodes, jobs, strict=True))


def _begun(node: Node, job: str) -> Path:
    """The job's run, once its worker has taken the first snapshot."""
    assert wait_until(lambda: any((run / "root" / "before.json").exists() for run in node.runs(job)), 60)
    return node.runs(job)[0]


def _move(run: Path, to: Path, stamped: int) -> None:
    text = (run / "root" / "prolog.env").read_text()
    (run / "root" / "prolog.env").write_text(text.replace(f"time={run.name.partition('.')[2]}\n", f"time={stamped}\n"))
    os.utime(run / "root" / "prolog.env", (stamped, stamped))
    (run.parent / run.name.partition(".")[0]).unlink()
    run.rename(to)
    (run.parent / run.name.partition(".")[0]).symlink_to(to.name)


def test_the_seconds_of_the_prolog_are_taken(nodes: list[Node]) -> None:
    """A clock that was set back: folders of this job for all of the next minute are there, closed."""
    node = nodes[0]
    job = node.cluster.sbatch(SHORT, "-w", node.name, "--hold")
    now = int(time.time())
    for second in range(now, now + 60):
        (node.spool / f"{job}.{second}" / "root").mkdir(parents=True)
        for name in ("closed", "root/epilog.env"):
            (node.spool / f"{job}.{second}" / name).touch()
    node.cluster.slurm("scontrol", "release", job)
    settle(node, job)
    assert all_idle(nodes)
