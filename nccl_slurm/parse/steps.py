"""Files of a run's folder by Slurm's step: rank 3 of step 0 is not rank 3 of step 1.

Only on the node itself, where times of files are those of their writers: a step begins when task_prolog writes of its
first task, and what was last written before the next one began is its own. Steps that run at the same time can't be
told apart so; the controller knows of them (`attribute.steps`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Iterable, Sequence

from nccl_slurm.model import Fact, Parsed, Rank
from nccl_slurm.parse import names
from nccl_slurm.parse.source import Source

__all__ = ["OF_STEP", "WORLD", "by_step", "joined"]

#: Key of ``Fact.data``: the step in whose files the fact was found. There only where a run had several.
OF_STEP = "of_step"
#: How many ranks a step of several had.
WORLD = "slurm.step-world"


def by_step(sources: Sequence[Source]) -> dict[str | None, list[Source]]:
    """Step → its sources, in the order given; one group, None, where there are not several steps. None too for what
    was written before the first step began."""
    begins: dict[str, float] = {}
    for source in sources:
        step = names.read(source.name).step
        if source.host is not None and step is not None and step.isdigit():
            begins[step] = min(source.mtime, begins.get(step, source.mtime))
    if len(begins) < 2:
        return {None: list(sources)}
    found: dict[str | None, list[Source]] = {}
    for source in sources:
        found.setdefault(_step(source, begins), []).append(source)
    return found


def _step(source: Source, begins: dict[str, float]) -> str | None:
    own = names.read(source.name).step
    if own is not None:
        return own if own in begins else None
    begun = [(at, step) for step, at in begins.items() if at <= source.mtime]
    return max(begun)[1] if begun else None


def joined(parts: dict[str | None, Parsed]) -> Parsed:
    """``Rank.step`` and ``of_step`` in facts' data tell whose they are; a world size is that of all steps or None."""
    sizes = {parsed.world_size for parsed in parts.values()} - {None}
    gaps = (gap for parsed in parts.values() for gap in parsed.gaps)
    return Parsed(
        facts=tuple(fact for step, parsed in parts.items() for fact in _facts(step, parsed)),
        ranks=tuple(rank for step, parsed in parts.items() for rank in _ranks(step, parsed)),
        gaps=tuple(dict.fromkeys(gaps)),
        world_size=sizes.pop() if len(sizes) == 1 else None,
        bytes_read=sum(parsed.bytes_read for parsed in parts.values()),
        lines_unknown=sum(parsed.lines_unknown for parsed in parts.values()),
    )


def _facts(step: str | None, parsed: Parsed) -> Iterable[Fact]:
    if step is None:
        return parsed.facts
    facts = [replace(fact, data={**fact.data, OF_STEP: step}) for fact in parsed.facts]
    if parsed.world_size is not None:
        data = {OF_STEP: step, "world_size": parsed.world_size}
        text = f"step {step}: {parsed.world_size} ranks by its own files"
        facts.append(Fact(WORLD, text, "slurm", "context", "job", data=data))
    return facts


def _ranks(step: str | None, parsed: Parsed) -> Iterable[Rank]:
    return parsed.ranks if step is None else [replace(rank, step=step) for rank in parsed.ranks]
