"""What a configuration that can be read may still have wrong with the host that it is read on.

An error is wrong on every host, or certainly wrong on this one. What is only not to be seen from here (the daemon's
folders on a login node, Slurm that does not answer) is a warning.
"""

from __future__ import annotations

import grp
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nccl_slurm.cli.daemon import refused
from nccl_slurm.cli.lemons import thresholds_of
from nccl_slurm.cli.rules import pattern_texts
from nccl_slurm.collect.fetch import visitor_of
from nccl_slurm.config import DEFAULT_PATH, Config, Paths
from nccl_slurm.errors import ConfigError, SlurmError, StoreError
from nccl_slurm.history.database import checked_url
from nccl_slurm.install.captureconf import KEYS, unmeant
from nccl_slurm.parse.patterns import compile_rows
from nccl_slurm.scheduler.cli_client import CliClient

__all__ = ["COMMANDS", "Finding", "findings"]

#: What the daemon calls.
COMMANDS = ("scontrol", "squeue", "sacct", "sacctmgr")
_SETTING = re.compile(r"^[ \t]*(?:export[ \t]+)?(NCCL_SLURM_[A-Za-z0-9_]+)=(.*)$", re.MULTILINE)
_SH_LIMIT_S = 10.0


@dataclass(frozen=True)
class Finding:
    """``text`` begins with the key and ends with the remedy."""

    text: str
    error: bool = True


def findings(config: Config) -> Iterator[Finding]:
    checks: tuple[Callable[[Config], Iterator[Finding]], ...] = (
        _store,
        _password_file,
        _waits,
        _commands,
        _shared,
        _ssh,
        _events,
        _admin_group,
        _rules,
        _capture_conf,
        _controllers,
        _slurm,
    )
    for check in checks:
        yield from check(config)


def _store(config: Config) -> Iterator[Finding]:
    try:
        checked_url(config.store_url)
    except StoreError as error:
        yield Finding(f"store.url: {error}")


def _password_file(config: Config) -> Iterator[Finding]:
    path = config.store.password_file
    if not path:
        return
    try:
        info = os.stat(path)
    except PermissionError:
        return  # closed to this user, as it should be
    except OSError as error:
        # the daemon alone needs it: on a login node it may be missing
        why = f"store.password_file: {path}: {error.strerror}; make it (root, 0600), its first line is the password"
        yield Finding(why, error=_is_daemons_host(config))
        return
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o007:
        yield Finding(f"store.password_file: {path}: others can read it, or it is no file; chmod 0600")


def _waits(config: Config) -> Iterator[Finding]:
    waits = config.daemon
    if waits.settle_s > waits.settle_cap_s:
        what = f"is longer than daemon.settle_cap_s ({waits.settle_s:g} > {waits.settle_cap_s:g})"
        yield Finding(f"daemon.settle_s: {what}, which ends every wait; make the cap the longer one")


def _commands(config: Config) -> Iterator[Finding]:
    missing = [name for name in COMMANDS if not os.access(os.path.join(config.slurm.bin, name), os.X_OK)]
    if missing:
        yield Finding(f"slurm.bin: {config.slurm.bin} has no {', '.join(missing)}; set it to the folder of scontrol")
    if config.slurm.conf and not os.access(config.slurm.conf, os.R_OK):
        yield Finding(f"slurm.conf: {config.slurm.conf}: missing or not readable; give the path of slurm.conf")


def _shared(config: Config) -> Iterator[Finding]:
    shared = config.paths.shared
    if not shared:
        lost = "no report goes out" if config.ssh.user else "no node records come in and no report goes out"
        yield Finding(f"paths.shared: empty, so {lost}; set it", error=False)
        return
    for part in ("tmp", "new", "quarantine", "reports"):
        mode = 0o711 if part == "reports" else 0o700
        yield from _folder("paths.shared", os.path.join(shared, part), {0, *config.daemon.record_uids}, mode)


def _ssh(config: Config) -> Iterator[Finding]:
    """The daemon alone needs it: on a login node all of it may be missing."""
    if not config.ssh.user:
        return
    try:
        visitor_of(config).check()
    except ConfigError as error:
        yield Finding(str(error), error=_is_daemons_host(config))


def _events(config: Config) -> Iterator[Finding]:
    path = config.paths.events
    if _is_daemons_host(config) or os.path.isdir(path):
        yield from _folder("paths.events", path, None, 0o700)
    else:
        yield Finding(f"paths.events: {path}: not on this host; right only where the daemon does not run", error=False)


def _folder(key: str, path: str, owners: set[int] | None, mode: int) -> Iterator[Finding]:
    """``mode``: all of it is needed, and others may not have more than it gives."""
    try:
        info = os.stat(path, follow_symlinks=False)
    except PermissionError:
        yield Finding(f"{key}: {path}: closed to this user; check it as root", error=False)
        return
    except OSError as error:
        yield Finding(f"{key}: {path}: {error.strerror}; make it ({mode:04o}), or mount what it lies on")
        return
    found = stat.S_IMODE(info.st_mode)
    if not stat.S_ISDIR(info.st_mode) or found & mode != mode or found & 0o022:
        yield Finding(f"{key}: {path}: no folder of mode {mode:04o} ({found:04o}); chmod {mode:04o}")
    if owners is not None and info.st_uid not in owners:
        yield Finding(f"{key}: {path}: belongs to uid {info.st_uid}; chown it to root, or add it to daemon.record_uids")


def _is_daemons_host(config: Config) -> bool:
    return os.path.isdir(config.paths.state)


def _admin_group(config: Config) -> Iterator[Finding]:
    try:
        grp.getgrnam(config.access.admin_group or "root")
    except KeyError:
        yield Finding(f"access.admin_group: no group {config.access.admin_group!r} here; make it, or empty the key")


def _rules(config: Config) -> Iterator[Finding]:
    try:
        compile_rows(*pattern_texts(config))
        thresholds_of(config)
    except ConfigError as error:
        yield Finding(f"rules.folder: {error}")


def _capture_conf(config: Config) -> Iterator[Finding]:
    """The one beside this file: both lie in one folder, in /etc/nccl-slurm or where an installer put them."""
    beside = config.source if os.path.isabs(config.source) or os.path.exists(config.source) else DEFAULT_PATH
    path = os.path.join(os.path.dirname(os.path.abspath(beside)), "capture.conf")
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        why = f"{error.strerror}; the same file belongs on the nodes and on the controller"
        yield Finding(f"capture.conf: {path}: {why}", error=False)
        return
    told = {name: _word(value) for name, value in _SETTING.findall(text)}
    yield from _syntax(path)
    for line in unmeant({name: value for name, value in told.items() if value is not None}, KEYS):
        yield Finding(line.replace("capture.conf", path, 1))
    told = {name.removeprefix("NCCL_SLURM_"): value for name, value in told.items()}
    for name, key, ours in (("SHARED", "shared", config.paths.shared), ("EVENTS", "events", config.paths.events)):
        theirs = told.get(name, "" if name == "SHARED" else Paths.events)
        if theirs is not None and theirs.rstrip("/") != ours.rstrip("/"):
            yield Finding(f"paths.{key}: {ours!r}, but NCCL_SLURM_{name} in {path} is {theirs!r}; make them the same")
    if config.ssh.user and not told.get("OUTBOX_GROUP", ""):
        why = f"set, but {path} has no NCCL_SLURM_OUTBOX_GROUP; nodes offer nothing without it, so set it there"
        yield Finding(f"ssh.user: {why}", error=False)
    uid = told.get("SHIP_UID")
    if uid and uid not in map(str, config.daemon.record_uids):
        yield Finding(f"daemon.record_uids: lacks {uid}, which NCCL_SLURM_SHIP_UID in {path} ships as; add it")


def _syntax(path: str) -> Iterator[Finding]:
    """By ``sh -n``, which reads the file and runs nothing of it. The hooks would go on with half of it."""
    command = ["/bin/sh", "-n", "--", path]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SH_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return
    if done.returncode:
        why = " ".join(done.stderr.decode("utf-8", "replace").split())[:200].removeprefix(f"{path}: ")
        yield Finding(f"{path}: sh can't read it: {why}; mend that line, it is a shell file")


def _word(value: str) -> str | None:
    """The value as sh reads it; None where only sh can tell."""
    try:
        words = shlex.split(value, comments=True)
    except ValueError:
        return None
    word = words[0] if words else ""
    return None if set("$`") & set(value) else word


def _controllers(config: Config) -> Iterator[Finding]:
    """Where Slurm does not answer, the daemon asks it at its start."""
    try:
        client = CliClient(config.slurm.bin, config.slurm.conf, config.slurm.timeout_s)
        why = refused(config, [one.host for one in client.controllers()])
    except SlurmError:
        return
    if why is not None:
        yield Finding(why)


def _slurm(config: Config) -> Iterator[Finding]:
    named = set(config.scope.partitions)
    if not named:
        return
    try:
        known = CliClient(config.slurm.bin, config.slurm.conf, config.slurm.timeout_s).partitions()
    except SlurmError as error:
        yield Finding(f"scope.partitions: not compared with Slurm's: {error}", error=False)
        return
    for name in sorted(named - known):
        yield Finding(f"scope.partitions.{name}: Slurm has no such partition; it has {', '.join(sorted(known))}")
