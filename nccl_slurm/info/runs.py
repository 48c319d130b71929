"""Which jobs and runs a folder of logs is of, by what names of files and Slurm's own lines say.

Names are held against names and lines against lines: a file that was copied under another name is no second job. A
requeued job may append to its output (sbatch(1): ``--open-mode=append``), below Slurm's word that a run was ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nccl_slurm.model import Fact

__all__ = ["ENDS", "resumed", "runs"]

#: Slurm's own name of a job's output (sbatch(1): ``slurm-%j.out``, of an array ``slurm-%A_%a.out``).
_OUTPUT = re.compile(r"slurm-(\d{1,10}(?:_\d{1,10})?)\.(?:out|err|log)\b")
#: Our run folders (docs/architecture.md, Spool): job and the second of its prolog, which differs from node to node.
_FOLDER = re.compile(r"(?:\A|(?P<above>.{0,4096})/)(?P<job>\d{1,10})\.(?P<second>\d{9,11})/")
#: What task_prolog wrote of a task of a step of srun.
_TASK = re.compile(r"task\.(\d{1,10})\.\d{1,8}\Z")
#: What is printed so long after an end is of another run: KillWait is 30 s, and preemption's grace seldom minutes.
_LATER_S = 600.0
#: A program that starts, or works on: one that is being ended does neither.
_STARTS = frozenset({"nccl.init-start", "nccl.version", "framework.step"})
#: Slurm's words that a run was ended.
ENDS = frozenset({"slurm.cancelled", "slurm.cancelled-node-failure", "slurm.cancelled-task-failure"})
#: ``STEP 42.0``, ``JOB 42``, ``STEP 42_1.batch``; ``43+1`` is a part of the heterogeneous job 43.
_JOB = re.compile(r"(\d{1,10}(?:_\d{1,10})?)(?:\+\d{1,5})?(?:\.\w{1,20})?\Z")


def runs(files: Iterable[str], facts: Iterable[Fact]) -> tuple[str, ...]:
    """The jobs (or the runs or steps of one), where there are several; empty where nothing tells of more than one."""
    files, facts = list(files), list(facts)
    outputs = {match[1] for name in files if (match := _OUTPUT.match(name.rpartition("/")[2]))}
    folders = [match for name in files if (match := _FOLDER.match(name))]
    jobs = {match["job"] for match in folders}
    ended = {match[1] for fact in facts if fact.kind in ENDS and (match := _JOB.match(str(fact.data.get("step"))))}
    steps = {f"step {match[1]}" for name in files if (match := _TASK.match(name.rpartition("/")[2]))}
    for found in (outputs, jobs, ended, _side_by_side(folders), steps):
        if len(found) > 1:
            return tuple(sorted(found))
    return tuple(
        name for file, line in resumed(facts).items() for name in (f"{file} to line {line}", f"{file} below it")
    )


def resumed(facts: Iterable[Fact]) -> dict[str, int]:
    """Files in which another run goes on below the end of one → the line that tells that end. Slurm's words on the
    step, on the job and on its nodes are of one end, however long that took."""
    facts = [fact for fact in facts if fact.file is not None and fact.line is not None]
    ends: dict[str | None, Fact] = {}
    for fact in facts:
        if fact.kind in ENDS:
            ends.setdefault(fact.file, fact)
    on = {fact.file for fact in facts if fact.file in ends and _is_of_another_run(fact, ends[fact.file])}
    return {str(file): ends[file].line or 0 for file in sorted(on, key=str)}


def _is_of_another_run(fact: Fact, end: Fact) -> bool:
    if (fact.line or 0) <= (end.line or 0) or fact.kind in ENDS:
        return False
    later = fact.time is not None and end.time is not None and fact.time - end.time > _LATER_S
    return later or fact.kind in _STARTS


def _side_by_side(folders: Iterable[re.Match[str]]) -> set[str]:
    """Run folders of one job in one folder: a node has one of each run."""
    by_place: dict[tuple[str | None, str], set[str]] = {}
    for match in folders:
        name = f"{match['job']}.{match['second']}"
        by_place.setdefault((match["above"], match["job"]), set()).add(name)
    return next((names for names in by_place.values() if len(names) > 1), set())
