"""Exclude lists of jobs, in the history of the machines that they name."""

from __future__ import annotations

from nccl_slurm.daemon.exclusions import ASKED, EVERY_S, MOST
from nccl_slurm.scheduler.jobtext import read_excluded
from tests.daemon.test_loop import Lab
from tests.daemon.test_loop import lab as lab


def who_excludes(lab: Lab, node: str) -> list[str]:
    return [event.name for event in lab.store.machine(node).of_kind("excluded")]


def test_each_job_is_told_once(lab: Lab) -> None:
    jobs = [lab.slurm.submit("n1", exclude="n[2-3]") for _ in range(2)]
    lab.slurm.submit("n1")
    lab.run(3 * EVERY_S, step=60.0)
    assert who_excludes(lab, "n2") == who_excludes(lab, "n3") == [str(job) for job in jobs]
    assert who_excludes(lab, "n1") == [] and lab.store.value(ASKED) == 1_000_000_000


def test_who_wants_a_part_of_the_cluster_says_nothing_of_each_node(lab: Lab) -> None:
    lab.slurm.submit("n1", exclude=f"n[2-{MOST + 2}]")
    lab.run(2.0)
    assert who_excludes(lab, "n2") == []


def test_squeues_lines() -> None:
    text = "7 n[1-2],x9\n8 (null)\n9 \n\nx n1\n10 n[\n"
    assert read_excluded(text) == {7: ("n1", "n2", "x9")}
