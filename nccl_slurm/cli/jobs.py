"""``nccl-slurm jobs``: runs in the store, newest first."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.lookup import open_store
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.clock import rfc3339

__all__ = ["command", "seconds_of"]

_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


def _age(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    """``30m``, ``12h``, ``7d``, ``2w`` → seconds."""
    seconds = seconds_of(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is no age, write 30m, 12h, 7d or 2w")
    return seconds


def seconds_of(text: str) -> float | None:
    match = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    return float(match[1]) * _UNITS[match[2]] if match else None


@click.command()
@click.option("--failed", is_flag=True, help="Only runs that failed: diagnosed, or ended badly out of scope.")
@click.option(
    "--since", metavar="AGE", callback=_age, default="7d", show_default=True, help="Ended or running within this time."
)
@click.option("--node", help="Only runs that had this node.")
@click.option("--user", help="Only runs of this user.")
@click.option("--limit", type=click.IntRange(1, 100000), default=100, show_default=True, help="At most this many.")
@json_option
@config_option
def command(
    failed: bool, since: float, node: str | None, user: str | None, limit: int, as_json: bool, config_path: str | None
) -> None:
    """List runs that the daemon has seen (admins)."""
    store = open_store(config.load(config_path))
    try:
        runs = store.list_runs(failed=failed, since=time.time() - since, node=node, user=user, limit=limit)
        rows = [_row(run, store.report(run.cluster, run.raw_id, run.run)) for run in runs]
    finally:
        store.close()
    click.echo(json.dumps(rows) if as_json else _table(rows))


def _row(run: Any, kept: Any) -> dict[str, Any]:
    verdict = (kept.report["verdict"] if kept else None) or {}
    return {
        "job": run.id,
        "run": run.run,
        "user": run.user,
        "partition": run.partition,
        "nodes": list(run.nodes),
        "state": run.state,
        "end": rfc3339(run.end),
        "status": run.status,
        "handled": run.disposition,
        "class": verdict.get("class"),
        "summary": verdict.get("summary"),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    from tabulate import tabulate

    from nccl_slurm.hosts import fold
    from nccl_slurm.report.visible import visible

    if not rows:
        return "no runs in that time; `nccl-slurm status` says whether the daemon runs"
    shown = [
        [
            *(
                visible(str(row[key] if row[key] is not None else "-"))
                for key in ("job", "run", "user", "state", "end")
            ),
            visible(fold(row["nodes"])),
            row["handled"] if row["status"] == "final" else row["status"],
            visible(row["summary"] or "-"),
        ]
        for row in rows
    ]
    headers = ["job", "run", "user", "state", "end", "nodes", "handled", "verdict"]
    return tabulate(shown, headers=headers, tablefmt="plain", disable_numparse=True)
