"""``nccl-slurm forget`` on a real store with reports: nothing of a job or user is left, and nothing else goes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.cli.daemon import alone
from nccl_slurm.cli.main import main as nccl_slurm
from nccl_slurm.daemon.outcomes import outcomes
from nccl_slurm.daemon.publish import publish
from nccl_slurm.history.rows import Claim, RunRow
from nccl_slurm.history.store import Store
from tests.cli.test_errors import NOBODY, needs_root
from tests.collect.test_shared import record
from tests.history.conftest import server as server
from tests.history.conftest import url as url
from tests.history.test_retention import FULL, rows

DAY = 86400.0
SECRET = "word of"


@pytest.fixture
def site(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Store, reports and configuration. Jobs 1 and 2 are mallory's, 3 is alice's; 12 is another's, with a 1 in it."""
    (tmp_path / "reports").mkdir(mode=0o711)
    where = f'state = "{tmp_path}"\nshared = "{tmp_path}"\n'
    (tmp_path / "site.toml").write_text(f'[paths]\n{where}[store]\nurl = "{url}"\n')
    monkeypatch.setenv("NCCL_SLURM_CONFIG", str(tmp_path / "site.toml"))
    monkeypatch.delenv("NCCL_SLURM_TRACEBACK", raising=False)
    with Store.open(url) as store:
        store.name_machines(["n1", "n2"], 1.0)
        for raw_id, user in ((1, "mallory"), (2, "mallory"), (3, "alice"), (12, "bob")):
            keep(store, run_of(raw_id, user), tmp_path / "reports")
    return tmp_path


def run_of(raw_id: int, user: str, ended: float = 3 * DAY) -> RunRow:
    now = time.time()
    start, end = now - ended - 60, now - ended
    return RunRow(
        "lab", raw_id, 1, str(raw_id), user=user, uid=7001, nodes=("n1", "n2"), start=start, end=end, status="final"
    )


def keep(store: Store, run: RunRow, reports: Path) -> None:
    """All that a daemon keeps of a run; a word in each that would be found in the file."""
    key, word = (run.cluster, run.raw_id, run.run), f"{SECRET} {run.user}"
    store.upsert_run(replace(run, name=word))
    store.set_outcomes(outcomes(run, {"verdict": {"class": "unknown", "culprits": []}}), run.start)
    store.add_record(*key, record(job_id=run.raw_id), received=1.0, quiet=True)
    store.save_paths(*key, "machines", {})
    store.save_output(*key, {"facts": [word]})
    store.save_report(*key, {"job": word}, 1.0)
    store.queue_comment(*key, word, 1.0)
    store.note("quarantine", f"{run.raw_id}.1700000000.n1.json: {word}", 1.0)
    assert publish(str(reports), {"job": {"id": run.id, "run": run.run}}, 7001, made=1.0, newest=True) is None


def forget(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = 0
    try:
        nccl_slurm(["forget", *words])
    except SystemExit as left:
        status = int(left.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def kept(site: Path, url: str, numbers: Sequence[int]) -> None:
    """Of these jobs all is there, and nothing of any other."""
    with Store.open(url, read_only=True) as store:
        assert sorted(run.raw_id for run in store.list_runs()) == list(numbers)
        for number in (1, 2, 3, 12):
            assert rows(store, number) == (FULL if number in numbers else dict.fromkeys(FULL, 0)), number
        for machine in store.machines():
            assert sorted(int(event.data["job"]) for event in machine.events) == list(numbers)
        assert sorted(int(note.text.partition(".")[0]) for note in store.notes()) == list(numbers)
    names = {f"{number}{end}" for number in numbers for end in (".json", ".run1.json")}
    assert set(os.listdir(site / "reports")) == names


def test_a_job_goes_with_all_that_is_its(site: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget(capsys, "1") == (0, "1 runs forgotten\n", "")
    kept(site, url, [2, 3, 12])


def test_a_user_goes_and_leaves_no_byte(site: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget(capsys, "--user", "mallory") == (0, "2 runs forgotten\n", "")
    kept(site, url, [3, 12])
    for path in site.glob("store.db*"):
        assert b"mallory" not in path.read_bytes() and b"alice" in path.read_bytes()


def test_what_accounting_would_bring_back_stays_and_is_told(
    site: Path, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store.open(url) as store:
        store.upsert_run(run_of(2, "mallory", ended=60.0))
    status, out, err = forget(capsys, "--user", "mallory")
    assert (status, out) == (1, "1 runs forgotten\n") and "1 runs stay (2 run 1)" in err
    kept(site, url, [2, 3, 12])


def test_an_unknown_job_erases_nothing(site: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert forget(capsys, "1", "77")[0] == 1
    assert forget(capsys)[0] == forget(capsys, "1", "--user", "mallory")[0] == 2
    kept(site, url, [1, 2, 3, 12])


def test_not_beside_a_daemon(site: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with alone(site):
        status, _, err = forget(capsys, "1")
    assert status == 1 and "stop that one first" in err
    kept(site, url, [1, 2, 3, 12])


def test_not_beside_a_daemon_on_another_host(site: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    if url.startswith("sqlite"):
        pytest.skip("a file is no other host's")
    claim = Claim("token", "ctl2", 22, "place")
    with Store.open(url) as store:
        assert store.take_lease(claim, 600.0) is None
        status, _, err = forget(capsys, "1")
        assert status == 1 and "daemon on ctl2 (pid 22) works on it; stop the daemons on all hosts first" in err
        kept(site, url, [1, 2, 3, 12])
        store.release_lease(claim)
    assert forget(capsys, "1") == (0, "1 runs forgotten\n", "")
    kept(site, url, [2, 3, 12])


@needs_root
def test_a_reader_of_the_store_erases_nothing(site: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A member of access.admin_group: the file is readable, its folder not writable."""
    if not url.startswith("sqlite"):
        pytest.skip("a server has no folder")
    for path in (*site.parents[: len(site.parents) - 2], site, *site.glob("*")):
        path.chmod(0o755)
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        os._exit(forget(capsys, "1")[0])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    kept(site, url, [1, 2, 3, 12])
