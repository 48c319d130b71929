"""A report as a reproduction needs it: its calls, who is named, how ranks ended, what its lines say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from signal import Signals
from typing import Any

from nccl_slurm.attribute import reading
from nccl_slurm.parse.finding import find
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.prefix import strip
from nccl_slurm.parse.redact import redacted
from nccl_slurm.repro.call import UNTOLD, Call, call_of
from nccl_slurm.repro.sighting import Sighting, sightings

__all__ = ["Material"]

#: Kinds whose text is, or holds, an exception.
_EXCEPTIONS = ("python.exception", "elastic.error-file", "framework.nan")
#: Kinds that say that a rank waited in a collective.
_WAITS = frozenset({"torch.watchdog-timeout", "gloo.timeout", "flight-recorder.waiting"})
_SIGNAL_MAX = 31
#: As `attribute.notes` writes it, at the end of its sentence.
_CALLED = re.compile(r", inside torch\.distributed's (\w{1,80})\.\Z")
#: SIGCHLD, SIGCONT, the stopping ones, SIGURG and SIGWINCH end no process (signal(7)).
_HARMLESS = frozenset({17, 18, 19, 20, 21, 22, 23, 28})
_TYPED = re.compile(r"(?P<type>(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception)): (?P<message>.*)")


class Material:
    """``report`` is of schema report/1. Everything that log text contributes is a number, a name out of a closed set,
    or the message of an exception, which whoever prints it must quote.
    """

    def __init__(self, report: Mapping[str, Any], rows: Rows) -> None:
        self.report = report
        self._rows = rows

    @cached_property
    def sightings(self) -> list[Sighting]:
        """Those on which the verdict rests, where it rests on any; else all."""
        return [one for one in self.all_sightings if one.fact in self.cited] or self.all_sightings

    @cached_property
    def all_sightings(self) -> list[Sighting]:
        return sightings(self.report["facts"])

    def called(self) -> Call:
        """By tracebacks of ranks that waited, where all of them end in one function of torch.distributed."""
        texts = (step["text"] for step in self.report["inferences"] if step["rule"] == "place.told")
        names = {found[1] for text in texts if (found := _CALLED.search(text))}
        return call_of(names.pop()) if len(names) == 1 else UNTOLD

    @cached_property
    def cited(self) -> frozenset[str]:
        """Facts behind the verdict: its first inference, and those that are named in it."""
        verdict = self.report["verdict"]
        named = {fact for one in (*verdict["culprits"], *verdict["suspects"]) for fact in one["evidence"]}
        return frozenset(named.union(*(step["from"] for step in self.report["inferences"][:1])))

    @cached_property
    def facts(self) -> list[Mapping[str, Any]]:
        """The cited ones first."""
        return sorted(self.report["facts"], key=lambda fact: fact["id"] not in self.cited)

    @cached_property
    def kinds(self) -> frozenset[str]:
        return frozenset(str(fact["kind"]) for fact in self.report["facts"])

    @cached_property
    def cited_kinds(self) -> frozenset[str]:
        return frozenset(str(fact["kind"]) for fact in self.report["facts"] if fact["id"] in self.cited)

    @cached_property
    def waited(self) -> bool:
        return bool(self.kinds & _WAITS)

    @cached_property
    def all_waited(self) -> bool:
        """Each rank that the report lists says itself that it stood in one and the same collective."""
        waited: dict[tuple[Any, ...], set[int]] = {}
        for one in self.sightings:
            if one.rank is not None:
                waited.setdefault((one.call, one.seq, one.group), set()).add(one.rank)
        ranks = {row["rank"] for row in self.report["ranks"]}
        return any(ranks <= who for who in waited.values()) if ranks else False

    def rank(self) -> tuple[int | None, tuple[str, ...]]:
        """Whose part the odd rank plays, and what is to be said of that."""
        verdict = self.report["verdict"]
        proven = sorted({one["rank"] for one in verdict["culprits"] if one["rank"] is not None})
        suspected = sorted({one["rank"] for one in verdict["suspects"] if one["rank"] is not None})
        ranks = proven or suspected
        said = () if proven or not suspected else (f"rank {suspected[0]} is suspected, not proven",)
        more = (f"{len(ranks)} ranks are named; one stands for them",) if len(ranks) > 1 else ()
        return (ranks[0] if ranks else None), (*said, *more)

    def data(self, *kinds: str) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """(fact, what its line holds) of these kinds, cited ones first."""
        for fact in self.facts:
            if fact["kind"] in kinds:
                yield fact, self._read(fact)

    def exception(self) -> tuple[str, str] | None:
        """Type and message of the exception behind the verdict, secrets redacted; else of the one that names no rank,
        where there is one alone."""
        found = list(self.data(*_EXCEPTIONS))
        cited = [(fact, data) for fact, data in found if fact["id"] in self.cited]
        nobody = [(fact, data) for fact, data in found if fact["rank"] is None and fact["role"] == "cause"]
        for fact, data in cited or (nobody if len(nobody) == 1 else []):
            name, message = data.get("type"), data.get("message", data.get("error"))
            if isinstance(name, str):
                return name, redacted(str(message or ""))
            text = strip(fact["text"].split("\n")[0]).text
            typed = _TYPED.match(text)
            return (typed["type"], redacted(typed["message"])) if typed else ("RuntimeError", redacted(text))
        return None

    def status(self, rank: int | None) -> int | None:
        """Exit code of ``rank``, or minus the signal's number; of any failed process where no rank is known."""
        row = next((row for row in self.report["ranks"] if rank is not None and row["rank"] == rank), None)
        if row is not None and row["exit"] is not None:
            return _signed(row["exit"])
        for fact in self.facts:
            status = _status(self._read(fact)) if fact["id"] in self.cited else None
            if status:
                return status
        return None

    def _read(self, fact: Mapping[str, Any]) -> Mapping[str, Any]:
        found = find(strip(fact["text"].split("\n")[0]).text, self._rows)
        return {} if found is None else found.data


def _status(data: Mapping[str, Any]) -> int | None:
    code, number, name = data.get("exitcode"), data.get("number"), data.get("signal")
    if isinstance(code, int):
        return _signed(code)
    if isinstance(number, int) and number > 0:
        return _signed(-number)
    if isinstance(name, str):
        known = reading.SIGNAL_WORDS.get(name) or (Signals[name].value if name in Signals.__members__ else None)
        return None if known is None else _signed(-known)
    return None


def _signed(code: int) -> int | None:
    """A shell's 128 + signal number as minus the signal; None where no process can end so."""
    code = 128 - code if 128 < code <= 128 + _SIGNAL_MAX else code
    return code if -_SIGNAL_MAX <= code <= 255 and -code not in _HARMLESS else None
