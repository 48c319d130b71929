"""``nccl-slurm rules list|compile``: the data that decides: line patterns and the Xid table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.config import Config
from nccl_slurm.errors import ConfigError
from nccl_slurm.parse.patterns import compile_rows

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


@command.command("compile")
@config_option
def compile_rules(config_path: str | None) -> None:
    """Print these rows as the one JSON that nodes read (NCCL_SLURM_PATTERNS in capture.conf)."""
    click.echo(compile_rows(*pattern_texts(config.load(config_path))))


def pattern_texts(loaded: Config) -> tuple[str, list[str]]:
    """The packaged TOML, and the site's files in order of name. Raises ConfigError with the file that is wrong."""
    site = [_checked(path) for path in sorted(Path(loaded.rules.folder).glob("*.toml"))]
    return resources.files("nccl_slurm").joinpath("data").joinpath("patterns.toml").read_text(encoding="utf-8"), site


def _checked(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
        compile_rows(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}; make it readable UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}; mend the row, or move the file away") from None
    return text


def _rows(loaded: Config) -> Iterator[dict[str, Any]]:
    """Those in force: a site's row stands in the place of the packaged one of the same id."""
    table = json.loads(compile_rows(*pattern_texts(loaded)))
    for row in table["row"]:
        yield {key: row.get(key) for key in COLUMNS}
    for row in table["xid"]:
        yield {"id": f"xid.{row['code']}", "producer": "kernel", **{k: row.get(k) for k in ("class", "role", "source")}}
