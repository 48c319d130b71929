"""The kernel log inside a run's window: journald, else the kernel's own ring buffer, else a file that stands in.

After a crash the run's kernel log is that of an earlier boot: journald by boot id, and what the firmware kept of a
panic (pstore). Not observed is a gap: no Xid line read is not "no Xid".
"""

from __future__ import annotations

import os
import re
import time
from typing import NamedTuple, Tuple

from nccl_slurm.capture import command
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap

__all__ = ["KernelLine", "kernel_lines", "panic_lines"]

#: Seconds since 1970 (None: the line carries no clock that can be told) and the text without its prefix.
KernelLine = Tuple["float | None", str]  # evaluated: Python 3.8

_SHORT_UNIX = re.compile(r"([0-9]{9,11}(?:\.[0-9]{1,9})?) (?:\S+ kernel: )?(.*)\Z")
_KMSG = re.compile(r"[0-9]+,[0-9]+,([0-9]+),[^;]*;(.*)\Z")
_PSTORE_LINE = re.compile(r"(?:<[0-9]{1,3}>)?\[ *[0-9]+\.[0-9]+\](?:\[[^\]]*\])? ?(.*)\Z")
_LIMIT_S = 30.0
_LIMIT_BYTES = 1 << 25
_PANIC_BYTES = 1 << 20


class _Log(NamedTuple):
    lines: list[KernelLine]
    why: str | None = None  # why it was not observed


def kernel_lines(conf: Conf, start: float, end: float, boot_id: str | None, gaps: list[Gap]) -> list[KernelLine]:
    """Lines with ``start`` ≤ time ≤ ``end``. ``boot_id``: the boot to read, None for the one that runs."""
    if conf.kernel_log:
        log = _file(conf.kernel_log)
    else:
        log = _journal(conf, start, boot_id)
        if log.why is not None and boot_id is None:
            log = _ring(conf, start, gaps, log.why)
    if log.why is not None:
        gaps.append(Gap("kernel log", log.why))
    return [(at, text) for at, text in log.lines if at is not None and start <= at <= end]


def _file(path: str) -> _Log:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            return _Log(_short_unix(file.read(_LIMIT_BYTES)))
    except OSError as error:
        return _Log([], f"{path}: {error.strerror}")


def _journal(conf: Conf, start: float, boot_id: str | None) -> _Log:
    argv = ["journalctl", "-k", "-o", "short-unix", "--no-pager", "-q", f"--since=@{int(start)}"]
    if boot_id is not None:
        argv.append(f"--boot={boot_id.replace('-', '')}")
    if conf.sysroot:
        argv.append(f"--root={conf.sysroot}")
    answer = command.run(argv, limit_s=_LIMIT_S, limit_bytes=_LIMIT_BYTES)
    if answer.why is not None:
        return _Log([], answer.why)
    lines = _short_unix(answer.text)
    if not lines and not _has_kernel_log(argv[:1], boot_id):
        return _Log([], "journalctl: the journal holds no kernel line of that boot")
    return _Log(lines)


def _has_kernel_log(argv: list[str], boot_id: str | None) -> bool:
    """A quiet kernel and a journal that keeps no kernel log look the same in a window; the whole boot differs."""
    wanted = ["--boot" if boot_id is None else f"--boot={boot_id.replace('-', '')}"]
    answer = command.run([*argv, "-k", "-o", "short-unix", "--no-pager", "-q", "-n", "1", *wanted], limit_s=_LIMIT_S)
    return answer.why is None and bool(_short_unix(answer.text))


def _short_unix(text: str) -> list[KernelLine]:
    """``1795956000.123456 host kernel: text``; a line of another form continues the one before.

    The driver's messages of several lines stay several; in all others a line break may be part of a name that a user
    chose, and must not begin a message of its own.
    """
    lines: list[KernelLine] = []
    for line in text.split("\n"):
        match = _SHORT_UNIX.match(line)
        if match:
            lines.append((float(match.group(1)), match.group(2)))
        elif lines and line.strip():
            stamp, text_before = lines[-1]
            if text_before.startswith("NVRM: ") and "]: segfault" not in text_before:
                lines.append((stamp, line.strip()))
            else:
                lines[-1] = (stamp, f"{text_before} {line.strip()}")
    return lines


def _ring(conf: Conf, start: float, gaps: list[Gap], journal_why: str) -> _Log:
    """/dev/kmsg: one record a read, microseconds since boot by a clock that does not count suspend."""
    try:
        records = _kmsg_records(conf.under("/dev/kmsg"))
    except OSError as error:
        return _Log([], f"{journal_why}; /dev/kmsg: {error.strerror}")
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    lines: list[KernelLine] = []
    for record in records:
        match = _KMSG.match(record)
        if match:
            lines.append((booted + int(match.group(1)) / 1e6, match.group(2)))
    if not lines:
        return _Log([], f"{journal_why}; /dev/kmsg holds nothing")
    if lines[0][0] is not None and lines[0][0] > max(start, booted + 60.0):
        gaps.append(Gap("kernel log before", f"the ring buffer has overwritten {lines[0][0] - start:.0f} s of the run"))
    return _Log(lines)


def _kmsg_records(path: str) -> list[str]:
    records, size = [], 0
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while size < _LIMIT_BYTES:
            try:
                data = os.read(descriptor, 8192)
            except BrokenPipeError:  # this record was overwritten while we read: the next one follows
                continue
            except BlockingIOError:
                break
            if not data:
                break
            size += len(data)
            records += data.decode("utf-8", "backslashreplace").split("\n")
    finally:
        os.close(descriptor)
    return records


def panic_lines(conf: Conf, start: float, end: float, gaps: list[Gap]) -> list[KernelLine]:
    """What pstore kept of a panic between the two times; the lines carry no wall clock.

    systemd-pstore moves the files from /sys/fs/pstore to /var/lib/systemd/pstore at boot; both are looked at.
    """
    lines: list[KernelLine] = []
    for folder in ("/sys/fs/pstore", "/var/lib/systemd/pstore"):
        for path in _panic_files(conf.under(folder)):
            try:
                if start <= os.stat(path).st_mtime <= end:
                    lines += _panic_file(path)
            except OSError as error:
                gaps.append(Gap("pstore", f"{path}: {error.strerror}"))
    return lines


def _panic_files(folder: str) -> list[str]:
    found = []
    for base, _, names in os.walk(folder):
        found += [
            os.path.join(base, name) for name in names if name.startswith("dmesg") and not name.endswith(".enc.z")
        ]
    return sorted(found)[:64]


def _panic_file(path: str) -> list[KernelLine]:
    with open(path, encoding="utf-8", errors="backslashreplace") as file:
        matches = (_PSTORE_LINE.match(line.rstrip("\n")) for line in file.read(_PANIC_BYTES).split("\n"))
        return [(None, match.group(1)) for match in matches if match]
