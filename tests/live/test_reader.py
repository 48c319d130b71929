"""What comes back from the nodes is text that the job's user could have printed."""

from __future__ import annotations

import base64
import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.capture.live import packed
from nccl_slurm.live import reader
from nccl_slurm.live.look import Answer
from nccl_slurm.live.reader import Collected


def answer(**more: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"facts": [], "ranks": [], "gaps": [], "files": [], "world_size": 4, "bytes_read": 1}
    return {**empty, "lines_unknown": 0, "now": 1000.0, **more}


def collected(*lines: str, nodes: tuple[str, ...] = ("n1", "n2")) -> Collected:
    made = Collected(nodes)
    for line in lines:
        made.feed(line)
    return made


def of(value: object, node: str = "n1") -> str:
    data = base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()
    return f"{node} 0 1 {data}"


def test_lines_of_nodes_come_in_any_order() -> None:
    gaps = [{"source": f"s{number}", "why": random.Random(number).randbytes(400).hex()} for number in range(20)]
    lines = [*packed("n1", answer(gaps=gaps)), *packed("n2", answer(gaps=gaps))]
    random.Random(7).shuffle(lines)
    made = collected(*lines)
    assert made.whole == 2
    told = made.answers("none")
    assert [len((told[node].told or {})["gaps"]) for node in ("n1", "n2")] == [20, 20]


def test_nodes_that_gave_nothing_get_the_reason() -> None:
    made = collected(of(answer()), "srun: error: n2: something")
    assert made.words == "srun: error: n2: something"
    told = made.answers("no answer")
    assert told["n1"].told is not None and told["n2"] == Answer(None, "no answer")


def test_a_node_that_is_not_the_jobs_is_no_node() -> None:
    made = collected(of(answer(), "n9"))
    assert made.whole == 0 and set(made.answers("none")) == {"n1", "n2"}


@pytest.mark.parametrize(
    "line",
    [
        "n1 0 1 not-base64!",
        of([1, 2]),
        of("text"),
        "n1 0 1 " + base64.b64encode(b"no zlib").decode(),
        "n1 0 1 " + base64.b64encode(zlib.compress(b"[" * 100_000)).decode(),
        "n1 0 1 " + base64.b64encode(zlib.compress(b"\xff\xfe")).decode(),
    ],
    ids=["base64", "list", "text", "zlib", "deep", "bytes"],
)
def test_an_answer_of_another_shape_is_none(line: str) -> None:
    told = collected(line).answers("none")["n1"]
    assert told.told is None and "can't be read" in told.why


def test_a_bomb_is_not_unpacked() -> None:
    bomb = base64.b64encode(zlib.compress(b" " * (reader.MAX_BYTES + 10))).decode()
    assert collected(f"n1 0 1 {bomb}").answers("none")["n1"].why == "its answer is too large"


def test_text_without_end_is_not_kept() -> None:
    made = Collected(["n1"])
    for number in range(10):
        made.feed(f"n1 {number} 999999999 " + "x" * (1 << 20))
    assert made.answers("none")["n1"].why == "its answer is too large"


@given(st.lists(st.text(max_size=60), max_size=20))
def test_no_line_is_a_fault(lines: list[str]) -> None:
    assert set(collected(*lines, *(f"n1 {line}" for line in lines)).answers("none")) == {"n1", "n2"}


def test_files_have_their_age_by_the_readers_clock() -> None:
    files = [{"path": "a", "size": 3, "mtime": 940.0}, {"path": "b", "size": 3, "mtime": 2000.0}, {"path": 7}, 8]
    found = reader.files_of(answer(files=files))
    assert [(one.name, one.age_s) for one in found] == [("a", 60.0), ("b", 0.0)]
    assert reader.files_of(answer(now=None, files=files)) == []
