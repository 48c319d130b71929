"""Node records → faults of machines: the kernel's lines, and GPU readings that are bad or changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.daemon.faults import KERNEL_FAULTS, kernel_faults
from nccl_slurm.daemon.readings import Reading, compared, readings_of
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import load_rows
from tests.collect.test_shared import record

ROWS = load_rows()
XID = "NVRM: Xid (PCI:0000:A1:00.0): 79, pid=12, name=python3, GPU has fallen off the bus."


def facts(*lines: str, at: float | None = 100.0) -> list[dict[str, Any]]:
    return [fact.to_json() for fact in kernel_facts([(at, line) for line in lines], "n1", ROWS)]


def of(*lines: str, **more: Any) -> list[tuple[str, dict[str, Any], str | None]]:
    found = kernel_faults(record(kernel_events=facts(*lines), **more))
    return [(event.name, dict(event.data), event.failure_class) for event in found]


def test_an_xid_without_the_name_of_the_program() -> None:
    (event,) = kernel_faults(record(kernel_events=facts(XID)))
    assert (event.name, event.failure_class, event.data) == (
        "kernel.xid",
        "gpu-hw-lost",
        {"gpu": "0000:a1:00", "xid": 79},
    )
    assert (event.text, event.source, event.time) == ("GPU has fallen off the bus.", "kernel", 100.0)


@pytest.mark.parametrize("kind", sorted(KERNEL_FAULTS))
def test_each_kind_is_a_row_and_its_sample_a_fault(kind: str) -> None:
    row = next(row for row in ROWS.rows if row.id == kind)
    assert [name for name, _, _ in of(row.yes or "")] == [kind]


@pytest.mark.parametrize("kind", ["kernel.oom", "kernel.oom-cgroup", "kernel.link-up", "kernel.gpu-uuid"])
def test_what_is_no_fault_of_a_machine(kind: str) -> None:
    row = next(row for row in ROWS.rows if row.id == kind)
    assert facts(row.yes or "") != [] and of(row.yes or "") == []


def test_what_a_job_could_have_written_is_no_fault() -> None:
    claimed = [{**fact, "trust": "job"} for fact in facts(XID)]
    assert kernel_faults(record(kernel_events=claimed)) == [] and kernel_faults(record(facts=facts(XID))) == []


def test_the_clock_of_the_node_widens_the_time() -> None:
    clock = {"source": "chronyc", "offset_s": -3.5, "synchronized": True}
    (event,) = kernel_faults(record(kernel_events=facts(XID), clock=clock))
    assert event.uncertainty_s == 4.5


@pytest.mark.parametrize(
    ("boot_time", "began", "expected"),
    [(500.0, 200.0, [(500.0, 300.0)]), (None, 200.0, []), (500.0, None, []), (500.0, 600.0, [])],
)
def test_a_panic_without_a_time_was_before_the_boot(
    boot_time: float | None, began: float | None, expected: list[tuple[float, float]]
) -> None:
    machine = {**record()["machine"], "boot_time": boot_time}
    prolog = None if began is None else {"time": began, "boot_id": "a", "env": {}}
    panic = facts("Kernel panic - not syncing: Fatal exception in interrupt", at=None)
    found = kernel_faults(record(kernel_events=panic, machine=machine, prolog=prolog))
    assert [(event.time, event.uncertainty_s) for event in found] == expected


# -- readings


def gpu(uuid: str = "GPU-a", **more: Any) -> dict[str, Any]:
    ecc = {
        "volatile_uncorrected": more.pop("volatile", 0),
        "aggregate_uncorrected": more.pop("aggregate", 0),
        "sram_threshold_exceeded": more.pop("sram", False),
    }
    remapped = {"pending": more.pop("pending", False), "failure": more.pop("failure", False)}
    links = {"active": more.pop("up", 18), "inactive": more.pop("down", [])}
    bus = f"0000:{uuid[-1]}1:00"
    base = {"uuid": uuid, "bus_id": bus, "name": "H100", "recovery_action": "None", "ecc": ecc, "remapped": remapped}
    return {**base, "nvlink": links, **more}


def reading(*gpus: Any, at: float = 200.0, boot: str = "b", configured: int | None = None) -> Reading:
    return Reading(at, boot, list(gpus), configured, None)


def after(first: Reading, second: Reading) -> list[tuple[str, dict[str, Any]]]:
    _, known = compared({}, first)
    events, _ = compared(known, second)
    return [
        (event.name, {key: value for key, value in event.data.items() if key not in ("gpu", "uuid")})
        for event in events
    ]


GOOD = gpu()
#: name → (reading before, reading after, faults)
CHANGES: dict[str, tuple[Reading, Reading, list[tuple[str, dict[str, Any]]]]] = {
    "nothing": (reading(GOOD, at=100.0), reading(GOOD), []),
    "remap failed": (reading(GOOD, at=100.0), reading(gpu(failure=True)), [("gpu.remap-failure", {})]),
    "remap pending": (reading(GOOD, at=100.0), reading(gpu(pending=True)), [("gpu.remap-pending", {})]),
    "pending still": (reading(gpu(pending=True), at=100.0), reading(gpu(pending=True)), []),
    "pending over": (reading(gpu(pending=True), at=100.0), reading(GOOD), [("over", {"was": "gpu.remap-pending"})]),
    "failure over": (reading(gpu(failure=True), at=100.0), reading(GOOD), [("over", {"was": "gpu.remap-failure"})]),
    "failure not told": (reading(gpu(failure=True), at=100.0), reading(gpu(failure=None)), []),
    "another board in its place": (
        reading(gpu(failure=True), at=100.0),
        reading(gpu("GPU-c", bus_id=GOOD["bus_id"])),
        [("changed", {"before": "GPU-a"})],
    ),
    "a board without a uuid": (reading(gpu(uuid="a"), at=100.0), reading(gpu("c", bus_id="0000:a1:00")), []),
    "another board in another place": (reading(GOOD, at=100.0), reading(gpu("GPU-c")), []),
    "failed still, after a boot": (
        reading(gpu(failure=True), at=100.0),
        reading(gpu(failure=True), boot="c"),
        [("gpu.remap-failure", {})],
    ),
    "SRAM threshold": (reading(GOOD, at=100.0), reading(gpu(sram=True)), [("gpu.sram-threshold", {})]),
    "ECC in this boot": (
        reading(GOOD, at=100.0),
        reading(gpu(volatile=2, aggregate=2)),
        [("gpu.ecc-uncorrected", {"before": 0, "after": 2})],
    ),
    "ECC over a boot": (
        reading(gpu(volatile=3, aggregate=3), at=100.0),
        reading(gpu(volatile=1, aggregate=4), boot="c"),
        [("gpu.ecc-uncorrected", {"before": 3, "after": 4})],
    ),
    "volatile starts again with a boot": (
        reading(gpu(volatile=3, aggregate=3), at=100.0),
        reading(gpu(volatile=0, aggregate=3), boot="c"),
        [],
    ),
    "ECC not told": (reading(gpu(volatile=None), at=100.0), reading(gpu(volatile=5)), []),
    "recovery action": (
        reading(GOOD, at=100.0),
        reading(gpu(recovery_action="Reboot")),
        [("gpu.recovery-action", {"action": "Reboot"})],
    ),
    "recovery action not told": (reading(GOOD, at=100.0), reading(gpu(recovery_action=None)), []),
    "a link went down": (
        reading(GOOD, at=100.0),
        reading(gpu(up=17, down=[4])),
        [("gpu.nvlink-inactive", {"link": [4]})],
    ),
    "links not told": (reading(GOOD, at=100.0), reading(gpu(nvlink=None)), []),
    "a GPU is gone": (
        reading(GOOD, gpu("GPU-b"), at=100.0, configured=2),
        reading(GOOD, configured=2),
        [("gpu.count", {"found": 1, "configured": 2, "gpus": ["0000:b1:00"]})],
    ),
    "gone still": (reading(GOOD, at=100.0, configured=2), reading(GOOD, configured=2), []),
    "gone, and Slurm does not tell how many there are": (reading(GOOD, gpu("GPU-b"), at=100.0), reading(GOOD), []),
    "older than what is known": (reading(GOOD, at=300.0), reading(gpu(failure=True)), []),
}


def test_what_could_not_be_read_once_is_remembered() -> None:
    """The board that failed is lost before another one comes in its place; a query fails before a flag is gone."""
    _, known = compared({}, reading(gpu(failure=True), gpu("GPU-b"), at=100.0, configured=2))
    found, known = compared(known, reading(gpu("GPU-b"), at=200.0, boot="c", configured=2))
    assert [event.name for event in found] == ["gpu.count"]
    new = gpu("GPU-c", bus_id=GOOD["bus_id"])
    found, known = compared(known, reading(new, gpu("GPU-b"), at=300.0, boot="d", configured=2))
    assert [(event.kind, event.name, event.data["before"]) for event in found] == [("gpu", "changed", "GPU-a")]
    assert set(known["gpus"]) == {"GPU-b", "GPU-c"}
    for at, flag, expected in ((400.0, True, ["gpu.remap-failure"]), (500.0, None, []), (600.0, False, ["over"])):
        found, known = compared(known, reading(gpu("GPU-b", failure=flag), at=at, boot="d"))
        assert [event.name for event in found] == expected


@pytest.mark.parametrize("case", CHANGES)
def test_changes(case: str) -> None:
    before, now, expected = CHANGES[case]
    assert after(before, now) == expected


#: name → (first reading of a machine, faults)
FIRST: dict[str, tuple[Reading, list[str]]] = {
    "good": (reading(GOOD), []),
    "counters of a lifetime": (reading(gpu(volatile=1, aggregate=7)), []),
    "bad as it stands": (
        reading(gpu(failure=True, recovery_action="Reset")),
        ["gpu.remap-failure", "gpu.recovery-action"],
    ),
    "no bridge on this board": (reading(gpu(up=0, down=[0, 1]), gpu("GPU-b", up=0, down=[0, 1])), []),
    "fewer links than the others": (reading(gpu(up=17, down=[3]), gpu("GPU-b")), ["gpu.nvlink-inactive"]),
    "fewer GPUs than configured": (reading(GOOD, configured=8), ["gpu.count"]),
    "none at all": (reading(configured=8), ["gpu.count"]),
    "more than configured": (reading(GOOD, configured=0), []),
}


@pytest.mark.parametrize("case", FIRST)
def test_first_readings(case: str) -> None:
    first, expected = FIRST[case]
    events, known = compared({}, first)
    assert [event.name for event in events] == expected
    assert compared(known, first) == ([], known)


def test_a_machine_that_never_had_so_many_gpus_is_told_from_one_that_lost_some() -> None:
    """A Gres line that is wrong looks like a GPU that is gone, and stays so after each boot."""
    known: dict[str, Any] = {}
    for boot in ("b", "c", "d"):
        (found,), known = compared(known, reading(GOOD, at=ord(boot), boot=boot, configured=8))
        assert found.name == "gpu.count" and found.text.endswith("and the machine never showed more")
    both = reading(GOOD, gpu("GPU-b"), at=200.0, configured=2)
    _, known = compared({}, both)
    for boot in ("e", "f"):
        (found,), known = compared(known, reading(GOOD, at=200.0 + ord(boot), boot=boot, configured=2))
        assert found.text == "1 GPUs, Slurm has 2 for the node"


def test_a_hook_that_sees_the_jobs_gpus_alone_misses_none() -> None:
    taken = {"gpus": [GOOD], "end": 5.0}
    prolog = {"time": 1.0, "boot_id": "b", "env": {"SLURM_JOB_GPUS": "3"}}
    whole = record(prolog=prolog, snapshots={"before": taken, "after": None})
    (found,) = readings_of(whole, 8)
    assert compared({}, found)[0] == []
    (found,) = readings_of({**whole, "prolog": {**prolog, "env": {}}}, 8)
    assert [event.name for event in compared({}, found)[0]] == ["gpu.count"]


def test_snapshots_without_a_query_are_no_readings() -> None:
    assert readings_of(record(snapshots={"before": {"gpus": None, "end": 5.0}, "after": None}), 8) == []


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
GPUS = st.lists(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("uuid", "bus_id", "name", "ecc", "remapped", "nvlink", "recovery_action"), VALUES)
    ),
    max_size=3,
)


@given(GPUS, GPUS)
def test_readings_of_any_shape(one: list[Mapping[str, Any]], two: list[Mapping[str, Any]]) -> None:
    _, known = compared({}, reading(*one, at=1.0))
    events, known = compared(known, reading(*two, at=2.0, configured=8))
    assert all(event.kind in ("fault", "gpu") and event.time == 2.0 for event in events) and len(str(known)) < 10_000
