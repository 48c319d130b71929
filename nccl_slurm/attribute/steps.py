"""Of a job with several steps the one that is judged, and what was seen of that one.

A batch script may start srun again, on other nodes: each step is a world of its own, and rank 3 of one is not rank 3 of
the other. A step after which another one completed did not end the job. Of several that failed in a row the first is
judged: what follows a failure often fails of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.clocks import Clocks, Moment
from nccl_slurm.model import READER_STEP, Evidence, Fact, Gap, Inference, Job, Rank, Step

__all__ = ["judged", "note", "of_step"]

#: Slurm's states of a job that took its last step along.
_ENDED_WITH_JOB = frozenset({"CANCELLED", "DEADLINE", "NODE_FAIL", "PREEMPTED", "REQUEUED", "TIMEOUT"})
#: Slurm keeps whole seconds; lines of a step that is being killed may come after its end.
_SLACK_S = 2.0
_FAILURES = ("cause", "consequence")


def numbered_steps(job: Job | None) -> list[Step]:
    """Those of srun, in the order of their numbers; without ours."""
    steps = job.steps if job else ()
    own = [step for step in steps if _number(step).isdecimal() and step.name != READER_STEP]
    return sorted(own, key=lambda step: int(_number(step)))


def judged(job: Job | None) -> Step | None:
    """None where the job has not several steps of srun, or none of them failed."""
    steps = numbered_steps(job)
    failed = [step for step in steps if _failed(step)]
    if job is None or len(steps) < 2 or not failed:
        return None
    last = steps[-1]
    if _failed(last) and last.state != "FAILED" and job.state in _ENDED_WITH_JOB:
        return last
    done = [place for place, step in enumerate(steps) if not _failed(step)]
    if _failed(last):
        return steps[max(done, default=-1) + 1]
    return failed[0]


def note(job: Job | None) -> Inference | None:
    """Which step was judged, and what became of the job after it."""
    step = judged(job)
    if step is None:
        return None
    later = [one for one in numbered_steps(job) if int(_number(one)) > int(_number(step))]
    well = [_number(one) for one in later if not _failed(one)]
    text = f"Step {_number(step)} ({step.state}) is judged, one of {len(numbered_steps(job))} of this job."
    if well:
        text += f" Step {well[0]} completed after it, so its failure did not end the job."
    elif later:
        text += f" The next {'one' if len(later) == 1 else str(len(later))} failed too."
    return Inference(text, "step.judged")


def of_step(evidence: Evidence) -> Evidence:
    """What was seen of the judged step, with a job that has no other; all of it where none is judged."""
    step = judged(evidence.job)
    if step is None or evidence.job is None:
        return _of_last(evidence)
    whose = _Whose(evidence, step)
    sorted_out = [(fact, whose.may_be(fact)) for fact in evidence.facts]
    others = any(whose.others(fact, steps) for fact, steps in sorted_out)
    others = others or any(rank.step not in (None, _number(step)) for rank in evidence.ranks)
    facts = [_sure(fact, steps, others) for fact, steps in sorted_out if _number(step) in steps]
    names = set(step.nodes) or set(evidence.job.nodes)
    return replace(
        evidence,
        job=_narrowed(evidence.job, step),
        nodes=[node for node in evidence.nodes if node.name in names],
        facts=tuple(facts),
        ranks=tuple(_ranks(evidence.ranks, step, facts, others)),
        gaps=(*evidence.gaps, *_left_out(step, len(evidence.facts) - len(facts))),
        world_size=_world(evidence, step) if others else evidence.world_size,
        mixed=evidence.mixed or (whose.beside if others else ()),
    )


def _of_last(evidence: Evidence) -> Evidence:
    """None of several steps failed, or Slurm told of none: the ranks of one of them, the last, and no others."""
    found = {rank.step for rank in evidence.ranks if rank.step is not None}
    if len(found) < 2:
        return evidence
    last = max(found, key=lambda step: (len(step), step))
    facts = [fact for fact in evidence.facts if fact.data.get("of_step") in (None, last)]
    ranks = [rank for rank in evidence.ranks if rank.step == last]
    gap = Gap("steps", f"{len(found)} had ranks, and which of them failed is not known: those of step {last} are shown")
    return replace(evidence, facts=tuple(facts), ranks=tuple(ranks), gaps=(*evidence.gaps, gap), world_size=None)


class _Whose:
    """Which steps a fact may be of: by the file it was found in, by Slurm's own words, by its time, else by the facts
    that stand before and after it in its file. A failure is not of a step that completed."""

    def __init__(self, evidence: Evidence, step: Step) -> None:
        self._all = numbered_steps(evidence.job)
        self._names = {_number(one) for one in self._all}
        self._failed = {_number(one) for one in self._all if _failed(one)}
        self._nodes = set(step.nodes)
        self._own = _number(step)
        self._clocks = Clocks(evidence.nodes, alone=False)
        self._known_nodes = set(evidence.job.nodes if evidence.job else ())
        self._places = self._known_places(evidence.facts)
        self.beside = self._beside(step)

    def may_be(self, fact: Fact) -> frozenset[str]:
        told = self._told(fact)
        if told is not None:
            return frozenset({told})
        if fact.trust == "root":  # what happened on a node, to whatever ran there
            return frozenset({self._own}) if fact.host is None or fact.host in self._nodes else frozenset()
        found = self._at(fact) & self._between(fact) & self._on(fact.host)
        failed = found & self._failed if fact.role in _FAILURES else found
        return failed or found

    def others(self, fact: Fact, steps: frozenset[str]) -> bool:
        """Ranks of another step speak, or may: a completed one does not fail."""
        if fact.rank is None:
            return False
        return self._own not in steps or (fact.role in _FAILURES and len(steps) > 1)

    def _told(self, fact: Fact) -> str | None:
        own = fact.data.get("of_step")
        if isinstance(own, str) and own in self._names:
            return own
        if fact.producer != "slurm":
            return None
        _, dot, number = str(fact.data.get("step", "")).rpartition(".")
        return number if number in self._names and (dot or fact.kind == reading.TASK) else None

    def _on(self, host: str | None) -> frozenset[str]:
        """A node of the run writes for the steps that it had."""
        if host is None or host not in self._known_nodes:
            return frozenset(self._names)
        return frozenset(_number(step) for step in self._all if not step.nodes or host in step.nodes)

    def _at(self, fact: Fact) -> frozenset[str]:
        """By the steps' times, which are slurmctld's."""
        if fact.time is None:
            return frozenset(self._names)
        time = self._clocks.corrected(Moment(fact.time, 0.0, fact.host))
        slack = _SLACK_S + self._clocks.error(fact.host) + (fact.uncertainty_s or 0.0)
        return frozenset(
            _number(step)
            for step in self._all
            if (step.start is None or time >= step.start - slack) and (step.end is None or time <= step.end + slack)
        )

    def _known_places(self, facts: Iterable[Fact]) -> Mapping[str, list[tuple[int, int]]]:
        """File → (line, number of the step) where one fact tells which it is."""
        places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for fact in facts:
            if fact.file is None or fact.line is None or fact.trust == "root":
                continue
            told = self._told(fact)
            found = frozenset({told}) if told else self._at(fact)
            if len(found) == 1:
                places[fact.file].append((fact.line, int(next(iter(found)))))
        return places

    def _between(self, fact: Fact) -> frozenset[str]:
        """srun hands on all of a step's output before it ends: a file has the steps one after the other."""
        known = self._places.get(fact.file or "", [])
        if fact.line is None or not known or self.beside:
            return frozenset(self._names)
        low = max((step for line, step in known if line <= fact.line), default=0)
        high = min((step for line, step in known if line >= fact.line), default=None)
        return frozenset(name for name in self._names if low <= int(name) and (high is None or int(name) <= high))

    def _beside(self, step: Step) -> tuple[str, ...]:
        """Steps that ran at the same time on a node of this one: their words can't be told apart."""
        others = [one for one in self._all if one is not step and set(one.nodes) & self._nodes and _overlap(one, step)]
        return (f"step {self._own}", *(f"step {_number(one)}" for one in others)) if others else ()


def _sure(fact: Fact, steps: frozenset[str], others: bool) -> Fact:
    """A rank counts where no other step may have written the line, or none of the others had ranks."""
    if fact.rank is None or len(steps) == 1 or not others:
        return fact
    return replace(fact, rank=None, data={key: value for key, value in fact.data.items() if key != "task"})


def _ranks(ranks: Iterable[Rank], step: Step, facts: Sequence[Fact], others: bool) -> list[Rank]:
    """Rows that were put together over several steps are made anew of what is this step's for sure."""
    if not others:
        return list(ranks)
    own = [rank for rank in ranks if rank.step == _number(step)]
    known = {rank.rank for rank in own}
    failures = {fact.rank: fact for fact in facts if fact.kind == reading.FAILURE and fact.rank is not None}
    made = [_by_failure(rank, fact) for rank, fact in sorted(failures.items()) if rank not in known]
    return sorted([*own, *made], key=lambda rank: rank.rank)


def _by_failure(rank: int, fact: Fact) -> Rank:
    """Of an agent's table."""
    local, pid, code = (reading.number(fact.data, key) for key in ("local_rank", "pid", "exitcode"))
    return Rank(rank, fact.host, local, pid=pid, exit=code)


def _world(evidence: Evidence, step: Step) -> int | None:
    told = {
        reading.number(fact.data, "world_size")
        for fact in evidence.facts
        if fact.kind == reading.STEP_WORLD and fact.data.get("of_step") == _number(step)
    }
    return told.pop() if len(told) == 1 else None


def _narrowed(job: Job, step: Step) -> Job:
    """Slurm's word on this step in the place of its word on the job."""
    return replace(
        job,
        nodes=tuple(step.nodes) or job.nodes,
        state=step.state or job.state,
        start=step.start if step.start is not None else job.start,
        end=step.end if step.end is not None else job.end,
        steps=(step,),
    )


def _left_out(step: Step, count: int) -> list[Gap]:
    why = f"{count} lines of other steps, or of nodes that it did not have, are not counted"
    return [Gap(f"step {_number(step)}", why)] if count else []


def _failed(step: Step) -> bool:
    return bool(step.exit or step.signal) or step.state not in ("COMPLETED", "RUNNING", "PENDING", "")


def _overlap(one: Step, two: Step) -> bool:
    """False where accounting told no times: srun's steps of one script mostly follow each other."""
    if None in (one.start, one.end, two.start, two.end):
        return False
    return (one.start or 0.0) < (two.end or 0.0) and (two.start or 0.0) < (one.end or 0.0)


def _number(step: Step) -> str:
    return step.id.rpartition(".")[2]
