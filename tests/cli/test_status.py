"""``nccl-slurm status`` where daemons on several hosts share a store: who works, and who stands by."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from nccl_slurm.cli.daemon import refused
from nccl_slurm.cli.main import main
from nccl_slurm.config import loads
from nccl_slurm.history.rows import Claim
from nccl_slurm.history.store import Store
from tests.history.conftest import server as server
from tests.history.mariadb import Server

ONE, OTHER = Claim("one", "ctl1", 11, "place 1"), Claim("other", "ctl\x1b[2J2", 22, "place 2")


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["status", *words])
    return capsys.readouterr().out


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(f'[paths]\nstate = "{tmp_path}"\n')
    monkeypatch.setenv("NCCL_SLURM_CONFIG", str(path))
    return path


@pytest.mark.mariadb
def test_who_works_and_who_stands_by(told: Path, server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.run("create database shown")
    told.write_text(told.read_text() + f'[store]\nurl = "{server.url("shown")}"\n')
    with Store.open(server.url("shown")) as store:
        assert store.take_lease(ONE, 600.0) is None
        store.stand_by(OTHER, reaches_slurm=False)
        value: dict[str, Any] = json.loads(shown(capsys, "--json"))
        assert (value["lease"]["host"], value["lease"]["pid"]) == ("ctl1", 11) and value["lease"]["runs_out_s"] > 0
        assert [(one["pid"], one["reaches_slurm"]) for one in value["standbys"]] == [(22, False)]
        lines = shown(capsys).splitlines()
        assert any(line.startswith("lease     ctl1 (pid 11) since ") for line in lines)
        assert any(line.startswith("stand-by  ctl\\x1b[2J2 (pid 22), seen ") for line in lines)
        assert any(line.endswith("; Slurm does not answer there") for line in lines)
        with store._transaction(write=True) as connection:
            connection.execute(text("update lease set until = until - 100000"))
        assert ", has run out" in shown(capsys)
        store.release_lease(ONE)
    assert json.loads(shown(capsys, "--json"))["lease"] is None


def test_a_store_of_one_host_has_no_lease(told: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(f"sqlite:///{tmp_path}/store.db").close()
    value = json.loads(shown(capsys, "--json"))
    assert value["lease"] is None and value["standbys"] == []
    assert "lease" not in shown(capsys)


@pytest.mark.parametrize(
    ("url", "controllers", "is_refused"),
    [
        ("", ["ctl1"], False),
        ("", ["ctl1", "ctl2"], True),
        ("sqlite:////var/lib/x.db", ["ctl1", "ctl2"], True),
        ("mariadb+pymysql://h/x", ["ctl1", "ctl2", "ctl3"], False),
        ("", [], False),
    ],
)
def test_which_stores_serve_which_controllers(url: str, controllers: list[str], is_refused: bool) -> None:
    why = refused(loads(f'[store]\nurl = "{url}"', "f"), controllers)
    assert (why is not None) is is_refused
    assert why is None or "slurmctld may run on ctl1, ctl2" in why


def test_the_sites_rules_are_told(told: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "rules.d"
    told.write_text(told.read_text() + f'[rules]\nfolder = "{folder}"\n')
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.set_value("started", int(time.time()) - 60)
    value = json.loads(shown(capsys, "--json"))["rules"]
    assert value == {"folder": str(folder), "files": [], "changed": False, "broken": None}
    assert f"rules     none of the site's in {folder}\n" in shown(capsys)
    folder.mkdir()
    (folder / "us.toml").write_text('[[limit]]\nid = "open-nodes"\nvalue = 4\nsource = "us"\n')
    assert f"rules     us.toml in {folder}, changed since the daemon started: restart it" in shown(capsys)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.set_value("started", int(time.time()) + 60)
    assert json.loads(shown(capsys, "--json"))["rules"]["changed"] is False
    (folder / "us.toml").write_text("[[row")
    assert "us.toml: not TOML" in json.loads(shown(capsys, "--json"))["rules"]["broken"]
    assert "; BROKEN: " in shown(capsys) and "mend the row, or move the file away" in shown(capsys)
