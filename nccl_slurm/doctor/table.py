"""Rows of ``data/doctor.toml``: what machines are measured by. Other tables in it belong to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from nccl_slurm.errors import ConfigError
from nccl_slurm.tables import packaged_text, tables_of

__all__ = ["Instance", "Table", "Threshold", "load", "table"]


@dataclass(frozen=True)
class Instance:
    """``efa`` None: not known. ``nvlinks``: of each GPU. ``mesh``: they join it to some of its peers alone.
    ``gpudirect``: its EFA cards may reach the GPUs' memory."""

    type: str
    gpus: int
    nvlinks: int
    nvswitch: bool
    nvme: bool
    source: str
    efa: int | None = None
    mesh: bool = False
    gpudirect: bool = True

    @property
    def efa_is_an_option(self) -> bool:
        """Whether many launch it without: one card, or cards that don't reach the GPUs, gain little."""
        return self.efa == 1 or not self.gpudirect


@dataclass(frozen=True)
class Threshold:
    id: str
    value: float
    means: str
    source: str


@dataclass(frozen=True)
class Table:
    instances: Mapping[str, Instance]
    thresholds: Mapping[str, Threshold]

    def __getitem__(self, name: str) -> float:
        return self.thresholds[name].value

    def instance(self, name: str | None) -> Instance | None:
        return self.instances.get((name or "").strip().removeprefix("ml."))


@cache
def table() -> Table:
    """The packaged one."""
    return load(packaged_text("doctor.toml"))


def load(text: str) -> Table:
    """Raises ConfigError with the row that is wrong."""
    rows = tables_of(text, "doctor.toml")
    return Table(
        {one.type: one for one in (_row(Instance, row, "type") for row in rows.get("instance", ()))},
        {one.id: one for one in (_row(Threshold, row, "id") for row in rows.get("threshold", ()))},
    )


_KINDS = {"str": str, "int": int, "bool": bool, "float": (int, float), "int | None": int}


def _row(kind: Any, row: Mapping[str, Any], name: str) -> Any:
    what = f"doctor.toml: {kind.__name__.lower()} {row.get(name)!r}"
    known = {one.name: str(one.type) for one in fields(kind)}
    for key, value in row.items():
        if key not in known or not isinstance(value, _KINDS[known[key]]):  # type: ignore[arg-type]
            raise ConfigError(f"{what}: {key} is unknown, or {value!r} is of the wrong kind")
    if not row.get("source"):
        raise ConfigError(f"{what}: its source is missing")
    try:
        return kind(**row)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from None
