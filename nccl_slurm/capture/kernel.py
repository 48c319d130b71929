"""The kernel log inside a run's window: journald, else the kernel's own ring buffer, else a file that stands in.

After a crash the run's kernel log is that of an earlier boot: journald by boot id, and what the firmware kept of a
panic (pstore). Not observed is a gap: no Xid line read is not "no Xid".

One element of a list here is one record of the kernel. A record may have line breaks: those of the driver, or of a name
that a user chose and the kernel quotes. So each source is read in a form that keeps records apart, and what follows a
line break never begins a record.
"""

from __future__ import annotations

import json
import os
import re
import time
from typing import Any, NamedTuple, Tuple

from nccl_slurm.capture import command
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap

__all__ = ["KernelRecord", "kernel_records", "panic_records"]

#: Seconds since 1970 (None: it carries no clock that can be told) and the text without its prefix, in one line.
KernelRecord = Tuple["float | None", str]  # evaluated: Python 3.8

_SHORT_UNIX = re.compile(r"([0-9]{9,11}(?:\.[0-9]{1,9})?) (?:\S+ kernel: )?(.*)\Z")
#: Facility and level, number, microseconds. Facility 0 is the kernel's own: what programs write there has others.
_KMSG = re.compile(r"[0-7],[0-9]+,([0-9]+),[^;]*;(.*)\Z")
_PSTORE_LINE = re.compile(r"(?:<[0-9]{1,3}>)?\[ *([0-9]+\.[0-9]+)\](?:\[[^\]]*\])? ?(.*)\Z")
_JOURNAL = ["journalctl", "-k", "-o", "json", "--output-fields=MESSAGE,SYSLOG_FACILITY", "--no-pager", "-q"]
_LIMIT_S = 30.0
_LIMIT_BYTES = 1 << 25
_PANIC_BYTES = 1 << 20


class _Log(NamedTuple):
    records: list[KernelRecord]
    why: str | None = None  # why it was not observed


def kernel_records(conf: Conf, start: float, end: float, boot_id: str | None, gaps: list[Gap]) -> list[KernelRecord]:
    """Records with ``start`` ≤ time ≤ ``end``. ``boot_id``: the boot to read, None for the one that runs."""
    if conf.kernel_log:
        log = _file(conf.kernel_log)
    else:
        log = _journal(conf, start, boot_id, gaps)
        if log.why is not None and boot_id is None:
            log = _ring(conf, start, gaps, log.why)
    if log.why is not None:
        gaps.append(Gap("kernel log", log.why))
    return [(at, text) for at, text in log.records if at is not None and start <= at <= end]


def _file(path: str) -> _Log:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            return _Log(_short_unix(file.read(_LIMIT_BYTES)))
    except OSError as error:
        return _Log([], f"{path}: {error.strerror}")


def _journal(conf: Conf, start: float, boot_id: str | None, gaps: list[Gap]) -> _Log:
    argv = [*_JOURNAL, f"--since=@{int(start)}"]
    if boot_id is not None:
        argv.append(f"--boot={boot_id.replace('-', '')}")
    if conf.sysroot:
        argv.append(f"--root={conf.sysroot}")
    answer = command.run(argv, limit_s=_LIMIT_S, limit_bytes=_LIMIT_BYTES)
    if answer.why is not None:
        return _Log([], answer.why)
    if answer.cut:
        gaps.append(Gap("kernel log", f"larger than {_LIMIT_BYTES >> 20} MiB: its end was not read"))
    records = _journal_records(answer.text)
    if not records and not _has_kernel_log(boot_id):
        return _Log([], "journalctl: the journal holds no kernel line of that boot")
    return _Log(records)


def _has_kernel_log(boot_id: str | None) -> bool:
    """A quiet kernel and a journal that keeps no kernel log look the same in a window; the whole boot differs."""
    wanted = "--boot" if boot_id is None else f"--boot={boot_id.replace('-', '')}"
    answer = command.run([*_JOURNAL, "-n", "1", wanted], limit_s=_LIMIT_S)
    return answer.why is None and bool(_journal_records(answer.text))


def _journal_records(text: str) -> list[KernelRecord]:
    """One JSON object a line (journald.conf's ForwardToKMsg puts programs' messages among the kernel's: facility)."""
    return [record for record in map(_journal_record, text.split("\n")) if record is not None]


def _journal_record(line: str) -> KernelRecord | None:
    try:
        value = json.loads(line)
        if isinstance(value, dict) and value.get("SYSLOG_FACILITY") == "0":
            return int(value["__REALTIME_TIMESTAMP"]) / 1e6, _one_line(_message(value["MESSAGE"]))
    except (ValueError, KeyError, TypeError, RecursionError):  # words of journalctl on standard error; a cut last line
        pass
    return None


def _message(value: Any) -> str:
    """Text, or its bytes where they are no UTF-8; null where journalctl left it out. Raises ValueError, TypeError."""
    return value if isinstance(value, str) else bytes(value).decode("utf-8", "backslashreplace")


def _one_line(text: str) -> str:
    return " ".join(part.strip() for part in text.split("\n"))


def _short_unix(text: str) -> list[KernelRecord]:
    """``1795956000.123456 host kernel: text``; a line of another form continues the record before."""
    records: list[KernelRecord] = []
    for line in text.split("\n"):
        match = _SHORT_UNIX.match(line)
        if match:
            records.append((float(match.group(1)), match.group(2)))
        elif records and line.strip():
            records[-1] = (records[-1][0], f"{records[-1][1]} {line.strip()}")
    return records


def _ring(conf: Conf, start: float, gaps: list[Gap], journal_why: str) -> _Log:
    """/dev/kmsg: one record a read, microseconds since boot by a clock that does not count suspend. The kernel escapes
    line breaks in a record, and backslashes too."""
    try:
        raw = _kmsg_records(conf.under("/dev/kmsg"))
    except OSError as error:
        return _Log([], f"{journal_why}; /dev/kmsg: {error.strerror}")
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    matches = [match for match in map(_KMSG.match, raw) if match]
    if not matches:
        return _Log([], f"{journal_why}; /dev/kmsg holds nothing")
    first = booted + int(matches[0].group(1)) / 1e6
    if first > max(start, booted + 60.0):
        gaps.append(Gap("kernel log before", f"the ring buffer has overwritten {first - start:.0f} s of the run"))
    unescaped = ((match.group(1), match.group(2).replace("\\x0a", "\n")) for match in matches)
    return _Log([(booted + int(at) / 1e6, _one_line(text)) for at, text in unescaped])


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


def panic_records(conf: Conf, start: float, end: float, gaps: list[Gap]) -> list[KernelRecord]:
    """What pstore kept of a panic between the two times; the records carry no wall clock.

    systemd-pstore moves the files from /sys/fs/pstore to /var/lib/systemd/pstore at boot; both are looked at.
    """
    records: list[KernelRecord] = []
    for folder in ("/sys/fs/pstore", "/var/lib/systemd/pstore"):
        for path in _panic_files(conf.under(folder)):
            try:
                if start <= os.stat(path).st_mtime <= end:
                    records += _panic_file(path)
            except OSError as error:
                gaps.append(Gap("pstore", f"{path}: {error.strerror}"))
    return records


def _panic_files(folder: str) -> list[str]:
    found = []
    for base, _, names in os.walk(folder):
        found += [
            os.path.join(base, name) for name in names if name.startswith("dmesg") and not name.endswith(".enc.z")
        ]
    return sorted(found)[:64]


def _panic_file(path: str) -> list[KernelRecord]:
    """The kernel puts a record's prefix before each of its lines: one with the stamp of the line before continues it.
    Two records of one microsecond become one, which costs evidence and makes none."""
    records: list[KernelRecord] = []
    last = None
    with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
        for match in map(_PSTORE_LINE.match, file.read(_PANIC_BYTES).split("\n")):
            if match and match.group(1) == last:
                records[-1] = (None, f"{records[-1][1]} {match.group(2).strip()}")
            elif match:
                last = match.group(1)
                records.append((None, match.group(2)))
    return records
