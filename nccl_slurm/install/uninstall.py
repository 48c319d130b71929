"""Takes an installation away, when nothing in Slurm names its hooks any more and no record would be lost."""

from __future__ import annotations

import glob
import os
import re
from dataclasses import replace
from typing import Iterator, Mapping, Sequence

from nccl_slurm.capture import spool
from nccl_slurm.errors import InstallError, SlurmUnreachable
from nccl_slurm.install import disk, manifest, settings, slurmd, units
from nccl_slurm.install.apply import Applied, systemctl, systemd_runs
from nccl_slurm.install.facts import ask_slurm, find_slurm, read_text, value_in
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.mounts import network_file_system, read_table
from nccl_slurm.install.options import Options
from nccl_slurm.install.processes import daemons
from nccl_slurm.install.slurmd import Slurmd
from nccl_slurm.install.wiring import JOINT_NAMES, joint_folder, ours_in, whole_lines

__all__ = ["config_texts", "still_named", "undelivered", "uninstall"]

ROLES = ("node", "controller")
_INCLUDE = re.compile(r"^\s*include\s*=?\s*(\S+)", re.IGNORECASE | re.MULTILINE)
_MAX_FILES = 100


def uninstall(options: Options, applied: Applied) -> None:
    """Raises InstallError where it must not be, with all reasons."""
    here = [role for role in ROLES if manifest.read_manifest(options.layout, (role,))]
    roles = [role for role in here if not options.roles or role in options.roles]
    if not roles:
        applied.say(f"nothing is installed here, by {options.layout.conf}/installed.*")
        return
    options = replace(options, layout=_as_installed(options.layout, manifest.read_manifest(options.layout, roles)))
    _refuse(options, roles, applied)
    _stop_units(options, roles, applied)
    if "controller" in roles and not options.dry_run:
        _refuse_daemons(options.layout)
    _drop_links(options.layout, applied)
    _remove_all(options, roles, [role for role in here if role not in roles], applied)


def _as_installed(layout: Layout, ours: dict[str, str]) -> Layout:
    """Where hooks and environment of this installation are, whatever the options say: it is their lines that must be
    gone, and their daemon."""
    programs = [path for path in ours if os.path.basename(path) == os.path.basename(layout.task_prolog)]
    venvs = [path for path, kind in ours.items() if kind == "tree" and os.path.basename(path) == "venv"]
    layout = replace(layout, hooks=os.path.dirname(programs[0])) if programs else layout
    return replace(layout, prefix=os.path.dirname(venvs[0])) if venvs else layout


def _refuse_daemons(layout: Layout) -> None:
    """Those that systemd has not stopped. Raises InstallError."""
    running = ", ".join(map(str, daemons(layout.on_disk(layout.venv))))
    if running:
        raise InstallError(
            f"no file was removed: the daemon runs (pid {running}); kill it (SIGTERM), then run this again"
        )


def _drop_links(layout: Layout, applied: Applied) -> None:
    """Those that --check told a person to make beside our settings; whatever else lies there is named."""
    for folder in (joint_folder(layout, "Prolog"), joint_folder(layout, "Epilog")):
        on_disk = layout.on_disk(folder)
        for name in sorted(os.listdir(on_disk)) if os.path.isdir(on_disk) else ():
            if name not in JOINT_NAMES or not os.path.islink(os.path.join(on_disk, name)):
                applied.say(f"not ours, lies in {folder}: {name}")
                continue
            _remove(os.path.join(folder, name), "file", layout, applied)
        _remove(folder, "folder", layout, applied)


def _refuse(options: Options, roles: list[str], applied: Applied) -> None:
    named = list(still_named(options, applied))
    kept = options.keep_data or options.discard_records
    records = [] if kept else [f"not handed over: {one}" for one in undelivered(options.layout, roles)]
    if named:
        named.append(
            "take such lines out, restart slurmctld, then `scontrol reconfigure` (for each slurmd): Slurm drains a node"
            " whose epilog is missing"
        )
    if records:
        records.append("nccl-slurm-node sweep hands over, the daemon stores; or give --discard-records or --keep-data")
    if named or records:
        raise InstallError("\n  ".join(["nothing was removed:", *named, *records]))


# Does Slurm still name our hooks?


def still_named(options: Options, applied: Applied) -> Iterator[str]:
    """One line a place: a configuration line of ours and where it stands, or why it can't be told."""
    try:
        config = ask_slurm(find_slurm(options.slurm_bin), options.slurm_conf)
    except SlurmUnreachable as error:
        config = ""
        if not options.slurm_is_gone:
            yield f"{error}; where Slurm never runs the hooks here again, --slurm-is-gone says so"
    for line in ours_in(config, options.layout):
        yield f"scontrol show config: {line}"
    texts = {one: dict(_with_includes(one.files(), config)) for one in slurmd.running()}
    in_use = list(dict.fromkeys(path for each in texts.values() for path in each))
    for path, text in config_texts(config, [*in_use, options.slurm_conf or ""], options.layout):
        for line in ours_in(text, options.layout):
            if options.slurm_is_gone and not config and path not in in_use:
                applied.say(f"{path}: {line} (left there: --slurm-is-gone)")
            else:
                yield f"{path}: {line}"
    if not options.slurmd_reconfigured and not (options.slurm_is_gone and not config):
        yield from _unread(texts, any(map(os.path.isfile, _caches(config, options.layout))))


def _unread(texts: Mapping[Slurmd, Mapping[str, str]], cached: bool) -> Iterator[str]:
    """``texts``: those that each slurmd of this host has read, by path."""
    for one, each in texts.items():
        why = slurmd.unread(one, each, cached)
        if why:
            yield f"{why}; `scontrol reconfigure` on the controller, then --slurmd-reconfigured says that it was done"


def config_texts(config: str, given: Sequence[str], layout: Layout) -> Iterator[tuple[str, str]]:
    """slurm.conf of this host, with all that it includes, and the configless cache; those that can be read."""
    todo = [path for path in (*given, os.environ.get("SLURM_CONF"), value_in(config, "SLURM_CONF")) if path]
    todo += [layout.on_disk(path) for path in slurmd.PLACES]
    return _with_includes([*todo, *_caches(config, layout)], config)


def _caches(config: str, layout: Layout) -> list[str]:
    """Of configless slurmds."""
    spool_folder = re.sub("%[a-z]", "*", value_in(config, "SlurmdSpoolDir"))
    found = glob.glob(f"{spool_folder}/conf-cache/slurm.conf") if spool_folder else []
    return [*found, *(layout.on_disk(path) for path in slurmd.CACHES)]


def _with_includes(paths: Sequence[str], config: str) -> Iterator[tuple[str, str]]:
    todo: list[str] = list(paths)
    seen: set[str] = set()
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop(0)
        if os.path.realpath(path) in seen or not os.path.isfile(path):
            continue
        seen.add(os.path.realpath(path))
        text = read_text(path) or ""
        yield path, text
        todo += [
            each
            for pattern in _INCLUDE.findall("\n".join(whole_lines(text)))
            for each in _included(path, pattern, config)
        ]


def _included(path: str, pattern: str, config: str) -> list[str]:
    """Relative to the file that includes; %c is the cluster's name (man slurm.conf, INCLUDE MODIFIERS)."""
    pattern = pattern.replace("%c", value_in(config, "ClusterName"))
    return glob.glob(os.path.join(os.path.dirname(path), pattern))


# Records


def undelivered(layout: Layout, roles: list[str]) -> list[str]:
    """Runs of this node's spool without a delivered record, and records that the daemon has not stored."""
    text = read_text(layout.on_disk(layout.capture_conf)) or ""
    found = []
    if "node" in roles:
        place = settings.sh_value(text, "NCCL_SLURM_SPOOL") or "/var/spool/nccl-slurm"
        found += [run.path for run in spool.runs(layout.on_disk(place)) if run.delivered is None]
    shared = settings.sh_value(text, "NCCL_SLURM_SHARED")
    if "controller" in roles and shared and os.path.isabs(shared):
        found += _names(layout.on_disk(f"{shared}/new"))
    return found


def _names(folder: str) -> list[str]:
    try:
        return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if not name.startswith(".")]
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"{folder}: can't be looked at: {error.strerror}"]


# Removal


def _stop_units(options: Options, roles: list[str], applied: Applied) -> None:
    if options.layout.root or not systemd_runs():
        return
    for name in (name for role in roles for name in units.NAMES[role]):
        applied.note("run", "systemctl disable --now", name)
        if not applied.dry_run:
            systemctl("disable", "--now", name)


def _remove_all(options: Options, roles: list[str], others: list[str], applied: Applied) -> None:
    """Deepest first; the lists of what is ours go last, so that what breaks off can be taken up again."""
    layout = options.layout
    ours, of_others = manifest.read_manifest(layout, roles), manifest.read_manifest(layout, others)
    lists = [manifest.path_of(layout, role) for role in roles]
    late = {path for path in ours if f"{layout.conf}/".startswith(f"{path}/")}
    table = read_table() if "controller" not in roles else ""
    for path in sorted(set(ours) - late - set(lists), key=_deepest_first):
        if path not in of_others:
            _remove_or_keep(path, ours[path], options, table, applied)
    for path in (*lists, *sorted(late - set(of_others), key=_deepest_first)):
        _remove(path, _kind_at_last(path, ours, options), layout, applied)
    applied.tell_counted()
    if not layout.root and systemd_runs() and not applied.dry_run:
        systemctl("daemon-reload")


def _deepest_first(path: str) -> tuple[int, str]:
    return -path.count("/"), path


def _kind_at_last(path: str, ours: dict[str, str], options: Options) -> str:
    """The configuration's folder that we made goes with all that a site laid into it, unless that is to stay."""
    return "data" if path == options.layout.conf and not options.keep_data else ours.get(path, "file")


def _remove_or_keep(path: str, kind: str, options: Options, mount_table: str, applied: Applied) -> None:
    """``mount_table``: empty where what is on a network file system goes too."""
    if network_file_system(path, mount_table):
        applied.say(f"keep: {path}, on a network file system: the controller's uninstall removes it")
    elif options.keep_data and kind in ("conf", "data"):
        applied.say(f"keep: {path} (--keep-data)")
    else:
        _remove(path, kind, options.layout, applied)


def _remove(path: str, kind: str, layout: Layout, applied: Applied) -> None:
    on_disk, whole = layout.on_disk(path), kind in ("tree", "data")
    seen = disk.see(on_disk).kind
    if not seen or (seen == "folder" and kind in ("file", "conf")):  # a folder in a file's place is none of ours
        return
    if applied.dry_run:
        applied.note("remove", "folder if empty" if kind == "folder" else _counted(kind, on_disk), path)
        return
    what = _counted(kind, on_disk)
    if disk.remove(on_disk, whole):
        applied.note("remove", what, path)


def _counted(kind: str, path: str) -> str:
    """Data with the number of its files: records, reports, the store."""
    if kind != "data" or not os.path.isdir(path):
        return kind
    count = sum(len(files) for _, _, files in os.walk(path))
    return f"data, {count} file{'' if count == 1 else 's'}"
