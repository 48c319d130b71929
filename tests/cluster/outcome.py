"""What nccl-slurm made of a job: its report once it is final, in the few words that tests compare."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.cluster.client import ClusterError
from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["Outcome", "outcome", "report"]


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

    def final() -> bool:
        done = cluster.nccl_slurm("report", job, "--json", *options, check=False)
        seen.update(json.loads(done.stdout) if done.returncode == 0 else {"status": done.stderr.strip()})
        return seen["status"] == "final" and (ready is None or ready(seen))

    if not wait_until(final, timeout, every=0.5):
        raise ClusterError(
            f"job {job}: no final report after {timeout:g} s: {seen.get('status')}\n{cluster.tail('nccl-slurm')}"
        )
    wait_until(lambda: not _waiting(cluster), 60.0, every=0.3)
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


def _keep(cluster: Cluster, job: str, made: Outcome) -> None:
    """One line a look in ``log/outcomes.tsv``, which outlives the cluster: test, job, state, class, comment."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition("::")[2].partition(" ")[0]
    with (cluster.log / "outcomes.tsv").open("a") as file:
        print(test, job, made.state, made.failure_class, made.comment, sep="\t", file=file)


def _waiting(cluster: Cluster) -> bool:
    """Whether any text is yet to be written: ``status`` lists by job what was given up alone."""
    return bool(json.loads(cluster.nccl_slurm("status", "--json").stdout)["counts"].get("queued"))
