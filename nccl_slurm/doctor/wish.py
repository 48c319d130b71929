"""What a run of the doctor is asked for, and which checks that means. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nccl_slurm.doctor.check import AREAS, Area, Check
from nccl_slurm.errors import InputError

__all__ = ["Wish", "areas", "narrowed", "wanted"]


@dataclass(frozen=True)
class Wish:
    """Of the command line. ``since``: seconds since 1970. ``sysroot``, ``commands``: stand in for the machine and for
    its commands, with the node's name in the place of ``%n``; for tests."""

    job: str | None = None
    nodes: str | None = None
    all_idle: bool = False
    local: bool = False
    ssh: bool = False
    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    since: float | None = None
    sample: int | None = None
    aws: bool = True
    cluster: str = ""
    region: str = ""
    limit_s: float = 45.0
    at_once: int = 128
    bandwidth: Sequence[str] = ()
    bandwidth_before: Sequence[str] = ()
    sysroot: str = ""
    commands: str = ""

    @property
    def chooses(self) -> bool:
        return bool(self.job or self.nodes or self.all_idle or self.local)


def wanted(wish: Wish, every: Sequence[Check[Any]]) -> list[Check[Any]]:
    """Of all checks those that this wish asks for. ``only`` and ``skip``: ids, areas (``node``), patterns
    (``node.efa*``). Raises InputError where one fits none, or one that is asked for can't be made."""
    known = areas(wish)
    checks = [check for check in every if check.area in known]
    for option, words in (("--only", wish.only), ("--skip", wish.skip)):
        for word in words:
            fits = [check for check in every if _fits(check, word)]
            if not fits and word not in AREAS:
                raise InputError(f"{option} {word}: is no check and fits none; see nccl-slurm doctor --list")
            if option == "--only" and not any(check in checks for check in fits):
                raise InputError(f"--only {word}: {_missing(fits[0].area if fits else word, wish)}")
    chosen = [check for check in checks if not wish.only or any(_fits(check, word) for word in wish.only)]
    left = [check for check in chosen if not any(_fits(check, word) for word in wish.skip)]
    if chosen and not left:
        raise InputError(f"--skip {','.join(wish.skip)}: no check is left")
    return left


def _missing(area: str, wish: Wish) -> str:
    """What a check of this area lacks here."""
    if area == "job":
        return f"looks at a job: give --job {'RAWID' if wish.local else 'ID'}"
    if wish.local:
        return "is not made with --local, which sees this node alone, and asks neither Slurm nor AWS"
    if area == "aws":
        return "asks AWS: it goes without --no-aws"
    return "looks at nodes: give --nodes, --all-idle or --job" + (", or --local" if area == "node" else "")


def _fits(check: Check[Any], word: str) -> bool:
    return word == check.area or fnmatch.fnmatchcase(check.id, word)


def narrowed(wish: Wish, start: float | None = None) -> list[str]:
    """Options by which less is looked at than could be. ``start``: of the job."""
    told = {"--local": wish.local, "--no-aws": not wish.aws, "--sample": wish.sample is not None}
    late = wish.since is not None and (start is None or wish.since > start)
    words = [*(f"--only {one}" for one in wish.only), *(f"--skip {one}" for one in wish.skip)]
    return [*(name for name, given in told.items() if given), *words, *(["--since"] if late else [])]


def areas(wish: Wish) -> tuple[Area, ...]:
    """What can be judged of what is looked at."""
    if wish.local:
        return ("node", "job") if wish.job else ("node",)
    if not wish.chooses:
        fleet: tuple[Area, ...] = ("fleet",) if wish.bandwidth else ()
        return ("scheduler", *fleet, "aws") if wish.aws else ("scheduler", *fleet)
    job: tuple[Area, ...] = ("job",) if wish.job else ()
    aws: tuple[Area, ...] = ("aws",) if wish.aws else ()
    return ("scheduler", "node", *job, "fleet", *aws)
