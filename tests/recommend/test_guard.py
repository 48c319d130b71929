"""Guards: each with what it holds up and what it lets through."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.history.reasons import load, packaged
from nccl_slurm.model import NodeView, Recommendation
from nccl_slurm.recommend.fault import of_event
from nccl_slurm.recommend.guard import Case, in_progress, role_of
from nccl_slurm.recommend.ladder import advise
from nccl_slurm.recommend.policy import default
from nccl_slurm.recommend.site import NodeNow, Running, Site
from tests.attribute.scenarios import HANG
from tests.recommend.past import DAY, NOW, after_reboots, boot, fault, machine, never_back, state

GRES = "gres/gpu count reported lower than configured (0 < 8)"


def case(*events: MachineEvent, site: Site | None = None, fleet: dict[str, Machine] | None = None, **more: Any) -> Case:
    own = machine(*events, role=more.pop("machine_role", "compute"))
    view = NodeView("n2", "i-0123456789abcdef0", **{"role": "compute", **more})
    return Case("n2", default(), view, {**(fleet or {}), "n2": own}, site or Site(), NOW)


def advised(of: Case, code: int = 79) -> Recommendation:
    found = advise(of, [of_event(fault(HANG, code))])
    assert found is not None
    return found


def test_nothing_holds_up_a_compute_node() -> None:
    assert advised(case()).rule == "ladder.reboot"
    assert advised(case(*after_reboots(1, 79))).rule == "ladder.replace"


KNOWN_AS = {"n2": NodeNow("IDLE", hosts=("head1.example", "10.1.0.2"))}


@pytest.mark.parametrize("reboots", [0, 2])
@pytest.mark.parametrize(
    ("of", "words"),
    [
        (case(role="controller"), "It is a Slurm controller:"),
        (case(site=Site(controllers=("n2", "n9"))), "It is a Slurm controller (primary):"),
        (case(site=Site(controllers=("n9", "n2.cluster.example"))), "It is a Slurm controller (backup):"),
        (case(machine_role="controller"), "It is a Slurm controller:"),
        (case(role="unknown", machine_role="unknown"), "it may be a Slurm controller:"),
        (case(machine_role="login"), "It is a login node:"),
        (case(site=Site(logins=("n2",))), "It is a login node:"),
        (case(site=Site(databases=("n2",))), "slurmdbd or its database runs on it:"),
        (case(site=Site(databases=("10.1.0.2",), now=KNOWN_AS)), "slurmdbd or its database runs on it:"),
        (case(site=Site(controllers=("n9", "HEAD1"), now=KNOWN_AS)), "It is a Slurm controller (backup):"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_controllers_and_kin(of: Case, words: str, reboots: int) -> None:
    own = machine(*after_reboots(reboots, 79), role=of.machines["n2"].role if of.machines else "")
    found = advised(Case(of.name, of.policy, of.view, {"n2": own}, of.site, of.now))
    assert (found.action, found.rule) == ("investigate", "ladder.controller")
    assert words in found.why and "plan a fail-over first" in found.why
    assert found.commands == ("scontrol show node n2",)


def test_an_address_is_no_name_with_a_domain() -> None:
    now = {"n2": NodeNow("IDLE", hosts=("10.1.0.2",))}
    assert advised(case(site=Site(databases=("10.1.0.3", "10"), now=now))).rule == "ladder.reboot"


@pytest.mark.parametrize(
    ("view", "own", "role"),
    [
        ("compute", "unknown", "compute"),
        ("unknown", "compute", "compute"),
        ("compute", "controller", "controller"),
        ("controller", "compute", "controller"),
        ("compute", "database", "database"),
        ("compute", "something else", "compute"),
        ("unknown", "unknown", "unknown"),
    ],
)
def test_the_most_careful_word_is_the_role(view: str, own: str, role: str) -> None:
    assert role_of(case(role=view, machine_role=own)) == role


@pytest.mark.parametrize(
    ("state_now", "reason", "busy"),
    [
        ("IDLE+FAIL", "Action:Replace", True),
        ("DOWN", "Action:Reboot", True),
        ("IDLE+DRAIN+REBOOT_REQUESTED", None, True),
        ("DOWN+DRAIN+REBOOT_ISSUED", "kernel update : reboot issued", True),
        ("IDLE+POWERING_DOWN", None, True),
        ("MIXED+NOT_RESPONDING+POWERING_UP", None, True),
        ("IDLE+MAINTENANCE", None, True),
        ("IDLE+DRAIN", "kernel update : reboot requested", True),
        ("DOWN", "kernel update : reboot issued : reboot timed out", False),
        ("DOWN+NOT_RESPONDING", "Not responding", False),
        ("IDLE+DRAIN", "ECC errors | gpu 3", False),
        ("IDLE+REBOOT_CANCELED", None, False),
        ("MIXED+PLANNED", None, False),
        ("IDLE+DRAIN", "Static node maintenance: unhealthy node is being replaced", True),
        ("IDLE+DRAIN", "[compute_maintenance] disk", True),
        ("DOWN", "soperator rolling update", True),
        ("IDLE+DRAIN", "slurm-operator: Pod is terminating", True),
        ("IDLE+DRAIN", "slurm-operator: node cordoned", False),
        ("IDLE+DRAIN", "no static node maintenance: alice", False),
        ("IDLE+DRAIN", "planned maintenance", False),
        ("IDLE+DRAIN", "fan; no reboot requested", False),
        ("DOWN", "reboot issued", True),
        ("IDLE+DRAIN", "[hardware_problem] dcgm", False),
        (None, None, False),
    ],
)
def test_recovery_in_progress(state_now: str | None, reason: str | None, busy: bool) -> None:
    assert (in_progress(NodeNow(state_now, reason), packaged()) is not None) is busy
    for of in (
        case(site=Site(now={"n2": NodeNow(state_now, reason)})),
        case(state_at_end=state_now, reason=reason),
    ):
        found = advised(of)
        assert (found.action, found.commands) == ("none", ()) if busy else found.action == "reboot"
        assert (found.rule == "ladder.in-progress") is busy


def test_a_sites_own_words_for_a_recovery_under_way() -> None:
    row = '[[reason]]\nid = "robot"\nmatch = ["robot at work"]\nowner = "robot"\nhardware = "unknown"\n'
    own = load([row + 'under_way = true\nmeans = "our robot mends it"\nsource = "our own"\n'])
    node = NodeNow("IDLE+DRAIN", "Robot at work: fan 3")
    assert (in_progress(node, packaged()), in_progress(node, own)) == (None, "Robot at work: fan 3")
    found = advised(case(site=Site(now={"n2": node}, reasons=own)))
    assert (found.action, found.rule) == ("none", "ladder.in-progress")


def test_what_slurm_shows_now_goes_before_the_end_of_the_run() -> None:
    now = Site(now={"n2": NodeNow("IDLE", None)})
    assert advised(case(site=now, state_at_end="DOWN", reason="Action:Reboot")).action == "reboot"


@pytest.mark.parametrize(
    ("events", "booted", "reason", "waits"),
    [
        ([boot(NOW - 120)], None, GRES, True),
        ([], NOW - 120, GRES, True),
        ([boot(NOW - 3600)], None, GRES, False),
        ([boot(NOW - 120)], None, GRES.replace("0 <", "7 <"), False),
        ([boot(NOW - 120)], None, "Not responding", False),
        ([], None, GRES, False),
    ],
    ids=lambda value: None,
)
def test_a_fresh_boot_without_gpus_waits(
    events: list[MachineEvent], booted: float | None, reason: str, waits: bool
) -> None:
    found = advised(case(*events, site=Site(now={"n2": NodeNow("IDLE+DRAIN", reason, booted=booted)})))
    assert (found.rule == "ladder.wait") is waits
    assert found.action != "none" or waits


def others(count: int, *events: MachineEvent) -> dict[str, Machine]:
    return {f"m{n}": machine(*events, node=f"m{n}", identity=f"i-{n}") for n in range(count)}


@pytest.mark.parametrize(
    ("fleet", "switches", "rule"),
    [
        (others(1, fault(HANG + 30, 79)), False, "ladder.reboot"),
        (others(2, fault(HANG + 30, 79)), False, "ladder.site-event"),
        (others(1, fault(HANG + 30, 79)), True, "ladder.site-event"),
        (others(9, fault(HANG + 120, 79)), True, "ladder.reboot"),
        (others(9, fault(HANG + 30, 48)), True, "ladder.reboot"),
        (others(9, boot(HANG, "unasked")), False, "ladder.reboot"),
    ],
    ids=["one-more", "two-more", "one-on-the-switch", "two-minutes-later", "another-code", "boots-elsewhere"],
)
def test_the_same_on_several_nodes_at_once(fleet: dict[str, Machine], switches: bool, rule: str) -> None:
    now = {name: NodeNow("IDLE", switch="leaf3") for name in ("n2", *fleet)} if switches else {}
    found = advised(case(fleet=fleet, site=Site(now=now)))
    assert found.rule == rule
    assert rule == "ladder.reboot" or found.action == "investigate"


@pytest.mark.parametrize(
    ("own", "elsewhere"),
    [
        (boot(HANG + 20, "unasked"), boot(HANG + 40, "unasked")),  # power came back
        (state(HANG + 20, "DOWN", "Not responding"), state(HANG + 40, "DOWN", "Not responding")),
    ],
    ids=["boots", "reasons"],
)
def test_nodes_that_went_down_together(own: MachineEvent, elsewhere: MachineEvent) -> None:
    assert advised(case(own, fleet=others(29, elsewhere)), 54).rule == "ladder.site-event"
    assert advised(case(own, fleet=others(1, elsewhere)), 54).rule == "ladder.final"


@pytest.mark.parametrize(
    ("code", "count", "hours", "rule"),
    [
        (119, 2, 20, "ladder.fleet"),
        (120, 2, 20, "ladder.fleet"),
        (119, 1, 20, "ladder.reboot"),
        (119, 9, 30, "ladder.reboot"),
        (79, 9, 20, "ladder.reboot"),
    ],
)
def test_gsp_on_several_nodes_is_the_driver(code: int, count: int, hours: int, rule: str) -> None:
    assert advised(case(fleet=others(count, fault(HANG - hours * 3600, code))), code).rule == rule


def test_nodes_that_do_not_come_back_after_a_reboot_are_not_the_hardware() -> None:
    gone = never_back(NOW - 3600)
    found = advised(case(*after_reboots(2, 79), *gone, fleet=others(4, *gone)))
    assert (found.action, found.rule) == ("investigate", "ladder.not-returning")
    assert advised(case(*after_reboots(2, 79), *gone, fleet=others(1, *gone))).action == "replace"


@pytest.mark.parametrize(
    ("ago_s", "state_now", "reboots", "rule"),
    [
        (60, "DOWN+NOT_RESPONDING", 0, "ladder.wait"),
        (1700, "DOWN+NOT_RESPONDING", 2, "ladder.wait"),
        (3600, "DOWN+NOT_RESPONDING", 0, "ladder.replace"),
        (60, "DOWN", 0, "ladder.reboot"),  # it answers: it was never down
    ],
)
def test_a_reboot_that_timed_out_a_moment_ago_may_be_under_way(
    ago_s: int, state_now: str, reboots: int, rule: str
) -> None:
    of = case(*after_reboots(reboots, 79), *never_back(NOW, state_now))
    found = advised(replace(of, now=NOW + ago_s))
    assert found.rule == rule
    assert (found.action, found.commands) == ("none", ()) if rule == "ladder.wait" else found.action != "none"


@pytest.mark.parametrize(
    ("already", "nodes", "action"),
    [
        ({}, None, "reboot"),
        ({"a": "reboot"}, 40, "reboot"),
        ({"a": "reboot", "b": "replace"}, 40, "investigate"),
        ({"a": "reboot", "b": "replace"}, None, "investigate"),
        ({"a": "reboot", "b": "replace", "n2": "reboot"}, 40, "reboot"),
        ({"a": "reboot", "b": "replace"}, 60, "reboot"),
        ({str(n): "reboot" for n in range(50)}, 1000, "investigate"),
        ({str(n): "reboot" for n in range(49)}, 1000, "reboot"),
    ],
    ids=lambda value: None,
)
def test_the_cap_of_the_fleet(already: dict[str, str], nodes: int | None, action: str) -> None:
    found = advised(case(site=Site(open=already, nodes=nodes)))
    assert found.action == action
    assert (found.rule == "ladder.queued") is (action == "investigate") is ("reboot is due and queued" in found.why)


def test_another_machine_under_the_name() -> None:
    new = machine(identity="i-00000000000000001", since=HANG + 600)
    view = NodeView("n2", "i-0123456789abcdef0", role="compute")
    of = Case("n2", default(), view, {"n2": new}, Site(), NOW)
    assert (advised(of).action, advised(of).rule) == ("none", "ladder.moved")
    early = Case("n2", default(), view, {"n2": machine(identity="i-1", since=HANG - DAY)}, Site(), NOW)
    assert advised(early).rule == "ladder.reboot"
    nameless = Case("n2", default(), NodeView("n2", "n2", role="compute"), {"n2": new}, Site(), NOW)
    assert advised(nameless).rule == "ladder.reboot"


def test_how_many_it_hits_is_said_and_nobodys_name() -> None:
    jobs = {"n2": (Running("43", "bob", 8), Running("44"))}
    why = advised(case(site=Site(jobs=jobs))).why
    assert "2 jobs ran there when this was judged" in why and "bob" not in why and "43" not in why
    assert "1 job ran there" in advised(case(site=Site(jobs={"n2": jobs["n2"][:1]}))).why
    assert "No job ran there" in advised(case(site=Site(jobs={"n2": ()}))).why
    assert "ran there" not in advised(case()).why
    assert "ran there" not in advised(case(role="controller", site=Site(jobs=jobs))).why


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("ADMIN SHUTDOWN", True),
        ("nccl-slurm: gpu-hw-lost, report 7", False),
        ("Not responding", False),
        (None, False),
        ("", False),
    ],
)
def test_anothers_reason_is_shown(reason: str | None, shown: bool) -> None:
    found = advised(case(site=Site(now={"n2": NodeNow("IDLE+DRAIN", reason)})))
    assert found.action == "reboot"
    assert (f"Its reason in Slurm is '{reason}', which the command replaces" in found.why) is shown
    look = advised(case(site=Site(now={"n2": NodeNow("IDLE+DRAIN", reason)})), 94)
    assert look.action == "investigate" and "which the command replaces" not in look.why


def test_statistics_alone_are_a_look() -> None:
    site = Site(suspects={"n2": "lost 9 jobs where 1 was expected"})
    found = advise(case(*after_reboots(2, 31), site=site), [])
    assert found is not None
    assert (found.action, found.rule, found.step) == ("investigate", "ladder.statistics", 1)
    assert found.why == "n2: lost 9 jobs where 1 was expected"
    assert advised(case(site=site)).rule == "ladder.reboot"
    assert advise(case(), []) is None
