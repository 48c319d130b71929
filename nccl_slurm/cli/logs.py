"""``--logs PATH``: from a folder of logs to a report, with neither Slurm nor store."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, cast

import click

from nccl_slurm import config
from nccl_slurm.attribute.blame import attribute
from nccl_slurm.attribute.placement import placed
from nccl_slurm.cli.rules import pattern_texts
from nccl_slurm.errors import ConfigError, InputError
from nccl_slurm.info.runs import runs
from nccl_slurm.model import Evidence, Gap, numbered
from nccl_slurm.parse.folder import Source, read_sources, walk
from nccl_slurm.parse.patterns import Rows, compile_rows, load_rows, rows_of
from nccl_slurm.parse.search import fastest
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.report.build import build

__all__ = ["report_of_logs"]

LOGS_ALONE = Gap("nodes", "only logs were read: no state of a node, no GPU query, no word of Slurm")
#: Below this a terminal shows no progress bar: reading takes a second or two.
PROGRESS_BYTES = 100 * 1024 * 1024


def report_of_logs(path: str, config_path: str | None = None) -> dict[str, Any]:
    """By the site's rows too, where this host has some. Raises InputError where there is nothing to read."""
    sources, skipped = _sources(path)
    rows, unread = _rows(config_path)
    parsed = _with_progress(sources, lambda read: read_sources(read, rows, now=time.time(), program=fastest()))
    if not (parsed.bytes_read or parsed.facts or parsed.ranks):
        raise InputError(_nothing_read(path, [*skipped, *parsed.gaps]))
    mixed = runs([source.name for source in sources], parsed.facts)
    evidence = Evidence(
        facts=numbered(parsed.facts),
        ranks=parsed.ranks,
        gaps=[LOGS_ALONE, *_several(mixed), *unread, *skipped, *parsed.gaps],
        world_size=parsed.world_size,
        mixed=mixed,
    )
    evidence = placed(evidence)
    verdict = attribute(evidence)
    return build(evidence, verdict, recommend(verdict, evidence), "final")


def _rows(config_path: str | None) -> tuple[Rows, list[Gap]]:
    """Without an own file of settings a broken row of the site costs nobody a verdict: a gap tells of it.

    Raises ConfigError where ``config_path`` names the file.
    """
    try:
        loaded = config.load(config_path)
        packaged, site = pattern_texts(loaded)
        return rows_of(compile_rows(packaged, site)) if site else load_rows(), []
    except ConfigError as error:
        if config_path:
            raise
        return load_rows(), [Gap("rules", f"the site's rows were not used: {error}")]


def _several(mixed: Sequence[str]) -> list[Gap]:
    if not mixed:
        return []
    which = f"{', '.join(mixed[:8])}{f' and {len(mixed) - 8} more' if len(mixed) > 8 else ''}"
    why = f"logs of several: {which}; their ranks can't be told apart, so nobody is proven; give the folder of one"
    return [Gap("runs", why)]


def _sources(path: str) -> tuple[list[Source], list[Any]]:
    try:
        os.lstat(path)
    except PermissionError:
        raise InputError(
            f"{path}: a folder above it is closed to you; ask its owner, or run this as its owner"
        ) from None
    except (OSError, ValueError):
        raise InputError(
            f"{path or repr(path)}: no such file or folder; give --logs a folder or file of logs"
        ) from None
    if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0)):
        raise InputError(f"{path}: not readable for you; ask its owner, or run this as its owner")
    sources, skipped = walk(path)
    if not any(source.size for source in sources):
        raise InputError(_nothing_read(path, skipped))
    return sources, skipped


def _nothing_read(path: str, gaps: Sequence[Gap]) -> str:
    why = f" ({gaps[0].source}: {gaps[0].why})" if gaps else ""
    return f"{path}: holds no log to read, every file is empty or skipped{why}; give the folder with the ranks' logs"


def _with_progress(sources: list[Source], read: Callable[[Iterable[Source]], Any]) -> Any:
    total = sum(source.size for source in sources)
    if total < PROGRESS_BYTES or not sys.stderr.isatty():
        return read(sources)
    with click.progressbar(length=total, label="reading", file=sys.stderr) as bar:
        return read(_counted(sources, bar.update))


def _counted(sources: Iterable[Source], update: Callable[[int], None]) -> Iterator[Source]:
    for source in sources:
        yield source._replace(open=partial(_open_counted, source, update))


def _open_counted(source: Source, update: Callable[[int], None]) -> BinaryIO:
    return cast(BinaryIO, _Counted(source.open(), source.size, update))


class _Counted:
    """A file that tells that it was read: a program may do that, so only its end is known."""

    def __init__(self, file: BinaryIO, size: int, update: Callable[[int], None]) -> None:
        self._file = file
        self._size = size
        self._update = update

    def close(self) -> None:
        self._update(self._size)
        self._size = 0
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
