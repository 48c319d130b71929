"""Large packed files: through pipes and in blocks, so that memory does not depend on what is inside."""

from __future__ import annotations

import bz2
import gzip
import lzma
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_slurm.model import Parsed
from nccl_slurm.parse import zstd
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.patterns import load_rows
from tests.parse.conftest import NOW

ROWS = load_rows()
FILLER = b"2026-11-29 10:00:00 step 12/500 loss 2.31 lr 1e-4 tokens/s 51234\n" * 1000
BLOCKS = 500
TEXT = FILLER * BLOCKS + b"[rank3]: ValueError: bad shard\n" + FILLER
PROGRAM = zstd.program()


def by_program(data: bytes) -> bytes:
    assert PROGRAM is not None
    return subprocess.run([PROGRAM, "-cq1"], input=data, capture_output=True, check=True).stdout


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 1, mtime=0),
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": by_program,
}
needs_zstd = pytest.mark.skipif(PROGRAM is None, reason="no zstd at its fixed places")
KINDS = [pytest.param(kind, marks=needs_zstd if kind == "zst" else ()) for kind in PACK]


@pytest.fixture(autouse=True)
def no_reader_of_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Python before 3.14 without the package of PyPI."""
    for name in ("compression", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)


def read(path: Path) -> Parsed:
    sources, _ = walk(str(path))
    return read_sources(sources, ROWS, now=NOW)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_does_not_depend_on_what_is_inside(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.log.{kind}"
    path.write_bytes(PACK[kind](TEXT))
    assert len(TEXT) > 30 << 20
    tracemalloc.start()
    try:
        parsed = read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [(one.rank, one.line, one.offset) for one in parsed.facts] == [(3, 1000 * BLOCKS + 1, len(FILLER) * BLOCKS)]
    assert parsed.gaps == () and parsed.bytes_read == len(TEXT)
    assert peak < 12 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_members_that_follow_one_another_are_one_text(kind: str, tmp_path: Path) -> None:
    """As log rotation appends them."""
    path = tmp_path / f"x.log.{kind}"
    path.write_bytes(PACK[kind](b"start\n" * 100) + PACK[kind](b"ValueError: x\n"))
    assert [(fact.line, fact.offset) for fact in read(path).facts] == [(101, 600)]


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_file_that_is_cut_off_the_rest_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.log.{kind}"
    raw = PACK[kind](b"ValueError: x\n" + FILLER * 20)
    path.write_bytes(raw + PACK[kind](FILLER * 100)[:-20])
    parsed = read(path)
    assert [fact.text for fact in parsed.facts] == ["ValueError: x"]
    assert [(gap.source, gap.why[:26]) for gap in parsed.gaps] == [(path.name, "can't be read to its end: ")]


@needs_zstd
@pytest.mark.parametrize("raw", [b"\x28\xb5\x2f\xfd" + b"x" * 50, b"\x28\xb5\x2f\xfd"], ids=["rubbish", "empty"])
def test_zstd_that_is_none_is_a_gap(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.log.zst").write_bytes(raw)
    parsed = read(tmp_path)
    assert parsed.facts == () and "zstd ended with status" in parsed.gaps[0].why


def test_where_nothing_reads_zstd_there_is_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zstd, "_PATHS", ("/nonexistent/zstd",))
    (tmp_path / "x.log.zst").write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 50)
    (tmp_path / "y.log").write_bytes(b"ValueError: x\n")
    parsed = read(tmp_path)
    assert [fact.file for fact in parsed.facts] == ["y.log"]
    assert [(gap.source, gap.why[:37]) for gap in parsed.gaps] == [
        ("x.log.zst", "can't be read: zstd is not read here ")
    ]
