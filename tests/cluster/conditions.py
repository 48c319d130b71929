"""The table of what can be wrong with a node: see docs/never-drains.md for what Slurm and the hooks made of each."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import mounts
from tests.cluster.spoiled import Node, Spoil, a_full_disk, hangs, remove

__all__ = ["CONDITIONS", "HOSTILE_ENVIRONMENT", "Condition"]

_FREEZE, _HANG = (mounts.can_freeze, "no loop devices, mkfs.ext4 or fsfreeze"), (mounts.can_hang, "no /dev/fuse")


@dataclass(frozen=True)
class Condition:
    """``record``: the job's record is in the shared folder while the condition lasts (None: either is fine). ``left``:
    processes of ours wait on the node after the job, for as long as it lasts. ``needs``: else skipped, with the reason.
    """

    name: str
    spoil: Spoil
    record: bool | None = None
    left: bool = False
    needs: tuple[Callable[[], bool], str] | None = None
    options: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    script: str = "#!/bin/sh\nsrun true\n"


def _nothing(node: Node, stack: ExitStack) -> None:
    pass


def _keys(*lines: str) -> Spoil:
    """capture.conf says so; ``{own}`` is a folder of the node."""
    return lambda node, _: node.configure(*(line.format(own=node.own) for line in lines))


def _conf(text: str) -> Spoil:
    """Ahead of a capture.conf that is fine."""
    return lambda node, _: write(node.conf, text + "\n" + node.conf.read_text())


def _python(text: str) -> Spoil:
    return lambda node, _: node.configure(f"NCCL_SLURM_PYTHON={node.program('python', text)}")


def _smi(text: str) -> Spoil:
    return lambda node, _: node.smi.hardlink_to(node.program("smi", text))


def write(path: Path, text: str) -> None:
    path.write_text(text)


def _in_place_of(place: Callable[[Node], Path], make: Callable[[Path, ExitStack], object]) -> Spoil:
    def spoil(node: Node, stack: ExitStack) -> None:
        path = place(node)
        remove(path)
        make(path, stack)

    return spoil


def _spool(make: Callable[[Path, ExitStack], object]) -> Spoil:
    return _in_place_of(lambda node: node.spool, make)


def _conf_file(make: Callable[[Path, ExitStack], object]) -> Spoil:
    return _in_place_of(lambda node: node.conf, make)


def _tmpfs(options: str) -> Spoil:
    return lambda node, stack: stack.enter_context(mounts.mounted(node.spool, "-t", "tmpfs", "-o", options, "none"))


def _wrong_owner(node: Node, stack: ExitStack) -> None:
    shutil.chown(node.spool, "alice", "alice")
    node.spool.chmod(0o700)


def _frozen_spool(node: Node, stack: ExitStack) -> None:
    stack.enter_context(mounts.frozen(node.spool, node.own / "image"))


def _conf_on_hung_mount(node: Node, stack: ExitStack) -> None:
    hangs(node.own / "etc", stack)
    remove(node.conf)
    node.conf.symlink_to(node.own / "etc" / "capture.conf")


def _hung(key: str, below: str) -> Spoil:
    def spoil(node: Node, stack: ExitStack) -> None:
        hangs(node.own / below, stack)
        node.configure(f"{key}={node.own / below}")

    return spoil


def _broken_code(node: Node, stack: ExitStack) -> None:
    (node.own / "nccl_slurm" / "capture").mkdir(parents=True)
    (node.own / "nccl_slurm" / "capture" / "main.py").write_text("this is no Python\n")
    node.configure(f"NCCL_SLURM_PREFIX={node.own}")


def _shared(make: Callable[[Path, ExitStack], object]) -> Spoil:
    """The folder has its two parts, and then ``make`` happens to it."""

    def spoil(node: Node, stack: ExitStack) -> None:
        folder = node.own / "shared"
        make(folder, stack)
        node.configure(f"NCCL_SLURM_SHARED={folder}")

    return spoil


def _full_shared(folder: Path, stack: ExitStack) -> None:
    folder.mkdir()
    stack.enter_context(mounts.mounted(folder, "-t", "tmpfs", "-o", "size=1m", "none"))
    for name in ("tmp", "new"):
        (folder / name).mkdir(mode=0o700)
    subprocess.run(["dd", "if=/dev/zero", f"of={folder}/filled", "bs=64k"], capture_output=True, check=False)


def _read_only_shared(folder: Path, stack: ExitStack) -> None:
    for name in ("tmp", "new"):
        (folder / name).mkdir(mode=0o700, parents=True)
    stack.enter_context(mounts.mounted(folder, "--bind", str(folder)))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)


def old_python() -> str:
    """A Python that is too old, where there is one that runs; else a program that says what 3.6 says and ends so."""
    for name in ("python3.6", "python2"):
        if subprocess.run(["sh", "-c", f"{name} -c ''"], capture_output=True, check=False).returncode == 0:
            return f'exec {shutil.which(name)} "$@"'
    return "echo 'SyntaxError: future feature annotations is not defined' >&2; exit 1"


def _old_python(node: Node, stack: ExitStack) -> None:
    _python(old_python())(node, stack)


def _hostile_folder(node: Node, stack: ExitStack) -> None:
    folder = node.cluster.home / HOSTILE_NAME
    folder.mkdir(exist_ok=True)
    shutil.chown(folder, "alice", "alice")


#: Of a folder and of a job.
HOSTILE_NAME = "a\n\"';$(touch owned)`exit 1`|&"
#: Of a user who wants to harm the hooks, given to sbatch's environment and so to all tasks.
HOSTILE_ENVIRONMENT: Sequence[str] = (
    "PATH=",
    "IFS=/.0123456789",
    "ENV=/nonexistent/env",
    "BASH_ENV=/nonexistent/env",
    "LD_PRELOAD=/nonexistent/library.so",
    "PYTHONPATH=/nonexistent",
    "PYTHONHOME=/nonexistent",
    "BASH_FUNC_readlink%%=() { exit 1; }",
    "NCCL_SLURM_CONF=/nonexistent",
    "NCCL_SLURM_SPOOL=/etc",
    "NCCL_SLURM_SITE_TASK_PROLOG=/bin/false",
    "NCCL_SLURM_SET=PATH,HOME,$(touch owned)",
    "SLURM_JOB_PARTITION=$(exit 1)",
    "SLURM_HET_JOB_ID=../../../etc",
    "SLURM_RESTART_COUNT=x",
)

#: In the order in which nodes take them: the slow ones first, so that no node is left alone with one.
CONDITIONS = (
    Condition("GPU query never returns", _smi("trap '' TERM; exec sleep 600"), record=True),
    Condition("python never returns", _python("trap '' TERM; sleep 600; sleep 600"), record=False, left=True),
    Condition("worker in D state: code on a hung mount", _hung("NCCL_SLURM_PREFIX", "code"), False, True, _HANG),
    Condition("shared folder on a hung mount", _shared(hangs), False, True, _HANG),
    Condition("spool on a hung mount", lambda node, stack: hangs(node.spool, stack), False, True, _HANG),
    Condition("spool's disk frozen (D state at each write)", _frozen_spool, False, True, _FREEZE),
    Condition("capture.conf on a hung mount", _conf_on_hung_mount, False, True, _HANG),
    Condition("capture.conf: endless loop", _conf("while :; do :; done"), record=False),
    Condition("capture.conf is a FIFO", _conf_file(lambda path, _: os.mkfifo(path)), record=False),
    Condition("hooks' folder on a hung mount", _hung("NCCL_SLURM_HOOKS", "hooks"), False, True, _HANG),
    Condition("capture.conf waits for input", _conf("read -r x; read -r x </dev/tty; sleep 8")),
    Condition("nothing is wrong", _nothing, record=True),
    Condition("spool missing", _spool(lambda path, _: None), record=True),
    Condition("spool missing, can't be made", _keys("NCCL_SLURM_SPOOL=/proc/nccl-slurm"), record=False),
    Condition("spool full", lambda node, stack: a_full_disk(node.spool, stack), record=True),
    Condition("spool out of inodes", _tmpfs("nr_inodes=1,mode=711"), record=False),
    Condition("spool read-only", _tmpfs("ro,mode=711"), record=False),
    Condition("spool of another owner, 0700", _wrong_owner),
    Condition("spool is a file", _spool(lambda path, _: path.touch()), record=False),
    Condition("spool is a dangling link", _spool(lambda path, _: path.symlink_to("/nonexistent/x")), record=False),
    Condition("spool is a loop of links", _spool(lambda path, _: path.symlink_to(path)), record=False),
    Condition("python missing", _keys("NCCL_SLURM_PYTHON={own}/none"), record=False),
    Condition("python too old", _old_python, record=False),
    Condition("python is a folder", _keys("NCCL_SLURM_PYTHON={own}"), record=False),
    Condition("python exits 1", _python("exit 1"), record=False),
    Condition("python segfaults", _python("kill -SEGV $$"), record=False),
    Condition("python prints garbage", _python("head -c 3000000 /dev/urandom; exit 3"), record=False),
    Condition("code missing", _keys("NCCL_SLURM_PREFIX={own}/none"), record=False),
    Condition("code broken", _broken_code, record=False),
    Condition("hooks' folder missing", _keys("NCCL_SLURM_HOOKS={own}/none"), record=False),
    Condition("capture.conf missing", _conf_file(lambda path, _: None), record=False),
    Condition("capture.conf malformed", _conf("if then fi ((\n'")),
    Condition("capture.conf unreadable for users", lambda node, _: node.conf.chmod(0o600), record=True),
    Condition("capture.conf empty", _conf_file(lambda path, _: path.touch())),
    Condition("capture.conf is garbage", _conf_file(lambda path, _: path.write_bytes(os.urandom(1 << 20)))),
    Condition("capture.conf is a folder", _conf_file(lambda path, _: path.mkdir()), record=False),
    Condition("capture.conf is a dangling link", _conf_file(lambda path, _: path.symlink_to("/none")), record=False),
    Condition("capture.conf: exit 1", _conf("exit 1")),
    Condition("capture.conf: kill $$", _conf("kill $$")),
    Condition("capture.conf: set -e; false", _conf("set -e; false")),
    Condition("capture.conf: set -u, PATH gone", _conf("set -u; PATH=/none; export PATH")),
    Condition(
        "capture.conf: traps and functions", _conf("trap 'exit 3' EXIT TERM USR1; date() { exit 1; }; kill() { :; }")
    ),
    Condition("capture.conf: exec false", _conf("exec false")),
    Condition("capture.conf: limits that are no numbers", _keys("NCCL_SLURM_WORKER_LIMIT_S=soon")),
    Condition("GPU query returns garbage", _smi("head -c 3000000 /dev/urandom"), record=True),
    Condition("GPU query prints for ever", _smi("yes '<gpu>'"), record=True),
    Condition("GPU query fails", _smi("echo 'Unable to determine the device handle'; exit 15"), record=True),
    Condition("shared folder missing", _shared(lambda path, _: None), record=False),
    Condition("shared folder read-only", _shared(_read_only_shared), record=False),
    Condition("shared folder full", _shared(_full_shared), record=False),
    Condition("shared folder is a file", _shared(lambda path, _: path.touch()), record=False),
    Condition(
        "hostile environment, no PATH",
        _hostile_folder,
        record=True,
        options=("--export=ALL", f"--job-name={HOSTILE_NAME}", f"--chdir={HOSTILE_NAME}", f"--comment={HOSTILE_NAME}"),
        environment=tuple(HOSTILE_ENVIRONMENT),
        script="#!/bin/sh\n/usr/bin/srun /bin/true\n",
    ),
)
