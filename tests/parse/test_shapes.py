"""What is skipped before a line is read, against what the reader would have found in it: never less."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.parse import shapes as shapes_module
from nccl_slurm.parse import stamp
from nccl_slurm.parse.edges import Few
from nccl_slurm.parse.literals import covers
from nccl_slurm.parse.logfile import _shown
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.parse.prefix import strip
from nccl_slurm.parse.shapes import Thin
from nccl_slurm.parse.sift import shapes_of
from tests.parse import test_forms, test_lines
from tests.parse.conftest import NOW
from tests.parse.test_launchers import RANKED, docker, fluent

ROWS = load_rows()
LINES = [line for line, _ in (*test_lines.TORCH, *test_lines.NCCL, *test_lines.REST)]
LINES += [form["line"] for _, form in test_forms.CASES] + [row.yes for row in ROWS.rows]
LINES += [
    docker(RANKED),
    fluent(docker(RANKED)),
    docker(f"[1,12]<stdout>:{RANKED}"),
    docker("x").replace("<", "\\u003c"),
]
LINES += ["[1,12]<stderr>:x", '{"log": "[1,12]\\u003cstdout\\u003e:x"}', "(W[rank=5] pid=7) x", "[default:5/1]: x"]


def anchors_in(line: bytes) -> set[int]:
    return {number for anchor, numbers in ROWS.anchors.items() if anchor in line for number in numbers}


@pytest.mark.parametrize("line", LINES)
def test_no_row_is_missed_by_the_shape_of_a_line(line: str) -> None:
    shapes = shapes_of(ROWS)
    for text in (line.encode(), b"comm 0x7e20b3e13090 " + line.encode() + b" 0xabc", line.encode()):
        assert anchors_in(text) <= set(shapes.held(text).rows)
    raw = b"x 7\n" + line.encode() + b"\nx 8\n"
    found = {raw.find(anchor) for anchor in ROWS.ends} - {-1}
    assert covers(line) or found <= set(shapes.ends(raw, 0))
    assert not shapes.ends(raw, len(raw) - 4)
    far = raw[:-5] + b"\rNCCL WARN " + b"x" * 9000 + raw[-5:]
    for _ in range(2):  # what stands before a carriage return, or far from the literal, is not read for it
        assert found <= set(shapes.ends(raw[:-5] + b"\rNCCL WARN x" + raw[-5:], 0)) & set(shapes.ends(far, 0))


PIECES = st.sampled_from(
    [*(anchor.decode() for anchor in ROWS.anchors), "0x", "5", "ab", " ", "0xdead", "_", ":", "[rank3]: ", "\r"]
)


@given(st.lists(PIECES, max_size=6))
def test_no_row_is_missed_whatever_stands_around_its_anchor(pieces: list[str]) -> None:
    line = "".join(pieces).encode()
    assert anchors_in(line) <= set(shapes_of(ROWS).held(line).rows)


LABELS = (
    "[rank3]:",
    "[rank12]: ",
    "[1,5]<stderr>:",
    "[default:5/1]: ",
    "[RANK 7] ",
    "(W[rank=31] pid=7) ",
    "3: ",
    "n1: ",
)
TIMES = ("2026-11-29 10:00:00 ", "[E1129 18:44:12.715 x.cpp:6] ", "1790000000.5", "libfabric:7:1790000000", "  {", "x ")
FRONT = st.sampled_from((*LABELS, *TIMES))


@given(st.lists(FRONT, max_size=4), st.booleans())
def test_a_line_that_has_a_rank_or_a_time_is_said_to_tell_it(parts: list[str], wrapped: bool) -> None:
    line = "".join(parts)
    tells(docker(line) if wrapped else line)


@pytest.mark.parametrize("line", LINES)
def test_every_form_that_has_a_rank_or_a_time_is_said_to_tell_it(line: str) -> None:
    tells(line)


def tells(line: str) -> None:
    prefix = strip(line)
    few = Few([b"first", line.encode(), b"last"])
    assert 1 in few.ranked or prefix.rank is None
    timed = stamp.find(_shown(prefix, line), NOW) or stamp.find(prefix.stamp or "", NOW)
    assert few.tells_time(1) or timed is None


def test_lines_that_are_alike() -> None:
    thin = Thin({b"Channel ": (b" via ", 7), b"Ring ": (b" via ", 8)}, 2)
    line = b"n1:8:9 [2] Channel %02d/0 : 0 -> 1 via NET/IB/%d"
    raw = b"\n" + b"\n".join(line % (number, number % 8) for number in range(24)) + b"\n"
    read = []
    at = raw.find(b"Channel ")
    while at >= 0:
        start, end = raw.rfind(b"\n", 0, at) + 1, raw.find(b"\n", at)
        if not thin.repeats(raw, at, end) and not thin.leaves_out(raw[start:end]):
            read.append(raw[start:end])
        at = raw.find(b"Channel ", end)
    assert read == [line % (0, 0), line % (1, 1)] and thin.left_out == {7: 22}
    other = b"\nn1:8:10 [2] Channel 05/0 : 0 -> 1 via NET/IB/5\n"
    assert not thin.repeats(other, other.index(b"Channel "), len(other) - 1)
    assert not thin.leaves_out(other.strip())
    another = b"\nn1:8:9 [2] Ring 05/0 : 0 -> 1 via NET/IB/5\n"
    assert thin.repeats(another, another.index(b"Ring "), len(another) - 1) and thin.left_out == {7: 22, 8: 1}


def _left_out(raw: bytes, *, together: bool) -> tuple[list[int], dict[int, int]]:
    """Starts of the lines that are read, and what is counted."""
    thin = Thin({b"Channel ": (b" via ", 7), b"Ring ": (b" via ", 8)}, 2)
    read, at = [], raw.find(b"Channel ")
    while at >= 0:
        start, end = raw.rfind(b"\n", 0, at) + 1, raw.find(b"\n", at)
        end = len(raw) if end < 0 else end
        below = thin.repeated(raw, at) if together else -1
        if below < 0 and not thin.leaves_out(raw[start:end]):
            read.append(start)
        at = raw.find(b"Channel ", max(end, below))
    return read, thin.left_out


CHANNELS = st.builds(
    lambda front, number, peer, via, end: f"{front}Channel {number:02d}/0 : 0 -> {peer}{via}{end}",
    st.sampled_from(["n1:8:9 [2] ", "n1:8:9 [2] ", "n1:8:10 [3] ", "7: ", ""]),
    st.integers(0, 30),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([" via NET/IB/3", " via NET/IB/12", " via P2P", " via ", "", " via P2P Channel 5 via P2P"]),
    st.sampled_from(["\n", "\n", "\n", "\nother\n", " \n", ""]),
)


@given(st.lists(CHANNELS, max_size=40), st.integers(20, 400))
def test_lines_that_are_alike_are_the_same_ones_together(lines: list[str], run: int) -> None:
    raw = b"\n" + "".join(lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shapes_module, "_RUN", run)
        assert _left_out(raw, together=True) == _left_out(raw, together=False)
