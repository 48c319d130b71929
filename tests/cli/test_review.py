"""``nccl-slurm drains`` and ``review`` as an admin uses them, on a real store."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from nccl_slurm.cli import review
from nccl_slurm.cli.main import main as nccl_slurm
from nccl_slurm.history.rows import NodeEventRow, RecommendationRow, RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.review.queue import by_daemon
from tests.cli.test_errors import NOBODY, needs_root
from tests.review.test_queue import NOW, row

REBOOT = 'scontrol reboot ASAP nextstate=RESUME reason="x" n1'
#: The same where another has drained it.
OUT = REBOOT.replace("RESUME", "DOWN") + (
    "  # another took the node out: it stays down after the boot until somebody resumes it"
)
FACT = {"id": "f1", "text": "NVRM: Xid 79\x1b[31m", "file": "n1/kernel", "line": 12, "producer": "kernel"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """n1 is drained and to be rebooted, n2 to n4 are drained by somebody, n5 works."""
    (tmp_path / "site.toml").write_text(f'[paths]\nstate = "{tmp_path}"\n')
    monkeypatch.setenv("NCCL_SLURM_CONFIG", str(tmp_path / "site.toml"))
    monkeypatch.delenv("NCCL_SLURM_TRACEBACK", raising=False)
    with Store.open(f"sqlite:///{tmp_path}/store.db") as store:
        store.add_node_events([NodeEventRow("n1", 10.0, "UP"), edge("n1", "UP+DRAIN", "nccl \x1b[31mtest")])
        store.add_node_events([edge(name, "UP+DRAIN", "Kill task failed") for name in ("n2", "n3", "n4")])
        store.add_node_events([NodeEventRow("n5", 10.0, "UP")])
        store.save_report("c", 42, 1, {"facts": [FACT]}, 1.0)
        add(store, row(commands=(REBOOT,), expires=4e9))
    return tmp_path


def edge(node: str, state: str, reason: str) -> NodeEventRow:
    return NodeEventRow(node, 20.0, state, reason, "root(0)")


def add(store: Store, one: RecommendationRow) -> None:
    fresh = replace(one, number=None)
    store.save_recommendations([(fresh, by_daemon(fresh, "opened", NOW, "ctl"))])


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = 0
    try:
        nccl_slurm(list(words))
    except SystemExit as left:
        status = int(left.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    status, out, _ = run(capsys, "drains", "--json", *words)
    assert status == 0
    found: list[dict[str, Any]] = json.loads(out)["nodes"]
    return found


def test_drains_puts_what_to_do_first_and_folds_the_rest(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "drains")
    assert status == 0 and "\x1b" not in out
    lines = [line.strip() for line in out.splitlines()]
    assert lines[0].startswith("n1  UP+DRAIN since 1970-01-01T00:00:20")
    assert "#1 open: reboot, step 2 (ladder.reboot)" in lines
    assert "evidence: report 42, f1; nccl-slurm review 1" in lines
    at = lines.index("n[2-4]  UP+DRAIN since 1970-01-01T00:00:20.000Z")
    assert lines[at + 1 :] == [
        "reason    Kill task failed (kill-task-failed), set by root(0)",
        "no opinion: not observed",
    ]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["n1", "n2", "n3", "n4"]),
        (("--node", "n[1-2]"), ["n1", "n2"]),
        (("--action", "reboot"), ["n1"]),
        (("--action", "replace"), []),
        (("--recommended",), ["n1"]),
    ],
)
def test_drains_filters(
    site: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: list[str]
) -> None:
    assert [one["node"] for one in rows(capsys, *words)] == expected


def test_a_node_that_was_never_seen_is_none_that_is_well(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "drains", "--node", "n5")[0] == 0
    status, out, err = run(capsys, "drains", "--node", "n[4-7]")
    assert (status, out) == (1, "") and "n[6-7]: never seen here" in err


def test_drains_holds_back_commands_while_something_is_done(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(f"sqlite:///{site}/store.db") as store:
        store.add_node_events([replace(edge("n1", "DOWN+REBOOT_ISSUED", "x : reboot issued"), time=30.0)])
    assert rows(capsys, "--node", "n1")[0]["recommendation"]["commands"] == []


def test_drains_as_json(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = rows(capsys)[0]
    assert first["recommendation"]["commands"] == [OUT]
    assert [event["state"] for event in first["events"]] == ["UP+DRAIN", "UP"]
    assert (first["jobs_lost"], first["reason_class"]) == (0, None)


def test_accept_prints_the_command_and_runs_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "review", "n1", "--accept", "--note", "as agreed")
    assert status == 0
    assert out.splitlines()[-2:] == [f"    {review.RUN_YOURSELF}", f"        {OUT}"]
    assert "nothing was changed in Slurm" in out
    status, out, _ = run(capsys, "review", "1")
    assert "decided   accepted by" in out and "as agreed" in out
    assert "outcome   accepted; this machine has no history here" in out
    status, out, err = run(capsys, "review", "n1", "--decline")
    assert (status, out) == (1, "") and "recommendation 1 is accepted" in err
    status, out, _ = run(capsys, "review", "--log")
    assert [line.split(": ", 1)[1][:14] for line in out.splitlines()] == ["#1 n1 accepted", "#1 n1 opened: "]


def bobs_job_and(site: Path, state: str, reason: str) -> None:
    with Store.open(f"sqlite:///{site}/store.db") as store:
        store.upsert_run(
            RunRow("c", 7, 1, "7", state="RUNNING", start=30.0, user="bob", nodes=("n1", "n2"), status="live")
        )
        store.add_node_events([NodeEventRow("n1", 40.0, state, reason, "alice")])
        store.set_value("heartbeat", 50)


def test_how_things_are_now_is_told_when_it_is_shown_and_accepted(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bobs_job_and(site, "UP+DRAIN", "fan 3 broken, ticket 99")
    expected = [
        "    now       UP+DRAIN, reason 'fan 3 broken, ticket 99', set by alice, which the command replaces",
        "    now       runs there: 7 of bob (2 nodes)",
        "    now       as polled until 1970-01-01T00:00:50.000Z",
        f"    {review.RUN_YOURSELF}",
    ]
    told = json.loads(run(capsys, "review", "--json")[1])["recommendations"][0]["now"]
    assert (told["others"], told["jobs"], told["held"]) == (True, [{"job": "7", "user": "bob", "nodes": 2}], None)
    for words in (("n1",), ("n1", "--accept")):
        status, out, _ = run(capsys, "review", *words)
        assert status == 0 and out.splitlines()[-5:-1] == expected


def test_a_decision_is_a_part_of_the_machines_past(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(f"sqlite:///{site}/store.db") as store:
        store.hand_over("n1", "i-1", "dmi-uuid", 1.0, replaced=False)
        store.hand_over("n1", "i-2", "dmi-uuid", 2.0, replaced=True)
    assert run(capsys, "review", "n1", "--decline", "--note", "known")[0] == 0
    with Store.open(f"sqlite:///{site}/store.db", read_only=True) as store:
        assert list(store.machine("n1").of_kind("action")) == []
        (event,) = store.machine_of("i-1").of_kind("action")  # type: ignore[union-attr]
    assert (event.name, event.data["action"], event.data["note"]) == ("declined", "reboot", "known")


def test_show_has_the_evidence_line_by_line(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "review")
    assert status == 0 and "\x1b" not in out
    assert "evidence  f1 n1/kernel:12 NVRM: Xid 79" in out
    assert f"{review.RUN_YOURSELF}\n        {OUT}" in out


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--accept",), 2, "give the NODE or the ID"),
        (("n1", "--accept", "--snooze", "2h"), 2, "one decision at a time"),
        (("n1", "--snooze", "soon"), 2, "'soon' is no time"),
        (("n1", "--snooze", "91d"), 2, "90d is the most"),
        (("n1", "--snooze", "-1h"), 2, "'-1h' is no time"),
        (("n1", "--snooze", "0m"), 2, "'0m' is no time"),
        (("n9", "--accept"), 1, "n9: no such node is known here"),
        (("99",), 1, "99: no recommendation has this number"),
    ],
)
def test_what_can_not_be_decided(
    site: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], status: int, said: str
) -> None:
    found, out, err = run(capsys, "review", *words)
    assert (found, out) == (status, "") and said in err


def test_one_by_one_on_a_terminal(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["s", 7200.0, "later"])
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(answers))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, out, _ = run(capsys, "review")
    assert status == 0 and "snoozed until" in out
    with Store.open(f"sqlite:///{site}/store.db", read_only=True) as store:
        (kept,) = store.active_recommendations()
    assert (kept.state, kept.note) == ("snoozed", "later")


def test_drains_of_what_is_no_host_list(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "drains", "--node", "n[1-")
    assert (status, out) == (2, "") and "write n3 or n[1-8]" in err


@needs_root
def test_sudos_word_does_not_reach_the_terminal_as_it_is(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "mallory\x1b[2J\n#1 n1 declined")
    for words in (("n1", "--accept"), ("n1",), ("--log",)):
        status, out, _ = run(capsys, "review", *words)
        assert status == 0 and "mallory" in out and "\x1b" not in out and "\n#1 n1 declined" not in out


def test_one_answer_that_is_refused_ends_no_session(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A snooze that is too long is asked for again; what somebody else decided meanwhile is told."""
    with Store.open(f"sqlite:///{site}/store.db") as store:
        add(store, row(identity="m2", node="n2", expires=4e9))
    typed = iter(["s", "100d", "2h", "", "d", ""])

    def answer(*_: Any, **__: Any) -> str:
        line = next(typed)
        if len(line) == 1 and line == "d":
            assert run(capsys, "review", "2", "--accept")[0] == 0
        return line

    monkeypatch.setattr("click.termui.visible_prompt_func", answer)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    status, _, err = run(capsys, "review")
    with Store.open(f"sqlite:///{site}/store.db", read_only=True) as store:
        assert [one.state for one in store.active_recommendations()] == ["snoozed", "accepted"]
    assert status == 0 and next(typed, None) is None and "recommendation 2" in err


@needs_root
def test_deciding_is_for_those_who_may_write_the_store(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A member of the admin group reads it: and is told who decides."""
    for folder in (site, *list(site.parents)[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    (site / "store.db").chmod(0o644)
    run(capsys, "review", "n1")  # imported before root is given away: a checkout may be closed to others
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        shown, told = run(capsys, "review", "n1"), run(capsys, "review", "n1", "--accept")
        right = shown[0] == 0 and "reboot" in shown[1] and told[0] == 3 and "not writable for this user" in told[2]
        os._exit(0 if right else 99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("words", [("review",), ("review", "--json")])
def test_one_look_at_the_store_for_all_rows(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    with Store.open(f"sqlite:///{site}/store.db") as store:
        add(store, row(identity="m2", node="n2", expires=4e9))
    opened, really = [], Store.open

    def counted(url: str, **more: Any) -> Store:
        opened.append(url)
        return really(url, **more)

    monkeypatch.setattr(Store, "open", counted)
    assert run(capsys, *words)[0] == 0 and len(opened) == 1


def test_what_is_closed_has_no_command(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(f"sqlite:///{site}/store.db") as store:
        (known,) = store.active_recommendations()
        gone = replace(known, state="withdrawn", by="alice", decided=NOW)
        store.save_recommendations([(gone, by_daemon(gone, "withdrawn", NOW, "ctl"))])
    status, out, _ = run(capsys, "review", "n1")
    assert status == 0 and review.RUN_YOURSELF not in out and "decided   by alice" in out
    assert json.loads(run(capsys, "review", "1", "--json")[1])["recommendations"][0]["commands"] == []


def test_while_recovery_is_in_progress_no_command_is_printed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open(f"sqlite:///{site}/store.db") as store:
        store.add_node_events([NodeEventRow("n1", 30.0, "DOWN+REBOOT_ISSUED", "x : reboot issued")])
    for words in (("review", "n1"), ("review", "n1", "--accept")):
        _, out, _ = run(capsys, *words)
        assert "run now: recovery is in progress (REBOOT_ISSUED)" in out and REBOOT not in out
    assert json.loads(run(capsys, "review", "n1", "--json")[1])["recommendations"][0]["commands"] == []


@pytest.mark.parametrize("which", ["\u00b2", "9" * 23, "9" * 5000, "#", "n9"])
def test_what_is_no_number_and_no_node(site: Path, capsys: pytest.CaptureFixture[str], which: str) -> None:
    status, _, err = run(capsys, "review", which)
    assert status == 1 and ("no recommendation has this number" in err or "no such node is known here" in err)


def test_the_log_of_a_number_and_of_a_node(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for which in ("1", "#1", "n1"):
        assert "#1 n1 opened" in run(capsys, "review", "--log", which)[1]
    for which in ("2", "n2"):
        assert run(capsys, "review", "--log", which)[1] == "the audit log is empty\n"


def test_the_log_decides_nothing(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "review", "n1", "--accept", "--log")
    assert (status, out) == (2, "") and "--log shows the audit log and decides nothing" in err
    assert run(capsys, "review", "--log", "n1")[1].count("\n") == 1


def test_a_good_name_is_not_called_unknown(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "review", "n5")
    assert status == 1 and "n5: nothing is recommended for this node; `nccl-slurm nodes n5` shows" in err
    assert "n9: no such node is known here" in run(capsys, "review", "n9")[2]
