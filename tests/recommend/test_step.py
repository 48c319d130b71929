"""What was tried, did it help, what comes next."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.recommend import step as step_module
from nccl_slurm.recommend.fault import Fault, of_event
from nccl_slurm.recommend.guard import Case
from nccl_slurm.recommend.ladder import advise
from nccl_slurm.recommend.policy import default
from nccl_slurm.recommend.step import Step, next_step
from nccl_slurm.recommend.tried import Tried, tried
from tests.attribute.scenarios import HANG
from tests.recommend.past import (
    DAY,
    NOW,
    PCI,
    TIMED_OUT,
    UUID,
    after_reboots,
    boot,
    fault,
    job,
    machine,
    never_back,
    reading,
    state,
)

HOUR = 3600.0


def step(*events: MachineEvent, code: int = 79, **more: object) -> Step:
    found = next_step([of_event(fault(HANG, code))], machine(*events), default())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("events", "action", "rule", "number"),
    [
        ([], "reboot", "ladder.reboot", 1),
        (after_reboots(1, 79), "replace", "ladder.replace", 2),
        (after_reboots(2, 79), "replace", "ladder.replace", 3),
        # the fault stood before, and nobody rebooted
        ([fault(HANG - DAY, 79)], "reboot", "ladder.reboot", 1),
        # rebooted, but not for this
        ([boot(HANG - DAY)], "reboot", "ladder.reboot", 1),
        ([fault(HANG - 2 * DAY, 94), boot(HANG - DAY)], "reboot", "ladder.reboot", 1),
        ([fault(HANG - 2 * DAY, 79, pci="0000:b2:00"), boot(HANG - DAY)], "reboot", "ladder.reboot", 1),
        # another code of the same class on the same GPU
        ([fault(HANG - 2 * DAY, 119), boot(HANG - DAY)], "replace", "ladder.replace", 2),
        # a reboot that nobody asked for is one
        ([fault(HANG - HOUR, 79), boot(HANG - HOUR / 2, "unasked")], "replace", "ladder.replace", 2),
        # a week of quiet after the reboot: that one helped
        ([fault(HANG - 9 * DAY, 79), boot(HANG - 8 * DAY)], "reboot", "ladder.reboot", 1),
        ([fault(HANG - 7 * DAY, 79), boot(HANG - 6.9 * DAY)], "replace", "ladder.replace", 2),
        # quiet for three weeks before that reboot: it was for something else
        ([fault(HANG - 22 * DAY, 79), boot(HANG - DAY)], "reboot", "ladder.reboot", 1),
        # two reboots between two faults are one attempt
        ([fault(HANG - DAY, 79), boot(HANG - HOUR), boot(HANG - HOUR / 2)], "replace", "ladder.replace", 2),
        # order is believed beyond what clocks may err
        ([fault(HANG - DAY, 79), boot(HANG - 0.5)], "reboot", "ladder.reboot", 1),
        # rebooted since: nobody knows yet whether it helped
        ([boot(HANG + 300)], "investigate", "ladder.rebooted", 1),
        ([*after_reboots(1, 79), boot(HANG + 300)], "investigate", "ladder.rebooted", 2),
        # … and it came back after all
        ([boot(HANG + 300), fault(HANG + 600, 79)], "replace", "ladder.replace", 2),
        # the reboot did not bring the node back
        (never_back(HANG + 900), "replace", "ladder.replace", 2),
        # … but a dead node never heard of it: these states are of a real one (22.05)
        (
            [
                state(HANG + 500, "DOWN+NOT_RESPONDING", "Not responding"),
                state(HANG + 600, "DOWN+DRAIN+NOT_RESPONDING+REBOOT_ISSUED", "x : reboot issued"),
                state(HANG + 900, "DOWN+NOT_RESPONDING", TIMED_OUT),
            ],
            "reboot",
            "ladder.reboot",
            1,
        ),
        (
            [
                state(HANG + 500, "DOWN+NOT_RESPONDING", "Not responding"),
                state(HANG + 600, "DOWN+DRAIN+REBOOT_ISSUED", "x : reboot issued"),
                state(HANG + 900, "DOWN+NOT_RESPONDING", TIMED_OUT),
            ],
            "reboot",
            "ladder.reboot",
            1,
        ),
        (
            [
                state(HANG + 600, "DOWN+DRAIN+REBOOT_ISSUED", "x : reboot issued"),
                state(HANG + 700, "DOWN+DRAIN+NOT_RESPONDING+REBOOT_ISSUED", "x : reboot issued"),
                state(HANG + 900, "DOWN+NOT_RESPONDING", TIMED_OUT),
            ],
            "replace",
            "ladder.replace",
            2,
        ),
        # it answers: it was never down
        (never_back(HANG + 900, "DOWN"), "reboot", "ladder.reboot", 1),
        # a person's words
        ([state(HANG + 900, "DOWN+NOT_RESPONDING", "a reboot timed out, ask bob")], "reboot", "ladder.reboot", 1),
        ([state(HANG + 900, "DOWN+NOT_RESPONDING", "last reboot timed out")], "reboot", "ladder.reboot", 1),
        ([state(HANG + 900, "DOWN+NOT_RESPONDING", TIMED_OUT)], "reboot", "ladder.reboot", 1),
        ([state(HANG + 900, "UP+DRAIN+NOT_RESPONDING", TIMED_OUT)], "reboot", "ladder.reboot", 1),
        # … and so where Slurm issued one that is over, or that ran into no time-out
        (
            [
                state(HANG + 300, "DOWN+REBOOT_ISSUED", "x : reboot issued"),
                state(HANG + 600, "UP"),
                state(HANG + 900, "DOWN+NOT_RESPONDING", TIMED_OUT),
            ],
            "reboot",
            "ladder.reboot",
            1,
        ),
        (
            [*never_back(HANG + 900), state(HANG + 990, "UP"), boot(HANG + 980)],
            "investigate",
            "ladder.rebooted",
            1,
        ),
    ],
    ids=lambda value: None,
)
def test_after_what_was_tried(events: list[MachineEvent], action: str, rule: str, number: int) -> None:
    found = step(*events)
    assert (found.action, found.rule, found.number) == (action, rule, number)


@pytest.mark.parametrize(
    ("earlier", "action"),
    [
        (fault(HANG - DAY, 48), "replace"),
        (fault(HANG - DAY, 95), "replace"),
        (reading(HANG - DAY, "gpu.ecc-uncorrected"), "replace"),
        (fault(HANG - DAY, 63), "reboot"),  # a row was remapped, as it should be
        (reading(HANG - DAY, "gpu.remap-pending", None), "reboot"),  # and the reboot applied it
        (fault(HANG - DAY, 92), "reboot"),
        (fault(HANG - DAY, 94), "reboot"),  # contained: no reboot was due
        (fault(HANG - DAY, 156), "reboot"),
        (reading(HANG - DAY, "gpu.ecc-corrected"), "reboot"),
        (fault(HANG - DAY, 79), "reboot"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{value.name}-{value.data.get('xid')}",
)
def test_what_counts_as_a_double_bit_error_again(earlier: MachineEvent, action: str) -> None:
    assert step(earlier, boot(HANG - HOUR), code=48).action == action


def test_an_nvlink_error_that_is_to_be_ignored_is_no_first_one() -> None:
    for register, action in ((0x1, "reboot"), (0x10, "replace")):
        words = f"NVLink: error on link 3(0x{register:x}, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
        now = of_event(fault(HANG, 74, "NVLink: error on link 3(0x20, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"))
        past = machine(fault(HANG - DAY, 74, words), boot(HANG - HOUR))
        found = next_step([now], past, default())
        assert found is not None and found.action == action


@pytest.mark.parametrize(
    ("name", "reboots", "action"),
    [
        ("gpu.remap-pending", 0, "reboot"),
        ("gpu.remap-pending", 1, "reboot"),
        ("gpu.remap-pending", 2, "investigate"),
        ("gpu.remap-pending", 3, "investigate"),
        ("gpu.remap-failure", 0, "replace"),
        ("gpu.ecc-uncorrected", 0, "reboot"),
        ("gpu.ecc-uncorrected", 1, "replace"),
        ("port.missing", 0, "investigate"),
        ("port.missing", 1, "replace"),
    ],
)
def test_readings_after_reboots(name: str, reboots: int, action: str) -> None:
    events: list[MachineEvent] = []
    for number in range(reboots, 0, -1):
        events += [reading(HANG - number * DAY, name, None), boot(HANG - number * DAY + HOUR)]
    found = next_step([of_event(reading(HANG, name, None))], machine(*events), default())
    assert found is not None and found.action == action


AER = "{}: PCIe Bus Error: severity=Uncorrected ({}), type=Transaction Layer"
UE = "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Channel#1_DIMM#{} (channel:1)"


@pytest.mark.parametrize(
    ("before", "after", "action"),
    [
        (AER.format("pcieport 0000:10:01.0", "Fatal"), AER.format("nvme 0000:85:00.0", "Fatal"), "investigate"),
        (AER.format("nvme 0000:85:00.0", "Fatal"), AER.format("nvme 0000:85:00.0", "Fatal"), "replace"),
        (AER.format("nvme 0000:85:00.0", "Non-Fatal"), AER.format("nvme 0000:85:00.0", "Non-Fatal"), "investigate"),
        (UE.format(0), UE.format(1), "investigate"),
        (UE.format(0), UE.format(0), "replace"),
        (UE.format(0), "mce: [Hardware Error]: uncorrected error", "replace"),  # no part is told
    ],
)
def test_a_machine_check_of_another_part_is_another_one(before: str, after: str, action: str) -> None:
    """A reboot for something else stands between two of them."""

    def check(at: float, text: str) -> MachineEvent:
        return MachineEvent(at, "fault", "kernel.machine-check", "kernel", text)

    own = machine(check(HANG - DAY, before), boot(HANG - HOUR))
    found = next_step([of_event(check(HANG, after))], own, default())
    assert found is not None and found.action == action


def test_seven_of_eight_after_a_boot_without_any_is_a_first_time() -> None:
    """None at all was the driver: that boot says nothing about the board that is missing now."""

    def count(at: float, number: int) -> MachineEvent:
        words = f"{number} GPUs, Slurm has 8 for the node"
        return MachineEvent(at, "fault", "gpu.count", "gpu", words, "gpu-hw-lost", data={"found": number})

    for earlier, action in ((0, "reboot"), (7, "replace")):
        past = machine(count(HANG - DAY, earlier), boot(HANG - HOUR))
        found = next_step([of_event(count(HANG, 7))], past, default())
        assert found is not None and found.action == action


def test_the_history_is_told_with_its_times() -> None:
    found = step(*after_reboots(1, 79))
    assert found.why == (
        "Xid 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: NVIDIA RESTART_BM, then CONTACT_SUPPORT",
        "The same fault on GPU 0000:a1:00 is in its history: 2026-11-17T11:16:40Z (1 in all)",
        "Rebooted 2026-11-17T12:16:40Z (asked for by root), and it came back",
    )
    assert step().why[1] == "Nothing like it on GPU 0000:a1:00 is in this machine's history since 2026-08-10T11:16:40Z"


def test_without_a_history_a_reboot_is_the_most() -> None:
    for event in (fault(HANG, 79), fault(HANG, 54), reading(HANG, "gpu.remap-failure")):
        found = next_step([of_event(event)], None, default())
        assert found is not None and (found.action, found.number) == ("reboot", 1)


def test_a_fault_without_a_time_counts_no_reboot() -> None:
    timeless = of_event(fault(HANG, 79))
    found = next_step([replace(timeless, time=None)], machine(*after_reboots(2, 79)), default())
    assert found is not None and (found.action, found.number) == ("reboot", 1)


def test_a_storm_asks_the_history_twice_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 lines are the most that a record has; each question reads the whole history."""
    words = [f"NVLink: fatal error detected on link {n}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)" for n in range(18)]
    storm = [fault(HANG - 12_000 + 6 * n, 74, words[n % 18]) for n in range(2000)]
    asked: list[Fault] = []

    def counted(one: Fault, *rest: Any) -> Tried:
        asked.append(one)
        return tried(one, *rest)

    monkeypatch.setattr(step_module, "tried", counted)
    found = next_step([of_event(one) for one in storm], machine(*storm), default())
    assert found is not None and (found.action, found.rule, len(asked)) == ("reboot", "ladder.reboot", 36)
    assert found.why[0].endswith("112 times on this link: NVIDIA asks for a report")


# --- properties

_times = st.floats(min_value=HANG - 20 * DAY, max_value=HANG + DAY, allow_nan=False)
_codes = st.sampled_from([13, 31, 43, 45, 48, 54, 63, 64, 74, 79, 94, 95, 110, 119, 145, 154, 156, 61, 999])
_app = st.sampled_from([8, 11, 13, 25, 31, 32, 43, 45, 69, 80, 137, 39, 61, 1])  # and two that are unused
_boots = st.lists(st.builds(boot, _times, st.sampled_from(["asked", "unasked"])), max_size=6)
_states = st.lists(
    st.builds(state, _times, st.sampled_from(["UP", "DOWN", "UP+DRAIN", "DOWN+NOT_RESPONDING"]), st.none() | st.text()),
    max_size=6,
)
_jobs = st.lists(st.builds(job, _times, st.sampled_from(["alice", "bob"])), max_size=40)
_faults = st.lists(st.builds(fault, _times, _codes), max_size=8)


def advised(past: Machine, *faults: MachineEvent) -> str:
    item = advise(Case("n2", default(), machines={"n2": past}, now=NOW), [of_event(one) for one in faults])
    return item.action if item else "none"


@given(_boots, _states, _jobs)
def test_jobs_that_were_lost_alone_never_ask_for_anything(
    boots: list[MachineEvent], states: list[MachineEvent], jobs: list[MachineEvent]
) -> None:
    assert advised(machine(*boots, *states, *jobs)) == "none"


@given(st.lists(st.builds(fault, _times, _app), min_size=1, max_size=8), _boots, _states)
def test_what_programs_do_is_never_replaced_nor_rebooted_for(
    faults: list[MachineEvent], boots: list[MachineEvent], states: list[MachineEvent]
) -> None:
    assert advised(machine(*faults, *boots, *states), faults[-1]) in ("none", "investigate")


@given(_faults, _boots, _states, _codes)
def test_replace_needs_a_reboot_that_did_not_help_or_what_is_final(
    faults: list[MachineEvent], boots: list[MachineEvent], states: list[MachineEvent], code: int
) -> None:
    past = machine(*faults, *boots, *states)
    if advised(past, fault(HANG, code)) == "replace" and code != 54:
        stuck = [event for event in states if "reboot timed out" in str(event.data.get("reason"))]
        assert boots or stuck
        assert faults or stuck


@given(_faults, _boots, _states, _faults)
def test_the_ends_of_a_storm_tell_what_all_of_it_tells(
    faults: list[MachineEvent], boots: list[MachineEvent], states: list[MachineEvent], run: list[MachineEvent]
) -> None:
    past, of_run = machine(*faults, *boots, *states), [of_event(one) for one in run]
    found = next_step(of_run, past, default())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(step_module, "_ends", list)
        whole = next_step(of_run, past, default())
    assert (found and (found.action, found.number)) == (whole and (whole.action, whole.number))


@given(_faults, _boots, _codes)
def test_a_step_does_not_depend_on_the_order_of_events(
    faults: list[MachineEvent], boots: list[MachineEvent], code: int
) -> None:
    events = [*faults, *boots]
    one = Machine("i", "n2", "compute", None, events)
    other = Machine("i", "n2", "compute", None, sorted(events, key=lambda event: -event.time))
    assert advised(one, fault(HANG, code)) == advised(other, fault(HANG, code))


# --- boards that were changed, states that are over


def of_gpu(at: float, name: str, **data: Any) -> MachineEvent:
    return MachineEvent(at, "gpu", name, "gpu", data={"gpu": PCI, "uuid": UUID, **data})


CHANGED = of_gpu(HANG - 30 * DAY, "changed", before="GPU-old")


@pytest.mark.parametrize(
    ("events", "code", "action"),
    [
        ([reading(HANG - 60 * DAY, "gpu.remap-failure")], 48, "replace"),
        ([reading(HANG - 60 * DAY, "gpu.remap-failure"), CHANGED], 48, "reboot"),
        ([reading(HANG - 60 * DAY, "gpu.remap-failure", uuid="GPU-old"), CHANGED], 48, "reboot"),
        ([reading(HANG - 60 * DAY, "gpu.remap-failure", uuid=UUID), CHANGED], 48, "replace"),
        ([reading(HANG - 20 * DAY, "gpu.remap-failure"), CHANGED], 48, "replace"),
        (
            [reading(HANG - 60 * DAY, "gpu.remap-failure"), of_gpu(HANG - DAY, "over", was="gpu.remap-failure")],
            48,
            "reboot",
        ),
        (
            [reading(HANG - DAY, "gpu.remap-failure"), of_gpu(HANG - 2 * DAY, "over", was="gpu.remap-failure")],
            48,
            "replace",
        ),
        (
            [reading(HANG - 60 * DAY, "gpu.remap-failure"), of_gpu(HANG - DAY, "over", was="gpu.sram-threshold")],
            48,
            "replace",
        ),
        (
            [
                reading(HANG - 60 * DAY, "gpu.remap-failure", uuid="GPU-old"),
                reading(HANG - DAY, "gpu.remap-pending", uuid=UUID),
            ],
            48,
            "reboot",
        ),
        ([fault(HANG - 2 * DAY, 79), boot(HANG - DAY)], 79, "replace"),
        ([fault(HANG - 2 * DAY, 79), boot(HANG - DAY), of_gpu(HANG - DAY / 2, "changed")], 79, "reboot"),
        (
            [
                fault(HANG - 2 * DAY, 79, pci="0000:b2:00"),
                fault(HANG - 2 * DAY, 79),
                boot(HANG - DAY),
                of_gpu(HANG - DAY / 2, "changed", gpu="0000:b2:00"),
            ],
            79,
            "replace",
        ),
    ],
    ids=lambda value: None,
)
def test_what_a_board_that_was_taken_out_did(events: list[MachineEvent], code: int, action: str) -> None:
    found = next_step([of_event(fault(HANG, code))], machine(*events), default())
    assert found is not None and found.action == action
