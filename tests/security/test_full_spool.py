"""A user fills the disk of a node's spool, of bytes or of names: the own record comes, and so do others' afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster import mounts
from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome
from tests.security.loot import record_is_there

#: What tmpfs counts (mount option) → a shell loop of alice's that leaves none of it.
FILL = {
    "size=4m": "cat /dev/zero >$F/fill.log",
    "nr_inodes=100": "i=0; while : >$F/$i.log; do i=$((i + 1)); done; true >$F/last.log",
}


@pytest.fixture(params=FILL)
def full(request: pytest.FixtureRequest, lab: Cluster) -> Iterator[tuple[Cluster, str]]:
    """n1 with a spool of its own, and the job of alice that filled it."""
    with mounts.mounted(lab.spool / "n1", "-t", "tmpfs", "-o", f"{request.param},mode=711", "none"):
        folder = f"{lab.spool}/n1/$SLURM_JOB_ID/user"
        script = f"#!/bin/sh\nexport F={folder}\nsrun sh -c '{FILL[request.param]}'\nexit 1\n"
        yield lab, lab.sbatch(script, "-w", "n1")
        lab.wait_idle()


def test_a_user_who_fills_the_spool_harms_nobody_for_long(full: tuple[Cluster, str]) -> None:
    lab, job = full
    found = outcome(lab, job, ready=record_is_there)
    assert "No space left on device" in lab.output(job), "it was never full"
    assert f"report {job}]" in found.comment and lab.node("n1").get("Reason") is None
    lab.node_side("n1", "sweep")
    assert not [name for path in lab.spool.glob(f"n1/{job}.*/user") for name in os.listdir(path)], "there is room again"
    bobs = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n1", user="bob")
    assert outcome(lab, bobs, ready=record_is_there).report["job"]["user"] == "bob"
