"""All ranks side by side, those who are named on top, equal ones folded so that 16,384 ranks stay readable.

Below them the order is logical, not by the clock: clocks of nodes differ and last lines of a hang lie within
milliseconds of one another, so time only decides among ranks that are equal in progress and exit.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nccl_slurm.excerpt import excerpt
from nccl_slurm.hosts import fold, fold_numbers
from nccl_slurm.info.path import NVLS
from nccl_slurm.report.visible import visible

__all__ = ["HEADER", "ROWS_MAX", "order", "rows"]

HEADER = ("ranks", "nodes", "exit", "progress", "last time", "last line")
#: Groups printed; the rest is counted.
ROWS_MAX = 64
#: Process groups shown for one row; a job with many sub groups has dozens.
_GROUPS_MAX = 3
_LINE_MAX = 100
_NAMES_MAX = 60

_SIGNALS_OF_THE_AGENT = (-15, -9)
_RankView = Mapping[str, Any]


def order(ranks: Sequence[_RankView], named: Collection[int] = ()) -> list[_RankView]:
    """The named first, silent or not; then furthest behind, own exits, those that were ended by others, by time; of
    whom nothing was observed last."""
    ahead = _furthest(ranks)
    return sorted(
        ranks,
        key=lambda rank: (
            rank["rank"] not in named,
            _silent(rank),
            -_behind(rank, ahead),
            _exit_order(rank),
            *_moment(rank),
        ),
    )


def rows(
    ranks: Sequence[_RankView], transport: Mapping[str, Sequence[int]], named: Collection[int] = ()
) -> tuple[list[tuple[str, ...]], tuple[str, ...], int]:
    """Rows, their header, and how many groups were left out. The network is a column where ranks differ in it.

    ``named``: culprits, else suspects; they share no row with others.
    """
    ahead, networks = _furthest(ranks), _networks(transport)
    folded: dict[tuple[Any, ...], list[_RankView]] = {}
    for rank in order(ranks, named):
        own = (rank["rank"] in named, networks.get(rank["rank"], ""))
        folded.setdefault((*_alike(rank, ahead), *own), []).append(rank)
    groups = list(folded.values())
    table = [_row(group) for group in groups[:ROWS_MAX]]
    left = max(0, len(groups) - ROWS_MAX)
    if not networks:
        return table, HEADER, left
    words = (visible(networks.get(group[0]["rank"], "?"), _NAMES_MAX) for group in groups)
    return [(*row, word) for row, word in zip(table, words, strict=False)], (*HEADER, "network"), left


def _networks(transport: Mapping[str, Sequence[int]]) -> dict[int, str]:
    """Rank → network that NCCL chose on it; empty where all have the same."""
    chosen: dict[int, list[str]] = {}
    for name in sorted(transport):
        for rank in transport[name] if "/" not in name and name != NVLS else ():
            chosen.setdefault(rank, []).append(name)
    found = {rank: ", ".join(names) for rank, names in chosen.items()}
    return found if len(set(found.values())) > 1 else {}


def _furthest(ranks: Iterable[_RankView]) -> dict[str, int]:
    """Process group → the collective in which its ranks stand: one past the last that any rank completed."""
    furthest: dict[str, int] = {}
    for rank in ranks:
        for group, counts in rank["progress"].items():
            furthest[group] = max(furthest.get(group, 0), counts.get("completed", -1) + 1)
    return furthest


def _behind(rank: _RankView, ahead: Mapping[str, int]) -> int:
    """Collectives that others completed or wait in and this rank never entered; run-ahead counts as zero."""
    lags = (ahead[group] - counts.get("enqueued", ahead[group]) for group, counts in rank["progress"].items())
    return max(0, max(lags, default=0))


def _exit_order(rank: _RankView) -> int:
    if rank["exit"] is None:
        return 2
    if rank["exit"] in _SIGNALS_OF_THE_AGENT:
        return 1
    return 3 if rank["exit"] == 0 else 0


def _silent(rank: _RankView) -> bool:
    return rank["exit"] is None and rank["last"] is None and not rank["last_line"] and not rank["progress"]


def _moment(rank: _RankView) -> tuple[str, int]:
    """RFC 3339 in UTC sorts as text; no time comes after all times."""
    return rank["last"] or "~", rank["rank"]


def _alike(rank: _RankView, ahead: Mapping[str, int]) -> tuple[Any, ...]:
    """Ranks with one key share a row: numbers in their last lines (rank, loss, time) make no difference."""
    line = re.sub(r"\d+", "0", rank["last_line"] or "")
    return (_silent(rank), _behind(rank, ahead), rank["exit"], _progress(rank), line)


def _row(group: Sequence[_RankView]) -> tuple[str, ...]:
    first = group[0]
    return (
        visible(fold_numbers(rank["rank"] for rank in group), _NAMES_MAX),
        visible(fold(rank["host"] for rank in group if rank["host"]), _NAMES_MAX) or "?",
        "?" if first["exit"] is None else str(first["exit"]),
        _progress(first) or "?",
        _times(group),
        excerpt(visible(first["last_line"] or _no_line(first)), _LINE_MAX),
    )


def _no_line(rank: _RankView) -> str:
    """An exit status or a count is something."""
    return "nothing observed" if _silent(rank) else "no line"


def _progress(rank: _RankView) -> str:
    """``0: 5/6`` = completed 5, enqueued 6 in process group 0."""
    groups = sorted(rank["progress"].items())
    shown = [f"{visible(name, 20)}: {_count(c, 'completed')}/{_count(c, 'enqueued')}" for name, c in groups]
    more = [f"+{len(shown) - _GROUPS_MAX}"] if len(shown) > _GROUPS_MAX else []
    return " ".join(shown[:_GROUPS_MAX] + more)


def _count(counts: Mapping[str, int], key: str) -> str:
    return "?" if key not in counts else str(counts[key])


def _times(group: Iterable[_RankView]) -> str:
    times = sorted(rank["last"] for rank in group if rank["last"])
    if not times:
        return "?"
    return times[0] if times[0] == times[-1] else f"{times[0]} .. {times[-1]}"
