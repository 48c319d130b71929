"""What is not proven of a host, by its answer: one sentence each, with the path. No sentence: all that the lines need
is there. A host that did not answer is never proven.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Container, Iterable, Mapping

from nccl_slurm.install.captureconf import unmeant
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.mounts import is_network
from nccl_slurm.install.site import Answer, File
from nccl_slurm.install.slurmconf import SlurmConfig
from nccl_slurm.install.wiring import Wiring

__all__ = ["Wanted", "doubts", "patterns", "unproven"]

#: What editors and package managers leave beside a file.
_BACKUP = re.compile(r"(~|\.(bak|orig|rej|save|old|swp|tmp|rpmnew|rpmsave|dpkg-\w+))$|^#")


@dataclass(frozen=True)
class Wanted:
    """``digests``: path → content that every host must have; ``keys``: those of capture.conf that somebody reads."""

    layout: Layout
    config: SlurmConfig
    wiring: Wiring
    digests: Mapping[str, str]
    keys: frozenset[str]


def patterns(layout: Layout, config: SlurmConfig, joint: Iterable[str]) -> list[str]:
    """What a host is asked about."""
    ours = [layout.prolog_glob, layout.epilog_glob, layout.task_prolog, layout.epilog_slurmctld, layout.node_program]
    theirs = [*config.prolog, *config.epilog, *config.task_prolog, *config.epilog_slurmctld]
    return list(dict.fromkeys([*ours, *theirs, *(os.path.join(folder, "*") for folder in joint)]))


def unproven(answer: Answer, wanted: Wanted, *, controller: bool) -> list[str]:
    if not answer.complete:
        return [f"gave no whole answer (it stopped after {answer.last!r})"]
    shared = [*_tools(answer), *_conf(answer, wanted, controller), *_shared(answer)]
    if controller:
        return [*_hook(answer, wanted.layout.epilog_slurmctld, wanted), *_on_controller(answer, wanted), *shared]
    return [
        *_hooks(answer, wanted),
        *_site(answer, wanted),
        *_links(answer, wanted),
        *_on_node(answer, wanted),
        *shared,
    ]


def _tools(answer: Answer) -> list[str]:
    return [f"{tool} is not installed" for tool in answer.absent]


# Our own files


def _hooks(answer: Answer, wanted: Wanted) -> list[str]:
    of = wanted.layout
    paths = (of.prolog, of.epilog, of.task_prolog, of.node_program)
    found = [why for path in paths for why in _hook(answer, path, wanted)]
    folders = dict.fromkeys(os.path.dirname(link.path) for link in wanted.wiring.links)
    whole = (of.prolog_glob, of.epilog_glob, *(os.path.join(folder, "*") for folder in folders))
    checked = {of.prolog, of.epilog, *(link.path for link in wanted.wiring.links)}
    return [*found, *(why for pattern in whole for why in _guests(answer, pattern, checked))]


def _guests(answer: Answer, pattern: str, checked: Container[str]) -> list[str]:
    """What lies beside ours in a folder that the lines name whole."""
    others = [one for one in answer.matches(pattern) if one.path not in checked]
    stuck = [f"{one.path} lies in our folder and can't be run: Slurm drains the node" for one in others if not one.runs]
    return stuck + [why for one in others for why in _open_to(one)]


def _hook(answer: Answer, path: str, wanted: Wanted) -> list[str]:
    one = _at(answer, path)
    if one is None:
        return [f"{path} is missing"]
    if not one.runs:
        return [f"{path} is not executable"]
    found = _open_to(one)
    if is_network(one.filesystem):
        found.append(f"{path} is on a network file system ({one.filesystem}): when that hangs, nodes drain")
    if one.digest != wanted.digests.get(path, one.digest):
        found.append(f"{path} differs from the one on most hosts")
    return found


def _at(answer: Answer, path: str) -> File | None:
    """The file of that path, under whatever pattern it was found."""
    return next((one for files in answer.files.values() for one in files if one.path == path), None)


def _open_to(one: File) -> list[str]:
    return [f"{one.path}: somebody besides root can change {one.open_to}"] if one.open_to else []


# What the site has


def _site(answer: Answer, wanted: Wanted) -> list[str]:
    config = wanted.config
    scripts = [why for pattern in (*config.prolog, *config.epilog) for why in _script(answer, pattern)]
    return scripts + [why for path in config.task_prolog for why in _runs(answer, path)]


def _script(answer: Answer, pattern: str) -> list[str]:
    """Slurm drains the node where a pattern matches nothing, or something that can't be run."""
    if not pattern.startswith("/"):
        return []  # comes with the configuration, through Slurm's own cache
    files = answer.matches(pattern)
    if not files:
        return [f"{pattern}, which slurm.conf names, is missing"]
    return [f"{one.path} can't be run: Slurm drains the node" for one in files if not one.runs]


def _runs(answer: Answer, path: str) -> list[str]:
    one = _at(answer, path)
    if one is None:
        return [f"{path} is missing"]
    return [] if one.runs else [f"{path} is not executable"]


def _links(answer: Answer, wanted: Wanted) -> list[str]:
    found = []
    for link in wanted.wiring.links:
        if not _leads(answer, link.path, link.target):
            found.append(f"{link.path} is no link to {link.target} yet")
        else:
            found += [why for one in [_at(answer, link.path)] if one for why in _open_to(one)]
    return found


def _leads(answer: Answer, path: str, target: str) -> bool:
    link, file = _at(answer, path), _at(answer, target)
    return link is not None and file is not None and link.real == file.real and link.runs


# capture.conf


def _conf(answer: Answer, wanted: Wanted, controller: bool) -> list[str]:
    path = wanted.layout.capture_conf
    one = _at(answer, path)
    if one is None:
        return [f"{path} is missing"]
    if not answer.yes("syntax"):
        return [f"{path}: an ordinary user can't read it, or it is no sh"]
    found = [*_open_to(one), *unmeant(answer.conf, wanted.keys)]
    hooks = answer.conf.get("NCCL_SLURM_HOOKS") or Layout.hooks
    if hooks != wanted.layout.hooks:
        found.append(f"{path}: NCCL_SLURM_HOOKS is {hooks}, and --hooks {wanted.layout.hooks}")
    return found + _former(answer, wanted, controller)


def _former(answer: Answer, wanted: Wanted, controller: bool) -> list[str]:
    """The site's former scripts: named in capture.conf before ours takes their place, and there."""
    key, ours = (
        ("NCCL_SLURM_SITE_EPILOG_SLURMCTLD", wanted.layout.epilog_slurmctld)
        if controller
        else ("NCCL_SLURM_SITE_TASK_PROLOG", wanted.layout.task_prolog)
    )
    value, needed = answer.conf.get(key, ""), dict(wanted.wiring.capture_conf).get(key)
    if needed is not None and value != needed:
        return [f"{wanted.layout.capture_conf}: {key} is not {needed} yet"]
    if not value:
        return []
    one = _at(answer, value)
    if one is not None and one.real == ours:
        return [f"{wanted.layout.capture_conf}: {key} names ours, which would start itself for ever"]
    return _runs(answer, value)


# What only the one kind of host has


def _on_node(answer: Answer, wanted: Wanted) -> list[str]:
    found = []
    if not answer.yes("task_prolog"):
        found.append(f"{wanted.layout.task_prolog}: an ordinary user can't run it, and each task would fail")
    found += [f"{_named(word)} does not end with 0 without a job" for word in answer.said if _fails(answer, word)]
    return [*found, *_spool(answer), *_python(answer)]


def _fails(answer: Answer, word: str) -> bool:
    return word.startswith("starts_") and not answer.yes(word)


def _named(word: str) -> str:
    return word[len("starts_") :]


def _spool(answer: Answer) -> list[str]:
    writable, path, filesystem = (*answer.said.get("spool", ()), "", "", "")[:3]
    if writable != "yes":
        return [f"{path}: the spool can't be written"]
    return [f"{path}: the spool is on a network file system ({filesystem})"] if is_network(filesystem) else []


def _python(answer: Answer) -> list[str]:
    path, prefix, version = (*answer.said.get("python", ()), "", "", "")[:3]
    number = re.fullmatch(r"(\d+)\.(\d+)", version)
    if number is None:
        return [f"{path} can't run the code in {prefix}: {version or 'it says nothing'}"]
    release = (int(number.group(1)), int(number.group(2)))
    if release < (3, 8):
        return [f"{path} is Python {version}; 3.8 or newer is needed"]
    if release < (3, 11) and _at(answer, answer.conf.get("NCCL_SLURM_PATTERNS", "")) is None:
        return [f"{path} is Python {version}, which reads no TOML: NCCL_SLURM_PATTERNS has to name compiled rows"]
    files = (_at(answer, path), _at(answer, os.path.join(prefix, "nccl_slurm", "capture", "main.py")))
    return [why for one in files if one for why in _open_to(one)]


def _on_controller(answer: Answer, wanted: Wanted) -> list[str]:
    user, found = wanted.config.user, []
    if not answer.yes("epilog_slurmctld"):
        found.append(f"{wanted.layout.epilog_slurmctld}: {user} can't run it")
    if not answer.yes("events"):
        path = (*answer.said.get("events", ()), "", "")[1]
        found.append(f"{path}: {user} can't write there, so no job's end is told to the daemon at once")
    if "site_epilog_slurmctld" in answer.said and not answer.yes("site_epilog_slurmctld"):
        found.append(f"{user} can't run the site's EpilogSlurmctld")
    return found + [f"{_named(word)} does not end with 0 without a job" for word in answer.said if _fails(answer, word)]


def _shared(answer: Answer) -> list[str]:
    if "shared" not in answer.said:
        return []
    reached, path, uid = (*answer.said["shared"], "", "", "")[:3]
    if reached != "yes":
        return [f"{path}: uid {uid} can't write tmp and new there"]
    owners = (*answer.said.get("owners", ()), "")[0].split()
    wrong = [mode for mode in owners[1::2] if mode[-3:] != "700"] or [one for one in owners[::2] if one != uid]
    return [f"{path}: tmp and new have to be {uid}'s, mode 0700 ({' '.join(owners)})"] if wrong else []


# What is worth a look and stops nothing


def doubts(answer: Answer, wanted: Wanted) -> list[str]:
    of, config = wanted.layout, wanted.config
    found = []
    for pattern in (of.prolog_glob, of.epilog_glob):
        extra = [one for one in answer.matches(pattern) if one.path not in (of.prolog, of.epilog)]
        found += [f"{one.path} lies in our folder: Slurm runs it too" for one in extra]
    for pattern in dict.fromkeys([*config.prolog, *config.epilog, of.prolog_glob, of.epilog_glob]):
        for one in answer.matches(pattern):
            if _BACKUP.search(os.path.basename(one.path)):
                found.append(f"{one.path} looks like a backup: Slurm runs it too")
            if one.open_to:
                found.append(f"{one.path}, which root runs: somebody besides root can change {one.open_to}")
    if answer.complete and not answer.conf.get("NCCL_SLURM_SHARED"):
        found.append("capture.conf: no NCCL_SLURM_SHARED, so records stay on the nodes")
    return found
