"""``nccl-slurm config show|check``."""

from __future__ import annotations

import json

import click

from nccl_slurm import config
from nccl_slurm.cli.options import config_option, json_option

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
    """Read the file; exit 2 with file and key where it is wrong."""
    click.echo(f"{config.load(config_path).source}: good")
