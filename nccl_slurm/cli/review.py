"""``nccl-slurm review``: what is recommended for machines, and what a person says to it. Nothing is carried out."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.drains import recommendation_as_json
from nccl_slurm.cli.jobs import seconds_of
from nccl_slurm.cli.lookup import check_store, open_history
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.clock import rfc3339
from nccl_slurm.config import Config
from nccl_slurm.errors import InputError, NotYours, StoreBusy

__all__ = ["command"]

RUN_YOURSELF = "Suggested command (run this yourself):"
_KEYS = {"a": "accept", "d": "decline", "s": "snooze", "n": "next", "q": "quit"}
_QUESTION = "[a]ccept, [d]ecline, [s]nooze, [n]ext, [q]uit"


@click.command()
@click.argument("which", metavar="[NODE|ID]", required=False)
@click.option("--accept", "decision", flag_value="accept", help="It is right; prints the command to run.")
@click.option("--decline", "decision", flag_value="decline", help="It is wrong; not asked again for this evidence.")
@click.option("--snooze", metavar="TIME", help="Ask again after this time: 30m, 2h, 7d.")
@click.option("--note", default="", help="Why; kept in the audit log.")
@click.option("--log", is_flag=True, help="The audit log instead, newest first.")
@json_option
@config_option
def command(
    which: str | None,
    decision: str | None,
    snooze: str | None,
    note: str,
    log: bool,
    as_json: bool,
    config_path: str | None,
) -> None:
    """Show and decide recommendations for nodes (admins; deciding: root or the daemon's user).

    Without a decision: shows what is open, or asks one by one where this is a terminal. Runs nothing and changes
    nothing in Slurm: accepting prints the exact command.
    """
    wanted = _decision(which, decision, snooze)
    if log and wanted is not None:
        raise click.UsageError("--log shows the audit log and decides nothing: give it without a decision")
    loaded = config.load(config_path)
    if log:
        _show_log(loaded, which, as_json)
    elif wanted is not None and which is not None:
        _decide(loaded, _the_one(loaded, which), *wanted, note=note, as_json=as_json)
    elif which is None and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
        _ask_one_by_one(loaded)
    else:
        _show(loaded, which, as_json)


def _decision(which: str | None, decision: str | None, snooze: str | None) -> tuple[str, float] | None:
    if decision is None and snooze is None:
        return None
    if decision is not None and snooze is not None:
        raise click.UsageError("one decision at a time: --accept, --decline or --snooze")
    if which is None:
        raise click.UsageError("give the NODE or the ID that this decides")
    return decision or "snooze", _seconds(snooze) if snooze is not None else 0.0


def _seconds(snooze: str) -> float:
    """Raises UsageError, after which a prompt asks again."""
    from nccl_slurm.review.decision import LONGEST_SNOOZE_S

    seconds = seconds_of(snooze)
    if not seconds:
        raise click.UsageError(f"--snooze: {snooze!r} is no time, write 30m, 2h or 7d")
    if seconds > LONGEST_SNOOZE_S:
        raise click.UsageError(f"--snooze: {snooze} is too long, 90d is the most; --decline ends it for good")
    return seconds


def _read(store: Any, which: str | None) -> list[Any]:
    if which is None:
        return list(store.active_recommendations())
    number = _number(which)
    found = None if number is None else store.recommendation(number)
    if found is not None:
        return [found]
    return list(store.recommendations_on(which))


def _number(which: str) -> int | None:
    """Of a recommendation: ``7`` or ``#7``."""
    found = re.fullmatch(r"#?([0-9]{1,9})", which)
    return int(found.group(1)) if found else None


def _the_one(loaded: Config, which: str) -> Any:
    from nccl_slurm.history.rows import ACTIVE

    with open_history(loaded) as store:
        rows = _read(store, which)
        unknown = _unknown(store, which)
    active = [row for row in rows if row.state in ACTIVE]
    if not rows:
        raise InputError(unknown)
    return (active or rows)[0]


def _unknown(store: Any, which: str) -> str:
    if re.fullmatch(r"#?[0-9]+", which, re.ASCII):
        return f"{which}: no recommendation has this number; `nccl-slurm review` lists those that are open"
    known = store.machine(which).events or store.last_node_events([which])
    if not known:
        return f"{which}: no such node is known here; `nccl-slurm nodes` lists those that are"
    return f"{which}: nothing is recommended for this node; `nccl-slurm nodes {which}` shows its history"


def _show(loaded: Config, which: str | None, as_json: bool) -> None:
    with open_history(loaded) as store:
        rows = _read(store, which)
        if which is not None and not rows:
            raise InputError(_unknown(store, which))
        if as_json:
            shown = [_as_json(loaded, store, row) for row in rows]
            text = json.dumps({"schema": "nccl-slurm/review/1", "recommendations": shown})
        else:
            text = "\n\n".join(_text(loaded, store, row) for row in rows) or "nothing is open"
    click.echo(text)


def _as_json(loaded: Config, store: Any, row: Any) -> dict[str, Any]:
    now = _now(store, row)
    shown = None if now is None else {**vars(now), "jobs": [vars(job) for job in now.jobs], "seen": rfc3339(now.seen)}
    told = {**recommendation_as_json(row), "commands": _runnable(loaded, row, now)}
    return {**told, "outcome": _outcome(loaded, store, row), "now": shown}


def _now(store: Any, row: Any) -> Any:
    """None for what is closed."""
    from nccl_slurm.history.rows import ACTIVE
    from nccl_slurm.review.now import as_it_is, runs_there

    if row.state not in ACTIVE:
        return None
    seen = store.value("heartbeat")
    there = runs_there(store.list_runs(node=row.node, since=seen)) if seen else []
    edge = next(iter(store.last_node_events([row.node])), None)
    return as_it_is(row, store.machine_of(row.identity), edge, there, seen, store.reasons)


def _shown_now(now: Any) -> list[str]:
    from nccl_slurm.report.visible import visible

    return [] if now is None else [f"    now       {visible(line)}" for line in now.lines()]


def _text(loaded: Config, store: Any, row: Any) -> str:
    from nccl_slurm.report.visible import visible

    lines = [
        f"#{row.number} {row.node}: {row.action}, step {row.step} ({row.rule}), {row.state}",
        f"    why       {visible(row.why)}",
        f"    machine   {visible(row.identity)}",
        f"    verdict   {row.failure_class}, job {row.job} run {row.run}; nccl-slurm report {row.job} --run {row.run}",
        *[f"    evidence  {line}" for line in _evidence(store, row)],
        f"    opened    {rfc3339(row.opened)}, expires {rfc3339(row.expires)}",
    ]
    if row.by:
        note = f": {visible(row.note)}" if row.note else ""
        until = f" until {rfc3339(row.until)}" if row.until else ""
        lines.append(
            f"    decided   {f'{_decided(row)}{until} '.lstrip()}by {visible(row.by)} {rfc3339(row.decided)}{note}"
        )
    came = _outcome(loaded, store, row)
    if came is not None:
        lines.append(f"    outcome   {came}")
    now = _now(store, row)
    return "\n".join([*lines, *_shown_now(now), *_commands(loaded, row, now)])


def _decided(row: Any) -> str:
    """The person's word; what became of it after that is the row's state."""
    words = {"done": "accepted", "accepted": "accepted", "declined": "declined", "snoozed": "snoozed"}
    return words.get(row.state, "")


def _outcome(loaded: Config, store: Any, row: Any) -> str | None:
    from nccl_slurm.cli.rules import policy_of
    from nccl_slurm.review.outcome import outcome

    if row.state not in ("accepted", "done"):
        return None
    found = outcome(row, store.machine_of(row.identity), policy_of(loaded))
    return None if found is None else found.text


def _evidence(store: Any, row: Any) -> list[str]:
    """The report's own lines; what retention has taken away is said."""
    from nccl_slurm.report.visible import visible

    kept = store.report(*row.key)
    if kept is None:
        return [f"the report of job {row.job} is no longer kept"]
    facts = {fact["id"]: fact for fact in kept.report["facts"]}
    told = [facts[name] for name in row.evidence if name in facts]
    return [f"{fact['id']} {_place(fact)} {visible(fact['text'], 160)}" for fact in told]


def _place(fact: Mapping[str, Any]) -> str:
    from nccl_slurm.report.visible import visible

    return f"{visible(fact['file'] or fact['producer'])}:{fact['line'] or '-'}"


def _runnable(loaded: Config, row: Any, now: Any) -> list[str]:
    """None for what is closed, nor for what is not to be run now."""
    from nccl_slurm.cli.rule_files import reasons_of
    from nccl_slurm.recommend.commands import as_it_stands
    from nccl_slurm.recommend.site import NodeNow

    if now is None or now.held:
        return []
    return list(as_it_stands(row.commands, NodeNow(now.state, now.reason), reasons_of(loaded)))


def _commands(loaded: Config, row: Any, now: Any) -> list[str]:
    from nccl_slurm.report.visible import visible

    lines = [f"        {visible(line)}" for line in _runnable(loaded, row, now)]
    return [f"    {RUN_YOURSELF}", *lines] if lines else []


def _decide(loaded: Config, row: Any, decision: str, seconds: float, *, note: str, as_json: bool = False) -> None:
    from nccl_slurm.report.visible import visible
    from nccl_slurm.review import decision as decide

    who, now = decide.person(daemon_uid=_owner(loaded)), time.time()
    if decision == "accept":
        after = decide.accept(row, who, note, now)
    elif decision == "decline":
        after = decide.decline(row, who, note, now)
    else:
        after = decide.snooze(row, who, note, now, seconds)
    around = _write(loaded, row, after, decide.line(after, who, now))
    if as_json:
        click.echo(json.dumps({**recommendation_as_json(after), "commands": _runnable(loaded, after, around)}))
        return
    until = f" until {rfc3339(after.until)}" if after.until else ""
    by = visible(after.by or "")
    click.echo(f"#{row.number} {row.node}: {after.state}{until} by {by}; nothing was changed in Slurm")
    if decision == "accept":
        click.echo("\n".join([*_shown_now(around), *_commands(loaded, after, around)]))


def _owner(loaded: Config) -> int | None:
    """Whose the store's file is: the daemon's user. None for a store without a file."""
    import os

    try:
        return None if loaded.store_file is None else os.stat(loaded.store_file).st_uid
    except OSError:
        return None


def _write(loaded: Config, before: Any, after: Any, line: Any) -> Any:
    """How things are there now."""
    import os

    from nccl_slurm.cli.rule_files import reasons_of
    from nccl_slurm.history.store import Store
    from nccl_slurm.review import decision as decide

    check_store(loaded)
    if loaded.store_file is not None and not os.access(loaded.store_file, os.W_OK):
        raise NotYours(f"{loaded.store_file}: not writable for this user; decide as root or as the daemon's user")
    with Store.open(loaded.store_url, password=loaded.store_password()) as store:
        store.reasons = reasons_of(loaded)
        if not store.save_recommendations([(after, line)], was=[before]):
            raise StoreBusy(f"recommendation {before.number} changed meanwhile; look at it again and decide then")
        machine = store.machine_row(after.identity)
        if machine is not None:
            store.add_machine_events(machine.number, [decide.event(after)])
        return _now(store, after)


def _ask_one_by_one(loaded: Config) -> None:
    from nccl_slurm.history.rows import ACTIVE

    with open_history(loaded) as store:
        rows = [row for row in _read(store, None) if row.state in ACTIVE and row.state != "accepted"]
    if not rows:
        click.echo("nothing is open")
    for row in rows:
        with open_history(loaded) as store:  # not held while a person thinks
            text = _text(loaded, store, row)
        click.echo(text)
        word = click.prompt(_QUESTION, type=click.Choice(list(_KEYS)), default="n")
        if _KEYS[word] == "quit":
            return
        if _KEYS[word] != "next":
            _ask_further(loaded, row, _KEYS[word])


def _ask_further(loaded: Config, row: Any, decision: str) -> None:
    from nccl_slurm.report.visible import visible

    seconds = 0.0
    if decision == "snooze":
        seconds = click.prompt("for how long (30m, 2h, 7d)", default="2h", value_proc=_seconds)
    note = click.prompt("note", default="", show_default=False)
    try:
        _decide(loaded, row, decision, seconds, note=note)
    except (InputError, StoreBusy) as error:  # it was decided meanwhile; the others can still be decided
        click.echo(visible(str(error)), err=True)


def _show_log(loaded: Config, which: str | None, as_json: bool) -> None:
    number = None if which is None else _number(which)
    with open_history(loaded) as store:
        rows: Sequence[Any] = store.audit_log(number=number) if number is not None else ()
        rows = rows or store.audit_log(which)
    if as_json:
        click.echo(json.dumps([{**vars(row), "at": rfc3339(row.at)} for row in rows]))
        return
    click.echo("\n".join(_log_line(row) for row in rows) or "the audit log is empty")


def _log_line(row: Any) -> str:
    from nccl_slurm.report.visible import visible

    sudo = f" (sudo: {row.sudo_user})" if row.sudo_user else ""
    text = f": {row.text}" if row.text else ""
    who = f"{rfc3339(row.at)} {row.who}{sudo} on {row.host}"
    return visible(f"{who}: #{row.recommendation} {row.node} {row.what}{text}")
