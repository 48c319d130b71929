"""All words that can be explained, from the data that decides: classes, actions, Xids, reasons, readings, rows; the
guide's sections too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nccl_slurm.attribute.finding import action_of
from nccl_slurm.doctor import guide
from nccl_slurm.explain import classes
from nccl_slurm.explain.entry import Entry
from nccl_slurm.model import ACTIONS, CLASSES
from nccl_slurm.parse.patterns import Row, Rows, Xid
from nccl_slurm.tables import packaged

__all__ = ["catalogue"]

_ROLES = {
    "cause": "It speaks of a cause: where it comes first and nothing explains it as a reaction, it decides the class.",
    "consequence": "It follows something that happened elsewhere or earlier. It accuses nobody.",
    "context": "It tells who is who, what was set or how far a rank came. Alone it decides nothing.",
    "benign": "It is known to be harmless.",
}
_OF_JOB = "A job can print anything, so it proves what the ranks did among themselves and nothing about a machine."
_OF_KERNEL = "It counts as the machine's word only from the node's own kernel log, inside the run's window."
_OF_ROOT = "Root's hooks read it on the node, so it is the machine's own word."
_RULE_PROOF = "It stands in brackets behind the sentence that it made; the ids after it are the facts behind that."
_WORD_PROOF = "A word for how sure a report is, not a number; the facts beside it carry it."
_XID_SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"


def catalogue(rows: Rows) -> tuple[Entry, ...]:
    """``rows``: those in force, a site's own among them."""
    data = classes.table()
    steps = {str(one["name"]): tuple(one["steps"]) for one in data["class"]}
    means = {str(one["name"]): str(one["means"]) for one in data["class"]}
    nvidia = {str(one["name"]): str(one["means"]) for one in data["nvidia"]}
    return (
        *(_class(one, rows) for one in _ordered(data["class"], CLASSES)),
        *(_action(one) for one in _ordered(data["action"], ACTIONS)),
        *(_xid(xid, means, steps, nvidia) for _, xid in sorted(rows.xids.items())),
        *(_reason(one) for one in packaged("reasons.toml")["reason"]),
        *(_reading(one, steps) for one in data["reading"]),
        *(_word("rule", one, _RULE_PROOF) for one in data["rule"]),
        *(_word("rule", _escalation(one), _RULE_PROOF) for one in packaged("support.toml")["escalation"]),
        *(_word("word", one, _WORD_PROOF) for one in data["word"]),
        *(_pattern(row, means, steps) for row in sorted(rows.rows, key=lambda row: row.id)),
        *(_guide(one) for one in guide.sections().values()),
    )


def _ordered(entries: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    return sorted(entries, key=lambda one: names.index(one["name"]))


def _class(one: Mapping[str, Any], rows: Rows) -> Entry:
    name = str(one["name"])
    lines = [row.id for row in rows.rows if row.hint == name]
    xids = [f"xid {code}" for code, xid in sorted(rows.xids.items()) if xid.hint == name]
    return Entry(
        kind="class",
        name=name,
        means=one["means"],
        proof=one["proof"],
        source=one["source"],
        steps=tuple(one["steps"]),
        failure_class=name,
        action=action_of(name),
        related=(*lines, *xids),
    )


def _action(one: Mapping[str, Any]) -> Entry:
    name = str(one["name"])
    classes = tuple(each for each in CLASSES if action_of(each) == name)
    return Entry("action", name, one["means"], one["proof"], "docs/report.md", action=name, related=classes)


def _word(kind: str, one: Mapping[str, Any], proof: str) -> Entry:
    return Entry(kind, one["name"], one["means"], proof, one.get("source", "docs/report.md"))


def _escalation(one: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": f"escalation.{one['id']}", "means": one["says"], "source": "docs/bundle.md"}


def _xid(xid: Xid, means: Mapping[str, str], steps: Mapping[str, Sequence[str]], nvidia: Mapping[str, str]) -> Entry:
    told = f"NVIDIA's immediate action is {xid.nvidia}" + (f": {nvidia[xid.nvidia]}" if xid.nvidia in nvidia else "")
    if xid.nvidia == "(blank)":
        told = "NVIDIA's catalogue names no immediate action"
    return Entry(
        kind="xid",
        name=f"xid {xid.code}",
        means=f"{xid.mnemonic} in NVIDIA's catalogue; class {xid.hint}: {means.get(xid.hint, '')}",
        proof=f"{_ROLES[xid.role]} {_OF_KERNEL}",
        source=f"{xid.source}: {_XID_SOURCE}",
        steps=(f"{told}.", *_again(xid), *steps.get(xid.hint, ())),
        failure_class=xid.hint,
        action=xid.action,
        role=xid.role,
        producer="kernel",
        related=(xid.hint, "kernel.xid"),
    )


def _again(xid: Xid) -> tuple[str, ...]:
    """The ladder's steps where it comes back on the same GPU after reboots (docs/recommendation.md)."""
    if xid.final:
        return ("No reboot helps here.",)
    times = ("one reboot", "two reboots", "three reboots")
    words = [f"{action} after {count} that did not help" for action, count in zip(xid.after, times, strict=False)]
    return (f"Where it comes back on the same GPU: {', '.join(words)}.",) if words else ()


def _reason(one: Mapping[str, Any]) -> Entry:
    failure_class = one.get("class")
    return Entry(
        kind="reason",
        name=one["id"],
        means=one["means"],
        proof=one["proof"],
        source=one["source"],
        steps=tuple(one["steps"]),
        failure_class=failure_class,
        producer="slurm",
        example=one["match"][0],
        related=(failure_class,) if failure_class else (),
        words=tuple(one["match"]),
    )


def _reading(one: Mapping[str, Any], steps: Mapping[str, Sequence[str]]) -> Entry:
    failure_class = one.get("class")
    trust = _OF_ROOT if one["producer"] == "snapshot" else _OF_JOB
    return Entry(
        kind="reading",
        name=one["id"],
        means=one["means"],
        proof=f"{_ROLES[one['role']]} {trust}",
        source=one["source"],
        steps=steps.get(failure_class or "", ()),
        failure_class=failure_class,
        role=one["role"],
        producer=one["producer"],
        related=(failure_class,) if failure_class else (),
    )


def _pattern(row: Row, means: Mapping[str, str], steps: Mapping[str, Sequence[str]]) -> Entry:
    told = f"class {row.hint}: {means.get(row.hint, '')}" if row.hint else "no class of its own"
    return Entry(
        kind="pattern",
        name=row.id,
        means=f"{'a line of the site' if row.producer == 'site' else f'a line that {row.producer} prints'}; {told}",
        proof=f"{_ROLES[row.role]} {_OF_KERNEL if row.producer == 'kernel' else _OF_JOB}",
        source=row.source,
        steps=steps.get(row.hint or "", ()),
        failure_class=row.hint,
        role=row.role,
        producer=row.producer,
        versions=row.versions or None,
        example=row.yes,
        related=(row.hint,) if row.hint else (),
    )


def _guide(one: guide.Section) -> Entry:
    return Entry(
        kind="guide",
        name=one.id,
        means=one.title,
        proof=one.proof or "Nothing has to be proven: it is advice.",
        source=one.source,
        steps=(one.remedy,),
        action=one.action,
        related=one.related,
        symptom=one.symptom or None,
        cause=one.cause or None,
        verify=one.verify or None,
        blast_radius=one.blast_radius or None,
        commands=tuple(guide.filled(command, {}) for command in one.commands),
    )
