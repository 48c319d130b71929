"""Any bytes, in any parser: no exception, and what comes out fits the node record's schema."""

from __future__ import annotations

import json
import time
from pathlib import Path

import fastjsonschema
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_slurm.parse import elastic, names, stamp
from nccl_slurm.parse.finding import find
from nccl_slurm.parse.folder import read_sources
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import DATA, Rows, load_rows
from nccl_slurm.parse.prefix import strip
from nccl_slurm.parse.slurmtext import tasks
from tests.parse.conftest import NOW, source

SAMPLES = [row.yes for row in load_rows().rows]
SCHEMA = json.loads((Path(DATA) / "schemas" / "node-record-1.json").read_text())["properties"]
FACTS = fastjsonschema.compile(SCHEMA["facts"])
RANKS = fastjsonschema.compile(SCHEMA["ranks"])

LABELS = st.sampled_from(
    [
        "",
        "[rank3]: ",
        "[default0]:",
        "12: ",
        "[1,4]<stdout>:",
        "\x1b[31m",
        "n1:8:9 [0] NCCL INFO ",
        "(W[rank=2] pid=7, ip=10.0.0.1) ",
    ]
)
LINES = st.tuples(LABELS, st.sampled_from(SAMPLES) | st.text(max_size=60), st.text(max_size=20)).map("".join)
TEXTS = st.lists(LINES, max_size=25).map(lambda lines: "\n".join(lines).encode("utf-8", "replace"))
NAMES = st.sampled_from(
    [
        "job.log",
        "rank3.log",
        "n1/nccl.n1.8.log",
        "r/attempt_0/1/stderr.log",
        "error.json",
        "task.0.1",
        "nccl_trace_rank_2",
        "kern.log",
    ]
)


@given(
    files=st.lists(st.tuples(NAMES, st.binary(max_size=300) | TEXTS), max_size=4),
    trust=st.sampled_from(["job", "root"]),
)
@settings(max_examples=60, deadline=None)
def test_read_sources(files: list[tuple[str, bytes]], trust: str, rows: Rows) -> None:
    parsed = read_sources([source(name, raw, trust=trust) for name, raw in files], rows, now=NOW)
    FACTS(json.loads(json.dumps([fact.to_json() for fact in parsed.facts])))
    RANKS(json.loads(json.dumps([rank.to_json() for rank in parsed.ranks])))
    assert {fact.trust for fact in parsed.facts} <= {trust}
    known = {name for name, _ in files}
    assert all(fact.file in known for fact in parsed.facts)


@given(text=st.text(max_size=200) | LINES)
@settings(deadline=None)
def test_one_line(text: str, rows: Rows) -> None:
    strip(text)
    stamp.find(text, NOW)
    find(text, rows)
    kernel_facts([(1.0, text)], "n1", rows)
    names.read(text)
    tasks(text)


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: json.dumps({"message": text}).encode()))
def test_error_files(raw: bytes) -> None:
    elastic.error_file(raw)


@given(name=st.text(max_size=60), step=st.text(max_size=30))
@settings(deadline=None)
def test_table_lines(name: str, step: str, rows: Rows) -> None:
    text = f"  time      : {step}\n  host      : {name}\n  rank      : 3 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n"
    parsed = read_sources([source("job.log", text.encode("utf-8", "replace"))], rows, now=NOW)
    FACTS(json.loads(json.dumps([fact.to_json() for fact in parsed.facts])))


def test_a_regex_does_not_run_away(rows: Rows) -> None:
    """Every row against long repetitions of what its own sample is made of."""
    for row in rows.rows:
        for text in (
            row.yes * 100,
            row.anchor[0] * 400,
            row.anchor[0] + " " * 8000,
            row.anchor[0] + "a" * 8000,
            row.yes[:-3] + "1, " * 3000,
        ):
            start = time.process_time()
            row.data(text)
            assert time.process_time() - start < 2, (row.id, text[:80])


def test_escapes_sql_and_html_come_through_as_plain_data(rows: Rows) -> None:
    hostile = "\x1b]0;owned\x07[rank1]: ValueError: <script>alert(1)</script>'; DROP TABLE runs; -- \u202e"
    parsed = read_sources([source("job.log", hostile + "\n")], rows, now=NOW)
    fact = parsed.facts[0]
    assert fact.text == hostile and fact.rank == 1
    assert fact.data["message"].startswith("<script>")


def test_task_lists_are_bounded() -> None:
    assert tasks("0-2,9") == [0, 1, 2, 9]
    assert tasks("[1-3]") == [1, 2, 3]
    assert len(tasks("0-99999999,5")) == 16_384
    assert tasks("9-1,x,,-") == []
