"""From the command line: nodes that stand in for machines, read by the real gather, beside output of nccl-tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nccl_slurm import schema
from nccl_slurm.cli import doctor as command
from nccl_slurm.doctor.registry import checks
from tests.doctor.machines import Machine, of
from tests.doctor.slurm_stand_in import StandIn
from tests.doctor.test_fleet import output, version
from tests.doctor.test_node_kernel import xid

#: Sizes of file systems are those of the disk that the test is on.
SKIP = "node.disk,node.shm,node.nofile,scheduler"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.delenv("SLURM_CONF", raising=False)
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    return StandIn(tmp_path / "bin", dict.fromkeys(("n1", "n2", "n3", "n4"), "IDLE"))


def doctor(slurm: StandIn, *words: str, settings: str = "") -> Result:
    config = slurm.folder / "nccl-slurm.toml"
    config.write_text(f'[slurm]\nbin = "{slurm.folder}"\n[paths]\nstate = "{slurm.folder}/none"\n{settings}')
    return CliRunner().invoke(command.command, [*words, "--config", str(config)], catch_exceptions=False)


def fell_off(machine: Machine) -> None:
    del machine.gpus[5]
    machine.kernel(xid(79, "GPU has fallen off the bus."))


def half(machine: Machine) -> None:
    for number in range(16, 32):
        machine.without(f"/sys/class/infiniband/rdmap{16 + number}s0/")


CHANGES: dict[str, Callable[[Machine], object]] = {"n2": fell_off, "n3": half, "n4": version("535.161.08")}


def look(slurm: StandIn, root: Path, changes: dict[str, Callable[[Machine], object]], *words: str) -> dict[str, Any]:
    keys = {key for one in checks("node", "fleet") for key in one.sources}
    for name in ("n1", "n2", "n3", "n4"):
        machine = of("p5").process(77, "slurmd", limits="")
        if name in changes:
            changes[name](machine)
        machine.write(root / name, keys)
    trees = ["--sysroot", f"{root}/%n/root", "--commands", f"{root}/%n/bin"]
    done = doctor(slurm, "--nodes", "n[1-4]", "--skip", SKIP, *trees, "--no-aws", *words, "--json")
    assert done.stdout, done.output
    return schema.loads(done.stdout.encode(), "doctor/1")


def test_what_is_wrong_is_told_of_its_node_alone(slurm: StandIn, tmp_path: Path) -> None:
    result = look(slurm, tmp_path, CHANGES)
    wrong = [one for one in result["findings"] if one["status"] == "FAIL"]
    told = {(one["check"], tuple(one["nodes"]), one["explained_by"]) for one in wrong}
    assert ("node.xid", ("n2",), None) in told
    assert ("node.gpu-count", ("n2",), "node.xid") in told
    assert ("node.efa-cards", ("n3",), None) in told
    odd = [one for one in result["findings"] if one["check"] == "fleet.versions" and one["status"] == "WARN"]
    assert [one["nodes"] for one in odd] == [["n4"]]
    assert {node for one in wrong for node in one["nodes"]} <= {"n2", "n3", "n4"}
    assert result["exit"] == 1


def test_every_node_is_looked_at(slurm: StandIn, tmp_path: Path) -> None:
    """W1, W2: not a sample, and all at the same time."""
    result = look(slurm, tmp_path, {})
    assert result["nodes"]["ways"] == {"job": ["n1", "n2", "n3", "n4"]} and result["nodes"]["of"] is None


def test_bandwidth_needs_no_node(slurm: StandIn, tmp_path: Path) -> None:
    folder = tmp_path / "now"
    folder.mkdir()
    for name, figure in {"n1": 440.0, "n2": 441.0, "n3": 439.0, "n4": 200.0}.items():
        (folder / f"{name}.txt").write_text(output(figure, name))
    (folder / ".hidden").write_text("x")
    done = doctor(slurm, "--bandwidth", str(folder), "--only", "fleet.bandwidth", "--json")
    result = schema.loads(done.stdout.encode(), "doctor/1")
    assert [one["nodes"] for one in result["findings"] if one["status"] == "FAIL"] == [["n4"]]
    assert done.exit_code == 1


def test_a_file_that_is_not_there_is_a_slip(slurm: StandIn, tmp_path: Path) -> None:
    done = doctor(slurm, "--bandwidth", str(tmp_path / "none"))
    assert done.exit_code == 2 and "no such file" in done.output


def with_gpus(slurm: StandIn, **gres: str) -> None:
    """8 on each node but those that are named."""
    told = (slurm.folder / "nodes").read_text()
    for node in ("n1", "n2", "n3", "n4"):
        told = told.replace(
            f"NodeName={node} Arch=x86_64 Gres=(null)", f"NodeName={node} Gres={gres.get(node, 'gpu:8')}"
        )
    slurm.says("nodes", told)


def test_a_sweep_leaves_out_where_nothing_can_run(slurm: StandIn) -> None:
    with_gpus(slurm, n1="(null)", n2="gpu:1g.10gb:56", n3="gpu:h100:4(S:0-1)")
    slurm.says(
        "nodes", (slurm.folder / "nodes").read_text() + slurm.node("n5", "DOWN*") + slurm.node("n6", "IDLE+DRAIN")
    )
    done = doctor(slurm, "--nodes", "n[1-6]", "--sweep", "alone")
    commands = [line for line in done.stdout.splitlines() if line.startswith("srun ")]
    assert len(commands) == 2 and "--gpus-per-node=4 " in commands[0] and "--nodelist=n4 " in commands[1]
    left = [line for line in done.stdout.splitlines() if line.startswith("# left out: ")]
    assert [line.split()[3] for line in left] == ["n1:", "n2:", "n5:", "n6:"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--sweep", "pairs", "--nodes", "n9"], 2, "Slurm has no node n9"),
        (["--sweep", "pairs", "--nodes", "n[1-"], 2, "--nodes"),
        (["--sweep", "pairs", "--job", "55"], 3, "job 55"),
        (["--sweep", "pairs", "--nodes", "n1"], 2, "1 of 1 nodes can be measured; name others, or"),
        (["--sweep", "halving", "--nodes", "n1"], 2, "1 of 1 nodes can be measured"),
        (["--sweep", "alone", "--nodes", "n2"], 2, "Slurm counts no GPU there"),
        (["--sweep", "alone", "--nodes", "n1", "--json"], 2, "goes without --json"),
        (["--sweep", "alone", "--nodes", "n1"], 0, "--gpus-per-node=8"),
    ],
)
def test_errors_of_a_sweep_end_as_those_of_a_look(words: list[str], status: int, said: str, slurm: StandIn) -> None:
    with_gpus(slurm, n2="(null)")
    done = doctor(slurm, *words)
    assert done.exit_code == status and said in done.output


def test_a_sweep_without_slurm_could_not_look(slurm: StandIn) -> None:
    (slurm.folder / "scontrol").unlink()
    (slurm.folder / "scontrol").write_text("#!/bin/sh\nexit 1\n")
    (slurm.folder / "scontrol").chmod(0o755)
    assert doctor(slurm, "--nodes", "n1", "--sweep", "alone").exit_code == 3


@pytest.mark.parametrize(("way", "commands"), [("alone", 4), ("pairs", 6), ("halving", 3)])
def test_sweeps_are_printed_and_nothing_runs(way: str, commands: int, slurm: StandIn) -> None:
    with_gpus(slurm)
    for node in ("n1", "n2", "n3", "n4"):
        slurm.on(node, f"touch {slurm.folder}/started")
    done = doctor(slurm, "--all-idle", "--sweep", way)
    lines = [line for line in done.stdout.splitlines() if line.startswith("srun ")]
    assert len(lines) == commands and "run these yourself" in done.stdout
    assert done.exit_code == 0 and not (slurm.folder / "started").exists()


@pytest.mark.parametrize("words", [["--local", "--bandwidth", "/"], ["--bandwidth-before", "/"]])
def test_bandwidth_is_of_several_nodes(words: list[str], slurm: StandIn) -> None:
    assert doctor(slurm, *words).exit_code == 2


def test_a_sweep_of_no_nodes_is_usage(slurm: StandIn) -> None:
    assert doctor(slurm, "--sweep", "pairs").exit_code == 2


@pytest.mark.parametrize(
    ("more", "hyperpod", "settings", "expected"),
    [
        ("RebootProgram = /sbin/reboot\n", False, "", "scontrol reboot ASAP nextstate=RESUME"),
        ("RebootProgram = (null)\n", False, "", 'state=drain reason="nccl-slurm: node.ecc, reboot"'),
        ("RebootProgram = (null)\n", True, "", 'sudo scontrol update node=n1 state=fail reason="Action:Reboot"'),
        ("RebootProgram = /sbin/reboot\n", True, "", 'reason="Action:Reboot"'),
        ("RebootProgram = /sbin/reboot\n", True, '[site]\nkind = "slurm"\n', "scontrol reboot ASAP"),
        ("", False, '[site]\naws_cluster = "ml-1"\n', 'reason="Action:Reboot"'),
    ],
)
def test_a_reboot_as_the_site_makes_it(
    slurm: StandIn, tmp_path: Path, more: str, hyperpod: bool, settings: str, expected: str
) -> None:
    ecc = next(one for one in checks("node") if one.id == "node.ecc")
    config = (slurm.folder / "config").read_text().replace("= c1\n", "= c1(10.0.0.1)\n").replace("dbd\n", "none\n")
    slurm.says("config", config + more)
    slurm.says("nodes", (slurm.folder / "nodes").read_text().replace("NodeAddr=n1", "NodeAddr=10.0.0.5"))
    of("p5").gpu(3, volatile="7").write(tmp_path / "n1", set(ecc.sources))
    if hyperpod:
        (tmp_path / "n1/root/opt/sagemaker_cluster").mkdir(parents=True)
    trees = ["--sysroot", f"{tmp_path}/%n/root", "--commands", f"{tmp_path}/%n/bin"]
    done = doctor(slurm, "--nodes", "n1", "--only", "node.ecc", "--no-aws", "--json", *trees, settings=settings)
    (one,) = [one for one in json.loads(done.stdout)["findings"] if one["status"] == "FAIL"]
    last = [line for line in one["commands"] if "state=" in line or line.startswith("scontrol reboot")]
    assert len(last) == 1 and expected in last[0]
