"""``nccl-slurm nodes [NODE]``: what the daemon saw of each node, and which ones lose more runs than their peers."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.lookup import open_store
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.clock import rfc3339
from nccl_slurm.errors import InputError

__all__ = ["command"]

EVENTS_SHOWN = 50


@click.command()
@click.argument("node", required=False)
@click.option("--lemons", is_flag=True, help="Runs lost beside those of peers, and seven signals, for each node.")
@click.option("--exclude", is_flag=True, help="Print --exclude=LIST of the flagged nodes, the reasons beside it.")
@json_option
@config_option
def command(node: str | None, lemons: bool, exclude: bool, as_json: bool, config_path: str | None) -> None:
    """List all nodes with their state now, or the events and jobs of NODE (admins)."""
    if (node is not None) + lemons + exclude > 1:
        raise click.UsageError("give one of NODE, --lemons and --exclude")
    loaded = config.load(config_path)
    if lemons or exclude:
        _lemons(loaded, exclude, as_json)
        return
    store = open_store(loaded)
    try:
        value = _all(store) if node is None else _one(store, node)
    finally:
        store.close()
    click.echo(json.dumps(value) if as_json else _text(value))


def _lemons(loaded: config.Config, exclude: bool, as_json: bool) -> None:
    """An exclude list alone goes to standard output, so that it can stand in a command line."""
    from nccl_slurm.cli import lemons

    thresholds = lemons.thresholds_of(loaded)
    store = open_store(loaded)
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
    return [_event(event) for event in sorted(store.last_node_events(), key=lambda event: event.node)]


def _one(store: Any, node: str) -> dict[str, Any]:
    events = store.node_events([node], until=float("inf"))
    runs = store.list_runs(failed=False, since=0.0, node=node, user=None, limit=EVENTS_SHOWN)
    if not events and not runs:
        raise InputError(f"node {node}: never seen; `nccl-slurm nodes` lists those that were")
    jobs = [
        {"job": r.id, "run": r.run, "state": r.state, "end": rfc3339(r.end), "handled": r.disposition} for r in runs
    ]
    return {"node": node, "events": [_event(event) for event in events[-EVENTS_SHOWN:]], "jobs": jobs}


def _event(event: Any) -> dict[str, Any]:
    return {
        "node": event.node,
        "since": rfc3339(event.time),
        "state": event.state,
        "reason": event.reason,
        "by": event.reason_by,
        "source": event.source,
    }


def _text(value: list[dict[str, Any]] | dict[str, Any]) -> str:
    if isinstance(value, list):
        return _table(value) if value else "no node seen yet; `nccl-slurm status` says whether the daemon runs"
    return "\n\n".join(_table(value[part]) if value[part] else f"no {part}" for part in ("events", "jobs"))


def _table(rows: list[dict[str, Any]]) -> str:
    from tabulate import tabulate

    from nccl_slurm.report.visible import visible

    cells = [[visible("-" if cell is None else str(cell)) for cell in row.values()] for row in rows]
    return tabulate(cells, headers=list(rows[0]), tablefmt="plain", disable_numparse=True)
