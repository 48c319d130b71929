"""Slurm by pyslurm where that is better than its commands: node states, live jobs, comments of accounting.

pyslurm runs in a process of its own (`pyslurm_child`), which is lost where it ends, hangs or talks nonsense. Then one
line is logged, Slurm's commands are asked at once, and pyslurm again after ``retry_s``. Everything else is left to the
commands, and each answer of pyslurm that leaves a doubt: node events (pyslurm crashes), earlier runs of a requeued job
(it has the newest alone), comments of running jobs (it can't clear one), settings, controllers, batch scripts.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from nccl_slurm.errors import SlurmError, SlurmUnreachable
from nccl_slurm.scheduler.child import Child, ChildLost
from nccl_slurm.scheduler.cli_client import CliClient, Runner, chunks, run_command
from nccl_slurm.scheduler.client import CommentField, CommentState, LiveJob, NodeState, Settings
from nccl_slurm.scheduler.pyslurm_rows import Doubtful, comment_states, live_jobs, node_states, release_of

__all__ = ["CHILD", "PyslurmClient", "is_installed"]

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

#: -I: neither the environment nor the working folder adds to what is imported.
CHILD = (sys.executable, "-I", str(Path(__file__).with_name("pyslurm_child.py")))
RETRY_S = 300.0
_PAUSE_S = 30.0  # where nothing tells which release slurmctld has
#: slurm_errno.h, SLURMCTLD_COMMUNICATIONS_*: slurmctld is away; asking again by a command would wait as long again.
_AWAY = range(1800, 1810)


def is_installed() -> bool:
    """Not by an import, which may end the process."""
    return importlib.util.find_spec("pyslurm") is not None


class PyslurmClient(CliClient):
    """`SchedulerClient`; ``command`` starts the process that holds pyslurm."""

    def __init__(
        self,
        bin_folder: str = "/usr/bin",
        conf: str = "",
        timeout_s: float = 20.0,
        *,
        run: Runner = run_command,
        command: Sequence[str] = CHILD,
        retry_s: float = RETRY_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(bin_folder, conf, timeout_s, run=run)
        self._command, self._retry_s, self._monotonic = command, retry_s, monotonic
        self._child: Child | None = None
        self._release: tuple[int, int] | None = None
        self._again_at = float("-inf")
        self._told = ""

    @property
    def backend(self) -> str:
        return "pyslurm" if self._child else "commands"

    def close(self) -> None:
        if self._child:
            self._child.close()
        self._child = None

    def settings(self) -> Settings:
        """slurmctld may have been upgraded under us."""
        found = super().settings()
        if self._child and found.version != self._release:
            self._leave(_misfit(self._release, found.version))
        return found

    def nodes(self) -> tuple[NodeState, ...]:
        return self._first(node_states, super().nodes, ask="nodes")

    def jobs(self) -> tuple[LiveJob, ...]:
        return self._first(
            lambda rows: live_jobs(rows, gpus_tracked=self._tracks_gpus()),
            super().jobs,
            ask="jobs",
        )

    def comments(self, raw_ids: Sequence[int]) -> dict[int, CommentState]:
        found: dict[int, CommentState] = {}
        for chunk in chunks(sorted(set(raw_ids))):
            found.update(self._comments(chunk))
        return found

    def _comments(self, raw_ids: Sequence[int]) -> dict[int, CommentState]:
        by_command = super().comments
        return self._first(
            lambda rows: comment_states(rows, raw_ids), lambda: by_command(raw_ids), ask="comments", ids=list(raw_ids)
        )

    def write_accounted_comment(
        self, job_ids: Sequence[str], text: str, field: CommentField = "comment"
    ) -> frozenset[int]:
        """pyslurm knows plain ids alone, takes an empty text for no change, and knows no bytes that are not UTF-8."""
        plain = all(job_id.isascii() and job_id.isdigit() for job_id in job_ids)
        if not plain or not text or not text.isprintable():
            return super().write_accounted_comment(job_ids, text, field)
        return frozenset().union(*(self._write(chunk, text, field) for chunk in chunks(job_ids)))

    def _write(self, job_ids: Sequence[str], text: str, field: CommentField) -> frozenset[int]:
        by_command = super().write_accounted_comment
        return self._first(
            frozenset,
            lambda: by_command(job_ids, text, field),
            ask="write",
            ids=[int(job_id) for job_id in job_ids],
            field={"comment": "comment", "admincomment": "admin_comment"}[field],
            text=text,
        )

    def _first(self, read: Callable[[Any], _T], by_command: Callable[[], _T], **request: Any) -> _T:
        """By pyslurm, and where that does not tell it, by command."""
        try:
            return read(self._ask_child(request)) if self._ready() else by_command()
        except ChildLost as error:
            self._leave(str(error))
        except Doubtful as doubt:
            _log.debug("pyslurm: %s is in doubt", doubt)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._leave(f"its rows are of an unknown form ({type(error).__name__}: {error})")
        return by_command()

    def _ask_child(self, request: Mapping[str, Any]) -> Any:
        """Raises SlurmUnreachable, `Doubtful`, `ChildLost`."""
        assert self._child is not None
        answer = self._child.ask(**request)
        if "rows" in answer:
            return answer["rows"]
        if "errno" in answer:
            if answer["errno"] in _AWAY:
                raise SlurmUnreachable(f"pyslurm: {str(answer.get('text'))[:300]}")
            raise Doubtful(str(answer.get("text"))[:300])
        raise ChildLost(str(answer.get("failed", "its answer says nothing"))[:300])

    def _ready(self) -> bool:
        if self._child is None and self._monotonic() >= self._again_at:
            self._start()
        return self._child is not None

    def _start(self) -> None:
        """pyslurm has to be of the release that slurmctld is of."""
        try:
            wanted = super().settings().version
        except SlurmError:
            self._again_at = self._monotonic() + _PAUSE_S
            return None
        try:
            child = Child(self._command, self._child_env(), self._timeout_s)
        except (ChildLost, OSError) as error:
            return self._leave(str(error))
        release = release_of(str(child.first.get("pyslurm")))
        if release is None or release != wanted:
            child.close()
            return self._leave(_misfit(release, wanted))
        self._child, self._release, self._told = child, release, ""
        _log.info("pyslurm %s is asked for nodes, jobs and comments", child.first["pyslurm"])
        return None

    def _child_env(self) -> dict[str, str]:
        return {**self._env, "LC_ALL": "C.UTF-8"}

    def _leave(self, why: str) -> None:
        """To Slurm's commands. A reason that lasts is told once."""
        self.close()
        self._again_at = self._monotonic() + self._retry_s
        if why != self._told:
            _log.warning("pyslurm: %s; Slurm's commands are asked, pyslurm again in %g s", why, self._retry_s)
        self._told = why


def _misfit(release: tuple[int, int] | None, wanted: tuple[int, int] | None) -> str:
    return f"made for Slurm {_dotted(release)}, slurmctld is {_dotted(wanted)}"


def _dotted(release: tuple[int, int] | None) -> str:
    return f"{release[0]}.{release[1]:02d}" if release else "of an unknown release"
