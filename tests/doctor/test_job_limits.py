"""Limits of the ranks: too small for RDMA or for the job's size, or other ones on one node."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.doctor.check import Finding
from nccl_slurm.doctor.checks.job.limits import CHECKS
from nccl_slurm.doctor.fold import folded
from tests.doctor.jobs import EFA, INFINIBAND, NO_FABRIC, ROCE, Rows, job, limits, rank, said, words

(CHECK,) = CHECKS
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def rows(text: str, *, odd: str | None = None, size: int = 4, **more: Any) -> dict[str, Rows]:
    """Two nodes; the second has ``odd`` where it is given."""
    first = [rank(number, size, text=text, **more) for number in range(2)]
    return {"n1": first, "n2": [rank(number, size, text=odd or text, **more) for number in range(2, 4)]}


def test_good_limits_pass() -> None:
    (found,) = said(CHECK, job(rows(limits()), adapters=EFA))
    assert found.status == "PASS"
    assert found.text == ("4 ranks have the same limits: locked memory unlimited, stack size 8 MiB, open files 1024")


@pytest.mark.parametrize(
    ("locked", "adapters", "expected"),
    [
        (str(64 * KIB), EFA, ["FAIL P0"]),
        (str(8 * MIB), INFINIBAND, ["FAIL P0"]),
        (str(64 * MIB), EFA, ["WARN P1"]),
        (str(8 * GIB - 1), EFA, ["WARN P1"]),
        (str(8 * GIB), EFA, ["PASS"]),
        ("unlimited", EFA, ["PASS"]),
        ("18446744073709551615", EFA, ["PASS"]),
        (str(64 * KIB), ROCE, ["FAIL P0"]),
        *((str(64 * KIB), adapters, ["PASS"]) for adapters in NO_FABRIC.values()),
        (str(64 * KIB), {}, ["PASS"]),
        (str(64 * KIB), None, ["PASS"]),
    ],
)
def test_locked_memory(locked: str, adapters: Any, expected: list[str]) -> None:
    found = said(CHECK, job(rows(limits(locked=locked)), adapters=adapters))
    assert words(found) == expected


def test_locked_memory_is_told_with_its_rank_and_line() -> None:
    (found,) = said(CHECK, job(rows(limits(locked="65536")), adapters=EFA))
    assert found.text == "64 KiB of locked memory are too little to register memory for RDMA: ranks 0-3 (n[1-2])"
    assert found.proofs[0].source == "n1: /proc/1000/limits"
    assert found.proofs[0].line == "Max locked memory 64 KiB (soft), 64 KiB (hard)"
    assert found.nodes == ["n1", "n2"] and found.values["name"] == "Max locked memory"


def test_root_has_no_limit_of_locked_memory() -> None:
    assert words(said(CHECK, job(rows(limits(locked="65536"), uid=0), adapters=EFA))) == ["PASS"]


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (str(MIB), ["FAIL P1"]),
        (str(2 * MIB), ["FAIL P1"]),
        (str(4 * MIB), ["PASS"]),
        (str(8 * MIB), ["PASS"]),
        ("unlimited", ["PASS"]),
    ],
)
def test_stack(stack: str, expected: list[str]) -> None:
    assert words(said(CHECK, job(rows(limits(stack=stack)), adapters={}))) == expected


@pytest.mark.parametrize(
    ("hard", "size", "expected"),
    [
        ("1024", 4, ["FAIL P1"]),
        ("4095", 4, ["FAIL P1"]),
        ("4096", 4, ["PASS"]),
        ("4096", 4000, ["WARN P1"]),
        ("131072", 4000, ["PASS"]),
    ],
)
def test_open_files_by_the_size_of_the_job(hard: str, size: int, expected: list[str]) -> None:
    """Soft 1024 alone is no fault: NCCL raises it to the hard limit."""
    assert words(said(CHECK, job(rows(limits(files="1024", hard=hard), size=size), adapters={}))) == expected


@pytest.mark.parametrize(
    ("hard", "size", "text"),
    [
        ("600", 4, "no more than 600 files may be open (hard limit), below 4096: ranks 2-3 (n2)"),
        (
            "4500",
            4000,
            "no more than 4500 files may be open (hard limit); 4000 ranks may need 5024, one for each of them and 1024 "
            "for libraries, data and logs: ranks 2-3 (n2)",
        ),
    ],
)
def test_one_limit_that_is_too_low_is_one_finding(hard: str, size: int, text: str) -> None:
    """Its soft limit differs from that of the others, too."""
    odd = limits(files=str(min(int(hard), 1000)), hard=hard)
    (found,) = said(CHECK, job(rows(limits(), odd=odd, size=size), adapters={}))
    assert (found.text, found.nodes) == (text, ["n2"])


def test_the_ranks_limit_is_above_the_nodes() -> None:
    """`node.nofile` finds the same one, by the same figure."""
    (of_job,) = said(CHECK, job(rows(limits(), odd=limits(files="600", hard="600")), adapters={}))
    of_node = Finding("node.nofile", "FAIL", "a rank may open fewer than 4096 files", "P1", nodes=["n2"])
    told = folded([of_node, of_job], {CHECK.id: CHECK.explains}, ["node.nofile", CHECK.id])
    assert [(one.check, one.explained_by) for one in told] == [("job.limits", None), ("node.nofile", "job.limits")]


def test_a_node_with_another_limit_is_named() -> None:
    told = rows(limits(), odd=limits(files="2048"))
    told["n0"] = [rank(number, 4, text=limits()) for number in (5, 6)]
    (found,) = said(CHECK, job(told, adapters=EFA))
    assert (found.status, found.priority, found.nodes) == ("WARN", "P1", ["n2"])
    assert found.text == (
        "Max open files differs between ranks: 1024 on ranks 0-1,5-6 (n[0-1]), 2048 on ranks 2-3 (n2)"
    )


@pytest.mark.parametrize(
    ("processes", "expected"), [("8255214", []), ("unlimited", []), ("131072", []), ("4096", ["n2"]), ("1024", ["n2"])]
)
def test_the_kernels_own_limit_of_processes_is_of_each_node(processes: str, expected: list[str]) -> None:
    odd = limits().replace("1029000              1029000 ", f"{processes:<20} {processes:<20}")
    told = rows(limits(), odd=odd)
    told["n0"] = [rank(number, 4, text=limits()) for number in (5, 6)]
    found = [one for one in said(CHECK, job(told, adapters=EFA)) if one.status == "WARN"]
    assert [one.nodes for one in found] == ([expected] if expected else [])


@pytest.mark.parametrize(("number", "expected"), [("0", ["WARN P1"]), ("1", ["PASS"])])
def test_limits_are_compared_within_a_program(number: str, expected: list[str]) -> None:
    """Two steps, each with ranks 0 and 1."""
    low = [rank(one, 2, text=limits(hard="65536", files="512"), SLURM_STEP_ID=number) for one in range(2)]
    told = {"n1": [rank(one, 2, text=limits(), SLURM_STEP_ID="0") for one in range(2)], "n2": low}
    assert words(said(CHECK, job(told, adapters=EFA))) == expected


@pytest.mark.parametrize("text", ["", "no limits here", "\x00\xff", "Max open files"])
def test_limits_that_can_not_be_read_are_unknown(text: str) -> None:
    assert words(said(CHECK, job(rows(text), adapters=EFA))) == ["UNKNOWN"]


def test_of_one_node_that_can_not_be_read_nothing_is_said() -> None:
    found = said(CHECK, job(rows(limits(), odd="junk"), adapters=EFA))
    assert words(found) == ["UNKNOWN", "PASS"]
    assert found[0].nodes == ["n2"] and found[1].text.startswith("2 ranks")
