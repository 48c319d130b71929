"""Disks fill up while jobs end: under the store, SHARED, EVENTS and a node's spool; of bytes, of inodes, read-only.

    python -m tests.chaos.full [--seed N]

Each folder is a small tmpfs that is really filled, and later freed; after that the nodes' timer runs once. A file
system on which a program holds a file open for writing can't be made read-only from outside, so under the store that
is tried at the daemon's start alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.invariants import Findings, check, wait_settled
from tests.chaos.scenario import Scene, command
from tests.chaos.stream import Stream
from tests.cluster.processes import wait_until

__all__ = ["STEPS", "play"]

#: Folder below scratch → size and number of inodes of its tmpfs.
DISKS = {
    "daemon": ("24m", 60),
    "shared": ("24m", 600),
    "events": ("1m", 60),
    "spool/n1": ("24m", 600),
}
#: (folder, what happens to it, the daemon's word on it in its log or in ``status``; none where it can't know)
STEPS = (
    ("daemon", "bytes", "no space left"),
    ("daemon", "inodes", ""),
    ("shared", "bytes", "No space left"),
    ("shared", "inodes", "No space left"),
    ("shared", "read-only", "Read-only"),
    ("events", "bytes", ""),
    ("events", "inodes", ""),
    ("events", "read-only", ""),
    ("spool/n1", "bytes", ""),
    ("spool/n1", "inodes", ""),
)
KINDS = ("fails", "fails on two nodes", "succeeds", "array of three, one fails")


@dataclass
class Disk:
    """A tmpfs in a folder's place, with the folder's own tree in it."""

    path: Path
    made: list[Path] = field(default_factory=list)

    def mount(self, size: str, inodes: int) -> None:
        below = [(path.relative_to(self.path), path.stat()) for path in sorted(self.path.rglob("*"))]
        own = self.path.stat()
        options = f"size={size},nr_inodes={inodes},mode={own.st_mode & 0o7777:o},uid={own.st_uid},gid={own.st_gid}"
        _do("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(self.path))
        for name, info in below:
            (self.path / name).mkdir()
            os.chown(self.path / name, info.st_uid, info.st_gid)
            (self.path / name).chmod(info.st_mode & 0o7777)

    def unmount(self) -> None:
        """At once, whoever has a file open there."""
        _do("umount", "--lazy", str(self.path))

    def fill(self, how: str) -> None:
        if how == "read-only":
            _do("mount", "-o", "remount,ro", str(self.path))
        elif how == "bytes":
            self._fill_bytes(self.path / "filler")
        else:
            self._fill_inodes()

    def free(self, how: str) -> None:
        if how == "read-only":
            _do("mount", "-o", "remount,rw", str(self.path))
        for path in self.made:
            path.unlink()
        self.made.clear()

    def _fill_bytes(self, path: Path) -> None:
        self.made.append(path)
        with path.open("wb", buffering=0) as file, _until_full():
            while True:
                file.write(b"x" * 4096)

    def _fill_inodes(self) -> None:
        with _until_full():
            while True:
                path = self.path / f"filler.{len(self.made)}"
                path.touch()
                self.made.append(path)


@contextlib.contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def disks(scene: Scene) -> Iterator[dict[str, Disk]]:
    made = {name: Disk(scene.cluster.scratch / name) for name in DISKS}
    with contextlib.ExitStack() as stack:
        for name, disk in made.items():
            disk.mount(*DISKS[name])
            stack.callback(disk.unmount)
        try:
            yield made
        finally:
            scene.cluster.stop_daemon()


def step(scene: Scene, stream: Stream, disk: Disk, how: str, word: str) -> list[str]:
    """Jobs that end while the disk is full; returns their ids."""
    cluster = scene.cluster
    log = cluster.log / "nccl-slurm.out"
    before = log.stat().st_size
    disk.fill(how)
    jobs = [stream.submit(kind, 1) for kind in KINDS]
    for job in jobs:
        cluster.wait_job(job)
    scene.say(f"{disk.path.name}, {how}: {len(jobs)} jobs ended")

    def said() -> bool:
        status = cluster.nccl_slurm("status")
        return word in log.read_text()[before:] or word in status.stdout

    heard = wait_until(said, 40.0, every=1.0)
    time.sleep(3.0)
    disk.free(how)
    for node in cluster.nodes:
        cluster.node_side(node, "sweep")
    return jobs if heard else []


def starts_read_only(scene: Scene, disk: Disk) -> bool:
    """It ends with one line, and starts when the disk is back; systemd tries every five seconds."""
    cluster = scene.cluster
    cluster.stop_daemon()
    disk.fill("read-only")
    cluster.start_daemon(wait_ready=False)
    ended = wait_until(lambda: not cluster.alive("nccl-slurm"), 30.0)
    disk.free("read-only")
    cluster.stop_daemon()
    cluster.start_daemon()
    return ended


def play(scene: Scene, steps: Sequence[tuple[str, str, str]] = STEPS, *, verified: bool = True) -> Findings:
    cluster, stream = scene.cluster, Stream(scene.cluster, scene.rng)
    mute: list[str] = []
    lacking: set[str] = set()
    with disks(scene) as of:
        cluster.start_daemon()
        for name, how, word in steps:
            jobs = step(scene, stream, of[name], how, word)
            mute += [] if jobs else [f"{name}, {how}"]
            lacking |= set(jobs) if name.startswith("spool") else set()
        ended = starts_read_only(scene, of["daemon"])
        stream.join(120.0)
        settled = wait_settled(cluster, 240.0, waiting=("queued", "written") if verified else ("queued",))
        found = check(cluster, stream.comments, lacking=lacking)
        found.need(cluster.alive("nccl-slurm"), "the daemon has ended")
    found.need(settled, "the daemon has not come to rest")
    found.need(not mute, f"the daemon said nothing of: {mute}")
    found.need(ended, "a daemon started on a read-only disk goes on")
    found.need({cluster.node_state(node) for node in cluster.nodes} == {"IDLE"}, "a node is not idle")
    found.counts = {"submitted": len(stream.comments), "full disks": len(steps), **found.counts}
    return found


if __name__ == "__main__":
    raise SystemExit(command("full", __doc__, lambda scene, _: play(scene)))
