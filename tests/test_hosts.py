from __future__ import annotations

import time

import pytest

from nccl_slurm.hosts import expand, fold, fold_numbers
from nccl_slurm.report.visible import ascii_only, visible


@pytest.mark.parametrize(
    ("hostlist", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("n[1-3,5]", ["n1", "n2", "n3", "n5"]),
        ("r[01-02]n[1-2]", ["r01n1", "r01n2", "r02n1", "r02n2"]),
        ("gpu-a,n[08-10]", ["gpu-a", "n08", "n09", "n10"]),
        ("ip-10-1-2-3", ["ip-10-1-2-3"]),
    ],
)
def test_expand(hostlist: str, names: list[str]) -> None:
    assert sorted(expand(hostlist)) == names


@pytest.mark.parametrize(
    "hostlist",
    ["n[1-", "@all", "n[0-99999999999]", "n[1-2]]", "a&b", "n[]", "n 1", "n[a-b]", "n[1-9999]x[1-9999]", "\x1b"],
)
def test_expand_refuses(hostlist: str) -> None:
    started = time.process_time()
    with pytest.raises(ValueError, match=r"no (host list|range)"):
        expand(hostlist)
    assert time.process_time() - started < 5


def test_fold_validates_first() -> None:
    assert fold(["n2", "n1", "n3", "n1"]) == "n[1-3]"
    assert fold(["n1", "@all", "\x1b[31mred"]) == "n1,\\x1b[31mred,@all"
    assert fold([]) == ""


def test_fold_and_expand_are_inverse() -> None:
    names = [f"r{rack:02}n{node}" for rack in range(4) for node in range(8)] + ["login"]
    assert sorted(expand(fold(names))) == sorted(names)


def test_fold_of_sixteen_thousand_is_quick() -> None:
    started = time.process_time()
    assert fold(f"n{number}" for number in range(16_384)) == "n[0-16383]"
    assert time.process_time() - started < 10


def test_fold_numbers() -> None:
    assert fold_numbers([3, 1, 2, 9]) == "1-3,9"
    assert fold_numbers([]) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("zero\u200bwidth\ufeff", "zero\\u200bwidth\\ufeff"),
        ("\x9b31m", "\\x9b31m"),
        ("no\xa0break", "no\\xa0break"),
        ("\ud800", "\\ud800"),
        ("\U000e0001tag", "\\U000e0001tag"),
        ("Übung 测试", "Übung 测试"),
    ],
)
def test_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_visible_cuts_and_ascii() -> None:
    assert visible("x" * 100, 10) == "xxxxxxx..."
    assert ascii_only("Ü\x1b") == "\\xdc\\x1b"
