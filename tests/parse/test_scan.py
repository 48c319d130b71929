"""The chosen lines, their numbers and offsets, whatever the blocks, ends of lines and packing."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.parse import scan
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.scan import Candidate, Scan

HIT = "NCCL version 2.21.5+cuda12.4"


def run(raw: bytes, rows: Rows, size: int | None = None) -> tuple[Scan, list[Candidate]]:
    found = Scan(io.BytesIO(raw), rows, size=size)
    return found, list(found)


def test_number_and_offset(rows: Rows) -> None:
    raw = f"a\n\n{HIT} first\nb\n{HIT} second".encode()
    done, found = run(raw, rows)
    assert [(one.number, one.offset, one.text) for one in found] == [
        (3, 3, f"{HIT} first"),
        (5, raw.index(b"second") - len(HIT) - 1, f"{HIT} second"),
    ]
    assert (done.bytes, done.lines, done.problem) == (len(raw), 5, None)


LINES = st.lists(st.sampled_from([HIT, "x", "", "é😀", f"glued {HIT}", "y" * 50]), max_size=60)


@given(lines=LINES, block=st.integers(100, 300), end=st.sampled_from(["\n", "\r\n"]))
def test_blocks_do_not_matter(lines: list[str], block: int, end: str, rows: Rows) -> None:
    raw = end.join(lines).encode()
    expected, at = [], 0
    for number, line in enumerate(lines, start=1):
        if HIT in line:
            expected.append((number, at, line))
        at += len((line + end).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "BLOCK", block)
        done, found = run(raw, rows)
    assert [(one.number, one.offset, one.text) for one in found] == expected
    assert done.bytes == len(raw)


@given(lines=LINES, block=st.integers(100, 300), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_inside_a_log_the_literals_find_the_same(lines: list[str], block: int, end: str, rows: Rows) -> None:
    """All that these lines say holds a literal; one traceback in ten lines has its lines below."""
    text = end.join(line if at % 10 else "Traceback (most recent call last):" for at, line in enumerate(lines, start=1))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BLOCK", block), ("HEAD", 64), ("TAIL", 64)):
            patch.setattr(scan, name, value)
        every, inside = (list(Scan(io.BytesIO(text.encode()), rows, log=log)) for log in (False, True))
    assert inside == every


def test_what_no_literal_finds_is_looked_for_at_both_ends_of_a_log(rows: Rows) -> None:
    anchor = next(one for one in rows.anchors if not any(literal in one for literal in rows.literals))
    dull = b"step 1 loss 2\n" * (scan.BLOCK // 7)
    packed = gzip.compress(b"%s\n%b%s\n%b%s\n" % (anchor, dull, anchor, dull, anchor))
    every, inside = (list(Scan(io.BytesIO(packed), rows, log=log)) for log in (False, True))
    assert (len(every), len(inside)) == (3, 2)
    assert inside == [every[0], every[-1]]


def test_a_carriage_return_starts_a_line_but_is_not_counted(rows: Rows) -> None:
    raw = f"a\n 5%\r 6%\r{HIT}\r 7%\n{HIT}\n".encode()
    _, found = run(raw, rows)
    assert [(one.number, one.text) for one in found] == [(2, HIT), (3, HIT)]
    assert [raw[one.offset : one.offset + 4] for one in found] == [b"NCCL", b"NCCL"]


def test_a_line_of_megabytes_is_shown_around_its_hit(rows: Rows) -> None:
    raw = b"x" * 3_000_000 + HIT.encode() + b"y" * 1_000_000 + f"\n{HIT}\n".encode()
    done, found = run(raw, rows)
    assert HIT in found[0].text and len(found[0].text) <= scan.LINE_LIMIT
    assert found[0].number == 1
    assert raw[found[0].offset :].startswith(found[0].text.encode())
    assert (found[-1].number, found[-1].text) == (2, HIT)
    assert done.problem is None


def test_broken_text(rows: Rows) -> None:
    _, found = run(b"\xff\xfe\x00" + HIT.encode() + b"\x00\x80\n", rows)
    assert found[0].text == f"\ufffd\ufffd\ufffd{HIT}\ufffd\ufffd"


@pytest.mark.parametrize("raw", [b"", b"\n", b"\r", b"\r\n\r\n", b"\x00"])
def test_nothing_to_find(raw: bytes, rows: Rows) -> None:
    done, found = run(raw, rows)
    assert not found and done.problem is None and done.bytes == len(raw)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed(pack: object, rows: Rows) -> None:
    assert callable(pack)
    raw = (("filler line\n" * 110_000) + HIT + "\n").encode()
    done, found = run(pack(raw) + pack(b"second member\n"), rows)
    assert [(one.number, one.offset) for one in found] == [(110_001, len(raw) - len(HIT) - 1)]
    assert done.problem is None and done.bytes == len(raw) + 14
    done, found = run(pack(raw)[:-20], rows)
    assert done.problem is not None and "cut off" in done.problem


def test_zstd_and_rubbish_after_a_magic_are_problems(rows: Rows) -> None:
    for raw in (
        b"\x28\xb5\x2f\xfd" + b"x" * 20,
        b"\x1f\x8b" + b"x" * 50,
        b"BZh" + b"x" * 50,
        b"\xfd7zXZ\x00zzzzzzzzzz",
    ):
        done, found = run(raw, rows)
        assert done.problem is not None and not found


def test_a_bomb_is_not_unpacked_whole(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "UNPACKED_LIMIT", 3 << 20)
    done, _ = run(gzip.compress(b"0" * (20 << 20)), rows)
    assert done.problem == "can't be read to its end: more than 4 GiB when unpacked"
    assert done.bytes <= 4 << 20


def test_a_file_that_grows_ends_at_its_size(rows: Rows) -> None:
    done, found = run(f"{HIT}\n{HIT}\n".encode(), rows, size=len(HIT) + 1)
    assert len(found) == 1 and done.bytes == len(HIT) + 1


def test_memory_does_not_depend_on_the_file(rows: Rows) -> None:
    class Endless(io.RawIOBase):
        left = 13

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"z" * size if self.left else b""

    tracemalloc.start()
    found = Scan(Endless(), rows)  # type: ignore[arg-type]
    assert list(found) == []
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.bytes == 12 << 20
    assert peak < 12 << 20


def test_lines_after_a_traceback_follow_over_blocks(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BLOCK", 128)
    raw = "Traceback (most recent call last):\n" + "".join(f"  line {i}\n" for i in range(400))
    _, found = run(raw.encode(), rows)
    assert [one.number for one in found] == list(range(1, 302))


def test_only_the_last_of_what_every_collective_prints(rows: Rows) -> None:
    start = "n1:8:9 [2] NCCL INFO AllReduce: opCount {:x} sendbuff 0x1 recvbuff 0x2 count 4 "
    line = start + "datatype 7 op 0 root 0 comm 0x5 [nranks=8] stream 0x5\n"
    raw = "".join(line.format(i) for i in range(1000))
    _, found = run(raw.encode(), rows)
    assert [one.number for one in found] == list(range(969, 1001))


def test_a_read_error_is_a_problem(rows: Rows) -> None:
    class Broken(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            raise OSError(5, "Input/output error")

    done = Scan(Broken(), rows)  # type: ignore[arg-type]
    assert list(done) == [] and "Input/output error" in str(done.problem)
