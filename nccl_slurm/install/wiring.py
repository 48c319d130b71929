"""Which lines go into slurm.conf, and what has to be on the hosts before them, so that a site's own hooks keep running.

Pure: the configuration in force and what was found on the hosts go in, a `Wiring` comes out. Nothing here edits
slurm.conf or changes Slurm.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shlex
from dataclasses import dataclass
from typing import Mapping, Sequence

from nccl_slurm.install.layout import Layout
from nccl_slurm.install.site import File
from nccl_slurm.install.slurmconf import SlurmConfig

__all__ = ["JOINT_NAMES", "Found", "Line", "Link", "Wiring", "commands", "is_glob", "joint_folder", "ours_in", "plan"]

#: The first release on which two Prolog or Epilog lines were seen to run both. 22.05 silently takes the last one alone;
#: between the two nobody tried.
_SEVERAL_LINES = (24, 11)
#: The hooks wait up to 5 s for their own work; at its limit Slurm kills and drains. The rest is for a slow disk.
_SHORTEST_TIMEOUT_S = 15
#: What Slurm tracks without being told (man slurm.conf, AccountingStorageTRES).
_DEFAULT_TRES = ("cpu", "mem", "energy", "node", "billing", "fs/disk", "vmem", "pages")
#: Flags that make slurmd run Prolog on all nodes when the job gets them, by themselves.
_IMPLY_ALLOC = ("Alloc", "Contain", "X11", "RunInJob")

#: In the folder where a site's one script and ours lie side by side. Slurm runs the higher number first.
JOINT_NAMES = ("50-site", "90-nccl-slurm")


@dataclass(frozen=True)
class Found:
    """On the hosts. ``files``: pattern → what it matches. ``systemd``: on all nodes; None where nobody looked."""

    files: Mapping[str, tuple[File, ...]]
    systemd: bool | None = None


@dataclass(frozen=True)
class Line:
    """For slurm.conf. ``replaces``: the value that stands there. ``above``: goes before the site's own of that key."""

    key: str
    value: str
    replaces: str = ""
    above: bool = False

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


@dataclass(frozen=True)
class Link:
    """On every node: a link that a person makes; Slurm finds the script through it."""

    path: str
    target: str


@dataclass(frozen=True)
class Wiring:
    """``capture_conf``: key → value that capture.conf needs before the lines go in. ``refusals``: no line is good.

    ``restart``: daemons to restart when the lines are in; none: ``scontrol reconfigure`` is enough.
    """

    lines: tuple[Line, ...] = ()
    links: tuple[Link, ...] = ()
    capture_conf: tuple[tuple[str, str], ...] = ()
    remarks: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


def plan(config: SlurmConfig, found: Found, layout: Layout) -> Wiring:
    parts = [
        _script("Prolog", config.prolog, config, found, layout),
        _script("Epilog", config.epilog, config, found, layout),
        _one_path("TaskProlog", config.task_prolog, layout.task_prolog, found),
        _epilog_slurmctld(config, found, layout),
        _flags(config, found),
        _timeouts(config),
        _accounting(config),
    ]
    return _joined(parts)


def joint_folder(layout: Layout, key: str) -> str:
    """Where a site's one Prolog or Epilog and ours lie side by side as links; made by a person, on every node."""
    return os.path.join(layout.conf, f"{key.lower()}.d")


def _joined(parts: Sequence[Wiring]) -> Wiring:
    return Wiring(
        lines=tuple(line for part in parts for line in part.lines),
        links=tuple(link for part in parts for link in part.links),
        capture_conf=tuple(pair for part in parts for pair in part.capture_conf),
        remarks=tuple(text for part in parts for text in part.remarks),
        refusals=tuple(text for part in parts for text in part.refusals),
        restart=tuple(sorted({daemon for part in parts for daemon in part.restart})),
    )


# Prolog and Epilog: a glob, so several scripts


def _script(key: str, entries: tuple[str, ...], config: SlurmConfig, found: Found, layout: Layout) -> Wiring:
    pattern, ours = _ours(key, layout)
    folders = [each for each in entries if any(one.kind == "folder" for one in found.files.get(each, ()))]
    if folders:
        return Wiring(refusals=(f"{key}={folders[0]} is a folder: Slurm can't run it; {folders[0]}/* may be meant",))
    if not entries:
        return Wiring(lines=(Line(key, pattern),))
    if any(_names_ours(each, key, found, layout) for each in entries):
        return _there_already(key, entries, found, layout)
    if config.release >= _SEVERAL_LINES:
        return Wiring(lines=(Line(key, pattern, above=True),), remarks=(_first(key),))
    if len(entries) > 1:
        return Wiring(refusals=(f"{key} has {len(entries)} entries on a release before 24.11: not known which run",))
    if is_glob(entries[0]):
        return _linked(key, entries[0], ours, found)
    return _side_by_side(key, entries[0], config, found, layout)


def _ours(key: str, layout: Layout) -> tuple[str, str]:
    """The pattern that slurm.conf names, and the one file that it matches."""
    return (layout.prolog_glob, layout.prolog) if key == "Prolog" else (layout.epilog_glob, layout.epilog)


def is_glob(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _names_ours(pattern: str, key: str, found: Found, layout: Layout) -> bool:
    """By name, or through a link that was found on a host."""
    glob_of_ours, ours = _ours(key, layout)
    in_joint = pattern == os.path.join(joint_folder(layout, key), "*")
    return pattern in (glob_of_ours, ours) or in_joint or any(one.real == ours for one in found.files.get(pattern, ()))


def _there_already(key: str, entries: tuple[str, ...], found: Found, layout: Layout) -> Wiring:
    """A folder in which ours is linked stays right only while all nodes have the link."""
    _, ours = _ours(key, layout)
    links = [
        Link(one.path, ours)
        for each in entries
        if os.path.dirname(each) != os.path.dirname(ours)
        for one in found.files.get(each, ())
        if one.real == ours
    ]
    return Wiring(links=tuple(links[:1]), remarks=(f"{key} runs ours already",))


def _linked(key: str, pattern: str, ours: str, found: Found) -> Wiring:
    """The site's folder keeps its line; ours joins it."""
    names = [os.path.basename(one.path) for one in found.files.get(pattern, ())]
    path = os.path.join(os.path.dirname(pattern), _last_name(names))
    if not _matches(path, pattern):
        return Wiring(refusals=(f"{key}={pattern} would not match a link {path}: name a folder with /*",))
    return Wiring(links=(Link(path, ours),), remarks=(f"{key} keeps its line; {_first(key)}",))


def _matches(path: str, pattern: str) -> bool:
    """As glob(3) would, of a pattern with its signs in the last part alone."""
    folder, last = os.path.split(pattern)
    return not is_glob(folder) and fnmatch.fnmatchcase(os.path.basename(path), last)


def _last_name(names: Sequence[str]) -> str:
    """Slurm runs names from z to a to 9 to 0: the last one runs first."""
    name = "zz-nccl-slurm"
    while any(other >= name and other != name for other in names) and len(name) < 40:
        name = "z" + name
    return name


def _side_by_side(key: str, path: str, config: SlurmConfig, found: Found, layout: Layout) -> Wiring:
    if not path.startswith("/"):
        return Wiring(
            refusals=(f"{key}={path} lies in the configless cache, where no link reaches it: give it a path",)
        )
    folder, (_, ours) = joint_folder(layout, key), _ours(key, layout)
    remarks = [f"{key}: {_release(config)} takes one line, so {folder} holds links to yours and ours; {_first(key)}"]
    if any(one.own_path for one in found.files.get(path, ())):
        remarks.append(f"{path} looks at its own name: Slurm will start it as {folder}/50-site, so check what it finds")
    return Wiring(
        lines=(Line(key, os.path.join(folder, "*"), replaces=path),),
        links=tuple(Link(os.path.join(folder, name), to) for name, to in zip(JOINT_NAMES, (path, ours))),
        remarks=tuple(remarks),
    )


def _release(config: SlurmConfig) -> str:
    major, minor = config.release
    known = config.release < (23, 0) or config.release >= _SEVERAL_LINES
    return f"Slurm {major}.{minor:02d}" + ("" if known else " (not measured, so the way that every release takes)")


def _first(key: str) -> str:
    return f"ours runs before your {key} (it ends with 0, so it never stops yours)"


# TaskProlog and EpilogSlurmctld: one path, never a glob


def _one_path(key: str, entries: tuple[str, ...], ours: str, found: Found) -> Wiring:
    if not entries:
        return Wiring(lines=(Line(key, ours),))
    if ours in entries or any(one.real == ours for each in entries for one in found.files.get(each, ())):
        return Wiring(remarks=(f"{key} runs ours already",))
    if len(entries) > 1:
        return Wiring(lines=(Line(key, ours, above=True),), remarks=(f"{key} has {len(entries)} lines; not tried",))
    if not entries[0].startswith("/"):
        return Wiring(refusals=(f"{key}={entries[0]} is no full path: ours can't start it; give it one",))
    return Wiring(
        lines=(Line(key, ours, replaces=entries[0]),),
        capture_conf=((_SITE_KEY[key], entries[0]),),
        remarks=(f"{key} takes one path: ours runs {entries[0]} first and keeps its output and exit status",),
    )


_SITE_KEY = {
    "TaskProlog": "NCCL_SLURM_SITE_TASK_PROLOG",
    "EpilogSlurmctld": "NCCL_SLURM_SITE_EPILOG_SLURMCTLD",
}


def _epilog_slurmctld(config: SlurmConfig, found: Found, layout: Layout) -> Wiring:
    """Before 24.11 (seen on 22.05) ``reconfigure`` shows a first EpilogSlurmctld in its answer and never runs it."""
    part = _one_path("EpilogSlurmctld", config.epilog_slurmctld, layout.epilog_slurmctld, found)
    restart = bool(part.lines) and not config.epilog_slurmctld and config.release < _SEVERAL_LINES
    return _joined([part, Wiring(restart=("slurmctld",) if restart else ())])


# What else has to be right


def _flags(config: SlurmConfig, found: Found) -> Wiring:
    flags = config.prolog_flags
    refusals = []
    if "RunInJob" in flags and not found.systemd:
        refusals.append(
            "PrologFlags=RunInJob without systemd-run on all nodes: the worker would stay in the job's cgroup, and the"
            " job would not end before it"
        )
    remarks = []
    if "Serial" in flags:
        remarks.append("PrologFlags=Serial: a node runs one prolog or epilog at a time, ours in that queue too")
    if any(flag in flags for flag in _IMPLY_ALLOC):
        return Wiring(remarks=tuple(remarks), refusals=tuple(refusals))
    remarks.append(
        "PrologFlags=Alloc runs Prolog on all nodes of a job when it gets them, and the job waits for that: one-node"
        " srun took 236 ms in place of 141 ms with /bin/true (22.05.8)"
    )
    value = ",".join(("Alloc", *flags))
    return Wiring(
        (Line("PrologFlags", value, replaces=",".join(flags)),), remarks=tuple(remarks), refusals=tuple(refusals)
    )


def _timeouts(config: SlurmConfig) -> Wiring:
    short = [f"{key}={seconds}" for key, seconds in config.timeouts if seconds < _SHORTEST_TIMEOUT_S]
    if short:
        why = f"the hooks may take 5 s, and Slurm drains the node at the limit: {_SHORTEST_TIMEOUT_S} or more"
        return Wiring(refusals=tuple(f"{each} is too short: {why}" for each in short))
    if config.timeouts:
        return Wiring()
    return Wiring(
        remarks=("PrologEpilogTimeout is not set: an epilog of anybody that hangs keeps its node COMPLETING for ever",)
    )


def _accounting(config: SlurmConfig) -> Wiring:
    if config.accounting != "accounting_storage/slurmdbd":
        return Wiring(remarks=("no slurmdbd: reports are made, comments of ended jobs can't be written",))
    lines: list[Line] = []
    tres = [one for one in config.tres if one.lower() not in _DEFAULT_TRES]
    gpus = "gpu" in config.gres_types and "gres/gpu" not in tres
    if gpus:
        lines.append(_longer("AccountingStorageTRES", tres, "gres/gpu"))
    if "job_comment" not in config.store_flags:
        lines.append(_longer("AccountingStoreFlags", config.store_flags, "job_comment"))
    return Wiring(lines=tuple(lines), restart=("slurmctld",) if gpus else ())


def _longer(key: str, words: Sequence[str], word: str) -> Line:
    return Line(key, ",".join((*words, word)), replaces=",".join(words))


# What is in force


_HOOK = r"(?i:(?:task)?(?:pro|epi)log(?:slurmctld)?)(?:\[\d+\])?"
_PAIR = rf"(?:^|\s){_HOOK}\s*[-+*/]?=\s*(\"[^\"]*\"|\S+)"


def ours_in(config_text: str, layout: Layout) -> list[str]:
    """Lines of ``scontrol show config`` or of a slurm.conf that still name, or reach through a link, our hooks."""
    return [line.strip() for line in whole_lines(config_text) if _reaches_ours(line.partition("#")[0], layout)]


def whole_lines(text: str) -> list[str]:
    """Of a slurm.conf: a backslash at a line's end continues it, in a comment it does not."""
    lines, before = [], ""
    for line in text.splitlines():
        continued = re.fullmatch(r"([^#]*)\\\s*", line)
        if continued is None:
            lines.append(before + line)
        before = "" if continued is None else before + continued[1]
    return [*lines, before] if before else lines


def _reaches_ours(line: str, layout: Layout) -> bool:
    """A line may hold several pairs; ``scontrol show config`` has one, and its value may hold blanks."""
    whole = [match[1]] if (match := re.match(rf"\s*{_HOOK}\s*=(.*)", line)) else []
    return any(_leads_to_ours(value.strip(" \t\"'"), layout) for value in [*whole, *re.findall(_PAIR, line)])


def _leads_to_ours(pattern: str, layout: Layout) -> bool:
    homes = (layout.hooks, joint_folder(layout, "Prolog"), joint_folder(layout, "Epilog"))
    reached = [os.path.realpath(path) for path in glob.glob(layout.on_disk(pattern))]
    return any(_below(path, home) for path in [os.path.normpath(pattern)] for home in homes) or any(
        _below(path, os.path.realpath(layout.on_disk(layout.hooks))) for path in reached
    )


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def commands(wiring: Wiring) -> list[str]:
    """What a person runs as root on every node before the lines go in."""
    folders: dict[str, None] = {os.path.dirname(link.path): None for link in wiring.links}
    made = [f"mkdir -p {shlex.quote(folder)}" for folder in folders]
    return made + [f"ln -sfn {shlex.quote(link.target)} {shlex.quote(link.path)}" for link in wiring.links]
