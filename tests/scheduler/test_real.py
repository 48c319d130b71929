"""Both clients on a real Slurm: the forms they read, the traps that `FakeSlurm` copies, users' hostile text.

pyslurm is tested where it is installed and of the cluster's release.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import pytest

from nccl_slurm.errors import SlurmRefused, SlurmUnreachable
from nccl_slurm.scheduler import jsontext
from nccl_slurm.scheduler.cli_client import CliClient
from nccl_slurm.scheduler.client import Accounted, CommentState, LiveJob
from nccl_slurm.scheduler.pyslurm_client import PyslurmClient, is_installed
from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.end_to_end]

USERS_OWN = 'User\'s Own "Tag" KEEP'
HOSTILE = "x NodeList=evil JobState=COMPLETED Comment=foo\nJobId=99 JobName=forged JobState=FAILED|a|b~;$(id) ' \""
ALL_FAIL = "#!/bin/sh\nexit 1\n"
HET = (
    "#!/bin/sh\n#SBATCH -N1\n#SBATCH hetjob\n#SBATCH -N1\nsrun --het-group=0,1 true\nsrun --het-group=1 false\nexit 3\n"
)
# slurmctld hears of a step's end from its slurmstepd, which a busy machine can delay beyond the batch script's own end:
# then accounting keeps no derived exit code
STEPS = "#!/bin/sh\nsrun -N2 -n2 true\nsrun -N1 -n1 sh -c 'exit 5'\nsleep 2\nexit 0\n"
SLEEP = "#!/bin/sh\nexec sleep 300\n"
PATTERN = "o ut|%x_%A_%a_%j_%u_%N_%n_%t_%%_%5j_%s.txt"


@dataclass(frozen=True)
class Jobs:
    """Raw ids (arrays: the array's id) of the jobs that the tests look at."""

    hostile: int
    requeued: int
    array: int
    het: int
    steps: int
    own: int
    gpus: int


@pytest.fixture(scope="module")
def cluster(release: str | None) -> Iterator[Cluster]:
    """Slurm alone, with GPUs; a module's own, so that it is gone when the next tests start theirs."""
    extra = ["AccountingStorageTRES=gres/gpu"]
    with scratch_slot() as folder, Cluster(folder, hooks=False, gpus=4, extra=extra, release=release) as running:
        yield running


@pytest.fixture(scope="module")
def commands(cluster: Cluster) -> CliClient:
    return CliClient(str(cluster.slurm_bin), str(cluster.conf), 30)


@pytest.fixture(scope="module", params=["commands", "pyslurm"])
def client(request: pytest.FixtureRequest, cluster: Cluster, commands: CliClient) -> Iterator[CliClient]:
    if request.param == "commands":
        yield commands
        return
    if not is_installed():
        pytest.skip("pyslurm is not installed (docs/pyslurm.md)")
    made = PyslurmClient(str(cluster.slurm_bin), str(cluster.conf), 30)
    made.nodes()
    if made.backend != "pyslurm":
        pytest.skip(f"pyslurm does not fit Slurm {cluster.release or 'of this machine'}, or can't be imported")
    yield made
    made.close()


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, client: CliClient) -> Jobs:
    def submit(script: str, *options: str) -> int:
        return int(cluster.sbatch(script, *options))

    made = Jobs(
        hostile=submit(SLEEP, f"--comment={HOSTILE}", "--job-name=na me\nJobState=FAILED", "--begin=now"),
        requeued=submit(SLEEP, "--requeue", "--comment=before"),
        array=submit(
            "#!/bin/sh\nexit $((SLURM_ARRAY_TASK_ID == 2))\n", "--array=1-3", f"--output={PATTERN}", "--job-name=arr"
        ),
        het=submit(HET),
        steps=submit(STEPS, "-N2", "--comment=plain"),
        own=submit(ALL_FAIL, f"--comment={USERS_OWN}"),
        gpus=submit(ALL_FAIL, "-N2", "--gpus-per-node=3"),
    )
    for job in (made.array, made.het, made.steps, made.own, made.gpus):
        cluster.wait_job(str(job))
    # not by scontrol's text: that is what the hostile job forges
    assert wait_until(lambda: {live(client, job).state for job in (made.hostile, made.requeued)} == {"RUNNING"}, 30)
    cluster.slurm("scontrol", "requeue", str(made.requeued))
    settled(client, [made.array, made.steps, made.own, made.gpus, made.het, made.het + 1])
    settled(client, [task.raw_id for task in tasks(client, made.array).values()])
    assert wait_until(lambda: len(client.accounting([made.hostile])) == 1, 10, every=0.2)
    return made


def settled(client: CliClient, raw_ids: Sequence[int]) -> None:
    """Wait until accounting shows the ends."""

    def ended() -> bool:
        states = client.comments(raw_ids)
        return len(states) == len(raw_ids) and all(state.final for state in states.values())

    assert wait_until(ended, 30, every=0.2), client.comments(raw_ids)


def live(client: CliClient, raw_id: int) -> LiveJob:
    return next(job for job in client.jobs() if job.raw_id == raw_id)


def newest(client: CliClient, raw_id: int) -> CommentState:
    return client.comments([raw_id])[raw_id]


def tasks(client: CliClient, array: int) -> dict[str, Accounted]:
    return {job.id: job for job in client.accounting(since=0.0) if job.id.startswith(f"{array}_")}


def test_both_clients_have_the_same_objects(client: CliClient, commands: CliClient, jobs: Jobs) -> None:
    """Asked again where something changed between the two."""

    def ends(found: CliClient) -> dict[int, CommentState]:
        return found.comments([jobs.own, jobs.gpus, jobs.array, jobs.het, jobs.het + 1, jobs.requeued, jobs.hostile])

    backend = client.backend
    assert wait_until(lambda: client.nodes() == commands.nodes(), 10), (client.nodes(), commands.nodes())
    assert wait_until(lambda: by_id(client) == by_id(commands), 10), (by_id(client), by_id(commands))
    assert wait_until(lambda: ends(client) == ends(commands), 10), (ends(client), ends(commands))
    assert client.backend == backend


@pytest.fixture
def printed(cluster: Cluster) -> Callable[..., bytes]:
    """What a command of Slurm prints as JSON."""
    if cluster.slurm("squeue", "--json", check=False).returncode:
        pytest.skip("this Slurm was built without JSON")
    return lambda *command: cluster.slurm(*command, "--json").stdout.encode()


def test_json_is_a_second_witness_of_nodes(client: CliClient, jobs: Jobs, printed: Callable[..., bytes]) -> None:
    command = ["sinfo"] if before_json_of_scontrol(client) else ["scontrol", "show", "nodes"]
    assert wait_until(lambda: jsontext.read_nodes(printed(*command)) == client.nodes(), 10), client.nodes()


def test_json_is_a_second_witness_of_live_jobs(client: CliClient, jobs: Jobs, printed: Callable[..., bytes]) -> None:
    """But for the paths of the output (see `jsontext`)."""

    def differing() -> list[str]:
        text = by_id(client)
        found = jsontext.read_live(printed("squeue", "-a", "-t", "all"), gpus_tracked=True)
        return [line for job in found for line in differences(job, replace(text[job.raw_id], stdout=None, stderr=None))]

    assert wait_until(lambda: not differing(), 10), differing()


def test_json_is_a_second_witness_of_accounting(client: CliClient, jobs: Jobs, printed: Callable[..., bytes]) -> None:
    """But for the record's number, the uid, and what 22.05 has no word or a wrong word for."""

    def told(job: Accounted) -> Accounted:
        job = replace(job, record=None, uid=None)
        if not before_json_of_scontrol(client):
            return job
        return replace(job, exit=None, derived_exit=None, user=None, cancelled_by=None, steps=())

    def both() -> tuple[list[Accounted], list[Accounted]]:
        found = jsontext.read_accounting(printed("sacct", "-D", "-a", "-S", "1970-01-20"), gpus_tracked=True)
        return in_order(map(told, found)), in_order(map(told, client.accounting(since=0.0)))

    def differing() -> list[str]:
        return [line for json, text in zip(*both(), strict=True) for line in differences(json, text)]

    assert wait_until(lambda: len(set(map(len, both()))) == 1, 10), both()
    assert wait_until(lambda: not differing(), 10), differing()


def in_order(jobs: Iterable[Accounted]) -> list[Accounted]:
    """JSON of 22.05 comes by id."""
    return sorted(jobs, key=lambda job: (job.raw_id, job.submit, job.start or 0.0))


def differences(one: LiveJob | Accounted, other: LiveJob | Accounted) -> list[str]:
    """A job that waits has no GPUs: squeue tells those that it wants."""
    names = [field.name for field in fields(one) if field.name != "gpus" or one.nodes]
    pairs = ((name, getattr(one, name), getattr(other, name)) for name in names)
    return [f"{one.id} {name}: {first!r}, {second!r}" for name, first, second in pairs if first != second]


def before_json_of_scontrol(client: CliClient) -> bool:
    return client.version() < (23, 0)


def by_id(client: CliClient) -> dict[int, LiveJob]:
    return {job.raw_id: job for job in client.jobs()}


def test_settings_version_controllers(client: CliClient) -> None:
    settings = client.settings()
    assert (settings.cluster, settings.slurm_user) == ("lab", "slurm")
    assert settings.accounting
    assert settings.stores_comments
    assert settings.tracks_gpus
    assert settings.version == client.version()
    (controller,) = client.controllers()
    assert (controller.role, controller.up) == ("primary", True)


def test_nodes_and_their_events(cluster: Cluster, client: CliClient) -> None:
    reason = "ECC errors | gpu 3, [x@y] 'q' State=DOWN é"
    before = {node.name: node for node in client.nodes()}
    assert list(before) == list(cluster.nodes)
    assert all(node.boot_time and node.boot_time > 1e9 for node in before.values())
    cluster.slurm("scontrol", "update", "nodename=n4", "state=drain", f"reason={reason}")
    cluster.slurm("scontrol", "update", "nodename=n4", "comment=c State=DOWN Reason=evil [root@1]")
    drained = next(node for node in client.nodes() if node.name == "n4")
    assert drained.state == before["n4"].state
    assert drained.flags == before["n4"].flags | {"DRAIN"}
    assert (drained.reason, drained.reason_by, drained.failed) == (reason, "root", False)
    cluster.slurm("scontrol", "update", "nodename=n4", "state=resume")
    since = (drained.reason_at or 0.0) - 1

    def told() -> bool:
        return any(event.node == "n4" and event.end is not None for event in client.node_events(since))

    assert wait_until(told, 20, every=0.2)
    event = next(event for event in client.node_events(since) if event.node == "n4")
    assert (event.state, event.reason, event.user) == ("DRAIN", reason, "root(0)")
    assert abs(event.start - (drained.reason_at or 0.0)) <= 1


def test_text_of_users_forges_nothing(client: CliClient, jobs: Jobs) -> None:
    job = live(client, jobs.hostile)
    assert (job.name, job.comment, job.state) == ("na me\nJobState=FAILED", HOSTILE, "RUNNING")
    assert len(job.nodes) == 1
    assert job.nodes[0] in ("n1", "n2", "n3", "n4")
    assert 99 not in {each.raw_id for each in client.jobs()}
    (record,) = client.accounting([jobs.hostile])
    assert (record.name, record.state, record.final) == ("na me\nJobState=FAILED", "RUNNING", False)


def test_a_comment_of_a_running_job_is_written_exactly(client: CliClient, jobs: Jobs) -> None:
    text = f"{HOSTILE} {USERS_OWN} \udcff [nccl-slurm: x]"
    client.write_live_comment(str(jobs.hostile), text)
    assert live(client, jobs.hostile).comment == text
    client.write_live_comment(str(jobs.hostile), "")
    assert live(client, jobs.hostile).comment == ""
    with pytest.raises(SlurmRefused, match="too long"):
        client.write_live_comment(str(jobs.hostile), "a" * 1025)
    client.write_live_comment(str(jobs.hostile), HOSTILE)


def test_an_array_with_one_failed_task(client: CliClient, jobs: Jobs) -> None:
    found = tasks(client, jobs.array)
    assert {job.id: (job.state, job.exit) for job in found.values()} == {
        f"{jobs.array}_1": ("COMPLETED", "0:0"),
        f"{jobs.array}_2": ("FAILED", "1:0"),
        f"{jobs.array}_3": ("COMPLETED", "0:0"),
    }
    raw_ids = {job.raw_id for job in found.values()}
    assert jobs.array in raw_ids  # the last task has the array's own id
    assert {job.raw_id for job in client.accounting([jobs.array])} == {jobs.array}
    shown = {job.id: job.array_task_id for job in client.jobs() if job.array_job_id == jobs.array}
    assert shown == {f"{jobs.array}_{task}": task for task in (1, 2, 3)}


def test_output_paths_are_those_that_exist(cluster: Cluster, client: CliClient, jobs: Jobs) -> None:
    paths = {job.stdout for job in client.jobs() if job.array_job_id == jobs.array}
    assert len(paths) == 3
    assert all(path and Path(path).exists() for path in paths)
    for raw_id in (jobs.own, jobs.het):
        path = live(client, raw_id).stdout
        assert path == str(cluster.home / f"slurm-{raw_id}.out")
        assert Path(path).exists()


def test_a_heterogeneous_job(client: CliClient, jobs: Jobs) -> None:
    leader, other = client.accounting([jobs.het, jobs.het + 1])
    assert (leader.id, other.id) == (f"{jobs.het}+0", f"{jobs.het}+1")
    assert (leader.state, leader.exit, other.state) == ("FAILED", "3:0", "FAILED")
    assert any(step.exit == 1 for step in other.steps)
    assert [job.het_offset for job in client.jobs() if job.het_job_id == jobs.het] == [0, 1]


def test_exclude_lists(cluster: Cluster, client: CliClient, jobs: Jobs) -> None:
    job = int(cluster.sbatch(SLEEP, "--exclude=n[2-3]", "--begin=now+1hour"))
    try:
        assert client.excluded() == {job: ("n2", "n3")}
    finally:
        cluster.slurm("scancel", str(job))


def test_a_failed_step_inside_a_completed_job(client: CliClient, jobs: Jobs) -> None:
    (job,) = client.accounting([jobs.steps])
    assert (job.state, job.exit, job.derived_exit, len(job.nodes), job.cluster) == ("COMPLETED", "0:0", "5:0", 2, "lab")
    steps = {step.id.partition(".")[2]: step for step in job.steps}
    assert (steps["0"].state, len(steps["0"].nodes)) == ("COMPLETED", 2)
    assert (steps["1"].state, steps["1"].exit, steps["1"].signal) == ("FAILED", 5, 0)
    assert "batch" in steps


def test_gpus(client: CliClient, jobs: Jobs) -> None:
    assert client.accounting([jobs.gpus])[0].gpus == 6
    assert live(client, jobs.gpus).gpus == 6
    assert client.accounting([jobs.own])[0].gpus == 0


def test_the_window(client: CliClient, jobs: Jobs) -> None:
    (record,) = client.accounting([jobs.own])
    end = record.end or 0.0
    assert record in client.accounting(since=end)
    assert wait_until(lambda: time.time() > end + 6, 15)  # sacct of 24.11 refuses a start that is still to come
    assert jobs.own not in {job.raw_id for job in client.accounting(since=end + 5)}
    assert jobs.own not in {job.raw_id for job in client.accounting(since=1.0, until=(record.submit or 0.0) - 5)}


def test_a_users_own_comment_is_read_exactly_and_would_not_survive(client: CliClient, jobs: Jobs) -> None:
    assert newest(client, jobs.own).comment == USERS_OWN
    assert client.write_accounted_comment([str(jobs.own)], USERS_OWN, "admincomment") == {jobs.own}
    state = newest(client, jobs.own)
    changed = "User`s Own `Tag` KEEP"
    assert state.admin_comment == (changed.lower() if client.lower_cases_text() else changed)
    assert state.comment == USERS_OWN


def test_hostile_text_comes_back_from_accounting(client: CliClient, jobs: Jobs) -> None:
    text = "; where jobid=1 set comment=evil\nx|y~z \\ $(id) %s \x1b[31m é"
    assert client.write_accounted_comment([str(jobs.gpus)], text) == {jobs.gpus}
    assert newest(client, jobs.gpus).comment == text
    assert newest(client, jobs.steps).comment == "plain"


def test_one_call_writes_one_text_to_many_jobs_and_to_no_other(client: CliClient, jobs: Jobs) -> None:
    one = tasks(client, jobs.array)[f"{jobs.array}_1"]
    ids = [one.id, f"{jobs.het}+1", str(jobs.steps), "999999"]
    hit = {one.raw_id, jobs.het + 1, jobs.steps}
    assert client.write_accounted_comment(ids, "same text") == hit
    every = [job.raw_id for job in tasks(client, jobs.array).values()]
    states = client.comments([*every, jobs.het, jobs.het + 1, jobs.steps, jobs.own, 999999])
    assert {raw_id for raw_id, state in states.items() if state.comment == "same text"} == hit
    assert 999999 not in states
    assert client.write_accounted_comment([f"{jobs.het}+0"], "leader") == {jobs.het}
    assert newest(client, jobs.het + 1).comment == "same text"
    assert client.write_accounted_comment(["999999"], "x") == frozenset()


def test_an_ended_job_takes_no_live_comment(client: CliClient, jobs: Jobs) -> None:
    with pytest.raises(SlurmRefused, match="already finished"):
        client.write_live_comment(str(jobs.own), "x")
    with pytest.raises(SlurmRefused, match="Invalid job id"):
        client.write_live_comment("999999", "x")


def test_batch_scripts(client: CliClient, jobs: Jobs) -> None:
    assert client.batch_script(str(jobs.hostile)) == SLEEP
    assert client.batch_script("999999") is None


def test_a_requeued_job(cluster: Cluster, client: CliClient, jobs: Jobs) -> None:
    """The comment of the first run stays with its record; no id reaches that any more."""

    def two_runs() -> bool:
        return len(client.accounting([jobs.requeued])) == 2

    assert wait_until(two_runs, 30, every=0.5)
    assert live(client, jobs.requeued).restarts == 1
    client.write_live_comment(str(jobs.requeued), "second run")
    cluster.wait_job(str(jobs.requeued), "RUNNING", timeout=60)
    cluster.slurm("scancel", str(jobs.requeued))
    settled(client, [jobs.requeued])
    first, second = client.accounting([jobs.requeued])
    assert (first.state, second.state, second.cancelled_by) == ("REQUEUED", "CANCELLED", "0")
    assert (first.end or 0.0) <= (second.start or 0.0)
    assert first.record != second.record
    assert newest(client, jobs.requeued).comment == "second run"
    assert client.write_accounted_comment([str(jobs.requeued)], "of the second") == {jobs.requeued}
    shown = cluster.sacct(str(jobs.requeued), "state,comment", duplicates=True)
    assert [row["comment"] for row in shown] == ["before", "of the second"]


def test_daemons_that_are_away(cluster: Cluster, client: CliClient, jobs: Jobs) -> None:
    def each(asked: Sequence[Callable[[], object]]) -> None:
        for ask in asked:
            with pytest.raises(SlurmUnreachable):
                ask()

    cluster.stop_slurmdbd()
    try:
        own = str(jobs.own)
        each([lambda: client.accounting([jobs.own]), lambda: client.write_accounted_comment([own], "x")])
        each([lambda: client.comments([jobs.own]), lambda: client.node_events(0.0)])
        assert client.nodes()
    finally:
        cluster.start_slurmdbd()
    hurried = type(client)(str(cluster.slurm_bin), str(cluster.conf), 1)  # Slurm's commands try for 10 to 20 s
    cluster.stop_slurmctld()
    try:
        each([client.nodes, hurried.jobs, hurried.settings, lambda: hurried.write_live_comment(own, "x")])
        (controller,) = client.controllers()
        assert not controller.up
    finally:
        cluster.start_slurmctld()
