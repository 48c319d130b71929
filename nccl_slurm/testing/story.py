"""What a simulated job leaves: lines of each writer with their true times, dumps, how each rank ended, Slurm's word."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from nccl_slurm.model import Step
from nccl_slurm.testing.place import Place
from nccl_slurm.testing.scenario import Group, Scenario

__all__ = ["End", "Line", "Process", "Story", "Wait"]


class Line(NamedTuple):
    """``time``: true, not the node's. ``shows``: what the line is for the truth: cause, wait, lost, count, odd …"""

    time: float
    text: str
    shows: str = ""


class End(NamedTuple):
    """``code``: as Python's subprocess has it; None: the machine went away with it."""

    time: float
    code: int | None


class Wait(NamedTuple):
    """A collective that a rank entered at ``since``."""

    group: Group
    seq: int
    since: float
    op: str
    numel: int


@dataclass
class Process:
    """One rank. ``entered``, ``done``: GUID of a group → number of the last collective. ``stuck``: what holds it:
    ``code`` (it hangs in its own code), ``watchdog`` (torch's watchdog thread too), ``kernel`` (nothing in it moves,
    signals neither). ``fired``: its own watchdog reported. ``leaving``: it has given up and is about to end."""

    rank: int
    at: float
    step: int = 0
    place_in_step: int = 0
    entered: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    wait: Wait | None = None
    stuck: str | None = None
    end: End | None = None
    finished: bool = False
    joining: bool = False
    fired: bool = False
    told: bool = False
    leaving: bool = False

    @property
    def lives(self) -> bool:
        return self.end is None

    def counts(self, guid: str) -> tuple[int, int]:
        """Last enqueued, last completed; -1: none yet."""
        return self.entered.get(guid, 0) or -1, self.done.get(guid, 0) or -1


@dataclass
class Story:
    """``ranks``: what a rank prints; ``nccl``: its NCCL_DEBUG_FILE; ``agents``: torchrun's agent of a node;
    ``kernel``: records of a node's kernel log; ``slurm``: srun and slurmstepd. ``dumps``, ``error_files``: by rank."""

    scenario: Scenario
    place: Place
    processes: list[Process]
    chance: random.Random
    ranks: dict[int, list[Line]] = field(default_factory=lambda: defaultdict(list))
    nccl: dict[int, list[Line]] = field(default_factory=lambda: defaultdict(list))
    agents: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    kernel: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    slurm: list[Line] = field(default_factory=list)
    dumps: dict[int, bytes] = field(default_factory=dict)
    error_files: dict[int, bytes] = field(default_factory=dict)
    exceptions: dict[int, str] = field(default_factory=dict)
    state: str | None = None
    exit: str = "1:0"
    end: float = 0.0
    failed_nodes: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, scenario: Scenario) -> Story:
        chance = scenario.random("story")
        processes = [Process(rank, scenario.start) for rank in range(scenario.world)]
        return cls(scenario, Place(scenario), processes, chance)

    def clock(self, rank: int, at: float) -> float:
        """What this rank's clock shows."""
        return self.place.clock(self.scenario.host(rank), at)

    def print(self, rank: int, at: float, text: str | Iterable[str], shows: str = "") -> None:
        lines = [text] if isinstance(text, str) else text
        self.ranks[rank] += [Line(at, line, shows) for line in lines]

    def log(self, rank: int, at: float, text: str | Iterable[str], shows: str = "") -> None:
        """Into NCCL's own file."""
        lines = [text] if isinstance(text, str) else text
        self.nccl[rank] += [Line(at, line, shows) for line in lines]

    def agent(self, host: str, at: float, text: str | Iterable[str], shows: str = "") -> None:
        lines = [text] if isinstance(text, str) else text
        self.agents[host] += [Line(at, line, shows) for line in lines]

    def srun(self, at: float, text: str | Iterable[str]) -> None:
        lines = [text] if isinstance(text, str) else text
        self.slurm += [Line(at, line) for line in lines]

    @property
    def steps(self) -> tuple[Step, ...]:
        """As accounting has them."""
        job, nodes = self.scenario.job_id, self.scenario.nodes
        code, _, number = self.exit.partition(":")
        state = self.state or "FAILED"
        batch = Step(f"{job}.batch", "batch", state, int(code), int(number), nodes[:1])
        return batch, Step(f"{job}.0", "python3", state, int(code), int(number), nodes)
