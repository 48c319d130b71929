"""One log file → facts, and what its first and last lines say of each rank that writes to it."""

from __future__ import annotations

import re
from itertools import islice
from typing import Any, Callable, Iterable, NamedTuple, Union

from nccl_slurm.model import Fact
from nccl_slurm.parse import elastic, names, stamp, work
from nccl_slurm.parse.edges import Few
from nccl_slurm.parse.finding import Finding, find, host_name
from nccl_slurm.parse.kernel import TEXT_LIMIT, Pending
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.prefix import Prefix, strip
from nccl_slurm.parse.scan import Candidate, Piece, Scan, last_lines_of, lines_of, raw_lines_of
from nccl_slurm.parse.sift import Sift
from nccl_slurm.parse.source import Source
from nccl_slurm.parse.traceback import Tracebacks

__all__ = ["Log", "Seen", "Track", "read_log"]

_HEAD_LINES = 100
#: slurmstepd's word that the run was ended from outside.
_ENDED = "slurm.cancelled"
#: Key in ``data`` of an error that the rank which prints it was told of: it is not its own.
_GATHERED = "gathered_of"
#: Producers whose words are of a machine.
_MACHINES = ("kernel", "gpu")
_LINE_SHOWN = 400
#: Of a large file: who has printed nothing in so many lines at its end does not write to it.
_FEW = 40
_AT_ONCE = 48
#: Lines that are chosen before the first of them is read: in turns both cost more.
_TOGETHER = 64
#: glog's warnings and notices go to standard error too, many at a program's start.
_NOTICE = re.compile(r"(?:\[rank\d{1,7}\]:)?\[?[WI]\d{4} ")
#: torchrun's ``attempt_0/3/stderr.log``, Slurm's ``slurm-42.err``.
_ERRORS = re.compile(r"(?:\bstderr\b[^/]*|\.err)\Z")


class Seen(NamedTuple):
    """A fact whose rank may still have to be found: by ``pid`` (NCCL prints host and pid) or by its file."""

    fact: Fact
    pid: int | None
    distinct: tuple[Any, ...]


class Track:
    """First and last time stamp and last line of one rank in one file. ``of_errors``: that line is of standard error,
    where a program says how it ended."""

    def __init__(self, of_errors: bool = False) -> None:
        self.of_errors = of_errors
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
        """The last line is the one of the later time; without times that of standard error, else that of ``other``."""
        if other.last_line is not None and (self.last_line is None or self._is_before(other)):
            self.last_line, self.of_errors = other.last_line, other.of_errors
        for seconds in (other.first, other.last):
            self.see(seconds, other.uncertainty_s)

    def _is_before(self, other: Track) -> bool:
        if self.last is None or other.last is None:
            return other.of_errors or not self.of_errors
        return other.last >= self.last


class Log:
    """What one file told. ``tracks``: by the rank that labels say, None for lines without such a label."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.of_errors = _ERRORS.search(source.name) is not None
        self.tracks: dict[int | None, Track] = {}
        self.processes: dict[tuple[str, int], None] = {}
        self.local_ranks: dict[int, int] = {}
        self.kernel = False
        self.others = False  # words of who is no machine
        self.bytes = 0
        self.unknown = 0
        self.thinned: dict[str, int] = {}  # kind → lines that are like many others and were not read
        self.problem: str | None = None

    @property
    def ranks(self) -> list[int]:
        return [rank for rank in self.tracks if rank is not None]

    @property
    def of_a_machine(self) -> bool:
        """A kernel's log, as far as it is known: nobody else has a word in it, and it is no rank's."""
        return self.kernel and not (self.others or self.ranks) and names.read(self.source.name).rank is None


Lines = Union[Scan, Sift]


def read_log(source: Source, lines: Lines, rows: Rows, now: float, sink: Callable[[Seen], None]) -> Log:
    """Gives each fact in the candidates of ``lines`` to ``sink``. Never raises for content."""
    reader = _Reader(source, rows, now, sink)
    candidates = iter(lines)
    while True:
        some = list(islice(candidates, _TOGETHER))
        for candidate in some:
            reader.line(candidate)
        if not some:
            reader.end(lines)
            return reader.log


class _Reader:
    def __init__(self, source: Source, rows: Rows, now: float, sink: Callable[[Seen], None]) -> None:
        self.log = Log(source)
        self._rows, self._now, self._sink = rows, now, sink
        self._table, self._tracebacks, self._pending = elastic.Table(), Tracebacks(), Pending()
        self._quoted: dict[str, int] = {}
        self._known = 0
        self._failed: Candidate | None = None  # the first line that tells a failure, or that the run was ended

    def line(self, candidate: Candidate) -> None:
        prefix = strip(candidate.text)
        ended = None
        if self._tracebacks.concerns(prefix.text):
            if self._tracebacks.covers(prefix.label, prefix.text):
                return
            ended = self._tracebacks.feed(prefix.label, prefix.text)
        finding = find(prefix.text, self._rows, candidate.rows) if candidate.rows else None
        if ended is not None:
            finding = self._exception(finding, *ended)
            if finding is not None:
                more = {"from_none": 1} if self._tracebacks.from_none else {}
                if self._tracebacks.gathered_of is not None:
                    more[_GATHERED] = self._tracebacks.gathered_of
                finding = finding._replace(data={**finding.data, **self._tracebacks.place, **more})
        if finding is None:
            return
        self._known += 1
        if finding.kind.startswith(elastic.ROW):
            shown = _shown(prefix, candidate.text)
            block = self._table.feed(
                prefix.label, finding.kind, dict(finding.data), candidate.number, candidate.offset, shown
            )
            if block is not None:
                self._block(block)
                self._quoted.pop(prefix.label, None)
                if str(block.data.get("traceback", "")).startswith("Traceback"):
                    self._quoted[prefix.label] = block.data["rank"]
            return
        if prefix.label in self._quoted:
            if not _is_quoted(prefix.text):
                del self._quoted[prefix.label]
            elif finding.rank is None:
                finding = finding._replace(rank=self._quoted[prefix.label])  # quoted in the failure table
        joined = self._pending.join(finding)
        if joined is not None and joined.kind != "python.traceback":
            self._emit(joined, prefix, candidate)

    def end(self, scan: Lines) -> None:
        for block in self._table.rest():
            self._block(block)
        self.log.bytes, self.log.problem = scan.bytes, scan.problem
        self.log.thinned = {self._rows.rows[row].id: count for row, count in scan.thinned.items()}
        self.log.unknown = max(0, scan.lines - self._known - sum(scan.thinned.values()))
        self._work(scan.tail)
        if isinstance(scan, Sift):
            self._first_few(scan.head)
            self._last_few(scan.tail)
        else:
            self._first_lines(lines_of(scan.head, _HEAD_LINES))
            self._last_lines(last_lines_of(scan.tail))

    def _work(self, tail: Piece) -> None:
        """Steps behind the first failure, near the end of the file."""
        if self._failed is None or self.log.kernel:
            return
        inside = self._failed.offset >= tail.offset
        for step in work.steps_after(tail, self._failed.offset):
            data = {"word": step.word, "count": step.done}
            number = self._failed.number + step.newlines if inside else 0  # not counted
            finding = Finding(work.KIND, "framework", "context", None, data)
            self._emit(finding, strip(step.text), Candidate(number, step.offset, step.text, ()))

    def _first_lines(self, lines: Iterable[str]) -> None:
        for text in lines:
            prefix = strip(text)
            track = self._track(prefix)
            if track is not None:
                self._see(track, prefix, text)

    def _last_lines(self, lines: Iterable[str]) -> None:
        """Backwards."""
        for text in lines:
            prefix = strip(text)
            track = self._track(prefix)
            if track is not None:
                self._ends(track, prefix, text)
                self._see(track, prefix, text)

    def _first_few(self, head: Piece) -> None:
        """Of a large file: of each rank until its first time."""
        few = Few(head.raw.replace(b"\r", b"\n").split(b"\n", _FEW)[:_FEW])
        self._few(few, {}, last=False)

    def _last_few(self, tail: Piece) -> None:
        """Of a large file, backwards: of each rank until its last time, and only as far as there are several."""
        timed: dict[int | None, bool] = {}
        lines = (line for line in raw_lines_of(tail) if line.strip())
        count = new = 0
        while count - new < _FEW or len(timed) > 1 + (None in timed):
            few = Few(list(islice(lines, _AT_ONCE)))
            found = self._few(few, timed, last=True)
            new = new if found is None else count + found
            count += len(few.lines)
            if len(few.lines) < _AT_ONCE:
                return

    def _few(self, few: Few, timed: dict[int | None, bool], *, last: bool) -> int | None:
        """The number of the last line that is the first of its rank. ``timed``: rank → whether its time is known."""
        new = None
        for number in range(len(few.lines)):
            if timed.get(None) or (None in timed and not few.timed):
                return self._ranked(few, number, timed, new, last=last)
            wanted = number in few.ranked or None not in timed or few.tells_time(number)
            if wanted and self._one(few.text(number), timed, last=last):
                new = number
        return new

    def _ranked(
        self, few: Few, start: int, timed: dict[int | None, bool], new: int | None, *, last: bool
    ) -> int | None:
        """The rest of `_few`, where lines without a label have no more to tell."""
        for number in sorted(few.ranked):
            if number >= start and self._one(few.text(number), timed, last=last):
                new = number
        return new

    def _one(self, text: str, timed: dict[int | None, bool], *, last: bool) -> bool:
        """Whether it is the first line of its rank."""
        prefix = strip(text)
        track = self._track(prefix)
        if track is None:
            return False
        if last:
            self._ends(track, prefix, text)
        new = prefix.rank not in timed
        if not timed.get(prefix.rank):
            timed[prefix.rank] = self._see(track, prefix, text)
        return new

    def _ends(self, track: Track, prefix: Prefix, text: str) -> None:
        if track.last_line is None:
            track.last_line = _shown(prefix, text)[:_LINE_SHOWN]
            track.of_errors = track.of_errors and _NOTICE.match(track.last_line) is None

    def _exception(self, finding: Finding | None, name: str, message: str) -> Finding | None:
        """The last line of a traceback is a fact even if no row knows its text."""
        if finding is not None:
            return finding._replace(data={"exception": name, **finding.data})
        exceptions = [number for number, row in enumerate(self._rows.rows) if row.id.startswith("python.")]
        known = find(f"{name}: {message}", self._rows, exceptions)
        if known is not None:
            return known
        data = {"type": name, "message": message[:400]}
        return Finding("python.exception", "python", "cause", "rank-exception", data)

    def _track(self, prefix: Prefix) -> Track | None:
        """None for a line without text."""
        if not prefix.text.strip():
            return None
        return self.log.tracks.setdefault(prefix.rank, Track(self.log.of_errors))

    def _see(self, track: Track, prefix: Prefix, text: str) -> bool:
        """Whether the line has a time."""
        at = self._time(prefix, _shown(prefix, text))
        if at is None:
            return False
        track.see(at.seconds, at.uncertainty_s)
        return True

    def _time(self, prefix: Prefix, shown: str) -> stamp.Stamp | None:
        """The line's own stamp before that of a container's log: it is the one that its producer's other lines have."""
        own = stamp.find(shown, self._now)
        return own if own is not None or prefix.stamp is None else stamp.find(prefix.stamp, self._now)

    def _emit(self, finding: Finding, prefix: Prefix, candidate: Candidate) -> None:
        data = finding.data
        if self._failed is None and (finding.role == "cause" or finding.kind == _ENDED):
            self._failed = candidate
        shown = candidate.text if prefix.inner is None else prefix.inner
        at = self._time(prefix, shown)
        if at is not None:
            data["clock"] = at.clock
        rank = finding.rank if finding.rank is not None else None if _GATHERED in data else prefix.rank
        host = host_name(prefix.host)
        self._note(finding, prefix, rank, host, data)
        fact = Fact(
            kind=finding.kind,
            text=shown[:TEXT_LIMIT],
            producer=finding.producer,
            role=finding.role,
            trust=self.log.source.trust,
            hint=finding.hint,
            file=self.log.source.name,
            line=candidate.number or None,
            offset=candidate.offset,
            rank=rank,
            host=finding.host or host,
            time=None if at is None else at.seconds,
            uncertainty_s=None if at is None else at.uncertainty_s,
            data=data,
        )
        self._sink(Seen(fact, prefix.pid, finding.distinct))

    def _note(self, finding: Finding, prefix: Prefix, rank: int | None, host: str | None, data: dict[str, Any]) -> None:
        """Labels that are no rank go into ``data``; who writes here is kept for finding the ranks of other lines."""
        if prefix.task is not None:
            data.setdefault("task", prefix.task)
        if prefix.local_rank is not None:
            data.setdefault("local_rank", prefix.local_rank)
        if prefix.pid is not None:
            data.setdefault("writer_pid", prefix.pid)
        if prefix.attempt is not None:
            data.setdefault("attempt", prefix.attempt)
        if prefix.repeated is not None:
            data.setdefault("repeated", prefix.repeated)
        if prefix.host is not None and host is None:
            data.setdefault("ip", prefix.host[:80])
        if rank is not None and prefix.local_rank is not None and rank == prefix.rank:
            self.log.local_ranks[rank] = prefix.local_rank
        if (
            finding.producer == "nccl"
            and host is not None
            and prefix.pid is not None
            and len(self.log.processes) < 4096
        ):
            self.log.processes[host, prefix.pid] = None
        if finding.producer == "kernel":
            self.log.kernel = True
        elif finding.producer not in _MACHINES:
            self.log.others = True

    def _block(self, block: elastic.Block) -> None:
        self.log.others = True
        data = dict(block.data)
        at = stamp.find(str(data.get("time", "")), self._now)
        if at is not None:
            data["clock"] = at.clock
        fact = Fact(
            kind="elastic.failure",
            text=_with_exit(block)[:TEXT_LIMIT],
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


def _with_exit(block: elastic.Block) -> str:
    """The line that names the rank, and how it ended: what the block is known for stands on another line."""
    code = block.data.get("exitcode")
    return block.text if code is None else f"{block.text.rstrip()}, exitcode: {code}"


def _is_quoted(text: str) -> bool:
    """Indented, as a failure table quotes; C++'s own last words are so too."""
    return text.startswith("  ") and not text.startswith("  what():")


def _shown(prefix: Prefix, text: str) -> str:
    """The line without its envelope, whose escapes hide from the redaction of secrets what they are."""
    return text if prefix.inner is None else prefix.inner
