"""What the name of a file says: its rank, process, task, attempt, host."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Iterable, Match, NamedTuple

from nccl_slurm.parse.finding import host_name
from nccl_slurm.parse.prefix import MAX_RANK

__all__ = ["Name", "dump_rank", "folder_hosts", "is_dump", "read"]

_PROCESS = re.compile(r"nccl\.(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,254}?)\.(?P<pid>\d{1,10})\.log(?:\.\w{1,5}){0,2}\Z")
_TASK = re.compile(r"task\.(?P<step>\w{1,20})\.(?P<procid>\d{1,8})\Z")
_DUMP = re.compile(r"(?:nccl_trace|comm_lib_trace|fr_json|fr_trace)_rank_?(?P<rank>\d{1,8})(?:\.\w{1,8}){0,2}\Z")
#: torch puts the rank at the end of whatever name TORCH_FR_DUMP_TEMP_FILE gives.
_LAST = re.compile(r"[_.-](?P<rank>\d{1,8})(?:\.(?:pickle|pkl|json|bin|dump|gz|bz2|xz|zst)){0,2}\Z")
_RANK = re.compile(r"(?<![A-Za-z0-9])[Rr]ank[_.-]?(?P<rank>\d{1,8})(?!\d)")
#: In front of ``rank`` these make it one on a node or in a group: Megatron's and DeepSpeed's files have many.
_NO_RANK = re.compile(
    r"(?i)(?:local|node|group|machine|role|replica|restart|tensor|pipeline|expert|parallel|intra|inter"
    r"|(?<![a-z])(?:tp|pp|dp|ep|etp|cp|sp|mp|vp))[_.-]?\Z"
)
_RANGE = re.compile(r"-(?P<last>\d{1,5})(?!\d)")
_ATTEMPT = re.compile(r"(?:\A|/)attempt_(?P<attempt>\d{1,6})/(?P<local>\d{1,5})/[^/]*\Z")
_NO_HOST = re.compile(
    r"(?i)(?:attempt|rank|version|step|run|job|epoch|local|task|logs?|stdout|stderr|out|err)[_.-]?\d*\Z"
)


class Name(NamedTuple):
    """``attempt``, ``local_rank``: torchrun's ``attempt_0/1/stderr.log``; ``host``, ``pid``: ``nccl.HOST.PID.log``."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    procid: int | None = None
    step: str | None = None
    attempt: int | None = None
    local_rank: int | None = None


@lru_cache(maxsize=256)  # asked for each fact of a file
def read(name: str) -> Name:
    """``name``: relative path. Local, node and group ranks in it give no rank."""
    base = name.rpartition("/")[2]
    process, task = _PROCESS.match(base), _TASK.match(base)
    if process is not None:
        return Name(host=process.group("host"), pid=int(process.group("pid")))
    if task is not None:
        return Name(procid=int(task.group("procid")), step=task.group("step"))
    attempt = _ATTEMPT.search(name)
    if attempt is not None:
        return Name(attempt=int(attempt.group("attempt")), local_rank=int(attempt.group("local")))
    return Name(rank=_rank(base))


def is_dump(name: str) -> bool:
    """Whether this is one of the usual names of a flight recorder dump."""
    return _DUMP.match(name.rpartition("/")[2]) is not None


def dump_rank(name: str) -> int | None:
    """The rank in the name of a flight recorder dump, which may have any name with the rank at its end."""
    base = name.rpartition("/")[2]
    rank = _rank(base)
    last = _LAST.search(base) if rank is None and not _RANK.search(base) else None
    return rank if last is None or int(last.group("rank")) > MAX_RANK else int(last.group("rank"))


def folder_hosts(names: Iterable[str]) -> dict[str, str]:
    """First folder of a path → host, where it looks like one: a name with a digit that no other use explains."""
    firsts = {name.partition("/")[0] for name in names if "/" in name}
    return {
        first: first
        for first in firsts
        if host_name(first) and first[0].isalpha() and any(map(str.isdigit, first)) and not _NO_HOST.match(first)
    }


def _rank(base: str) -> int | None:
    dump = _DUMP.match(base)
    if dump is not None:
        found = {int(dump.group("rank"))}
    else:
        named = [one for one in _RANK.finditer(base) if not _NO_RANK.search(base[: one.start()])]
        if any(_is_range(base, one) for one in named):
            return None
        found = {int(match.group("rank")) for match in named}
    return found.pop() if len(found) == 1 and max(found) <= MAX_RANK else None


def _is_range(base: str, match: Match[str]) -> bool:
    """``rank0-7.log`` holds the lines of eight ranks."""
    last = _RANGE.match(base, match.end())
    return last is not None and int(last.group("last")) > int(match.group("rank"))
