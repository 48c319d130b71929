"""A recommendation beside what the store knows of its node now."""

from __future__ import annotations

import pytest

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.reasons import packaged
from nccl_slurm.history.rows import NodeEventRow, RunRow
from nccl_slurm.recommend.site import Running
from nccl_slurm.review.now import Now, as_it_is, runs_there
from tests.review.test_queue import row

MACHINE = Machine("i-1", "n1", "compute")


def now(action: str = "reboot", state: str = "UP", reason: str | None = None, role: str = "compute") -> Now:
    edge = NodeEventRow("n1", 10.0, state, reason, "alice" if reason else None)
    return as_it_is(row(action), Machine("i-1", "n1", role), edge, (), 20.0, packaged())


@pytest.mark.parametrize(
    ("found", "others", "held"),
    [
        (now(), False, None),
        (now(state="UP+DRAIN", reason="fan 3 broken, ticket 99"), True, None),
        (now(state="UP+DRAIN", reason="nccl-slurm: gpu-hw-lost, report 5"), False, None),
        (now(state="DOWN+NOT_RESPONDING", reason="Not responding"), False, None),
        (now(state="DOWN+REBOOT_ISSUED", reason="x : reboot issued"), True, "recovery is in progress (REBOOT_ISSUED)"),
        (now("replace", "DOWN", "Action:Replace"), True, "recovery is in progress (Action:Replace)"),
        (now(role="controller"), False, "it is a Slurm controller now: plan a fail-over first"),
        (now(role="login"), False, "it is a login node now: tell the users who work there first"),
        (now(role="unknown"), False, None),  # what the verdict knew of the role stands
        (now("investigate", "DOWN+REBOOT_ISSUED", "x : reboot issued"), False, None),
        (now("investigate", role="controller"), False, None),
    ],
)
def test_what_speaks_against_the_command(found: Now, others: bool, held: str | None) -> None:
    assert (found.others, found.held) == (others, held)
    assert any("nothing is to be run now" in line for line in found.lines()) is (held is not None)
    assert any("which the command replaces" in line for line in found.lines()) is others


@pytest.mark.parametrize(
    ("state", "booted", "held"),
    [
        ("accepted", 200.0, "it was carried out 1970-01-01T00:03:20.000Z"),
        ("accepted", 50.0, None),  # before it was accepted
        ("accepted", None, None),
        ("open", 200.0, None),
    ],
)
def test_what_was_carried_out_is_not_to_be_run_again(state: str, booted: float | None, held: str | None) -> None:
    """Also where the daemon has not closed it yet."""
    boots = () if booted is None else (MachineEvent(booted, "boot", "asked", "poll"),)
    accepted = row("reboot", state=state, decided=100.0 if state == "accepted" else None)
    found = as_it_is(accepted, Machine("i-1", "n1", "compute", events=boots), None, (), 20.0, packaged())
    assert found.held == held


def test_whom_it_hits_is_told() -> None:
    jobs = [Running(str(number), "bob", 4) for number in range(6)]
    found = as_it_is(row(), MACHINE, None, jobs, 20.0, packaged()).lines()
    assert found[0] == "not observed"
    assert found[1].startswith("runs there: 0 of bob (4 nodes), 1 of bob") and found[1].endswith(" and 1 more")
    assert found[2] == "as polled until 1970-01-01T00:00:20.000Z"
    assert as_it_is(row(), MACHINE, None, (), 20.0, packaged()).lines()[1] == "no job runs there"


def test_without_a_daemon_nothing_is_said_of_now() -> None:
    assert as_it_is(row(), None, None, (), None, packaged()).lines() == ["not observed"]


def test_what_waits_or_ended_does_not_run_there() -> None:
    def run(number: int, state: str, start: float | None, end: float | None = None) -> RunRow:
        return RunRow("c", number, 1, str(number), state=state, start=start, end=end, user="bob", nodes=("n1", "n2"))

    runs = [run(1, "RUNNING", 5.0), run(2, "PENDING", 5.0), run(3, "FAILED", 5.0, 9.0), run(4, "PENDING", None)]
    assert runs_there(runs) == [Running("1", "bob", 2)]
