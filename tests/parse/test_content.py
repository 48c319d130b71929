"""Kinds of files in a folder of logs: packed, UTF-16, cut, empty, and those that are no log at all."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sys
import types
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_slurm.parse import content
from nccl_slurm.parse.folder import read_sources
from nccl_slurm.parse.patterns import Rows
from tests.parse.conftest import NOW, Read, source

LINE = "[rank3]: ValueError: bad shard\n"
TEXT = "é start\n" + LINE


def packed(data: bytes) -> bytes:
    """Without the second in which it was made: tests are named by their parameters."""
    return gzip.compress(data, mtime=0)


PACK: list[Callable[[bytes], bytes]] = [packed, bz2.compress, lzma.compress]


@pytest.mark.parametrize(
    ("raw", "offset"),
    [
        (TEXT.encode(), 9),
        (TEXT.encode("utf-16"), 9),
        (("\ufeff" + TEXT).encode("utf-16-be"), 9),
        (TEXT.replace("é", "日").encode("utf-16-le"), None),
        (("start.......................\n" + LINE).encode("utf-16-le"), 29),
        (("start.......................\n" + LINE).encode("utf-16-be"), 29),
        (("\ufeff" + TEXT).encode(), 12),
        (TEXT.replace("\n", "\r\n").encode(), 10),
        *((pack(TEXT.encode()), 9) for pack in PACK),
        (b"\x00" * 5000 + b"\n" + TEXT.encode(), 5010),
    ],
)
def test_text_in_all_its_forms(raw: bytes, offset: int | None, read: Read) -> None:
    facts = read(("rank3.log", raw)).facts
    if offset is None:  # without a mark and with other letters than ASCII it can't be told from binary
        assert facts == ()
        return
    assert [(fact.kind, fact.rank, fact.offset) for fact in facts] == [("python.exception", 3, offset)]


BINARY = [
    (b"\x7fELF\x02\x01\x01" + b"\x00" * 90, "a program or core dump (ELF), no log; not read"),
    (b"PK\x03\x04" + b"x" * 90, "an archive or checkpoint (zip), no log; not read"),
    (b"\x89HDF\r\n" + b"x" * 90, "an array file (HDF5), no log; not read"),
    (b"a" * 257 + b"ustar" + b"x" * 90, "an archive (tar), no log; not read"),
    (pickle.dumps({"model": 1}), "a pickle that is no flight recorder dump, no log; not read"),
    (
        b"\x10\x00\x00\x00\x00\x00\x00\x00" + b'{"__metadata__":{"a":"b"}}',
        "a checkpoint (safetensors), no log; not read",
    ),
]


@pytest.mark.parametrize(("raw", "why"), BINARY)
@pytest.mark.parametrize("pack", [bytes, packed])
def test_what_is_no_log_is_a_gap(raw: bytes, why: str, pack: Callable[[bytes], bytes], read: Read) -> None:
    parsed = read(("x.log", pack(raw + LINE.encode())))
    assert parsed.facts == ()
    assert [(gap.source, gap.why) for gap in parsed.gaps] == [("x.log", why)]


@pytest.mark.parametrize("raw", [b"", b"\n", b"\x00", "\ufeff".encode(), b"\xff\xfe", b"\x80", b"{", b"\x1f\x8b"])
def test_next_to_nothing(raw: bytes, read: Read) -> None:
    assert read(("x.log", raw)).facts == ()


def test_a_file_that_was_emptied_while_it_was_written_says_so(read: Read) -> None:
    parsed = read(("x.log", b"\x00" * 4096 + LINE.encode()))
    assert [fact.rank for fact in parsed.facts] == [3]
    assert [gap.why for gap in parsed.gaps] == [
        "starts with zero bytes: what stood there was cut off while it was written"
    ]


ENTRY = {
    "record_id": 0,
    "pg_id": 0,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 7,
    "profiling_name": "nccl:all_reduce",
    "state": "started",
    "is_p2p": False,
}
DUMP = {"version": "2.4", "pg_config": {"0": {"desc": "default_pg", "ranks": list(range(4))}}, "entries": [ENTRY]}


def waiting(read: Read, *files: tuple[str, bytes]) -> list[tuple[str | None, int | None]]:
    return [(fact.file, fact.rank) for fact in read(*files).facts if fact.kind == "flight-recorder.waiting"]


@pytest.mark.parametrize("pack", [bytes, *PACK])
def test_a_packed_dump_is_a_dump(pack: Callable[[bytes], bytes], read: Read) -> None:
    raw = pickle.dumps(DUMP)
    assert waiting(read, ("nccl_trace_rank_2", pack(raw))) == [("nccl_trace_rank_2", 2)]
    assert waiting(read, ("nccl_trace_rank_2.gz", pack(raw))) == [("nccl_trace_rank_2.gz", 2)]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_2", 2),
        ("comm_lib_trace_rank_3", 3),
        ("fr_2", 2),
        ("debug/my-job.3.pickle", 3),
        ("flight_recorder_0.json.gz", 0),
        ("fr_tp_rank_1", None),
        ("fr_7", None),  # the job has 4 ranks
        ("run423", None),
        ("trace", None),
    ],
)
def test_a_dump_of_any_name(name: str, rank: int | None, read: Read) -> None:
    assert waiting(read, (name, pickle.dumps(DUMP))) == [(name, rank)]
    assert any(name == gap.source for gap in read((name, pickle.dumps(DUMP))).gaps) == (rank is None)


def test_two_dumps_of_one_number_name_nobody(read: Read) -> None:
    raw = pickle.dumps(DUMP)
    assert waiting(read, ("a/fr_2", raw), ("b/fr_2", raw)) == [("a/fr_2", None), ("b/fr_2", None)]


def test_a_long_json_dump_has_its_keys_sorted(read: Read) -> None:
    frames = [{"name": "f" * 100, "filename": "x.py", "line": 1}] * 60
    raw = json.dumps({**DUMP, "entries": [{**ENTRY, "frames": frames}]}, sort_keys=True).encode()
    assert raw.index(b"pg_config") > 4096
    assert waiting(read, ("dump_1.json", raw)) == [("dump_1.json", 1)]


@pytest.mark.parametrize(
    "value",
    [
        [{**ENTRY}],  # torch 2.2: a list of entries
        {
            "version": "1.0",
            "entries": [{"seq_id": 7, "pg_id": 0, "profiling_name": "nccl:all_reduce", "state": "started"}],
        },
    ],
)
def test_dumps_of_older_schemas(value: object, read: Read) -> None:
    (status, fact) = read(("nccl_trace_rank_2", pickle.dumps(value))).facts
    assert (status.data["enqueued"], status.data["completed"]) == (7, -1)
    assert (fact.rank, fact.data["seq"], fact.data["op"]) == (2, 7, "nccl:all_reduce")


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "can't be read: empty flight recorder dump"),
        (pickle.dumps({"version": "2.4", "entries": []}), "a flight recorder dump without a single entry"),
        (pickle.dumps(DUMP)[:-30], "can't be read: flight recorder dump can't be read: "),
        (gzip.compress(pickle.dumps(DUMP), mtime=0)[:-30], "can't be read: packed file is cut off"),
    ],
)
def test_a_dump_that_tells_nothing_is_a_gap(raw: bytes, why: str, read: Read) -> None:
    parsed = read(("nccl_trace_rank_2", raw))
    assert not [fact for fact in parsed.facts if fact.kind == "flight-recorder.waiting"]
    assert [gap.source for gap in parsed.gaps] == ["nccl_trace_rank_2"] and parsed.gaps[0].why.startswith(why)


def test_without_a_reader_of_zstd_such_a_file_is_a_gap(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("compression", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    parsed = read(("x.log.zst", b"\x28\xb5\x2f\xfd" + b"x" * 50))
    assert [gap.why for gap in parsed.gaps] == [
        "can't be read: zstd is not read here (Python 3.14, backports.zstd or /usr/bin/zstd read it); unpack it first"
    ]


class Stored:
    """As `compression.zstd.ZstdDecompressor`, for frames of a length, a kind of body, and deflate in place of zstd."""

    def __init__(self) -> None:
        self.eof, self.unused_data, self.needs_input = False, b"", True
        self._inner, self._skip = zlib.decompressobj(), 4

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        data, self._skip = data[self._skip :], max(0, self._skip - len(data))
        out = self._inner.decompress(self._inner.unconsumed_tail + data, max(max_length, 0))
        self.eof, self.unused_data = self._inner.eof, self._inner.unused_data
        self.needs_input = not self._inner.unconsumed_tail and not self.eof
        return out


def test_frames_of_zstd_follow_one_another(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Python here has the real one; this proves the reading around it."""
    module = types.ModuleType("compression.zstd")
    module.ZstdDecompressor = Stored  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "compression", types.ModuleType("compression"))
    monkeypatch.setitem(sys.modules, "compression.zstd", module)
    frame = b"\x28\xb5\x2f\xfd"
    raw = frame + zlib.compress(b"start\n" * 100) + frame + zlib.compress(LINE.encode())
    (fact,) = read(("x.log.zst", raw)).facts
    assert (fact.rank, fact.line, fact.offset) == (3, 101, 600)
    bomb = frame + zlib.compress(b"0" * (8 << 20)) + raw
    chunks = content.recoded(io.BytesIO(bomb[10:]), bomb[:10], len(bomb))
    assert chunks is not None
    sizes = [len(chunk) for chunk in iter(lambda: chunks.read(1 << 20), b"")]
    assert sum(sizes) == (8 << 20) + 600 + len(LINE) and max(sizes) <= 1 << 20
    parsed = read(("x.log.zst", raw[:-3]))
    assert [gap.why for gap in parsed.gaps] == ["can't be read to its end: packed file is cut off"]
    assert waiting(read, ("nccl_trace_rank_2.zst", frame + zlib.compress(pickle.dumps(DUMP)))) == [
        ("nccl_trace_rank_2.zst", 2)
    ]


@given(
    raw=st.binary(max_size=200), magic=st.sampled_from([b"", b"\x1f\x8b", b"BZh9", b"\xfd7zXZ\x00", b"\xff\xfe", b"{"])
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_after_any_magic(raw: bytes, magic: bytes, rows: Rows) -> None:
    raw = magic + raw
    content.head(raw)
    content.binary(raw)
    recoded = content.recoded(io.BytesIO(raw[10:]), raw[:10], len(raw))
    while recoded is not None and recoded.read(1 << 20):
        pass
    for name in ("x.log", "nccl_trace_rank_1", "error.json"):
        read_sources([source(name, raw)], rows, now=NOW)
