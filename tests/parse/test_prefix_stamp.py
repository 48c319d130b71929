from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.parse import prefix, stamp
from nccl_slurm.parse.prefix import Prefix, strip
from tests.parse.conftest import NOW


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[rank3]: Traceback (most recent", {"rank": 3, "text": "Traceback (most recent"}),
        ('[rank3]:   File "a.py"', {"rank": 3, "text": '  File "a.py"'}),
        ("[default1]:text", {"local_rank": 1, "rank": None, "text": "text"}),
        ("[default12]:[rank44]:[E1206 x", {"local_rank": 12, "rank": 44, "text": "[E1206 x"}),
        ("[E ProcessGroupNCCL.cpp:457] [Rank 3] Watchdog", {"rank": None, "local_rank": None}),
        ("  7: [rank7]: boom", {"task": 7, "rank": 7, "text": "boom"}),
        ("12: plain", {"task": 12, "rank": None, "text": "plain"}),
        ("[1,12]<stdout>:n1:8:9 [0] NCCL INFO x", {"rank": 12, "host": "n1", "pid": 8}),
        ("[1,3]<stderr>:boom", {"rank": 3, "text": "boom"}),
        ("(Worker[rank=31] pid=77, ip=10.0.0.9) text", {"rank": 31, "pid": 77, "host": "10.0.0.9", "text": "text"}),
        ("(RayWorkerWrapper pid=77) [rank1]:[E x", {"rank": 1, "pid": 77, "text": "[E x"}),
        ("[80746] [rank0]:[E x", {"rank": 0, "text": "[E x"}),
        ("pod-1.n4 [stderr] [rank14]:[E x", {"rank": 14, "text": "[E x"}),
        ("18:11:06.680 [rank4]:[E x", {"rank": 4, "text": "[E x"}),
        ("10.0.0.1: n1:8:9 [0] NCCL WARN x", {"host": "n1", "pid": 8}),
        ("trainer/0 [0]:E0927 x", {"text": "E0927 x", "rank": None}),
        ("[RANK 1] 2026-05-19 10:10:29,701 [ERROR] x", {"rank": 1}),
        ("Map:  96%|####      [rank2]:[E x", {"rank": 2, "text": "[E x"}),
        (" 5%\r 6%\r[default3]:x", {"local_rank": 3, "text": "x"}),
        ("\x1b[31m[rank5]: red\x1b[0m", {"rank": 5, "text": "red"}),
        ("Feb 28 19:47:38 n228 slurmd[135]: error: pyxis: x", {"host": "n228", "text": "error: pyxis: x"}),
        ("[2026-03-13 22:26:02] n1:8:9 [2] a.cc:1 NCCL WARN x", {"host": "n1", "pid": 8}),
        ("[rank99999999]: too large", {"rank": None}),
        ("", {"text": "", "rank": None, "label": ""}),
    ],
)
def test_labels(line: str, expected: dict[str, object]) -> None:
    found = strip(line)
    assert {key: getattr(found, key) for key in expected} == expected


def test_streams_of_one_file_have_their_own_label() -> None:
    assert strip("0: x").label != strip("1: x").label
    assert strip("[rank1]: x").label == strip("[rank1]: y").label


PARTS = st.sampled_from(
    [
        *("n1:8:9 [2] NCCL INFO x", "n1:8:9 [-1] NCCL WARN ", "n1:8:9 ", "2024-01-01T10:12:13 [0] NCCL INFO "),
        *("a1.b:7:99999999999 ", "x:12345678:9 [0] NCCL INFO ", "kern:4:5 ", " NCCL INFO ", "kernel: ", "3: ", "n1: "),
        *("[rank3]: ", " [repeated 15x across cluster]", "[1,5]<stderr>:", "(W[rank=31] pid=7) ", '{"log": "'),
        *("\r", "\n", "\x1b[0m", "é"),
    ]
)


@given(st.lists(PARTS, max_size=5).map("".join))
def test_plain_lines_are_read_as_all_others(line: str) -> None:
    strip.cache_clear()
    quick = strip(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefix, "_PLAIN", re.compile(r"(?!)"))
        strip.cache_clear()
        assert strip(line) == quick


def test_host_and_pid_are_read_from_nccl_lines_alone() -> None:
    assert strip("a:1:2 hello") == Prefix("a:1:2 hello")


def local(year: int, month: int, day: int, hour: int, minute: int, second: float) -> float:
    return time.mktime((year, month, day, hour, minute, 0, 0, 0, -1)) + second


@pytest.mark.parametrize(
    ("text", "seconds", "uncertainty", "zoned"),
    [
        ("[E206 18:44:12.715298746 P.cpp:6]", local(2026, 2, 6, 18, 44, 12.715298746), 1e-6, False),
        ("[rank3]:[E1206 18:44:12.715298746 P.cpp:6]", local(2025, 12, 6, 18, 44, 12.715298746), 1e-6, False),
        ("E0612 01:14:57.061000 39 torch/x.py:9] y", local(2026, 6, 12, 1, 14, 57.061), 1e-6, False),
        ("[2026-03-13 22:26:02] n1:8", local(2026, 3, 13, 22, 26, 2), 1.0, False),
        ("2024-05-05 22:08:09,140 - root", local(2024, 5, 5, 22, 8, 9.14), 1e-3, False),
        ("2019-05-31T20:21:44.884Z: x", 1559334104.884, 1e-3, True),
        ("2019-05-31T22:21:44+02:00 x", 1559334104.0, 1.0, True),
        ("AT 2026-03-06T03:17:51 DUE", local(2026, 3, 6, 3, 17, 51), 1.0, False),
        ("time : 2026-08-10_03:05:11", local(2026, 8, 10, 3, 5, 11), 1.0, False),
        ("[Sun Apr  7 02:16:39 2024] NVRM", local(2024, 4, 7, 2, 16, 39), 1.0, False),
        ("Feb 14 05:03:41 n1 kernel: x", local(2026, 2, 14, 5, 3, 41), 1.0, False),
        ("Dec 31 23:59:59 n1 kernel: x", local(2025, 12, 31, 23, 59, 59), 1.0, False),
        ("[E229 01:00:00.5 P.cpp:6]", local(2024, 2, 29, 1, 0, 0.5), 0.1, False),
    ],
)
def test_stamps(text: str, seconds: float, uncertainty: float, zoned: bool) -> None:
    found = stamp.find(text, NOW)
    assert found is not None
    assert found.seconds == pytest.approx(seconds, abs=1e-6)
    assert found.uncertainty_s == pytest.approx(uncertainty)
    assert found.zoned is zoned


@pytest.mark.parametrize(
    "text",
    [
        "no time",
        "[E1399 18:44:12.7 P]",
        "2026-02-30 10:00:00 x",
        "2026-01-01 25:00:00",
        "Foo 14 05:03:41 x",
        "[ 1843.308145] NVRM",
        "a:b:c",
    ],
)
def test_no_stamp(text: str) -> None:
    assert stamp.find(text, NOW) is None
