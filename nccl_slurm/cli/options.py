"""Options that several subcommands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import click

__all__ = ["color_option", "config_option", "json_option", "wants_color"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

config_option: Decorator = click.option(
    "--config",
    "config_path",
    metavar="FILE",
    help="nccl-slurm.toml (default: $NCCL_SLURM_CONFIG, then /etc/nccl-slurm/nccl-slurm.toml).",
)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
color_option: Decorator = click.option("--no-color", is_flag=True, help="No colour, not even on a terminal.")


def wants_color(no_color: bool) -> bool:
    """Colour only on a terminal, and not where NO_COLOR is set (no-color.org)."""
    return not no_color and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
