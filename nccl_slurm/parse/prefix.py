"""What stands in front of a log line: escape codes, progress bars, and the labels of srun, torchrun, MPI, Ray, NCCL.

Only labels that say *global rank* give one: ``[rank3]:`` (torch's exception hook and C++ log), ``[1,12]<stdout>:``
(Open MPI), ``(Worker[rank=31] pid=…)`` (Ray). ``[default0]:`` is torchrun's local rank, ``[Rank 6]`` a rank in a
group, ``[rank: 1] `` of Lightning's launcher counts the processes of one node, ``3: `` of ``srun -l`` is a Slurm task,
which is a rank only in jobs of one task a rank.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from nccl_slurm.parse.envelope import open_envelope

__all__ = ["MAX_RANK", "Prefix", "strip"]

#: Larger numbers are not ranks (the node record's schema says so too).
MAX_RANK = 10_000_000

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[@-_])")
_RANK = re.compile(r"\[rank(?P<rank>\d{1,8})\]: ?")
#: No label begins so, and it is what `_NCCL` looks for: most lines that are read are of this kind.
_PLAIN = re.compile(r"([A-Za-z][\w.-]{0,254}):(\d{1,10}):\d{1,10} \[-?\d{1,10}\] NCCL (?:INFO|WARN) ")
#: After a progress bar or a stamp of the site's own format too; not inside a word, where a bar's digits would join it.
_NCCL = re.compile(
    r"(?:\A|(?<=[\s\]|>)]))(?P<host>[A-Za-z0-9][\w.-]{0,254}):(?P<pid>\d{1,10}):\d{1,10} "
    r"(?=(?:\[-?\d{1,10}\] )?[^\n]{0,160}?(?:NCCL|INFO|WARN) )"
)
#: In each of these, and found sooner: it begins with a literal.
_IDS = re.compile(r":\d{1,10}:\d{1,10} ")
_REPEATED = re.compile(r" \[repeated (?P<times>\d{1,7})x across cluster\](?: \(Ray deduplicates [^\n]*)?\s*\Z")
#: In front of ``host: `` these are counters of a program, not machines.
_NO_MACHINE = (
    r"(?!(?i:rank|gpu|cuda|epoch|step|iter|line|attempt|proc|process|thread|task|layer|stage|local|group)[\d_-])"
)
_LABELS = (
    re.compile(  # Open MPI --tag-output: job, rank; 5.x names the job, --timestamp-output puts a date in front
        r"(?:[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4})?"
        r"\[(?:[\w.@-]{1,120}@)?\d{1,8},(?P<rank>\d{1,8})\](?:\[(?P<host>[\w.-]{1,255}):(?P<pid>\d{1,10})\])?"
        r"<std(?:out|err|diag)>: ?"
    ),
    re.compile(
        r"\([\w.]{1,80}(?:\[rank=(?P<rank>\d{1,8})\]|\([\w.-]{1,80}\)| [A-Z][A-Z\d_]{1,30}| rank=\d{1,8})? "
        r"pid=(?P<pid>\d{1,10})(?:, ip=(?P<host>[\w.:-]{1,80}))?\) "
    ),
    _RANK,
    re.compile(r"\[rank(?P<rank>\d{1,8})-group_rank\d{1,8}-attempt(?P<attempt>\d{1,6})\]: ?"),  # hyperpodrun
    re.compile(r"\[default:(?P<one>\d{1,8})/(?P<other>\d{1,8})\]: ?"),  # torchrun's template, of either order
    re.compile(r"\[RANK (?P<rank>\d{1,8})\] "),
    re.compile(r"\[[A-Za-z_][\w.-]{0,60}?(?P<local>\d{1,4})\]:"),  # torchrun --tee: role, local rank
    re.compile(r"(?:[\w.-]{1,120} )?\[std(?:out|err)\] "),
    re.compile(r"std(?:out|err): (?=\S| {2})"),  # programs that print what another one said
    re.compile(r"[\w.-]{1,60}/\d{1,6} \[\d{1,4}\]:"),
    re.compile(r" {0,6}(?P<task>\d{1,7}): (?=\S| {2})"),  # srun -l
    re.compile(  # syslog
        r"[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d(?:\.\d{1,9})? (?P<host>[A-Za-z0-9][\w.-]{0,254}) "
        r"[\w./-]{1,60}(?:\[\d{1,10}\])?: "
    ),
    re.compile(r"(?:\d{9,11}\.\d{1,9} )?(?P<host>[A-Za-z0-9][\w.-]{0,254}) kernel: "),  # journalctl -o short-unix
    re.compile(  # dmesg, dmesg -r, -x, pstore
        r"(?:<\d{1,3}>|kern {0,4}:\w{1,8} {0,8}: )?\[ {0,8}\d{1,10}\.\d{6}\](?:\[ {0,8}[CT]\d{1,10}\])? "
    ),
    re.compile(r"\[ {0,12}\+?\d{1,10}\.\d{6}\] |\[[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d\] "),  # dmesg -d, -e
    re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]?\d \d\d:\d\d:\d\d \d{4}\] "),  # dmesg -T
    re.compile(r" {8,24}(?=NVRM: )"),  # dmesg: second line of a record, below the text of the first
    re.compile(r"kernel: "),
    re.compile(r"\[\d{1,9}\] (?=\[)"),
    re.compile(
        r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
        r"(?:: |,? (?:- )?)(?=\S)"
    ),
    re.compile(  # vLLM's logger, in front of each line of a traceback
        r"(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./-]{1,80}\.py:\d{1,6}\](?: |\Z)"
    ),
    re.compile(  # pdsh, and DeepSpeed by it
        _NO_MACHINE + r"(?P<host>(?=[A-Za-z-]{0,62}\d)[A-Za-z][A-Za-z0-9.-]{0,254}|\d{1,3}(?:\.\d{1,3}){3}): "
        r"(?=[\w.-]{1,80}:\d+:\d|\[rank\d|\[default\d|\[\d{4}-|Traceback \(most|  File \"|    "
        r"|(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)\b)"
    ),
    re.compile(r"(?P<host>[A-Za-z][A-Za-z0-9-]{0,62}): (?=[\w.-]{1,80}:\d+:\d|\[rank\d|\[default\d)"),
)


#: Whether any label is there: one match instead of one a label.
_ANY = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", label.pattern) for label in _LABELS))


class Prefix(NamedTuple):
    """``text`` is what is left. ``label`` tells streams of one file apart (to put multi-line messages together).

    ``repeated``: how many more such lines Ray left out, of which processes nobody knows. ``inner``: the whole line that
    stood in a container log's envelope. ``stamp``: the envelope's.
    """

    text: str
    label: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    host: str | None = None
    pid: int | None = None
    stamp: str | None = None
    attempt: int | None = None
    repeated: int | None = None
    inner: str | None = None


@lru_cache(maxsize=16)  # the last lines of a file are asked for once more
def strip(line: str) -> Prefix:
    """Takes labels off, outermost first; what is glued in front of a ``[rank3]:`` is dropped. Never raises."""
    plain = _PLAIN.match(line)
    if plain is not None and _stays_plain(line):
        return Prefix(line, host=plain.group(1), pid=_number(plain.group(2)))
    envelope = open_envelope(line)
    text = line if envelope is None else envelope.text
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    text = text.rstrip("\r\n").rpartition("\r")[2].lstrip("\ufffd\ufeff")
    found: dict[str, str] = {}
    if envelope is None and _ANY.match(text) is None and "[rank" not in text and "repeated" not in text:
        _nccl(text, found)  # most lines: half the time of what follows
        return Prefix(text, host=found.get("host"), pid=_number(found.get("pid")))
    if envelope is not None and envelope.host is not None:
        found["host"] = envelope.host
    text = _labels(_unfolded(text, found), found)
    if "rank" not in found and "[rank" in text:
        glued = _RANK.search(text[:400])
        if glued is not None:
            found["rank"] = glued.group("rank")
            text = _labels(text[glued.end() :], found)
    repeated = _number(found.pop("times", None))
    label = "|".join(f"{name}{value}" for name, value in found.items())
    _nccl(text, found)
    return Prefix(
        text,
        label,
        rank=_number(found.get("rank")),
        local_rank=_number(found.get("local")),
        task=_number(found.get("task")),
        host=found.get("host"),
        pid=_number(found.get("pid")),
        stamp=None if envelope is None else envelope.stamp,
        attempt=_number(found.get("attempt")),
        repeated=repeated,
        inner=None if envelope is None else envelope.text,
    )


def _stays_plain(line: str) -> bool:
    """Whether nothing further on changes how its start is read."""
    if "[rank" in line or "repeated" in line:
        return False
    return "\r" not in line and "\n" not in line and "\x1b" not in line


def _unfolded(text: str, found: dict[str, str]) -> str:
    """Ray prints one of many like lines and how many more there were."""
    match = _REPEATED.search(text, max(0, len(text) - 400)) if "repeated" in text else None
    if match is None:
        return text
    found["times"] = match.group("times")
    return text[: match.start()]


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
    _template(found)
    return text


def _template(found: dict[str, str]) -> None:
    """Of ``5/1`` the larger one is the rank: no local rank is above its global one."""
    if "one" in found:
        low, high = sorted((int(found.pop("one")), int(found.pop("other"))))
        found.setdefault("rank", str(high))
        found.setdefault("local", str(low))


def _nccl(text: str, found: dict[str, str]) -> None:
    """NCCL's own ``host:pid:tid [device]`` stays in the text; the device number is no rank and can be garbage."""
    match = _NCCL.match(text)
    if match is None and "NCCL " in text and _IDS.search(text[:600]):
        match = _NCCL.search(text[:600])
    if match is not None:
        found["host"], found["pid"] = match.group("host"), match.group("pid")


def _number(digits: str | None) -> int | None:
    value = int(digits) if digits is not None else None
    return value if value is None or value <= MAX_RANK else None
