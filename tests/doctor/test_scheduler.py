"""Scheduler checks, each both ways: what Slurm says → what is found. Texts in the forms of 22.05 and 26.05."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor import registry
from nccl_slurm.doctor.check import Check, Finding, NotObserved, judged
from nccl_slurm.doctor.checks.scheduler.observed import Plugin, SlurmObserved
from nccl_slurm.doctor.observation import Fleet, Observation
from nccl_slurm.doctor.pointer import commands
from nccl_slurm.doctor.result import Result
from nccl_slurm.history.reasons import load

CHECKS: Mapping[str, Check[Any]] = {check.id: check for check in registry.checks("scheduler")}
NOW = 1_790_000_000.0
CONFIG = """Configuration data as of 2026-11-30T18:00:00
AccountingStorageHost   = db1
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStoreFlags    = job_comment
ClusterName             = lab
Epilog                  = (null)
Prolog                  = (null)
ProctrackType           = proctrack/cgroup
PropagateResourceLimits = NONE
SLURM_VERSION           = 24.11.5
TaskPlugin              = task/affinity,task/cgroup
UnkillableStepTimeout   = 180 sec
ConstrainRAMSpace       = yes
"""
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1 Gres=gpu:8 NodeAddr={name} NodeHostName={name} Version={version} "
    "OS=Linux 5.15 x y RealMemory=1000 State={state} Partitions=gpu,all BootTime=1789000000 "
    "SlurmdStartTime=1789000000{reason}\n"
)


def node(name: str, state: str = "IDLE", reason: str = "", version: str = "24.11.5") -> str:
    told = f" Reason={reason} [root@1789900000]" if reason else ""
    return NODE.format(name=name, state=state, reason=told, version=version)


def seen(*, change: Mapping[str, str] | None = None, **parts: Any) -> SlurmObserved:
    """A sound cluster but for ``parts``; ``change`` sets keys of slurm.conf."""
    config = CONFIG
    for key, value in (change or {}).items():
        config = "".join(line for line in config.splitlines(True) if line.split(" ")[0] != key) + f"{key} = {value}\n"
    texts: dict[str, str | NotObserved] = {
        "ping": "Slurmctld(primary) at c1 is UP\n",
        "config": config,
        "nodes": node("n1") + node("n2"),
        "queue": "",
        "slurmdbd": "lab|10.0.0.1|6817\n",
        "munge": "STATUS:          Success (0)\n",
        "own-daemon": json.dumps({"heartbeat": str(NOW - 5), "stopped": None, "comments_given_up": 0, "notes": []}),
    }
    texts.update({key: parts.pop(key) for key in list(parts) if key in texts})
    return SlurmObserved(NOW, texts, **parts)


def found(check: str, observed: SlurmObserved) -> list[Finding]:
    return judged(CHECKS[f"scheduler.{check}"], observed)


def words(findings: Sequence[Finding]) -> set[tuple[str, str | None]]:
    return {(one.status, one.priority) for one in findings}


def fleet(**of: Mapping[str, Any]) -> Fleet:
    return Fleet({name: Observation(name, found) for name, found in of.items()})


@pytest.mark.parametrize(
    ("ping", "expected"),
    [
        ("Slurmctld(primary) at c1 is UP\n", {("PASS", None)}),
        ("Slurmctld(primary) at c1 is UP\nSlurmctld(backup) at c2 is UP\n", {("PASS", None)}),
        ("Slurmctld(primary) at c1 is UP\nSlurmctld(backup) at c2 is DOWN\n", {("WARN", "P1")}),
        ("Slurmctld(primary) at c1 is DOWN\nSlurmctld(backup) at c2 is UP\n", {("WARN", "P1")}),
        # the word backup has the word up in it
        ("Slurmctld(primary) at c1 is DOWN\nSlurmctld(backup) at c2 is DOWN\n", {("FAIL", "P0")}),
        ("Slurmctld(primary) at c1 is DOWN\n", {("FAIL", "P0")}),
        ("something else\n", {("UNKNOWN", None)}),
        (NotObserved("scontrol ping: no answer within 30 s"), {("UNKNOWN", None)}),
    ],
)
def test_controller(ping: str, expected: set[Any]) -> None:
    assert words(found("controller", seen(ping=ping))) == expected


@pytest.mark.parametrize(("up", "left"), [("UP", "answer"), ("DOWN", "none is left")])
def test_which_controller_is_down_and_who_is_left(up: str, left: str) -> None:
    ping = "Slurmctld(primary) at c1 is UP\nSlurmctld(backup1) at c2 is {}\nSlurmctld(backup2) at c3 is DOWN\n"
    told = found("controller", seen(ping=ping.format(up)))
    (one,) = [one for one in told if one.values["controller"] == "c3"]
    assert "slurmctld at c3 (backup)" in one.text and left in one.text
    assert ("none is left" in one.text) == (up == "DOWN")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("lab|10.0.0.1|6817\nother||0\n", {("PASS", None)}),
        ("lab||0\n", {("WARN", "P1")}),
        ("other|10.0.0.1|6817\n", {("UNKNOWN", None)}),
        (NotObserved("sacctmgr show cluster: sacctmgr: error: Connection refused"), {("FAIL", "P1")}),
        (NotObserved("sacctmgr show cluster: no answer within 30 s"), {("FAIL", "P1")}),
        (NotObserved("sacctmgr show cluster: Access/permission denied"), {("UNKNOWN", None)}),
    ],
)
def test_slurmdbd(said: str, expected: set[Any]) -> None:
    assert words(found("slurmdbd", seen(slurmdbd=said))) == expected


def test_no_slurmdbd() -> None:
    observed = seen(change={"AccountingStorageType": "accounting_storage/none"}, slurmdbd=NotObserved("refused"))
    assert words(found("slurmdbd", observed)) == {("NOT-APPLICABLE", None)}


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ("STATUS:          Success (0)", "Success (0)", {("PASS", None)}),
        ("STATUS:          Success (0)", "Invalid credential", {("PASS", None), ("FAIL", "P0")}),
        ("munge: Error: Failed to access socket", "Invalid credential", {("FAIL", "P0")}),
        (NotObserved("no munge on this host"), "Success (0)", {("UNKNOWN", None)}),
    ],
)
def test_munge(here: str, there: str, expected: set[Any]) -> None:
    assert words(found("munge", seen(munge=here, credentials={"n1": there}))) == expected


GOOD, AHEAD, OLD, KEY = "Success (0)", "Rewound credential (16)", "Expired credential (15)", "Invalid credential (13)"


@pytest.mark.parametrize(
    ("there", "accused", "said"),
    [
        ([GOOD, GOOD, GOOD, AHEAD], {("n3",)}, "its clock is ahead"),
        ([GOOD, GOOD, OLD, AHEAD], {("n2",), ("n3",)}, "its clock is behind"),
        ([GOOD, GOOD, GOOD, KEY], {("n3",)}, "its munge key"),
        ([GOOD, GOOD, AHEAD, AHEAD], {("n2",), ("n3",)}, "its clock is ahead"),
        ([AHEAD, AHEAD, AHEAD, AHEAD], {()}, "credentials of 4 of 4 nodes are of the future here"),
        ([GOOD, OLD, OLD, OLD], {()}, "look at this host first"),
        ([KEY, KEY, KEY], {()}, "munge keys of 3 of 3 nodes and of this host differ: look at this host first"),
        ([AHEAD], {()}, "which of the two is wrong is not told"),
        ([KEY], {()}, "which of the two is wrong is not told"),
        (["unmunge: no answer within 10 s"], {("n0",)}, "no answer in time"),
    ],
)
def test_whose_munge_it_is(there: Sequence[str], accused: set[Any], said: str) -> None:
    told = found("munge", seen(credentials={f"n{at}": one for at, one in enumerate(there)}))
    wrong = [one for one in told if one.status != "PASS"]
    assert {tuple(one.nodes) for one in wrong} == accused
    assert {(one.status, one.priority) for one in wrong} == {
        ("UNKNOWN", None) if "unmunge" in there[0] else ("FAIL", "P0")
    }
    assert any(said in one.text for one in wrong), [one.text for one in wrong]


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        (["24.11.5", "24.11.5"], {("PASS", None)}),
        (["24.11.5", "24.11.5", "24.11.4"], {("WARN", "P2")}),
        (["24.11.5", "25.05.0"], {("FAIL", "P1")}),  # newer than slurmctld
        (["24.11.5", "23.02.1"], {("WARN", "P2")}),  # three releases older: fine from 24.11 on
        (["24.11.5", "22.05.8"], {("FAIL", "P1")}),
        (["(null)"], {("UNKNOWN", None)}),
    ],
)
def test_slurmd_version(versions: Sequence[str], expected: set[Any]) -> None:
    told = "".join(node(f"n{at}", version=version) for at, version in enumerate(versions))
    assert words(found("slurmd-version", seen(nodes=told))) == expected


@pytest.mark.parametrize(
    ("state", "reason", "expected"),
    [
        ("IDLE", "", ("PASS", None)),
        ("ALLOCATED", "the node went down last week", ("PASS", None)),  # a reason alone is no state
        ("IDLE+PLANNED", "", ("PASS", None)),
        ("IDLE+CLOUD+POWERED_DOWN", "", ("PASS", None)),
        ("IDLE+CLOUD+NOT_RESPONDING+POWERED_DOWN", "", ("PASS", None)),
        ("DOWN", "Not responding", ("FAIL", "P1")),
        ("DOWN*", "Not responding", ("FAIL", "P1")),
        ("IDLE*", "", ("FAIL", "P1")),
        ("ALLOCATED+NOT_RESPONDING", "", ("FAIL", "P1")),
        ("MIXED+FAIL", "ECC", ("FAIL", "P1")),
        ("IDLE+INVALID_REG", "gres/gpu count reported lower than configured (7 < 8)", ("FAIL", "P1")),
        ("IDLE+DRAIN", "Kill task failed", ("FAIL", "P1")),
        ("IDLE+DRAIN", "testing until friday", ("WARN", "P2")),
        ("UNKNOWN", "", ("FAIL", "P1")),
        ("IDLE+FAIL", "Action:Replace", ("WARN", "P2")),
        ("IDLE+DRAIN+REBOOT_REQUESTED", "x", ("WARN", "P2")),
        ("IDLE+MAINTENANCE", "", ("WARN", "P2")),
        ("ZUSTAND", "", ("UNKNOWN", None)),
        ("", "", ("UNKNOWN", None)),
    ],
)
def test_node_state(state: str, reason: str, expected: tuple[str, str | None]) -> None:
    assert words(found("node-state", seen(nodes=node("n1", state, reason)))) == {expected}


def test_a_sites_own_program_took_the_node_out() -> None:
    row = '[[reason]]\nid = "robot"\nmatch = ["[robot]"]\nowner = "robot"\nhardware = true\n'
    own = load([row + 'means = "our robot found a fan that stands"\nsource = "our own"\n'])
    nodes = node("n1", "IDLE+DRAIN", "[robot] fan 3")
    (plain,) = found("node-state", seen(nodes=nodes))
    (told,) = found("node-state", seen(nodes=nodes, reasons=own))
    assert (plain.status, plain.priority) == ("WARN", "P2") and "a person gave the reason" in plain.text
    assert (told.status, told.priority) == ("FAIL", "P1") and "our robot found a fan that stands (robot)" in told.text


def test_a_reason_is_in_the_proof_with_its_time() -> None:
    one, other = found("node-state", seen(nodes=node("n1", "IDLE+DRAIN", "testing | x until=friday") + node("n2")))
    assert (other.status, other.nodes) == ("PASS", ["n2"])
    assert one.nodes == ("n1",) and one.since == 1789900000.0
    assert "testing | x until=friday by root" in one.proofs[0].line and "friday" not in one.text


@pytest.mark.parametrize(
    ("states", "well"),
    [
        ({"n1": "DOWN", "n2": "IDLE", "n3": "ALLOCATED"}, {"n2", "n3"}),
        ({"n1": "DOWN", "n2": "IDLE", "n3": "FROBNICATED"}, {"n2"}),
        ({"n1": "DOWN", "n2": "IDLE+DRAIN"}, set()),
        ({"n1": "IDLE", "n2": "MIXED"}, None),  # of all at once
    ],
)
def test_nodes_that_are_well_beside_others_are_told(states: dict[str, str], well: set[str] | None) -> None:
    told = found("node-state", seen(nodes="".join(node(name, state) for name, state in states.items())))
    passed = [one for one in told if one.status == "PASS"]
    assert [set(one.nodes) for one in passed] == ([well] if well else [] if well is not None else [set()])


def test_only_chosen_nodes_are_judged() -> None:
    told = node("n1", "DOWN") + node("n2")
    assert words(found("node-state", seen(nodes=told, chosen=frozenset({"n2"})))) == {("PASS", None)}


def row(
    state: str, reason: str = "None", *, submit: float = 0, start: str = "N/A", end: str = "N/A", n: int = 1
) -> str:
    nodes = "" if state == "PENDING" else "n[1-2]"
    return f"42|{state}|{reason}|{int(NOW - submit)}|{start}|{end}|{n}|gpu|{nodes}\n"


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ("", ("PASS", None)),
        ("42|PENDING|Resources\n", ("UNKNOWN", None)),
        ("slurm_load_jobs: warning\n", ("UNKNOWN", None)),
        (row("wartet"), ("UNKNOWN", None)),
        (row("RUNNING", start=str(int(NOW - 9999))), ("PASS", None)),
        (row("COMPLETING", end=str(int(NOW - 60))), ("PASS", None)),
        (row("COMPLETING", end=str(int(NOW - 700))), ("FAIL", "P1")),
        (row("CONFIGURING", start=str(int(NOW - 60))), ("PASS", None)),
        (row("CONFIGURING", start=str(int(NOW - 1000))), ("FAIL", "P1")),
        (row("PENDING", "Priority", submit=99999), ("PASS", None)),
        (row("PENDING", "Resources", submit=60), ("PASS", None)),
        (row("PENDING", "Resources", submit=6000, n=3), ("PASS", None)),  # two nodes are idle
        (row("PENDING", "Resources", submit=6000, n=2), ("WARN", "P2")),
        (row("PENDING", "Resources", submit=6000, n=2, start=str(int(NOW + 30))), ("PASS", None)),  # its turn comes
        (row("PENDING", "Resources", submit=6000, n=2, start=str(int(NOW + 30000))), ("WARN", "P2")),
        (row("PENDING", "Resources", submit=6000, n=2, start=str(int(NOW - 30000))), ("WARN", "P2")),  # an old plan
        (row("PENDING", "BadConstraints", submit=60), ("WARN", "P2")),
        (row("PENDING", "launch_failed_requeued_held", submit=60), ("WARN", "P2")),
        (row("PENDING", "launch failed requeued held", submit=60), ("WARN", "P2")),
        (row("PENDING", "JobLaunchFailure", submit=60), ("WARN", "P2")),
        (row("PENDING", "job_requeued_in_held_state", submit=60), ("WARN", "P2")),
        (row("PENDING", "JobHeldUser", submit=60), ("PASS", None)),  # by his own hand
        (row("FAILED", "JobLaunchFailure", submit=60), ("PASS", None)),
    ],
)
def test_stuck_jobs(queue: str, expected: tuple[str, str | None]) -> None:
    assert words(found("stuck-jobs", seen(queue=queue))) == {expected}


def test_a_completing_job_names_the_node_that_holds_it() -> None:
    told = node("n1") + node("n2", "IDLE+COMPLETING")
    (one,) = found("stuck-jobs", seen(queue=row("COMPLETING", end=str(int(NOW - 700))), nodes=told))
    assert tuple(one.nodes) == ("n2",)


HOOK = "/etc/slurm/prolog.d/10-site"


@pytest.mark.parametrize(
    ("prolog", "hooks", "expected"),
    [
        ("(null)", {}, {("NOT-APPLICABLE", None)}),
        (HOOK, {"texts": {HOOK: "100755 0 0 5 1.0"}}, {("PASS", None)}),
        (HOOK, {"texts": {HOOK: "100644 0 0 5 1.0"}}, {("FAIL", "P0")}),
        (HOOK, {"texts": {}}, {("FAIL", "P0")}),
        (HOOK, {"texts": {}, "unread": {HOOK: "Permission denied"}}, {("UNKNOWN", None)}),
        (HOOK, {"texts": {HOOK: "100755 0 0 5 1.0"}, "more": True}, {("UNKNOWN", None)}),
        ("/etc/slurm/prolog.d/*", {"texts": {HOOK: "100755 0 0 5 1.0"}}, {("PASS", None)}),
        (
            "/etc/slurm/prolog.d/*",
            {"texts": {HOOK: "100755 0 0 5 1.0", f"{HOOK}~": "100644 0 0 1 1.0"}},
            {("FAIL", "P0")},
        ),
        ("/etc/slurm/prolog.d/*", {"texts": {}}, {("FAIL", "P0")}),  # a pattern that matches nothing drains too
        (HOOK, {"why": "not asked"}, {("UNKNOWN", None)}),
    ],
)
def test_hooks(prolog: str, hooks: Mapping[str, Any], expected: set[Any]) -> None:
    assert words(found("hooks", seen(change={"Prolog": prolog}, fleet=fleet(n1={"hooks": hooks})))) == expected


@pytest.mark.parametrize(
    ("key", "ending", "effect"),
    [
        ("Epilog", None, "the end of the next job there drains the node"),
        ("Epilog", "", "the end of the next job there drains the node"),
        ("Epilog", "prolog-error", "the end of the next job there drains the node"),
        ("Epilog", "epilog-error", "the end of this look's own job there drained the node"),
        ("Prolog", "prolog-error", "this look's own job there drained the node"),
        ("Prolog", None, "the next job there drains the node"),
    ],
)
def test_what_came_of_a_hook_that_cannot_be_run(key: str, ending: str | None, effect: str) -> None:
    by_look = {} if ending is None else {"n1": ending}
    told = fleet(n1={"hooks": {"texts": {HOOK: "100644 0 0 5 1.0"}}})
    (one,) = found("hooks", seen(change={key: HOOK}, fleet=told, by_look=by_look))
    assert one.text.endswith(f"; {effect}")
    assert any("state=resume" in line for line in commands(one)) == ("drained" in effect)


@pytest.mark.parametrize(
    ("reason", "ending", "words_", "resume"),
    [
        ("Prolog error", "prolog-error", "drained by the job of this look", True),
        ("gpu test failed", "", "since a job of this look was there", False),
        ("Prolog error", None, "IDLE+DRAIN: takes no new job", False),
    ],
)
def test_a_node_that_the_looks_own_job_drained(reason: str, ending: str | None, words_: str, resume: bool) -> None:
    by_look = {} if ending is None else {"n1": ending}
    (one,) = found("node-state", seen(nodes=node("n1", "IDLE+DRAIN", reason), by_look=by_look))
    assert words_ in one.text
    assert ("scontrol update nodename=n1 state=resume  # once that is mended" in commands(one)) == resume


@pytest.mark.parametrize("check", ["hooks", "remove-ipc", "limits"])
@pytest.mark.parametrize(
    ("silent", "said"),
    [({}, "are seen where nodes are looked at: --nodes or --job"), ({"n1": "busy"}, "no node that was chosen gave")],
)
def test_why_nothing_is_known_of_nodes(check: str, silent: Mapping[str, str], said: str) -> None:
    told = found(check, seen(change={"Prolog": HOOK}, fleet=Fleet({}, silent)))
    assert [said in one.text for one in told if one.status == "UNKNOWN"] == [True]


TASK = "/etc/slurm/tp.sh"


@pytest.mark.parametrize(
    ("change", "stat", "status"),
    [
        ({"Prolog": TASK}, "100700 0 0", "PASS"),  # runs as root
        ({"TaskProlog": TASK}, "100755 0 0", "PASS"),
        ({"TaskProlog": TASK}, "100700 0 0", "FAIL"),
        ({"TaskProlog": TASK}, "100644 0 0", "FAIL"),
        ({"TaskProlog": TASK}, "100750 0 100", "UNKNOWN"),
        ({"TaskProlog": TASK}, "100711 0 0", "UNKNOWN"),  # fine for a binary, not for a script
        ({"TaskProlog": TASK}, "40755 0 0", "FAIL"),
    ],
)
def test_hooks_run_as_somebody(change: Mapping[str, str], stat: str, status: str) -> None:
    observed = seen(change=change, fleet=fleet(n1={"hooks": {"texts": {TASK: f"{stat} 5 1.0"}}}))
    assert {one.status for one in found("hooks", observed)} == {status}


@pytest.mark.parametrize(
    ("key", "expected"),
    [("TaskProlog", ("FAIL", "P0")), ("EpilogSlurmctld", ("FAIL", "P1")), ("PrologSlurmctld", ("WARN", "P2"))],
)
def test_patterns_where_slurm_takes_one_path(key: str, expected: tuple[str, str]) -> None:
    pattern = "/etc/slurm/x.d/*"
    files = {"hooks": {"texts": {"/etc/slurm/x.d/1": "100755 0 0 5 1.0"}}}
    observed = seen(change={key: pattern}, fleet=fleet(n1=files), here={pattern: ""}, on_controller=True)
    (one,) = found("hooks", observed)
    assert (one.status, one.priority, one.values["path"]) == (*expected, pattern)


@pytest.mark.parametrize(
    ("there", "status"),
    [
        ("/etc/slurm/site/prolog.sh", "PASS"),
        ("/etc/slurm/prolog.sh", "FAIL"),
        ("/etc/slurm/a/b/prolog.sh", "FAIL"),
    ],
)
def test_hooks_of_a_pattern_in_any_part(there: str, status: str) -> None:
    files = {"hooks": {"texts": {there: "100755 0 0 5 1.0"}}}
    observed = seen(change={"Prolog": "/etc/slurm/*/prolog.sh"}, fleet=fleet(n1=files))
    assert {one.status for one in found("hooks", observed)} == {status}


@pytest.mark.parametrize(
    ("required", "texts", "status"),
    [
        (True, {"/x/p.so": "100644 0 0 5 1.0"}, "PASS"),
        (True, {}, "FAIL"),
        (False, {}, "NOT-APPLICABLE"),
    ],
)
def test_spank_plugins_that_are_required(required: bool, texts: Mapping[str, str], status: str) -> None:
    observed = seen(plugins=[Plugin(required, "/x/p.so")], fleet=fleet(n1={"hooks": {"texts": texts}}))
    assert {one.status for one in found("hooks", observed)} == {status}


def test_programs_of_slurmctld_are_judged_on_controllers_alone() -> None:
    change = {"EpilogSlurmctld": "/x/es"}
    change["SlurmUser"] = "slurm(64030)"
    for here, on, status in (
        ("", True, "FAIL"),
        ("755 0", True, "UNKNOWN"),
        ("700 64030", True, "UNKNOWN"),
        ("700 0", True, "FAIL"),
        ("644 64030", True, "FAIL"),
        ("", False, "UNKNOWN"),
    ):
        observed = seen(change=change, here={"/x/es": here}, on_controller=on)
        assert {one.status for one in found("hooks", observed)} == {status}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {("NOT-APPLICABLE", None)}),
        ({"Prolog": "/x", "PrologFlags": "Alloc", "PrologEpilogTimeout": "60"}, {("PASS", None)}),
        ({"Prolog": "/x", "PrologFlags": "Alloc", "PrologEpilogTimeout": "65534"}, {("WARN", "P2")}),
        ({"Prolog": "/x", "PrologFlags": "(null)", "PrologEpilogTimeout": "60"}, {("WARN", "P2")}),
        ({"Epilog": "/x", "PrologFlags": "(null)", "EpilogTimeout": "60"}, {("PASS", None)}),
        ({"Prolog": "/x", "PrologFlags": "Alloc,Serial", "PrologTimeout": "60"}, {("WARN", "P2")}),
    ],
)
def test_prolog_flags(change: Mapping[str, str], expected: set[Any]) -> None:
    assert words(found("prolog-flags", seen(change=change))) == expected


LOGIND = "/etc/systemd/logind.conf"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({LOGIND: "[Login]\nRemoveIPC=no\n"}, ("PASS", None)),
        ({LOGIND: "[Login]\nRemoveIPC=yes\n"}, ("WARN", "P1")),
        ({LOGIND: "[Login]\n#RemoveIPC=yes\n"}, ("WARN", "P2")),
        ({LOGIND: "[Login]\n#RemoveIPC=no\n"}, ("PASS", None)),
        ({LOGIND: "RemoveIPC=yes\n", f"{LOGIND}.d/9.conf": "[Login]\nRemoveIPC=no\n"}, ("PASS", None)),
        ({LOGIND: "[Login]\n"}, ("UNKNOWN", None)),
        ({}, ("UNKNOWN", None)),
    ],
)
def test_remove_ipc(files: Mapping[str, str], expected: tuple[str, str | None]) -> None:
    assert words(found("remove-ipc", seen(fleet=fleet(n1={"logind": {"texts": files}})))) == {expected}


@pytest.mark.parametrize(
    ("init", "logind", "expected"),
    [
        ("init.sh\n", [], "NOT-APPLICABLE"),
        ("systemd\n", [], "WARN"),  # it may start logind at the next login
        ("init\n", [{"comm": "elogind-daemon"}], "WARN"),
        ("", [], "WARN"),
        (None, [], "WARN"),
        ("tini\n", None, "WARN"),
    ],
)
def test_without_logind_nobody_removes_shared_memory(init: str | None, logind: Any, expected: str) -> None:
    parts: dict[str, Any] = {"logind": {"texts": {LOGIND: "#RemoveIPC=yes\n"}}}
    parts |= {} if init is None else {"init": {"texts": {"/proc/1/comm": init}}}
    parts |= {"logind-runs": {"why": "not allowed"} if logind is None else {"value": logind}}
    (one,) = found("remove-ipc", seen(fleet=fleet(n1=parts)))
    assert one.status == expected


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("DOWN*", "Not responding", "not-responding"),
        ("IDLE*", "", "not-responding"),
        ("IDLE+DRAIN", "Prolog error", "prolog-error"),
        ("IDLE+DRAIN", "Kill task failed", "kill-task-failed"),
        ("IDLE+DRAIN", "fan 3 stands; ask alice", None),
        ("DOWN", "", None),
    ],
)
def test_a_reason_is_explained_by_its_own_word(state: str, reason: str, told: str | None) -> None:
    (one,) = found("node-state", seen(nodes=node("n1", state, reason)))
    assert one.values.get("reason") == told
    lines = [line for line in Result(0.0, 1.0, [one], {}).commands(one) if "nccl-slurm explain" in line]
    assert lines == ([f"nccl-slurm explain {told}"] if told else [])


@pytest.mark.parametrize(
    ("conf", "text", "folder"),
    [
        ("/etc/slurm/slurm.conf", "StateSaveLocation = /shared/state # x\n", "/shared/state"),
        ("/etc/slurm/slurm.conf", "statesavelocation=/s\n", "/s"),
        ("/etc/slurm/slurm.conf", "ClusterName=lab\n", "/var/spool"),
        ("", "", None),
    ],
)
def test_a_silent_slurmctld_is_not_asked_for_its_settings(conf: str, text: str, folder: str | None) -> None:
    observed = seen(ping="Slurmctld(primary) at c1 is DOWN\n", conf=conf)
    told = {**observed.texts, "slurm.conf": text, "config": NotObserved("down")}
    (one,) = found("controller", replace(observed, texts=told))
    lines = Result(0.0, 1.0, [one], {}).commands(one)
    assert "ssh c1 systemctl status slurmctld --no-pager" in lines
    assert not [line for line in lines if "scontrol show" in line]
    assert [line for line in lines if " df " in line] == ([f"ssh c1 df -h {folder}"] if folder else [])
    assert [line.split()[-1] for line in lines if line.startswith("grep")] == ([conf] if conf else [])


def limits(soft: str, devices: str = "rdmap16s0") -> Mapping[str, Any]:
    text = f"Limit  Soft Hard Units\nMax locked memory         {soft}            unlimited            bytes\n"
    rdma = {"rdma-devices": {"texts": {"/sys/class/infiniband": devices} if devices else {}}}
    return {"daemons": {"value": [{"comm": "slurmd", "limits": text}]}, **rdma}


def test_locked_memory_matters_where_there_is_rdma() -> None:
    assert words(found("limits", seen(fleet=fleet(n1=limits("65536", devices=""))))) == {("NOT-APPLICABLE", None)}
    unseen = {key: one for key, one in limits("65536").items() if key == "daemons"}
    assert words(found("limits", seen(fleet=fleet(n1=unseen)))) == {("FAIL", "P1")}


@pytest.mark.parametrize(
    ("change", "soft", "expected"),
    [
        ({}, "unlimited", {("PASS", None)}),
        ({}, "65536", {("FAIL", "P1")}),
        ({"PropagateResourceLimits": "ALL"}, "unlimited", {("PASS", None), ("WARN", "P2")}),
        (
            {"PropagateResourceLimits": "(null)", "PropagateResourceLimitsExcept": "MEMLOCK"},
            "unlimited",
            {("PASS", None)},
        ),
    ],
)
def test_limits(change: Mapping[str, str], soft: str, expected: set[Any]) -> None:
    assert words(found("limits", seen(change=change, fleet=fleet(n1=limits(soft))))) == expected


@pytest.mark.parametrize("daemons", [{"value": []}, {"value": [{"comm": "slurmd"}]}, {"value": 5}, {"why": "no"}])
def test_limits_that_are_not_seen(daemons: Mapping[str, Any]) -> None:
    assert words(found("limits", seen(fleet=fleet(n1={"daemons": daemons})))) == {("UNKNOWN", None)}


@pytest.mark.parametrize(
    ("check", "change", "expected"),
    [
        ("cgroup-memory", {}, {("PASS", None)}),
        ("cgroup-memory", {"ConstrainRAMSpace": "no"}, {("WARN", "P2")}),
        ("cgroup-memory", {"ProctrackType": "proctrack/linuxproc"}, {("WARN", "P2")}),
        ("cgroup-memory", {"TaskPlugin": "task/affinity"}, {("WARN", "P2")}),
        ("cgroup-memory", {"ConstrainRAMSpace": "(null)"}, {("UNKNOWN", None)}),
        ("unkillable-timeout", {}, {("PASS", None)}),
        ("unkillable-timeout", {"UnkillableStepTimeout": "60 sec"}, {("WARN", "P2")}),
        ("unkillable-timeout", {"UnkillableStepTimeout": "(null)"}, {("UNKNOWN", None)}),
        ("accounting-comment", {}, {("PASS", None)}),
        ("accounting-comment", {"AccountingStoreFlags": "(null)"}, {("WARN", "P2")}),
        ("accounting-comment", {"AccountingStorageType": "(null)"}, {("NOT-APPLICABLE", None)}),
        ("accounting-comment", {"GresTypes": "gpu"}, {("WARN", "P2")}),
        ("accounting-comment", {"GresTypes": "gpu", "AccountingStorageTRES": "cpu,mem,node"}, {("WARN", "P2")}),
        ("accounting-comment", {"GresTypes": "gpu", "AccountingStorageTRES": "cpu,gres/gpu"}, {("PASS", None)}),
        ("accounting-comment", {"GresTypes": "gpu", "AccountingStorageTRES": "gres/gpu:h100"}, {("PASS", None)}),
        ("accounting-comment", {"GresTypes": "shard", "AccountingStorageTRES": "cpu"}, {("PASS", None)}),
        ("accounting-comment", {"AccountingStorageType": "(null)", "GresTypes": "gpu"}, {("NOT-APPLICABLE", None)}),
    ],
)
def test_settings(check: str, change: Mapping[str, str], expected: set[Any]) -> None:
    assert words(found(check, seen(change=change))) == expected


def slurm_conf(prolog: str, task: str, folder: str = "", end: str = "") -> dict[str, str]:
    """``folder``: where Prolog's neighbours lie."""
    epilog = prolog.replace("prolog", "epilog")
    return {
        "Prolog": prolog,
        "Epilog": epilog,
        "TaskProlog": task,
        "EpilogSlurmctld": end or f"{folder}/epilog_slurmctld",
    }


ELSEWHERE = "/srv/demo/prefix/slurm"
SITE = "/etc/slurm/prolog.d/*"


@pytest.mark.parametrize(
    ("change", "parts", "expected"),
    [
        pytest.param({}, {}, "NOT-APPLICABLE", id="none"),
        pytest.param({"Prolog": "/opt/nccl-slurm/slurm/prolog.d/*"}, {}, "WARN", id="one of four"),
        pytest.param(
            slurm_conf(
                "/opt/nccl-slurm/slurm/prolog.d/*", "/opt/nccl-slurm/slurm/task_prolog", "/opt/nccl-slurm/slurm"
            ),
            {},
            "PASS",
            id="the standard place",
        ),
        pytest.param(
            slurm_conf(f"{ELSEWHERE}/prolog.d/50-nccl-slurm", f"{ELSEWHERE}/task_prolog", ELSEWHERE),
            {},
            "PASS",
            id="another prefix",
        ),
        pytest.param(
            slurm_conf(f"{ELSEWHERE}/prolog.d/50-nccl-slurm", "/etc/slurm/task_prolog", ELSEWHERE),
            {},
            "WARN",
            id="another prefix, and a TaskProlog of the site's",
        ),
        pytest.param(
            slurm_conf(f"{ELSEWHERE}/prolog.d/*", f"{ELSEWHERE}/task_prolog", ELSEWHERE),
            {"fleet": fleet(n1={"hooks": {"texts": {f"{ELSEWHERE}/prolog.d/50-nccl-slurm": "100755 0 0 5 1.0"}}})},
            "PASS",
            id="another prefix by patterns, as a node has it",
        ),
        pytest.param(
            slurm_conf(f"{ELSEWHERE}/prolog.d/*", f"{ELSEWHERE}/task_prolog", ELSEWHERE),
            {"found_here": {f"{ELSEWHERE}/prolog.d/*": [f"{ELSEWHERE}/prolog.d/50-nccl-slurm"]}},
            "PASS",
            id="by patterns, as this host has it",
        ),
        pytest.param(
            slurm_conf(f"{ELSEWHERE}/prolog.d/*", f"{ELSEWHERE}/task_prolog", ELSEWHERE),
            {"own_hooks": ELSEWHERE},
            "PASS",
            id="by patterns, and capture.conf names their folder",
        ),
        pytest.param(
            slurm_conf(f"{ELSEWHERE}/prolog.d/*", f"{ELSEWHERE}/task_prolog", ELSEWHERE), {}, "NOT-APPLICABLE"
        ),
        pytest.param(
            slurm_conf(SITE, f"{ELSEWHERE}/task_prolog", ELSEWHERE),
            {
                "found_here": {
                    SITE: ["/etc/slurm/prolog.d/zz-nccl-slurm", f"{ELSEWHERE}/prolog.d/50-nccl-slurm"],
                    SITE.replace("prolog", "epilog"): ["/etc/slurm/epilog.d/zz-nccl-slurm"],
                }
            },
            "PASS",
            id="links in the site's folders",
        ),
        pytest.param(
            slurm_conf(SITE, "/etc/slurm/task_prolog", "/etc/slurm"),
            {"found_here": {SITE: ["/etc/slurm/prolog.d/10-site"]}},
            "NOT-APPLICABLE",
            id="a site's own",
        ),
    ],
)
def test_our_own_hooks_wherever_they_are(change: Mapping[str, str], parts: Mapping[str, Any], expected: str) -> None:
    observed = seen(change=change, **parts)
    assert {one.status for one in found("own-hooks", observed)} == {expected}
    daemon = {one.status for one in found("own-daemon", observed)}
    assert daemon == {"NOT-APPLICABLE" if expected == "NOT-APPLICABLE" else "PASS"}


def test_which_hook_of_ours_is_not_wired() -> None:
    change = slurm_conf(f"{ELSEWHERE}/prolog.d/50-nccl-slurm", "/etc/slurm/task_prolog", ELSEWHERE)
    (one,) = found("own-hooks", seen(change=change))
    assert "TaskProlog does not run it" in one.text and one.proofs[0].line == "TaskProlog = /etc/slurm/task_prolog"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"heartbeat": str(NOW - 5), "stopped": None, "comments_given_up": 0}, ("PASS", None)),
        ({"heartbeat": str(NOW - 5), "stopped": None, "comments_given_up": 2}, ("WARN", "P2")),
        ({"heartbeat": str(NOW - 900), "stopped": None, "comments_given_up": 0}, ("WARN", "P2")),
        ({"heartbeat": str(NOW - 5), "stopped": "1", "comments_given_up": 0}, ("WARN", "P2")),
        ({"heartbeat": None, "stopped": None, "comments_given_up": 0}, ("WARN", "P2")),
    ],
)
def test_own_daemon(told: Mapping[str, Any], expected: tuple[str, str | None]) -> None:
    ours = {"Prolog": "/opt/nccl-slurm/slurm/prolog.d/*"}
    assert words(found("own-daemon", seen(change=ours, **{"own-daemon": json.dumps(told)}))) == {expected}


def test_no_daemon_of_ours_where_no_hook_is() -> None:
    observed = seen(change=None, **{"own-daemon": NotObserved("no store on this host")})
    assert words(found("own-daemon", observed)) == {("NOT-APPLICABLE", None)}


@pytest.mark.parametrize("check", [check.removeprefix("scheduler.") for check in CHECKS])
def test_nothing_observed_is_never_well(check: str) -> None:
    silent = SlurmObserved(NOW, {})
    assert words(found(check, silent)) == {("UNKNOWN", None)}


TEXT = st.text(alphabet=st.sampled_from("NodeName=n1 State|\n[]0123456789,()Slurmctld(primary) at is UP"), max_size=200)


@given(st.dictionaries(st.sampled_from(["ping", "config", "nodes", "queue", "slurmdbd", "munge"]), TEXT))
def test_any_words_of_slurm(texts: dict[str, str]) -> None:
    for check in CHECKS.values():
        for observed in (SlurmObserved(NOW, texts), SlurmObserved(NOW, {"config": CONFIG, **texts})):
            assert judged(check, observed)


def test_a_controller_is_never_to_be_replaced() -> None:
    observed = seen(ping="Slurmctld(primary) at c1 is DOWN\n", nodes=node("c1", "DOWN"))
    for check in CHECKS.values():
        for one in judged(check, observed):
            assert "replace" not in one.text.lower()
