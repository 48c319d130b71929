"""A run's folder on a node whose job had several steps."""

from __future__ import annotations

from nccl_slurm.model import Parsed
from nccl_slurm.parse.source import Source
from tests.parse.conftest import NOW, Read, kinds, source


def task(step: str, procid: int, at: float, *, host: str | None = "n1") -> Source:
    text = f"step={step}\nprocid={procid}\nlocalid=0\npid={900 + procid}\nhost=n1\ngpus=\ntime={int(NOW + at)}\n"
    return source(f"task.{step}.{procid}", text, host=host, mtime=NOW + at)


def ranks(pid: int, world: int, until: float, *, rank: int = 0, host: str | None = "n1", more: str = "") -> Source:
    init = f"comm 0xa rank {rank} nranks {world} cudaDev 0 busId a1000 commId 0x1 - Init COMPLETE"
    text = f"n1:{pid}:1 [0] NCCL INFO {init}\n{more}"
    return source(f"nccl.n1.{pid}.log", text, host=host, mtime=NOW + until)


FAILED = "n1:7:1 [0] NCCL WARN CUDA failure 700 'an illegal memory access was encountered'\n"
TWICE = [
    task("batch", 0, -5),
    task("0", 0, 0),
    ranks(7, 8, 60, rank=3, more=FAILED),
    task("1", 0, 100),
    ranks(8, 4, 200, rank=1),
]


def whose(parsed: Parsed) -> list[tuple[int, str | None]]:
    return [(rank.rank, rank.step) for rank in parsed.ranks]


def test_each_step_has_ranks_of_its_own(read: Read) -> None:
    parsed = read(*TWICE)
    assert whose(parsed) == [(3, "0"), (1, "1")]
    worlds = {fact.data["of_step"]: fact.data["world_size"] for fact in parsed.facts if fact.kind == "slurm.step-world"}
    assert worlds == {"0": 8, "1": 4} and parsed.world_size is None
    failures = [fact for fact in parsed.facts if fact.role == "cause"]
    assert [(fact.rank, fact.data["of_step"]) for fact in failures] == [(3, "0")]


def test_the_last_word_tells_whose_a_file_is(read: Read) -> None:
    """A dump of a fixed name that the second step has overwritten is the second's."""
    assert whose(read(task("0", 0, 0), task("1", 0, 100), ranks(7, 8, 150))) == [(0, "1")]
    before = read(task("0", 0, 0), task("1", 0, 100), ranks(7, 8, -1))
    assert whose(before) == [(0, None)]


def test_one_step_and_logs_from_elsewhere_are_not_taken_apart(read: Read) -> None:
    once = read(task("batch", 0, -5), task("0", 0, 0), task("0", 1, 1), ranks(7, 8, 60))
    assert whose(once) == [(0, None)] and once.world_size == 8
    assert "slurm.step-world" not in kinds(once)
    copied = read(task("0", 0, 0, host=None), task("1", 0, 100, host=None), ranks(7, 8, 60, host=None))
    assert whose(copied) == [(0, None)]
