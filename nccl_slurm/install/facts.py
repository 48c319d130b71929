"""What is true of this host and has a say in the plan: its Python, its Slurm, its users, its configuration so far."""

from __future__ import annotations

import os
import pwd
import re
import stat
import subprocess
from dataclasses import dataclass
from typing import Sequence

from nccl_slurm.errors import InputError, SlurmUnreachable
from nccl_slurm.install.options import Options
from nccl_slurm.install.settings import sh_value

__all__ = ["Facts", "Python", "User", "ask_slurm", "find_slurm", "gather", "read_text", "value_in"]

#: Where Slurm's commands lie when PATH does not say: SageMaker HyperPod, builds by hand.
_SLURM_PLACES = ("/usr/bin", "/opt/slurm/bin", "/usr/local/bin", "/usr/local/slurm/bin")
_PYTHONS = ("python3", *(f"python3.{minor}" for minor in range(14, 7, -1)))
_LIMIT_S = 60


@dataclass(frozen=True)
class Python:
    path: str
    version: tuple[int, int]


@dataclass(frozen=True)
class User:
    name: str
    uid: int
    gid: int


@dataclass(frozen=True)
class Facts:
    """``capture_conf`` and ``daemon_conf``: their text, None where absent. ``slurm_bin``: None where none was found.

    ``ship_user``: as asked, else as capture.conf has it; None: root.
    """

    python: Python
    capture_conf: str | None
    daemon_conf: str | None
    ship_user: User | None
    slurm_user: User | None
    slurm_bin: str | None


def gather(options: Options) -> Facts:
    """Raises InputError with option and remedy."""
    layout = options.layout
    slurm_bin = find_slurm(options.slurm_bin)
    capture_conf = read_text(layout.on_disk(layout.capture_conf))
    return Facts(
        python=_python(options),
        capture_conf=capture_conf,
        daemon_conf=read_text(layout.on_disk(layout.daemon_conf)),
        ship_user=_user("--ship-user", options.ship_user) if options.ship_user else _shipping(capture_conf or ""),
        slurm_user=_slurm_user(options, slurm_bin) if options.mode == "controller" else None,
        slurm_bin=slurm_bin,
    )


def read_text(path: str) -> str | None:
    """None where there is none. Raises PermissionError, InputError where it can't be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except PermissionError:  # for main: it knows whether root asked
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}; mend it or move it away") from None


def _python(options: Options) -> Python:
    lowest = (3, 10) if options.mode == "controller" else (3, 8)
    if options.python:
        return _checked_python(options.python, lowest)
    for name in _PYTHONS:
        path = os.path.join("/usr/bin", name)
        if os.access(path, os.X_OK) and _version(path) >= lowest:
            return _checked_python(path, lowest)
    raise InputError(f"no Python {_dotted(lowest)} or newer in /usr/bin; install one, or give its path with --python")


def _checked_python(path: str, lowest: tuple[int, int]) -> Python:
    if not os.access(path, os.X_OK):
        raise InputError(f"--python {path}: no such program; give the path of a Python {_dotted(lowest)} or newer")
    version = _version(path)
    if version < lowest:
        raise InputError(f"--python {path}: is {_dotted(version)}; give a Python {_dotted(lowest)} or newer")
    info = os.stat(path)
    if info.st_uid != 0 or info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise InputError(f"--python {path}: others than root may write it, and root runs it; give the system's own")
    return Python(path, version)


def _version(path: str) -> tuple[int, int]:
    """(0, 0) where it does not run."""
    command = [path, "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"]
    try:
        told = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
        major, minor = told.stdout.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return (0, 0)


def _dotted(version: tuple[int, int]) -> str:
    return "a broken one" if version == (0, 0) else f"{version[0]}.{version[1]}"


def _user(option: str, name: str) -> User:
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise InputError(f"{option} {name}: no such user here; make it, or give another") from None
    return User(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _shipping(capture_conf: str) -> User | None:
    """A node need not know the user by name."""
    uid = sh_value(capture_conf, "NCCL_SLURM_SHIP_UID") or "0"
    if not uid.isdigit() or int(uid) == 0:
        return None
    try:
        return _user("NCCL_SLURM_SHIP_UID", uid)
    except InputError:
        return User(uid, int(uid), int(uid))


def _slurm_user(options: Options, slurm_bin: str | None) -> User:
    if options.slurm_user:
        return _user("--slurm-user", options.slurm_user)
    try:
        name = value_in(ask_slurm(slurm_bin, options.slurm_conf), "SlurmUser").partition("(")[0]
    except SlurmUnreachable as error:
        raise InputError(f"{error}; give SlurmUser's name with --slurm-user") from None
    return _user("--slurm-user", name)


def find_slurm(given: str | None, places: Sequence[str] = _SLURM_PLACES) -> str | None:
    """The folder of scontrol. Raises InputError where a folder was given that has none."""
    if given:
        if not os.access(os.path.join(given, "scontrol"), os.X_OK):
            raise InputError(f"--slurm-bin {given}: no scontrol there; give the folder of Slurm's commands")
        return given
    folders = [*os.environ.get("PATH", "").split(":"), *places]
    return next((one for one in folders if one and os.access(os.path.join(one, "scontrol"), os.X_OK)), None)


def ask_slurm(slurm_bin: str | None, slurm_conf: str | None) -> str:
    """`scontrol show config`: what is in force. Raises SlurmUnreachable."""
    if slurm_bin is None:
        raise SlurmUnreachable("Slurm can't be asked: no scontrol here (--slurm-bin names its folder)")
    env = {**os.environ, "SLURM_TIME_FORMAT": "standard", **({"SLURM_CONF": slurm_conf} if slurm_conf else {})}
    command = [os.path.join(slurm_bin, "scontrol"), "show", "config"]
    try:
        told = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmUnreachable(f"Slurm can't be asked: {error}") from None
    if told.returncode != 0:
        lines = told.stderr.decode("utf-8", "replace").strip().splitlines() or ["scontrol failed"]
        raise SlurmUnreachable(f"Slurm can't be asked: {lines[-1][:200]}")
    return told.stdout.decode("utf-8", "replace")


def value_in(config: str, key: str) -> str:
    """Of `scontrol show config`; empty where it has no such line."""
    found = re.search(rf"^{re.escape(key)}\s*=\s*(.*?)\s*$", config, re.MULTILINE)
    return found.group(1) if found else ""
