"""What has to be on the machine before a test cluster's daemons start: users, host names, folders, files, hooks."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster import jobs, machine, settings

__all__ = [
    "USERS",
    "absent_hosts",
    "absent_users",
    "ensure_hosts",
    "ensure_users",
    "install_hooks",
    "make_folders",
    "open_to_others",
    "remove_folders",
    "take_back",
    "write_files",
]

USERS = {"alice": 7001, "bob": 7002}
HOSTS = Path("/etc/hosts")

#: Folder below scratch → owner, mode. ``run`` takes files of daemons of four users, and goes with the cluster.
FOLDERS = {
    "daemon": ("root", 0o750),
    "daemon.ctl2": ("root", 0o750),
    "dev": ("root", 0o755),
    "etc": ("root", 0o755),
    "etc/rules.d": ("root", 0o755),
    "events": ("slurm", 0o700),
    "events/new": ("slurm", 0o700),
    "events/tmp": ("slurm", 0o700),
    "events.ctl2": ("slurm", 0o700),
    "events.ctl2/new": ("slurm", 0o700),
    "home": ("root", 0o755),
    "home/alice": ("alice", 0o755),
    "home/bob": ("bob", 0o755),
    "identity": ("root", 0o755),
    "jobs": ("root", 0o755),
    "kernel": ("root", 0o755),
    "log": ("root", 0o755),
    "pid": ("root", 0o755),
    "prefix": ("root", 0o755),
    "run": ("root", 0o1777),
    "shared": ("root", 0o755),
    "shared/new": ("root", 0o700),
    "shared/quarantine": ("root", 0o700),
    "shared/reports": ("root", 0o711),
    "shared/tmp": ("root", 0o700),
    "slurmd": ("root", 0o755),
    "spool": ("root", 0o755),
    "sql": ("mysql", 0o700),
    "state": ("slurm", 0o700),
    "sysroot": ("root", 0o755),
}

#: Written by daemons that are not root. They may make no file in ``log``: where anybody may, a user can leave a link.
LOGS = ("slurmctld.log", "slurmctld.ctl2.log", "slurmdbd.log")

#: Key of slurm.conf → pattern below ``slurm/``. Slurm globs the first two only.
HOOKS = {
    "Prolog": "prolog.d/*",
    "Epilog": "epilog.d/*",
    "TaskProlog": "task_prolog",
    "EpilogSlurmctld": "epilog_slurmctld",
}


@contextmanager
def _alone() -> Iterator[None]:
    """Of several runs that begin at the same time: useradd(8) fails where another one is at work."""
    with HOSTS.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure_users() -> None:
    with _alone():
        for name in absent_users():
            command = ["useradd", "--uid", str(USERS[name]), "--user-group", "--no-create-home", "--shell", "/bin/sh"]
            subprocess.run([*command, name], check=True, capture_output=True)


def ensure_hosts(addresses: Mapping[str, str]) -> None:
    """srun in a batch job hands slurmctld the node's own name; 24.05 and later wait 10 s if it does not resolve."""
    with _alone():
        if lines := absent_hosts(addresses):
            with HOSTS.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)


def absent_users() -> list[str]:
    """Those that `ensure_users` would make."""
    there = {entry.pw_name for entry in pwd.getpwall()}
    return [name for name in USERS if name not in there]


def absent_hosts(addresses: Mapping[str, str]) -> list[str]:
    """Lines that `ensure_hosts` would add."""
    known = HOSTS.read_text().split()
    return [f"{address} {node}" for node, address in addresses.items() if node not in known]


def take_back(users: Sequence[str], lines: Sequence[str]) -> None:
    """What `ensure_users` and `ensure_hosts` had added. A user that still runs something stays."""
    for name in users:
        subprocess.run(["userdel", name], check=False, capture_output=True)
    HOSTS.write_text("".join(f"{line}\n" for line in HOSTS.read_text().splitlines() if line not in lines))


def open_to_others(scratch: Path) -> Path | None:
    """The first of the scratch folder and all above it that somebody besides root made or can change: root would write
    secrets there, and run what is in it. A sticky folder above (/var/tmp) takes others' names, and leaves ours alone.
    """
    real = scratch.parent.resolve()
    if scratch.is_symlink() or _is_open(scratch, sticky_helps=False):
        return scratch
    return next((path for path in (*scratch.parents, real, *real.parents) if _is_open(path)), None)


def _is_open(path: Path, *, sticky_helps: bool = True) -> bool:
    """Not one that is absent, nor a link of root's: what it stands for is looked at too."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return False
    if info.st_uid != 0 or stat.S_ISLNK(info.st_mode):
        return info.st_uid != 0
    writable = info.st_mode & stat.S_IWOTH or (info.st_mode & stat.S_IWGRP and info.st_gid != 0)
    return bool(writable) and not (sticky_helps and info.st_mode & stat.S_ISVTX)


def make_folders(scratch: Path, nodes: Sequence[str]) -> None:
    _own(scratch, "root", 0o755)
    for name, (owner, mode) in FOLDERS.items():
        _own(scratch / name, owner, mode)
    for name in LOGS:
        (scratch / "log" / name).touch()
        shutil.chown(scratch / "log" / name, "slurm")
    for node in nodes:
        _own(scratch / "spool" / node, "root", 0o711)
        _own(scratch / "slurmd" / node, "root", 0o755)
        (scratch / "kernel" / f"{node}.log").touch()
        machine.make_tree(scratch / "sysroot" / node, node)


def remove_folders(scratch: Path) -> None:
    """All but ``log``. ``job-python`` is made by `job_python`, the link ``bin`` for another release's Slurm. Users nest
    folders deeper than shutil's recursion: rm's has no limit.
    """
    names = {*(name.partition("/")[0] for name in FOLDERS), "job-python", "bin"} - {"log"}
    subprocess.run(["rm", "-rf", "--one-file-system", *(scratch / name for name in names)], capture_output=True)


def write_files(of: settings.Settings, python: str) -> None:
    etc, password = of.scratch / "etc", secrets.token_hex(16)
    for index in range(of.gpus):
        (of.scratch / "dev" / f"gpu{index}").touch()
    (etc / "slurm.conf").write_text(settings.slurm_conf(of))
    (etc / "gres.conf").write_text(settings.gres_conf(of))
    (etc / "cgroup.conf").write_text(settings.cgroup_conf(of))
    (etc / "capture.conf").write_text(settings.capture_conf(of, python))
    (etc / "nccl-slurm.toml").write_text(settings.daemon_toml(of))
    if of.backup:
        (etc / f"slurm.{settings.BACKUP}.conf").write_text(settings.backup_conf(of))
        (etc / f"nccl-slurm.{settings.BACKUP}.toml").write_text(settings.daemon_toml(of, f".{settings.BACKUP}"))
    for program in jobs.FOLDER.glob("*.py"):
        shutil.copy(program, of.scratch / "jobs")
    _secret(etc / "slurmdbd.conf", settings.slurmdbd_conf(of, password), "slurm")
    _secret(etc / "init.sql", settings.init_sql(password), "mysql")
    _secret(etc / "munge.key", secrets.token_hex(64), "root")


def install_hooks(scratch: Path, checkout: Path) -> dict[str, Path]:
    """Copy ``slurm/`` of the checkout, point its hooks at this cluster's capture.conf, and return slurm.conf's keys.

    An absent hook gets no line: Slurm drains a node whose Prolog or Epilog pattern matches nothing.
    """
    prefix = scratch / "prefix" / "slurm"
    shutil.copytree(checkout / "slurm", prefix)
    line = f"NCCL_SLURM_CONF={scratch}/etc/capture.conf".encode()
    for path in prefix.rglob("*"):
        if path.is_file():
            path.write_bytes(re.sub(rb"(?m)^NCCL_SLURM_CONF=.*$", lambda _: line, path.read_bytes()))
    return {key: prefix / place for key, place in HOOKS.items() if any(prefix.glob(place))}


def _own(path: Path, owner: str, mode: int) -> None:
    path.mkdir(exist_ok=True)
    entry = pwd.getpwnam(owner)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(folder, entry.pw_uid, entry.pw_gid)
        os.fchmod(folder, mode)
    finally:
        os.close(folder)


def _secret(path: Path, text: str, owner: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    os.chown(path, pwd.getpwnam(owner).pw_uid, -1)
