"""What nccl-slurm made of a job: its report once it is final, in the few words that tests compare."""

from __future__ import annotations

import json
import os
import sqlite3
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["Outcome", "outcome", "report"]

_SELDOM_S = 15.0
#: How every text of ours begins.
OURS = "[nccl-slurm:"


@dataclass(frozen=True)
class Outcome:
    """``culprits`` are (rank, host) pairs; ``comment`` is what accounting holds for the job's newest run."""

    state: str
    failure_class: str
    culprits: frozenset[tuple[int | None, str | None]]
    comment: str
    report: dict[str, Any]


def report(cluster: Cluster, job: str, *options: str, user: str | None = None) -> dict[str, Any]:
    done = cluster.nccl_slurm("report", job, "--json", *options, user=user)
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def outcome(
    cluster: Cluster,
    job: str,
    *options: str,
    ready: Callable[[dict[str, Any]], bool] | None = None,
    timeout: float = 300.0,
) -> Outcome:
    """Waits until the report is final (and ``ready``) and no text is yet to be written."""
    seen: dict[str, Any] = {}
    store = _Store(cluster)

    def final() -> bool:
        if store.is_behind(job, ready):
            return False
        done = cluster.nccl_slurm("report", job, "--json", *options, check=False)
        seen.update(json.loads(done.stdout) if done.returncode == 0 else {"status": done.stderr.strip()})
        return seen["status"] == "final" and (ready is None or ready(seen))

    if not wait_until(final, timeout, every=0.5):
        raise ClusterError(
            f"job {job}: no final report after {timeout:g} s: {seen.get('status')}\n{cluster.tail('nccl-slurm')}"
        )
    wait_until(lambda: not store.queued(), 60.0, every=0.3)
    # slurmctld may send a job's end once more, and with it the user's comment alone, until it is looked at again
    wait_until(lambda: OURS in cluster.comment(job).casefold() or not store.has_written(job), 100.0, every=1.0)
    verdict = seen["verdict"]
    made = Outcome(
        state=seen["job"]["state"],
        failure_class=verdict["class"],
        culprits=frozenset((one["rank"], one["host"]) for one in verdict["culprits"]),
        comment=cluster.comment(job),
        report=dict(seen),
    )
    _keep(cluster, job, made)
    return made


class _Store:
    """Looks into the store's tables before the command is asked: a command costs half a second of CPU, and hundreds of
    waits for a report would be most of what the tests do. Now and then the command is asked all the same."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._path = cluster.scratch / "daemon" / "store.db"
        self._asked = 0.0

    def is_behind(self, job: str, ready: Callable[[dict[str, Any]], bool] | None) -> bool:
        """Whether its newest report certainly is not the one that is waited for."""
        query = "select report from reports natural join runs where id = ? order by run desc, revision desc limit 1"
        found = self._one(query, job)
        if found is None:
            return not self._is_due() and self._path.exists()
        value = json.loads(zlib.decompress(found))
        return not (value["status"] == "final" and (ready is None or ready(value))) and not self._is_due()

    def has_written(self, job: str) -> bool:
        """A text into the job's Comment, which is yet to be looked at again."""
        query = "select count(*) from comments join runs using (cluster, raw_id, run) where id = ?"
        return bool(self._one(f"{query} and comments.state = 'written' and field = 'comment'", job))

    def queued(self) -> int:
        """Texts that are yet to be written: ``status`` lists by job what was given up alone."""
        found = self._one("select count(*) from comments where state = 'queued'")
        if found is None:
            found = json.loads(self._cluster.nccl_slurm("status", "--json").stdout)["counts"].get("queued", 0)
        return int(found)

    def _is_due(self) -> bool:
        if time.monotonic() < self._asked + _SELDOM_S:
            return False
        self._asked = time.monotonic()
        return True

    def _one(self, query: str, *values: str) -> Any:
        """None also where there is no such store, or it is locked."""
        try:
            with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=5)) as connection:
                row = connection.execute(query, values).fetchone()
        except sqlite3.Error:
            return None
        return None if row is None else row[0]


def _keep(cluster: Cluster, job: str, made: Outcome) -> None:
    """One line a look in ``log/outcomes.tsv``, which outlives the cluster: test, job, state, class, comment."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" ")[0]
    with (cluster.log / "outcomes.tsv").open("a") as file:
        print(test, job, made.state, made.failure_class, made.comment, sep="\t", file=file)
