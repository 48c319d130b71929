"""What Slurm says of the job and its nodes now, by its own commands; what does not answer is a gap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nccl_slurm.bundle.part import Part, text_part
from nccl_slurm.config import Config
from nccl_slurm.hosts import HOST, fold
from nccl_slurm.model import Gap
from nccl_slurm.scheduler.cli_client import Runner, run_command

__all__ = ["of_slurm"]

#: The same in 22.05, 24.11 and 26.05.
_FIELDS = (
    "JobID,JobIDRaw,Cluster,User,Account,Partition,State,ExitCode,DerivedExitCode,Submit,Start,End,Elapsed,NNodes,"
    "NodeList,AllocTRES,ReqTRES,Reason,JobName"
)
_TEXT_MAX = 4 << 20
_NODES_MAX = 1024


def of_slurm(job: Mapping[str, Any], config: Config, run: Runner = run_command) -> tuple[list[Part], list[Gap]]:
    """``job``: the report's. Slurm shows a job for MinJobAge (300 s) after its end; accounting keeps it."""
    parts: list[Part] = []
    gaps: list[Gap] = []
    for path, argv, what in _questions(job):
        text, why = _ask(argv, config, run)
        if why:
            gaps.append(Gap(" ".join(argv[:3]), why))
        if text:
            parts.append(text_part(path, f"$ {' '.join(argv)}\n{text[:_TEXT_MAX]}", what, 3))
    return parts, gaps


def _questions(job: Mapping[str, Any]) -> list[tuple[str, Sequence[str], str]]:
    asked: list[tuple[str, Sequence[str], str]] = [
        ("slurm/version.txt", ("scontrol", "--version"), "Slurm's version"),
        ("slurm/ping.txt", ("scontrol", "ping"), "controllers, as they answer"),
        ("slurm/config.txt", ("scontrol", "show", "config"), "Slurm's configuration in force"),
        ("slurm/reasons.txt", ("sinfo", "-R", "-o", "%N|%T|%u|%H|%E"), "nodes with a reason, as they are now"),
    ]
    number = job.get("id")
    if number:
        asked += [
            ("slurm/job.txt", ("scontrol", "show", "job", str(number)), "the job, while Slurm still has it"),
            ("slurm/sacct.txt", ("sacct", "-D", "-P", "-j", str(number), "-o", _FIELDS), "the job in accounting"),
        ]
    if nodes := fold([name for name in job.get("nodes") or () if HOST.match(name)][:_NODES_MAX]):
        asked.append(("slurm/nodes.txt", ("scontrol", "show", "node", nodes), "the job's nodes, as they are now"))
    return asked


def _ask(argv: Sequence[str], config: Config, run: Runner) -> tuple[str, str]:
    """(text, why there is none or not all)"""
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
    if config.slurm.conf:
        env["SLURM_CONF"] = config.slurm.conf
    program = f"{config.slurm.bin}/{argv[0]}"
    try:
        answer = run([program, *argv[1:]], env, config.slurm.timeout_s)
    except OSError as error:
        return "", f"{program}: {error.strerror or 'did not end in time'}"
    words = next(iter(answer.error.strip().splitlines()), "")
    return answer.out, "" if answer.code == 0 else f"ended with status {answer.code}: {words[:200]}"
