"""``nccl-slurm explain``: a word of a report, a drain reason, an Xid or a line, in plain words."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.cli.rules import pattern_texts
from nccl_slurm.explain.catalogue import catalogue
from nccl_slurm.explain.entry import SCHEMA, Entry
from nccl_slurm.explain.lookup import look_up
from nccl_slurm.explain.text import render, table
from nccl_slurm.parse.patterns import compile_rows, rows_of

__all__ = ["command"]


@click.command()
@click.argument("word", nargs=-1)
@click.option("--list", "all_words", is_flag=True, help="All words that are known.")
@json_option
@config_option
def command(word: tuple[str, ...], all_words: bool, as_json: bool, config_path: str | None) -> None:
    """Explain WORD: what it means, how it is proven, what to do, and where this comes from.

    WORD is a class (collective-missing-rank), an action, the id of a pattern row or reading (nccl.ib-completion), an
    Xid (79, xid79, xid 79), a reason of Slurm ("Kill task failed"), a line of a log, the id of a finding of the doctor
    (node.gpu-count), or a page of the guide (scenario.timeout, operations.reboot, performance.bandwidth).

    \b
    Exit status: 0 explained; 1 no such word, the nearest ones are named; 2 usage or configuration.
    """
    if bool(word) == all_words:
        raise click.UsageError("give either a WORD or --list")
    rows = rows_of(compile_rows(*pattern_texts(config.load(config_path))))
    entries = catalogue(rows)
    found = entries if all_words else look_up(" ".join(word), entries, rows)
    if as_json:
        click.echo(json.dumps({"schema": SCHEMA, "entries": [entry.to_json() for entry in found]}))
    elif all_words:
        click.echo(table(found))
    else:
        click.echo(render(found, _actions(entries)), nl=False)


def _actions(entries: Sequence[Entry]) -> dict[str, str]:
    return {entry.name: entry.means for entry in entries if entry.kind == "action"}
