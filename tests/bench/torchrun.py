"""Real torchrun runs that fail in a known way: our culprit beside torchrun's root cause and "first silent".

    python -m tests.bench.torchrun [--only WORD] [--keep FOLDER] [--shift N] [--markdown]

Exit status 0: at least 95 % of the culprits that can be told are right, and nobody is accused falsely. Needs root (each
agent gets a host name of its own) and torch.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tabulate import tabulate

from tests.torchrun.judge import Judged, judge
from tests.torchrun.runner import missing, run
from tests.torchrun.scenario import Scenario
from tests.torchrun.table import ALL

__all__ = ["BAR", "main"]

#: Share of determinable culprits that must be right.
BAR = 0.95
#: Runs at a time: they mostly wait for time-outs.
_TOGETHER = 3
_HEADERS = ("run", "culprit", "can be told", "class", "ours", "confidence", "", "root cause", "first silent")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--keep", type=Path, help="new folder for what the runs leave, each in a folder of its number")
    parser.add_argument("--together", type=int, default=_TOGETHER, help=f"runs at a time (default {_TOGETHER})")
    parser.add_argument("--shift", type=int, default=0, help="move what is done by so many ranks")
    parser.add_argument("--markdown", action="store_true", help="the table as docs/torchrun.md holds it")
    options = parser.parse_args(arguments)
    if why := missing():
        print(f"left out: {why}", file=sys.stderr)
        return 1
    chosen = [scenario.shifted(options.shift) for scenario in ALL if options.only in scenario.name]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torchrun-") as scratch:
        judged = _all(chosen, options.keep or Path(scratch), options.together)
    form = "github" if options.markdown else "simple"
    print(tabulate([_row(one) for one in judged], headers=_HEADERS, tablefmt=form, disable_numparse=True))
    print(_totals(judged, time.monotonic() - began))
    return 0 if judged and _holds(judged) else 1


def _all(scenarios: Sequence[Scenario], folder: Path, together: int) -> list[Judged]:
    pool = ThreadPoolExecutor(together)
    try:
        runs = [pool.submit(_one, one, folder / f"{place:02d}") for place, one in enumerate(scenarios)]
        return [one.result() for one in runs]
    finally:
        pool.shutdown(cancel_futures=True)  # those that have begun end by themselves, and take away what they started


def _one(scenario: Scenario, folder: Path) -> Judged:
    return judge(run(scenario, folder))


def _row(one: Judged) -> tuple[str, ...]:
    scenario, verdict = one.run.scenario, one.verdict
    return (
        scenario.name,
        _list(scenario.culprits),
        "yes" if scenario.determinable else "no",
        verdict["class"] + ("" if one.class_right else f" (NOT {scenario.failure_class})"),
        " ".join(sorted(f"{rank}@{host}" for rank, host in one.named)) or "-",
        verdict["confidence"],
        one.culprit,
        f"{_list(one.roots)}{' right' if one.root_right else ''}",
        f"{'-' if one.silent is None else one.silent}{' right' if one.silent_right else ''}",
    )


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks)) or "-"


def _share(judged: Sequence[Judged], right: Callable[[Judged], bool]) -> str:
    told = [one for one in judged if one.run.scenario.determinable]
    count = sum(map(right, told))
    return f"{count} of {len(told)} ({100 * count / len(told):.0f} %)" if told else "0 of 0"


def _right(one: Judged) -> bool:
    return one.culprit == "right"


def _holds(judged: Sequence[Judged]) -> bool:
    told = [one for one in judged if one.run.scenario.determinable]
    return sum(map(_right, told)) >= BAR * len(told) and not any(one.culprit == "FALSE" for one in judged)


def _totals(judged: Sequence[Judged], seconds: float) -> str:
    return (
        f"{len(judged)} runs in {seconds:.0f} s; culprit right where it can be told: ours {_share(judged, _right)}, "
        f"torchrun's root cause {_share(judged, lambda one: one.root_right)}, "
        f"first silent {_share(judged, lambda one: one.silent_right)}; "
        f"false accusations {sum(one.culprit == 'FALSE' for one in judged)}; "
        f"classes right {sum(one.class_right for one in judged)}, actions right {sum(o.action_right for o in judged)}"
    )


if __name__ == "__main__":
    sys.exit(main())
