"""A running job, looked at again and again: each look is a report of status ``live``.

Nothing of the job is changed. With a `NodeReader` its nodes are read; without one only what lies on file systems that
this host has: the job's own output and the log folders of its batch script.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nccl_slurm.attribute.live import judge
from nccl_slurm.attribute.placement import placed
from nccl_slurm.attribute.steps import of_step
from nccl_slurm.capture.spool import CAPTURE_OFF
from nccl_slurm.clock import Clock
from nccl_slurm.daemon.output import OutputReader, Wanted
from nccl_slurm.daemon.watch import script_paths
from nccl_slurm.errors import InputError, NotYours, UnknownJob
from nccl_slurm.live.look import Answer, File, Look, Looks, evidence_of
from nccl_slurm.live.reader import NodeReader, Question, Told, files_of
from nccl_slurm.model import Gap, Job, Parsed, alike
from nccl_slurm.parse.patterns import compile_rows
from nccl_slurm.report.build import build
from nccl_slurm.scheduler.client import FINAL_STATES, LiveJob, SchedulerClient

__all__ = ["Watch", "output_reader", "running_job"]

_NOT_READ = Gap("ranks' files on the nodes", "not read: `nccl-slurm watch` without --no-step reads them")
_OUTPUT_LIMIT_S = 60.0


def running_job(client: SchedulerClient, job_id: str) -> LiveJob:
    """Raises UnknownJob, InputError (it does not run), NotYours, SlurmError."""
    found = [job for job in client.jobs() if job.id == job_id]
    if not found:
        why = "it has ended, or is an array or a heterogeneous job: give one part, 42_1 or 43+1"
        raise UnknownJob(f"job {job_id} is not known to slurmctld: {why}; `nccl-slurm report {job_id}` has ended ones")
    job = found[-1]
    if job.state != "RUNNING" or not job.nodes:
        ended = job.state in FINAL_STATES or job.state == "COMPLETING"
        remedy = f"`nccl-slurm report {job_id}` tells of its end" if ended else "try again when it runs"
        raise InputError(f"job {job_id} is {job.state}, only a running job can be watched; {remedy}")
    if os.geteuid() not in (0, job.uid):
        raise NotYours(f"job {job_id} is not yours: only its owner and root may look at it")
    return job


@contextmanager
def output_reader(rows: tuple[str, Sequence[str]]) -> Iterator[OutputReader]:
    """``rows``: texts of the package's and the site's patterns. Readers start without our packages: what they load has
    to lie in a file, which they read before they give root away."""
    with TemporaryDirectory(prefix="nccl-slurm-") as folder:
        compiled = Path(folder) / "patterns.json"
        compiled.write_text(compile_rows(*rows), encoding="utf-8")
        yield OutputReader(str(compiled), _OUTPUT_LIMIT_S)


@dataclass
class Watch:
    """``nodes`` None: shared file systems alone. ``ras``: HOST:PORT, or empty. ``floor_s``: as `Looks` has it."""

    client: SchedulerClient
    clock: Clock
    output: OutputReader
    nodes: NodeReader | None
    ras: str
    floor_s: float
    _paths: list[str] | None = None
    _cluster: str = ""
    _looks: Looks = field(init=False)

    def __post_init__(self) -> None:
        self._looks = Looks(self.floor_s)

    def look(self, found: LiveJob, told: Told) -> dict[str, Any]:
        """A report of the job as it is now. Raises SlurmError, InputError, NotYours."""
        if self._paths is None:
            self._cluster, self._paths = self.client.settings().cluster, script_paths(self.client, found)
        job = alike(Job, found, cluster=self._cluster, user=found.user, end=None)
        answers = self.nodes(Question(job, (), self.ras), told) if self.nodes is not None else {}
        output, files = self._own_output(found, answers)
        gaps = [] if self.nodes is not None else [_NOT_READ]
        evidence = placed(of_step(evidence_of(job, answers, output, gaps)))
        whole = bool(answers) and all(answer.told is not None for answer in answers.values())
        look = Look(self.clock.now(), evidence, [*files, *_on_nodes(answers)], whole)
        return _report(look, self._looks)

    def _own_output(self, job: LiveJob, answers: Mapping[str, Answer]) -> tuple[Parsed, list[File]]:
        if any(_is_off(answer) for answer in answers.values()):
            return Parsed(gaps=(Gap("job output", CAPTURE_OFF),)), []
        named = dict.fromkeys(path for path in (job.stdout, job.stderr, *(self._paths or ())) if path)
        read, files = self.output.read_now(Wanted(list(named), job.start or 0.0), job.uid or 0)
        return read, files_of({"now": self.clock.now(), "files": files})


def _is_off(answer: Answer) -> bool:
    return answer.told is not None and any(gap["why"] == CAPTURE_OFF for gap in answer.told["gaps"])


def _on_nodes(answers: Mapping[str, Answer]) -> Iterator[File]:
    """Named as `assemble` names the files of a node."""
    return (one._replace(name=f"{node}/{one.name}") for node, answer in answers.items() for one in answer.files)


def _report(look: Look, looks: Looks) -> dict[str, Any]:
    evidence, verdict = judge(look.evidence, looks.see(look))
    return build(evidence, verdict, (), "live")
