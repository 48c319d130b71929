"""The shape of checks: what was not observed is never PASS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest

from nccl_slurm.doctor.check import ID, Area, Finding, NotObserved, Status, judged
from nccl_slurm.doctor.checks.node.look import Look
from nccl_slurm.doctor.observation import Observation


class _Check:
    id = "node.gpu-count"
    title = "GPUs"
    area: Area = "node"
    sources: Sequence[str] = ()
    explains: Sequence[str] = ()

    def judge(self, observed: int | None) -> Iterable[Finding]:
        if observed is None:
            raise NotObserved("nvidia-smi is not there")
        if observed < 8:
            yield Finding(self.id, "FAIL", f"{observed} of 8", "P0")
        if observed == 8:
            yield Finding(self.id, "PASS", "8 of 8")


@pytest.mark.parametrize(("observed", "expected"), [(8, "PASS"), (7, "FAIL"), (None, "UNKNOWN"), (9, "UNKNOWN")])
def test_what_is_not_observed_is_unknown(observed: int | None, expected: Status) -> None:
    (finding,) = judged(_Check(), observed, ["n1"])
    assert finding.status == expected


@pytest.mark.parametrize(("status", "priority"), [("PASS", "P0"), ("UNKNOWN", "P2"), ("FAIL", None), ("WARN", None)])
def test_only_what_is_wrong_has_a_priority(status: Status, priority: None) -> None:
    with pytest.raises(ValueError, match="priority"):
        Finding("node.ecc", status, "words", priority)


@pytest.mark.parametrize("text", ["node.gpu-count", "aws.security-group", "fleet.versions"])
def test_ids(text: str) -> None:
    assert ID.fullmatch(text)


@pytest.mark.parametrize("text", ["gpu-count", "node.", "node.GPU", "node.a.b", "node.a-", "other.a"])
def test_no_ids(text: str) -> None:
    assert not ID.fullmatch(text)


@pytest.mark.parametrize(("way", "job"), [("job-step", "777"), ("local", "777"), ("job", None), ("ssh", None)])
def test_commands_are_of_the_job_beside_which_a_node_was_read(way: str, job: str | None) -> None:
    """The doctor's own job has ended, and one that took in our SSH session is anybody's."""
    look = Look("node.oom", Observation("n1", {}, way=way, job="777"))
    assert look.fail("P0", "x").values.get("job") == job
    assert look.warn("P1", "x", values={"job": "5"}).values["job"] == "5"
