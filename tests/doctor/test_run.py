"""A whole run from the command line: what is chosen, read, judged, told, and with which exit status."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nccl_slurm import schema
from nccl_slurm.cli import doctor as command
from nccl_slurm.doctor import registry, waves
from nccl_slurm.doctor.check import AREAS, ID, Area, Check, Finding, NotObserved
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.doctor.outputs import texts
from nccl_slurm.doctor.result import Looked
from nccl_slurm.doctor.result import Result as Outcome
from tests.doctor.slurm_stand_in import StandIn

STATES = {"n1": "IDLE", "n2": "IDLE", "n3": "ALLOCATED", "n4": "DOWN*"}


class Memory:
    """Fails on n2; on a node whose memory can't be read it says nothing."""

    id = "node.memory"
    title = "Memory"
    area: Area = "node"
    sources: Sequence[str] = ("memory",)
    explains: Sequence[str] = ("node.load",)

    def judge(self, observed: Observation) -> Iterable[Finding]:
        line = observed.text("memory").splitlines()[0]
        if observed.node == "n2":
            yield Finding(self.id, "FAIL", "too little \x1b[31m memory", "P0")
        else:
            yield Finding(self.id, "PASS", f"there is memory: {bool(line)}")


class Load:
    id = "node.load"
    title = "Load"
    area: Area = "node"
    sources: Sequence[str] = ("load",)
    explains: Sequence[str] = ()

    def judge(self, observed: Observation) -> Iterable[Finding]:
        if observed.node == "n1":
            raise ZeroDivisionError("a fault of ours")
        yield Finding(self.id, "WARN", "busy", "P2")


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Two checks of nodes beside the scheduler's own."""
    ours: dict[Area, list[Check[Any]]] = {"node": [Memory(), Load()], "scheduler": list(registry.checks("scheduler"))}
    monkeypatch.setattr(registry, "checks", lambda *areas: (one for area in areas for one in ours.get(area, ())))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(waves, "_SETTLE_S", 0.0)
    monkeypatch.setattr(waves, "_TICK_S", 0.02)
    return StandIn(tmp_path / "bin", STATES)


def doctor(slurm: StandIn, *words: str) -> Result:
    config = slurm.folder / "nccl-slurm.toml"
    config.write_text(f'[slurm]\nbin = "{slurm.folder}"\n[paths]\nstate = "{slurm.folder}/none"\n')
    return CliRunner().invoke(command.command, [*words, "--config", str(config)], catch_exceptions=False)


def told(slurm: StandIn, *words: str) -> dict[str, Any]:
    done = doctor(slurm, *words, "--json")
    return schema.loads(done.stdout.encode(), "doctor/1")


def of(result: dict[str, Any], check: str) -> list[tuple[str, tuple[str, ...], str | None]]:
    return [
        (one["status"], tuple(one["nodes"]), one["explained_by"]) for one in result["findings"] if one["check"] == check
    ]


def test_all_idle(slurm: StandIn) -> None:
    result = told(slurm, "--all-idle")
    assert result["nodes"]["ways"] == {"job": ["n1", "n2"]}
    assert of(result, "node.memory") == [("FAIL", ("n2",), None), ("PASS", ("n1",), None)]
    assert sorted(of(result, "node.load")) == [("UNKNOWN", ("n1",), None), ("WARN", ("n2",), "node.memory")]
    assert result["exit"] == 1


def test_nodes_that_are_not_idle_are_left_alone_and_said_to_be_unseen(slurm: StandIn) -> None:
    slurm.on("n3", "touch started")
    result = told(slurm, "--nodes", "n[1,3-4]")
    assert result["nodes"]["ways"] == {"job": ["n1"]}
    assert {one["node"] for one in result["nodes"]["silent"]} == {"n3", "n4"}
    assert sorted(of(result, "fleet.unreachable")) == [("UNKNOWN", ("n3",), None), ("UNKNOWN", ("n4",), None)]
    whys = {one["node"]: one["why"] for one in result["nodes"]["silent"]}
    assert whys["n3"].startswith("it is ALLOCATED: it has jobs") and "no SSH account" in whys["n3"]
    assert whys["n4"].startswith("it is DOWN+NOT_RESPONDING: Slurm starts nothing there")
    assert ("UNKNOWN", ("n3", "n4"), "fleet.unreachable") in of(result, "node.memory")
    assert not (slurm.folder / "started").exists()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo 'srun: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1", "UNKNOWN"),
        ("echo 'srun: error: Node failure on n2' >&2; exit 1", "FAIL"),
        ("echo rubbish; exit 0", "FAIL"),
        ("echo no Python 3.8 or newer in the usual places; exit 0", "UNKNOWN"),
        ("echo 'srun: error: Unable to create step for job 42: Job/step already completing' >&2; exit 1", "UNKNOWN"),
    ],
)
def test_a_node_that_does_not_answer(slurm: StandIn, script: str, status: str) -> None:
    slurm.on("n2", script)
    result = told(slurm, "--all-idle", "--only", "node")
    assert of(result, "fleet.unreachable") == [(status, ("n2",), None)]
    assert ("UNKNOWN", ("n2",), "fleet.unreachable") in of(result, "node.memory")
    assert ("PASS", ("n1",), None) in of(result, "node.memory")


def _drains(slurm: StandIn, node: str, reason: str) -> str:
    """As slurmctld does where slurmd tells of a failed prolog or epilog."""
    change = f"s/State=IDLE/State=IDLE+DRAIN/; s/$/ Reason={reason} [slurm@1789900000]/"
    return f"echo {node} >> {slurm.folder}/started; sed -i '/^NodeName={node} /{{{change}}}' {slurm.folder}/nodes"


def _all_drain(slurm: StandIn, count: int, reason: str, then: str = "") -> list[str]:
    """Nodes that a job's start drains, each."""
    names = [f"n{number}" for number in range(1, count + 1)]
    slurm.says("nodes", "".join(slurm.node(name, "IDLE") for name in names))
    for name in names:
        slurm.on(name, f"{_drains(slurm, name, reason)}; {then}")
    return names


@pytest.mark.parametrize("words", [["--all-idle"], ["--nodes", "n[1-12]"], ["--all-idle", "--sample", "6"]])
def test_a_broken_prolog_costs_one_node_and_is_said(slurm: StandIn, words: list[str]) -> None:
    _all_drain(slurm, 12, "Prolog error", "echo 'srun: error: Job credential revoked' >&2; exit 1")
    done = doctor(slurm, *words, "--only", "node,scheduler.node-state")
    (first,) = (slurm.folder / "started").read_text().splitlines()
    ending = "the look's own job ended in 'Prolog error', and Slurm drained it"
    assert f"fleet.unreachable {first}: gave no observation: {ending} (srun: error: Job credential" in done.stdout
    assert f": was not looked at: on {first} {ending}\n" in done.stdout
    assert f"P1 FAIL scheduler.node-state {first}: IDLE+DRAIN: drained by the job of this look: " in done.stdout
    assert f"scontrol update nodename={first} state=resume  # once that is mended" in done.stdout


@pytest.mark.parametrize("only", ["node", "node,scheduler.node-state"])
def test_a_broken_epilog_costs_one_node_and_is_said(slurm: StandIn, only: str) -> None:
    """Also where nobody asked for the states of nodes, which were sound before."""
    names = _all_drain(slurm, 4, "Epilog error")
    result = told(slurm, "--all-idle", "--only", only)
    ((first,),) = result["nodes"]["ways"].values()
    assert ("FAIL", (first,), None) in of(result, "scheduler.node-state")
    assert of(result, "fleet.unreachable") == [("UNKNOWN", tuple(name for name in names if name != first), None)]


def test_a_drain_of_before_is_not_by_this_look(slurm: StandIn) -> None:
    slurm.says("nodes", slurm.node("n1", "IDLE") + slurm.node("n2", "IDLE+DRAIN"))
    result = told(slurm, "--nodes", "n[1-2]")
    (found,) = [one for one in result["findings"] if one["check"] == "scheduler.node-state" and one["nodes"] == ["n2"]]
    assert "this look" not in found["text"] and not any("state=resume" in one for one in found["commands"])
    (why,) = [one["why"] for one in result["nodes"]["silent"]]
    assert why.startswith("it is IDLE+DRAIN: Slurm starts no job there")


@pytest.mark.parametrize("only", ["scheduler.node-state", "scheduler.slurm*,scheduler.controller"])
def test_nothing_is_started_for_checks_that_read_no_node(slurm: StandIn, only: str) -> None:
    for node in ("n1", "n2"):
        slurm.on(node, f"touch {slurm.folder}/started")
    result = told(slurm, "--all-idle", "--only", only)
    assert not (slurm.folder / "started").exists() and not of(result, "fleet.unreachable")
    assert result["nodes"]["silent"] == [] and result["exit"] == 0
    said = doctor(slurm, "--all-idle", "--only", only).stdout
    assert "No node was looked at (2 chosen): none of the checks reads anything there" in said


def test_reaching_nodes_is_a_check_like_others(slurm: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl_slurm.doctor.checks.fleet.reached import CHECKS

    monkeypatch.setattr(registry, "checks", lambda *areas: iter(CHECKS if "fleet" in areas else ()))
    result = told(slurm, "--nodes", "n[1-3]", "--only", "fleet.unreachable")
    assert set(of(result, "fleet.unreachable")) == {("PASS", ("n1", "n2"), None), ("UNKNOWN", ("n3",), None)}
    assert result["exit"] == 0


def test_nothing_answered_is_not_well(slurm: StandIn) -> None:
    for node in ("n1", "n2"):
        slurm.on(node, "echo 'srun: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1")
    assert doctor(slurm, "--all-idle", "--only", "node").exit_code == 3


def test_without_a_choice_slurm_alone_is_asked(slurm: StandIn) -> None:
    done = doctor(slurm)
    assert done.exit_code == 1  # n4 is down
    assert "No node was looked at" in done.stdout and "scheduler.node-state n4: DOWN" in done.stdout
    assert "node.memory" not in done.stdout


def test_what_hides_in_text_is_shown(slurm: StandIn) -> None:
    done = doctor(slurm, "--all-idle", "--only", "node.memory")
    assert "P0 FAIL node.memory n2: too little \\x1b[31m memory" in done.stdout


def test_severity_hides_less_and_changes_no_status(slurm: StandIn) -> None:
    done = doctor(slurm, "--all-idle", "--only", "node", "--severity", "P0")
    assert "node.memory n2" in done.stdout and done.exit_code == 1
    assert doctor(slurm, "--all-idle", "--only", "node.load", "--severity", "P0").exit_code == 0


def test_a_sample_says_what_it_is_of(slurm: StandIn) -> None:
    done = doctor(slurm, "--all-idle", "--sample", "1", "--only", "node")
    assert "1 of 1 nodes answered, a sample of 2: nothing is said of the others" in done.stdout


def test_only_and_skip(slurm: StandIn) -> None:
    assert told(slurm, "--only", "scheduler.c*", "--skip", "scheduler.cgroup-memory")["checks"] == [
        "scheduler.controller"
    ]
    assert told(slurm, "--nodes", "n1", "--only", "node", "--skip", "node.load")["checks"] == ["node.memory"]


@pytest.mark.parametrize(
    "words",
    [
        ["--job", "x"],
        ["--job", "1", "--nodes", "n1"],
        ["--nodes", "n1", "--all-idle"],
        ["--nodes", "n9"],
        ["--nodes", "n1;rm"],
        ["--local", "--sample", "2"],
        ["--only", "node.no-such"],
        ["--only", ","],
        ["--since", "yesterday"],
        ["--since", "2130-01-01T00:00:00Z"],
        ["--limit", "inf"],
        ["--limit", "nan"],
        ["--limit", "0"],
        ["--cluster", "dev_cluster"],
        ["--cluster", "arn:aws:sagemaker:us-west-2:1:cluster/x"],
        ["--region", "us_east_1"],
        ["--cluster", "arn:aws:sagemaker:us-west-2:123456789012:cluster/abc", "--region", "eu-west-1"],
        ["--compare", "/no/such/file"],
        ["--explain", "node.no-such"],
        ["--severity", "P9"],
    ],
)
def test_usage(slurm: StandIn, words: list[str]) -> None:
    assert doctor(slurm, *words).exit_code == 2


def test_slurm_that_does_not_answer(slurm: StandIn) -> None:
    for name in ("nodes", "config", "queue", "slurmdbd", "partitions"):
        (slurm.folder / name).unlink()
    assert doctor(slurm, "--all-idle", "--only", "node").exit_code == 3  # nothing is left to look at
    skip = ("--skip", "scheduler.munge")  # it works on this host or not
    for words in (("--all-idle",), ("--job", "7"), ("--nodes", "n[1-2]")):
        done = doctor(slurm, *words, *skip)
        assert done.exit_code == 3 and "Not covered: nodes and job as Slurm knows them" in done.stdout, words
    slurm.says("ping", "Slurmctld(primary) at c1 is DOWN\n")
    for chosen in ([], ["--all-idle"], ["--job", "7"], ["--nodes", "n[1-2]"]):
        done = doctor(slurm, *chosen, *skip)
        assert done.exit_code == 1 and "P0 FAIL scheduler.controller no slurmctld answers" in done.stdout, chosen
        assert "ssh c1 sudo journalctl -u slurmctld" in done.stdout
    assert "n[1-2]: was not looked at: it is not known to be idle" in done.stdout
    assert doctor(slurm, "--nodes", "n[1-").exit_code == 2


def test_nodes_are_visited_by_ssh_while_slurm_is_away(slurm: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    (slurm.folder / "nodes").unlink()
    visited: dict[str, str] = {}

    class Visit:
        name = "ssh"

        def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
            visited[node] = "ssh"
            done = subprocess.run([sys.executable, "-I", "-S", "-"], input=program, capture_output=True, check=True)
            return done.stdout

    monkeypatch.setattr("nccl_slurm.doctor.ways.Ways._ssh", lambda self, job, known: [Visit()])
    result = told(slurm, "--nodes", "n[1-2]")
    assert sorted(visited) == ["n1", "n2"] and result["nodes"]["ways"] == {"ssh": ["n1", "n2"]}
    assert ("UNKNOWN", (), None) in of(result, "scheduler.node-state")


@pytest.mark.parametrize("text", ["", "garbage\n"])
@pytest.mark.parametrize("what", ["ping", "config", "nodes", "partitions", "queue", "slurmdbd"])
def test_an_empty_answer_of_slurm_is_no_fault_of_ours(slurm: StandIn, what: str, text: str) -> None:
    slurm.says(what, text)
    result = told(slurm)
    assert result["exit"] in (0, 1)
    if what == "config":
        assert ("UNKNOWN", (), None) in of(result, "scheduler.hooks")


def test_a_pipe_is_not_compared_with(slurm: StandIn, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in doctor(slurm, "--compare", str(tmp_path / "pipe")).output


def test_files_without_a_size_are_not_read(tmp_path: Path) -> None:
    """Those of /proc are endless, some of them."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "n1.txt").write_text("# nThread 1\n")
    assert list(texts([str(tmp_path)], "--bandwidth")) == [str(tmp_path / "n1.txt")]


@pytest.mark.parametrize("closed", [(1,), (0, 1), (1, 2)])
def test_with_closed_outputs(closed: Sequence[int]) -> None:
    program = "from nccl_slurm.cli.main import main; main(['doctor', '--list'])"
    shut = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -c "$1" {shut}', sys.executable, program],
        env={"PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--only", "node.memory"],
            "--only node.memory: looks at nodes: give --nodes, --all-idle or --job, or --local",
        ),
        (["--only", "node"], "--only node: looks at nodes"),
        (["--only", "fleet"], "--only fleet: looks at nodes: give --nodes, --all-idle or --job"),
        (["--only", "job", "--nodes", "n1"], "--only job: looks at a job: give --job ID"),
        (["--only", "aws", "--no-aws"], "--only aws: asks AWS: it goes without --no-aws"),
        (["--local", "--only", "scheduler.hooks"], "--only scheduler.hooks: is not made with --local"),
        (["--only", "node.nothing"], "--only node.nothing: is no check"),
        (["--skip", "node.nothing"], "--skip node.nothing: is no check"),
        (["--skip", "scheduler,aws"], "no check is left"),
    ],
)
def test_checks_that_cannot_be_made_here_are_refused(slurm: StandIn, words: list[str], said: str) -> None:
    done = doctor(slurm, *words)
    assert done.exit_code == 2 and said in done.output


def test_a_check_that_is_not_made_anyway_may_be_skipped(slurm: StandIn) -> None:
    assert told(slurm, "--only", "scheduler.munge,scheduler.controller", "--skip", "node.memory")["checks"] == [
        "scheduler.controller",
        "scheduler.munge",
    ]


def test_compare(slurm: StandIn, tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(doctor(slurm, "--all-idle", "--only", "node", "--json").stdout)
    slurm.says("nodes", (slurm.folder / "nodes").read_text().replace("NodeName=n2", "NodeName=n5"))
    done = doctor(slurm, "--all-idle", "--only", "node", "--compare", str(before))
    assert "unseen   node.memory n2: FAIL P0 -> -" in done.stdout
    assert told(slurm, "--nodes", "n1", "--only", "node", "--compare", str(before))["changes"]


def test_list_and_explain(slurm: StandIn) -> None:
    done = doctor(slurm, "--list")
    assert done.exit_code == 0 and "scheduler.controller" in done.stdout and "node.memory" in done.stdout
    assert "explains, where it fails: node.load" in doctor(slurm, "--explain", "node.memory").stdout


def test_local_needs_neither_slurm_nor_a_configuration(tmp_path: Path) -> None:
    """As a user on a node: no scontrol in sight, no nccl-slurm.toml."""
    program = "from nccl_slurm.cli.main import main; main(['doctor', '--local', '--json'])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": "/nowhere", "PYTHONPATH": str(Path(__file__).parents[2]), "NCCL_SLURM_CONFIG": "/no/such"},
        capture_output=True,
        text=True,
    )
    result = schema.loads(done.stdout.encode(), "doctor/1")
    assert done.returncode == result["exit"], done.stderr
    assert list(result["nodes"]["ways"]) == ["local"]
    assert not [one for one in result["findings"] if one["check"].startswith(("scheduler.", "aws."))]


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_progress_is_for_a_terminal_on_standard_error_alone(words: list[str]) -> None:
    program = f"from nccl_slurm.cli.main import main; main({['doctor', '--local', *words]!r})"
    ours, theirs = os.openpty()
    env = {"PATH": "/nowhere", "TERM": "xterm", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=env, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.set_blocking(ours, False)
    shown = b""
    with suppress(OSError):
        shown = os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
    assert (b"nodes" in shown) == (not words)
    assert done.stdout.startswith("{" if words else "nccl-slurm doctor:")


@pytest.mark.parametrize(
    ("findings", "looked", "status"),
    [
        ([Finding("node.a", "PASS", "x")], Looked(), 0),
        ([Finding("node.a", "WARN", "x", "P2")], Looked(), 0),
        ([Finding("node.a", "WARN", "x", "P1")], Looked(), 1),
        ([Finding("node.a", "FAIL", "x", "P0", explained_by="node.b")], Looked(), 1),
        ([Finding("node.a", "UNKNOWN", "x")], Looked(), 3),
        ([], Looked(), 3),
        ([Finding("node.a", "NOT-APPLICABLE", "x")], Looked(), 0),
        ([Finding("node.a", "NOT-APPLICABLE", "x"), Finding("node.b", "UNKNOWN", "x")], Looked(), 3),
        ([Finding("node.a", "NOT-APPLICABLE", "x")], Looked(["n1"], silent={"n1": "no"}), 3),
        ([Finding("scheduler.a", "PASS", "x")], Looked(["n1"], silent={"n1": "no"}), 3),
        ([Finding("fleet.unreachable", "FAIL", "x", "P1")], Looked(["n1"], silent={"n1": "no"}), 3),
        ([Finding("fleet.unreachable", "FAIL", "x", "P1")], Looked(["n1", "n2"], ways={"ssh": ["n1"]}), 1),
        ([Finding("scheduler.a", "FAIL", "x", "P0")], Looked(["n1"], silent={"n1": "no"}), 1),
        ([Finding("scheduler.a", "PASS", "x")], Looked(["n1"], ways={"ssh": ["n1"]}), 0),
    ],
)
def test_exit_status(findings: list[Finding], looked: Looked, status: int) -> None:
    assert Outcome(0.0, 1.0, findings, {}, looked=looked).status == status


def test_every_check_of_the_registry_keeps_the_shape() -> None:
    every = list(registry.checks(*AREAS))
    ids = [check.id for check in every]
    assert len(set(ids)) == len(ids)
    for check in every:
        assert ID.fullmatch(check.id) and check.id.startswith(f"{check.area}.") and check.title
        assert set(check.explains) <= set(ids), check.id


def test_sources_that_checks_name_are_there() -> None:
    from nccl_slurm.doctor.sources import SOURCES

    for check in registry.checks("scheduler", "node", "job", "fleet"):
        assert set(check.sources) <= set(SOURCES), check.id


def test_an_observation_that_lacks_everything_is_never_well() -> None:
    """Each check of a node on a node that told nothing: never PASS."""
    from nccl_slurm.doctor.check import judged

    for check in registry.checks("node"):
        for one in judged(check, Observation("n1", {})):
            assert one.status != "PASS", check.id
    assert issubclass(NotObserved, Exception)
