"""Who is who: files and processes → global ranks, and the table of ranks. What contradicts itself becomes a gap."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Iterable, Mapping, Sequence

from nccl_slurm.model import Fact, Gap, Rank
from nccl_slurm.parse import names
from nccl_slurm.parse.finding import host_name
from nccl_slurm.parse.logfile import Log, Track
from nccl_slurm.parse.nccl import Member

__all__ = ["RANKS_LIMIT", "Owners", "Table", "Workers", "short_host"]

RANKS_LIMIT = 65_536
_FILES_SHOWN = 64


@lru_cache(maxsize=4096)  # asked for each fact
def short_host(host: str | None, source_host: str | None = None) -> str | None:
    """``n1.example.org`` → ``n1``, as NCCL and Slurm print it; a host that is the source's own keeps that spelling."""
    if host is None or host_name(host) is None:
        return None
    short = host.partition(".")[0]
    return source_host if source_host is not None and source_host.partition(".")[0] == short else short


class Owners:
    """Finds the rank and host of each file. ``files``: all file names read, dumps too."""

    def __init__(
        self, files: Iterable[str], members: Mapping[tuple[str, int], Member], failures: Iterable[Fact]
    ) -> None:
        self.gaps: list[Gap] = []
        self.rank: dict[str, int] = {}
        self.host: dict[str, str] = {}
        self._members = members
        self._folders = names.folder_hosts(files)
        self._twice = _twice(files)
        self._error_files = _error_files(failures)

    def add(self, logs: Iterable[Log]) -> None:
        siblings: dict[str, set[int]] = {}
        logs = list(logs)
        kernel = {log.source.name.partition("/")[0] for log in logs if log.of_a_machine}
        for log in logs:
            self._host(log, kernel)
            rank = self._rank(log)
            if rank is not None:
                self.rank[log.source.name] = rank
            if names.read(log.source.name).attempt is not None:
                siblings.setdefault(_folder(log.source.name), set()).update([rank] if rank is not None else [])
        self._beside(logs)
        for log in logs:
            found = siblings.get(_folder(log.source.name), set())
            if len(found) == 1 and not log.ranks:
                self.rank.setdefault(log.source.name, next(iter(found)))

    def _beside(self, logs: Sequence[Log]) -> None:
        """Workers of one agent have consecutive ranks: one that tells its own places those beside it in its attempt."""
        first: dict[str, set[int]] = {}
        for log in logs:
            local, rank = names.read(log.source.name).local_rank, self.rank.get(log.source.name)
            if local is not None and rank is not None:
                first.setdefault(_attempt_folder(log.source.name), set()).add(rank - local)
        for log in logs:
            local, found = names.read(log.source.name).local_rank, first.get(_attempt_folder(log.source.name), set())
            if local is not None and len(found) == 1 and min(found) >= 0 and not log.ranks:
                self.rank.setdefault(log.source.name, min(found) + local)

    def named(self, name: str) -> int | None:
        """The rank in a file's own name, unless that folder and another one have files of one name: their numbers may
        count anew on each node."""
        return self._once(name, names.read(name).rank)

    def dumped(self, name: str, world_size: int | None) -> int | None:
        """The rank of a flight recorder dump, by its name; a number that its job has no rank of is something else."""
        rank = names.dump_rank(name)
        if rank is not None and world_size is not None and rank >= world_size:
            self.gaps.append(Gap(name, f"no rank {rank} in a job of {world_size}; not used"))
            return None
        return self._once(name, rank)

    def _once(self, name: str, rank: int | None) -> int | None:
        if rank is not None and _series(name) in self._twice:
            self.gaps.append(
                Gap(name, f"rank {rank} by its name, but another folder has files of the same names; not used")
            )
            return None
        return rank

    def _rank(self, log: Log) -> int | None:
        name, content = names.read(log.source.name), log.ranks
        if name.rank is not None:
            rank = self.named(log.source.name)
            if rank is not None and content and content != [rank]:
                self.gaps.append(Gap(log.source.name, f"rank {rank} by its name, but its lines are of other ranks"))
                return None
            return rank
        if name.host is not None and name.pid is not None:
            member = self._members.get((name.host, name.pid))
            return None if member is None else member.rank
        if name.attempt is None or len(content) > 1:
            return None
        return content[0] if content else self._by_error_file(log.source.name)

    def _by_error_file(self, name: str) -> int | None:
        """By run folder, attempt and local rank; a path that starts below the run folder has the last two alone."""
        parts = _folder(name).split("/")
        ranks = self._error_files.get("/".join(parts[-3:]), set())
        return next(iter(ranks)) if len(ranks) == 1 else None

    def _host(self, log: Log, kernel: set[str]) -> None:
        """A folder named like a host is one where there are several, or it holds a kernel log or NCCL names it."""
        name = log.source.name
        hosts = {host for host, _ in log.processes}
        first = name.partition("/")[0]
        folder = self._folders.get(first) if len(self._folders) > 1 or first in kernel or first in hosts else None
        host = log.source.host or names.read(name).host or folder or (hosts.pop() if len(hosts) == 1 else None)
        if host is not None:
            self.host[name] = host


class Workers:
    """Ray's list of the processes that it started: (address, process) → global rank. Where two processes have one rank
    (a restart, or several trainers in one log) their lines have none."""

    def __init__(self) -> None:
        self._ranks: dict[tuple[str, int], int] = {}
        self._processes: dict[int, set[tuple[str, int]]] = {}

    def add(self, data: Mapping[str, Any], rank: int | None) -> None:
        ip, pid = data.get("worker_ip"), data.get("worker_pid")
        if isinstance(ip, str) and isinstance(pid, int) and rank is not None and len(self._ranks) < RANKS_LIMIT:
            self._ranks[ip, pid] = rank
            self._processes.setdefault(rank, set()).add((ip, pid))

    def rank(self, data: Mapping[str, Any]) -> int | None:
        """Of who wrote a line, by its label ``(RayTrainWorker pid=4002, ip=10.0.0.1)``."""
        rank = self._ranks.get((data.get("ip", ""), data.get("writer_pid", -1)))
        return rank if rank is not None and len(self._processes[rank]) == 1 else None


class Table:
    """The ranks. Two hosts for one rank (a restart elsewhere, or a forgery) leave its host unknown, with a gap."""

    def __init__(self) -> None:
        self.gaps: list[Gap] = []
        self._rows: dict[int, dict[str, Any]] = {}
        self._tracks: dict[int, Track] = {}
        self._conflicts: set[tuple[int, str]] = set()
        self._full = False

    def set(self, rank: int, key: str, value: Any) -> None:
        row = self._row(rank)
        if row is None or value is None or (rank, key) in self._conflicts:
            return
        if row.setdefault(key, value) != value:
            self._conflicts.add((rank, key))
            self.gaps.append(Gap(f"rank {rank}", f"{key}: both {row[key]} and {value}; not used"))
            del row[key]

    def latest(self, rank: int, key: str, value: Any) -> None:
        """For what changes with each restart: the value read last stays."""
        row = self._row(rank)
        if row is not None and value is not None:
            row[key] = value

    def see(self, rank: int, file: str, track: Track | None) -> None:
        row = self._row(rank)
        if row is None:
            return
        files = row.setdefault("files", [])
        if file not in files and len(files) < _FILES_SHOWN:
            files.append(file)
        if track is not None:
            self._tracks.setdefault(rank, Track()).merge(track)

    def progress(self, rank: int, groups: Mapping[str, Mapping[str, int]]) -> None:
        row = self._row(rank)
        if row is None:
            return
        own = row.setdefault("progress", {})
        for group, counters in groups.items():
            one = own.setdefault(group[:80], {})
            for key, value in counters.items():
                one[key] = max(one.get(key, -1), value)

    def host(self, rank: int | None) -> str | None:
        return None if rank is None else self._rows.get(rank, {}).get("host")

    def ranks(self) -> list[Rank]:
        return [self._rank(rank, row) for rank, row in sorted(self._rows.items())]

    def _row(self, rank: int) -> dict[str, Any] | None:
        if rank in self._rows or len(self._rows) < RANKS_LIMIT:
            return self._rows.setdefault(rank, {})
        if not self._full:
            self._full = True
            self.gaps.append(Gap("ranks", f"more than {RANKS_LIMIT} ranks are named; the rest is not listed"))
        return None

    def _rank(self, rank: int, row: Mapping[str, Any]) -> Rank:
        track = self._tracks.get(rank, Track())
        return Rank(
            rank=rank,
            host=row.get("host"),
            local_rank=row.get("local_rank"),
            gpu=row.get("gpu"),
            pid=row.get("pid"),
            exit=row.get("exit"),
            first=track.first,
            last=track.last,
            uncertainty_s=track.uncertainty_s,
            last_line=track.last_line,
            progress=row.get("progress", {}),
            files=tuple(row.get("files", ())),
        )


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _attempt_folder(name: str) -> str:
    return _folder(_folder(name))


def _twice(files: Iterable[str]) -> set[tuple[str, str]]:
    """Series of files that have a name in common with another folder: with ``n1/rank_0.log`` and ``n2/rank_0.log``
    nobody knows whether ``n2/rank_3.log`` is of rank 3."""
    folders: dict[str, set[str]] = {}
    for name in files:
        folder, _, base = name.rpartition("/")
        if names.dump_rank(base) is not None:
            folders.setdefault(base, set()).add(folder)
    shared = ((base, folder) for base, found in folders.items() if len(found) > 1 for folder in found)
    return {_series(f"{folder}/{base}") for base, folder in shared}


def _series(name: str) -> tuple[str, str]:
    """A file's folder, and its own name without the numbers."""
    folder, _, base = name.rpartition("/")
    return folder, re.sub(r"\d+", "", base)


def _error_files(failures: Iterable[Fact]) -> dict[str, set[int]]:
    """``RUN/attempt_0/1`` and ``attempt_0/1`` → ranks, from failure tables.

    One agent prints one table and has one run folder; so the error file of one worker places all workers of its table.
    """
    tables: dict[tuple[str | None, Any], list[Fact]] = {}
    for fact in failures:
        tables.setdefault((fact.file, fact.data.get("host")), []).append(fact)
    found: dict[str, set[int]] = {}
    for table in tables.values():
        paths = [str(fact.data.get("error_file", "")).split("/") for fact in table]
        runs = {tuple(path[-4:-2]) for path in paths if len(path) >= 4}
        for fact in table if len(runs) == 1 else ():
            run, attempt = next(iter(runs))
            for key in (f"{run}/{attempt}/{fact.data.get('local_rank')}", f"{attempt}/{fact.data.get('local_rank')}"):
                found.setdefault(key, set()).update([fact.rank] if fact.rank is not None else [])
    return found
