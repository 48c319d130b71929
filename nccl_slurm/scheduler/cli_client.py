"""Slurm by its commands: no shell, absolute paths, an environment of our own, a time limit on each call.

Costs on a 2-core controller: squeue and sacct 0.1-0.3 s, one ``scontrol -o show nodes`` of 5,000 nodes 0.3 s (its JSON
ten times that), sacctmgr modify 0.2-0.4 s whatever the number of jobs in its list.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from nccl_slurm.errors import SlurmError, SlurmRefused, SlurmUnreachable
from nccl_slurm.scheduler import jobtext, text
from nccl_slurm.scheduler.client import (
    USER_ID,
    Accounted,
    CommentField,
    CommentState,
    Controller,
    LiveJob,
    NodeEvent,
    NodeState,
    Settings,
)

__all__ = ["Answer", "CliClient", "Runner", "chunks", "run_command"]

_T = TypeVar("_T")

#: Jobs in one command line.
_BATCH = 500

#: Parts of messages (all versions) that say that a daemon, munge or the network is away: ask again later.
_AWAY = (
    "unable to contact slurm controller",
    "connection refused",
    "connection timed out",
    "unable to establish connection",
    "problem talking to the database",
    "failed to open persistent connection",
    "persistent connection",
    "socket timed out",
    "communication connection failure",
    "zero bytes were transmitted",
    "unexpected message received",  # a controller that is going down
    "munge encode failed",
    "invalid authentication credential",
    "authentication plugin initialization failure",
    "could not establish a configuration source",
    "in standby mode",
    "database is busy",
)

#: sacctmgr's ways to say that no record was changed (22.05, 24.11, 26.05).
_UNCHANGED = ("nothing modified", "didn't affect anything", "data has not changed")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    error: str


class Runner(Protocol):
    def __call__(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        """Run ``argv``; raises OSError where it can't be run, TimeoutError where it does not end."""


def run_command(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
    """Arguments and answers keep bytes that are not UTF-8, whatever the locale of the daemon is."""
    try:
        done = subprocess.run(
            [part.encode("utf-8", "surrogateescape") for part in argv],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            cwd="/",
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    return Answer(done.returncode, _decode(done.stdout), _decode(done.stderr))


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class CliClient:
    """`SchedulerClient` by scontrol, squeue, sacct and sacctmgr in ``bin_folder``.

    ``conf`` is the path of slurm.conf, empty for Slurm's default place.
    """

    def __init__(
        self, bin_folder: str = "/usr/bin", conf: str = "", timeout_s: float = 20.0, *, run: Runner = run_command
    ) -> None:
        self._bin = bin_folder
        self._timeout_s = timeout_s
        self._run = run
        self._env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
        if conf:
            self._env["SLURM_CONF"] = conf
        self._version: tuple[int, int] | None = None
        self._fields: tuple[str, ...] = ()
        self._gpus_tracked: bool | None = None

    @property
    def backend(self) -> str:
        return "commands"

    def close(self) -> None:
        """Nothing is kept between two calls."""

    def settings(self) -> Settings:
        settings = text.read_config(self._ask("scontrol", "show", "config"))
        self._gpus_tracked = settings.tracks_gpus
        return settings

    def partitions(self) -> frozenset[str]:
        return text.read_partitions(self._ask("scontrol", "-o", "-a", "show", "partitions"))

    def controllers(self) -> tuple[Controller, ...]:
        answer = self._call("scontrol", "ping")
        found = text.read_controllers(answer.out)
        if not found:  # with all of them down scontrol ends with 1 and still lists them
            raise _error("scontrol ping", answer)
        return found

    def database_hosts(self) -> tuple[str, ...]:
        return text.read_database_hosts(self._ask("sacctmgr", "-n", "show", "configuration"))

    def switches(self) -> dict[str, str]:
        answer = self._call("scontrol", "show", "topology")
        if answer.code != 0 and text.NO_TOPOLOGY not in answer.error:
            raise _error("scontrol show topology", answer)
        return text.read_switches(answer.out)

    def version(self) -> tuple[int, int]:
        if self._version is None:
            self._version = text.read_version(self._ask("scontrol", "--version"))
        if self._version is None:
            raise SlurmRefused("scontrol --version names no version; is this version of Slurm supported?")
        return self._version

    def lower_cases_text(self) -> bool:
        return self.version() < (23, 2)

    def nodes(self) -> tuple[NodeState, ...]:
        return text.read_nodes(self._ask("scontrol", "-o", "-a", "show", "nodes"))

    def node_events(self, since: float, until: float | None = None) -> tuple[NodeEvent, ...]:
        words = [f"start=uts{int(since)}"] + ([f"end=uts{int(until) + 1}"] if until is not None else [])
        told, bare = (self._events(words, fields) for fields in (text.EVENT_FIELDS, text.EVENT_FIELDS[:-1]))
        return text.read_events(bare, told)

    def _events(self, words: Sequence[str], fields: Sequence[str]) -> str:
        return self._ask("sacctmgr", "-n", "-P", "show", "event", *words, "format=" + ",".join(fields))

    def jobs(self) -> tuple[LiveJob, ...]:
        delimiter = _delimiter()
        form = jobtext.live_format(delimiter)
        out = self._ask("squeue", "--noheader", "--all", "--local", "--states=all", "--Format", form)
        return jobtext.read_live(out, delimiter, gpus_tracked=self._tracks_gpus())

    def excluded(self) -> dict[int, tuple[str, ...]]:
        # -O has no field for it
        return jobtext.read_excluded(self._ask("squeue", "--noheader", "--all", "--local", "--format", "%A %x"))

    def accounting(
        self, raw_ids: Sequence[int] = (), *, since: float | None = None, until: float | None = None
    ) -> tuple[Accounted, ...]:
        if raw_ids:
            wanted = set(raw_ids)
            found = [self._accounting("-j", _joined(chunk)) for chunk in chunks(sorted(wanted))]
            return tuple(job for jobs in found for job in jobs if job.raw_id in wanted)
        if since is None:
            return ()
        # sacct refuses times before 1970-01-12, and leaves out what ended in the very second of -S
        window = ["-S", f"uts{max(int(since) - 1, 1_000_000)}"]
        return self._accounting(*window, *(["-E", f"uts{int(until) + 1}"] if until is not None else []))

    def accounting_of(self, job_id: str) -> tuple[Accounted, ...]:
        """All records under an id as users type it: ``42_1``, ``43+1``; of ``42`` all tasks or components."""
        return self._accounting("-j", _checked(job_id))

    def _accounting(self, *which: str) -> tuple[Accounted, ...]:
        delimiter = _delimiter()
        fields = self._accounting_fields()
        out = self._sacct(delimiter, "--duplicates", "--format", ",".join(fields), *which)
        return jobtext.read_accounting(out, delimiter, fields, gpus_tracked=self._tracks_gpus())

    def comments(self, raw_ids: Sequence[int]) -> dict[int, CommentState]:
        found: dict[int, CommentState] = {}
        for chunk in chunks(sorted(set(raw_ids))):
            delimiter = _delimiter()
            form = ",".join(jobtext.COMMENT_FIELDS)
            out = self._sacct(delimiter, "--allocations", "--format", form, "-j", _joined(chunk))
            found.update(jobtext.read_comments(out, delimiter, chunk))
        return found

    def write_live_comment(self, job_id: str, text: str) -> None:
        self._ask("scontrol", "update", f"jobid={_checked(job_id)}", f"comment={text}")

    def write_accounted_comment(
        self, job_ids: Sequence[str], text: str, field: CommentField = "comment"
    ) -> frozenset[int]:
        ids = [_checked(job_id) for job_id in job_ids]
        changed = [self._modify(chunk, f"{field}={text}") for chunk in chunks(ids)]
        return frozenset().union(*changed)

    def _modify(self, ids: Sequence[str], setting: str) -> frozenset[int]:
        """``ids`` must not be empty: sacctmgr without a job id changes *all* jobs."""
        answer = self._call("sacctmgr", "-i", "modify", "job", "where", f"jobid={','.join(ids)}", "set", setting)
        if answer.code and not _says(answer, _UNCHANGED):
            raise _error("sacctmgr modify job", answer)
        return text.modified_jobs(answer.out) if answer.code == 0 else frozenset()

    def batch_script(self, job_id: str) -> str | None:
        answer = self._call("scontrol", "write", "batch_script", _checked(job_id), "-")
        if _says(answer, _AWAY):
            raise _error("scontrol write batch_script", answer)
        # a job that is not known ends with 0 and an empty answer
        return answer.out if answer.code == 0 and answer.out else None

    def _tracks_gpus(self) -> bool:
        """Asked once; a daemon that calls `settings` now and then keeps it fresh."""
        if self._gpus_tracked is None:
            self.settings()
        return bool(self._gpus_tracked)

    def _accounting_fields(self) -> tuple[str, ...]:
        if not self._fields:
            offered = text.read_offered_fields(self._ask("sacct", "--helpformat"))
            self._fields = tuple(field for field in jobtext.ACCOUNTING_FIELDS if field.lower() in offered)
        if not self._fields:
            raise SlurmRefused("sacct --helpformat names no field that is known; is this version of Slurm supported?")
        return self._fields

    def _sacct(self, delimiter: str, *words: str) -> str:
        return self._ask("sacct", "--allusers", "--local", "--noheader", "-p", "--delimiter", delimiter, *words)

    def _ask(self, command: str, *words: str) -> str:
        """What it prints. Raises where its status is not 0."""
        answer = self._call(command, *words)
        if answer.code:
            raise _error(" ".join([command, *words[:2]]), answer)
        return answer.out

    def _call(self, command: str, *words: str) -> Answer:
        path = os.path.join(self._bin, command)
        try:
            return self._run([path, *words], self._env, self._timeout_s)
        except TimeoutError:
            raise SlurmUnreachable(f"{command} did not answer within {self._timeout_s:g} s") from None
        except OSError as error:
            why = f"{path} can't be run: {error.strerror}; set slurm.bin to the folder of Slurm's commands"
            raise SlurmUnreachable(why) from None
        except ValueError:  # a NUL inside an argument
            raise SlurmRefused(f"{command}: an argument holds a character that no command line can carry") from None


def _delimiter() -> str:
    """No user can guess it; begins with no digit, sign or blank (see `jobtext.live_format`)."""
    return f"~{secrets.token_hex(12)}~"


def _checked(job_id: str) -> str:
    if not USER_ID.fullmatch(job_id):
        raise SlurmRefused(f"{job_id[:40]!r} is no job id")
    return job_id


def _joined(raw_ids: Sequence[int]) -> str:
    return ",".join(str(int(raw_id)) for raw_id in raw_ids)


def chunks(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[at : at + _BATCH] for at in range(0, len(items), _BATCH))


def _says(answer: Answer, phrases: Sequence[str]) -> bool:
    said = (answer.error + answer.out).lower()
    return any(phrase in said for phrase in phrases)


def _error(what: str, answer: Answer) -> SlurmError:
    kind: Callable[[str], SlurmError] = SlurmUnreachable if _says(answer, _AWAY) else SlurmRefused
    lines = [line.strip() for line in (answer.error or answer.out).splitlines() if line.strip()]
    said = re.sub(r"[^\x20-\x7e]", "?", lines[-1])[:300] if lines else f"status {answer.code}"
    return kind(f"{what}: {said}")
