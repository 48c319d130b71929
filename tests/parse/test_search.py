"""What large files are searched for, that every way of searching finds the same, and that the reader misses nothing."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import re
import stat
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_slurm.model import Gap, Parsed
from nccl_slurm.parse import search, sift
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.literals import LITERALS_LIMIT, covers
from nccl_slurm.parse.patterns import Row, Rows, load_rows
from nccl_slurm.parse.prefix import strip
from nccl_slurm.parse.scan import LINE_LIMIT
from nccl_slurm.parse.search import Hit, Program, Search, blocks, fastest, grep
from nccl_slurm.parse.shapes import Shapes
from tests.parse import test_forms, test_lines
from tests.parse.conftest import NOW
from tests.parse.test_ras import output, rank

ROWS = load_rows()
FORMS = [form["line"] for _, form in test_forms.CASES if form["kind"] != "none"]
LINES = [line for line, _ in (*test_lines.TORCH, *test_lines.NCCL, *test_lines.REST)] + FORMS
#: What such a line says is quoted by a program that has said "Last error:" or "terminate called" a line before.
QUOTED = ("  what():  ", "NET/IB : Got completion")
#: The blocks are the program that can't be started.
NONE = Program("/nonexistent/search", ())
FILLER = "2026-11-29 10:00:00 step 12/500 loss 2.31 lr 1e-4 tokens/s 51234\n"


def programs() -> list[Program]:
    found = [NONE, *(one for one in (grep(),) if one is not None)]
    rg = fastest()
    return found if rg is None or rg in found else [*found, rg]


# ---- the cover


def test_there_are_few_literals() -> None:
    assert len(ROWS.literals) <= LITERALS_LIMIT
    assert len(ROWS.ends) <= 40


@pytest.mark.parametrize("row", ROWS.rows, ids=[row.id for row in ROWS.rows])
def test_a_row_is_searched_for_or_says_where_it_is_read(row: Row) -> None:
    """What fails here: a part of its lines that has a literal belongs to the sample, or `where` to the row."""
    assert covers(row.yes) or row.where is not None or row.tail
    if row.where == "ends":
        for anchor in row.anchor:
            assert covers(anchor) or any(part in anchor.encode() for part in ROWS.ends), anchor


@pytest.mark.parametrize("line", LINES)
def test_every_form_of_a_line_is_searched_for_or_its_row_says_where_it_is_read(line: str) -> None:
    found = ROWS.find(strip(line).text)
    assert found is not None
    assert covers(line) or found[0].where is not None or found[0].tail or line.startswith(QUOTED)


def test_no_literal_has_a_character_that_is_escaped_in_a_container_log() -> None:
    for literal in (*ROWS.literals, *ROWS.ends):
        assert json.dumps(literal.decode())[1:-1] == literal.decode() and not re.search(rb"[<>&]", literal)


def test_a_row_of_a_site_is_searched_for(patterns_toml: str, tmp_path: Path) -> None:
    from nccl_slurm.parse.patterns import compile_rows
    from tests.parse.test_rows import SITE

    path = tmp_path / "rows.json"
    path.write_text(compile_rows(patterns_toml, [SITE]))
    rows = load_rows(str(path))
    assert rows.literals == (*ROWS.literals, b"SITE-DONE")
    for program in programs():
        parsed = read(tmp_path, FILLER * 3000 + "x SITE-DONE step=7\n" + FILLER * 3000, program, rows)
        assert [(fact.kind, fact.line) for fact in parsed.facts] == [("framework.site-done", 3001)]


# ---- the same hits


def hits(path: Path, program: Program, literals: Sequence[bytes], size: int | None = None) -> list[Hit]:
    """The first of each line; a carriage return ends one too."""
    raw = path.read_bytes()[:size]
    with path.open("rb") as file, closing(Search([file], [len(raw)], literals, program)) as found:
        told = [hit for some in found.of(0) for hit in some]
    assert (found.problem is None) == (program != NONE)
    assert all(number == raw.count(b"\n", 0, offset) + 1 for offset, number in told)

    def line(hit: Hit) -> int:
        return max(raw.rfind(b"\n", 0, hit[0]), raw.rfind(b"\r", 0, hit[0]))

    return [next(group) for _, group in groupby(told, line)]


PARTS = st.sampled_from(
    [
        b"rror",
        b"NCCL WARN ",
        b"rr",
        b"NCCL ",
        b"\n",
        b"\r",
        b"\r\n",
        b"\x00",
        b"\xff\xfe",
        b"x" * 40,
        "é😀".encode(),
        b" ",
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(PARTS, max_size=80))
def test_all_programs_find_the_same(parts: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(parts))
    first, *others = [hits(path, program, (b"rror", b"NCCL WARN ")) for program in programs()]
    assert all(one == first for one in others)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"rror",
        b"\xff\xfer\x00r\x00o\x00r\x00\n",
        b"x" * 3_000_000 + b"rror" + b"y" * 3_000_000 + b"rror\nrror",
        b"-rror\n--rror\n",
        FILLER.encode() * 40_000 + b"rror\n",
    ],
    ids=["empty", "one", "utf-16", "long", "dash", "far"],
)
def test_all_programs_find_the_same_in(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(raw)
    first, *others = [hits(path, program, (b"rror", b"-rror")) for program in programs()]
    assert all(one == first for one in others)
    assert len(first) == len(re.findall(rb"(?m)^.*rror", raw))


def test_what_grew_behind_the_size_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"rror\nrror\n")
    for program in programs():
        assert hits(path, program, (b"rror",), size=5) == [(0, 1)]


def test_a_literal_over_the_border_of_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = b"abcd" * 64 + b"NCCL WARN " + b"x" * 64 + b"\nNCCL WARN \n"
    for block in range(16, 64):
        monkeypatch.setattr(search, "BLOCK", block)
        some = blocks(lambda size, offset: raw[offset : offset + size], (b"NCCL WARN ", b"rror"))
        assert [hit for hits in some for hit in hits] == [(256, 1), (331, 2)]


def test_files_that_are_not_asked_for_are_passed_over(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.log" for number in range(5)]
    for number, path in enumerate(paths):
        path.write_bytes(b"x\n" * number + b"rror\nrror\n")
    for program in programs():
        files = [path.open("rb") for path in paths]
        with closing(Search(files, [100] * 5, (b"rror",), program)) as found:
            assert next(found.of(0))[0] == (0, 1)
            assert list(found.of(2)) == [[(4, 3), (9, 4)]]
            assert list(found.of(4)) == [[(8, 5), (13, 6)]]
        for file in files:
            file.close()


def test_hits_that_are_passed_by_need_not_be_told(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"".join(b"rror %d\n" % number for number in range(1000)) + b"NCCL WARN \nrror\n" + b"rror\n" * 99)
    expected = hits(path, NONE, (b"rror", b"NCCL WARN "))
    assert len(expected) == 1101
    for program in programs():
        with path.open("rb") as file, closing(Search([file], [1 << 20], (b"rror", b"NCCL WARN "), program)) as found:
            told = []
            for some in found.of(0):
                told += some
                found.pass_by(expected[1000][0])
            assert told == (expected if program == NONE else expected[:1] + expected[1000:])


# ---- the same facts


def read(folder: Path, text: str | bytes, program: Program | None = None, rows: Rows = ROWS) -> Parsed:
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    (logs / "rank_3.log").write_bytes(text.encode() if isinstance(text, str) else text)
    sources, _ = walk(str(logs))
    return read_sources(sources, rows, now=NOW, program=program)


def gaps(parsed: Parsed) -> list[Gap]:
    """Without that of a program that could not be started."""
    return [gap for gap in parsed.gaps if gap.source != "search"]


def whole(folder: Path, text: str | bytes) -> Parsed:
    """As small files are read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nccl_slurm.parse.folder.WHOLE", 1 << 40)
        return read(folder, text)


def everywhere() -> Iterator[str]:
    """Lines that are read wherever they stand, each with more text around it than a window has."""
    for line in [*(row.yes for row in ROWS.rows), *LINES]:
        row = ROWS.find(strip(line).text)
        if row is not None and row[0].where is None and not row[0].tail and "Traceback" not in line:
            yield f"Last error:\n{line}" if line.startswith(QUOTED) else line


def test_lines_in_the_middle_of_a_large_file(tmp_path: Path) -> None:
    filler = FILLER * 700
    text = filler + "".join(f"{line}\n{filler}" for line in everywhere()) + filler
    expected = whole(tmp_path, text)
    assert len({fact.kind for fact in expected.facts}) > 100
    for program in programs():
        found = read(tmp_path, text, program)
        assert found.facts == expected.facts
        assert 0 < found.lines_unknown < expected.lines_unknown  # behind the last line of interest none is counted
        assert [(rank.rank, rank.first, rank.last, rank.last_line) for rank in found.ranks] == [
            (rank.rank, rank.first, rank.last, rank.last_line) for rank in expected.ranks
        ]


def test_lines_at_the_ends_of_a_large_file(tmp_path: Path) -> None:
    lines = [row.yes for row in ROWS.rows if row.where == "ends" and row.producer not in ("elastic", "python")]
    text = "".join(f"{line}\n{FILLER}" for line in lines[:8])
    text += FILLER * 4000 + "".join(f"{line}\n{FILLER}" for line in lines) + FILLER * 100
    expected = whole(tmp_path, text)
    assert len(expected.facts) >= len(lines) + 8
    for program in programs():
        assert read(tmp_path, text, program).facts == expected.facts


@pytest.mark.parametrize("line", LINES)
def test_a_small_file_is_searched_as_a_large_one(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = ROWS.find(strip(line).text)
    if line.startswith(QUOTED) or (found is not None and found[0].where == "own"):
        return
    text = f"start\n\n{line}\nend\n"
    expected = whole(tmp_path, text)
    monkeypatch.setattr("nccl_slurm.parse.folder.WHOLE", 0)
    parsed = read(tmp_path, text, NONE)
    assert (parsed.facts, parsed.ranks, gaps(parsed)) == (expected.facts, expected.ranks, gaps(expected))
    assert parsed.world_size == expected.world_size


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_failure_table_and_a_traceback_in_the_middle(end: str, tmp_path: Path) -> None:
    from tests.parse.test_folder import TABLE, TRACEBACK

    failed = f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{TABLE}"
    text = FILLER * 3000 + TRACEBACK + "mylib.Bad: x\n" + FILLER * 3000 + failed + FILLER * 3000
    text = text.replace("\n", end)
    expected = whole(tmp_path, text)
    assert {"python.exception", "elastic.failure"} <= {fact.kind for fact in expected.facts}
    for program in programs():
        assert read(tmp_path, text, program).facts == expected.facts


def test_a_progress_bar_of_megabytes_is_one_line(tmp_path: Path) -> None:
    bar = "".join(f"Training: {step}%|####| {step}/500\r" for step in range(60_000))
    text = f"{bar}RuntimeError: CUDA error: invalid device ordinal\r{bar}\nValueError: x\n" + FILLER * 3000
    for program in programs():
        facts = read(tmp_path, text, program).facts
        assert [(fact.kind, fact.line) for fact in facts] == [("cuda.device-choice", 1), ("python.exception", 2)]
        assert text.encode()[facts[0].offset or 0 :].startswith(b"RuntimeError: CUDA")


def test_the_numbers_of_lines_in_a_folder_of_large_files(tmp_path: Path) -> None:
    """One program searches them one after the other; NCCL's channels are passed by in each."""
    channel = "n0:{0}:{0} [0] NCCL INFO Channel {1:02d}/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    for own in range(4):
        middle = f"{FILLER * (3000 + own)}RuntimeError: CUDA error: invalid device ordinal\n{FILLER * 3000}"
        start = "".join(channel.format(4000 + own, number) for number in range(64))
        (tmp_path / f"rank_{own}.log").write_text(f"{start}{middle}ValueError: x\nlast\n", newline="")
    raw = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for program in programs():
        facts = read_sources(walk(str(tmp_path))[0], ROWS, now=NOW, program=program).facts
        ends = [(fact.rank, fact.line) for fact in facts if fact.producer in ("cuda", "python")]
        assert ends == [(own, line + own) for own in range(4) for line in (3065, 6066)]
        for fact in facts:
            assert fact.line == raw[str(fact.file)].count(b"\n", 0, fact.offset) + 1


def test_the_last_lines_of_ranks_that_share_a_large_file(tmp_path: Path) -> None:
    """One went silent a hundred lines before the others."""
    line = "[1,{}]<stdout>:2026-11-29 10:{:02d}:{:02d} step {}\n"
    text = "".join(line.format(rank, *divmod(step, 60), step) for step in range(2000) for rank in range(4))
    text += "".join(line.format(rank, 59, 0, 3540) for rank in (0, 1, 3) * 60)
    expected = whole(tmp_path, text)
    assert [rank.last_line for rank in expected.ranks][2] == line.format(2, 33, 19, 1999).rstrip()
    for program in programs():
        assert read(tmp_path, text, program).ranks == expected.ranks


def test_the_last_collectives_and_no_others(tmp_path: Path) -> None:
    start = "n1:8:9 [2] NCCL INFO AllReduce: opCount {:x} sendbuff 0x1 recvbuff 0x2 count 4 datatype 7 op 0 root 0 "
    line = start + "comm 0x5 [nranks=8] stream 0x5\n"
    text = "".join(line.format(number) for number in range(3000)) + FILLER * 10
    for program in programs():
        facts = read(tmp_path, text, program).facts
        assert [fact.data["count"] for fact in facts][-1] == 2999
        assert [fact.line for fact in facts][-1] == 3000
        assert min(fact.line or 0 for fact in facts) == 2969


def test_channels_that_are_alike_are_counted(tmp_path: Path) -> None:
    line = "n1:8:9 [2] NCCL INFO Channel {:02d}/0 : {}[2] -> {}[3] via {}\n"
    text = FILLER * 3000 + "".join(
        line.format(channel, peer, peer + 1, via.format(channel % 8))
        for peer in range(3)
        for channel in range(24)
        for via in ("NET/IB/{}/GDRDMA", "P2P/CUMEM")
    )
    for program in programs():
        parsed = read(tmp_path, text, program)
        seen = [(fact.data["group_from"], fact.data["via"].rstrip("0123456789/GDRMA")) for fact in parsed.facts]
        assert len(seen) == 12 and len(set(seen)) >= 3
        assert parsed.lines_unknown <= 3000
        assert [gap.why.split()[0] for gap in parsed.gaps if gap.source == "nccl.channel"] == ["132"]


def test_shapes_are_made_for_large_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Rows] = []

    def shapes_of(rows: Rows) -> Shapes:
        made.append(rows)
        return sift.shapes_of(rows)

    monkeypatch.setattr("nccl_slurm.parse.folder.shapes_of", shapes_of)
    assert read(tmp_path, "ValueError: x\n").facts and not made
    assert read(tmp_path, FILLER * 3000 + "ValueError: x\n").facts and len(made) == 1


def test_kernel_logs_are_read_whole(tmp_path: Path) -> None:
    record = "[12345.678901] eth0: something ordinary of a kernel\n"
    text = record * 4000 + "[12399.000001] mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN\n" + record * 4000
    assert [fact.kind for fact in read(tmp_path, text).facts] == ["kernel.link-down"]


WRAPPED = [
    lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": "2026-11-29T10:00:00.5Z"}),
    lambda line: f"2026-11-29T10:00:00.123456789+01:00 stderr F {line}",
    lambda line: json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1790000000123456", "_HOSTNAME": "n1"}),
    lambda line: json.dumps({"date": 1790000000.1, "log": f"2026-11-29T10:00:00Z stdout F {line}"}),
    lambda line: f"n1: {line}",
    lambda line: f"{line}\r",
]


@pytest.mark.parametrize("wrap", WRAPPED, ids=["docker", "cri", "journald", "fluent-bit", "pdsh", "carriage"])
def test_lines_in_wrappings_in_the_middle_of_a_large_file(wrap: Callable[[str], str], tmp_path: Path) -> None:
    filler = "".join(f"{wrap(line)}\n" for line in FILLER.splitlines()) * 600
    blocks = ("".join(f"{wrap(line)}\n" for line in lines.splitlines()) for lines in everywhere())
    text = filler + "".join(block + filler for block in blocks)
    expected = whole(tmp_path, text)
    assert len({fact.kind for fact in expected.facts}) > 60
    for program in programs():
        found = read(tmp_path, text, program)
        assert found.facts == expected.facts
        assert gaps(found) == gaps(expected)


RECODED: list[Callable[[str], bytes]] = [
    lambda text: text.encode("utf-16"),
    lambda text: text.encode("utf-16-be"),
    lambda text: text.encode("utf-16-le"),
    lambda text: gzip.compress(text.encode(), 0),
    lambda text: lzma.compress(random.Random(1).randbytes(2 * sift.WHOLE).hex().encode() + text.encode()),
]


@pytest.mark.parametrize("recode", RECODED, ids=["utf-16", "utf-16-be", "utf-16-le", "gzip", "xz"])
def test_what_literals_can_not_see_in_is_read_whole(recode: Callable[[str], bytes], tmp_path: Path) -> None:
    raw = recode(FILLER * 3000 + "ValueError: x\n" + FILLER * 3000)
    assert len(raw) > sift.WHOLE
    for program in programs():
        facts = read(tmp_path, raw, program).facts
        assert [(fact.kind, fact.line) for fact in facts[-1:]] == [("python.exception", 3001)]


def test_a_large_file_that_starts_with_a_hole(tmp_path: Path) -> None:
    for hole in (b"\x00" * 5000, b"\x00" * 300_000):
        raw = hole + f"ValueError: x\n{FILLER * 3000}ValueError: y\n{FILLER * 3000}".encode()
        expected = whole(tmp_path, raw)
        assert [fact.line for fact in expected.facts] == [1, 3002]
        assert [gap.why[:22] for gap in expected.gaps] == ["starts with zero bytes"]
        for program in programs():
            found = read(tmp_path, raw, program)
            assert gaps(found) == gaps(expected)
            if len(hole) < LINE_LIMIT:
                assert found.facts == expected.facts
            else:  # of a line that is cut, each way shows what stands around its own first find
                assert [(fact.kind, fact.line) for fact in found.facts] == [
                    ("python.exception", 1),
                    ("python.exception", 3002),
                ]


@pytest.mark.parametrize(
    "raw", [b"\x7fELF\x02\x01\x01" + b"\x00" * 90, b"a" * 257 + b"ustar" + b"x" * 90], ids=["core", "tar"]
)
def test_a_large_file_that_is_no_log_is_not_searched(raw: bytes, tmp_path: Path) -> None:
    raw += b"ValueError: x\n" * 20_000
    for program in programs():
        parsed = read(tmp_path, raw, program)
        assert parsed.facts == () and [gap.why[-16:] for gap in parsed.gaps] == ["no log; not read"]


def test_a_large_answer_of_ras_in_json_is_no_log(tmp_path: Path) -> None:
    value = output(*(rank(number, 7 if number else 5) for number in range(3000)))
    raw = json.dumps(value, indent=2).encode()
    assert len(raw) > sift.WHOLE
    expected = whole(tmp_path, raw)
    assert "nccl.ras-mismatch" in {fact.kind for fact in expected.facts}
    for program in programs():
        assert read(tmp_path, raw, program).facts == expected.facts


def test_a_large_answer_of_ras_is_read_whole(tmp_path: Path) -> None:
    part = "#0-{} (fa93daea854b{:04x}) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
    ranks = "  Rank 12 has launched up to operation 639 -- GPU 4 managed by process 3230 on node 10.0.0.9\n"
    text = "".join(part.format(number, number) + ranks for number in range(1000))
    assert len(text) > sift.WHOLE
    for program in programs():
        assert read(tmp_path, text, program).facts == whole(tmp_path, text).facts
        assert len(read(tmp_path, text, program).facts) >= 1000


KERNEL = [
    "[12345.678901] ",
    "<6>[12345.678901] ",
    "kern  :err   : [12345.678901] ",
    "[   +0.000012] ",
    "[Nov29 10:00] ",
    "[Sun Nov 29 10:00:00 2026] ",
    "Nov 29 10:00:00 n1 kernel: ",
    "1790000000.123456 n1 kernel: ",
]


@pytest.mark.parametrize("prefix", KERNEL)
def test_kernel_logs_of_every_form_are_read_whole(prefix: str, tmp_path: Path) -> None:
    text = (prefix + "eth0: something ordinary of a kernel\n") * 4000
    text += prefix + "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN\n" + text
    assert [(fact.kind, fact.line) for fact in read(tmp_path, text).facts] == [("kernel.link-down", 4001)]


def test_a_kernel_log_of_journald_is_read_whole(tmp_path: Path) -> None:
    def record(text: str) -> str:
        return json.dumps({"_TRANSPORT": "kernel", "MESSAGE": text, "_HOSTNAME": "n1"}) + "\n"

    text = record("eth0: something ordinary of a kernel") * 4000
    text += record("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN") + text
    assert [(fact.kind, fact.line) for fact in read(tmp_path, text).facts] == [("kernel.link-down", 4001)]


# ---- programs that fail


BROKEN = """#!{python}
import os, signal, sys
last = sys.argv[-1]
sys.stdout.buffer.write(last.encode() + b"\\0" + b"3001:{offset}:rror\\n" + b"rubbish\\n" + last.encode() + b"\\0x\\n")
sys.stdout.flush()
{end}
"""


@pytest.mark.parametrize("end", ["sys.exit(2)", "os.kill(os.getpid(), signal.SIGKILL)", "sys.exit(127)"])
def test_a_program_that_fails_costs_no_fact(end: str, tmp_path: Path) -> None:
    text = FILLER * 3000 + "ValueError: x\n" + FILLER * 3000 + "ValueError: y\n" + FILLER * 3000
    path = tmp_path / "search"
    path.write_text(BROKEN.format(python=sys.executable, offset=text.index("ror: x") - 1, end=end))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    parsed = read(tmp_path, text, Program(str(path), ()))
    assert [(fact.line, fact.text) for fact in parsed.facts] == [(3001, "ValueError: x"), (6002, "ValueError: y")]
    assert [gap.source for gap in parsed.gaps] == ["search"]


def test_memory_does_not_depend_on_the_file(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "a.log"
    with path.open("wb") as file:
        for _ in range(64):
            file.write(FILLER.encode() * 15_000 + b"ValueError: x\n")
    sources, _ = walk(str(tmp_path / "logs"))

    def peak(run: Callable[[], object]) -> int:
        tracemalloc.start()
        run()
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    for program in programs():
        assert peak(lambda program=program: read_sources(sources, ROWS, now=NOW, program=program)) < 9 << 20  # type: ignore[misc]


def test_the_descriptors_are_the_files(tmp_path: Path) -> None:
    """The name is another file's by the time of the search."""
    text = FILLER * 3000 + "ValueError: x\n"
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "rank_3.log"
    path.write_text(text)
    sources, _ = walk(str(tmp_path / "logs"))

    def opened() -> object:
        file = sources[0].open()
        path.unlink()
        path.write_text(FILLER * 4000)
        return file

    for program in programs():
        path.write_text(text)
        source = sources[0]._replace(open=opened)  # type: ignore[arg-type]
        assert [fact.line for fact in read_sources([source], ROWS, now=NOW, program=program).facts] == [3001]


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("ValueError: x\n" + FILLER * 10)
    with path.open("rb") as file, closing(Search([file], [1 << 20], ROWS.literals, NONE)) as found:
        lines = sift.Sift(found.reader(0), 1 << 20, found.of(0), ROWS, sift.shapes_of(ROWS))
        assert [one.text for one in lines] == ["ValueError: x"]
