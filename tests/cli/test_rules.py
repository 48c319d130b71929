"""``rules list`` prints the rows that decide; ``rules test`` runs a node record through them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.daemon import _compiled_patterns
from nccl_slurm.cli.main import main
from nccl_slurm.config import load
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import compile_rows, rows_of
from tests.attribute.scenarios import HANG
from tests.collect.test_shared import record
from tests.recommend.past import PCI, line

COMPUTE: dict[str, Any] = {"slurmctld_running": False, "node_type": None}
FINAL = ("replace", "ladder.final")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(["rules", *arguments])
        status = 0
    except SystemExit as left:
        status = int(str(left.code))
    return status, *capsys.readouterr()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "rules.d").mkdir()
    path = tmp_path / "site.toml"
    path.write_text(f'[rules]\nfolder = "{tmp_path}/rules.d"\n')
    return path


def recorded(path: Path, *lines: str, role: dict[str, Any] | None = None, **more: Any) -> str:
    facts = [fact.to_json() for fact in kernel_facts([(HANG, text) for text in lines], "n1")]
    taken = record(kernel_events=facts, **more)
    taken["machine"] = {**taken["machine"], "role": role or COMPUTE}
    path.write_text(json.dumps(taken))
    return str(path)


def gpu(**changes: Any) -> dict[str, Any]:
    whole = {
        "bus_id": PCI,
        "uuid": None,
        "ecc": {"volatile_uncorrected": 0, "sram_threshold_exceeded": False},
        "remapped": {"pending": False, "failure": False},
        "recovery_action": "None",
    }
    return {**whole, **changes}


def snapshot(*gpus: dict[str, Any]) -> dict[str, Any]:
    names = ("driver", "ports", "shm", "limits", "disks", "load", "gpu_processes")
    return {"start": HANG, "end": HANG + 1, "gpus": list(gpus), **dict.fromkeys(names)}


def test_the_list_has_all_rows_with_their_steps(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    status, out, _ = run(capsys, "list", "--json", "--config", str(config))
    rows = {row["id"]: row for row in json.loads(out)}
    assert status == 0
    assert sum(name.startswith("xid.") for name in rows) == 172
    assert (rows["xid.79"]["action"], rows["xid.79"]["after"]) == ("reboot", ["replace"])
    assert (rows["kernel.sxid"]["action"], rows["kernel.sxid"]["role"]) == ("reboot", "cause")
    assert (rows["gpu.remap-failure"]["final"], rows["limit.open-nodes"]["value"]) == (True, 2)
    assert rows["nccl.ib-completion"]["action"] is None
    table = run(capsys, "list", "--config", str(config))[1].splitlines()
    assert len(table) == len(rows) + 1
    assert table[0].split() == ["id", "producer", "class", "role", "action", "after", "source"]


def test_a_sites_row_is_listed_and_decides(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    row = 'id = "gpu.remap-failure"\nclass = "gpu-hw-ecc"\nhardware = true\naction = "investigate"\nsource = "us"\n'
    (config.parent / "rules.d" / "us.toml").write_text(f"[[fault]]\n{row}")
    rows = {one["id"]: one for one in json.loads(run(capsys, "list", "--json", "--config", str(config))[1])}
    assert (rows["gpu.remap-failure"]["action"], rows["gpu.remap-failure"]["source"]) == ("investigate", "us")
    failed = snapshot(gpu(remapped={"pending": False, "failure": True}))
    taken = recorded(tmp_path / "r.json", snapshots={"before": None, "after": failed})
    told = json.loads(run(capsys, "test", taken, "--json", "--config", str(config))[1])
    assert told["recommendation"]["action"] == "investigate"


def test_a_sites_reason_is_listed_before_ours(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    row = 'id = "robot"\nmatch = ["robot"]\nowner = "robot"\nhardware = true\nmeans = "x"\nsource = "us"\n'
    (config.parent / "rules.d" / "us.toml").write_text(f"[[reason]]\n{row}")
    rows = json.loads(run(capsys, "list", "--json", "--config", str(config))[1])
    reasons = [one for one in rows if one["id"].startswith("reason.")]
    assert (reasons[0]["id"], reasons[0]["producer"], reasons[0]["hardware"]) == ("reason.robot", "robot", True)
    assert len(reasons) > 20 and reasons[1]["source"] != "us"
    (config.parent / "rules.d" / "us.toml").write_text(f"[[reason]]\n{row}on = 3\n")
    status, out, err = run(capsys, "list", "--config", str(config))
    assert (status, out) == (2, "") and "us.toml: reason 'robot': on must be" in err


def test_a_broken_row_of_the_site_is_named(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    (config.parent / "rules.d" / "us.toml").write_text('[[fault]]\nid = "x"\naction = "reboot"\nsource = "us"\n')
    for verb in (["list"], ["compile"], ["test", "/dev/null"]):
        status, out, err = run(capsys, *verb, "--config", str(config))
        assert (status, out) == (2, "")
        assert "us.toml: fault 'x': reboot and replace need hardware = true" in err


SAMPLE = Path(__file__).resolve().parents[2] / "etc" / "rules.d" / "site.toml.sample"


def test_the_sample_is_good_and_stands_in_the_documents() -> None:
    rows = rows_of(
        compile_rows((resources.files("nccl_slurm") / "data" / "patterns.toml").read_text(), [text_of(SAMPLE)])
    )
    own = [row for row in rows.rows if row.producer == "site"]
    assert len(own) == 3
    for row in own:
        found = rows.find(row.yes)
        assert found is not None and found[0].id == row.id
        assert row.data(row.no) is None
    first = text_of(SAMPLE).partition("[[row]]")[2].partition("\n\n")[0]
    assert f"```toml\n[[row]]{first}\n```" in text_of(SAMPLE.parents[2] / "docs" / "logs.md")


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def told_of(capsys: pytest.CaptureFixture[str], logs: Path, *more: str) -> dict[str, Any]:
    main(["report", "--logs", str(logs), "--json", *more])
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_logs_are_read_by_the_sites_rows(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_3.log").write_text("[rank3]: loader: giving up on shard 17\n")
    monkeypatch.delenv("NCCL_SLURM_CONFIG", raising=False)
    assert told_of(capsys, tmp_path / "logs", "--config", str(config))["facts"] == []
    site = config.parent / "rules.d" / "us.toml"
    site.write_text(text_of(SAMPLE))
    report = told_of(capsys, tmp_path / "logs", "--config", str(config))
    assert [(fact["kind"], fact["producer"], fact["rank"]) for fact in report["facts"]] == [
        ("site.loader-gave-up", "site", 3)
    ]
    assert report["verdict"]["class"] == "rank-exception"
    site.write_text("[[row")
    with pytest.raises(SystemExit) as left:
        main(["report", "--logs", str(tmp_path / "logs"), "--config", str(config)])
    assert left.value.code == 2 and "us.toml: not TOML" in capsys.readouterr().err
    monkeypatch.setenv("NCCL_SLURM_CONFIG", str(config))
    gaps = told_of(capsys, tmp_path / "logs")["gaps"]
    assert any(gap["source"] == "rules" and "us.toml: not TOML" in gap["why"] for gap in gaps)


def test_the_daemon_says_which_rules_it_took(config: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    _compiled_patterns(load(str(config)), tmp_path)
    assert "rules: the package's alone (no file of the site)" in caplog.text
    (config.parent / "rules.d" / "us.toml").write_text(text_of(SAMPLE))
    _compiled_patterns(load(str(config)), tmp_path)
    assert f"rules: 1 of {config.parent}/rules.d and the package's (us.toml)" in caplog.text
    assert "site.loader-gave-up" in text_of(tmp_path / "patterns.json")


def test_an_xid_row_without_a_class_is_told_what_a_row_needs(capsys: pytest.CaptureFixture[str], config: Path) -> None:
    (config.parent / "rules.d" / "us.toml").write_text('[[xid]]\ncode = 79\naction = "reboot"\n')
    status, _, err = run(capsys, "list", "--config", str(config))
    assert (
        status == 2 and "us.toml: Xid 79: class, role missing; a row takes the place of the whole packaged one" in err
    )
    (config.parent / "rules.d" / "us.toml").write_text("[[threshold\n")
    err = run(capsys, "list", "--config", str(config))[2]
    assert "us.toml: not TOML" in err and "pattern rows" not in err


@pytest.mark.parametrize(
    ("lines", "after", "reboots", "action", "rule"),
    [
        ([line(79)], [], 0, "reboot", "ladder.reboot"),
        ([line(79)], [], 1, "replace", "ladder.replace"),
        ([line(94)], [], 2, "investigate", "ladder.look"),
        ([line(31), line(45)], [], 2, None, None),
        ([], [gpu(remapped={"pending": True, "failure": False})], 0, "reboot", "ladder.reboot"),
        ([], [gpu(remapped={"pending": False, "failure": True})], 0, "replace", "ladder.final"),
        (
            [line(48)],
            [gpu(ecc={"volatile_uncorrected": 2, "sram_threshold_exceeded": True})],
            0,
            "replace",
            "ladder.final",
        ),
        ([], [gpu(recovery_action="Reboot")], 0, "reboot", "ladder.reboot"),
        ([], [gpu(remapped={"pending": None, "failure": None}, recovery_action=None)], 0, None, None),
        ([], [gpu()], 0, None, None),
    ],
    ids=lambda value: None,
)
def test_a_record_is_tried(
    capsys: pytest.CaptureFixture[str],
    config: Path,
    tmp_path: Path,
    lines: list[str],
    after: list[dict[str, Any]],
    reboots: int,
    action: str | None,
    rule: str | None,
) -> None:
    snapshots = {"before": None, "after": snapshot(*after) if after else None}
    taken = recorded(tmp_path / "r.json", *lines, snapshots=snapshots)
    arguments = ("test", taken, "--reboots", str(reboots), "--config", str(config))
    item = json.loads(run(capsys, *arguments, "--json")[1])["recommendation"]
    assert ((item["action"], item["rule"]) if item else (None, None)) == (action, rule)
    assert not item or item["step"] == 1 + reboots
    text = run(capsys, *arguments)[1]
    assert (f"{action} n1, step {1 + reboots}:" if action else "no step:") in text


def test_the_text_shows_each_fault_and_what_was_not_observed(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    gaps = [{"source": "gpus", "why": "nvidia-smi:\x1b[31m no such file"}, {"source": "shm", "why": "x"}]
    taken = recorded(tmp_path / "r.json", line(79), gaps=gaps)
    out = run(capsys, "test", taken, "--config", str(config))[1]
    assert out.splitlines()[:3] == [
        "n1: 1 fault by root's word",
        "  xid.79  gpu-hw-lost  GPU 0000:a1:00  reboot, then replace  "
        "Xid 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: NVIDIA RESTART_BM, then CONTACT_SUPPORT",
        "  not observed: gpus: nvidia-smi:\\x1b[31m no such file",
    ]
    assert out.splitlines()[-1].startswith("    scontrol reboot ASAP nextstate=RESUME")


@pytest.mark.parametrize(
    "role", [{"slurmctld_running": True, "node_type": None}, {"slurmctld_running": None, "node_type": None}]
)
def test_the_records_own_role_counts(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, role: dict[str, Any]
) -> None:
    taken = recorded(tmp_path / "r.json", line(79), role=role)
    item = json.loads(run(capsys, "test", taken, "--json", "--reboots", "2", "--config", str(config))[1])[
        "recommendation"
    ]
    assert (item["action"], item["rule"]) == ("investigate", "ladder.controller")


def test_hyperpod_by_the_nodes_own_files(capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path) -> None:
    taken = recorded(tmp_path / "r.json", line(79), role={"slurmctld_running": False, "node_type": "compute"})
    item = json.loads(run(capsys, "test", taken, "--json", "--config", str(config))[1])["recommendation"]
    assert item["commands"][-1] == 'sudo scontrol update node=n1 state=fail reason="Action:Reboot"'


@pytest.mark.parametrize("text", ["", "{", "{}", '{"schema": "nccl-slurm/node-record/1"}'])
def test_what_is_no_record_is_one_line(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path, text: str
) -> None:
    (tmp_path / "r.json").write_text(text)
    status, out, err = run(capsys, "test", str(tmp_path / "r.json"), "--config", str(config))
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "give a node record" in err
    status, _, err = run(capsys, "test", f"{tmp_path}/none.json", "--config", str(config))
    assert status == 1 and "give the path of a node record" in err
