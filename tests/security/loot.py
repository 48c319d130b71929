"""What an attacker may have got out: all that nccl-slurm has said or kept, and what of root's must be as it was."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nccl_slurm.history.store import Store
from tests.cluster.harness import Cluster
from tests.security import attacks

__all__ = ["Canary", "fingerprint", "record_is_there", "said"]


@dataclass(frozen=True)
class Canary:
    """A log file with a word that nobody can guess. Readers that read it would make a fact of its line."""

    path: Path
    word: str

    @classmethod
    def plant(cls, path: Path, owner: int, mode: int = 0o600) -> Canary:
        word = f"canary-{secrets.token_hex(8)}"
        path.write_text(attacks.FACT.format(word))
        os.chown(path, owner, owner)
        path.chmod(mode)
        return cls(path, word)


def record_is_there(report: dict[str, Any]) -> bool:
    return {node["record"] for node in report["nodes"]} <= {"present", "late"}


def said(lab: Cluster, job: str) -> str:
    """All records and notes and the daemon's log; of the job what its nodes keep, reports, comments. As one text."""
    return "\n".join(_words(lab, job))


def _words(lab: Cluster, job: str) -> Iterator[str]:
    for folder in (lab.shared, lab.events, *lab.spool.glob(f"*/{job}.*/root")):
        yield from (path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if _is_own(path))
    yield (lab.log / "nccl-slurm.out").read_text(errors="replace")  # Slurm's own logs are Slurm's
    for words in (
        ("report", job),
        ("report", job, "--json"),
        ("report", job, "--ranks"),
        ("status", "--json"),
        ("jobs",),
    ):
        yield lab.nccl_slurm(*words, check=False).stdout
    yield str(lab.sacct(job, "comment,admincomment"))
    yield from _stored(lab, job)


def _is_own(path: Path) -> bool:
    """A link that an attacker put there shows what is behind it to root, who looks here, and not what we wrote."""
    return path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1


def _stored(lab: Cluster, job: str) -> Iterator[str]:
    store = Store.open(f"sqlite:///{lab.scratch}/daemon/store.db", read_only=True)
    try:
        for run in store.runs_of(job):
            key = (run.cluster, run.raw_id, run.run)
            yield from (json.dumps(row.record) for row in store.records(*key))
            yield json.dumps(store.output(*key))
            yield str(store.report(*key)) + str(run)
        yield str(store.notes())
    finally:
        store.close()


def fingerprint(*paths: Path) -> dict[str, tuple[int, ...]]:
    """Owner, mode, size, time and number of links of everything there."""
    found = [each for path in paths for each in (path, *(path.rglob("*") if path.is_dir() else ()))]
    infos = {str(each): each.lstat() for each in found}
    return {
        name: (info.st_uid, info.st_gid, info.st_mode, info.st_size, int(info.st_mtime_ns), info.st_nlink)
        for name, info in infos.items()
    }
