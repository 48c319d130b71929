"""``nccl-slurm nodes`` on a real store: the machine's history, old machines of the name, hostile text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.main import main as nccl_slurm
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import NodeEventRow, RunRow
from nccl_slurm.history.store import Store

BASE = 1_700_000_000.0


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """n1 had machine i-1 with a lost GPU, and has i-2, which was rebooted; n2 is known by its name alone."""
    (tmp_path / "site.toml").write_text(f'[paths]\nstate = "{tmp_path}"\n')
    monkeypatch.setenv("NCCL_SLURM_CONFIG", str(tmp_path / "site.toml"))
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.name_machines(["n1", "n2"], BASE)
        store.identify(store.machines_now()["n1"].number, "i-1", "board_asset_tag")
        xid = MachineEvent(
            BASE + 60,
            "fault",
            "kernel.xid",
            "kernel",
            "GPU has \x1b[31mfallen off the bus.",
            "gpu-hw-lost",
            data={"gpu": "0000:a1:00", "xid": 79, "count": 3},
        )
        store.add_events_of_node("n1", BASE + 60, [xid])
        store.add_node_events([NodeEventRow("n1", BASE + 70, "DOWN", "Action:Replace", "root")])
        store.hand_over("n1", "i-2", "board_asset_tag", BASE + 600, replaced=True)
        store.add_node_events(
            [
                NodeEventRow("n1", BASE + 605, "UP"),
                NodeEventRow("n1", BASE + 700, "UP+DRAIN", "NHC: check_hw_mcelog: \u202ex", "alice"),
            ]
        )
        boot = MachineEvent(BASE + 900, "boot", "asked", "poll", data={"by": "root", "reason": "Action:Reboot"})
        store.add_events_of_node("n1", BASE + 900, [boot])
        run = RunRow("c", 7, 1, "7", nodes=("n1",), start=BASE + 650, end=BASE + 660, state="FAILED", status="final")
        store.upsert_run(run)
        outcome = {"job": "7", "run": 1, "nodes": 1, "named": True, "class": "gpu-hw-lost"}
        store.set_outcomes({"n1": MachineEvent(BASE + 660, "job", "failed", "daemon", data=outcome)}, run.start)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    nccl_slurm(["nodes", *arguments])
    return capsys.readouterr().out


def value(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(told(capsys, *arguments, "--json"))


def test_the_machine_of_now(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = value(capsys, "n1")
    assert (found["identity"], found["since"], found["counts"]) == (
        "i-2",
        "2023-11-14T22:23:20.000Z",
        {"well": 0, "failed": 1, "named": 1},
    )
    assert [(one["kind"], one["name"]) for one in found["events"]] == [
        ("replaced", "came"),
        ("state", "UP"),
        ("state", "UP+DRAIN"),
        ("boot", "asked"),
    ]
    assert [one["identity"] for one in found["machines"]] == ["i-1", "i-2"] and found["jobs"][0]["job"] == "7"
    text = told(capsys, "n1")
    for words in (
        "machine   i-2, unknown, n1 since 2023-11-14T22:23:20.000Z",
        "runs      0 well, 1 failed, 1 of them with this node named",
        "earlier   i-1 from 2023-11-14T22:13:20.000Z to 2023-11-14T22:23:20.000Z",
        "NHC: check_hw_mcelog: \\u202ex [alice; nhc, hardware]",
        "by root: Action:Reboot",
        "came from i-1",
    ):
        assert words in text
    assert "fallen" not in text


def test_the_machine_that_it_was(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "n1", "--machine", "i-1")
    assert "Xid 79, GPU 0000:a1:00, 3 times, GPU has \\x1b[31mfallen off the bus." in text
    assert "Action:Replace [root; hyperpod]" in text and "went to i-2" in text
    assert [one["name"] for one in value(capsys, "n1", "--machine", "i-1")["events"]][-1] == "gone"


def test_a_machine_known_by_name_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = value(capsys, "n2")
    assert (found["identity"], found["role"], found["events"], found["jobs"]) == ("n2", "unknown", [], [])
    assert told(capsys, "n2").count("no events\n\nno jobs") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("n1", "--machine", "i-9"), 1, "node n1: no machine i-9 had this name; known: i-1, i-2"),
        (("n9",), 1, "node n9: never seen"),
        (("--machine", "i-1"), 2, "--machine needs a NODE"),
    ],
)
def test_what_is_not_there(
    site: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        nccl_slurm(["nodes", *arguments])
    assert caught.value.code == status and said in capsys.readouterr().err


def test_all_nodes(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [(one["node"], one["state"]) for one in value(capsys)] == [("n1", "UP+DRAIN")]
