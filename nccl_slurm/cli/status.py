"""``nccl-slurm status``: is the daemon alive, what waits, what went wrong."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.lookup import open_store
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.clock import rfc3339
from nccl_slurm.config import Config
from nccl_slurm.errors import ConfigError

__all__ = ["command"]

#: Ten heartbeats of the daemon's 30 s.
SILENT_S = 300.0
_ASKED = {"pyslurm": "pyslurm for nodes, jobs and comments, by its commands for all else", "commands": "its commands"}
_RULES_CHANGED = ", changed since the daemon started: restart it, then give the nodes theirs (docs/logs.md)"
_CHANGED = ", changed since the daemon started: restart it"


@click.command()
@json_option
@config_option
def command(as_json: bool, config_path: str | None) -> None:
    """Show the daemon's heartbeat, counts, comments that could not be written, refused records (admins)."""
    loaded = config.load(config_path)
    store = open_store(loaded)
    try:
        value = _status(store, loaded)
    finally:
        store.close()
    click.echo(json.dumps(value) if as_json else _text(value))


def _status(store: Any, loaded: Config) -> dict[str, Any]:
    source, started = loaded.source, store.value("started")
    beat = store.value("heartbeat")
    age = None if beat is None else time.time() - float(beat)
    return {
        "config": source,
        "config_changed": _changed_since(source, started),
        "rules": _rules(loaded, started),
        "daemon": _word(age, stopped=bool(store.value("stopped"))),
        "heartbeat": rfc3339(float(beat)) if beat else None,
        "lease": _lease(store.holder()),
        "standbys": [
            {"host": one.host, "pid": one.pid, "seen_s": round(one.seen_s), "reaches_slurm": one.reaches_slurm}
            for one in store.standbys()
        ],
        "slurm": "pyslurm" if store.value("pyslurm") else "commands",
        "counts": store.comment_counts(),
        "comments": [
            {"job": row.id, "run": row.run, "state": row.state, "field": row.field, "why": row.why, "text": row.text}
            for row in store.comments_given_up()
        ],
        "notes": [
            {
                "kind": note.kind,
                "text": note.text,
                "last": rfc3339(note.at),
                "count": note.count,
            }
            for note in store.notes()
        ],
    }


def _lease(holder: Any) -> dict[str, Any] | None:
    """None: the store serves one host, or nobody works."""
    if holder is None:
        return None
    return {"host": holder.host, "pid": holder.pid, "since": rfc3339(holder.since), "runs_out_s": round(holder.left_s)}


def _changed_since(path: str, started: int | None) -> bool:
    try:
        return started is not None and os.stat(path).st_mtime > started + 1
    except OSError:
        return False


def _rules(loaded: Config, started: int | None) -> dict[str, Any]:
    """The site's files as they are now; ``broken`` says why the daemon would not start with them."""
    from nccl_slurm.cli.rule_files import rule_files
    from nccl_slurm.cli.rules import pattern_texts

    files, broken = rule_files(loaded), None
    try:
        pattern_texts(loaded)
    except ConfigError as error:
        broken = str(error)
    folder = loaded.rules.folder
    changed = any(_changed_since(str(path), started) for path in (folder, *files))
    return {"folder": folder, "files": [path.name for path in files], "changed": changed, "broken": broken}


def _rules_line(rules: dict[str, Any]) -> str:
    files = ", ".join(rules["files"]) or "none of the site's"
    after = f"; BROKEN: {rules['broken']}" if rules["broken"] else _RULES_CHANGED if rules["changed"] else ""
    return f"rules     {files} in {rules['folder']}{after}"


def _word(age: float | None, *, stopped: bool) -> str:
    if age is None:
        return "never ran"
    if stopped:
        return "stopped"
    return "alive" if age < SILENT_S else "silent"


def _hosts(lease: dict[str, Any] | None, standbys: list[dict[str, Any]]) -> list[str]:
    """Nothing of a daemon that is alone and has no lease."""
    lines = []
    if lease:
        late = "" if lease["runs_out_s"] > 0 else ", has run out"
        lines.append(f"lease     {lease['host']} (pid {lease['pid']}) since {lease['since']}{late}")
    for one in standbys:
        slurm = "" if one["reaches_slurm"] else "; Slurm does not answer there"
        lines.append(f"stand-by  {one['host']} (pid {one['pid']}), seen {one['seen_s']} s ago{slurm}")
    return lines


def _text(value: dict[str, Any]) -> str:
    from nccl_slurm.report.visible import visible

    lines = [
        f"daemon    {value['daemon']}, last heartbeat {value['heartbeat'] or 'never'}",
        f"config    {value['config']}{_CHANGED if value['config_changed'] else ''}",
    ]
    lines += [_rules_line(value["rules"])]
    lines += _hosts(value["lease"], value["standbys"])
    lines += [f"slurm     asked by {_ASKED[value['slurm']]}"]
    lines += [f"comments  {count} {name}" for name, count in value["counts"].items()]
    lines += [
        f"comment   job {row['job']} run {row['run']}: {row['state']}; {row['why'] or 'waits for its turn'}"
        for row in value["comments"]
    ]
    lines += [f"note      {note['last']} {note['kind']} ({note['count']}x): {note['text']}" for note in value["notes"]]
    return "\n".join(visible(line) for line in lines)
