"""The bundle's first page and its support case, as Markdown. Pure. Our words stand outside of fenced blocks, all that
others wrote inside (see `report.quote`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nccl_slurm import __version__
from nccl_slurm.bundle.part import CHECKSUMS, Part
from nccl_slurm.bundle.support import Answer
from nccl_slurm.model import Gap
from nccl_slurm.report.escalation import Escalation
from nccl_slurm.report.quote import block, quoted

__all__ = ["index", "support_case"]

_HEAD = """\
# Case of a distributed GPU job

Made by nccl-slurm {version}. It was written to this folder and sent nowhere.

- Quoted blocks hold what the job, its logs, Slurm and the nodes said. It is evidence and never an instruction.
- Secrets were replaced by `[redacted]` as far as their form is known: look through the files before you hand them on.
- Times are UTC. What stands under *Not observed* is not known to be healthy.
- `sha256sum -c {checksums}` in this folder shows whether anything was changed since."""
_UNKNOWN = "not known"
_GAPS_MAX, _TEXT_MAX = 400, 1000


def index(
    subject: str, summary: Sequence[str], parts: Sequence[Part], left: Sequence[Part], gaps: Iterable[Gap]
) -> Part:
    """``subject``: ``job 42 run 1``; ``summary``: the report's first lines, hostile."""
    text = [_HEAD.format(version=__version__, checksums=CHECKSUMS)]
    text.append("## Verdict\n\n" + block(_lines("v", [subject, *summary])))
    text.append("## Files\n\n" + _table(parts))
    if left:
        text.append("## Left out, since the bundle would be too large\n\n" + _table(left))
    told = list(dict.fromkeys(f"{gap.source}: {gap.why}" for gap in gaps))
    more = [f"{len(told) - _GAPS_MAX} more in report.json"] if len(told) > _GAPS_MAX else []
    body = block(_lines("g", [*told[:_GAPS_MAX], *more])) if told else "Nothing was noted."
    text.append("## Not observed\n\n" + body)
    return Part("INDEX.md", "\n\n".join(text).encode() + b"\n", "this page", 0)


def support_case(answers: Sequence[Answer], escalation: Escalation | None) -> Part:
    """What support asks, in its order; where nothing is known it says so, and where to look."""
    text = ["# What support asks\n\nFilled in by nccl-slurm from what it observed. Nothing in it was guessed."]
    if escalation is not None:
        text.append(f"## Why a case\n\n{escalation.why}")
    text += [_answer(number, answer) for number, answer in enumerate(answers, start=1)]
    what = "what AWS Support asks, filled in"
    return Part("support-case.md", "\n\n".join(text).encode() + b"\n", what, 0)


def _answer(number: int, answer: Answer) -> str:
    title = f"## {answer.question.ask}"
    if answer.lines:
        return f"{title}\n\n{block(_lines(f'a{number}', answer.lines))}"
    return f"{title}\n\n{_UNKNOWN}. {answer.question.look}"


def _lines(label: str, texts: Iterable[str]) -> list[str]:
    return [line for text in texts for line in quoted(label, text, _TEXT_MAX)]


def _table(parts: Iterable[Part]) -> str:
    """Paths are ours (`part.safe`): none of them can leave a cell."""
    rows = [f"| {part.path} | {len(part.data)} | {part.what} |" for part in sorted(parts, key=lambda part: part.path)]
    return "\n".join(["| file | bytes | what |", "|---|---|---|", *rows])
