"""What stands in front of a log line: escape codes, progress bars, and the labels of srun, torchrun, MPI, Ray, NCCL.

Only labels that say *global rank* give one: ``[rank3]:`` (torch's exception hook and C++ log), ``[1,12]<stdout>:``
(Open MPI), ``(Worker[rank=31] pid=…)`` (Ray). ``[default0]:`` is torchrun's local rank, ``[Rank 6]`` a rank in a
group, ``3: `` of ``srun -l`` a Slurm task, which is a rank only in jobs of one task a rank.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["MAX_RANK", "Prefix", "strip"]

#: Larger numbers are not ranks (the node record's schema says so too).
MAX_RANK = 10_000_000

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-_])")
_RANK = re.compile(r"\[rank(?P<rank>\d{1,8})\]: ?")
_NCCL = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,254}):(?P<pid>\d{1,10}):\d{1,10} (?:\[\d{1,10}\] )?")
_LABELS = (
    re.compile(r"\[\d{1,8},(?P<rank>\d{1,8})\]<std(?:out|err|diag)>: ?"),  # Open MPI --tag-output: job, rank
    re.compile(
        r"\([\w.]{1,80}(?:\[rank=(?P<rank>\d{1,8})\])? pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[\w.:-]{1,80}))?\) "
    ),
    _RANK,
    re.compile(r"\[RANK (?P<rank>\d{1,8})\] "),
    re.compile(r"\[[A-Za-z_][\w.-]{0,60}?(?P<local>\d{1,4})\]:"),  # torchrun --tee: role, local rank
    re.compile(r"(?:[\w.-]{1,120} )?\[std(?:out|err)\] "),
    re.compile(r"[\w.-]{1,60}/\d{1,6} \[\d{1,4}\]:"),
    re.compile(r" {0,6}(?P<task>\d{1,7}): (?=\S| {2})"),  # srun -l
    re.compile(  # syslog
        r"[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d (?P<host>[A-Za-z0-9][\w.-]{0,254}) [\w./-]{1,60}(?:\[\d{1,10}\])?: "
    ),
    re.compile(r"(?:\d{9,11}\.\d{1,9} )?(?P<host>[A-Za-z0-9][\w.-]{0,254}) kernel: "),  # journalctl -o short-unix
    re.compile(r"(?:<\d{1,3}>)?\[ {0,8}\d{1,10}\.\d{6}\](?:\[ {0,8}[CT]\d{1,10}\])? "),  # dmesg, dmesg -r, pstore
    re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "),  # dmesg -T
    re.compile(r"kernel: "),
    re.compile(r"\[\d{1,9}\] (?=\[)"),
    re.compile(
        r"(?P<stamp>\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?)"
        r"(?:: |,? (?:- )?)(?=\S)"
    ),
    re.compile(
        r"(?P<host>[A-Za-z][A-Za-z0-9-]{0,62}|\d{1,3}(?:\.\d{1,3}){3}): (?=[\w.-]{1,80}:\d+:\d|\[rank\d|\[default\d)"
    ),  # pdsh
)


#: Whether any label is there: one match instead of one a label.
_ANY = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", label.pattern) for label in _LABELS))


class Prefix(NamedTuple):
    """``text`` is what is left. ``label`` tells streams of one file apart (to put multi-line messages together)."""

    text: str
    label: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    host: str | None = None
    pid: int | None = None
    stamp: str | None = None


def strip(line: str) -> Prefix:
    """Takes labels off, outermost first; what is glued in front of a ``[rank3]:`` is dropped. Never raises."""
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    text = line.rstrip("\r\n").rpartition("\r")[2]
    found: dict[str, str] = {}
    text = _labels(text, found)
    if "rank" not in found and "[rank" in text:
        glued = _RANK.search(text[:400])
        if glued is not None:
            found["rank"] = glued.group("rank")
            text = _labels(text[glued.end() :], found)
    label = "|".join(f"{name}{value}" for name, value in found.items() if name != "stamp")
    _nccl(text, found)
    return Prefix(
        text,
        label,
        rank=_number(found.get("rank")),
        local_rank=_number(found.get("local")),
        task=_number(found.get("task")),
        host=found.get("host"),
        pid=_number(found.get("pid")),
        stamp=found.get("stamp"),
    )


def _labels(text: str, found: dict[str, str]) -> str:
    """``text`` without its labels, at most eight; the innermost label of a kind wins."""
    for _ in range(8):
        if _ANY.match(text) is None:
            break
        for label in _LABELS:
            match = label.match(text)
            if match is not None:
                found.update((name, value) for name, value in match.groupdict().items() if value is not None)
                text = text[match.end() :]
                break
    return text


def _nccl(text: str, found: dict[str, str]) -> None:
    """NCCL's own ``host:pid:tid [device]`` stays in the text; the device number is no rank and can be garbage."""
    match = _NCCL.match(text)
    if match is not None and any(word in text for word in ("NCCL ", " INFO ", " WARN ")):
        found["host"], found["pid"] = match.group("host"), match.group("pid")


def _number(digits: str | None) -> int | None:
    value = int(digits) if digits is not None else None
    return value if value is None or value <= MAX_RANK else None
