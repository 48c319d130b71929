"""``nccl-slurm rules list``: the data that decides: line patterns and the Xid table."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.config import Config
from nccl_slurm.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["command", "pattern_texts"]

COLUMNS = ("id", "producer", "class", "role", "source")


@click.group()
def command() -> None:
    """The rows that decide what a line or an Xid means."""


@command.command("list")
@config_option
@json_option
def list_rules(config_path: str | None, as_json: bool) -> None:
    """List pattern rows (the package's and the site's from rules.d) and the Xid table."""
    rows = list(_rows(config.load(config_path)))
    if as_json:
        click.echo(json.dumps(rows))
        return
    from tabulate import tabulate

    click.echo(tabulate([[row.get(c) or "" for c in COLUMNS] for row in rows], headers=list(COLUMNS), tablefmt="plain"))


def pattern_texts(loaded: Config) -> tuple[str, list[str]]:
    """The packaged TOML, and the site's files in order of name. Raises ConfigError."""
    folder = Path(loaded.rules.folder)
    try:
        site = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.toml"))]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: {error}; make the files readable UTF-8") from None
    return _packaged("patterns.toml"), site


def _packaged(name: str) -> str:
    return resources.files("nccl_slurm").joinpath("data").joinpath(name).read_text(encoding="utf-8")


def _rows(loaded: Config) -> Iterator[dict[str, Any]]:
    packaged, site = pattern_texts(loaded)
    for text in [packaged, *site]:
        for row in tomllib.loads(text).get("row", []):
            yield {key: row.get(key) for key in COLUMNS}
    for row in tomllib.loads(_packaged("xid.toml")).get("xid", []):
        yield {"id": f"xid.{row['code']}", "producer": "kernel", **{k: row.get(k) for k in ("class", "role", "source")}}
