"""Flight recorder dumps: NCCL's, gloo's quirks, JSON, and pickles that mean harm."""

from __future__ import annotations

import json
import os
import pickle
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.parse.flight_recorder import SIZE_LIMIT, VALUES_LIMIT, looks_like, read
from nccl_slurm.parse.source import Source
from tests.parse.conftest import NOW, Read, one, source


def entry(seq: int, state: str, backend: str = "nccl", **more: Any) -> dict[str, Any]:
    return {
        "record_id": seq,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "profiling_name": f"{backend}:all_reduce",
        "time_created_ns": 1_790_000_000_000_000_000 + seq,
        "input_sizes": [[64, 64]],
        "output_sizes": [[64, 64]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": state,
        "retired": state == "completed",
        "timeout_ms": 600000,
        "frames": [{"name": "step", "filename": "train.py", "line": 7}],
        **more,
    }


def dump(entries: list[dict[str, Any]], ranks: int = 4, **status: int) -> dict[str, Any]:
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "pg_status": {"0": {f"last_{key}_collective": value for key, value in status.items()}},
        "entries": entries,
    }


@pytest.mark.parametrize(
    ("backend", "entries", "text"),
    [
        (
            "nccl",
            [(5, "started")],
            "nccl:all_reduce 5 open, 4 ranks, in [[64, 64]] ['Float'], out [[64, 64]] ['Float']",
        ),
        (
            "nccl",
            [(5, "started"), (6, "scheduled"), (7, "scheduled")],
            "nccl:all_reduce 5 open, 4 ranks, in [[64, 64]] ['Float'], out [[64, 64]] ['Float']; "
            "then 6 nccl:all_reduce [[64, 64]]",
        ),
        ("gloo", [(5, "started")], "gloo:all_reduce 5 open, in [[64, 64]] ['Float'], out [[64, 64]] ['Float']"),
    ],
)
def test_the_text_tells_the_open_collective_and_the_one_behind(
    backend: str, entries: list[tuple[int, str]], text: str, read: Read
) -> None:
    """gloo's ``pg_config`` is wrong, so its size of the group is not told."""
    raw = pickle.dumps(dump([entry(seq, state, backend) for seq, state in entries]), protocol=2)
    waiting = one(read(source("nccl_trace_rank_3", raw)), "flight-recorder.waiting")
    assert waiting.text == f"flight recorder: group 0 default_pg: {text}"


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_progress_and_the_open_collective(form: str, read: Read) -> None:
    value = dump(
        [entry(4, "completed"), entry(5, "started"), entry(6, "scheduled")], enqueued=6, started=5, completed=4
    )
    raw = pickle.dumps(value, protocol=2) if form == "pickle" else json.dumps(value).encode()
    parsed = read(source("nccl_trace_rank_3" if form == "pickle" else "fr_json_rank_3.json", raw, host="n1"))
    rank = parsed.ranks[0]
    assert (rank.rank, parsed.world_size) == (3, 4)
    assert rank.progress == {"0": {"enqueued": 6, "started": 5, "completed": 4}}
    waiting = one(parsed, "flight-recorder.waiting")
    assert (waiting.rank, waiting.host, waiting.trust) == (3, "n1", "job")
    assert waiting.data["seq"] == 5
    assert waiting.data["state"] == "started"
    assert waiting.data["input_sizes"] == "[[64, 64]]"
    assert one(parsed, "flight-recorder.status").data["recent"][-1] == "6 nccl:all_reduce [[64, 64]]"
    assert not parsed.gaps


def test_gloo_tells_completion_by_retired_and_has_a_wrong_config() -> None:
    value = dump(
        [entry(5, "scheduled", "gloo", retired=True), entry(6, "scheduled", "gloo", retired=False)],
        enqueued=6,
        started=-1,
        completed=5,
    )
    value["pg_config"] = {"": {"name": "", "desc": "other", "ranks": [1, 2]}}
    found = read(pickle.dumps(value, protocol=2))
    assert found.groups[0].name == "0"
    assert found.groups[0].counters == {"enqueued": 6, "started": 5, "completed": 5}
    assert found.groups[0].waiting is not None and found.groups[0].waiting["seq"] == 6
    assert found.world_size is None


def test_nccl_retired_is_not_completed() -> None:
    found = read(pickle.dumps(dump([entry(6, "started", retired=True)]), protocol=2))
    assert found.groups[0].counters == {"enqueued": 6, "started": 6, "completed": -1}


def test_the_ring_wraps_and_status_still_counts() -> None:
    found = read(json.dumps(dump([entry(90, "completed")], enqueued=120, started=119, completed=118)).encode())
    assert found.groups[0].counters == {"enqueued": 120, "started": 119, "completed": 118}


def test_subgroups_are_told_by_their_shared_name() -> None:
    sub = entry(3, "scheduled", pg_id=7, process_group=("99", "tensor"))
    found = read(json.dumps(dump([entry(8, "completed"), sub])).encode())
    assert {group.name: group.description for group in found.groups} == {"0": "default_pg", "99": "tensor"}


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/owned-by-a-pickle",)


def laughs() -> bytes:
    """A list that holds itself 2**40 times by shared references: small to load, endless to print or hash."""
    value: Any = ["x"]
    for _ in range(40):
        value = [value, value]
    return pickle.dumps(
        {"entries": [{"profiling_name": value, "pg_id": value, "collective_seq_id": 1}], "version": value}
    )


def tuple_key() -> bytes:
    value: Any = ("x",)
    for _ in range(40):
        value = (value, value)
    body = pickle.dumps(value, protocol=2)
    return b"\x80\x02}" + body[2:-1] + b"K\x01s."


@pytest.mark.parametrize(
    "raw",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"entries": [Evil()]}),
        b"\x80\x02r\xff\xff\xff\x7fN.",  # memo index of two thousand million
        tuple_key(),
        b"\x80\x02cos\nsystem\n.",
        b"L" + b"9" * 200_000 + b"L\n.",
        b"\x80\x02",
        b"\x80\x02]\x94h\x00.",
        b"",
        b"{",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"entries": 3, "pg_config": [], "pg_status": "x"}',
        pickle.dumps([1, 2]),
    ],
)
def test_hostile_dumps_are_refused_or_empty(raw: bytes) -> None:
    start = time.process_time()
    try:
        assert read(raw).groups == []
    except ValueError as error:
        assert "\n" not in str(error)
    assert time.process_time() - start < 5
    assert not os.path.exists("/tmp/owned-by-a-pickle")


ENTRIES = b"\x80\x04}(\x8c\x07entries]("


@pytest.mark.parametrize(
    "raw",
    [
        ENTRIES + b"}" * VALUES_LIMIT + b"eu.",
        ENTRIES + b"]\x94" * VALUES_LIMIT + b"eu.",
        b"\x80\x04}(\x8c\x07entriesN" + b"\x85" * VALUES_LIMIT + b"u.",
        b'{"pg_config":{},"entries":[' + b"{}," * VALUES_LIMIT + b"1]}",
        b'{"pg_config":{},"entries":[' + b"[" * VALUES_LIMIT,
    ],
    ids=["dicts", "numbered", "tuples", "objects", "lists"],
)
def test_a_dump_of_too_many_values_is_refused(raw: bytes) -> None:
    assert len(raw) < SIZE_LIMIT
    with pytest.raises(ValueError, match="too large to read"):
        read(raw)


def test_a_dump_of_the_usual_size_is_far_from_too_large() -> None:
    frames = [{"name": f"f{n}", "filename": f"/opt/torch/nn/{n}.py", "line": n} for n in range(30)]
    raw = pickle.dumps(dump([entry(seq, "completed", frames=frames) for seq in range(2000)]), protocol=2)
    assert read(raw).groups[0].counters["completed"] == 1999
    assert len(raw) < SIZE_LIMIT / 2


def test_values_that_hold_themselves_are_not_printed() -> None:
    start = time.process_time()
    found = read(laughs())
    assert found.groups[0].recent == ["1  "]
    assert time.process_time() - start < 5


@given(st.binary(max_size=400))
def test_any_bytes(raw: bytes) -> None:
    for one_of in (raw, b"\x80\x02" + raw, b"{" + raw):
        looks_like("nccl_trace_rank_0", one_of)
        try:
            read(one_of)
        except ValueError as error:
            assert str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(
    entries=st.lists(st.dictionaries(st.sampled_from(list(entry(1, "x"))), JSON, max_size=8), max_size=4),
    config=JSON,
    status=JSON,
)
def test_any_values(entries: list[Any], config: Any, status: Any) -> None:
    value = {"entries": entries, "pg_config": config, "pg_status": status, "version": config}
    try:
        found = read(json.dumps(value).encode())
    except ValueError:
        return
    for group in found.groups:
        assert all(isinstance(number, int) for number in group.counters.values())


def test_a_dump_without_a_known_rank_is_a_gap(read: Read) -> None:
    raw = pickle.dumps(dump([entry(1, "started")]), protocol=2)
    parsed = read(source("mine_trace", raw))
    assert one(parsed, "flight-recorder.waiting").rank is None
    assert [gap.source for gap in parsed.gaps] == ["mine_trace"]


def test_two_dumps_of_one_name_name_nobody(read: Read) -> None:
    raw = pickle.dumps(dump([entry(1, "started")]), protocol=2)
    parsed = read(source("a/nccl_trace_rank_1", raw), source("b/nccl_trace_rank_1", raw))
    assert not parsed.ranks
    assert {fact.rank for fact in parsed.facts} == {None}
    assert any("another folder" in gap.why for gap in parsed.gaps)


def of_rank(rank: int, begin: float, *, host: str | None = "n1", ranks: int = 4, first: int = 0) -> Source:
    """Six collectives from number ``first`` on, a second each, from ``begin`` seconds after `NOW` on; the last open."""
    made = [
        entry(first + seq, "completed" if seq < 5 else "started") | {"time_created_ns": int((NOW + begin + seq) * 1e9)}
        for seq in range(6)
    ]
    raw = json.dumps(dump(made, ranks, enqueued=first + 5, started=first + 5, completed=first + 4)).encode()
    return source(f"nccl_trace_rank_{rank}", raw, host=host, mtime=NOW + begin + 600)


def started(rank: int, at: float, *, host: str | None = "n1") -> Source:
    """NCCL's file of a process of ``rank`` that began ``at`` seconds after `NOW`."""
    when = time.strftime("[%Y-%m-%d %H:%M:%S]", time.localtime(NOW + at))
    line = (
        f"{when} n1:{700 + rank}:1 [0] NCCL INFO comm 0xa rank {rank} nranks 4 cudaDev 0 commId 0x1 - Init COMPLETE\n"
    )
    return source(f"nccl.n1.{700 + rank}.log", line, host=host)


@pytest.mark.parametrize(
    ("sources", "used"),
    [
        ([of_rank(0, 0), of_rank(1, 0)], {0, 1}),
        ([of_rank(0, 0), of_rank(1, 60)], {1}),  # of the attempt before
        ([of_rank(0, 0), of_rank(1, 60, first=6)], {0, 1}),  # others went on in a group without rank 0's entries
        ([of_rank(0, 0, first=9), of_rank(1, 60, first=11)], {1}),  # both rings have wrapped
        ([of_rank(0, 0, host=None), of_rank(1, 60, host=None)], {0, 1}),  # two clocks
        ([of_rank(0, 0, host=None), of_rank(1, 700, host=None)], {1}),
        ([of_rank(0, 0), of_rank(1, 0), started(0, -1), started(1, -1)], {0, 1}),
        ([of_rank(0, 0), of_rank(1, 0), started(0, 30), started(1, -1)], {1}),  # rank 0 was restarted and did not dump
        ([of_rank(0, 0, host=None), started(0, 7200, host=None)], {0}),  # hours may be time zones
        ([of_rank(0, 0, host=None), started(0, 100_000, host=None)], set()),
        ([of_rank(0, 0), started(3, 2000)], set()),  # written before any line
        ([of_rank(0, 0, ranks=8), of_rank(1, 30)], {1}),  # of another size
        ([of_rank(0, 0, ranks=8), of_rank(1, 0), ("train.log", "world_size=8\n")], {0}),
    ],
    ids=[
        "one-attempt",
        "two-attempts",
        "went-on",
        "wrapped",
        "two-clocks",
        "ten-minutes",
        "one-start",
        "restarted",
        "zones",
        "a-day",
        "before-the-logs",
        "newest-size",
        "told-size",
    ],
)
def test_dumps_of_an_earlier_attempt_or_job_are_a_gap(sources: list[Any], used: set[int], read: Read) -> None:
    parsed = read(*sources)
    assert {rank.rank for rank in parsed.ranks if rank.progress} == used
    told = {fact.rank for fact in parsed.facts if fact.kind == "flight-recorder.status"}
    assert told == used
    left = {f"nccl_trace_rank_{n}" for n in (0, 1)} & {one.name for one in sources if isinstance(one, Source)}
    gaps = {gap.source for gap in parsed.gaps if "flight recorder dump of a" in gap.why}
    assert gaps == left - {f"nccl_trace_rank_{rank}" for rank in used}


def test_a_rank_that_has_only_run_ahead_is_no_earlier_attempt(read: Read) -> None:
    """Rank 0 has enqueued its first collective and waits for rank 1, whose program starts a minute later."""
    first = dump([entry(1, "scheduled") | {"time_created_ns": int(NOW * 1e9)}], enqueued=1, completed=-1)
    waiting = source("nccl_trace_rank_0", json.dumps(first).encode(), host="n1")
    assert {rank.rank for rank in read(waiting, of_rank(1, 60)).ranks if rank.progress} == {0, 1}


def test_a_broken_dump_is_a_gap(read: Read) -> None:
    parsed = read(source("nccl_trace_rank_1", b"\x80\x02}q\x00(X\x09"))
    assert not parsed.facts
    assert "can't be read" in parsed.gaps[0].why


@pytest.mark.parametrize(
    ("later_s", "first", "used"),
    [(700.0, 1, False), (700.0, 9, True), (60.0, 1, True), (0.0, 1, True)],
    ids=["restart", "stopped-long-ago", "within-what-clocks-may-differ-by", "same-time"],
)
def test_a_dump_of_an_earlier_attempt_is_not_used(later_s: float, first: int, used: bool, read: Read) -> None:
    """Rank 2 has stopped in collective 6; of the others the ring holds three collectives from ``first`` on."""
    stopped = [entry(seq, "completed") for seq in range(1, 6)] + [entry(6, "started")]
    made = 1_790_000_000_000_000_006 + int(later_s * 1e9)
    others = [entry(first + place, "started", time_created_ns=made + place) for place in range(3)]
    parsed = read(
        source("nccl_trace_rank_2", pickle.dumps(dump(stopped), protocol=2)),
        source("nccl_trace_rank_0", pickle.dumps(dump(others), protocol=2)),
    )
    assert (2 in {rank.rank for rank in parsed.ranks if rank.progress}) == used
    assert any("earlier attempt" in gap.why for gap in parsed.gaps) != used
