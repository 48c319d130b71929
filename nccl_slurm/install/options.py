"""What install.sh was asked for, checked before anything is looked at."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass
from typing import Sequence

from nccl_slurm.errors import InputError
from nccl_slurm.install.layout import Layout

__all__ = ["Options", "parse"]

#: Paths go into sh, TOML and systemd units unquoted: characters that mean something in one of them are refused.
_PATH = re.compile(r"/[A-Za-z0-9._/+@:=,-]*\Z")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_FOLDERS = (
    "prefix",
    "hooks",
    "conf",
    "shared",
    "spool",
    "python",
    "root",
    "wheels",
    "slurm_bin",
    "slurm_conf",
    "patterns",
)


@dataclass(frozen=True)
class Options:
    """None: not given. ``roles``: node, controller, or both (of --uninstall; empty: what is there)."""

    mode: str
    roles: tuple[str, ...]
    layout: Layout
    shared: str | None
    spool: str | None
    python: str | None
    patterns: str | None
    wheels: str | None
    extras: tuple[str, ...]
    slurm_user: str | None
    ship_user: str | None
    slurm_bin: str | None
    slurm_conf: str | None
    start: bool
    dry_run: bool
    verbose: bool
    keep_data: bool
    discard_records: bool
    slurm_is_gone: bool
    slurmd_reconfigured: bool
    no_shared: bool = False


def parse(arguments: Sequence[str]) -> Options:
    """Raises InputError with option and remedy; wrong usage and --help end the process as argparse does (2, 0)."""
    chosen = _parser().parse_args(arguments)
    if chosen.controller and not chosen.uninstall and not chosen.slurm_conf:
        chosen.slurm_conf = os.environ.get("SLURM_CONF") or None  # Slurm's commands go by it, so the daemon's must too
    for name in _FOLDERS:
        _check_path(name, chosen)
    _check_there(chosen)
    for name in ("slurm_user", "ship_user"):
        _check_name(name, getattr(chosen, name))
    roles = tuple(role for role in ("node", "controller") if getattr(chosen, role))
    if not chosen.uninstall and len(roles) != 1:
        raise InputError("give one of --node, --controller, --uninstall, --check; a host that is both takes two runs")
    _check_mode(chosen, "uninstall" if chosen.uninstall else roles[0])
    if chosen.shared and chosen.no_shared:
        raise InputError("--shared and --no-shared contradict each other: give one")
    return _options(chosen, roles)


def _options(chosen: argparse.Namespace, roles: tuple[str, ...]) -> Options:
    root = "" if chosen.root in (None, "/") else chosen.root
    return Options(
        mode="uninstall" if chosen.uninstall else roles[0],
        roles=roles,
        layout=Layout(chosen.prefix, chosen.hooks, chosen.conf, root),
        shared=chosen.shared,
        spool=chosen.spool,
        python=chosen.python,
        patterns=chosen.patterns,
        wheels=chosen.wheels,
        extras=(*(["mariadb"] if chosen.mariadb else []), *(["ssh"] if chosen.ssh_fetch else [])),
        slurm_user=chosen.slurm_user,
        ship_user=chosen.ship_user,
        slurm_bin=chosen.slurm_bin,
        slurm_conf=chosen.slurm_conf,
        start=not chosen.no_start and not root,
        dry_run=chosen.dry_run,
        verbose=chosen.verbose,
        keep_data=chosen.keep_data,
        discard_records=chosen.discard_records,
        slurm_is_gone=chosen.slurm_is_gone,
        slurmd_reconfigured=chosen.slurmd_reconfigured,
        no_shared=chosen.no_shared,
    )


def _check_path(name: str, chosen: argparse.Namespace) -> None:
    value = getattr(chosen, name)
    if value is None:
        return
    option = "--" + name.replace("_", "-")
    if not _PATH.match(value):
        raise InputError(f"{option} {value!r}: give an absolute path of letters, digits and . _ / + @ : = , -")
    if ".." in value.split("/"):
        raise InputError(f"{option} {value}: give the path without ..")
    clean = os.path.normpath(value)
    if clean == "/" and name != "root":
        raise InputError(f"{option} {value}: give a folder of its own, not the root of all")
    setattr(chosen, name, "/" + clean.lstrip("/"))


def _check_there(chosen: argparse.Namespace) -> None:
    """What is only read has to be there. A ``root`` is an image, which may get its slurm.conf later."""
    if chosen.slurm_conf and not (chosen.root or chosen.uninstall or os.path.isfile(chosen.slurm_conf)):
        raise InputError(f"--slurm-conf {chosen.slurm_conf}: no such file (SLURM_CONF counts where it is not given)")
    if chosen.wheels and not os.path.isdir(chosen.wheels):
        raise InputError(f"--wheels {chosen.wheels}: no such folder; `pip wheel -w DIR CHECKOUT` makes it")


def _check_name(name: str, value: str | None) -> None:
    if value is not None and not _NAME.match(value):
        raise InputError(f"--{name.replace('_', '-')} {value!r}: give the name or the number of a user")


#: Option → modes in which it means something.
_MEANT_FOR = {
    "python": ("node", "controller"),
    "patterns": ("node",),
    "shared": ("node", "controller"),
    "no_shared": ("node", "controller"),
    "spool": ("node", "controller"),
    "ship_user": ("node", "controller"),
    "wheels": ("controller",),
    "mariadb": ("controller",),
    "ssh_fetch": ("controller",),
    "slurm_user": ("controller",),
    "slurm_bin": ("controller", "uninstall"),
    "slurm_conf": ("controller", "uninstall"),
    "no_start": ("node", "controller"),
    "keep_data": ("uninstall",),
    "discard_records": ("uninstall",),
    "slurm_is_gone": ("uninstall",),
    "slurmd_reconfigured": ("uninstall",),
}


def _check_mode(chosen: argparse.Namespace, mode: str) -> None:
    for name, modes in _MEANT_FOR.items():
        if getattr(chosen, name) and mode not in modes:
            meant = " and ".join("--" + one for one in modes)
            raise InputError(f"--{name.replace('_', '-')} means nothing with --{mode}; it is for {meant}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="install.sh",
        usage="install.sh --node | --controller | --uninstall [OPTION...]; install.sh --check [OPTION...]",
        description="nccl-slurm on a cluster. slurm.conf is never edited. docs/install.md says more.",
        allow_abbrev=False,
    )
    modes = parser.add_argument_group("what to do")
    modes.add_argument("--node", action="store_true", help="install on this compute node")
    modes.add_argument("--controller", action="store_true", help="install on this controller")
    modes.add_argument(
        "--uninstall", action="store_true", help="take away what is here, or the part that --node, --controller name"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print every file and line it would touch; touch nothing"
    )
    parser.add_argument("--verbose", action="store_true", help="name each file of the code; else they are counted")
    _add_places(parser.add_argument_group("places"))
    _add_host(parser.add_argument_group("this host"))
    _add_removal(parser.add_argument_group("with --uninstall"))
    return parser


def _add_places(group: argparse._ArgumentGroup) -> None:
    standard = Layout()
    group.add_argument(
        "--prefix", default=standard.prefix, help="code; may be on the cluster's file system (%(default)s)"
    )
    group.add_argument("--hooks", default=standard.hooks, help="hooks; on this host's own disk (%(default)s)")
    group.add_argument("--conf", default=standard.conf, help="configuration (%(default)s)")
    group.add_argument("--shared", help="folder on the cluster's file system in which records are handed over")
    group.add_argument(
        "--no-shared", action="store_true", help="there is no such file system: records stay on the nodes"
    )
    group.add_argument("--spool", help="run folders, on a local disk (/var/spool/nccl-slurm)")
    group.add_argument("--root", help="a tree that stands before all these paths, for images; starts nothing")


def _add_host(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--python", help="the node's Python, 3.8 or newer; the controller's 3.10 or newer")
    group.add_argument("--patterns", help="compiled pattern rows, for a node whose Python is older than 3.11")
    group.add_argument("--wheels", help="folder of wheels, for a controller that reaches no package index")
    group.add_argument("--mariadb", action="store_true", help="with the driver for a store in MariaDB")
    group.add_argument("--ssh-fetch", action="store_true", help="with paramiko, to fetch records from nodes by SSH")
    group.add_argument("--slurm-user", help="SlurmUser, where Slurm does not answer")
    group.add_argument("--ship-user", help="owner of the folders in SHARED where root is squashed there")
    group.add_argument("--slurm-bin", help="folder of Slurm's commands")
    group.add_argument("--slurm-conf", help="slurm.conf, where it is not in Slurm's own place (SLURM_CONF)")
    group.add_argument("--no-start", action="store_true", help="install the units; enable and start nothing")


def _add_removal(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--keep-data", action="store_true", help="leave configuration, spool, store and SHARED")
    group.add_argument("--discard-records", action="store_true", help="remove records that were never handed over")
    group.add_argument(
        "--slurm-is-gone",
        action="store_true",
        help="Slurm can't be asked and never runs the hooks here again: a node whose epilog is missing gets drained",
    )
    group.add_argument(
        "--slurmd-reconfigured",
        action="store_true",
        help="`scontrol reconfigure` reached the slurmd here after our lines were out; asked for where nothing tells",
    )
