"""Rows as data, in TOML: the files of ``data/``, and a site's texts of the same form (``rules.d``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import resources
from typing import Any

from nccl_slurm.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["packaged", "packaged_text", "rows_of", "tables_of"]


def packaged(name: str) -> dict[str, Any]:
    """The tables of ``data/NAME``."""
    return tables_of(packaged_text(name), name)


def packaged_text(name: str) -> str:
    return resources.files("nccl_slurm").joinpath(f"data/{name}").read_text(encoding="utf-8")


def tables_of(text: str, what: str) -> dict[str, Any]:
    """Raises ConfigError that begins with ``what``."""
    try:
        return dict(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{what}: not TOML: {error}") from None


def rows_of(tables: Mapping[str, Any], name: str, what: str) -> list[dict[str, Any]]:
    """Of ``[[NAME]]``; empty where there are none. Raises as `tables_of`."""
    rows = tables.get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{what}: [[{name}]] must be an array of tables")
    return rows
