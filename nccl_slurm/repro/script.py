"""A `Plan` → the text of the script: a header that tells what it is, the scene, the machinery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from textwrap import indent, wrap
from typing import Any

from nccl_slurm import __version__
from nccl_slurm.parse.redact import redacted
from nccl_slurm.report.visible import ascii_only
from nccl_slurm.repro.call import BYTES_MAX, Call
from nccl_slurm.repro.plan import Plan
from nccl_slurm.repro.scene import BEFORE_THE_GROUP, WITH_A_COLLECTIVE, Scene, scene

__all__ = ["BACKENDS", "NPROC_MAX", "TIMEOUT_S", "Wish", "write"]

BACKENDS = ("auto", "gloo", "nccl")
#: Each imports torch, which takes some 300 MB.
NPROC_MAX = 64
#: What the ranks wait in place of torch's ten minutes.
TIMEOUT_S = 20

#: From here on `runner` is copied.
_START = "# ---- machinery"
_WIDTH = 116
_LABEL = 10
_COMMAND = 45
_THIS = "THIS_FILE"
_QUOTE_MAX = 300
_QUOTES_MAX = 4
#: Python reads a name of an encoding in the first two lines, so nothing that others wrote may stand there (PEP 263).
_FIRST = ("#!/usr/bin/env python3", "# -*- coding: utf-8 -*-")


@dataclass(frozen=True)
class Wish:
    """What the user chose: 2 to `NPROC_MAX` processes, one of `BACKENDS`, a monitored barrier before the collective."""

    nproc: int = 2
    backend: str = "auto"
    barrier: bool = False


def write(report: Mapping[str, Any], plan: Plan, subject: str, wish: Wish) -> str:
    """``subject``: the job or the path as the user typed it."""
    made = scene(plan, wish.nproc, barrier=wish.barrier)
    header = (f"# {line}".rstrip() for line in _header(report, plan, made, subject, wish))
    parts = ("\n".join([*_FIRST, *header]), "\nfrom __future__ import annotations\n", *_machinery(made, wish))
    return "\n".join(parts)


def _machinery(made: Scene, wish: Wish) -> Iterator[str]:
    """The machinery's imports, the scene, the machinery, the start."""
    source = (resources.files("nccl_slurm.repro") / "runner.py").read_text(encoding="utf-8")
    imports, _, functions = source[source.index(_START) :].partition("\n#: ")
    yield imports.split("\n", 1)[1].rstrip("\n") + "\n"
    yield _scene_text(made, wish)
    yield f"{source[source.index(_START) :].splitlines()[0]}\n\n#: {functions.rstrip()}\n\n"
    yield _END


def _scene_text(made: Scene, wish: Wish) -> str:
    expected = "".join(f"\n    {rank}: {list(texts)!r}," for rank, texts in sorted(made.expected.items()))
    constants = [
        f"NPROC = {wish.nproc}",
        f"BACKEND = {wish.backend!r}",
        f'TIMEOUT_S = float(os.environ.get("REPRO_TIMEOUT_S", "{TIMEOUT_S}"))',
        f"ODD = {made.odd}",
        f"IDLE = {sorted(made.idle)!r}",
        f"ENDS = {made.ends!r}",
        "#: Rank -> what it must print (regular expressions).",
        f"EXPECTED = {{{expected}\n}}",
    ]
    body = indent("\n".join(made.lines), "    ")
    return "\n".join([*constants, "", "", "def scene(rank: int, size: int) -> None:", body, "", ""])


_END = """\
if __name__ == "__main__":
    if LAUNCHED:
        status = play(scene, EXPECTED)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # without the teardown of a group that is broken on purpose
    sys.exit(start(EXPECTED, NPROC, set(IDLE), ODD, ENDS, TIMEOUT_S))
"""


def _header(report: Mapping[str, Any], plan: Plan, made: Scene, subject: str, wish: Wish) -> list[str]:
    verdict = report["verdict"]
    rows = [
        ("of", f"{_clean(subject)}, written by nccl-slurm {__version__}"),
        ("verdict", f"{verdict['class']} ({verdict['confidence']}): {_clean(verdict['summary'])}"),
        *_found(report, plan),
        *(("quoted", line) for line in _quotes(report, plan)),
        ("shows", made.what),
        *(("run", f"{command:{_COMMAND}}{what}") for command, what in _commands(wish.nproc)),
        ("expected", made.error),
        *([("expected", f"rank {made.odd} ends with status {made.ends}")] if made.ends is not None else []),
        ("exit", '0 where that was seen ("reproduced: ..."), 1 where not'),
        *(("not told", line) for line in plan.unsure),
        *(("not shown", line) for line in _not_shown(report, plan, made, wish)),
    ]
    title = "Reproduction of a failure. Lines of the job's logs are quoted here; they are not instructions."
    return [title, "", *_table(rows)]


def _commands(nproc: int) -> Iterator[tuple[str, str]]:
    yield f"python {_THIS}", f"{nproc} processes on this machine"
    yield f"torchrun --nproc-per-node {nproc} {_THIS}", "the same; each rank checks itself"
    yield f"REPRO_TIMEOUT_S=60 python {_THIS}", f"waits 60 s in place of {TIMEOUT_S}"


def _table(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A label is shown once; a long text goes on below itself."""
    last = ""
    for label, text in rows:
        shown = "" if label == last else label
        lines = [text] if label == "run" else wrap(text, _WIDTH - _LABEL, break_on_hyphens=False)
        for at, line in enumerate(lines or [""]):
            yield f"{shown if not at else '':{_LABEL}} {line}".rstrip()
        last = label or last


def _found(report: Mapping[str, Any], plan: Plan) -> Iterator[tuple[str, str]]:
    """Operation, shape, dtype, sequence number and group as the lines have them."""
    if plan.seen is not None:
        seq = f", collective {plan.seen.seq}" if plan.seen.seq is not None else ""
        group = f" of process group {_clean(plan.seen.group)}" if plan.seen.group is not None else ""
        size = f", {plan.seen.size} ranks in the group" if plan.seen.size is not None else ""
        yield "found", f"{_told(plan.call)}{seq}{group}{size}"
    if plan.other.op is not None:
        yield "found", f"{_told(plan.other)} on the other side"
    if report["ranks"]:
        yield "found", _ranks(report)


def _ranks(report: Mapping[str, Any]) -> str:
    """A report lists all ranks that are known to exist; where no line tells the world size there may be more."""
    many = len(report["ranks"])
    return f"{many} rank{'s' if many > 1 else ''} or more" if many else "the job's ranks"


def _told(call: Call) -> str:
    return f"{call}, dtype not told" if call.shape and call.dtype is None else str(call)


def _quotes(report: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    """Lines behind the verdict, with where they stand; secrets redacted, nothing in them leaves its line."""
    people = (*report["verdict"]["culprits"], *report["verdict"]["suspects"])
    named = [plan.seen.fact] if plan.seen is not None else []
    named += [fact for one in people for fact in one["evidence"]]
    named += [fact for step in report["inferences"][:1] for fact in step["from"]]
    chosen = list(dict.fromkeys(named))[:_QUOTES_MAX]
    by_id = {fact["id"]: fact for fact in report["facts"]}
    for fact in (by_id[one] for one in chosen if one in by_id):
        where = f"{fact['file'] or '?'}:{fact['line'] or '?'}"
        yield f"{_clean(where)}: {_clean(fact['text'])}"


def _not_shown(report: Mapping[str, Any], plan: Plan, made: Scene, wish: Wish) -> Iterator[str]:
    yield "why: the program, its data, timing, nodes, GPUs and network are not in it"
    yield f"size: {wish.nproc} processes on one machine stand for {_ranks(report)}"
    if plan.rank is not None and plan.rank != made.odd:
        own = f"; --nproc {plan.rank + 1} gives it its number" if plan.rank < NPROC_MAX else ""
        yield f"rank {plan.rank}: its part is played by rank {made.odd}{own}"
    if plan.seen is not None and plan.seen.group not in (None, "0"):
        yield "group: the group of all processes stands for the job's group; which ranks were in it is not used"
    yield f"time: {TIMEOUT_S} s in place of the job's time-out"
    yield from _sizes(plan, made)
    if wish.nproc == 2 and plan.kind in ("op", "shape", "dtype", "order"):
        yield "majority: of two ranks nothing tells which one is wrong; --nproc 3 or more shows that all others agree"
    if wish.barrier and plan.kind not in WITH_A_COLLECTIVE:
        yield "the monitored barrier: left out, no collective is waited in here"
    elif wish.barrier and plan.kind not in ("absent", "raise", "exit", "signal"):
        yield "a fault in the monitored barrier: all ranks come there, so it passes, and the mismatch comes after it"
    yield from _transport(plan, wish.backend)


def _sizes(plan: Plan, made: Scene) -> Iterator[str]:
    for told, shown in zip((plan.call, plan.other), made.called, strict=False):
        if told.shape is not None and shown.shape != told.shape:
            held = f"tensors hold {BYTES_MAX >> 20} MiB at most, and parts must be even"
            yield f"sizes: {list(told.shape)} became {list(shown.shape or ())} ({held})"
        elif told.op is not None and told.shape is None and shown.op not in ("barrier", "monitored_barrier"):
            yield f"sizes: {list(shown.shape or ())} {shown.dtype} stands for what is not told"


def _transport(plan: Plan, backend: str) -> Iterator[str]:
    if plan.kind in BEFORE_THE_GROUP:
        return
    if backend != "gloo":
        yield "NCCL: this was tested with gloo; with NCCL torch checks by the same code of gloo before each collective"
    else:
        yield "NCCL: gloo takes its place, so what NCCL itself prints or does is not in it"
    if plan.kind != "p2p":
        yield "the watchdog's words: TORCH_DISTRIBUTED_DEBUG=DETAIL finds the fault first, and names who it is"


def _clean(text: str) -> str:
    shown = ascii_only(redacted(str(text)))
    return shown if len(shown) <= _QUOTE_MAX else f"{shown[:_QUOTE_MAX]}..."
