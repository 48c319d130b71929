"""A set of files → `Parsed`: facts with their ranks, the table of ranks, and what could not be read."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, BinaryIO, Callable, Hashable, Iterable, Iterator, NamedTuple, cast

from nccl_slurm.model import Fact, Gap, Parsed
from nccl_slurm.parse import content, dumps, elastic, flight_recorder, names, ras, steps, task, torch
from nccl_slurm.parse.finding import find
from nccl_slurm.parse.logfile import Lines, Log, Seen, read_log
from nccl_slurm.parse.nccl import Communicators, Member
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.prefix import MAX_RANK
from nccl_slurm.parse.ranks import RANKS_LIMIT, Owners, Table, Workers, short_host
from nccl_slurm.parse.redact import redacted_fact, redacted_rank
from nccl_slurm.parse.repeat import Kept
from nccl_slurm.parse.scan import Scan
from nccl_slurm.parse.search import Program, Search, grep
from nccl_slurm.parse.settle import settle
from nccl_slurm.parse.shapes import Shapes
from nccl_slurm.parse.sift import WHOLE, Sift, is_special, shapes_of
from nccl_slurm.parse.source import Source, is_regular, walk

__all__ = ["Source", "read_sources", "walk"]

_FIRST = 4096
#: Files that are open at a time and are searched by one process: starting one costs as much as searching megabytes.
_TOGETHER = 64
_JSON_LIMIT = 1 << 20
#: A file that was emptied while its writer kept its place starts with a hole.
_HOLE = b"\x00" * 16
_FAILURES_LIMIT = 100_000
_FOLDED_FILES = 1000
#: Lines of these are not of the rank whose file they stand in.
_NOT_OF_A_RANK = ("slurm", "kernel", "elastic")
#: What these print as context is of the start: versions, settings, paths.
_AROUND = ("nccl", "ofi", "framework")


def read_sources(
    sources: Iterable[Source], rows: Rows, *, now: float | None = None, program: Program | None = None
) -> Parsed:
    """Reads each source once. ``now`` dates stamps without a year where a file has no time. Never raises.

    ``program`` searches large files; None is GNU grep where it is, else Python. The answer is the same by any.
    """
    when, search = time.time() if now is None else now, program or grep()
    groups = steps.by_step(list(sources))
    if len(groups) == 1:
        return _read(next(iter(groups.values())), rows, when, search)
    return steps.joined({step: _read(group, rows, when, search) for step, group in groups.items()})


def _read(sources: Iterable[Source], rows: Rows, now: float, program: Program | None) -> Parsed:
    """One step's."""
    reading = _Reading(rows, now, program)
    left = iter(sources)
    while True:
        together = list(islice(left, _TOGETHER))
        if not together:
            return reading.parsed()
        reading.read(together)


_Read = Callable[[Source, BinaryIO, bytes], None]


class _Opened(NamedTuple):
    source: Source
    file: BinaryIO
    first: bytes
    read: _Read
    searched: bool  # a large plain log: a program looks where its lines of interest are


class _Reading:
    def __init__(self, rows: Rows, now: float, program: Program | None) -> None:
        self.gaps: list[Gap] = []
        self._rows, self._now, self._program = rows, now, program
        self._shapes: Shapes | None = None  # of most runs no file is large
        self._kept: Kept[Seen] = Kept()
        self._logs: list[Log] = []
        self._files: list[str] = []
        self._dumps: list[dumps.Dumped] = []
        self._communicators = Communicators()
        self._workers = Workers()
        self._failures: list[Fact] = []
        self._forced: set[tuple[str | None, Any]] = set()
        self._progress: dict[Hashable, dict[str, tuple[int, dict[str, int]]]] = {}
        self._worlds: dict[int, str] = {}
        self._places: dict[tuple[int, str], None] = {}
        self._folded: dict[str, int] = {}
        self._bytes = 0

    # ---- reading

    def read(self, sources: Iterable[Source]) -> None:
        """In their order, all open at a time."""
        opened: list[_Opened] = []
        try:
            for source in sources:
                self._files.append(source.name)
                with self._gap(source):
                    opened.append(self._open(source))
            self._read_all(opened)
        finally:
            for one in opened:
                one.file.close()

    def _read_all(self, opened: list[_Opened]) -> None:
        large = [one for one in opened if one.searched]
        files, sizes = [one.file for one in large], [one.source.size for one in large]
        with closing(Search(files, sizes, self._rows.literals, self._program)) as search:
            index = -1
            for one in opened:
                index += one.searched
                with self._gap(one.source):
                    self._read(one, search, index)
                one.file.close()
            if search.problem is not None:
                self.gaps.append(Gap("search", f"{search.problem}; large files were searched without it"))

    @contextmanager
    def _gap(self, source: Source) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # nothing in a job's file may end a report
            self.gaps.append(Gap(source.name, f"can't be read: {error or type(error).__name__}"[:300]))

    def _open(self, source: Source) -> _Opened:
        file = source.open()
        try:
            first = file.read(min(_FIRST, max(source.size, 0)))
            read = self._reader(source, first)
            return _Opened(source, file, first, read, read == self._log and _is_searched(source, file, first))
        except BaseException:
            file.close()
            raise

    def _reader(self, source: Source, first: bytes) -> _Read:
        start = content.head(first)
        if self._is_dump(source, first, start):
            return self._dump
        if ras.looks_like(start) and source.size <= ras.SIZE_LIMIT:
            return self._ras
        if content.binary(start) is not None:
            return self._binary
        if names.read(source.name).procid is not None and source.size <= task.SIZE_LIMIT:
            return self._task
        if source.name.endswith("error.json") and source.size <= _JSON_LIMIT:
            return self._error_file
        return self._log

    def _is_dump(self, source: Source, first: bytes, start: bytes) -> bool:
        """``start``: as ``first``, unpacked; of some packed files it is empty and the name must do."""
        if flight_recorder.looks_like(source.name, start):
            return True
        return names.is_dump(source.name) and (not source.size or (content.packed(first) and not start))

    def _read(self, one: _Opened, search: Search, index: int) -> None:
        if one.searched:
            read, shapes = search.reader(index), self._shapes or shapes_of(self._rows)
            self._shapes = shapes
            lines = Sift(read, one.source.size, search.of(index), self._rows, shapes, search.pass_by)
            self._lines(one.source, one.first, lines)
        else:
            one.read(one.source, one.file, one.first)

    def _binary(self, source: Source, file: BinaryIO, first: bytes) -> None:
        self.gaps.append(Gap(source.name, f"{content.binary(content.head(first))}, no log; not read"))

    def _log(self, source: Source, file: BinaryIO, first: bytes) -> None:
        """Whole."""
        text = content.recoded(file, first, source.size)
        ranks = not is_special(content.head(first))
        if text is None:
            lines = Scan(file, self._rows, first=first, size=source.size, log=ranks)
        else:
            lines = Scan(cast(BinaryIO, text), self._rows, log=ranks)
        self._lines(source, first, lines)

    def _lines(self, source: Source, first: bytes, lines: Lines) -> None:
        if len(first) >= len(_HOLE) and first.startswith(_HOLE):
            self.gaps.append(
                Gap(source.name, "starts with zero bytes: what stood there was cut off while it was written")
            )
        past = 0 < source.mtime < self._now
        log = read_log(source, lines, self._rows, source.mtime if past else self._now, self._sink)
        self._logs.append(log)
        self._bytes += log.bytes
        for kind, count in log.thinned.items():
            self._kept.leave_out(kind, count)
        if log.problem is not None:
            self.gaps.append(Gap(source.name, log.problem))

    def _dump(self, source: Source, file: BinaryIO, first: bytes) -> None:
        raw = first + file.read(max(0, min(source.size, flight_recorder.SIZE_LIMIT) - len(first)))
        self._bytes += len(raw)
        if source.size > flight_recorder.SIZE_LIMIT:
            raise ValueError(f"larger than {flight_recorder.SIZE_LIMIT >> 20} MiB")
        if content.packed(raw):
            raw = content.unpacked(raw, flight_recorder.SIZE_LIMIT)
        if not raw:
            raise ValueError("empty flight recorder dump")
        dump = flight_recorder.read(raw)
        self._dumps.append(dumps.Dumped(source, dump))
        if not dump.groups:
            self.gaps.append(Gap(source.name, "a flight recorder dump without a single entry"))

    def _ras(self, source: Source, file: BinaryIO, first: bytes) -> None:
        raw = first + file.read(max(0, source.size - len(first)))
        self._bytes += len(raw)
        if content.packed(raw):
            raw = content.unpacked(raw, ras.SIZE_LIMIT)
        for fact in ras.facts(raw, source.name, source.trust, self._now):
            self._sink(Seen(fact, None, tuple(fact.data.get(key) for key in ("comm_hash", "op", "group_rank"))))

    def _task(self, source: Source, file: BinaryIO, first: bytes) -> None:
        self._bytes += len(first)
        fact = task.fact(source, first)
        self._sink(Seen(fact, None, (source.name,)))

    def _error_file(self, source: Source, file: BinaryIO, first: bytes) -> None:
        raw = first + file.read(max(0, source.size - len(first)))
        self._bytes += len(raw)
        error = elastic.error_file(raw)
        if error is None:
            self.gaps.append(Gap(source.name, "no error.json of torchelastic"))
            return
        known = find(error.message.partition("\n")[0], self._rows)
        data = {**error.data, **({} if known is None else {**known.data, "kind": known.kind})}
        if error.time is not None:
            data["clock"] = "utc"
        fact = Fact(
            kind="elastic.error-file",
            text=error.message,
            producer="elastic",
            role="cause" if known is None else known.role,
            trust=source.trust,
            hint="rank-exception" if known is None else known.hint,
            file=source.name,
            line=1,
            offset=0,
            time=error.time,
            uncertainty_s=None if error.time is None else 1.0,
            data=data,
        )
        self._sink(Seen(fact, None, ()))
        self._logs.append(Log(source))

    def _sink(self, seen: Seen) -> None:
        fact, attempt = seen.fact, names.read(seen.fact.file or "").attempt
        self._fold(fact)
        if attempt is not None:
            local = names.read(fact.file or "").local_rank
            fact = replace(fact, data={"local_rank": local, **fact.data, "attempt": attempt})
            seen = seen._replace(fact=fact)
        elif isinstance(fact.data.get("attempt"), int):
            attempt = fact.data["attempt"]  # by its label
        self._note(fact, seen.pid)
        owner = _owner(fact, seen.pid)
        progress = torch.progress(fact.data) if fact.producer == "torch" else None
        if progress is not None:
            self._advance(owner, attempt or 0, *progress)
        around = fact.role == "context" and fact.producer in _AROUND
        self._kept.add(fact.kind, owner, seen.distinct, seen, labelled=owner != fact.file, around=around)

    def _fold(self, fact: Fact) -> None:
        times = fact.data.get("repeated")
        if isinstance(times, int) and (fact.file in self._folded or len(self._folded) < _FOLDED_FILES):
            self._folded[fact.file or ""] = self._folded.get(fact.file or "", 0) + times

    def _note(self, fact: Fact, pid: int | None) -> None:
        labelled = fact.rank is not None and fact.producer in ("nccl", "ofi")
        if labelled and fact.host is not None and len(self._places) < RANKS_LIMIT:
            self._places[fact.rank or 0, fact.host] = None
        if fact.kind in ("nccl.init-start", "nccl.init-complete"):
            self._communicators.add(fact.host, pid, dict(fact.data))
        elif fact.kind == "framework.ray-worker":
            self._workers.add(fact.data, fact.rank)
        elif fact.kind == "framework.world-size":
            size = fact.data.get("world_size")
            if isinstance(size, int) and 0 < size <= MAX_RANK and len(self._worlds) < 100:
                self._worlds.setdefault(size, fact.file or "")
        elif fact.kind == "elastic.failure" and len(self._failures) < _FAILURES_LIMIT:
            self._failures.append(fact)
        elif fact.kind == "elastic.forced-kill" and len(self._forced) < _FAILURES_LIMIT:
            self._forced.add((fact.file, fact.data.get("pid")))

    def _advance(self, owner: Hashable, attempt: int, group: str, counters: dict[str, int]) -> None:
        """Counters of the earliest attempt: later ones start from a checkpoint and count anew."""
        groups = self._progress.setdefault(owner, {})
        if group not in groups and len(groups) >= 256:
            return
        before, own = groups.get(group, (attempt, {}))
        if attempt > before:
            return
        if attempt < before:
            own = {}
        groups[group] = attempt, {key: max(own.get(key, -1), counters.get(key, -1)) for key in {*own, *counters}}

    # ---- joining

    def parsed(self) -> Parsed:
        for file, times in self._folded.items():
            self.gaps.append(Gap(file, f"Ray left out {times} like lines of other processes and does not say of which"))
        self._dumps, strange = dumps.of_one_world(self._dumps, self._worlds)
        self.gaps += strange
        for source, dump in self._dumps:
            if dump.world_size is not None:
                self._worlds.setdefault(dump.world_size, source.name)
        world = self._world()
        members, why = self._communicators.ranks(world or self._least_world())
        if why is not None:
            self.gaps.append(Gap("ranks", why))
            members = {}
        owners = Owners(self._files, members, self._failures)
        owners.add(self._logs)
        table = Table()
        self._fill(table, owners, members)
        dump_facts = self._dump_facts(table, owners)
        facts = [self._resolve(seen, table, owners, members) for seen in self._kept.items()]
        facts = ras.joined(settle(facts, self._forced)) + dump_facts
        if world is None and members:
            world = self._communicators.size()
        return Parsed(
            facts=tuple(redacted_fact(fact) for fact in facts),
            ranks=tuple(redacted_rank(rank) for rank in table.ranks()),
            gaps=tuple(self.gaps + owners.gaps + table.gaps + self._kept.gaps()),
            world_size=world,
            bytes_read=self._bytes,
            lines_unknown=sum(log.unknown for log in self._logs),
        )

    def _world(self) -> int | None:
        if len(self._worlds) > 1:
            sizes = ", ".join(str(size) for size in sorted(self._worlds))
            self.gaps.append(Gap("world size", f"the sources disagree: {sizes}; not used"))
            return None
        return next(iter(self._worlds), None)

    def _least_world(self) -> int | None:
        """One more than the largest rank that a label or a failure table names: a smaller communicator is not all."""
        labelled = (rank for log in self._logs for rank in log.ranks)
        failed = (fact.rank for fact in self._failures if fact.rank is not None)
        return max((*labelled, *failed), default=-1) + 1 or None

    def _fill(self, table: Table, owners: Owners, members: dict[tuple[str, int], Member]) -> None:
        for (host, pid), member in members.items():
            table.set(member.rank, "host", short_host(host))
            table.set(member.rank, "gpu", member.gpu)
            table.latest(member.rank, "pid", pid)
        for rank, host in self._places:
            table.set(rank, "host", short_host(host))
        for fact in self._failures:
            self._fill_failure(table, fact, owners)
        for log in self._logs:
            self._fill_log(table, log, owners)
        for owner, groups in self._progress.items():
            own = owner if isinstance(owner, int) else owners.rank.get(str(owner))
            if own is not None:
                table.progress(own, {group: counters for group, (_, counters) in groups.items()})

    def _fill_log(self, table: Table, log: Log, owners: Owners) -> None:
        name = log.source.name
        own = owners.rank.get(name)
        if own is not None:
            table.see(own, name, None)
        for label, track in log.tracks.items():
            rank = own if label is None else label
            if rank is not None:
                table.see(rank, name, track)
        for rank, local in log.local_ranks.items():
            table.set(rank, "local_rank", local)
        if own is not None:
            table.set(own, "host", short_host(owners.host.get(name), log.source.host))
            table.set(own, "local_rank", names.read(name).local_rank)

    def _fill_failure(self, table: Table, fact: Fact, owners: Owners) -> None:
        if fact.rank is None:
            return
        table.set(fact.rank, "host", short_host(fact.host, owners.host.get(fact.file or "")))
        table.set(fact.rank, "local_rank", fact.data.get("local_rank"))
        table.latest(fact.rank, "pid", fact.data.get("pid"))
        table.latest(fact.rank, "exit", fact.data.get("exitcode"))

    def _resolve(self, seen: Seen, table: Table, owners: Owners, members: dict[tuple[str, int], Member]) -> Fact:
        fact = seen.fact
        file_host = owners.host.get(fact.file or "")
        rank = fact.rank
        if rank is None and fact.host is not None and seen.pid is not None:
            member = members.get((fact.host, seen.pid))
            rank = None if member is None else member.rank
        if rank is None and "ip" in fact.data:
            rank = self._workers.rank(fact.data)
        if rank is None and fact.kind.startswith("nccl.ras-"):
            return replace(fact, rank=_by_pid(fact.data.get("pid"), members), host=short_host(fact.host, file_host))
        if rank is None and (fact.producer not in _NOT_OF_A_RANK or fact.kind == "elastic.error-file"):
            rank = owners.rank.get(fact.file or "")
        host = short_host(fact.host, file_host) or file_host or table.host(rank)
        if (rank, host) == (fact.rank, fact.host):
            return fact
        vars(fact).update(rank=rank, host=host)  # most facts; nobody else has them, and a copy takes ten times as long
        return fact

    def _dump_facts(self, table: Table, owners: Owners) -> list[Fact]:
        facts: list[Fact] = []
        known: dict[int, dumps.Dumped] = {}
        for one in self._dumps:
            rank = owners.dumped(one.source.name, one.dump.world_size)
            if rank is not None:
                known[rank] = one
                continue
            self.gaps.append(Gap(one.source.name, "a flight recorder dump whose rank is not known"))
            facts += _dump_facts(one, None, one.source.host)
        kept, old = dumps.of_the_last_start(known, *self._starts(owners))
        self.gaps += old
        for rank, one in kept.items():
            table.see(rank, one.source.name, None)
            table.progress(rank, {group.name: group.counters for group in one.dump.groups})
            facts += _dump_facts(one, rank, one.source.host or table.host(rank))
        return facts

    def _starts(self, owners: Owners) -> tuple[dict[int, float], float | None]:
        """Rank → first stamp of its newest process, by NCCL's file of each process; and the first stamp in any log."""
        starts: dict[int, float] = {}
        oldest: list[float] = []
        for log in self._logs:
            first = min((track.first for track in log.tracks.values() if track.first is not None), default=None)
            if first is None or log.kernel:
                continue
            oldest.append(first)
            rank = owners.rank.get(log.source.name)
            if rank is not None and names.read(log.source.name).pid is not None:
                starts[rank] = max(first, starts.get(rank, first))
        return starts, min(oldest, default=None)


def _is_searched(source: Source, file: BinaryIO, first: bytes) -> bool:
    """What the literals can't see in is read whole: packed text and UTF-16. A container log's envelope hides none of
    them, for none has a character that JSON escapes."""
    return source.size > WHOLE and content.plain(first) and not is_special(first) and is_regular(file)


def _by_pid(pid: Any, members: dict[tuple[str, int], Member]) -> int | None:
    """RAS prints addresses in place of host names; a process id that only one rank has finds it all the same."""
    found = {member.rank for (_, own), member in members.items() if own == pid}
    return found.pop() if len(found) == 1 else None


def _owner(fact: Fact, pid: int | None) -> Hashable:
    if fact.rank is not None:
        return fact.rank
    return (fact.host, pid) if fact.host is not None and pid is not None else fact.file


def _dump_facts(one: dumps.Dumped, rank: int | None, host: str | None) -> list[Fact]:
    return [fact for group in one.dump.groups for fact in _group_facts(one.source, group, rank, host, one.dump.until)]


def _group_facts(
    source: Source, group: flight_recorder.Group, rank: int | None, host: str | None, until: float | None
) -> list[Fact]:
    base: dict[str, Any] = {"pg": group.name, "pg_name": group.description}
    if until is not None:
        base["until"] = until
    said = ", ".join(f"{key} {value}" for key, value in group.counters.items())
    status = Fact(
        kind="flight-recorder.status",
        text=f"flight recorder: group {group.name} {group.description}: {said}",
        producer="flight-recorder",
        role="context",
        trust=source.trust,
        file=source.name,
        rank=rank,
        host=host,
        data={**base, **group.counters, "recent": group.recent},
    )
    if group.waiting is None:
        return [status]
    text = f"flight recorder: group {group.name} {group.description}: {flight_recorder.told(group.waiting)}"
    waiting = replace(status, kind="flight-recorder.waiting", text=text, data={**base, **group.waiting})
    return [status, waiting]
