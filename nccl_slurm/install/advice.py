"""A `Wiring` in words that a person follows from top to bottom: files first, lines last, how to see and to undo it."""

from __future__ import annotations

import shlex

from nccl_slurm.install.layout import Layout
from nccl_slurm.install.slurmconf import SlurmConfig
from nccl_slurm.install.wiring import Line, Wiring, commands

__all__ = ["before", "lines", "plain"]


def plain(text: str) -> str:
    """Nothing that a terminal takes for a command: names of files are a user's or a site's."""
    return "".join(one if one.isprintable() else "?" for one in text)


def before(wiring: Wiring, layout: Layout) -> list[str]:
    """What has to be on the hosts before the lines; empty where nothing has to."""
    told: list[str] = []
    if wiring.links:
        told += ["On every node, as root:", *(f"    {command}" for command in commands(wiring)), ""]
    for key, path in wiring.capture_conf:
        where = "the controller" if key.endswith("_SLURMCTLD") else "every node"
        told += [f"In {layout.capture_conf} on {where} (the same file may go to all hosts):"]
        told += [f"    {key}={shlex.quote(path)}", ""]
    return told


def lines(wiring: Wiring, config: SlurmConfig, layout: Layout) -> list[str]:
    """The lines, which daemons, how to see that it works, how to undo it."""
    if not wiring.lines:
        return ["slurm.conf names all hooks already: nothing to add.", "", *_undo_what_is_there(wiring, config, layout)]
    where = "on the controller alone (nodes get it from slurmctld)" if config.configless else "on all hosts the same"
    told = [f"Lines for {config.path}, {where}:"]
    for line in wiring.lines:
        told += [f"    {text}" for text in (*_place(line), str(line))]
    return [*told, "", *_take_effect(wiring), "", *_see(layout), "", *_undo(wiring, config, layout)]


def _place(line: Line) -> list[str]:
    """A comment of slurm.conf, so that what is printed can be pasted."""
    if line.replaces:
        return [f"# in place of {line.key}={line.replaces}"]
    return [f"# above your own {line.key}="] if line.above else []


def _take_effect(wiring: Wiring) -> list[str]:
    if not wiring.restart:
        return ["Then: scontrol reconfigure"]
    return [f"Then: restart {' and '.join(wiring.restart)} (running jobs go on), and scontrol reconfigure"]


def _see(layout: Layout) -> list[str]:
    again = f"./install.sh --check{layout.as_options()}"
    return [
        f"To see that it works: {again} again (nothing to add), then sbatch --wrap true as a user:",
        "    sinfo -R stays empty, and the spool of the job's node has a folder of it.",
    ]


_UNDO = "To undo it, lines first and files last (a missing Prolog or Epilog drains its node):"


def _undo(wiring: Wiring, config: SlurmConfig, layout: Layout) -> list[str]:
    back = [f"        {line.key}={line.replaces}" for line in wiring.lines if line.replaces]
    these = "what names our hooks, and these lines" if _names_ours(config, layout) else "these lines"
    out = f"    in {config.path}: take {these} out{', put back' if back else ''}"
    return [_UNDO, out, *back, *_then_files(wiring, layout)]


def _names_ours(config: SlurmConfig, layout: Layout) -> bool:
    scripts = (*config.prolog, *config.epilog, *config.task_prolog, *config.epilog_slurmctld)
    return any(one.startswith((f"{layout.hooks}/", f"{layout.conf}/")) for one in scripts)


def _undo_what_is_there(wiring: Wiring, config: SlurmConfig, layout: Layout) -> list[str]:
    back = f"put back yours ({layout.capture_conf} names those that ours start)"
    return [_UNDO, f"    in {config.path}: take out what names our hooks, {back}", *_then_files(wiring, layout)]


def _then_files(wiring: Wiring, layout: Layout) -> list[str]:
    """Always both: before 24.11 slurmctld keeps an EpilogSlurmctld, and each slurmd keeps its lines whatever slurmctld
    was told."""
    links = [f"    on every node: rm -f {shlex.quote(link.path)}" for link in wiring.links]
    return [
        "    restart slurmctld, then scontrol reconfigure: each slurmd keeps the lines until that",
        *links,
        "    srun -w NODE true on each node, as a user: the spool there gets no new folder",
        f"    on every host: ./install.sh --uninstall{layout.as_options()} --slurmd-reconfigured",
    ]
