"""Every word of a report is explained, whatever way it is typed; an unknown one names its neighbours."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.attribute.finding import ACTION_OF
from nccl_slurm.cli.main import main
from nccl_slurm.errors import InputError
from nccl_slurm.explain.catalogue import catalogue
from nccl_slurm.explain.entry import KINDS
from nccl_slurm.explain.lookup import look_up
from nccl_slurm.explain.text import render, table
from nccl_slurm.model import ACTIONS, CLASSES
from nccl_slurm.parse.patterns import load_rows
from tests.test_docs import REPORT_MD
from tests.test_docs import table as table_of

DATA = resources.files("nccl_slurm").joinpath("data")
SCHEMA: dict[str, Any] = json.loads(DATA.joinpath("schemas/explain-1.json").read_text("utf-8"))
ROWS = load_rows()
ENTRIES = catalogue(ROWS)


def found(word: str) -> list[str]:
    return [f"{entry.kind} {entry.name}" for entry in look_up(word, ENTRIES, ROWS)]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("collective-missing-rank", ["class collective-missing-rank"]),
        ("Collective-Missing-Rank ", ["class collective-missing-rank"]),
        ("nccl.ib-completion", ["pattern nccl.ib-completion"]),
        ("flight-recorder.status", ["reading flight-recorder.status"]),
        ("reboot", ["action reboot"]),
        ("unknown", ["class unknown", "action unknown"]),
        *(
            (word, ["xid xid 79"])
            for word in ("79", "xid 79", "xid79", "Xid 79", "XID:79", "xid.79", "Xid  79", "xid=079")
        ),
        ("Kill task failed", ["reason kill-task-failed"]),
        ("kill task", ["reason kill-task-failed"]),
        ("Prolog error", ["reason prolog-error"]),
        ("Epilog error", ["reason epilog-error"]),
        ("Not responding", ["reason not-responding"]),
        ("Node unexpectedly rebooted", ["reason unexpectedly-rebooted"]),
        ("gres/gpu count reported lower than configured (7 < 8)", ["reason gres-count"]),
        ("Low RealMemory (reported:515434 < 100.00% of configured:515435)", ["reason low-resources"]),
        ("kernel update : reboot issued", ["reason reboot-issued"]),
        ("Action:Replace", ["reason hyperpod-action"]),
        ("NHC: check_fs_mount: /data not mounted", ["reason nhc"]),
        ("nccl-slurm: gpu-hw-lost, report 42", ["reason nccl-slurm"]),
        ("batch job complete failure", ["reason batch-job-complete-failure"]),
        ("NonZeroExitCode", ["reason nonzero-exit"]),
        ("RaisedSignal:9(Killed)", ["reason raised-signal"]),
        ("launch failed requeued held", ["reason launch-failed-held"]),
        ("ReqNodeNotAvail, UnavailableNodes:n7", ["reason node-not-available"]),
        (
            "[ 9.1] NVRM: Xid (PCI:0000:a1:00): 79, pid=1, name=python, GPU has fallen off the bus.",
            ["xid xid 79"],
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB", ["pattern cuda.oom"]),
    ],
)
def test_a_word_is_found(word: str, names: list[str]) -> None:
    assert found(word) == names


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("missing.silent", ["rule missing.silent"]),
        ("ladder.owner", ["rule ladder.owner"]),
        ("first-failure.only+progress.behind", ["rule first-failure.only", "rule progress.behind"]),
        ("live.progress.behind", ["rule progress.behind"]),
        ("shared-cause.no-rank.resource-shm", ["rule shared-cause.no-rank", "class resource-shm"]),
        ("escalation.nobody-named", ["rule escalation.nobody-named"]),
        ("proven", ["word proven"]),
        ("Suspects", ["word suspect"]),
    ],
)
def test_what_a_report_prints_in_brackets_is_explained(word: str, names: list[str]) -> None:
    assert found(word) == names


def test_every_rule_of_the_code_is_explained() -> None:
    package = Path(str(DATA)).parent
    texts = [path.read_text() for part in ("attribute", "recommend") for path in (package / part).glob("*.py")]
    families = {entry.name.partition(".")[0] for entry in ENTRIES if entry.kind == "rule"} - {"slurm"}
    used = {rule for text in texts for rule in re.findall(r'"([a-z-]+\.[a-z-]+)"', text)}
    rules = {rule for rule in used if rule.partition(".")[0] in families}
    assert len(rules) > 50
    assert rules <= {entry.name for entry in ENTRIES if entry.kind == "rule"}


def test_an_area_of_the_guide_lists_all_its_pages() -> None:
    with pytest.raises(InputError) as error:
        look_up("scenario", ENTRIES, ROWS)
    pages = [entry.name for entry in ENTRIES if entry.name.startswith("scenario.")]
    assert len(pages) > 15 and all(page in str(error.value) for page in pages)


@pytest.mark.parametrize(
    ("word", "near"),
    [
        ("gpu-hw-los", "gpu-hw-lost"),
        ("collective-mising-rank", "collective-missing-rank"),
        ("nccl.ib-complet", "nccl.ib-completion"),
        ("xid 999", "xid 172"),
        ("178", "xid 17"),
        ("Kil tsk faild", "kill task failed"),
        ("\x1b[31mzzzzqqq", "nothing is near"),
        ("", "nothing is near"),
    ],
)
def test_an_unknown_word_names_the_nearest(word: str, near: str) -> None:
    with pytest.raises(InputError) as error:
        look_up(word, ENTRIES, ROWS)
    assert near in str(error.value)
    assert "; " in str(error.value)


def test_an_xid_that_is_not_in_the_table_decides_nothing() -> None:
    with pytest.raises(InputError, match="never reboot or replace for it alone"):
        look_up("xid 173", ENTRIES, ROWS)


@given(st.text(max_size=60) | st.from_regex(r"(xid ?)?\d{1,6}", fullmatch=True))
def test_any_text_is_explained_or_refused(word: str) -> None:
    try:
        assert look_up(word, ENTRIES, ROWS)
    except InputError as error:
        assert "; " in str(error)


def test_all_classes_actions_and_rows_are_there() -> None:
    by_kind = {kind: [entry.name for entry in ENTRIES if entry.kind == kind] for kind in KINDS}
    assert tuple(by_kind["class"]) == CLASSES
    assert tuple(by_kind["action"]) == ACTIONS
    assert set(by_kind["pattern"]) == {row.id for row in ROWS.rows}
    assert by_kind["xid"] == [f"xid {code}" for code in sorted(ROWS.xids)]
    assert len({(entry.kind, entry.name) for entry in ENTRIES}) == len(ENTRIES)
    assert {entry.action for entry in ENTRIES if entry.kind == "class"} == set(ACTION_OF.values())


def test_classes_and_actions_have_the_sentences_of_the_report_reference() -> None:
    means = {entry.name: entry.means for entry in ENTRIES if entry.kind == "class"}
    assert means == {name: cells[0] for name, cells in table_of(REPORT_MD, "Classes").items()}
    actions = {entry.name: entry.means for entry in ENTRIES if entry.kind == "action"}
    assert actions == {name: cells[0] for name, cells in table_of(REPORT_MD, "Actions").items()}


def test_each_action_says_how_that_one_is_proven() -> None:
    proofs = {entry.name: entry.proof for entry in ENTRIES if entry.kind == "action"}
    assert len(set(proofs.values())) == len(ACTIONS)
    assert "reboot" not in proofs["fix-code"] and "no word on a node's health" in proofs["fix-code"]
    assert "outlived a reboot" in proofs["replace"] and "trust root" in proofs["reboot"]


def test_every_nvidia_action_of_the_table_is_explained() -> None:
    told = {entry.name: entry.steps[0] for entry in ENTRIES if entry.kind == "xid"}
    bare = {code for code, xid in ROWS.xids.items() if xid.nvidia == "(blank)"}
    assert {name for name, step in told.items() if ": " not in step} == {f"xid {code}" for code in bare}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.kind}:{entry.name}")
def test_every_entry_says_what_how_and_where_from(entry: Any) -> None:
    jsonschema.validate({"schema": "nccl-slurm/explain/1", "entries": [entry.to_json()]}, SCHEMA)
    text = render([entry], {})
    assert all(f"\n{title}\n" in text for title in ("What it means", "How it is proven", "Source"))
    assert text.replace("\n", "").isprintable()
    names = {one.name for one in ENTRIES}
    assert set(entry.related) <= names
    if entry.kind == "reason":
        assert all(word == word.lower() and found(word)[0] == f"reason {entry.name}" for word in entry.words)


def test_a_list_has_a_line_a_word() -> None:
    assert len(table(ENTRIES).splitlines()) == len(ENTRIES) + 1


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        main(["explain", *arguments])
        status = 0
    except SystemExit as left:
        status = int(str(left.code))
    return status, *capsys.readouterr()


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "rules.d").mkdir()
    row = 'producer = "framework"\nrole = "cause"\nversions = ""\nanchor = "oh dear"\nyes = "oh dear"\nno = "oh"\n'
    text = f'[[row]]\nid = "site.mine"\n{row}regex = \'oh dear\'\nsource = "\\u001b[31mus"\n'
    (tmp_path / "rules.d" / "mine.toml").write_text(text)
    (tmp_path / "c.toml").write_text(f'[rules]\nfolder = "{tmp_path}/rules.d"\n')
    site = ("--config", str(tmp_path / "c.toml"))
    status, out, _ = run(capsys, "site.mine", *site)
    assert (status, "\\x1b[31mus" in out, "\x1b" in out) == (0, True, False)
    assert "site.mine" in run(capsys, "well,", "oh", "dear", *site)[1]
    status, out, _ = run(capsys, "--json", "--list", *site)
    jsonschema.validate(json.loads(out), SCHEMA)
    assert status == 0 and len(json.loads(out)["entries"]) == len(ENTRIES) + 1
    assert run(capsys, "--list", *site)[1].count("\n") == len(ENTRIES) + 2
    status, out, err = run(capsys, "gpu-hw-los", *site)
    assert (status, out) == (1, "") and "nearest: gpu-hw-lost" in err and err.count("\n") == 1
    for wrong in ((), ("--list", "xid")):
        assert run(capsys, *wrong, *site)[0] == 2
