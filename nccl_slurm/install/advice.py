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


def lines(wiring: Wiring, config: SlurmConfig) -> list[str]:
    """The lines, which daemons, how to see that it works, how to undo it."""
    if not wiring.lines:
        return ["slurm.conf names all hooks already: nothing to add."]
    where = "on the controller alone (nodes get it from slurmctld)" if config.configless else "on all hosts the same"
    told = [f"Lines for {config.path}, {where}:"]
    for line in wiring.lines:
        told += [f"    {text}" for text in (*_place(line), str(line))]
    return [*told, "", *_take_effect(wiring), "", *_see_and_undo(wiring)]


def _place(line: Line) -> list[str]:
    """A comment of slurm.conf, so that what is printed can be pasted."""
    if line.replaces:
        return [f"# in place of {line.key}={line.replaces}"]
    return [f"# above your own {line.key}="] if line.above else []


def _take_effect(wiring: Wiring) -> list[str]:
    if not wiring.restart:
        return ["Then: scontrol reconfigure"]
    return [f"Then: restart {' and '.join(wiring.restart)} (running jobs go on), and scontrol reconfigure"]


def _see_and_undo(wiring: Wiring) -> list[str]:
    back = [f"    {line.key}={line.replaces}" for line in wiring.lines if line.replaces]
    return [
        "To see that it works: ./install.sh --check again (nothing to add), then sbatch --wrap true as a user:",
        "    sinfo -R stays empty, and the spool of the job's node has a folder of it.",
        "",
        f"To undo it: take these lines out{', put back' if back else ''}",
        *back,
        f"    and {'restart slurmctld' if wiring.restart else 'scontrol reconfigure'}. Then, and not before,",
        "    take away links and files (./install.sh --uninstall): a missing Prolog or Epilog drains its node.",
    ]
