"""The detached worker of a run: ``before`` takes the first snapshot, ``finish`` writes the record and ships it.

A record is written and shipped whatever fails on the way: each source that can't be read is a gap, each has its own
time limit, and the sum stays below the limit at which `timeout` ends this process.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Callable, TypeVar

from nccl_slurm.capture import (
    child,
    clock,
    difference,
    kernel,
    machine,
    ownership,
    patterns,
    record,
    removal,
    ship,
    snapshot,
    spool,
    taskexits,
    userread,
)
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.facts import clean_fact, clean_facts, clean_gaps, clean_ranks, text
from nccl_slurm.capture.neighbours import Neighbours
from nccl_slurm.capture.spool import Run
from nccl_slurm.model import Fact, Gap
from nccl_slurm.parse.kernel import kernel_facts

__all__ = ["before", "finish"]

_ANSWER_BYTES = 1 << 23
_MAX_KERNEL_EVENTS = 2000
_T = TypeVar("_T")


def before(conf: Conf, run: Run) -> None:
    with spool.lock(run.root(""), 0.0) as held:
        if held and run.closed_by is None:
            gaps: list[Gap] = []
            taken = snapshot.take(conf, machine.process_names(conf.sysroot), gaps)
            spool.write_whole(run.root("before.json"), {"snapshot": taken, "gaps": [_json(one) for one in gaps]})


def finish(conf: Conf, run: Run) -> str | None:
    """None when the record was handed over, else why it stays in the spool."""
    started = time.monotonic()
    with spool.lock(run.root(""), 2 * conf.gpu_query_limit_s + 10.0) as held:
        if not held:
            return "another worker of this run did not end in time"
        run.drop_links()
        work = _Work(conf, run, started + conf.worker_limit_s)
        made = work.record()
        kept = _keep(run, "record.json", made) or _kept_in_new_room(run, made, work.left() / 2)
        unkept = None if kept else json.dumps(made, allow_nan=False).encode("ascii")
        return ship.deliver(conf, run, work.node, limit_s=max(5.0, min(60.0, work.left())), record=unkept)


def _keep(run: Run, name: str, value: Any) -> bool:
    """A disk that takes nothing more costs the copy, not the record."""
    try:
        spool.write_whole(run.root(name), value)
    except OSError:
        return False
    return True


def _kept_in_new_room(run: Run, made: Any, limit_s: float) -> bool:
    """What filled the disk may be what the run's user wrote, and that has been read. Without room for one name even the
    epilog could not close the run, and the timer would leave it as it is, and the disk full, for ever."""
    removal.remove(run.user, max(5.0, min(60.0, limit_s)))
    if run.closed_by is None:
        with suppress(OSError):
            run.close("epilog")
    return _keep(run, "record.json", made)


@dataclass
class _Work:
    conf: Conf
    run: Run
    end: float  # on the monotonic clock
    gaps: list[Gap] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prolog, self.epilog = self.run.prolog, self.run.epilog
        self.env: dict[str, str] = {
            **(self.prolog.env if self.prolog else {}),
            **(self.epilog.env if self.epilog else {}),
        }
        self.node = machine.node_name(self.env)
        self.boot_id = machine.boot_id(self.conf.sysroot)
        self.names = machine.process_names(self.conf.sysroot)
        earlier = self.prolog.boot_id if self.prolog else None
        self.earlier_boot = earlier if earlier is not None and earlier != self.boot_id else None
        self.neighbours = Neighbours(self.conf.spool, self.run)

    def left(self) -> float:
        """Seconds until this process is ended from outside."""
        return self.end - time.monotonic() - 5.0

    def record(self) -> dict[str, Any]:
        self._missing_hooks()
        machine_part = machine.describe(self.conf, self.node, self.names, self.gaps)
        clock_part = clock.kept(self.conf, self.gaps)
        first, last = self._before(), self._after()
        user = self._user_files()
        held = self._held(first)
        none: list[Fact] = []
        no_exits: list[dict[str, Any]] = []
        events = self._guard("kernel log", lambda: self._kernel_events(held), none)
        changes = self._guard("snapshots", lambda: difference.changes(first, last, held.gpus, self.node), none)
        exits = self._guard(taskexits.GAP, lambda: taskexits.task_exits(self.run, self.gaps), no_exits)
        shaped = [clean_fact(fact.to_json(), "root") for fact in [*changes, *events]]
        facts = [fact for fact in shaped[: len(changes)] if fact is not None]
        parts = {
            "machine": machine_part,
            "clock": clock_part,
            "snapshots": {"before": first, "after": last},
            "kernel_events": [fact for fact in shaped[len(changes) :] if fact is not None][:_MAX_KERNEL_EVENTS],
            "task_exits": exits,
            **{key: user[key] for key in ("ranks", "files", "world_size", "lines_unknown", "bytes_read", "patterns")},
        }
        gaps = clean_gaps([*map(_json, self.gaps), *user["gaps"]])
        return record.assemble(self.run, self.node, dict(parts, facts=[*facts, *user["facts"]], gaps=gaps))

    def _guard(self, source: str, read: Callable[[], _T], otherwise: _T) -> _T:
        """A fault of ours costs one source, not the record."""
        try:
            return read()
        except Exception as error:
            self.gaps.append(Gap(source, f"reading failed: {type(error).__name__}: {error}"))
            return otherwise

    def _missing_hooks(self) -> None:
        if self.prolog is None:
            self.gaps.append(Gap("prolog", "none ran here (no PrologFlags=Alloc, or salloc without a step)"))
        if self.epilog is None:
            self.gaps.append(Gap("epilog", f"none ran here; closed by {self.run.closed_by or 'nobody'}"))
        if self.earlier_boot is not None:
            self.gaps.append(Gap("run on this boot", "the node was booted again after this run had started"))

    def _before(self) -> dict[str, Any] | None:
        stored = self.run.read_json("before.json")
        if not isinstance(stored, dict) or not isinstance(stored.get("snapshot"), dict):
            lacks = "none was taken: the job was over within seconds, or its worker did not run or was ended"
            why = "no prolog ran here" if self.prolog is None else lacks
            self.gaps.append(Gap("snapshot before", why))
            return None
        self.gaps += [Gap(str(one["source"]), str(one["why"])) for one in clean_gaps(stored.get("gaps") or [])]
        return dict(stored["snapshot"])

    def _after(self) -> dict[str, Any] | None:
        """A reboot clears counters and kills leftovers: a snapshot taken then says nothing of the run."""
        if self.earlier_boot is not None:
            self.gaps.append(Gap("snapshot after", "the node was booted again before it could be taken"))
            return None
        taken = self._guard("snapshot after", lambda: snapshot.take(self.conf, self.names, self.gaps), None)
        if taken is None:
            return None
        if taken["gpu_processes"] is not None and self.neighbours.between(self._closed_at(), taken["end"]):
            taken["gpu_processes"] = None
            self.gaps.append(Gap("gpu_processes", "another run was on this node: leftovers can't be told apart"))
        return taken

    def _closed_at(self) -> float:
        return self.epilog.time if self.epilog else time.time()

    def _started_at(self) -> float | None:
        """Prolog's time, else what Slurm told the epilog (from 23.11 on)."""
        if self.prolog:
            return self.prolog.time
        told = self.env.get("SLURM_JOB_START_TIME", "")
        return float(told) if told.isascii() and told.isdigit() and len(told) < 13 else None

    def _held(self, first: dict[str, Any] | None) -> ownership.Holding:
        start = self._started_at()
        uid = self.env.get("SLURM_JOB_UID", "")
        gpus = ownership.gpus_of_run(self.env, (first or {}).get("gpus"))
        alone = start is not None and not self.neighbours.between(start, self._closed_at())
        return ownership.Holding(gpus, alone, self.run.job_id, int(uid) if uid.isascii() and uid.isdigit() else None)

    def _kernel_events(self, held: ownership.Holding) -> list[Fact]:
        start, now = self._started_at(), time.time()
        if start is None:
            self.gaps.append(Gap("kernel log", "when this run started on the node is not known"))
            return []
        end = self.neighbours.next_after(self._closed_at()) or now
        records = kernel.kernel_records(self.conf, start, end, self.earlier_boot, self.gaps)
        if self.earlier_boot is not None:
            records += kernel.panic_records(self.conf, start, now, self.gaps)
        return ownership.own_events(kernel_facts(records, self.node, patterns.rows(self.conf)), held, self.gaps)

    def _user_files(self) -> dict[str, Any]:
        uid, gid = self.env.get("SLURM_JOB_UID", ""), self.env.get("SLURM_JOB_GID", "")
        if not os.path.isdir(self.run.user):
            return self._nothing("the run has no user folder on this node")
        if self.run.capture_off:
            return self._nothing(spool.CAPTURE_OFF)
        if not (uid.isascii() and uid.isdigit()):
            return self._nothing("the hooks had no SLURM_JOB_UID")
        gid = gid if gid.isascii() and gid.isdigit() else uid
        reserve = min(60.0, 0.3 * self.conf.worker_limit_s)
        request = userread.Request(int(uid), int(gid), None, self.node, [self.run.user])
        answer = child.answer_of(
            lambda: userread.answer(self.conf, request),
            limit_s=max(5.0, self.left() - reserve),
            limit_bytes=_ANSWER_BYTES,
        )
        if answer.why is not None:
            return self._nothing(f"reading them failed: {answer.why}")
        try:
            return _cleaned(json.loads(answer.text))
        except (ValueError, RecursionError) as error:
            return self._nothing(f"the reader's answer is no JSON: {error}")

    def _nothing(self, why: str) -> dict[str, Any]:
        self.gaps.append(Gap("user files", why))
        return _cleaned({})


def _cleaned(answer: Any) -> dict[str, Any]:
    """What the reader said, believed in nothing but its shape: it runs with the user's rights."""
    given = answer if isinstance(answer, dict) else {}
    gaps = clean_gaps(given["gaps"] if isinstance(given.get("gaps"), list) else [])
    return {
        "facts": clean_facts(given.get("facts"), "job", gaps),
        "ranks": clean_ranks(given.get("ranks")),
        "files": _files(given.get("files")),
        "world_size": _whole(given.get("world_size")),
        "lines_unknown": _whole(given.get("lines_unknown")) or 0,
        "bytes_read": _whole(given.get("bytes_read")) or 0,
        "patterns": text(given.get("patterns"), 64),
        "gaps": gaps,
    }


def _files(values: Any) -> list[dict[str, Any]]:
    files = []
    for value in values[:5000] if isinstance(values, list) else ():
        path = text(value.get("path"), 4096) if isinstance(value, dict) else None
        mtime = value.get("mtime") if path is not None else None
        if path is not None and isinstance(mtime, (int, float)) and abs(mtime) < 1e15:
            size = _whole(value.get("size")) or 0
            files.append({"path": path, "size": size, "mtime": mtime, "read": value.get("read") is True})
    return files


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _json(one: Gap) -> dict[str, str]:
    return {"source": one.source, "why": one.why}
