"""Every Xid of NVIDIA's catalog: first time, after one reboot, after two, on a controller, on a node of unknown role,
under a software verdict, in a site event. What is expected was written down from NVIDIA's buckets and the public rules
of GPUd and NVSentinel, not from data/xid.toml."""

from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Culprit, Evidence, Recommendation, Verdict
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.recommend.fault import of_event
from nccl_slurm.recommend.guard import Case
from nccl_slurm.recommend.ladder import advise, recommend
from nccl_slurm.recommend.policy import default
from tests.attribute.scenarios import HANG
from tests.recommend.past import NOW, after_reboots, fault, line, machine, run_of

ROWS = load_rows()
CODES = tuple(range(1, 173))

#: (first time, after one reboot, after two) → codes. All others ask for nothing on the node.
STEPS: dict[tuple[str, str, str], set[int]] = {
    ("reboot", "replace", "replace"): {46, 48, 62, 64, 74, 79, 95, 109, 119, 120, 136, 140, 143, 158, 167, 169},
    ("replace", "replace", "replace"): {54},  # auxiliary power: no reboot plugs it in
    ("reboot", "investigate", "replace"): {110},  # NVIDIA looks for software; GPUd gives up after two reboots
    ("reboot", "investigate", "investigate"): {151, 155, 168},  # key rotation, software-defined, ECC switched off
    ("reboot", "reboot", "investigate"): {156},  # retirement is what it is there for; a reboot applies it
    ("investigate", "replace", "replace"): {157},  # nothing left to retire
    ("investigate", "investigate", "investigate"): {94, *range(144, 151), 171, 172},
}
#: Unused from Ampere on, or a word of the vendor's: a node is looked at, and no run names it for that.
UNUSED = {
    *(1, 2, 3, 4, 5, 6, 7, 9, 10, 12, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 26, 27, 28, 29, 30, 33, 34, 35, 36, 42),
    *(47, 49, 50, 51, 52, 53, 55, 56, 57, 58, 59, 61, 65, 73, 81, 87, 90, 91, 111, 112, 113, 114, 115, 116, 117, 118),
    *(122, 123, 124, 125, 138),
}
VENDOR = {142, 159, 164, 165}
#: A run with this Xid alone: the program's owner is told to look at the code.
PROGRAM = {8, 11, 13, 25, 31, 32, 43, 45, 69, 80, 137, 141}
#: … to look at the report: they need not end a job, so no node is named.
HINT = {63, 92, 121, 157, 168, 171, 172}

HISTORY = {"first": 0, "once": 1, "twice": 2}
#: The guards have to hold after two reboots that did not help, too.
TRIED = {**HISTORY, "no-history": 0, "controller": 2, "unknown-role": 2, "software": 2, "site-event": 2}
CONDITIONS = tuple(TRIED)


def steps_of(code: int) -> tuple[str | None, ...]:
    return next((steps for steps, codes in STEPS.items() if code in codes), (None, None, None))


def wanted(code: int, condition: str) -> tuple[str | None, str | None]:
    """(target, action) of the one recommendation."""
    if condition == "software":
        return (None, "fix-code")
    if code in PROGRAM:
        return (None, "fix-code")
    if code in HINT:
        return (None, "investigate")
    steps = steps_of(code)
    if steps[0] is None:
        return (None, None)
    step = str(steps[TRIED[condition]])
    lowered = {"no-history": {"replace": "reboot"}, **dict.fromkeys(("controller", "unknown-role", "site-event"), LOW)}
    return ("n2", lowered.get(condition, {}).get(step, step))


LOW = {"reboot": "investigate", "replace": "investigate"}


def given(code: int, condition: str) -> tuple[Recommendation, ...]:
    role = {"controller": "controller", "unknown-role": "unknown"}.get(condition, "compute")
    run = run_of(ROWS, line(code), n2={"role": role})
    machines = {"n2": machine(*after_reboots(TRIED[condition], code), role=role)}
    if condition == "site-event":
        beside = [machine(fault(HANG + 20, code), node=name, identity=f"i-{name}") for name in ("n7", "n8")]
        machines |= {one.node: one for one in beside}
    past: dict[str, Any] = {} if condition == "no-history" else {"machines": machines, "now": NOW}
    return recommend(verdict_of(run, condition), run, **past)


def verdict_of(run: Evidence, condition: str) -> Verdict:
    if condition == "software":
        return Verdict("rank-exception", "proven", "s", "fix-code", [Culprit("raised", 1, "n2", None, ["f1"])])
    return attribute(run)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("code", CODES)
def test_a_run_with_this_xid(code: int, condition: str) -> None:
    items = given(code, condition)
    target, action = wanted(code, condition)
    assert [(item.target, item.action) for item in items] == ([(target, action)] if action else [])
    for item in items:
        assert ("plan a fail-over first" in item.why) == (item.rule == "ladder.controller")
        assert ("destroys root and secondary volumes" in item.why) == (item.action == "replace")
        assert item.step == 1 + (TRIED[condition] if target else 0)


@pytest.mark.parametrize("history", HISTORY)
@pytest.mark.parametrize("code", CODES)
def test_a_machine_with_this_xid(code: int, history: str) -> None:
    """Without a run, as a review of all nodes asks."""
    count = HISTORY[history]
    past = machine(*after_reboots(count, code), fault(HANG, code))
    case = Case("n2", default(), machines={"n2": past}, now=NOW)
    item = advise(case, [of_event(past.events[-1])])
    look = "investigate" if code in UNUSED | VENDOR else None
    assert (item.action if item else None) == (steps_of(code)[count] or look)


def test_the_table_holds_each_code_once() -> None:
    codes = [code for group in STEPS.values() for code in group]
    assert len(codes) == len(set(codes))
    assert not (PROGRAM | UNUSED | VENDOR) & set(codes) and set(codes) | PROGRAM | HINT <= set(CODES)
