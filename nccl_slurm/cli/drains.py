"""``nccl-slurm drains``: nodes out of work or recommended for something, what to do first on top."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.lookup import open_history
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.clock import rfc3339
from nccl_slurm.errors import InputError

__all__ = ["command", "recommendation_as_json"]

#: Jobs lost are counted over this time.
LOST_DAYS = 30


@click.command()
@click.option("--node", "nodes", metavar="LIST", help="Only these nodes: n3 or n[1-8].")
@click.option(
    "--action", type=click.Choice(["investigate", "reboot", "replace"]), help="Only what is recommended this."
)
@click.option("--recommended", is_flag=True, help="Only nodes with a recommendation.")
@json_option
@config_option
def command(nodes: str | None, action: str | None, recommended: bool, as_json: bool, config_path: str | None) -> None:
    """List nodes that are down, drained, failing, or recommended for something (admins)."""
    loaded = config.load(config_path)
    names = _names(nodes)
    store = open_history(loaded)
    try:
        _known(store, names)
        rows = _rows(store, names)
    finally:
        store.close()
    shown = [row for row in rows if _wanted(row, action, recommended)]
    if as_json:
        told = [_as_json(row, store.reasons) for row in shown]
        click.echo(json.dumps({"schema": "nccl-slurm/drains/1", "nodes": told}, default=list))
    else:
        click.echo(_text(shown))


def _names(nodes: str | None) -> list[str] | None:
    if nodes is None:
        return None
    from nccl_slurm.hosts import expand

    try:
        return expand(nodes)
    except ValueError as error:
        raise click.UsageError(f"--node: {error}; write n3 or n[1-8]") from None


def _known(store: Any, names: list[str] | None) -> None:
    """A node that nobody has seen is not one that is well. Raises InputError."""
    from nccl_slurm.hosts import fold

    unknown = set(names or ()) - {edge.node for edge in store.last_node_events(names)} if names else set()
    if unknown:
        raise InputError(f"{fold(unknown)}: never seen here; `nccl-slurm nodes` lists the nodes that were")


def _rows(store: Any, names: list[str] | None) -> list[Any]:
    from nccl_slurm.review.drains import drains, is_out

    active = [row for row in store.active_recommendations() if names is None or row.node in names]
    wanted = {row.node for row in active}
    now = [edge for edge in store.last_node_events(names) if is_out(edge.state) or edge.node in wanted]
    shown = [edge.node for edge in now]
    history: dict[str, list[Any]] = {}
    for event in store.node_events(shown, until=float("inf")) if shown else ():
        history.setdefault(event.node, []).append(event)
    lost = store.runs_lost(shown, since=time.time() - LOST_DAYS * 86400)
    told = {edge.reason: store.reasons.classify(edge.reason, edge.reason_by).id for edge in now if edge.reason}
    reasons = {reason: known for reason, known in told.items() if known is not None}
    return drains(now, history, active, lost, store.observed(shown), reasons)


def _wanted(row: Any, action: str | None, recommended: bool) -> bool:
    if action is not None:
        return row.recommendation is not None and row.recommendation.action == action
    return not recommended or row.recommendation is not None


def _as_json(row: Any, reasons: Any) -> dict[str, Any]:
    return {
        "node": row.node,
        "state": row.state,
        "since": rfc3339(row.since),
        "reason": row.reason,
        "reason_by": row.reason_by,
        "reason_class": row.reason_class,
        "jobs_lost": row.jobs_lost,
        "events": [
            {"time": rfc3339(event.time), "state": event.state, "reason": event.reason, "by": event.reason_by}
            for event in row.events
        ],
        "recommendation": None if row.recommendation is None else _asked(row, reasons),
        "opinion": row.opinion,
    }


def _asked(row: Any, reasons: Any) -> dict[str, Any]:
    """The commands as the node is now; none while something is done to it already."""
    from nccl_slurm.recommend.commands import as_it_stands
    from nccl_slurm.recommend.guard import in_progress
    from nccl_slurm.recommend.site import NodeNow
    from nccl_slurm.recommend.step import HEAVY

    node, told = NodeNow(row.state, row.reason), row.recommendation
    held = told.action in HEAVY and in_progress(node, reasons) is not None
    commands = [] if held else list(as_it_stands(told.commands, node, reasons))
    return {**recommendation_as_json(told), "commands": commands}


def recommendation_as_json(row: Any) -> dict[str, Any]:
    """Times as RFC 3339; the run by its job id and number."""
    return {
        "id": row.number,
        "state": row.state,
        "node": row.node,
        "identity": row.identity,
        "action": row.action,
        "rule": row.rule,
        "step": row.step,
        "why": row.why,
        "class": row.failure_class,
        "job": row.job,
        "run": row.run,
        "evidence": list(row.evidence),
        "commands": list(row.commands),
        "opened": rfc3339(row.opened),
        "changed": rfc3339(row.changed),
        "expires": rfc3339(row.expires),
        "until": rfc3339(row.until),
        "by": row.by,
        "decided": rfc3339(row.decided),
        "note": row.note,
    }


def _text(rows: Sequence[Any]) -> str:
    if not rows:
        return "no node is out of work and nothing is recommended; `nccl-slurm status` says whether the daemon runs"
    alike: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        alone = row.recommendation.number if row.recommendation else None
        alike.setdefault((alone, row.state, row.reason, row.reason_by, row.opinion), []).append(row)
    return "\n".join(_block(group) for group in alike.values())


def _block(group: Sequence[Any]) -> str:
    """Nodes that are out for one reason, and of which nothing more is to say, share a block."""
    from nccl_slurm.hosts import fold
    from nccl_slurm.report.visible import visible

    first = group[0]
    since = rfc3339(min(row.since for row in group))
    lost = sum(row.jobs_lost for row in group)
    lines = [f"{fold(row.node for row in group)}  {visible(first.state)} since {since}"]
    if first.reason:
        known = f" ({first.reason_class})" if first.reason_class else ""
        lines.append(f"    reason    {visible(first.reason)}{known}, set by {visible(first.reason_by or 'unknown')}")
    if lost:
        lines.append(f"    lost      {lost} jobs in {LOST_DAYS} days")
    if len(group) == 1:
        lines += [f"    {'events' if not at else '      '}    {_event(event)}" for at, event in enumerate(first.events)]
    lines.append(f"    {_opinion(first)}")
    return "\n".join(lines)


def _event(event: Any) -> str:
    from nccl_slurm.report.visible import visible

    reason = f" ({visible(event.reason)})" if event.reason else ""
    return f"{rfc3339(event.time)} {visible(event.state)}{reason}"


def _opinion(row: Any) -> str:
    from nccl_slurm.report.visible import visible

    told = row.recommendation
    if told is None:
        return f"          {row.opinion}"
    pad = "\n              "
    what = f"#{told.number} {told.state}: {told.action}, step {told.step} ({told.rule})"
    proof = f"evidence: report {told.job}, {', '.join(told.evidence) or '-'}; nccl-slurm review {told.number}"
    return f"{what}{pad}{visible(told.why)}{pad}{proof}"
