"""The few lines that tell what an installation will be, before the list of its files. Pure."""

from __future__ import annotations

from nccl_slurm.install.facts import Facts
from nccl_slurm.install.options import Options
from nccl_slurm.install.plan import Plan

__all__ = ["NO_SHARED", "outline"]

NO_SHARED = "records stay on the nodes, and reports lack what nodes know; --shared gives a folder"


def outline(role: str, options: Options, known: Facts, wanted: Plan) -> list[str]:
    layout, at = options.layout, wanted.at
    count = sum(entry.kind == "file" and entry.path.startswith(layout.code + "/") for entry in wanted.entries)
    told = [
        f"code       {layout.code}, {count} files, run by {known.python.path}",
        f"hooks      {layout.hooks}",
        f"settings   {layout.capture_conf}{_stays(known.capture_conf)}",
        f"spool      {at.spool}",
        f"SHARED     {at.shared or 'none: ' + NO_SHARED}",
    ]
    if role == "controller":
        told += _of_controller(options, known, wanted)
    return [*told, "slurm.conf is not touched: Slurm runs none of this before a person puts the lines in"]


def _of_controller(options: Options, known: Facts, wanted: Plan) -> list[str]:
    layout = options.layout
    user = known.ship_user.name if known.ship_user else "root"
    slurm_conf = options.slurm_conf or "where Slurm has it"
    return [
        f"settings   {layout.daemon_conf}{_stays(known.daemon_conf)}",
        f"daemon     {layout.venv}, store in {layout.state}, records of {user} are believed",
        f"events     {wanted.at.events}, owned by {known.slurm_user.name if known.slurm_user else '?'}",
        f"Slurm      commands in {known.slurm_bin or '/usr/bin'}, slurm.conf {slurm_conf}",
    ]


def _stays(text: str | None) -> str:
    return ", is there and stays" if text is not None else ""
