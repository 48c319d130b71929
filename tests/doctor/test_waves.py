"""A look at idle nodes begins with one job, then eight, then all; none more once Slurm took a node out of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from nccl_slurm.doctor import waves
from nccl_slurm.doctor.reach import Answer, Unreached, ask_all
from nccl_slurm.doctor.waves import Gate, Waves
from nccl_slurm.errors import SlurmUnreachable
from nccl_slurm.scheduler.client import NodeState

NODES = [f"n{number}" for number in range(1, 31)]


def states(**others: NodeState) -> Mapping[str, NodeState]:
    return {**{name: NodeState(name, "IDLE") for name in NODES}, **others}


def drained(name: str, reason: str = "Prolog error") -> NodeState:
    return NodeState(name, "IDLE", frozenset({"DRAIN"}), reason, "slurm")


def begun(told: Waves, now: float) -> list[str]:
    """All that may begin now."""
    names = iter(name for name in NODES if name not in told.begun())
    found = []
    while told.admits(now) and (name := next(names, None)):
        told.begins(name, now)
        found.append(name)
    return found


def over(told: Waves, names: Sequence[str], now: float, **others: NodeState) -> None:
    for name in names:
        told.ends(name, now, well=True)
    told.saw(states(**others), now)


def test_one_then_eight_then_all() -> None:
    told = Waves()
    assert begun(told, 0.0) == ["n1"]
    told.ends("n1", 6.0, well=True)
    told.saw(states(n1=NodeState("n1", "IDLE", frozenset({"COMPLETING"}))), 6.0)
    assert begun(told, 6.0) == []  # its epilog runs
    told.saw(states(), 7.0)
    assert begun(told, 7.0) == NODES[1:9]
    over(told, NODES[1:8], 12.0)
    assert begun(told, 12.0) == []
    over(told, NODES[8:9], 13.0)
    assert begun(told, 13.0) == NODES[9:]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (drained("n1"), "on n1 the look's own job ended in 'Prolog error', and Slurm drained it"),
        (drained("n1", "Epilog error"), "on n1 the look's own job ended in 'Epilog error', and Slurm drained it"),
        (
            NodeState("n1", "IDLE", frozenset({"DRAIN"}), "gpu test failed", "root"),
            "on n1 the look's own job was there when it became IDLE+DRAIN (gpu test failed)",
        ),
        (NodeState("n1", "DOWN"), "on n1 the look's own job was there when it became DOWN (no reason is given)"),
        (NodeState("n1", "IDLE", frozenset({"NOT_RESPONDING"})), ""),
        (NodeState("n1", "ALLOCATED"), ""),
    ],
)
def test_a_node_that_goes_out_of_work_is_the_last_one(state: NodeState, why: str) -> None:
    told = Waves()
    begun(told, 0.0)
    over(told, ["n1"], 5.0, n1=state)
    assert told.stopped == why and (begun(told, 5.0) == []) == bool(why)


@pytest.mark.parametrize("wave", [NODES[1:9], NODES[9:]])
def test_later_waves_stop_too(wave: Sequence[str]) -> None:
    """Also while its other jobs run: an epilog fails on a few nodes alone."""
    told = Waves()
    begun(told, 0.0)
    over(told, ["n1"], 1.0)
    begun(told, 1.0)
    if wave[0] not in told.begun():
        over(told, NODES[1:9], 2.0)
        assert told.admits(2.0)
        told.begins(wave[0], 2.0)
    over(told, wave[:1], 3.0, **{wave[0]: drained(wave[0], "Epilog error")})
    assert begun(told, 3.0) == [] and f"on {wave[0]} " in told.stopped


def test_a_node_that_hangs_costs_half_a_minute() -> None:
    told = Waves()
    begun(told, 0.0)
    assert begun(told, 29.0) == []
    assert begun(told, 31.0) == ["n2"]
    over(told, ["n2"], 36.0)
    assert begun(told, 36.0) == ["n3", *NODES[3:10]]
    assert begun(told, 70.0) == NODES[10:]  # some of the eight hang too


def test_nothing_is_begun_on_many_nodes_while_no_job_came_through() -> None:
    told = Waves()
    for name in ("n1", "n2", "n3", "n4"):
        now = 10.0 * int(name[1])
        assert begun(told, now) == [name]
        told.ends(name, now, well=False)
        told.saw(states(), now)
        assert begun(told, now) == []  # slurmd may still tell that it drains the node
        told.saw(states(), now + waves._SETTLE_S)
    assert begun(told, 60.0) == [] and told.stopped == "of the look's own jobs on n[1-4] none came through"


def test_what_somebody_drained_before_our_job_came_is_left_alone_and_stops_nothing() -> None:
    told = Waves()
    begun(told, 0.0)
    over(told, ["n1"], 1.0, n2=NodeState("n2", "IDLE", frozenset({"DRAIN"}), "a fan", "root"))
    assert told.refuses("n2").startswith("it is IDLE+DRAIN") and not told.refuses("n3") and told.admits(1.0)


def test_what_is_not_known_yet() -> None:
    told = Waves()
    begun(told, 0.0)
    over(told, ["n1"], 1.0, n1=NodeState("n1", "COMPLETING"))
    assert told.lasting() == ["n1"]
    told.saw(states(n1=drained("n1", "Epilog error")), 2.0)
    assert told.lasting() == [] and list(told.out) == ["n1"]


class Told:
    """A way that says what it is told to, and drains nodes."""

    def __init__(self, name: str, answer: Callable[[str], bytes]) -> None:
        self.name, self.answer = name, answer
        self.asked: list[str] = []

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        self.asked.append(node)
        return self.answer(node)


@pytest.fixture
def now_states(monkeypatch: pytest.MonkeyPatch) -> dict[str, NodeState]:
    monkeypatch.setattr(waves, "_TICK_S", 0.01)
    monkeypatch.setattr(waves, "_SETTLE_S", 0.0)
    return dict(states())


def answers(gate: Gate, *ways: Told) -> Mapping[str, Answer]:
    every = ask_all(NODES, lambda _: ways, lambda _: b"", limit_s=9.0, place=gate.place)
    return {one.node: one for one in every}


def test_one_node_is_drained_and_the_others_are_reached_by_ssh(now_states: dict[str, NodeState]) -> None:
    def fails(node: str) -> bytes:
        now_states[node] = drained(node)
        raise Unreached("srun: error: Something is wrong with the boot of the nodes.")

    job, ssh = Told("job", fails), Told("ssh", lambda node: b"yes")
    told = answers(Gate(lambda: now_states, Waves()), job, ssh)
    assert len(job.asked) == 1 and sorted(ssh.asked) == sorted(NODES)
    assert {one.way for one in told.values()} == {"ssh"}


def test_an_epilog_that_drains_is_seen_though_the_job_answered(now_states: dict[str, NodeState]) -> None:
    def drains(node: str) -> bytes:
        now_states[node] = drained(node, "Epilog error")
        return b"yes"

    job, gate = Told("job", drains), Gate(lambda: now_states, Waves())
    told = answers(gate, job)
    gate.close()
    assert len(job.asked) == 1 and list(gate.waves.out) == job.asked
    others = [one for one in told.values() if one.node not in job.asked]
    assert {(one.tried, one.why) for one in others} == {(False, gate.waves.stopped)}


def test_all_are_reached_where_all_is_well(now_states: dict[str, NodeState]) -> None:
    job = Told("job", lambda node: b"yes")
    assert {one.way for one in answers(Gate(lambda: now_states, Waves()), job).values()} == {"job"}


def test_without_slurms_word_no_second_job_is_begun() -> None:
    def silent() -> Mapping[str, NodeState]:
        raise SlurmUnreachable("scontrol: no answer")

    job = Told("job", lambda node: b"yes")
    told = answers(Gate(silent, Waves()), job)
    assert len(job.asked) == 1
    assert {one.why for one in told.values() if not one.way} == {
        "Slurm does not tell what the look's own jobs did: scontrol: no answer"
    }


def test_other_ways_wait_for_nobody(now_states: dict[str, NodeState]) -> None:
    step = Told("job-step", lambda node: b"yes")
    assert len([one for one in answers(Gate(lambda: now_states, Waves()), step).values() if one.data]) == len(NODES)
