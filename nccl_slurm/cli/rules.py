"""``nccl-slurm rules list|compile|test``: the data that decides: line patterns, Xids, other faults, limits, reasons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from nccl_slurm import config, schema
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.cli.rule_files import named, rule_files
from nccl_slurm.config import Config
from nccl_slurm.daemon.evidence import role_of
from nccl_slurm.errors import InputError
from nccl_slurm.history import reasons
from nccl_slurm.model import NodeView, Recommendation
from nccl_slurm.parse.patterns import compile_rows
from nccl_slurm.recommend import policy, record, table
from nccl_slurm.recommend.guard import Case
from nccl_slurm.recommend.judgement import Judgement, judge
from nccl_slurm.recommend.ladder import advise
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.recommend.site import Site, kind_of
from nccl_slurm.report.visible import visible
from nccl_slurm.report.words import counted
from nccl_slurm.tables import packaged_text

__all__ = ["command", "pattern_texts", "policy_of"]

COLUMNS = ("id", "producer", "class", "role", "action", "after", "source")
_MAX_BYTES = 4 * 1024 * 1024
_TEXT_MAX = 1000
_WHERE = "`nccl-slurm bundle JOBID --folder` writes nodes/NODE/record.json"


@click.group()
def command() -> None:
    """The rows that decide what a line or an Xid means, and what may be done with a node."""


@command.command("list")
@config_option
@json_option
def list_rules(config_path: str | None, as_json: bool) -> None:
    """List the rows in force, the package's and the site's from rules.d: line patterns, Xids, other faults,
    limits, reasons of nodes.

    ACTION is the first step, AFTER the one after a reboot that did not help, after two, and so on.
    """
    rows = list(_rows(config.load(config_path)))
    if as_json:
        click.echo(json.dumps(rows))
        return
    from tabulate import tabulate

    click.echo(tabulate([_cells(row) for row in rows], headers=list(COLUMNS), tablefmt="plain", disable_numparse=True))


@command.command("compile")
@config_option
def compile_rules(config_path: str | None) -> None:
    """Print these rows as the one JSON that nodes read (NCCL_SLURM_PATTERNS in capture.conf)."""
    click.echo(compile_rows(*pattern_texts(config.load(config_path))))


@command.command("test")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--reboots", type=click.IntRange(0, 9), default=0, help="Pretend that so many reboots did not help.")
@config_option
@json_option
def test_rules(file: Path, reboots: int, config_path: str | None, as_json: bool) -> None:
    """What the rows in force make of a node record: each fault that root saw, and the step for that node alone.

    FILE is a record as a node ships it (nccl-slurm/node-record/1). Its own role counts; of other nodes, of Slurm and of
    a history nothing is known here but what --reboots pretends.
    """
    loaded = config.load(config_path)
    rows, taken = policy_of(loaded), _record(file)
    found = record.faults(taken, rows)
    judged = judge(found, rows)
    item = advise(_case(taken, reboots, rows, loaded), found)
    told = {"node": taken["node"], "faults": [_fault(one) for one in judged], "not_observed": record.unobserved(taken)}
    if as_json:
        click.echo(json.dumps({**told, "recommendation": _item(item)}))
        return
    for line in _lines(told, item):
        click.echo(visible(line, _TEXT_MAX))


def pattern_texts(loaded: Config) -> tuple[str, list[str]]:
    """The packaged TOML, and the site's files in order of name. Raises ConfigError with the file that is wrong."""
    packaged = packaged_text("patterns.toml")
    site = {path: _checked(path) for path in rule_files(loaded)}
    names = {row["id"] for row in json.loads(compile_rows(packaged, list(site.values())))["row"]} if site else set()
    for path, text in site.items():  # a file may speak of a pattern of another one
        with named(path):
            policy.load([text], names)
    return packaged, list(site.values())


def policy_of(loaded: Config) -> Policy:
    """The decision table with the site's rows. Raises ConfigError with the file that is wrong."""
    return policy.load(pattern_texts(loaded)[1])


def _checked(path: Path) -> str:
    with named(path):
        text = path.read_text(encoding="utf-8")
        compile_rows(text)
        policy.load([text])
        reasons.load([text])
        return text


def _rows(loaded: Config) -> Iterator[dict[str, Any]]:
    """Those in force: a site's row stands in the place of the packaged one of the same id."""
    packaged, site = pattern_texts(loaded)
    rows = policy.load(site)
    faults = table.faults(rows)
    for row in json.loads(compile_rows(packaged, site))["row"]:
        told = {key: row.get(key) for key in ("id", "producer", "class", "role", "source")}
        decides = faults.pop(row["id"], {})
        yield {**told, **{key: decides.get(key) for key in table.KEYS}}
    yield from table.xids(rows)
    yield from faults.values()
    yield from table.limits(rows)
    yield from table.reasons(reasons.load(site))


def _cells(row: dict[str, Any]) -> list[str]:
    shown = {**row, "after": ", ".join(row["after"] or ()), "action": row["action"] or ""}
    if row["final"]:
        shown["action"] += " (final)"
    if "value" in row:
        shown["action"] = f"{row['value']:g}"
    return [str(shown[column] or "") for column in COLUMNS]


def _record(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes() if file.stat().st_size <= _MAX_BYTES else b""
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}; give the path of a node record: {_WHERE}") from None
    try:
        return schema.loads(data, "node-record/1")
    except ValueError as error:
        raise InputError(f"{file}: {error}; give a node record, 4 MiB at most: {_WHERE}") from None


def _case(taken: dict[str, Any], reboots: int, rows: Policy, loaded: Config) -> Case:
    name, role = taken["node"], role_of(taken["node"], taken, ())
    own = record.pretended(taken, role, record.faults(taken, rows), reboots)
    site = Site(kind_of(loaded.site.kind, [taken]), loaded.site.aws_cluster, loaded.site.region)
    return Case(name, rows, NodeView(name, taken["machine"]["identity"], role), {name: own}, site)


def _fault(one: Judgement) -> dict[str, Any]:
    name = one.fault.name if one.fault.code is None else f"xid.{one.fault.code}"
    keys = {"id": name, "class": one.fault.failure_class, "gpu": one.fault.gpu, "hardware": one.hardware}
    return {**keys, "action": one.action, "after": list(one.after), "final": one.final, "why": one.why}


def _item(item: Recommendation | None) -> dict[str, Any] | None:
    keys = ("target", "action", "rule", "step", "why")
    return None if item is None else {**{key: getattr(item, key) for key in keys}, "commands": list(item.commands)}


def _lines(told: dict[str, Any], item: Recommendation | None) -> Iterator[str]:
    yield f"{told['node']}: {counted(len(told['faults']), 'fault')} by root's word"
    for one in told["faults"]:
        steps = ", then ".join([one["action"], *one["after"]])
        yield f"  {one['id']}  {one['class'] or 'no class'}  GPU {one['gpu'] or '-'}  {steps}  {one['why']}"
    for source in told["not_observed"]:
        yield f"  not observed: {source}"
    if item is None:
        yield "no step: no hardware of this node asks for one"
        return
    yield f"{item.action} {item.target}, step {item.step}: {item.why} [{item.rule}]"
    yield from (f"    {line}" for line in item.commands)
