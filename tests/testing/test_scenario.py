"""The simulator: a scenario as data, causes and what follows from them, what is left to read, the truth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_slurm import testing
from nccl_slurm.model import CLASSES
from nccl_slurm.parse import flight_recorder
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.testing import (
    BlockWatchdog,
    Cancel,
    Crash,
    Exit,
    Freeze,
    Hang,
    Mismatch,
    NodeFails,
    Raise,
    Say,
    Scenario,
    ShmFull,
    Slow,
    Stall,
    Story,
    Xid,
    blocks,
    job,
    job_files,
    node_files,
    simulate,
    strides,
    truth,
    write,
)
from nccl_slurm.testing import events as event_module
from nccl_slurm.testing.case import case_of
from nccl_slurm.testing.events import XID_CLASSES, Event


def said(story: Story, rank: int) -> str:
    return "\n".join(line.text for line in story.ranks.get(rank, ()))


def codes(story: Story) -> list[int | None]:
    return [process.end.code if process.end else None for process in story.processes]


def test_all_names_are_there() -> None:
    assert all(hasattr(testing, name) for name in testing.__all__)
    assert sorted(testing.__all__) == testing.__all__


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"world": 0}, "at least one rank"),
        ({"world": 16, "hosts": ("a",)}, "too few"),
        ({"backend": "mpi"}, "backend is one of"),
        ({"events": [Hang(8, 3)]}, "no such rank"),
        ({"events": [ShmFull("n9")]}, "no such host"),
        ({"events": [Hang(1, 60)]}, "steps 0 to 59"),
    ],
)
def test_a_scenario_that_can_not_be_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Scenario(**values)


def test_groups() -> None:
    assert [group.ranks for group in blocks(8, 4)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [group.ranks for group in strides(8, 4, first=3)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [group.guid for group in strides(8, 4, first=3)] == ["3", "4", "5", "6"]


def test_the_same_scenario_leaves_the_same() -> None:
    scenario = Scenario(world=16, events=[Crash(3, 40)], seed=7, skew_s=2.0)
    one, two = simulate(scenario), simulate(scenario)
    assert job_files(one) == job_files(two)
    assert node_files(one, "n2") == node_files(two, "n2")


@pytest.mark.parametrize(
    ("event", "values", "own", "others"),
    [
        (Hang(2, 40), {}, -15, {-6, -15}),  # the agent may be quicker than a watchdog
        (Freeze(2, 40), {}, -9, {-6, -15}),  # SIGTERM does not reach it
        (BlockWatchdog(2, 40), {}, -6, {-15}),
        (Raise(2, 40), {}, 1, {-15}),
        (Crash(2, 40), {}, -11, {-15}),
        (Crash(2, 40), {"launcher": "srun", "kill_on_bad_exit": True}, -11, {-15}),
        (Exit(2, 40, 0), {}, 0, {-6, -15}),
        (Hang(2, 40), {"backend": "gloo", "per_node": 1}, -15, {1}),
        (Cancel(40), {}, -15, {-15}),
        (NodeFails("n3", 40), {"per_node": 1}, None, {-6}),
    ],
)
def test_how_ranks_end(event: Event, values: dict[str, Any], own: int | None, others: set[int | None]) -> None:
    found = codes(simulate(Scenario(**{"world": 4, "per_node": 4, "events": [event], **values})))
    assert found[2] == own
    assert set(found[:2] + found[3:]) <= others


def test_a_job_that_is_well_ends_well() -> None:
    assert codes(simulate(Scenario(world=4, noise=True))) == [0] * 4


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (Hang(1, 40), "FAILED"),
        (Cancel(40), "CANCELLED"),
        (Cancel(40, "time"), "TIMEOUT"),
        (Cancel(40, "preempt"), "PREEMPTED"),
        (NodeFails("n2", 40), "NODE_FAIL"),
        (event_module.HostOutOfMemory(1, 40), "OUT_OF_MEMORY"),
        (Slow(1, 40, 5.0), "COMPLETED"),
    ],
)
def test_how_the_job_ends(event: Event, state: str) -> None:
    story = simulate(Scenario(world=16, events=[event]))
    assert job(story).state == state


def test_waiting_ranks_count_and_the_one_that_hangs_is_told() -> None:
    story = simulate(Scenario(world=8, events=[Hang(5, 40)], run_ahead=0))
    assert "SeqNum=41" in said(story, 0) and "last enqueued work: 41, last completed work: 40" in said(story, 0)
    assert "Watchdog caught" not in said(story, 5)
    assert "Observed flight recorder dump signal" in said(story, 5)
    dump = flight_recorder.read(story.dumps[5])
    assert dump.world_size == 8
    assert dump.groups[0].counters == {"enqueued": 40, "started": 40, "completed": 40}
    assert flight_recorder.read(story.dumps[0]).groups[0].counters["enqueued"] == 41


def test_a_hang_in_a_group_makes_the_rest_wait_elsewhere() -> None:
    """Rank 1 hangs: its group of four waits there, the others in the group of all."""
    story = simulate(Scenario(world=8, per_node=4, groups=blocks(8, 4), events=[Hang(1, 40)]))
    waits = {process.rank: process.wait.group.guid for process in story.processes if process.wait}
    assert waits == {0: "1", 2: "1", 3: "1", 4: "0", 5: "0", 6: "0", 7: "0"}
    assert "PG GUID 1(TENSOR_MODEL_PARALLEL_GROUP)" in said(story, 0)


def test_a_rank_that_comes_too_late_is_as_one_that_never_comes() -> None:
    story = simulate(Scenario(world=4, timeout_s=60.0, events=[Slow(2, 40, 90.0)]))
    assert story.processes[2].stuck == "code" and story.state == "FAILED"
    assert "Watchdog caught" in said(story, 0)


def test_clocks_of_nodes_are_off_by_their_own() -> None:
    plain = Scenario(world=16, per_node=8, events=[Hang(1, 40)], seed=3)
    off = Scenario(world=16, per_node=8, events=[Hang(1, 40)], seed=3, skew_s=20.0)
    assert max(abs(value) for value in off.offsets.values()) <= 20.0
    assert len(set(off.offsets.values())) == 2
    line = next(line for line in simulate(plain).ranks[0] if "Watchdog" in line.text)
    skewed = next(line for line in simulate(off).ranks[0] if "Watchdog" in line.text)
    assert line.time == skewed.time and line.text != skewed.text


def test_records_and_files_that_are_missing() -> None:
    scenario = Scenario(world=64, per_node=8, missing=0.5, missing_files=0.25, output="redirects", seed=1)
    assert 0 < len(scenario.lost_nodes) < 8 and 0 < len(scenario.lost_ranks) < 32
    story = simulate(Scenario(**{**vars_of(scenario), "events": [Hang(1, 40)]}))
    lost = next(iter(scenario.lost_ranks))
    names = " ".join(node_files(story, scenario.host(lost)))
    assert f"attempt_0/{scenario.local(lost)}/" not in names


def vars_of(scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in Scenario.__dataclass_fields__}


def test_what_a_node_has_is_in_its_folder(tmp_path: Path) -> None:
    story = simulate(Scenario(world=8, per_node=4, events=[Xid(5, 40, 79)], output="redirects"))
    write(story, tmp_path)
    names = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert "slurm-4711.out" in names and "n2/kern.log" in names and "n1/nccl_trace_rank_0" in names
    assert "NVRM: Xid (PCI:0000:43:00): 79" in (tmp_path / "n2/kern.log").read_text()
    assert not any(name.startswith("n1/kern") for name in names)


def test_a_traceback_is_written_as_torchrun_does() -> None:
    story = simulate(Scenario(world=4, per_node=4, torch=(2, 13), backend="gloo", events=[Raise(2, 40)]))
    console = job_files(story)["slurm-4711.out"].decode()
    assert "[rank2]: ValueError: loss is nan" in console
    assert "  exitcode  : -15" in console and "(SIGTERM)" in console
    assert "\n  ValueError: loss is nan\n" in console  # quoted in the table
    assert b'"timestamp"' in story.error_files[2]


@pytest.mark.parametrize(
    ("values", "events", "determinable"),
    [
        ({}, [Hang(5, 40)], True),
        ({"torch": (2, 1), "dumps": False}, [Hang(5, 40)], False),  # no rank before the lines, no dump
        ({}, [Freeze(5, 40)], True),  # alone silent, and SIGTERM did not end it
        ({}, [Stall(40)], False),
        ({}, [Raise(5, 40)], True),
        ({"launcher": "srun", "torch": (2, 1)}, [Raise(5, 40)], False),
        ({}, [Crash(5, 40, 9)], False),  # nobody owns up to SIGKILL
        ({}, [Crash(5, 40, 11)], True),
        ({}, [Xid(5, 40, 79)], True),
        ({"missing": 1.0}, [Xid(5, 40, 79), Freeze(1, 59)], False),
        ({"backend": "gloo", "detail": True}, [Mismatch(5, 40)], True),
        ({"backend": "gloo"}, [Mismatch(5, 40)], False),
        ({}, [Say(5, 39, "x")], False),
    ],
)
def test_what_is_proven_by_what_is_written(values: dict[str, Any], events: list[Event], determinable: bool) -> None:
    found = truth(simulate(Scenario(**{"world": 8, "per_node": 4, "events": events, **values})))
    assert found.determinable is determinable
    assert not determinable or found.ranks == {5}


def test_the_truth_is_the_first_failure() -> None:
    found = truth(simulate(Scenario(world=8, events=[Raise(6, 50), Crash(2, 40)])))
    assert found.failure_class == "process-signal"
    assert (set(found.ranks), set(found.hosts)) == ({2}, {"n1"})
    assert found.allows(2, None) and found.allows(None, "n1") and not found.allows(6, None)


def test_every_event_has_a_class_that_exists() -> None:
    classes = {
        event.failure_class
        for event in vars(event_module).values()
        if isinstance(event, type) and issubclass(event, Event)
    } - {None}
    assert classes | set(XID_CLASSES.values()) <= set(CLASSES)


def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
    section = text.split("## Simulating a job", 1)[1]
    code = section.split("```python\n", 1)[1].split("```", 1)[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/testing.md", "exec"), {})
    assert (tmp_path / "logs" / "slurm-4711.out").exists()


EVENTS: dict[str, Callable[[int, int], Event]] = {
    "hang": Hang,
    "freeze": Freeze,
    "raise": lambda rank, step: Raise(rank, step),
    "crash": lambda rank, step: Crash(rank, step),
    "exit": lambda rank, step: Exit(rank, step, 3),
    "xid": lambda rank, step: Xid(rank, step, 31),
    "node": lambda rank, step: NodeFails(f"n{rank // 4 + 1}", step),
    "cancel": lambda rank, step: Cancel(step),
}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(EVENTS)), st.integers(0, 11), st.integers(0, 9)), max_size=3),
    st.sampled_from(["nccl", "gloo"]),
    st.sampled_from(["torchrun", "srun"]),
    st.booleans(),
)
def test_any_mixture_of_events_comes_to_an_end(
    chosen: list[tuple[str, int, int]], backend: str, launcher: str, kill: bool
) -> None:
    events = [EVENTS[name](rank, step) for name, rank, step in chosen]
    scenario = Scenario(
        world=12, per_node=4, steps=10, events=events, backend=backend, launcher=launcher, kill_on_bad_exit=kill
    )
    story = simulate(scenario)
    assert all(process.end is not None for process in story.processes)
    assert story.state is not None and story.end > scenario.start


@pytest.mark.parametrize(
    ("event", "named"), [(Hang(5, 40), 5), (Crash(5, 40), 5), (Xid(5, 40, 79), 5), (Stall(40), None)]
)
def test_a_case_is_judged(rows: Rows, event: Event, named: int | None) -> None:
    one = case_of(Scenario(world=16, per_node=8, events=[event]), rows)
    assert one.class_right
    assert [culprit.rank for culprit in one.verdict.culprits] == ([] if named is None else [named])
    assert one.culprit == ("nobody" if named is None else "right")
