"""Runs parse and attribute over a folder of labelled cases and prints the table: classes, culprits, false accusations.

    python -m tests.bench.cases --cases DIR

Each case is a folder of log files with a ``meta.json``: ``class``, ``accept``, ``culprit_rank``, ``culprit_host``,
``culprit_ranks``, ``culprit_determinable``, ``culprit_disputed``, ``action``, ``accept_action``. Exit status 1 where
anybody was accused who is not the labelled culprit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Evidence, Verdict, numbered
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.patterns import Rows, load_rows

__all__ = ["Score", "main", "score"]


@dataclass(frozen=True)
class Score:
    """``culprit``: right | none-right | missed | FALSE."""

    case: str
    wanted: str
    got: str
    class_right: bool
    culprit: str
    named: str
    action: str
    action_right: bool
    rules: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=Path, required=True, help="folder of cases")
    parser.add_argument("--wrong", action="store_true", help="only the rows that are not all right")
    options = parser.parse_args(arguments)
    rows = load_rows()
    scores = [_case(folder, rows) for folder in _folders(options.cases)]
    shown = [s for s in scores if not (options.wrong and s.class_right and s.action_right and "right" in s.culprit)]
    print(tabulate([_row(one) for one in shown], headers=_HEADERS, tablefmt="simple", disable_numparse=True))
    print(_totals(scores))
    return 1 if any(one.culprit == "FALSE" for one in scores) else 0


_HEADERS = ("case", "class", "verdict", "ok", "culprit", "named", "action", "ok", "rules")


def _row(one: Score) -> tuple[str, ...]:
    ok = {True: "yes", False: "NO"}
    return (
        one.case[:34],
        one.wanted,
        "" if one.got == one.wanted else one.got,
        ok[one.class_right],
        one.culprit,
        one.named,
        one.action,
        ok[one.action_right],
        one.rules[:60],
    )


def _folders(cases: Path) -> list[Path]:
    return sorted(path.parent for path in cases.glob("*/meta.json"))


def _case(folder: Path, rows: Rows) -> Score:
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    sources, gaps = walk(str(folder))
    parsed = read_sources((source for source in sources if not source.name.endswith("meta.json")), rows)
    evidence = Evidence(
        facts=numbered(parsed.facts),
        ranks=parsed.ranks,
        gaps=[*gaps, *parsed.gaps],
        world_size=parsed.world_size,
    )
    return score(folder.name, meta, attribute(evidence))


def score(case: str, meta: Mapping[str, Any], verdict: Verdict) -> Score:
    return Score(
        case=case,
        wanted=str(meta["class"]),
        got=verdict.failure_class,
        class_right=verdict.failure_class in {meta["class"], *meta.get("accept", ())},
        culprit=_judge(meta, verdict),
        named=" ".join(f"{c.rank if c.rank is not None else '-'}@{c.host or '?'}" for c in verdict.culprits)[:40],
        action=verdict.action,
        action_right=verdict.action in {meta["action"], *meta.get("accept_action", ())},
        rules=" ".join(step.rule for step in verdict.inferences),
    )


def _judge(meta: Mapping[str, Any], verdict: Verdict) -> str:
    """Naming the labelled ones is right, naming nobody is right unless it could be told; anybody else is false."""
    ranks = {culprit.rank for culprit in verdict.culprits if culprit.rank is not None}
    hosts = {culprit.host for culprit in verdict.culprits if culprit.rank is None and culprit.host is not None}
    if not ranks and not hosts:
        return "missed" if meta.get("culprit_determinable") else "none-right"
    labelled = _labelled_ranks(meta)
    right = ranks <= labelled and hosts <= {meta.get("culprit_host")}
    whole = bool(ranks) and ranks == labelled and len(labelled) > 1
    allowed = meta.get("culprit_determinable") or meta.get("culprit_disputed") or whole
    return "right" if right and allowed else "FALSE"


def _labelled_ranks(meta: Mapping[str, Any]) -> set[int]:
    one = meta.get("culprit_rank")
    return {*(meta.get("culprit_ranks") or ()), *(() if one is None else (one,))}


def _totals(scores: Iterable[Score]) -> str:
    scores = list(scores)
    counts = {word: sum(one.culprit == word for one in scores) for word in ("right", "none-right", "missed", "FALSE")}
    return (
        f"{len(scores)} cases; classes right {sum(one.class_right for one in scores)}; "
        f"culprits named rightly {counts['right']}, nobody where nobody can be {counts['none-right']}, "
        f"missed {counts['missed']}, false accusations {counts['FALSE']}; "
        f"actions right {sum(one.action_right for one in scores)}"
    )


if __name__ == "__main__":
    sys.exit(main())
