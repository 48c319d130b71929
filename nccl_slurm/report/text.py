"""The report for people: summary first, then who, the proof line by line, nodes, what was not observed, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tabulate import tabulate

from nccl_slurm.explain.classes import steps_of
from nccl_slurm.hosts import HOST, fold, fold_numbers
from nccl_slurm.info.timeout import FIRST_EXIT, GROUP, HEARTBEAT, RENDEZVOUS, RETRIES, STEP_END, STORE
from nccl_slurm.model import CLASSES
from nccl_slurm.report import ranks as rank_table
from nccl_slurm.report.lines import alike, evidence_lines
from nccl_slurm.report.visible import visible
from nccl_slurm.report.words import counted, detail, ending, happened, hosts_of, named, ranks_of, writer

__all__ = ["gap_lines", "render"]

#: Lines of evidence printed; the JSON form has all of them.
EVIDENCE_MAX = 40
_TEXT_MAX = 160
_IDS_MAX = 8
#: Rules whose inferences carry no verdict.
_BESIDE = ("init.", "place.", "path.", "version.", "setting.", "timeout.", "clock.")
#: Clocks that are worth a word even where no line tells them.
_ALWAYS = (STORE, RENDEZVOUS, HEARTBEAT, GROUP)
_OF_SLURM = {FIRST_EXIT.name, STEP_END.name}
#: Gaps that change how the rest is to be read.
_FIRST = ("runs", "scope", "rules")
_WIDTH = 60
_NO_FAILURE = ("benign", "benign-teardown")

_STYLES = {"bold": "\x1b[1m", "red": "\x1b[31m", "yellow": "\x1b[33m", "green": "\x1b[32m"}
_RESET = "\x1b[0m"


def render(report: Mapping[str, Any], *, color: bool = False, ranks: bool = False) -> str:
    """The whole text, ending in a newline. ``ranks`` adds the table of all ranks. Escapes only where ``color``."""
    sections = [
        _head(report, color),
        _people("Culprits (proven)", report, "culprits", color),
        _people("Suspects (not proven; never in a comment)", report, "suspects", color),
        _evidence(report, color),
        _reasoning(report, color),
        _beside(report, color),
        _node_states(report, color),
        _ranks(report, color) if ranks else "",
        _around(report, color),
        _gaps(report, color),
        _suggestions(report, color),
        _escalation(report, color),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _head(report: Mapping[str, Any], color: bool) -> str:
    lines = [_style(_headline(report), color, "bold", _mood(report["verdict"]))]
    if report["verdict"] is not None:
        verdict = report["verdict"]
        lines.append(visible(verdict["summary"]))
        lines.append(f"class {verdict['class']} ({verdict['confidence']}), action {verdict['action']}")
    lines.append(_job(report))
    notes = [gap for gap in report["gaps"] if gap["source"] in _FIRST]
    lines += [f"NOTE {gap['source']}: {visible(gap['why'], 6 * _TEXT_MAX)}" for gap in notes]
    return "\n".join(lines)


def _headline(report: Mapping[str, Any]) -> str:
    verdict = report["verdict"]
    if verdict is None:
        return f"Not judged yet ({report['status']})"
    if verdict["culprits"]:
        hosts = fold(hosts_of(verdict["culprits"]))
        who = " on ".join(part for part in (ranks_of(verdict["culprits"]), hosts) if part)
        return f"{visible(who, 120)} {happened(verdict['class'])} ({visible(detail(report))})"
    ended = ending(report["job"]["state"])
    if ended and verdict["class"] == "preempt-cancel":
        return f"Ended from outside ({ended}); no failure was seen before that"
    if verdict["class"] in _NO_FAILURE:
        return "No failure seen"
    return f"{verdict['class']}: nobody is proven to have stopped first"


def _mood(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "yellow"
    if verdict["class"] in ("benign", "benign-teardown", "preempt-cancel"):
        return "green"
    return "red" if verdict["culprits"] else "yellow"


def _job(report: Mapping[str, Any]) -> str:
    job = report["job"]
    if job["id"] is None:
        return f"logs only, no job known to Slurm; report {report['status']}"
    parts = [f"job {job['id']} run {job['run']}", job["name"], job["user"], job["state"]]
    parts.append(f"exit {job['exit']}" if job["exit"] else None)
    parts.append(f"nodes {fold(job['nodes'])}" if job["nodes"] else None)
    parts.append(f"{job['start'] or '?'} to {job['end'] or '?'}")
    parts.append(f"report {report['status']}")
    return ", ".join(visible(str(part), 200) for part in parts if part)


def _people(title: str, report: Mapping[str, Any], key: str, color: bool) -> str:
    people = (report["verdict"] or {}).get(key) or []
    grouped: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for person in people:
        grouped.setdefault((person["host"] or "", person["gpu"] or "", person["why"]), []).append(person)
    table = [
        (
            ranks_of(group) or "-",
            visible(host) or "?",
            visible(gpu) or "-",
            visible(why, _TEXT_MAX),
            _ids(_all_ids(group)),
        )
        for (host, gpu, why), group in grouped.items()
    ]
    return _section(title, _table(table, ("rank", "node", "gpu", "why", "evidence")), color)


def _evidence(report: Mapping[str, Any], color: bool) -> str:
    cited = _cited(report)
    facts = sorted(report["facts"], key=lambda fact: (fact["id"] not in cited, fact["role"] != "cause"))
    shown = [fact for fact in facts if fact["id"] in cited or fact["role"] == "cause"][:EVIDENCE_MAX]
    by_hand = report["job"]["id"] is None
    theirs = _of_people(report["verdict"])
    lines: list[str] = []
    seen: set[tuple[str, str]] = set()
    for fact in shown:
        lines.append(f"{visible(fact['id'])}  {_place(fact, by_hand)}")
        lines += evidence_lines(fact, short=alike(fact) in seen and fact["id"] not in theirs)
        seen.add(alike(fact))
    left = len(report["facts"]) - len(shown)
    if left and lines:
        lines.append(f"{counted(left, 'more fact')} in --json")
    return _section("Evidence", "\n".join(lines), color)


def _place(fact: Mapping[str, Any], by_hand: bool) -> str:
    parts = [_in_file(fact) or visible(fact["producer"])]
    parts.append(f"rank {fact['rank']}" if fact["rank"] is not None else "")
    parts.append(visible(fact["host"]) if fact["host"] else "")
    parts.append(visible(fact["time"] or ""))
    parts.append(writer(fact, by_hand=by_hand))
    return "  ".join(part for part in parts if part)


def _reasoning(report: Mapping[str, Any], color: bool) -> str:
    steps = (step for step in report["inferences"] if not _is_beside(step))
    lines = [f"- {visible(step['text'], 2 * _TEXT_MAX)} [{_rule(step)}]" for step in steps]
    return _section("Reasoning", "\n".join(lines), color)


def _beside(report: Mapping[str, Any], color: bool) -> str:
    """What the verdict does not rest on: each with the first line that says so."""
    facts = {fact["id"]: fact for fact in report["facts"]}
    lines = []
    for step in filter(_is_beside, report["inferences"]):
        place = "".join(_line_of(facts[fact]) for fact in step["from"][:1] if fact in facts)
        lines.append(f"- {visible(step['text'], 2 * _TEXT_MAX)} [{_rule(step)}]{place}")
    return _section("Beside the verdict (inits, paths, versions, settings, clocks)", "\n".join(lines), color)


def _is_beside(step: Mapping[str, Any]) -> bool:
    return str(step["rule"]).startswith(_BESIDE)


def _rule(step: Mapping[str, Any]) -> str:
    return visible(step["rule"]) + (f": {_ids(step['from'])}" if step["from"] else "")


def _node_states(report: Mapping[str, Any], color: bool) -> str:
    keys = ("role", "state_at_start", "state_at_end", "reason", "record")
    grouped: dict[tuple[str, ...], list[str]] = {}
    for node in report["nodes"]:
        grouped.setdefault(tuple(visible(node[key] or "?", _WIDTH) for key in keys), []).append(node["name"])
    table = [(fold(names), *words) for words, names in grouped.items()]
    return _section("Nodes", _table(table, ("nodes", "role", "at start", "at end", "reason", "record")), color)


def _ranks(report: Mapping[str, Any], color: bool) -> str:
    table, header, left = rank_table.rows(report["ranks"], report["transport"] or {}, named(report["verdict"]))
    text = _table(table, header)
    if left:
        text += f"\n{counted(left, 'more group')} of ranks in --json"
    return _section(
        "Ranks (named ones on top, then furthest behind; progress = group: completed/enqueued)", text, color
    )


def _around(report: Mapping[str, Any], color: bool) -> str:
    lines = [
        f"{'path' if '/' in name else 'network'} {visible(name)}{_of_ranks(ranks)}"
        for name, ranks in (report["transport"] or {}).items()
    ]
    for component, versions in (report["versions"] or {}).items():
        words = [visible(v) + (_of_ranks(ranks) if len(versions) > 1 else "") for v, ranks in versions.items()]
        lines.append(f"{visible(component)} {', '.join(words)}")
    return _section("Around the run", "\n".join([*lines, *_timeouts(report)]), color)


def _of_ranks(ranks: Sequence[int]) -> str:
    return f" (ranks {fold_numbers(ranks)})" if ranks else ""


def _timeouts(report: Mapping[str, Any]) -> list[str]:
    """Each clock with the line that tells it, then the defaults of those of which no line was found."""
    facts = {fact["id"]: fact for fact in report["facts"]}
    found = report["timeouts"] or []
    lines = []
    for one in found:
        place = "".join(_line_of(facts[fact]) for fact in one["from"][:1] if fact in facts)
        lines.append(f"timeout of {visible(one['layer'])}: {one['seconds']:.4g} s{place}")
    known = {one["layer"] for one in found}
    infiniband = any("IB" in name for name in report["transport"] or ())
    of_ranks = known - _OF_SLURM  # Slurm's alone tell of no torch and no NCCL that has the others
    for layer in (*((RETRIES,) if infiniband else ()), *_ALWAYS) if of_ranks else ():
        if layer.name not in known:
            lines.append(f"timeout of {layer.name}: no line tells it; default: {layer.default}")
    return lines


def _line_of(fact: Mapping[str, Any]) -> str:
    place = _in_file(fact)
    return f" ({place})" if place else ""


def _in_file(fact: Mapping[str, Any]) -> str:
    """A file that was read as a whole (a dump) has no line."""
    if not fact["file"]:
        return ""
    return visible(fact["file"], 120) + (f":{fact['line']}" if fact["line"] else "")


def gap_lines(report: Mapping[str, Any]) -> list[str]:
    """``n1: nvidia-smi`` and ``n2: nvidia-smi`` with one reason become one line with a folded list."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for gap in report["gaps"]:
        host, what = _split_source(gap["source"])
        grouped.setdefault((visible(what, _TEXT_MAX), visible(gap["why"], _TEXT_MAX)), []).append(host)
    return [f"{what}{' on ' + fold(hosts) if any(hosts) else ''}: {why}" for (what, why), hosts in grouped.items()]


def _gaps(report: Mapping[str, Any], color: bool) -> str:
    lines = [f"- {line}" for line in gap_lines(report)]
    return _section("Not observed (and so not known to be healthy)", "\n".join(lines), color)


def _split_source(source: str) -> tuple[str, str]:
    """(host, what) of ``n1: nvidia-smi``; no host where the first word is none."""
    host, colon, what = source.partition(": ")
    return (host, what) if colon and HOST.match(host) else ("", source)


def _suggestions(report: Mapping[str, Any], color: bool) -> str:
    lines = []
    for item in report["recommendations"]:
        target = f" {visible(item['target'])}" if item["target"] else ""
        lines.append(f"{item['action']}{target}: {visible(item['why'], 6 * _TEXT_MAX)} [{visible(item['rule'])}]")
        lines.extend(f"    {visible(command)}" for command in item["commands"])
    commands = any(item["commands"] for item in report["recommendations"])
    title = "Suggested command (run this yourself)" if commands else "Suggested next step"
    return _section(title, "\n".join([*lines, *_next_steps(report)]), color)


def _next_steps(report: Mapping[str, Any]) -> list[str]:
    """What `explain` says of the class, where no node is spoken of; its commands are the next step else."""
    failure_class = (report["verdict"] or {}).get("class")
    if failure_class not in CLASSES or failure_class in _NO_FAILURE:
        return []
    about_nodes = any(item["target"] for item in report["recommendations"])
    steps = () if about_nodes else steps_of(failure_class)
    lines = [f"  {number}. {step}" for number, step in enumerate(steps, start=1)]
    return [*lines, f"  `nccl-slurm explain {failure_class}` tells how that is proven, and which lines lead to it."]


def _escalation(report: Mapping[str, Any], color: bool) -> str:
    """Reports of earlier versions have no such key."""
    told = report.get("escalation")
    if not told:
        return ""
    lines = [f"{visible(told['why'], 6 * _TEXT_MAX)} [escalation.{visible(told['rule'])}]"]
    lines.append(f"    {visible(told['command'])}")
    title = "Nothing else is left to try here: hand the case on (run this yourself; it sends nothing)"
    return _section(title, "\n".join(lines), color)


def _cited(report: Mapping[str, Any]) -> set[str]:
    verdict = report["verdict"] or {"culprits": [], "suspects": []}
    people = [*verdict["culprits"], *verdict["suspects"], *report["recommendations"]]
    steps = [step for step in report["inferences"] if not _is_beside(step)]
    return {i for person in people for i in person["evidence"]} | {i for step in steps for i in step["from"]}


def _of_people(verdict: Mapping[str, Any] | None) -> set[str]:
    """Ids behind those who are named; of a thousand ranks that wait it is what differs."""
    people = [*verdict["culprits"], *verdict["suspects"]] if verdict else []
    return {person["evidence"][0] for person in people if person["evidence"]}


def _all_ids(people: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(fact for person in people for fact in person["evidence"]))


def _ids(ids: Sequence[str]) -> str:
    more = [f"+{len(ids) - _IDS_MAX}"] if len(ids) > _IDS_MAX else []
    return ", ".join([*(visible(fact) for fact in ids[:_IDS_MAX]), *more])


def _table(table: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """Numbers stay as they were written: a host named 1e5 is no number."""
    return tabulate(table, headers=headers, tablefmt="simple", disable_numparse=True) if table else ""


def _section(title: str, body: str, color: bool) -> str:
    return f"{_style(title, color, 'bold')}\n{body}" if body else ""


def _style(text: str, color: bool, *styles: str) -> str:
    return "".join(_STYLES[style] for style in styles) + text + _RESET if color else text
