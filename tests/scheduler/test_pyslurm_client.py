"""pyslurm in its own process: what it answers, each way to lose it (by real processes), and that nothing is lost."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.errors import SlurmRefused, SlurmUnreachable
from nccl_slurm.scheduler import pyslurm_client
from nccl_slurm.scheduler.cli_client import Answer
from nccl_slurm.scheduler.client import SchedulerClient
from nccl_slurm.scheduler.pyslurm_client import CHILD, PyslurmClient
from tests.scheduler.test_cli_client import CONFIG, Rule, Slurm, ok, squeue
from tests.scheduler.test_text import node

HERE = Path(__file__).parent
STAND_IN = "import runpy, sys; sys.path.insert(0, sys.argv[1]); runpy.run_path(sys.argv[2], run_name='__main__')"
GOOD = (sys.executable, "-I", "-c", STAND_IN, str(HERE / "stand_in"), CHILD[-1])
CONFIG_25 = f"SLURM_VERSION = 25.11.7\n{CONFIG}"
Make = Callable[..., tuple[PyslurmClient, Slurm]]


def scontrol(config: str) -> Rule:
    """``nodes`` has one that pyslurm's stand-in does not have."""
    return lambda argv: ok(config if argv[-1] == "config" else node().replace("NodeName=n1", "NodeName=by-command"))


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[PyslurmClient] = []

    def _make(command: Sequence[str], config: str = CONFIG_25, timeout_s: float = 60.0, **kwargs: Any) -> Any:
        slurm = Slurm(scontrol=scontrol(config), squeue=squeue, sacctmgr=ok("  7 submitted at x\n"), sacct=ok(""))
        made.append(PyslurmClient("/slurm/bin", "", timeout_s, run=slurm, command=command, **kwargs))
        return made[-1], slurm

    yield _make
    for client in made:
        client.close()


def bad(how: str, version: str = "25.11.2") -> tuple[str, ...]:
    return (sys.executable, "-I", str(HERE / "bad_child.py"), version, how)


def commands(slurm: Slurm) -> list[str]:
    return [" ".join([argv[0].rsplit("/", 1)[1], *argv[1:3]]) for argv in slurm.ran]


def test_nodes(make: Make) -> None:
    client, slurm = make(GOOD)
    as_protocol: SchedulerClient = client
    assert as_protocol.backend == "commands"
    (found,) = as_protocol.nodes()
    assert (found.name, found.state, found.flags) == ("n1", "IDLE", frozenset({"DRAIN"}))
    assert (found.reason, found.reason_by, found.reason_at) == ("nccl-slurm: xid 79", "root", 1795968364.0)
    assert (found.boot_time, found.slurmd_start) == (1795967390.0, 1795968200.0)
    assert (found.version, found.gpus) == ("25.11.7", 8)
    assert client.backend == "pyslurm"
    assert commands(slurm) == ["scontrol show config"]


def test_jobs(make: Make) -> None:
    client, slurm = make(GOOD)
    plain, task = client.jobs()
    assert (plain.raw_id, plain.id, plain.state, plain.nodes) == (7, "7", "RUNNING", ("n1", "n2"))
    assert (plain.stdout, plain.stderr) == ("/home/alice/slurm-7.out", "/home/alice/slurm-7.out")
    assert (plain.comment, plain.end, plain.exit, plain.gpus) == ("a\nb \udcff", None, "0:0", 8)
    assert (task.id, task.array_job_id, task.array_task_id, task.gpus) == ("9_0", 9, 0, None)
    assert "squeue" not in " ".join(commands(slurm))


def test_comments_are_read_and_written(make: Make) -> None:
    client, slurm = make(GOOD)
    assert client.write_accounted_comment(["7", "99"], "it's 'text'") == {7}
    assert client.write_accounted_comment(["8"], "for admins", "admincomment") == {8}
    states = client.comments([7, 8, 99])
    assert set(states) == {7, 8}
    assert (states[7].comment, states[7].admin_comment, states[7].final, states[7].ran) == (
        "it's 'text'",
        "",
        True,
        True,
    )
    assert (states[8].comment, states[8].admin_comment) == ("", "for admins")
    assert commands(slurm) == ["scontrol show config"]


def test_no_job_is_never_all_jobs(make: Make) -> None:
    client, _ = make(GOOD)
    assert client.write_accounted_comment([], "x") == frozenset()
    assert client.comments([]) == {}
    assert client.comments([7])[7].comment == "before"


@pytest.mark.parametrize(
    ("ids", "text"), [(["9_1"], "x"), (["9+0"], "x"), (["7"], ""), (["7"], "a\nb"), (["7"], "\udcff")]
)
def test_what_pyslurm_can_not_write_is_written_by_command(make: Make, ids: list[str], text: str) -> None:
    client, slurm = make(GOOD)
    assert client.write_accounted_comment(ids, text) == {7}
    assert commands(slurm) == ["sacctmgr -i modify"]


def test_what_pyslurm_can_not_do_is_asked_by_command(make: Make) -> None:
    client, slurm = make(GOOD)
    client.nodes()
    client.node_events(0.0)
    client.accounting([])
    client.write_live_comment("7", "")
    assert commands(slurm)[1:] == ["sacctmgr -n -P"] * 2 + ["scontrol update jobid=7"]


BAD = [
    ("no-config", "ended with status 1: libslurm: fatal: Unable to process configuration file"),
    ("exit", "ended with status 1"),
    ("crash", "was ended by signal 11"),
    ("garbage", "answered what is no JSON object"),
    ("list", "answered what is no JSON object"),
    ("half", "answered what is no JSON object"),
    ("two", "answered what is no JSON object"),
    ("empty", "its answer says nothing"),
    ("odd-rows", "its rows are of an unknown form (KeyError: 'state')"),
    ("no-rows", "its rows are of an unknown form (TypeError: 'int' object is not iterable)"),
    ("failed", "AttributeError: no such thing"),
]


@pytest.mark.parametrize(("how", "why"), BAD)
def test_a_lost_child_costs_one_line_and_no_answer(
    make: Make, caplog: pytest.LogCaptureFixture, how: str, why: str
) -> None:
    clock = Time()
    client, slurm = make(bad(how), monotonic=clock)
    with caplog.at_level(logging.INFO, pyslurm_client.__name__):
        for _ in range(3):
            assert [found.name for found in client.nodes()] == ["by-command"]
    assert client.backend == "commands"
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [f"pyslurm: {why}; Slurm's commands are asked, pyslurm again in 300 s"]
    assert commands(slurm).count("scontrol show config") == 1


@pytest.mark.parametrize("how", ["silent", "hang"])
def test_a_child_that_does_not_answer_is_killed(make: Make, caplog: pytest.LogCaptureFixture, how: str) -> None:
    client, _ = make(bad(how), timeout_s=2.0)
    assert [found.name for found in client.nodes()] == ["by-command"]
    # a machine that can't start Python within the limit has shown the same
    assert "did not answer within 2 s" in caplog.text
    assert client.backend == "commands"


def test_it_is_asked_again_later(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    client, slurm = make(bad("exit"), monotonic=clock)
    for _ in range(2):
        client.nodes()
    clock.now = 301.0
    client.nodes()
    assert commands(slurm).count("scontrol show config") == 2
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 2  # it had come up in between


def test_the_same_reason_is_told_once(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    client, _ = make(bad("no-config"), monotonic=clock)
    for at in (0.0, 301.0, 602.0):
        clock.now = at
        client.nodes()
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


def _write(client: PyslurmClient) -> object:
    return client.write_accounted_comment(["7"], "x")


def _comments(client: PyslurmClient) -> object:
    return client.comments([7])


@pytest.mark.parametrize(
    ("ask", "command"), [(PyslurmClient.jobs, "squeue"), (_comments, "sacct"), (_write, "sacctmgr")]
)
def test_a_lost_child_loses_no_answer(make: Make, ask: Callable[[PyslurmClient], object], command: str) -> None:
    client, slurm = make(bad("crash"))
    ask(client)
    assert command in {line.split()[0] for line in commands(slurm)}


@pytest.mark.parametrize("version", ["24.11.0", "25.5.0", "26.5.0", "none"])
def test_a_pyslurm_of_another_release_is_not_used(make: Make, caplog: pytest.LogCaptureFixture, version: str) -> None:
    client, _ = make(bad("hang", version))
    assert [found.name for found in client.nodes()] == ["by-command"]
    assert "slurmctld is 25.11; Slurm's commands are asked" in caplog.text


def test_an_old_release_is_written_without_its_zero(make: Make) -> None:
    client, _ = make(bad("no", "22.5.3"), CONFIG_25.replace("25.11.7", "22.05.8"))
    client.nodes()
    assert client.backend == "pyslurm"


def test_a_slurmctld_that_was_upgraded(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    client, slurm = make(GOOD)
    client.nodes()
    slurm.rules["scontrol"] = scontrol(CONFIG_25.replace("25.11.7", "26.05.5"))
    assert client.settings().version == (26, 5)
    assert [found.name for found in client.nodes()] == ["by-command"]
    assert "made for Slurm 25.11, slurmctld is 26.05" in caplog.text


def test_a_slurmctld_that_is_away_is_not_waited_for_twice(make: Make) -> None:
    client, slurm = make(bad("away"))
    with pytest.raises(SlurmUnreachable, match="Unable to contact slurm controller"):
        client.nodes()
    assert commands(slurm) == ["scontrol show config"]
    assert client.backend == "pyslurm"


def test_a_refusal_is_left_to_the_command(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    client, slurm = make(bad("no"))
    slurm.rules["sacctmgr"] = Answer(1, "", " Access/permission denied")
    with pytest.raises(SlurmRefused, match="permission denied"):
        client.write_accounted_comment(["7"], "x")
    assert client.backend == "pyslurm"
    assert not caplog.records


def test_slurm_that_is_away_at_the_start(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    client, slurm = make(GOOD, monotonic=clock)
    slurm.rules["scontrol"] = Answer(1, "", "Unable to contact slurm controller (connect failure)")
    with pytest.raises(SlurmUnreachable):
        client.nodes()
    slurm.rules["scontrol"] = scontrol(CONFIG_25)
    clock.now = 31.0
    assert [found.name for found in client.nodes()] == ["n1"]
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


def test_a_command_that_is_not_there(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    client, _ = make(["/nowhere/python"])
    assert [found.name for found in client.nodes()] == ["by-command"]
    assert "No such file or directory: '/nowhere/python'" in caplog.text


def test_without_pyslurm_the_child_says_so(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    if pyslurm_client.is_installed():
        pytest.skip("pyslurm is installed here")
    client, _ = make(CHILD)
    assert [found.name for found in client.nodes()] == ["by-command"]
    assert "pyslurm can't be imported: No module named 'pyslurm'" in caplog.text
