"""Three answers to who stopped first, for one run: ours, torchrun's own root cause, and whose log stopped first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nccl_slurm.cli.logs import report_of_logs
from tests.torchrun.runner import Run
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import MISSED

__all__ = ["Judged", "judge", "mistakes"]

_ROOT = re.compile(r"Root Cause \(first observed failure\):.*?rank +: (\d+) \(local_rank", re.DOTALL)
_STEP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) INFO rank (\d+): ")


@dataclass(frozen=True)
class Judged:
    """``named``: whom our verdict proves, with the node. ``roots``: one of each agent's table. ``silent``: the rank
    whose own lines end first; None where not all ranks print lines."""

    run: Run
    report: dict[str, Any]
    roots: tuple[int, ...]
    silent: int | None

    @property
    def verdict(self) -> dict[str, Any]:
        verdict: dict[str, Any] = self.report["verdict"]
        return verdict

    @property
    def named(self) -> frozenset[tuple[int | None, str | None]]:
        return frozenset((one["rank"], one["host"]) for one in self.verdict["culprits"])

    @property
    def ranks(self) -> frozenset[int | None]:
        return frozenset(rank for rank, _ in self.named)

    @property
    def class_right(self) -> bool:
        scenario = self.run.scenario
        return self.verdict["class"] in {scenario.failure_class, *scenario.accept}

    @property
    def action_right(self) -> bool:
        return self.verdict["action"] in self.run.scenario.actions

    @property
    def culprit(self) -> str:
        """``right``, ``open`` (nobody named where nobody can be), ``missed``, ``FALSE``."""
        scenario, named = self.run.scenario, self.named
        if not named:
            return "missed" if scenario.determinable else "open"
        wrong = any(rank not in scenario.culprits or host not in (None, _node(scenario, rank)) for rank, host in named)
        return "FALSE" if wrong or self.ranks != set(scenario.culprits) else "right"

    @property
    def root_right(self) -> bool:
        """All agents agree on a culprit; as many as there are culprits, where there are several."""
        return bool(self.roots) and set(self.roots) == set(self.run.scenario.culprits)

    @property
    def silent_right(self) -> bool:
        return self.silent is not None and {self.silent} == set(self.run.scenario.culprits)


def judge(run: Run) -> Judged:
    """Through the same code as ``nccl-slurm report --logs FOLDER``."""
    consoles = [path.read_text("utf-8", "replace") for path in sorted(run.folder.glob("*.out"))]
    roots = tuple(int(rank) for text in consoles for rank in _ROOT.findall(text))
    texts = [*consoles, *(path.read_text("utf-8", "replace") for path in run.folder.rglob("stderr.log"))]
    return Judged(run, report_of_logs(str(run.folder)), roots, _first_silent(texts, run.scenario.world))


def mistakes(one: Judged) -> list[str]:
    """What is wrong with our verdict; empty where nothing is. The run itself must have gone as planned."""
    scenario, verdict = one.run.scenario, one.verdict
    well = all(code == 0 for code in one.run.exits.values())
    wanted = "missed" if scenario.name in MISSED else "right" if scenario.determinable else "open"
    found = [
        (well == scenario.ends_well and None not in one.run.exits.values(), f"agents ended with {one.run.exits}"),
        (one.culprit != "FALSE", f"accused {sorted(map(str, one.named))}"),
        (one.culprit in (wanted, "right"), f"nobody named: {verdict['summary']}"),
        (one.class_right, f"class {verdict['class']}, not {scenario.failure_class}: {verdict['summary']}"),
        (one.action_right, f"action {verdict['action']}"),
    ]
    return [text for good, text in found if not good]


def _first_silent(texts: Iterable[str], world: int) -> int | None:
    last: dict[int, float] = {}
    for text in texts:
        for stamp, rank in _STEP.findall(text):
            at = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp()
            last[int(rank)] = max(at, last.get(int(rank), 0.0))
    return min(last, key=lambda rank: (last[rank], rank)) if len(last) == world else None


def _node(scenario: Scenario, rank: int | None) -> str | None:
    return None if rank is None else scenario.node_of(rank)
