"""``nccl-slurm nodes --lemons`` and ``--exclude`` on a store that a daemon has filled."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.lemons import _HEADS, _meanings
from nccl_slurm.cli.main import main as nccl_slurm
from nccl_slurm.daemon.outcomes import outcomes
from nccl_slurm.history.rows import NodeEventRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.history.thresholds import SIGNALS

DAY = 86400.0
NODES = tuple(f"n{number}" for number in range(1, 21))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    (tmp_path / "rules.d").mkdir()
    (tmp_path / "site.toml").write_text(f'[paths]\nstate = "{tmp_path}"\n[rules]\nfolder = "{tmp_path}/rules.d"\n')
    monkeypatch.setenv("NCCL_SLURM_CONFIG", str(tmp_path / "site.toml"))
    with Store.open(f"sqlite:///{tmp_path}/store.db") as opened:
        opened.add_node_events(NodeEventRow(node, time.time() - 60 * DAY, "UP") for node in NODES)
        opened.name_machines(NODES, time.time() - 60 * DAY)
        yield opened


def add_run(store: Store, number: int, days_ago: float, node: str, failure_class: str | None = None) -> None:
    """As the daemon does at a run's end."""
    end = time.time() - days_ago * DAY
    run = RunRow("lab", number, 1, str(number), nodes=(node,), start=end - 3600, end=end, status="final")
    culprits = [{"rank": None, "host": node}] if failure_class else []
    report = {"verdict": {"class": failure_class or "benign", "culprits": culprits}}
    store.set_outcomes(outcomes(run, report), run.start)


@pytest.fixture
def sour(store: Store) -> Store:
    """n7 lost eight runs; each node has 20 good ones."""
    for number in range(400):
        add_run(store, number, 1 + number / 10, NODES[number % 20])
    for number in range(8):
        add_run(store, 1000 + number, 2 + 5 * number, "n7", "gpu-hw-lost")
    add_run(store, 2000, 3, "n9", "gpu-hw-lost")
    return store


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    nccl_slurm(("nodes", *arguments))
    told = capsys.readouterr()
    return told.out, told.err


def test_the_table_has_every_node_and_the_lemon_first(sour: Store, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "--lemons")
    lines = out.splitlines()
    assert lines[0].split()[:7] == ["node", "hours", "lost", "expected", "chance", "q", "action"]
    rows = [line.split() for line in lines if line.split() and line.split()[0] in NODES]
    assert {row[0] for row in rows} == set(NODES)
    assert rows[0][0] == "n7" and rows[0][6] == "investigate"
    assert {row[6] for row in rows[1:]} == {"none"}
    assert rows[0][-2:] == ["6*", "0.3*"]
    assert rows[0][7] == "-"
    assert lines[-1] == "to be looked at: n7; `nccl-slurm nodes NODE` shows the runs"
    assert err == ""


def test_the_json_has_every_signal_and_the_statistic(sour: Store, capsys: pytest.CaptureFixture[str]) -> None:
    view: dict[str, Any] = json.loads(run(capsys, "--lemons", "--json")[0])
    assert len(view["nodes"]) == 20 and view["fdr"] == 0.05
    node = view["nodes"][0]
    assert (node["node"], node["flagged"], node["action"], node["evidence"]) == ("n7", True, "investigate", 8.0)
    assert 0 < node["chance"] <= node["q"] < 0.05 and 0 < node["expected"] < 1 and node["hours"] == pytest.approx(28)
    assert len(node["signals"]) == 7
    assert node["signals"][0]["name"] == "excl_jobid_count"
    assert node["signals"][0]["value"] is None and node["signals"][0]["raised"] is None


def test_an_exclude_list_can_stand_in_a_command_line(sour: Store, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "--exclude")
    assert out == "--exclude=n7\n"
    assert err.startswith("n7: 8 runs lost, ") and err.count("\n") == 1
    assert "; until 2" in err
    view = json.loads(run(capsys, "--exclude", "--json")[0])
    assert view["exclude"] == "n7" and [one["node"] for one in view["nodes"]] == ["n7"]
    assert view["nodes"][0]["until"] == view["until"]


def test_neighbouring_lemons_are_folded_and_the_list_is_short(sour: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(14):
        for at, node in enumerate(("n7", "n8", "n12")):
            add_run(sour, 3000 + 100 * at + number, 1.5 + at / 3 + 4 * number, node, "slurm-node-fail")
    view = json.loads(run(capsys, "--exclude", "--json")[0])
    assert len(view["nodes"]) == 2 and len(view["left_out"]) == 1
    assert {one["node"] for one in (*view["nodes"], *view["left_out"])} == {"n7", "n8", "n12"}


def test_a_sites_rows_are_in_force(sour: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = '[[threshold]]\nid = "blame.least"\nvalue = 9\nmeans = "m"\nsource = "s"\n'
    (tmp_path / "rules.d" / "site.toml").write_text(row)
    assert run(capsys, "--exclude") == (
        "",
        "no node is flagged: none loses more runs than nodes like it; nothing to exclude\n",
    )


def test_nothing_stored_is_said(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "--lemons")
    assert out == "no run with a verdict is stored yet, so nothing can be said of any node\n"
    view = json.loads(run(capsys, "--lemons", "--json")[0])
    assert {node["hours"] for node in view["nodes"]} == {None}
    assert json.loads(run(capsys, "--exclude", "--json")[0])["exclude"] == ""


def test_a_node_that_was_never_polled_is_not_of_this_cluster(sour: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        add_run(sour, 5000 + number, 2.7 + 5 * number, "elsewhere", "gpu-hw-lost")
    assert "elsewhere" not in run(capsys, "--lemons")[0]
    assert run(capsys, "--exclude")[0] == "--exclude=n7\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("n1", "--lemons"), 2, "give one of NODE, --lemons and --exclude"),
        (("--exclude", "--lemons"), 2, "give one of NODE, --lemons and --exclude"),
    ],
)
def test_wrong_usage(
    store: Store, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, told: str
) -> None:
    with pytest.raises(SystemExit) as left:
        nccl_slurm(("nodes", *arguments))
    assert left.value.code == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("text", ['[[threshold]]\nid = "blame.fdr"\n', "not toml", b"\xff"])
def test_a_wrong_row_is_named_with_its_file(
    store: Store, capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str | bytes
) -> None:
    (tmp_path / "rules.d" / "site.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SystemExit) as left:
        nccl_slurm(("nodes", "--lemons"))
    assert left.value.code == 2
    assert "rules.d/site.toml" in capsys.readouterr().err


def test_a_node_that_slurm_has_no_more_is_in_no_list(sour: Store, capsys: pytest.CaptureFixture[str]) -> None:
    sour.add_node_events([NodeEventRow("n7", time.time() - DAY, "REMOVED")])
    assert run(capsys, "--exclude")[0] == ""


def test_each_signal_is_explained() -> None:
    told = _meanings().splitlines()
    assert [line.split(":")[0].strip() for line in told] == list(SIGNALS)
    assert all(line.partition(": ")[2] for line in told)
    heads = [_HEADS.get(name, name) for name in SIGNALS]
    assert [head.replace("\n", "") for head in heads] == list(SIGNALS)
    assert max(head.count("\n") for head in heads) == 1 and max(len(head) for head in heads) <= 32
