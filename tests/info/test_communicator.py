from __future__ import annotations

import pytest

from nccl_slurm.info.communicator import Spans, communicators
from nccl_slurm.model import Fact
from tests.info.lines import channel, info, init, read

SPLIT = "parent 0xa{rank} splitCount {count} color {color} key 0"


def split(rank: int, phase: str, *, color: int = 0, count: int = 1, comm: str = "0xb") -> Fact:
    return init(rank, phase, comm=comm, shared=SPLIT.format(rank=rank, count=count, color=color))


def both(ranks: range) -> list[Fact]:
    return [init(rank, phase) for rank in ranks for phase in ("START", "COMPLETE")]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        (both(range(4)), [("0xc0", [], [])]),
        ([init(rank, "START") for rank in range(4)], [("0xc0", [0, 1, 2, 3], [])]),
        ([*both(range(3)), init(3, "START")], [("0xc0", [3], [])]),
        # one never came
        ([init(rank, "START") for rank in range(3)], [("0xc0", [0, 1, 2], [3])]),
        # only rank 0 logs
        (both(range(1)), [("0xc0", [], [])]),
        # COMPLETE alone, as before 2.18, and no commId, as before 2.16
        ([init(rank, "COMPLETE") for rank in range(4)], [("0xc0", [], [])]),
        ([read("n1:8:9 [2] NCCL INFO comm 0x5 rank 2 nranks 8 cudaDev 2 busId 3b000 - Init COMPLETE")], []),
        # splits are told apart by colour and count
        (
            [*both(range(4)), *(split(rank, "START", color=rank % 2) for rank in range(4))],
            [("0xc0", [], []), ("0xc0/split1color0", [0, 2], []), ("0xc0/split1color1", [1, 3], [])],
        ),
        (
            [
                *both(range(4)),
                *(split(rank, phase) for rank in range(4) for phase in ("START", "COMPLETE")),
                *(split(rank, "START", count=2, comm="0xd") for rank in range(3)),
            ],
            [("0xc0", [], []), ("0xc0/split1color0", [], []), ("0xc0/split2color0", [0, 1, 2], [3])],
        ),
        # a split whose parent was not seen has no name that ranks share
        ([split(0, "START")], []),
    ],
)
def test_communicators(facts: list[Fact], expected: list[object]) -> None:
    assert [(one.name, one.stopped, one.unseen) for one in communicators(facts)] == expected


def test_a_split_of_itself_ends() -> None:
    line = "ncclCommSplit comm 0xe rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId 1b000 parent 0xe color 0 key 0- Init START"
    assert communicators([info(0, line)]) == []


@pytest.mark.parametrize(
    ("line", "lines", "expected"),
    [
        (5, [init(0, "START", line=2)], "0xc0"),
        (1, [init(0, "START", line=2)], "0xc0"),
        (5, [], None),
        (5, [init(1, "START", line=2)], None),
        (
            5,
            [init(0, "START", line=2), init(0, "COMPLETE", line=9), init(0, "START", shared="commId 0xc1", line=20)],
            "0xc0",
        ),
        (
            15,
            [init(0, "START", line=2), init(0, "COMPLETE", line=9), init(0, "START", shared="commId 0xc1", line=20)],
            None,
        ),
        (
            25,
            [init(0, "START", line=2), init(0, "COMPLETE", line=9), init(0, "START", shared="commId 0xc1", line=20)],
            "0xc1",
        ),
    ],
)
def test_spans(line: int, lines: list[Fact], expected: str | None) -> None:
    assert Spans(lines).of(channel(0, 1, "P2P/IPC", line=line)) == expected
