"""Starts of torch that cost half of the CPU, for tests that start it hundreds of times.

A rank is a process of its own that imports torch as ever, but for parts that it does not use: `sitecustomize` beside
this has their names. What a rank prints is the same. Where it did use one it prints `ASKED`, and proves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ASKED", "lean"]

ASKED = "tests/lean_torch has left out"


def lean(environment: Mapping[str, str]) -> dict[str, str]:
    """The same, for a process whose own starts of torch, and those of all that it starts, are to be such."""
    folders = [str(Path(__file__).parent), environment.get("PYTHONPATH", "")]
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, folders))}
