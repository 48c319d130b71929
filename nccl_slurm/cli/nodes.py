"""``nccl-slurm nodes [NODE]``: states of all nodes; the history of one machine; who loses more runs than peers."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.lookup import open_history
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.clock import rfc3339
from nccl_slurm.errors import InputError

__all__ = ["command"]

EVENTS_SHOWN = 50


@click.command()
@click.argument("node", required=False)
@click.option("--machine", metavar="ID", help="Another machine that had the name, by its identity.")
@click.option("--lemons", is_flag=True, help="Runs lost beside those of peers, and seven signals, for each node.")
@click.option("--exclude", is_flag=True, help="Print --exclude=LIST of the flagged nodes, the reasons beside it.")
@json_option
@config_option
def command(
    node: str | None, machine: str | None, lemons: bool, exclude: bool, as_json: bool, config_path: str | None
) -> None:
    """List all nodes with their state now, or the history of NODE's machine and its runs (admins)."""
    if (node is not None) + lemons + exclude > 1:
        raise click.UsageError("give one of NODE, --lemons and --exclude")
    if machine is not None and node is None:
        raise click.UsageError("--machine needs a NODE")
    loaded = config.load(config_path)
    if lemons or exclude:
        _lemons(loaded, exclude, as_json)
        return
    store = open_history(loaded)
    try:
        value = _all(store) if node is None else _one(store, node, machine)
    finally:
        store.close()
    if as_json:
        click.echo(json.dumps(value))
    else:
        click.echo(_list(value) if isinstance(value, list) else _history(value))


def _lemons(loaded: config.Config, exclude: bool, as_json: bool) -> None:
    """An exclude list alone goes to standard output, so that it can stand in a command line."""
    from nccl_slurm.cli import lemons

    thresholds = lemons.thresholds_of(loaded)
    store = open_history(loaded)
    try:
        view = (lemons.exclude_view if exclude else lemons.lemons_view)(store, time.time(), thresholds)
    finally:
        store.close()
    if as_json or not exclude:
        click.echo(json.dumps(view) if as_json else lemons.lemons_text(view))
        return
    if view["exclude"]:
        click.echo(f"--exclude={view['exclude']}")
    for line in lemons.exclude_reasons(view):
        click.echo(line, err=True)


def _all(store: Any) -> list[dict[str, Any]]:
    return [
        {
            "node": event.node,
            "since": rfc3339(event.time),
            "state": event.state,
            "reason": event.reason,
            "by": event.reason_by,
            "source": event.source,
        }
        for event in sorted(store.last_node_events(), key=lambda event: event.node)
    ]


def _one(store: Any, node: str, identity: str | None) -> dict[str, Any]:
    others = store.generations(node)
    if identity is not None and identity not in {other.identity for other in others}:
        known = ", ".join(dict.fromkeys(other.identity for other in others)) or "none"
        raise InputError(f"node {node}: no machine {identity[:100]} had this name; known: {known}")
    machine = store.machine(node) if identity is None else store.machine_of(identity)
    runs = store.list_runs(failed=False, since=0.0, node=node, user=None, limit=EVENTS_SHOWN)
    if not machine.events and not runs and not others:
        raise InputError(f"node {node}: never seen; `nccl-slurm nodes` lists those that were")
    return {
        "node": node,
        "identity": machine.identity,
        "role": machine.role,
        "since": rfc3339(machine.since),
        "counts": _counts(machine),
        "events": [_event(event) for event in machine.events if event.kind != "job"],
        "jobs": [_job(run) for run in runs],
        "machines": [
            {"identity": one.identity, "since": rfc3339(one.since), "until": rfc3339(one.until)} for one in others
        ],
    }


def _counts(machine: Any) -> dict[str, int]:
    """Runs that the machine had, as far back as its history goes."""
    jobs = list(machine.of_kind("job"))
    failed = [event for event in jobs if event.name == "failed"]
    well = sum(int(event.data.get("count", 1)) for event in jobs if event.name == "well")
    return {"well": well, "failed": len(failed), "named": sum(bool(event.data.get("named")) for event in failed)}


def _event(event: Any) -> dict[str, Any]:
    return {
        "time": rfc3339(event.time),
        "uncertainty_s": event.uncertainty_s,
        "kind": event.kind,
        "name": event.name,
        "text": event.text,
        "class": event.failure_class,
        "source": event.source,
        "data": dict(event.data),
    }


def _job(run: Any) -> dict[str, Any]:
    return {"job": run.id, "run": run.run, "state": run.state, "end": rfc3339(run.end), "handled": run.disposition}


def _list(rows: list[dict[str, Any]]) -> str:
    return _table(rows) if rows else "no node seen yet; `nccl-slurm status` says whether the daemon runs"


def _history(value: dict[str, Any]) -> str:
    """The newest events and runs; the JSON has all events."""
    counts = value["counts"]
    head = [
        f"machine   {value['identity']}, {value['role']}, {value['node']} since {value['since'] or 'not observed'}",
        f"runs      {counts['well']} well, {counts['failed']} failed, {counts['named']} of them with this node named",
    ]
    head += [
        f"earlier   {one['identity']} from {one['since']} to {one['until']}"
        for one in value["machines"]
        if one["until"]
    ]
    events = [_shown(event) for event in value["events"][-EVENTS_SHOWN:]]
    more = len(value["events"]) - len(events)
    parts = [
        "\n".join(_visible(line) for line in head),
        (f"{more} older events: --json\n" if more else "") + (_table(events) if events else "no events"),
        _table(value["jobs"]) if value["jobs"] else "no jobs",
    ]
    return "\n\n".join(parts)


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    data = event["data"]
    words = {"boot": _boot, "state": _state, "fault": _fault, "replaced": _replaced}.get(event["kind"])
    detail = words(event, data) if words else " ".join(f"{key} {value}" for key, value in sorted(data.items()))
    return {
        "time": event["time"],
        "event": event["kind"],
        "what": event["name"],
        "detail": detail or "-",
        "source": event["source"],
    }


def _boot(_: dict[str, Any], data: dict[str, Any]) -> str:
    return f"by {data.get('by') or 'nobody known'}: {data.get('reason')}" if data else ""


def _state(event: dict[str, Any], data: dict[str, Any]) -> str:
    if not event["text"]:
        return ""
    whose = data.get("owner") or "unknown"
    hardware = data.get("hardware")
    says = ", hardware" if hardware is True else ", not hardware" if hardware is False else ""
    return f"{event['text']} [{data.get('by') or '?'}; {whose}{says}]"


def _fault(event: dict[str, Any], data: dict[str, Any]) -> str:
    which = [f"Xid {data['xid']}"] if "xid" in data else []
    which += [f"GPU {data['gpu']}"] if "gpu" in data and str(data["gpu"]) not in event["text"] else []
    times = [f"{data['count']} times"] if data.get("count", 1) != 1 else []
    return ", ".join([*which, *times, event["text"]])


def _replaced(event: dict[str, Any], data: dict[str, Any]) -> str:
    return f"{'came from' if event['name'] == 'came' else 'went to'} {data.get('other')}"


def _visible(text: str) -> str:
    from nccl_slurm.report.visible import visible

    return visible(text)


def _table(rows: list[dict[str, Any]]) -> str:
    from tabulate import tabulate

    cells = [[_visible("-" if cell is None else str(cell)) for cell in row.values()] for row in rows]
    return tabulate(cells, headers=list(rows[0]), tablefmt="plain", disable_numparse=True)
