"""The spool: one folder a run, named ``<job id>.<seconds>``; what is in it is drawn in docs/architecture.md."""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Iterator

from nccl_slurm.errors import InputError
from nccl_slurm.parse.redact import redacted

__all__ = ["CAPTURE_OFF", "Known", "Run", "lock", "open_run", "remains", "runs", "write_whole"]

#: Why a run's record has nothing of its user's; the daemon then leaves the job's output alone too.
CAPTURE_OFF = "the job switched capture off (NCCL_SLURM_CAPTURE=off)"

_NAME = re.compile(r"([0-9]{1,18})\.([0-9]{1,12})\Z")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}\Z")
_MAX_ENV_BYTES = 1 << 20
_MAX_VARIABLES = 100
_MAX_VALUE = 65536
_STAMP_SLACK_S = 2.0


@dataclass(frozen=True)
class Known:
    """What a hook knew. ``time``: seconds since 1970; ``boot_id`` None where the hook could not read it."""

    time: float
    boot_id: str | None
    env: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """For the record: a job's comment or name may be among the variables, and a secret in it."""
        env = {name: redacted(value)[:_MAX_VALUE] for name, value in self.env.items()}
        return {"time": self.time, "boot_id": self.boot_id, "env": env}


@dataclass(frozen=True)
class Run:
    """One run folder. ``seconds``: when its prolog (or, without one, its epilog) ran."""

    path: str
    job_id: int
    seconds: int

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def user(self) -> str:
        return os.path.join(self.path, "user")

    def root(self, name: str) -> str:
        return os.path.join(self.path, "root", name)

    @property
    def closed_by(self) -> str | None:
        """``epilog``, ``boot`` or ``sweep``; None while the run is open."""
        try:
            with open(os.path.join(self.path, "closed"), encoding="ascii", errors="replace") as file:
                word = file.read(20).strip()
        except OSError:
            return None
        return word if word in ("boot", "sweep") else "epilog"

    def close(self, by: str) -> None:
        with open(os.path.join(self.path, "closed"), "x", encoding="ascii") as file:
            file.write(by + "\n")

    @property
    def prolog(self) -> Known | None:
        return _read_known(self.root("prolog.env"), self.seconds)

    @property
    def epilog(self) -> Known | None:
        return _read_known(self.root("epilog.env"), None)

    @property
    def uid(self) -> str:
        """Of its user, as the hooks were told; empty where they were not."""
        known = self.prolog or self.epilog
        uid = known.env.get("SLURM_JOB_UID", "") if known else ""
        return uid if uid.isascii() and uid.isdigit() and len(uid) < 11 else ""

    @property
    def delivered(self) -> float | None:
        """Seconds since 1970 of the hand-over, None while undelivered."""
        try:
            return os.stat(self.root("delivered")).st_mtime
        except OSError:
            return None

    @property
    def capture_off(self) -> bool:
        """The job asked that its files are not read: by ``--nccl-capture=off`` when it was submitted, or by a task.
        Whatever has that name counts: it is looked at, not opened."""
        prolog = self.prolog
        by_option = prolog is not None and prolog.env.get("SPANK_NCCL_SLURM_CAPTURE") == "off"
        return by_option or os.path.lexists(os.path.join(self.user, "capture-off"))

    def drop_links(self) -> None:
        """Those by which users and tasks find the run, as long as they are its own."""
        epilog = self.epilog
        names = {str(self.job_id), (epilog.env if epilog else {}).get("SLURM_HET_JOB_ID", "")}
        for name in names:
            link = os.path.join(os.path.dirname(self.path), name)
            with suppress(OSError):
                if name.isdigit() and os.readlink(link) == self.name:
                    os.unlink(link)

    def read_json(self, name: str) -> Any:
        """None where absent or broken (a worker that was killed)."""
        try:
            with open(self.root(name), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            return None


def open_run(spool: str, path: str) -> Run:
    """The run at ``path``, which must be a folder directly in the spool. Raises InputError."""
    folder, name = os.path.split(os.path.normpath(path))
    match = _NAME.match(name)
    if match is None or os.path.normpath(folder) != os.path.normpath(spool):
        raise InputError(f"{path}: not a run folder of {spool}; give {spool}/<job id>.<seconds>")
    if os.path.islink(path) or not os.path.isdir(os.path.join(path, "root")):
        raise InputError(f"{path}: no such run folder")
    return Run(os.path.normpath(path), int(match.group(1)), int(match.group(2)))


def runs(spool: str, over_by: float | None = None) -> list[Run]:
    """All run folders, oldest first; none where the spool is absent or unreadable. ``over_by``: without those that were
    closed by then, in seconds since 1970, at one stat each: a spool holds thousands of such."""
    found = []
    try:
        names = os.listdir(spool)
    except OSError:
        return []
    for name in names:
        if _NAME.match(name) is None or (over_by is not None and closed_at(os.path.join(spool, name)) <= over_by):
            continue
        try:
            found.append(open_run(spool, os.path.join(spool, name)))
        except InputError:
            continue
    return sorted(found, key=lambda run: (run.seconds, run.job_id))


def closed_at(path: str) -> float:
    """Of the run at ``path``, in seconds since 1970; far in the future while it is open."""
    try:
        return os.stat(os.path.join(path, "closed")).st_mtime
    except OSError:
        return time.time() + 1e9


def remains(spool: str, age_s: float) -> list[str]:
    """Paths of run folders without ``root/``, which no prolog is just making: what is left of a removal."""
    try:
        with os.scandir(spool) as names:
            return [one.path for one in names if _NAME.match(one.name) and _is_remains(one, age_s)]
    except OSError:
        return []


def _is_remains(one: os.DirEntry[str], age_s: float) -> bool:
    if not one.is_dir(follow_symlinks=False) or os.path.isdir(os.path.join(one.path, "root")):
        return False
    return abs(time.time() - one.stat(follow_symlinks=False).st_mtime) > age_s


def _read_known(path: str, seconds: int | None) -> Known | None:
    """``NAME=value`` lines; a cut or strange file gives what is readable in it. ``seconds`` stands in for its time, or
    (None) the file's own does."""
    try:
        with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            lines, written = file.read(_MAX_ENV_BYTES).split("\n"), os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    values: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals and _VARIABLE.match(name) and len(values) < _MAX_VARIABLES:
            values[name] = value[:_MAX_VALUE]
    stamp, boot_id = values.pop("time", ""), values.pop("boot_id", "")
    otherwise = written if seconds is None else float(seconds)
    at = float(stamp) if stamp.isascii() and stamp.isdigit() and len(stamp) < 13 else otherwise
    return Known(_with_fraction(at, written), boot_id[:64] or None, values)


def _with_fraction(stamp: float, written: float) -> float:
    """Hooks stamp whole seconds, and a job often begins in the second in which the one before it ended: the file was
    written right after its stamp was taken, so its own time tells which came first."""
    return written if 0.0 <= written - stamp < _STAMP_SLACK_S else stamp


def write_whole(path: str, value: Any) -> None:
    """JSON at ``path``, mode 0600: never half a file, and on the disk when this returns."""
    part = f"{path}.{os.getpid()}.part"
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            json.dump(value, file, separators=(",", ":"), allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.rename(part, path)
    except BaseException:
        os.unlink(part)
        raise


@contextmanager
def lock(path: str, limit_s: float) -> Iterator[bool]:
    """Holds an exclusive lock on ``path``, a file or (a full disk has no room for another name) a folder; yields False
    where another process kept it for ``limit_s``."""
    flags = os.O_RDONLY | os.O_DIRECTORY if os.path.isdir(path) else os.O_RDWR | os.O_CREAT
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _acquire(descriptor, limit_s)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, limit_s: float) -> bool:
    end = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
