"""``nccl-slurm config show|check``."""

from __future__ import annotations

import json

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option, json_option
from nccl_slurm.errors import ConfigError

__all__ = ["command"]


@click.group()
def command() -> None:
    """The configuration in force."""


@command.command()
@config_option
@json_option
def show(config_path: str | None, as_json: bool) -> None:
    """Print every key with its value."""
    loaded = config.load(config_path)
    if as_json:
        click.echo(json.dumps({"source": loaded.source, **dict(config.flat(loaded))}))
        return
    click.echo(f"# {loaded.source}")
    for key, value in config.flat(loaded):
        click.echo(f"{key} = {json.dumps(value)}")


@command.command()
@config_option
def check(config_path: str | None) -> None:
    """Read the file and look at what it names on this host; exit 2 with file, key and remedy where it is wrong."""
    from nccl_slurm.config_check import findings
    from nccl_slurm.report.visible import visible

    loaded = config.load(config_path)
    found = list(findings(loaded))
    for one in found:
        click.echo(visible(f"{'error' if one.error else 'warning'}: {loaded.source}: {one.text}"))
    wrong = sum(one.error for one in found)
    if wrong:
        raise ConfigError(f"{loaded.source}: {wrong} error{'s' if wrong > 1 else ''}; see the lines above")
    click.echo(f"{loaded.source}: good")
