"""Whole folders: who is who, progress, tables, restarts, repetition, conflicts."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from nccl_slurm.model import Fact
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.repeat import Kept
from tests.parse.conftest import NOW, Read, kinds, one, source

TABLE = """\
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-08-10_03:05:12
  host      : n1.example.org
  rank      : 1 (local_rank: 1)
  exitcode  : -15 (pid: 802)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 802
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-08-10_03:05:11
  host      : n1.example.org
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 801)
  error_file: /tmp/logs/none_ab12/attempt_0/0/error.json
  traceback : To enable traceback see: https://pytorch.org/docs
============================================================
"""


def test_failure_table(read: Read) -> None:
    parsed = read(("job.log", TABLE))
    facts = [fact for fact in parsed.facts if fact.kind == "elastic.failure"]
    assert [(fact.rank, fact.role, fact.hint, fact.data["root"]) for fact in facts] == [
        (1, "consequence", None, 0),
        (0, "cause", "rank-exception", 1),
    ]
    assert [fact.line for fact in facts] == [8, 17]
    assert facts[1].data["exitcode"] == 1 and facts[1].host == "n1"
    assert facts[0].time is not None and facts[1].time == facts[0].time - 1.0
    assert [(rank.rank, rank.host, rank.local_rank, rank.pid, rank.exit) for rank in parsed.ranks] == [
        (0, "n1", 0, 801, 1),
        (1, "n1", 1, 802, -15),
    ]


def test_tables_of_two_agents_in_one_stream(read: Read) -> None:
    ours = [f"0: {line}" for line in TABLE.splitlines()]
    theirs = [
        "1: "
        + line.replace("n1.", "n2.").replace("rank      : 0", "rank      : 2").replace("rank      : 1", "rank      : 3")
        for line in TABLE.splitlines()
    ]
    mixed = "\n".join(line for pair in zip(ours, theirs, strict=True) for line in pair)
    parsed = read(("slurm-1.out", mixed))
    assert [(rank.rank, rank.host, rank.exit) for rank in parsed.ranks] == [
        (0, "n1", 1),
        (1, "n1", -15),
        (2, "n2", 1),
        (3, "n2", -15),
    ]


def test_a_cut_table_still_gives_its_last_block(read: Read) -> None:
    parsed = read(("job.log", "  rank      : 5 (local_rank: 1)\n  exitcode  : -11 (pid: 9)\n"))
    fact = one(parsed, "elastic.failure")
    assert (fact.rank, fact.hint, fact.data["root"]) == (5, "process-signal", 0)


def test_the_agents_own_kill_is_a_consequence(read: Read) -> None:
    text = (
        "W1129 12:29:58.2 31 torch/x/api.py:1047] Unable to shutdown process 802 via 15, forcefully exiting via 9\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 802)\n  traceback : Signal 9\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 803)\n  traceback : Signal 9\n"
    )
    facts = [fact for fact in read(("job.log", text)).facts if fact.kind == "elastic.failure"]
    assert [(fact.rank, fact.role) for fact in facts] == [(1, "consequence"), (2, "cause")]


def test_a_worker_that_says_it_waited_did_not_fail_first(read: Read) -> None:
    lost = "[rank{}]: RuntimeError: [../pair.cc:553] Connection closed by peer [10.0.0.9]:1943\n"
    table = (
        "ERROR:torch.x.api:failed (exitcode: 1) local_rank: 0 (pid: 800) of binary: /bin/python\n"
        "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 800)\n  traceback : x\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 801)\n  traceback : x\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 802)\n  traceback : x\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -11 (pid: 803)\n  traceback : x\n"
    )
    own = lost.format(0) + lost.format(1) + lost.format(2) + "[rank2]: ValueError: bad shard\n" + lost.format(3)
    facts = [fact for fact in read(("job.log", own + table)).facts if fact.producer == "elastic"]
    assert [(fact.kind, fact.rank, fact.role, fact.hint) for fact in facts] == [
        ("elastic.failed", 0, "consequence", "net-peer-lost"),
        ("elastic.failure", 0, "consequence", "net-peer-lost"),
        ("elastic.failure", 1, "consequence", "net-peer-lost"),
        ("elastic.failure", 2, "cause", "rank-exception"),
        ("elastic.failure", 3, "cause", "process-signal"),
    ]


def test_what_a_table_quotes_is_of_the_worker_of_its_block(read: Read) -> None:
    quoted = 'traceback : Traceback (most recent call last):\n    File "t.py", line 1\n  RuntimeError: [../x.cc:78] '
    text = TABLE.replace(
        "traceback : To enable", quoted + "Timed out waiting 6000ms for recv operation to complete\nTo"
    )
    assert one(read(("job.log", text)), "gloo.timeout").rank == 0


@pytest.mark.parametrize(
    ("quoted", "kinds"),
    [
        ("  ValueError: loss is nan\n", ["python.exception"]),  # of a type that no row knows
        (
            "  RuntimeError: NCCL error\n  Last error:\n  Error: failed to extend /dev/shm/nccl-aB to 9 bytes\n",
            ["nccl.shm"],
        ),
    ],
)
def test_all_that_a_table_quotes_of_an_exception_is_its_workers(read: Read, quoted: str, kinds: list[str]) -> None:
    start = 'traceback : Traceback (most recent call last):\n    File "t.py", line 1\n      main()\n'
    after = "====\n  what():  [Rank 4] NCCL watchdog thread terminated with exception: [Rank 4] x\n"
    facts = read(("job.log", TABLE.replace("traceback : To enable", start + quoted + after + "To"))).facts
    assert [fact.rank for fact in facts if fact.kind in kinds] == [0]
    assert [fact.rank for fact in facts if fact.kind == "torch.watchdog-terminated"] == [None]


def error_json(message: str, timestamp: str = "1790000000") -> str:
    return json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "T", "timestamp": timestamp}}})


def test_error_files_find_their_rank_by_the_table(read: Read) -> None:
    run = "none_ab12/attempt_0/0"
    parsed = read(
        ("job.log", TABLE),
        (f"{run}/error.json", error_json("ValueError: loss is nan")),
        (f"{run}/stderr.log", "some text\nValueError: loss is nan\n"),
        ("none_zz99/attempt_0/0/stdout.log", "other agent\n"),
    )
    fact = one(parsed, "elastic.error-file")
    assert (fact.rank, fact.role, fact.time, fact.data["type"]) == (0, "cause", NOW, "ValueError")
    assert fact.data["attempt"] == 0
    assert one(parsed, "python.exception").rank == 0
    assert f"{run}/stderr.log" in parsed.ranks[0].files
    assert parsed.ranks[0].last_line == "ValueError: loss is nan"
    told = read(
        ("attempt_0/0/stderr.log", "[rank0]: RuntimeError: Timed out\n"),
        ("attempt_0/0/stdout.log", "rank 0 warm\n"),
        ("attempt_0/1/stderr.log", "[rank1]:[W1130 22:11:08.185724219 Utils.hpp:137] Warning: old name\n"),
        ("attempt_0/1/stdout.log", "rank 1 warm\n"),
    )
    assert [rank.last_line for rank in told.ranks] == ["[rank0]: RuntimeError: Timed out", "rank 1 warm"]
    second = read(
        ("job.log", TABLE), ("none_ab12/attempt_0/1/stdout.log", "step 7\n"), ("attempt_0/0/stdout.log", "step 8\n")
    )
    assert [rank.last_line for rank in second.ranks] == ["step 8", "step 7"]
    assert all("none_zz99" not in name for rank in parsed.ranks for name in rank.files)


def test_an_error_file_of_one_who_waited_is_a_consequence(read: Read) -> None:
    message = "RuntimeError: [../pair.cc:553] Connection closed by peer [10.0.0.9]:1943"
    fact = one(read(("a/attempt_0/0/error.json", error_json(message))), "elastic.error-file")
    assert (fact.role, fact.hint, fact.data["kind"]) == ("consequence", "net-peer-lost", "gloo.peer-closed")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ('{"message": "plain", "timestamp": 1790000000}', NOW),
        ('{"message": "plain"}', None),
        ('{"message": {"message": "x", "extraInfo": 3}}', None),
    ],
)
def test_older_error_files(read: Read, text: str, time: float | None) -> None:
    assert one(read(("error.json", text)), "elastic.error-file").time == time


def test_a_broken_error_file_is_a_gap(read: Read) -> None:
    for text in ("{", "[]", '{"message": 3}', "[" * 50_000):
        parsed = read(("error.json", text))
        assert not parsed.facts and parsed.gaps[0].source == "error.json"


def init(host: str, pid: int, rank: int, size: int, comm: str = "0xaa", bus: str = "") -> str:
    bus = bus or f"{rank % 8 + 1:x}b000"
    who = f"{host}:{pid}:9 [0] NCCL INFO comm 0x5 rank {rank} nranks {size}"
    return f"{who} cudaDev 0 busId {bus} commId {comm} - Init COMPLETE\n"


def test_nccl_files_are_named_by_their_process(read: Read) -> None:
    files = [
        (
            f"nccl.n{rank // 2}.{100 + rank}.log",
            init(f"n{rank // 2}", 100 + rank, rank, 4)
            + f"n{rank // 2}:{100 + rank}:9 [0] NCCL INFO Using network IB\n",
        )
        for rank in range(4)
    ]
    parsed = read(*files)
    assert parsed.world_size == 4
    assert [(rank.rank, rank.host, rank.pid, rank.gpu, rank.files) for rank in parsed.ranks] == [
        (
            rank,
            f"n{rank // 2}",
            100 + rank,
            f"0000:{rank + 1}b:00",
            (files[rank][0],),
        )
        for rank in range(4)
    ]
    networks = [(fact.rank, fact.data["network"]) for fact in parsed.facts if fact.kind == "nccl.network"]
    assert networks == [(rank, "IB") for rank in range(4)]


def test_a_rank_of_a_sub_group_is_no_global_rank(read: Read) -> None:
    lines = "".join(
        init(host, pid, rank, 2, comm)
        for host, pid, rank, comm in [
            ("n1", 1, 0, "0xa"),
            ("n1", 2, 1, "0xa"),
            ("n2", 3, 0, "0xb"),
            ("n2", 4, 1, "0xb"),
        ]
    )
    parsed = read(("job.log", lines))
    assert not parsed.ranks and parsed.world_size is None
    assert {fact.rank for fact in parsed.facts} == {None}
    assert "sub groups" in parsed.gaps[0].why
    parsed = read(("job.log", lines.splitlines()[0] + "\nWORLD_SIZE=16\n"))
    assert not parsed.ranks and parsed.world_size == 16


def test_a_label_beyond_the_communicator_says_that_it_is_not_all(read: Read) -> None:
    parsed = read(("job.log", init("n1", 1, 0, 2) + init("n1", 2, 1, 2) + "[rank9]: KeyError: x\n"))
    assert parsed.world_size is None and [rank.rank for rank in parsed.ranks] == [9]
    assert "2 of 10 ranks" in parsed.gaps[0].why


def test_a_restart_on_the_same_gpu_is_no_conflict(read: Read) -> None:
    parsed = read(
        (
            "job.log",
            init("n1", 1, 0, 2) + init("n1", 2, 1, 2) + init("n1", 11, 0, 2, "0xcc") + init("n1", 12, 1, 2, "0xcc"),
        )
    )
    assert [(rank.rank, rank.pid) for rank in parsed.ranks] == [(0, 11), (1, 12)]


def test_split_communicators_tell_no_world_size(read: Read) -> None:
    line = "n1:8:9 [0] NCCL INFO ncclCommSplit comm 0x5 rank 4 nranks 16 cudaDev 4 nvmlDev 4 "
    line += "busId 69000 parent 0x6 color 1 key 4 commId 0x5e - Init COMPLETE\n"
    parsed = read(("job.log", line))
    assert parsed.world_size is None and not parsed.ranks


WATCHDOG = (
    "[rank{0}]:[E704 19:50:3{0}.4 ProcessGroupNCCL.cpp:2395] [PG ID 0 PG GUID 0(default_pg) Rank {0}]  failure "
    "detected by watchdog at work sequence id: 78 PG status: last enqueued work: {1}, last completed work: {2}\n"
)


def test_progress_first_and_last_of_merged_ranks(read: Read) -> None:
    parsed = read(("job.log", WATCHDOG.format(1, 79, 77) + WATCHDOG.format(2, 80, 77) + "[rank1]: last words\n"))
    first, second = parsed.ranks
    assert first.progress == {"0": {"enqueued": 79, "completed": 77}}
    assert second.progress == {"0": {"enqueued": 80, "completed": 77}}
    assert first.last_line == "[rank1]: last words"
    assert first.first == first.last and second.first == pytest.approx((first.first or 0.0) + 1.0)
    assert first.uncertainty_s == pytest.approx(0.1)


def test_progress_is_of_the_first_attempt(read: Read) -> None:
    parsed = read(
        ("r_x/attempt_1/0/stderr.log", WATCHDOG.format(0, 9, 8)),
        ("r_x/attempt_0/0/stderr.log", WATCHDOG.format(0, 79, 77)),
        ("r_x/attempt_2/0/stderr.log", WATCHDOG.format(0, 500, 499)),
    )
    assert parsed.ranks[0].progress == {"0": {"enqueued": 79, "completed": 77}}
    assert sorted(fact.data["attempt"] for fact in parsed.facts) == [0, 1, 2]


def test_a_worker_folder_belongs_to_the_rank_that_its_lines_name(read: Read) -> None:
    parsed = read(
        ("r_x/attempt_0/1/stderr.log", "[rank5]: ValueError: x\n"),
        ("r_x/attempt_0/1/stdout.log", "step 7\nRuntimeError: CUDA out of memory. GPU 1 has\n"),
    )
    assert one(parsed, "cuda.oom").rank == 5
    assert (parsed.ranks[0].rank, parsed.ranks[0].local_rank, len(parsed.ranks[0].files)) == (5, 1, 2)


def test_a_worker_that_tells_its_rank_places_those_beside_it(read: Read) -> None:
    parsed = read(
        ("r_x/attempt_0/1/stderr.log", "[rank5]: ValueError: x\n"),
        ("r_x/attempt_0/0/stderr.log", "step 7\n"),
        ("r_x/attempt_0/2/stderr.log", "step 9\n[rank1]: no\n"),
        ("r_y/attempt_0/0/stderr.log", "step 8\n"),
    )
    assert {rank.rank: (rank.local_rank, rank.files) for rank in parsed.ranks} == {
        1: (2, ("r_x/attempt_0/2/stderr.log",)),
        5: (1, ("r_x/attempt_0/1/stderr.log",)),
    }
    clear = read(("r_x/attempt_0/1/stderr.log", "[rank5]: ValueError: x\n"), ("r_x/attempt_0/0/stderr.log", "step 7\n"))
    assert [(rank.rank, rank.last_line) for rank in clear.ranks] == [(4, "step 7"), (5, "[rank5]: ValueError: x")]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.log", 3),
        ("logs/out.rank_12.txt", 12),
        ("rank_3.json", 3),
        ("local_rank_3.log", None),
        ("rank3_of_rank8.log", None),
        ("rank_2.log", 2),
        ("rank-2.out", 2),
        ("rank_2.log.1", 2),
        ("rank2-20260101.log", 2),
        ("rank0-7.log", None),
        ("rank7-0.log", 7),
        ("global_rank_3_local_rank_1.log", 3),
        ("dp_rank_3.log", None),
        ("zero_pp_rank_0_mp_rank_00.log", None),
        ("tensor_parallel_rank_3.log", None),
        ("fsdp_rank_3.log", 3),
        ("step_rank3.log", 3),
        ("log/attempt_1/3/stderr.log", None),
        ("crank3.log", None),
        ("rank99999999.log", None),
        ("job.log", None),
    ],
)
def test_ranks_in_file_names(read: Read, name: str, rank: int | None) -> None:
    assert one(read((name, "ValueError: x\n")), "python.exception").rank == rank


def test_a_name_against_its_lines_is_a_gap(read: Read) -> None:
    parsed = read(("rank3.log", "[rank0]: ValueError: x\nKeyError: y\n"))
    assert [fact.rank for fact in parsed.facts] == [0, None]
    assert "its lines are of other ranks" in parsed.gaps[0].why


def test_the_same_name_on_two_nodes_names_nobody(read: Read) -> None:
    parsed = read(("n1/rank0.log", "ValueError: x\n"), ("n2/rank0.log", "ValueError: y\n"))
    assert [(fact.rank, fact.host) for fact in parsed.facts] == [(None, "n1"), (None, "n2")]
    assert len(parsed.gaps) == 2


def test_a_rank_on_two_hosts_has_none(read: Read) -> None:
    other = TABLE.replace("n1.", "n2.")
    parsed = read(("a.log", TABLE), ("b.log", other))
    assert [rank.host for rank in parsed.ranks] == [None, None]
    assert sum("host: both" in gap.why for gap in parsed.gaps) == 2


TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 7, in <module>
    main()
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 9, in <module>
    raise {0}
{0}
"""


@pytest.mark.parametrize(
    ("last", "kind", "role"),
    [
        ("mylib.errors.BadShard: shard 7", "python.exception", "cause"),
        ("AssertionError", "python.exception", "cause"),
        ("StopIteration", "python.exception", "cause"),
        ("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "elastic.child-failed", "consequence"),
        ("KeyboardInterrupt", "python.interrupt", "consequence"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried", "cuda.oom", "cause"),
    ],
)
def test_tracebacks_end_in_one_fact_each(read: Read, last: str, kind: str, role: str) -> None:
    text = TRACEBACK.format(last)
    parsed = read(("job.log", "".join(f"[rank2]: {line}\n" for line in text.splitlines())))
    assert [(fact.kind, fact.role, fact.rank) for fact in parsed.facts] == [
        ("python.exception", "cause", 2),
        (kind, role, 2),
    ]
    assert parsed.facts[1].line == len(text.splitlines())


HIDES = '  File "t.py", line 9, in step\n    raise Failed("step") from None\n    ^^^^^^^^^\nFailed: step\n'
CHAINED = HIDES.replace("None", "error")
OUTER = (
    '  File "t.py", line 9, in step\n    raise wrapped(error) from None\n  File "t.py", line 2, in wrapped\n    1 / 0\n'
)


@pytest.mark.parametrize(
    ("body", "hides"),
    [(HIDES, 1), (CHAINED, None), (OUTER + "ZeroDivisionError: division by zero\n", None)],
    ids=["from-none", "from-error", "raised-deeper"],
)
def test_an_exception_raised_from_none_says_so(read: Read, body: str, hides: int | None) -> None:
    text = "Traceback (most recent call last):\n" + body
    labelled = "".join(f"[rank2]: {line}\n" for line in text.splitlines())
    again = labelled + labelled.replace("rank2", "rank3").replace("from None", "from other")
    parsed = read(("job.log", again))
    found = [fact.data.get("from_none") for fact in parsed.facts if fact.kind == "python.exception"]
    assert found == [hides, None]
    told = {"message": {"message": body.splitlines()[-1], "extraInfo": {"py_callstack": text, "timestamp": "1"}}}
    assert one(read(("error.json", json.dumps(told))), "elastic.error-file").data.get("from_none") == hides


def test_mixed_tracebacks_keep_their_ranks(read: Read) -> None:
    a = [f"0: {line}" for line in TRACEBACK.format("AError: a").splitlines()]
    b = [f"1: {line}" for line in TRACEBACK.format("mylib.Bad: b").splitlines()]
    parsed = read(("job.log", "\n".join(line for pair in zip(a, b, strict=True) for line in pair)))
    last = [(fact.data["task"], fact.data["type"]) for fact in parsed.facts[2:]]
    assert last == [(0, "AError"), (1, "mylib.Bad")]


def test_repetition_is_capped_first_and_last_kept(read: Read) -> None:
    line = "[rank1]: RuntimeError: [../x.cc:78] Timed out waiting {}ms for recv operation to complete\n"
    parsed = read(("job.log", "".join(line.format(number) for number in range(500))))
    kept = [fact.data["timeout_ms"] for fact in parsed.facts]
    assert kept == [*range(8), *range(492, 500)]
    assert parsed.gaps[0].source == "gloo.timeout" and parsed.gaps[0].why.startswith("484 more lines")


def test_lines_that_name_nobody_have_more_room(read: Read) -> None:
    text = "".join(f"srun: error: n{number}: task {number}: Exited with exit code 1\n" for number in range(512))
    assert len(read(("slurm.out", text)).facts) == 512


def test_any_number_of_ranks_is_bounded() -> None:
    kept: Kept[int] = Kept(each=2, total=10)
    for number in range(100):
        kept.add("python.exception", number % 50, (), number, labelled=True)
    assert kept.items() == [*range(10), *range(50, 60)]
    assert kept.gaps()[0].why.startswith("80 more lines")


def test_lines_of_the_start_leave_room_for_the_end() -> None:
    kept: Kept[int] = Kept(each=2, total=10)
    for number in range(100):
        kept.add("nccl.env", number, (), number, labelled=True, around=True)
    for number in range(100, 110):
        kept.add("torch.watchdog-timeout", number, (), number, labelled=True)
    assert kept.items() == [*range(5), *range(100, 105)]
    assert [gap.source for gap in kept.gaps()] == ["nccl.env", "torch.watchdog-timeout"]


def test_world_sizes_that_disagree_are_not_used(read: Read) -> None:
    parsed = read(("a.log", "WORLD_SIZE=16\n"), ("b.log", "world_size: 8\n"))
    assert parsed.world_size is None
    assert parsed.gaps[0].source == "world size"
    assert read(("a.log", "WORLD_SIZE=16\n")).world_size == 16


def test_tasks_are_no_ranks(read: Read) -> None:
    text = "step=0\nprocid=3\nlocalid=1\npid=812\nhost=n2\ngpus=0,1\ntime=1790000000\n"
    parsed = read(("task.0.3", text))
    fact = one(parsed, "slurm.task")
    assert (fact.rank, fact.host, fact.time) == (None, "n2", NOW)
    assert fact.data == {"step": "0", "gpus": "0,1", "procid": 3, "localid": 1, "pid": 812}
    assert not parsed.ranks


def test_hosts_of_files(read: Read) -> None:
    parsed = read(("n1/a.log", "KeyError: x\n"), ("n2/a.log", "KeyError: x\n"), ("logs/a.log", "KeyError: x\n"))
    assert [fact.host for fact in parsed.facts] == ["n1", "n2", None]
    assert one(read(("n1/a.log", "KeyError: x\n")), "python.exception").host is None
    assert one(read(source("a.log", "KeyError: x\n", host="n9")), "python.exception").host == "n9"


def test_a_source_that_fails_is_a_gap(rows: Rows) -> None:
    def refuse() -> object:
        raise PermissionError(13, "Permission denied")

    broken = source("secret.log", "")._replace(open=refuse)  # type: ignore[arg-type]
    parsed = read_sources([broken, source("a.log", "KeyError: x\n")], rows, now=NOW)
    assert kinds(parsed) == ["python.exception"]
    assert "Permission denied" in parsed.gaps[0].why


def test_walk(tmp_path: Path, rows: Rows) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.log").write_text("KeyError: x\n")
    (tmp_path / "a.log").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / "link.log").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"bad\xff.log")).write_text("KeyError: z\n")
    sources, gaps = walk(str(tmp_path))
    assert [one.name for one in sources] == ["a.log", "b/two.log", "bad\ufffd.log"]
    assert sorted(gap.source for gap in gaps) == sorted([str(tmp_path), "link.log", "pipe"])
    assert len(read_sources(sources, rows).facts) == 2
    sources, gaps = walk(str(tmp_path / "b" / "two.log"))
    assert [one.name for one in sources] == ["two.log"] and not gaps


def test_walk_of_nothing(tmp_path: Path) -> None:
    for path in (str(tmp_path / "absent"), "\0"):
        sources, gaps = walk(path)
        assert not sources and len(gaps) == 1


def test_a_file_exchanged_for_a_pipe_is_not_waited_for(tmp_path: Path, rows: Rows) -> None:
    (tmp_path / "a.log").write_text("KeyError: x\n")
    sources, _ = walk(str(tmp_path))
    (tmp_path / "a.log").unlink()
    os.mkfifo(tmp_path / "a.log")
    parsed = read_sources(sources, rows)
    assert not parsed.facts and "no regular file" in parsed.gaps[0].why


def test_facts_are_made_by_hand_of_all_their_fields() -> None:
    names = [one.name for one in fields(Fact)]
    assert list(inspect.signature(Fact).parameters) == names
    fact = Fact("a.b", "x", "nccl", "cause", "job")
    assert list(vars(fact)) == names and replace(fact) == fact and Fact(**fact.to_json()) == fact
    assert [getattr(fact, name) for name in names[5:-2]] == [None] * 8 and fact.data == {} and fact.id == ""
    with pytest.raises(FrozenInstanceError):
        fact.kind = "other"  # type: ignore[misc]
