from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.capture import child, clock, command, facts, record, rights
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "nccl_slurm/data/schemas/node-record-1.json").read_text(encoding="utf-8")
)
FACT = {"kind": "k", "text": "t", "producer": "nccl", "role": "cause", "trust": "root"}
ITEM = {part: jsonschema.Draft7Validator(SCHEMA["properties"][part]) for part in ("facts", "ranks", "gaps")}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fact_like = st.fixed_dictionaries(
    {"kind": st.text(), "text": st.text(), "producer": st.text(), "role": st.sampled_from(["cause", "benign", "odd"])},
    optional=dict.fromkeys(
        ["trust", "hint", "file", "line", "offset", "rank", "host", "time", "uncertainty_s", "data", "id", "more"],
        anything,
    ),
)
rank_like = st.fixed_dictionaries(
    {"rank": st.integers(-1, 1 << 40)},
    optional=dict.fromkeys(
        ["host", "local_rank", "gpu", "pid", "exit", "first", "last", "last_line", "progress", "files"], anything
    ),
)


@given(st.lists(fact_like | anything, max_size=6) | anything)
def test_whatever_comes_fits_the_schema_and_json(values: Any) -> None:
    gaps: list[dict[str, str]] = []
    cleaned = facts.clean_facts(values, "job", gaps)
    ITEM["facts"].validate(cleaned)
    ITEM["gaps"].validate(facts.clean_gaps(gaps))
    json.dumps(cleaned, allow_nan=False).encode("ascii")
    json.dumps(cleaned, ensure_ascii=False).encode("utf-8")


@given(st.lists(rank_like | anything, max_size=6) | anything)
def test_ranks_too(values: Any) -> None:
    ITEM["ranks"].validate(facts.clean_ranks(values))


@given(st.lists(st.dictionaries(st.sampled_from(["source", "why", "x"]), anything) | anything, max_size=6))
def test_gaps_too(values: list[Any]) -> None:
    ITEM["gaps"].validate(facts.clean_gaps(values))


def test_the_reader_of_user_files_cannot_claim_the_trust_of_root() -> None:
    (fact,) = facts.clean_facts([FACT], "job", [])
    assert fact["trust"] == "job"


def test_half_characters_are_made_visible() -> None:
    assert facts.text("a\udc80b", 100) == "a\\udc80b"


def test_more_facts_than_the_limit_are_a_gap() -> None:
    gaps: list[dict[str, str]] = []
    assert len(facts.clean_facts([FACT] * (facts.MAX_FACTS + 3), "job", gaps)) == facts.MAX_FACTS
    assert gaps[0]["why"].startswith("3 facts left out")


def test_gaps_come_once_and_have_an_end() -> None:
    same = {"source": "a", "why": "b"}
    assert facts.clean_gaps([same, same]) == [same]
    many = facts.clean_gaps([{"source": str(number), "why": ""} for number in range(600)])
    assert len(many) == 500 and many[-1]["why"] == "101 more gaps left out"


def test_a_record_that_is_too_large_loses_what_tells_least() -> None:
    roles = ("cause", "consequence", "context", "benign")
    many = [{**FACT, "role": role, "text": "x" * 100, "id": str(number)} for number, role in enumerate(roles * 100)]
    cut = record.fit({"facts": many, "gaps": [], "files": []}, 20000 + 16384)
    assert record.size_of(cut) <= 20000 + 16384
    left = [fact["role"] for fact in cut["facts"]]
    assert left.count("cause") == 100 and 0 < left.count("consequence") < 100 and "benign" not in left
    assert cut["facts"] == sorted(cut["facts"], key=lambda fact: int(fact["id"]))
    assert cut["gaps"][0]["source"] == "facts" and cut["gaps"][0]["why"].startswith(f"{400 - len(left)} left out")


def test_what_fits_stays_as_it_is() -> None:
    value = {"facts": [FACT], "gaps": []}
    assert record.fit(value, 1 << 20) is value


def test_even_ranks_and_files_are_cut() -> None:
    files = [{"path": "x" * 4000, "size": 1, "mtime": 0, "read": True}] * 5000
    cut = record.fit({"facts": [], "files": files, "gaps": []}, record.MAX_BYTES)
    assert record.size_of(cut) <= record.MAX_BYTES and 0 < len(cut["files"]) < 5000


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "A29FC87B,169.254.169.123,4,1795955000.1,-0.000012345,0.1,0.2,1,0.01,0.02,0.1,0.001,64.2,Normal",
            {"source": "chronyc", "offset_s": -0.000012345, "synchronized": True},
        ),
        (
            "7F7F0101,,10,0.0,0.5,0,0,0,0,0,1,1,64.2,Not synchronised",
            {"source": "chronyc", "offset_s": None, "synchronized": False},
        ),
        ("506 Cannot talk to daemon", None),
        ("a,b,c,d,nan?,f,g,h,i,j,k,l,m,Normal", None),
    ],
)
def test_chrony(line: str, expected: dict[str, object] | None) -> None:
    assert clock.chrony(line + "\n") == expected


@pytest.mark.parametrize(("line", "kept"), [("NTPSynchronized=yes\n", True), ("NTPSynchronized=no\n", False)])
def test_timedatectl(line: str, kept: bool) -> None:
    assert clock.timedate(line) == {"source": "timedatectl", "offset_s": None, "synchronized": kept}
    assert clock.timedate("") is None


@pytest.fixture
def chronyc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often it was asked."""
    asked, program = tmp_path / "asked", tmp_path / "bin" / "chronyc"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho >>{asked}\necho A,1.2.3.4,4,1.0,0.25,0,0,0,0,0,0,0,0,Normal\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return lambda: len(asked.read_text().splitlines())


@pytest.mark.parametrize(
    ("age_s", "content", "asked"),
    [(0, None, 1), (50, None, 1), (70, None, 2), (-10, None, 2), (0, "{", 2), (0, "[]", 2), (0, "\udcff", 2)],
)
def test_a_node_asks_for_its_clock_once_a_minute(
    chronyc: Callable[[], int], tmp_path: Path, age_s: int, content: str | None, asked: int
) -> None:
    conf, file, measured = Conf(spool=str(tmp_path)), tmp_path / "clock.json", []
    for _ in range(2):
        gaps: list[Gap] = []
        measured.append((clock.kept(conf, gaps), gaps))
        if content is not None:
            file.write_text(content, errors="surrogateescape")
        os.utime(file, (time.time() - age_s,) * 2)
    assert measured == [({"source": "chronyc", "offset_s": 0.25, "synchronized": True}, [])] * 2
    assert chronyc() == asked and file.stat().st_mode & 0o777 == (0o600)


def test_the_gap_of_a_clock_is_kept_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = []
    for _ in range(2):
        gaps: list[Gap] = []
        told.append((clock.kept(Conf(spool=str(tmp_path)), gaps), gaps))
    assert told[0] == told[1] and told[0][0]["source"] == "unknown"
    assert [gap.why for gap in told[0][1]] == [
        "chronyc: No such file or directory; timedatectl: No such file or directory"
    ]


class TestCommand:
    def test_output_and_status(self) -> None:
        assert command.run(["sh", "-c", "echo out; echo err >&2"], limit_s=5) == command.Output("out\nerr\n", None)
        assert command.run(["sh", "-c", "echo bad; exit 3"], limit_s=5).why == "sh: exit 3: bad"
        assert command.run(["sh", "-c", "echo err >&2"], limit_s=5, errors=False).text == ""

    def test_a_missing_program(self) -> None:
        for name in ("/nonexistent", "nonexistent", "/etc/passwd", "/etc"):
            assert command.run([name], limit_s=5).why == f"{name}: No such file or directory"

    def test_children_that_hold_the_pipe_end_with_it(self) -> None:
        answer = command.run(["sh", "-c", "echo early; sleep 30 & sleep 30"], limit_s=0.3)
        assert answer == command.Output("early\n", "sh: no answer within 0.3 s")

    def test_one_that_is_stopped_is_not_waited_for(self) -> None:
        answer = command.run(["sh", "-c", "echo early; kill -STOP $$; echo late"], limit_s=600)
        assert answer == command.Output("early\n", "sh: it was stopped by a signal")

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can take another user's rights")
    def test_a_reader_that_its_user_stops_is_killed(self, tmp_path: Path) -> None:
        def stopped() -> str:
            (tmp_path / "pid").write_text(str(os.getpid()))
            rights.become(7001, 7001)
            os.kill(os.getpid(), signal.SIGSTOP)
            return "went on"

        answer = child.answer_of(stopped, limit_s=600, limit_bytes=1000)
        assert answer == command.Output("", "it was stopped by a signal")
        assert not Path("/proc", (tmp_path / "pid").read_text()).exists()

    def test_endless_output_is_cut(self) -> None:
        answer = command.run(["sh", "-c", "yes"], limit_s=20, limit_bytes=1000)
        assert answer.cut and answer.why is None and len(answer.text) == 1000
