"""One log file → facts, and what its first and last lines say of each rank that writes to it."""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Union

from nccl_slurm.model import Fact
from nccl_slurm.parse import elastic, stamp
from nccl_slurm.parse.finding import Finding, find, host_name
from nccl_slurm.parse.kernel import TEXT_LIMIT, Pending
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.prefix import Prefix, strip
from nccl_slurm.parse.scan import Candidate, Piece, Scan, last_lines_of, lines_of
from nccl_slurm.parse.sift import Sift
from nccl_slurm.parse.source import Source
from nccl_slurm.parse.traceback import Tracebacks

__all__ = ["Log", "Seen", "Track", "read_log"]

_HEAD_LINES = 100
_LINE_SHOWN = 400
#: Of a large file: who has printed nothing in so many lines at its end does not write to it.
_FEW = 40


class Seen(NamedTuple):
    """A fact whose rank may still have to be found: by ``pid`` (NCCL prints host and pid) or by its file."""

    fact: Fact
    pid: int | None
    distinct: tuple[Any, ...]


class Track:
    """First and last time stamp and last line of one rank in one file."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last: float | None = None
        self.uncertainty_s: float | None = None
        self.last_line: str | None = None

    def see(self, seconds: float | None, uncertainty_s: float | None) -> None:
        if seconds is None:
            return
        self.first = seconds if self.first is None else min(self.first, seconds)
        self.last = seconds if self.last is None else max(self.last, seconds)
        self.uncertainty_s = max(self.uncertainty_s or 0.0, uncertainty_s or 0.0)

    def merge(self, other: Track) -> None:
        """The last line is the one of the later time; without times that of ``other``."""
        if other.last_line is not None and (self.last is None or other.last is None or other.last >= self.last):
            self.last_line = other.last_line
        for seconds in (other.first, other.last):
            self.see(seconds, other.uncertainty_s)


class Log:
    """What one file told. ``tracks``: by the rank that labels say, None for lines without such a label."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tracks: dict[int | None, Track] = {}
        self.processes: dict[tuple[str, int], None] = {}
        self.local_ranks: dict[int, int] = {}
        self.kernel = False
        self.bytes = 0
        self.unknown = 0
        self.thinned: dict[str, int] = {}  # kind → lines that are like many others and were not read
        self.problem: str | None = None

    @property
    def ranks(self) -> list[int]:
        return [rank for rank in self.tracks if rank is not None]


Lines = Union[Scan, Sift]


def read_log(source: Source, lines: Lines, rows: Rows, now: float, sink: Callable[[Seen], None]) -> Log:
    """Gives each fact in the candidates of ``lines`` to ``sink``. Never raises for content."""
    reader = _Reader(source, rows, now, sink)
    for candidate in lines:
        reader.line(candidate)
    reader.end(lines)
    return reader.log


class _Reader:
    def __init__(self, source: Source, rows: Rows, now: float, sink: Callable[[Seen], None]) -> None:
        self.log = Log(source)
        self._rows, self._now, self._sink = rows, now, sink
        self._table, self._tracebacks, self._pending = elastic.Table(), Tracebacks(), Pending()
        self._exceptions = [number for number, row in enumerate(rows.rows) if row.id.startswith("python.")]
        self._quoted: dict[str, int] = {}
        self._known = 0

    def line(self, candidate: Candidate) -> None:
        prefix = strip(candidate.text)
        shown = _shown(prefix, candidate.text)
        if self._tracebacks.covers(prefix.label, prefix.text):
            return
        ended = self._tracebacks.feed(prefix.label, prefix.text)
        finding = find(prefix.text, self._rows, candidate.rows) if candidate.rows else None
        if ended is not None:
            finding = self._exception(finding, *ended)
            if finding is not None and self._tracebacks.from_none:
                finding = finding._replace(data={**finding.data, "from_none": 1})
        if finding is None:
            return
        self._known += 1
        if finding.kind.startswith(elastic.ROW):
            block = self._table.feed(
                prefix.label, finding.kind, dict(finding.data), candidate.number, candidate.offset, shown
            )
            if block is not None:
                self._block(block)
                if str(block.data.get("traceback", "")).startswith("Traceback"):
                    self._quoted[prefix.label] = block.data["rank"]
            return
        if finding.rank is None and prefix.text.startswith("  ") and prefix.label in self._quoted:
            finding = finding._replace(rank=self._quoted.pop(prefix.label))  # quoted in the failure table
        joined = self._pending.join(finding)
        if joined is not None and joined.kind != "python.traceback":
            self._emit(joined, prefix, candidate)

    def end(self, scan: Lines) -> None:
        for block in self._table.rest():
            self._block(block)
        self.log.bytes, self.log.problem = scan.bytes, scan.problem
        self.log.thinned = {self._rows.rows[row].id: count for row, count in scan.thinned.items()}
        self.log.unknown = max(0, scan.lines - self._known - sum(scan.thinned.values()))
        few = isinstance(scan, Sift)
        self._first_lines(scan.head, few)
        self._last_lines(scan.tail, few)

    def _first_lines(self, head: Piece, few: bool) -> None:
        """``few``: of each rank until its first time."""
        for text in lines_of(head, _FEW if few else _HEAD_LINES):
            prefix = strip(text)
            track = self._track(prefix)
            if track is not None and not (few and track.first is not None):
                self._see(track, prefix, text)

    def _last_lines(self, tail: Piece, few: bool) -> None:
        """Backwards. ``few``: of each rank until its last time, and only as far as there is more than one rank."""
        timed: dict[int | None, bool] = {}
        known = 0
        for text in last_lines_of(tail):
            prefix = strip(text)
            track = self._track(prefix)
            if track is None:
                continue
            if prefix.rank not in timed:
                track.last_line = _shown(prefix, text)[:_LINE_SHOWN]
                known = 0
            if not (few and timed.get(prefix.rank)):
                timed[prefix.rank] = self._see(track, prefix, text) or timed.get(prefix.rank, False)
            known += 1
            if few and known > _FEW and len(timed) <= 1 + (None in timed):
                return

    def _exception(self, finding: Finding | None, name: str, message: str) -> Finding | None:
        """The last line of a traceback is a fact even if no row knows its text."""
        if finding is not None:
            return finding._replace(data={"exception": name, **finding.data})
        known = find(f"{name}: {message}", self._rows, self._exceptions)
        if known is not None:
            return known
        data = {"type": name, "message": message[:400]}
        return Finding("python.exception", "python", "cause", "rank-exception", data)

    def _track(self, prefix: Prefix) -> Track | None:
        """None for a line without text."""
        return self.log.tracks.setdefault(prefix.rank, Track()) if prefix.text.strip() else None

    def _see(self, track: Track, prefix: Prefix, text: str) -> bool:
        """Whether the line has a time."""
        at = self._time(prefix, text)
        if at is None:
            return False
        track.see(at.seconds, at.uncertainty_s)
        return True

    def _time(self, prefix: Prefix, text: str) -> stamp.Stamp | None:
        """The line's own stamp before that of a container's log: it is the one that its producer's other lines have."""
        own = stamp.find(_shown(prefix, text), self._now)
        return own if own is not None or prefix.stamp is None else stamp.find(prefix.stamp, self._now)

    def _emit(self, finding: Finding, prefix: Prefix, candidate: Candidate) -> None:
        data = dict(finding.data)
        at = self._time(prefix, candidate.text)
        if at is not None:
            data["clock"] = at.clock
        rank = finding.rank if finding.rank is not None else prefix.rank
        self._note(finding, prefix, rank, data)
        fact = Fact(
            kind=finding.kind,
            text=_shown(prefix, candidate.text)[:TEXT_LIMIT],
            producer=finding.producer,
            role=finding.role,
            trust=self.log.source.trust,
            hint=finding.hint,
            file=self.log.source.name,
            line=candidate.number,
            offset=candidate.offset,
            rank=rank,
            host=finding.host or host_name(prefix.host),
            time=None if at is None else at.seconds,
            uncertainty_s=None if at is None else at.uncertainty_s,
            data=data,
        )
        self._sink(Seen(fact, prefix.pid, finding.distinct))

    def _note(self, finding: Finding, prefix: Prefix, rank: int | None, data: dict[str, Any]) -> None:
        """Labels that are no rank go into ``data``; who writes here is kept for finding the ranks of other lines."""
        labels = (
            ("task", prefix.task),
            ("local_rank", prefix.local_rank),
            ("writer_pid", prefix.pid),
            ("attempt", prefix.attempt),
            ("repeated", prefix.repeated),
        )
        for key, value in labels:
            if value is not None:
                data.setdefault(key, value)
        if prefix.host is not None and host_name(prefix.host) is None:
            data.setdefault("ip", prefix.host[:80])
        if rank is not None and prefix.local_rank is not None and rank == prefix.rank:
            self.log.local_ranks[rank] = prefix.local_rank
        host = host_name(prefix.host)
        if (
            finding.producer == "nccl"
            and host is not None
            and prefix.pid is not None
            and len(self.log.processes) < 4096
        ):
            self.log.processes[host, prefix.pid] = None
        if finding.producer == "kernel":
            self.log.kernel = True

    def _block(self, block: elastic.Block) -> None:
        data = dict(block.data)
        at = stamp.find(str(data.get("time", "")), self._now)
        if at is not None:
            data["clock"] = at.clock
        fact = Fact(
            kind="elastic.failure",
            text=block.text[:TEXT_LIMIT],
            producer="elastic",
            role=block.role,
            trust=self.log.source.trust,
            hint=block.hint,
            file=self.log.source.name,
            line=block.number,
            offset=block.offset,
            rank=data["rank"],
            host=host_name(data.get("host")),
            time=None if at is None else at.seconds,
            uncertainty_s=None if at is None else at.uncertainty_s,
            data=data,
        )
        self._sink(Seen(fact, None, (data.get("pid"),)))


def _shown(prefix: Prefix, text: str) -> str:
    """The line without its envelope, whose escapes hide from the redaction of secrets what they are."""
    return text if prefix.inner is None else prefix.inner
