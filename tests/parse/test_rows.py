"""Every row of patterns.toml and xid.toml against its own samples, and what a broken row says."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest

from nccl_slurm.errors import ConfigError
from nccl_slurm.parse.finding import find
from nccl_slurm.parse.patterns import Row, Rows, compile_rows, load_rows
from nccl_slurm.parse.prefix import strip
from nccl_slurm.parse.xidrow import IMMEDIATE, INVESTIGATORY

ROWS = load_rows().rows


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_a_row_matches_its_own_sample_first_and_not_the_near_one(row: Row, rows: Rows) -> None:
    found = rows.find(strip(row.yes).text)
    assert found is not None
    assert found[0].id == row.id
    assert any(anchor in row.yes for anchor in row.anchor)
    assert row.data(strip(row.no).text) is None
    assert row.source and row.versions
    assert set(row.distinct) <= set(row.regex.groupindex) | {"gpu"}


def test_anchors_are_the_same_inside_json(rows: Rows) -> None:
    """Container runtimes write lines as JSON, and Go's encoder escapes ``<``, ``>`` and ``&`` too."""
    for anchor in rows.anchors:
        text = anchor.decode()
        assert json.dumps(text) == f'"{text}"' and not set(text) & set("<>&"), text


def test_ids_are_unique_and_start_with_a_producer(rows: Rows) -> None:
    ids = [row.id for row in rows.rows]
    assert len(ids) == len(set(ids))
    assert {one.partition(".")[0] for one in ids} == {row.producer for row in rows.rows}


@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_every_group_is_a_number_or_text_that_a_record_can_hold(row: Row, rows: Rows) -> None:
    finding = find(strip(row.yes).text, rows)
    assert finding is not None
    for key, value in finding.data.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", key)
        assert isinstance(value, (int, str, list)), (key, value)
    assert len(finding.data) <= 30


@pytest.mark.parametrize(
    ("code", "hint", "role", "action"),
    [
        (13, "gpu-app-fault", "cause", "fix-code"),
        (31, "gpu-app-fault", "cause", "fix-code"),
        (43, "gpu-app-fault", "consequence", "none"),
        (45, "gpu-app-fault", "consequence", "none"),
        (48, "gpu-hw-ecc", "cause", "reboot"),
        (63, "gpu-hw-ecc", "context", "none"),
        (64, "gpu-hw-ecc", "cause", "reboot"),
        (74, "nvlink-fabric", "cause", "reboot"),
        (79, "gpu-hw-lost", "cause", "reboot"),
        (94, "gpu-hw-ecc", "cause", "investigate"),
        (95, "gpu-hw-ecc", "cause", "reboot"),
        (119, "gpu-hw-lost", "cause", "reboot"),
        (137, "gpu-app-fault", "cause", "fix-code"),
        (154, "unknown", "consequence", "investigate"),
    ],
)
def test_xid_table(rows: Rows, code: int, hint: str, role: str, action: str) -> None:
    xid = rows.xids[code]
    assert (xid.hint, xid.role, xid.action) == (hint, role, action)
    assert xid.source


def test_all_codes_of_the_catalog_are_there_in_its_words(rows: Rows) -> None:
    assert sorted(rows.xids) == list(range(1, 173))
    for xid in rows.xids.values():
        assert xid.nvidia in IMMEDIATE and xid.investigatory in INVESTIGATORY
        assert xid.applies in (
            "all",
            "none",
            "A100",
            "A100,H100",
            "A100,H100,B100",
            "H100",
            "H100+",
            "Blackwell",
            "GB200",
        )
        assert xid.mnemonic and xid.source.startswith("NVIDIA Xid catalog")


#: By NVIDIA's page: how many codes have which immediate action.
BUCKETS = {
    "(blank)": 11,
    "CHECK_MECHANICALS": 1,
    "CHECK_UVM": 1,
    "CONTACT_SUPPORT": 62,
    "IGNORE": 21,
    "RESET_GPU": 14,
    "RESTART_APP": 48,
    "RESTART_BM": 1,
    "RESTART_VM": 1,
    "UPDATE_SWFW": 1,
    "WORKFLOW_NVLINK5_ERR": 7,
    "WORKFLOW_NVLINK_ERR": 1,
    "WORKFLOW_XID_45": 1,
    "WORKFLOW_XID_48": 1,
    "XID_154": 1,
}


def test_immediate_actions_of_the_catalog(rows: Rows) -> None:
    assert Counter(xid.nvidia for xid in rows.xids.values()) == BUCKETS
    assert [code for code, xid in rows.xids.items() if xid.nvidia == "RESTART_BM"] == [79]
    resets = {code for code, xid in rows.xids.items() if xid.nvidia == "RESET_GPU"}
    assert resets == {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158}


def test_unused_codes_decide_nothing(rows: Rows) -> None:
    unused = [xid for xid in rows.xids.values() if xid.unused]
    assert len(unused) == 61
    assert {(xid.hint, xid.role, xid.action, xid.after) for xid in unused} == {
        ("unknown", "context", "investigate", ())
    }


def test_a_step_after_a_reboot_is_never_harder_than_the_hardware_allows(rows: Rows) -> None:
    for xid in rows.xids.values():
        if xid.hint not in ("gpu-hw-ecc", "gpu-hw-lost", "nvlink-fabric"):
            assert not xid.after and not xid.final and xid.action not in ("reboot", "replace"), xid.code
        if xid.action == "reboot":
            assert xid.after, xid.code


def test_no_xid_alone_says_replace_but_the_one_that_needs_hands(rows: Rows) -> None:
    assert [code for code, xid in rows.xids.items() if xid.action == "replace"] == [54]


def test_compiled_json_is_the_same_as_the_toml(tmp_path: object, patterns_toml: str, rows: Rows) -> None:
    path = f"{tmp_path}/patterns.json"
    text = compile_rows(patterns_toml)
    with open(path, "w") as file:
        file.write(text)
    compiled = load_rows(path)
    assert compiled.hash == rows.hash
    assert [row.id for row in compiled.rows] == [row.id for row in rows.rows]
    assert json.loads(text)["format"] == "nccl-slurm/patterns/1"


SITE = """
[[row]]
id = "framework.site-done"
producer = "framework"
role = "context"
versions = "1"
source = "our trainer"
anchor = "SITE-DONE"
regex = 'SITE-DONE step=(?P<step>\\d+)'
yes = "SITE-DONE step=7"
no = "SITE-DONE"

[[xid]]
code = 79
mnemonic = "X"
class = "gpu-hw-lost"
role = "cause"
nvidia = "RESTART_BM"
action = "investigate"
source = "site"
"""


def test_a_site_adds_and_overrides_rows(tmp_path: object, patterns_toml: str, rows: Rows) -> None:
    path = f"{tmp_path}/patterns.json"
    with open(path, "w") as file:
        file.write(compile_rows(patterns_toml, [SITE]))
    site = load_rows(path)
    found = site.find("x SITE-DONE step=12")
    assert found is not None
    assert found[1] == {"step": 12}
    assert site.xids[79].action == "investigate"
    assert site.hash != rows.hash
    assert len(site.rows) == len(rows.rows) + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('producer = "framework"|producer = "vendor"', "producer 'vendor' is none of"),
        ('role = "context"|role = "guilty"', "role 'guilty'"),
        ("regex = 'SITE-DONE step=(?P<step>\\d+)'|regex = '('", "regex"),
        ('anchor = "SITE-DONE"|anchor = "S"', "at least 4 characters"),
        ('versions = "1"|version = "1"', "unknown key 'version'"),
        ('source = "our trainer"|', "source must be a string"),
        ("code = 79|code = 'x'", "code must be a number"),
        ("code = 79|code = 79\nafter = ['later']", "after must be a list of"),
        ("code = 79|code = 79\nfinally = true", "unknown key 'finally'"),
        ("[[row]]|[[row", "not TOML"),
        ("[[row]]|row = 3\n[[rows]]", "array of tables"),
    ],
)
def test_a_broken_row_is_named(patterns_toml: str, change: str, message: str) -> None:
    before, _, after = change.partition("|")
    assert before in SITE
    with pytest.raises(ConfigError, match=re.escape(message)):
        compile_rows(patterns_toml, [SITE.replace(before, after, 1)])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "other"}', '{"format": "nccl-slurm/patterns/1", "row": 3}']
)
def test_a_broken_compiled_file_is_an_error_of_one_line(tmp_path: object, text: str) -> None:
    path = f"{tmp_path}/patterns.json"
    with open(path, "w") as file:
        file.write(text)
    with pytest.raises(ConfigError) as caught:
        load_rows(path)
    assert "\n" not in str(caught.value)


def test_a_row_that_stands_twice_in_one_text_is_an_error(patterns_toml: str) -> None:
    """The later one would hide the earlier one without a word."""
    with pytest.raises(ConfigError, match=r"framework\.site-done. stands twice"):
        compile_rows(patterns_toml, [SITE + SITE.partition("[[xid]]")[0]])


def test_a_missing_compiled_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        load_rows("/nonexistent/patterns.json")
