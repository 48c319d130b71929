"""Carries a plan out, or only tells of it: the same words for both."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from typing import Callable, Iterable

from nccl_slurm.errors import InstallError
from nccl_slurm.install import disk, manifest, units
from nccl_slurm.install.entry import Entry, changes, text_difference
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.plan import with_parents

__all__ = ["Applied", "apply_entries", "call_units", "drop_stale", "record", "systemctl", "systemd_runs"]

Say = Callable[[str], None]
_LIMIT_S = 300


@dataclass
class Applied:
    """What a run did so far, or would do. ``code``: files below it are counted by folder, not told one by one; empty:
    each is told."""

    dry_run: bool
    say: Say
    code: str = ""
    touched: list[str] = field(default_factory=list)
    kept: int = 0
    counted: dict[tuple[str, str], int] = field(default_factory=dict)

    def is_counted(self, path: str) -> bool:
        return bool(self.code) and path.startswith(self.code + "/")

    def note(self, words: str, what: str, path: str) -> None:
        self.touched.append(path)
        if self.is_counted(path):
            key = words, os.path.dirname(path)
            self.counted[key] = self.counted.get(key, 0) + 1
        else:
            self.say(f"{words}: {what} {path}")

    def tell_counted(self) -> None:
        for (words, folder), count in sorted(self.counted.items(), key=lambda item: item[0][1]):
            self.say(f"{words}: {count} in {folder}")
        self.counted.clear()


def apply_entries(entries: Iterable[Entry], layout: Layout, applied: Applied) -> None:
    """Raises OSError, InstallError at the first that can't be made; what was made is in ``applied``."""
    for entry in (each for each in entries if each.path not in applied.touched):
        path = layout.on_disk(entry.path)
        seen = disk.see(path)
        words = changes(entry, seen)
        if not words:
            applied.kept += 1
            if entry.belongs == "conf":
                applied.say(f"keep: {entry.path}, your own settings stay")
            continue
        if not applied.dry_run:
            disk.make(entry, path)
        applied.note(", ".join(words), _described(entry), entry.path)
        if applied.dry_run and not applied.is_counted(entry.path):
            for line in text_difference(entry, seen):
                applied.say("    " + line)
    applied.tell_counted()


def _described(entry: Entry) -> str:
    if entry.kind == "link":
        return f"link to {entry.content.decode()} at"
    return f"{entry.kind} {entry.mode:04o} {entry.uid}:{entry.gid}"


def record(
    role: str, entries: Iterable[Entry], extra: dict[str, str], layout: Layout, applied: Applied
) -> dict[str, str]:
    """Writes down what this run will make, before it makes it. What was there before us is not ours to remove.

    Returns what an earlier run wrote. ``extra``: paths that are no entries (path → kind).
    """
    before = manifest.read_manifest(layout, (role,))
    ours = {**before, **extra}
    for entry in entries:
        is_there = bool(disk.see(layout.on_disk(entry.path)).kind)
        if entry.belongs == "file" or not is_there:
            ours.setdefault(entry.path, entry.belongs)
    ours[manifest.path_of(layout, role)] = "file"
    _write_manifest(role, ours, layout, applied)
    return before


def _write_manifest(role: str, ours: dict[str, str], layout: Layout, applied: Applied) -> None:
    content = manifest.format_manifest(ours).encode()
    entry = Entry(manifest.path_of(layout, role), "file", 0o644, content=content)
    apply_entries(with_parents([entry]), layout, applied)


def drop_stale(role: str, before: dict[str, str], wanted: set[str], layout: Layout, applied: Applied) -> None:
    """Files of an older version that this one does not have. ``before``: what `record` returned."""
    stay = wanted | {manifest.path_of(layout, role)}
    gone = [path for path, kind in before.items() if kind == "file" and path not in stay]
    for path in gone:
        if disk.see(layout.on_disk(path)).kind in ("file", "link"):
            applied.note("remove", "file of an earlier version", path)
            if not applied.dry_run:
                disk.remove(layout.on_disk(path), whole=False)
    applied.tell_counted()
    if gone and not applied.dry_run:
        ours = manifest.read_manifest(layout, (role,))
        _write_manifest(role, {path: kind for path, kind in ours.items() if path not in gone}, layout, applied)


def systemd_runs() -> bool:
    return os.path.isdir("/run/systemd/system")


def call_units(role: str, applied: Applied) -> None:
    """Raises InstallError."""
    names = units.NAMES[role]
    enabled = [name for name in names if systemctl("-q", "is-enabled", name)]
    active = [name for name in names if systemctl("-q", "is-active", name)]
    for arguments in units.calls(role, enabled, active, applied.touched):
        applied.note("run", "systemctl", " ".join(arguments))
        if not applied.dry_run and not systemctl(*arguments):
            raise InstallError(f"systemctl {' '.join(arguments)} failed; journalctl -u {arguments[-1]} says why")


def systemctl(*arguments: str) -> bool:
    command = ["systemctl", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=_LIMIT_S).returncode == 0
