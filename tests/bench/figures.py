"""What a bench measured, and how it is told: a table, and last one line."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tabulate import tabulate

__all__ = ["Figure", "figure_of", "show"]


@dataclass(frozen=True)
class Figure:
    """``holds`` is None where nothing was promised. ``load`` is the machine's, over the last minute."""

    name: str
    value: str
    bar: str = ""
    holds: bool | None = None
    load: float = 0.0


def figure_of(name: str, value: float, unit: str, bar: float, *, at_least: bool = False) -> Figure:
    holds = value >= bar if at_least else value <= bar
    return Figure(name, f"{value:.3g} {unit}", f"{'≥' if at_least else '≤'} {bar:g} {unit}", holds)


def show(figures: Sequence[Figure]) -> int:
    words = {True: "yes", False: "NO", None: ""}
    rows = [(f.name, f.value, f.bar, words[f.holds], f"{f.load:.1f}") for f in figures]
    print(tabulate(rows, headers=("measured", "figure", "bar", "holds", "load"), disable_numparse=True))
    print(f"{os.cpu_count()} cores; " + "; ".join(f"{f.name} {f.value}" for f in figures))
    return 1 if any(f.holds is False for f in figures) else 0
