"""Reads what a job's user wrote, as that user, and answers with one JSON object.

The process starts as root, loads all code and pattern rows, gives root away, and only then looks at the first path.
It serves the worker (a forked child, a run's ``user/`` folder) and the daemon (the verb ``read-user``, output files of
the job, named absolutely).
"""

from __future__ import annotations

import glob
import json
import os
from dataclasses import dataclass
from itertools import islice
from typing import Any, Iterator, Sequence

from nccl_slurm.capture import patterns, rights
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.facts import clean_facts, clean_gaps, clean_ranks
from nccl_slurm.capture.record import fit
from nccl_slurm.capture.userfiles import Found, find
from nccl_slurm.errors import ConfigError
from nccl_slurm.model import Gap, Parsed
from nccl_slurm.parse.folder import Source, read_sources
from nccl_slurm.parse.patterns import Rows

__all__ = ["MEMORY_BYTES", "Request", "answer", "answers", "nothing_read", "read"]

#: The largest dump that is read takes 300 MB at its worst. Four readers and the daemon fit in its unit's MemoryMax.
MEMORY_BYTES = 448 << 20
#: What is handed back at most; the record has room for little more.
OUTPUT_BYTES = 3 << 20
_MAX_FILES = 5000


@dataclass(frozen=True)
class Request:
    uid: int
    gid: int
    user: str | None
    host: str | None
    paths: Sequence[str]


def answer(conf: Conf, request: Request) -> str:
    """One JSON object. Raises InputError (rights)."""
    return next(answers(conf, request, [request.paths]))


def answers(
    conf: Conf, request: Request, groups: Sequence[Sequence[str]], *, only_files: bool = False
) -> Iterator[str]:
    """One JSON object for each group of paths, as soon as it is read, all with the rights of ``request``. Raises
    InputError (rights). ``only_files``: which there are, of what size and time; none is opened for reading."""
    try:
        rows = patterns.rows(conf) if not only_files else None
    except ConfigError as error:
        yield from [_text(nothing_read(str(error)))] * len(groups)
        return
    rights.limit_resources(int(conf.worker_limit_s), MEMORY_BYTES)
    rights.become(request.uid, request.gid, request.user)
    for paths in groups:
        yield _text(_listed(request, paths) if rows is None else read(rows, request, paths))


def _text(found: dict[str, Any]) -> str:
    return json.dumps(found, separators=(",", ":"), allow_nan=False)


def read(
    rows: Rows, request: Request, paths: Sequence[str], more: Sequence[Source] = (), known: Sequence[Gap] = ()
) -> dict[str, Any]:
    """What is wrong with the files is in ``gaps``, after those that are ``known``. ``more``: read with the files."""
    gaps: list[Gap] = list(known)
    found: list[Found] = []
    for path in _expanded(paths):
        found += find(path, request.uid, gaps)
    sources = [Source(one.name, one.open, one.size, one.mtime, request.host, "job") for one in found]
    return _answer(_read_sources([*sources, *more], rows), gaps, found, rows.hash)


def _listed(request: Request, paths: Sequence[str]) -> dict[str, Any]:
    gaps: list[Gap] = []
    found = [one for path in _expanded(paths) for one in find(path, request.uid, gaps)]
    return _answer(Parsed(), gaps, found, "")


def _expanded(paths: Sequence[str]) -> list[str]:
    """``*`` stands for what differs by rank (srun's %t in a batch script); looked up with the user's rights."""
    expanded: dict[str, None] = {}
    for path in paths:
        matches = sorted(islice(glob.iglob(path), _MAX_FILES)) if "*" in path and not os.path.lexists(path) else [path]
        expanded.update(dict.fromkeys(matches))
    return list(expanded)


def _read_sources(sources: list[Source], rows: Rows) -> Parsed:
    try:
        return read_sources(sources, rows)
    except (Exception, MemoryError) as error:  # a fault of ours must cost the facts of files, not the record
        return Parsed(gaps=(Gap("user files", f"reading failed: {type(error).__name__}: {error}"),))


def _answer(parsed: Parsed, gaps: list[Gap], found: list[Found], patterns: str) -> dict[str, Any]:
    seen = [{"source": one.source, "why": one.why} for one in (*gaps, *parsed.gaps)]
    found_there = {
        "facts": clean_facts([fact.to_json() for fact in parsed.facts], "job", seen),
        "ranks": clean_ranks([rank.to_json() for rank in parsed.ranks]),
        "files": [_file(one, parsed) for one in found[:_MAX_FILES]],
        "world_size": parsed.world_size,
        "bytes_read": parsed.bytes_read,
        "lines_unknown": parsed.lines_unknown,
        "patterns": patterns,
        "gaps": clean_gaps(seen),
    }
    return fit(found_there, OUTPUT_BYTES)


def _file(found: Found, parsed: Parsed) -> dict[str, Any]:
    unread = {gap.source for gap in parsed.gaps}
    return {"path": found.name[:4096], "size": found.size, "mtime": found.mtime, "read": found.name not in unread}


def nothing_read(why: str) -> dict[str, Any]:
    """The answer where nothing could be read at all."""
    gaps = [{"source": "user files", "why": why[:1000]}]
    nothing: dict[str, Any] = {
        "facts": [],
        "ranks": [],
        "files": [],
        "world_size": None,
        "bytes_read": 0,
        "lines_unknown": 0,
    }
    return dict(nothing, patterns=None, gaps=gaps)
