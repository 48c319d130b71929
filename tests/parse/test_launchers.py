"""The same line as each launcher, shipper and terminal puts it into a file: it stays the same fact."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.parse.conftest import Read, source

TIMED_OUT = (
    "[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600033 milliseconds before timing out."
)
WARN = "n1:8:9 [0] NCCL WARN Net : Connection closed by remote peer n2<47001>"
RANKED = f"[rank5]:{TIMED_OUT}"


def docker(text: str) -> str:
    return json.dumps({"log": text + "\n", "stream": "stderr", "time": "2026-09-12T18:44:13.123456789Z"})


def journal(text: str) -> str:
    return json.dumps({"MESSAGE": text, "_HOSTNAME": "n1", "__REALTIME_TIMESTAMP": "1790000000123456"})


def fluent(text: str) -> str:
    return json.dumps({"date": 1790000000.25, "kubernetes": {"host": "n7"}, "log": text})


Expected = dict[str, Any]


@pytest.mark.parametrize(
    ("line", "rank", "host", "data"),
    [
        (RANKED, 5, None, {}),
        (f"5: {RANKED}", 5, None, {"task": 5}),  # srun -l
        (f"  5: {TIMED_OUT}", None, None, {"task": 5}),
        (f"[default1]:{RANKED}", 5, None, {"local_rank": 1}),  # torchrun --tee
        (f"[default1]:{TIMED_OUT}", None, None, {"local_rank": 1}),
        (f"[default:5/1]: {TIMED_OUT}", 5, None, {"local_rank": 1}),  # torchrun's templates
        (f"[default:1/5]: {TIMED_OUT}", 5, None, {"local_rank": 1}),
        (f"[rank5]: {TIMED_OUT}", 5, None, {}),
        (f"[rank5-group_rank0-attempt2]:{TIMED_OUT}", 5, None, {"attempt": 2}),  # hyperpodrun
        (f"[1,5]<stderr>:{TIMED_OUT}", 5, None, {}),  # Open MPI
        (f"[prterun-n1-812@1,5]<stderr>: {TIMED_OUT}", 5, None, {}),
        (f"[1,5][n1:812]<stderr>: {TIMED_OUT}", 5, "n1", {"writer_pid": 812}),
        (f"Mon Mar  4 10:11:12 2024[1,5]<stderr>:{TIMED_OUT}", 5, None, {}),
        (f"n1: {RANKED}", 5, "n1", {}),  # pdsh, DeepSpeed
        (f"10.0.0.1: {RANKED}", 5, None, {"ip": "10.0.0.1"}),
        (f"(RayWorkerWrapper pid=77, ip=10.0.0.1) {RANKED}", 5, None, {"writer_pid": 77, "ip": "10.0.0.1"}),
        (f"(Policy[rank=5] pid=77, ip=10.0.0.1) {TIMED_OUT}", 5, None, {}),
        (
            f"\x1b[36m(Worker pid=77)\x1b[0m {RANKED}\x1b[32m [repeated 15x across cluster]\x1b[0m",
            5,
            None,
            {"repeated": 15},
        ),
        (
            f"(Worker pid=77) {RANKED} [repeated 2x across cluster] (Ray deduplicates logs by default. Set "
            "RAY_DEDUP_LOGS=0 to disable log deduplication, or see https://docs.ray.io/ for more options.)",
            5,
            None,
            {"repeated": 2},
        ),
        (f"[RANK 5] {TIMED_OUT}", 5, None, {}),
        (f"trainer/0 [0]:{RANKED}", 5, None, {}),
        (f"pod-1.n4 [stderr] {RANKED}", 5, None, {}),
        (f"[80746] {RANKED}", 5, None, {}),
        (f" 2025-02-18 12:54 {RANKED}", 5, None, {}),
        (f"18:11:06.680 {RANKED}", 5, None, {}),
        (f"Epoch 3:  45%|####5     | 3/10 [00:01<00:09,  1.00s/it]{RANKED}", 5, None, {}),
        (f"Epoch 3:  45%|####5     | 3/10\rEpoch 3:  50%|\r{RANKED}\r", 5, None, {}),
        (f"\x1b[31m{RANKED}\x1b[0m", 5, None, {}),
        (docker(RANKED), 5, None, {"clock": "local, year guessed"}),
        (docker(f"\x1b[31m[default1]:{RANKED}"), 5, None, {"local_rank": 1}),
        (fluent(RANKED), 5, "n7", {}),
        (fluent(docker(RANKED)), 5, "n7", {}),
        (journal(RANKED), 5, "n1", {}),
        (json.dumps({"level": "error", "message": RANKED, "@timestamp": "2026-09-12T18:44:13Z"}), 5, None, {}),
        (docker(RANKED)[:-40], 5, None, {}),
        (f"2026-09-12T18:44:13.123456789Z stderr F {RANKED}", 5, None, {}),
        (f"2026-09-12T18:44:13.123456789+00:00 stderr P {RANKED}", 5, None, {}),
    ],
)
def test_torch(line: str, rank: int | None, host: str | None, data: Expected, read: Read) -> None:
    facts = read(("job.log", line + "\n")).facts
    assert [(fact.kind, fact.rank, fact.host) for fact in facts] == [("torch.watchdog-timeout", rank, host)]
    assert facts[0].data["seq"] == 7 and facts[0].data["group_rank"] == 1
    assert {key: facts[0].data.get(key) for key in data} == data


@pytest.mark.parametrize(
    ("line", "host", "pid"),
    [
        (WARN, "n1", 8),
        (f"3: {WARN}", "n1", 8),
        (f"[12:39:15.33] {WARN}", "n1", 8),
        (f"[2026-11-29 12:39:15.334676] {WARN}", "n1", 8),
        (f"10.0.0.1: {WARN}", "n1", 8),
        (f"n9: {WARN}", "n1", 8),
        (f"Epoch 3:  45%|##  | 3/10 [00:01<00:09,  1.00s/it]{WARN}", "n1", 8),
        (f"Epoch 3:  45%|##  | 3/10{WARN}", None, None),
        (docker(WARN), "n1", 8),
        (f"\x00\x00{WARN}", "n1", 8),
    ],
)
def test_nccl_says_its_host_and_process_whatever_stands_in_front(
    line: str, host: str | None, pid: int | None, read: Read
) -> None:
    (fact,) = read(("job.log", line + "\n")).facts
    assert (fact.kind, fact.host, fact.data.get("writer_pid")) == ("nccl.peer-closed", host, pid)


TRACEBACK = ("Traceback (most recent call last):", '  File "t.py", line 3, in <module>', "    raise x", "KeyError: 'x'")


@pytest.mark.parametrize(
    ("form", "host"),
    [
        ("{}", None),
        ("n1: {}", "n1"),
        ("ip-10-1-2-3: {}", "ip-10-1-2-3"),
        ("10.0.0.1: {}", None),
        ("(Worker pid=7) {}", None),
        ("2026-09-12T18:44:13.123456789Z stderr F {}", None),
        ("[default1]:{}", None),
    ],
)
def test_a_traceback_behind_a_prefix(form: str, host: str | None, read: Read) -> None:
    facts = read(("job.log", "\n".join(form.format(line) for line in TRACEBACK) + "\n")).facts
    assert [(fact.kind, fact.data["type"], fact.host) for fact in facts] == [("python.exception", "KeyError", host)]


@pytest.mark.parametrize("label", ["GPU0", "epoch1", "Rank0", "worker"])
def test_a_counter_of_the_program_is_no_host(label: str, read: Read) -> None:
    facts = read(("job.log", "\n".join(f"{label}: {line}" for line in TRACEBACK) + "\n")).facts
    assert all(fact.host is None for fact in facts)


def test_a_traceback_in_docker_json(read: Read) -> None:
    (fact,) = read(("c-json.log", "\n".join(docker(line) for line in TRACEBACK))).facts
    assert (fact.kind, fact.line, fact.data["clock"]) == ("python.exception", 4, "utc")
    assert fact.time == pytest.approx(1789238653.123456)


def test_what_is_shown_of_a_wrapped_line_is_the_line(read: Read) -> None:
    """JSON's escapes would hide a secret from the redaction."""
    parsed = read(("rank1.log", docker('ValueError: {"password": "hunter2hunter2"}')))
    shown = [parsed.facts[0].text, parsed.ranks[0].last_line]
    assert all(text and text.startswith('ValueError: {"password": ') and "hunter2" not in text for text in shown)


def test_what_ray_left_out_is_a_gap(read: Read) -> None:
    parsed = read(("job.log", f"(W pid=7) {RANKED} [repeated 15x across cluster]\n(W pid=8) {RANKED}\n"))
    assert [(gap.source, gap.why) for gap in parsed.gaps] == [
        ("job.log", "Ray left out 15 like lines of other processes and does not say of which")
    ]


@pytest.mark.parametrize(
    ("line", "seconds", "uncertainty", "clock"),
    [
        ("1712345678.123456 n1 kernel: NVRM: Xid (PCI:0000:a1:00): 79, x", 1712345678.123456, 1e-6, "utc"),
        ("libfabric:85:1747438790::core:core:f():1<warn> f: provider efa output empty list", 1747438790.0, 1.0, "utc"),
        ("2024-04-05T21:29:39+0200 n1 kernel: NVRM: Xid (PCI:0000:a1:00): 79, x", 1712345379.0, 1.0, "utc"),
        (fluent("ValueError: x"), 1790000000.25, 0.01, "utc"),
        (journal("ValueError: x"), 1790000000.123456, 1e-6, "utc"),
        (docker("ValueError: x"), 1789238653.123456, 1e-6, "utc"),
    ],
)
def test_clocks_that_name_their_zone(line: str, seconds: float, uncertainty: float, clock: str, read: Read) -> None:
    (fact,) = read(source("job.log", line + "\n")).facts
    assert fact.time == pytest.approx(seconds, abs=1e-6)
    assert fact.uncertainty_s == pytest.approx(uncertainty)
    assert fact.data["clock"] == clock


def test_a_json_line_that_is_no_envelope_is_left_as_it_is(read: Read) -> None:
    assert (
        read(("job.log", '{"loss": 1.0, "note": "ValueError: x"}\n{"message": {"log": 1}}\n{"log": \n[1]\n')).facts
        == ()
    )
