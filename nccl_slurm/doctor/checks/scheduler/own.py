"""Which of nccl-slurm's own hooks slurm.conf names, wherever they were installed. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.checks.scheduler.program import matches
from nccl_slurm.install.wiring import is_glob

__all__ = ["KEYS", "wired"]

KEYS = ("Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld")
#: Of the project's folders, of its two scripts in prolog.d and epilog.d, and of links to these.
_NAME = "nccl-slurm"


def wired(seen: SlurmObserved) -> dict[str, bool]:
    """Key of slurm.conf → whether a program of ours is named there."""
    named = {key: list(seen.settings.get(key, ())) for key in KEYS}
    every = {value: [value, *_matched(seen, value)] for values in named.values() for value in values}
    folders = [*filter(None, [seen.own_hooks]), *(one for paths in every.values() for one in _folders(paths))]
    return {key: any(_is_ours(every[value], folders) for value in values) for key, values in named.items()}


def _is_ours(paths: Sequence[str], folders: Sequence[str]) -> bool:
    return any(_NAME in path or any(path.startswith(f"{folder}/") for folder in folders) for path in paths)


def _folders(paths: Sequence[str]) -> Iterator[str]:
    """``X`` of ``X/prolog.d/50-nccl-slurm``: the other hooks lie beside it."""
    for path in paths:
        folder, name = os.path.split(path)
        if _NAME in name and os.path.basename(folder) in ("prolog.d", "epilog.d"):
            yield os.path.dirname(folder)


def _matched(seen: SlurmObserved, pattern: str) -> Iterator[str]:
    """What it finds on this host and on the nodes that were looked at."""
    yield from seen.found_here.get(pattern, ())
    for node in seen.fleet.nodes.values() if is_glob(pattern) else ():
        with suppress(NotObserved):
            yield from (path for path in node.present("hooks", part=True) if matches(path, pattern))
