"""``nccl-slurm nodes [NODE]``: what the daemon saw of each node."""

from __future__ import annotations

import json
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
@json_option
@config_option
def command(node: str | None, as_json: bool, config_path: str | None) -> None:
    """List all nodes with their state now, or the events and jobs of NODE (admins)."""
    store = open_store(config.load(config_path))
    try:
        value = _all(store) if node is None else _one(store, node)
    finally:
        store.close()
    click.echo(json.dumps(value) if as_json else _text(value))


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
