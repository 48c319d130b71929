"""From a run and a machine's history to what the report and the comment say."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.history.machine import Machine, MachineEvent
from nccl_slurm.model import Evidence, Recommendation
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.recommend.site import NodeNow, Running, Site
from nccl_slurm.report.build import build
from nccl_slurm.report.line import comment
from nccl_slurm.report.text import render
from tests.attribute.scenarios import HANG, SCENARIOS, START, evidence, job, nodes
from tests.recommend.past import DAY, NOW, after_reboots, boot, fault, line, machine, reading, run_of
from tests.recommend.past import job as job_event

ROWS = load_rows()
SCHEMA: dict[str, Any] = json.loads(
    resources.files("nccl_slurm").joinpath("data/schemas/report-1.json").read_text("utf-8")
)
HYPERPOD = Site(kind="hyperpod", aws_cluster="ml-1", region="us-west-2", jobs={"n2": (Running("43", "bob", 8),)})


def made(run: Evidence, *events: MachineEvent, site: Site | None = None) -> dict[str, Any]:
    verdict = attribute(run)
    items = recommend(verdict, run, machines={"n2": machine(*events)}, site=site, now=NOW)
    report = build(run, verdict, items, "final")
    jsonschema.validate(report, SCHEMA)
    return report


def test_the_comments_word_is_the_ladders() -> None:
    run = run_of(ROWS, line(79, "GPU has fallen off the bus."))
    words = "n2 stalled first (gpu-hw-lost, Xid 79)"
    for events, site, action in (
        ((), None, "reboot n2; "),
        (after_reboots(1, 79), None, "replace n2; "),
        ((boot(HANG + 300),), None, "investigate n2; "),
        ((), Site(now={"n2": NodeNow("IDLE+FAIL", "Action:Reboot")}), ""),
        (after_reboots(2, 79), Site(controllers=("n2",)), "investigate n2; "),
        (after_reboots(2, 79), Site(open={"a": "reboot", "b": "reboot"}), "investigate n2; "),
    ):
        assert comment(made(run, *events, site=site)) == f"[nccl-slurm: {words}; {action}report 42]"


def test_the_report_tells_the_history_it_rests_on_and_the_commands() -> None:
    run = run_of(ROWS, line(79, "GPU has fallen off the bus."))
    report = made(run, *after_reboots(2, 79), site=HYPERPOD)
    assert report["verdict"]["action"] == "reboot"  # by this run alone
    (item,) = report["recommendations"]
    assert (item["action"], item["rule"], item["step"], item["evidence"]) == ("replace", "ladder.replace", 3, ["f1"])
    assert item["why"] == (
        "n2: kernel: NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus. "
        "Xid 79 ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS: NVIDIA RESTART_BM, then CONTACT_SUPPORT. "
        "The same fault on GPU 0000:a1:00 is in its history: 2026-11-16T11:16:40Z, 2026-11-17T11:16:40Z (2 in all). "
        "Rebooted 2026-11-16T12:16:40Z (asked for by root), and it came back. "
        "Rebooted 2026-11-17T12:16:40Z (asked for by root), and it came back. "
        "1 job ran there when this was judged. Replacing destroys root and secondary volumes"
    )
    text = render(report)
    assert "Replacing destroys root and secondary volumes [ladder.replace]" in text
    assert '\n    sudo scontrol update node=n2 state=fail reason="Action:Replace"\n' in text
    assert "--cluster-name ml-1 --region us-west-2 --node-ids i-0123456789abcdef0  # in place of" in text


def items(run: Evidence, *events: MachineEvent, **more: Any) -> list[tuple[str | None, str]]:
    found = recommend(attribute(run), run, machines={"n2": machine(*events)}, now=NOW, **more)
    return [(item.target, item.action) for item in found]


def test_a_software_verdict_touches_no_node_whatever_its_history() -> None:
    bad = [*after_reboots(2, 79), fault(HANG, 79), reading(HANG, "gpu.remap-failure")]
    for name, run in ((name, SCENARIOS[name]()) for name in ("exception", "mismatch", "missing-rank", "sigkill")):
        assert not [target for target, _ in items(run, *bad) if target], name


def test_jobs_lost_on_a_node_alone_are_no_reason() -> None:
    lost = [job_event(HANG - n * 3600, "alice", named=True) for n in range(1, 60)]
    run = evidence(job=job("NODE_FAIL"), nodes=nodes(n2={"failed_in_run": True}))
    assert items(run, *lost, boot(HANG - DAY), boot(HANG - 2 * DAY)) == [("n2", "investigate")]


def test_a_failed_node_whose_history_has_the_fault_of_that_hour() -> None:
    """Slurm lost the node; its own record, which came with the next boot, tells why."""
    run = evidence(job=job("NODE_FAIL"), nodes=nodes(n2={"failed_in_run": True}))
    assert items(run, fault(HANG, 79)) == [("n2", "reboot")]
    assert items(run, fault(HANG - DAY, 79), boot(HANG - DAY / 2), fault(HANG, 79)) == [("n2", "replace")]
    assert items(run, fault(HANG, 31)) == [("n2", "investigate")]
    assert items(run, fault(HANG - DAY, 79)) == [("n2", "investigate")]
    assert items(run, reading(HANG, "kernel.lockup", None)) == [("n2", "investigate")]


def test_a_fault_that_a_reboot_ended_before_the_run_is_not_the_runs() -> None:
    """Slurm lost the node soon after it had come back from one."""
    run = evidence(job=job("NODE_FAIL"), nodes=nodes(n2={"failed_in_run": True}))
    assert items(run, fault(START - 40, 79)) == [("n2", "reboot")]
    assert items(run, fault(START - DAY, 79), boot(START - DAY / 2), fault(START - 40, 79), boot(START - 20)) == [
        ("n2", "investigate")
    ]
    assert items(run, fault(START - 40, 79), boot(START - 20), fault(HANG, 79)) == [("n2", "replace")]


def test_two_nodes_with_a_fault_are_two_looks_whatever_their_history() -> None:
    facts = [*run_of(ROWS, line(79), node="n1").facts, *run_of(ROWS, line(79), node="n2").facts]
    run = evidence([replace(one, id="") for one in facts])
    assert {action for _, action in items(run, *after_reboots(2, 79))} == {"investigate"}


def test_facts_of_a_job_stay_a_look_with_any_history() -> None:
    run = run_of(ROWS, line(79))
    said = replace(run, facts=[replace(one, trust="job") for one in run.facts])
    assert "replace" not in {action for _, action in items(said, *after_reboots(2, 79))}
    assert "reboot" not in {action for _, action in items(said, *after_reboots(2, 79))}


def test_a_node_without_a_history_beside_one_that_has_one() -> None:
    run = run_of(ROWS, line(54))
    assert items(run) == [("n2", "replace")]
    found = recommend(attribute(run), run, machines={"n1": machine(node="n1")}, now=NOW)
    assert [item.action for item in found] == ["reboot"]


GRAPHICS = "Graphics SM Warp Exception on (GPC {}, TPC {}, SM 0): Out Of Range Address"


def pattern(run: Evidence, *events: MachineEvent) -> list[Recommendation]:
    found = recommend(attribute(run), run, machines={"n2": machine(*events)}, now=NOW)
    assert found[0].target is None and found[0].action == "fix-code"
    return [item for item in found if item.target]


def met(code: int, days: list[int], words: str, users: str, **more: Any) -> list[MachineEvent]:
    """The fault in jobs of these days, each an hour before the job's end, and this run's own end."""
    events = [fault(HANG - day * DAY, code, words, **more) for day in days]
    ends = [job_event(HANG - day * DAY + 3600, user) for day, user in zip(days, users, strict=True)]
    return [*events, *ends, job_event(HANG + 30, "z")]


@pytest.mark.parametrize(
    ("code", "words", "events", "looks"),
    [
        (31, "MMU Fault", met(31, [1, 2], "MMU Fault", "ab"), True),
        (31, "MMU Fault", met(31, [1], "MMU Fault", "a"), False),  # two jobs
        (31, "MMU Fault", met(31, [1, 2], "MMU Fault", "zz"), False),  # one user, one program
        (31, "MMU Fault", met(31, [1, 9], "MMU Fault", "ab"), False),  # not within a week
        (31, "MMU Fault", met(31, [1, 2], "MMU Fault", "ab", pci="0000:b2:00"), False),
        (31, "MMU Fault", met(13, [1, 2], "MMU Fault", "ab"), False),
        (13, GRAPHICS.format(3, 1), met(13, [1, 2], GRAPHICS.format(3, 1), "ab"), True),
        (13, GRAPHICS.format(3, 1), met(13, [1, 2], GRAPHICS.format(3, 2), "ab"), False),
        (13, "no place", met(13, [1, 2], "no place", "ab"), False),
        (43, "x", met(43, [1, 2], "x", "ab"), False),
    ],
    ids=lambda value: None,
)
def test_a_programs_fault_that_comes_again_on_one_gpu(
    code: int, words: str, events: list[MachineEvent], looks: bool
) -> None:
    """NVIDIA's flow for 13 and 31; Sichek resets for one 31. The owner is told first; no more than a look follows."""
    found = pattern(run_of(ROWS, line(code, words)), *events)
    assert [(item.target, item.action, item.rule) for item in found] == (
        [("n2", "investigate", "ladder.pattern")] if looks else []
    )


def test_users_that_the_history_does_not_tell_make_no_pattern() -> None:
    events = [replace(one, data={**one.data, "user": None}) for one in met(31, [1, 2], "MMU Fault", "ab")]
    assert pattern(run_of(ROWS, line(31, "MMU Fault")), *events) == []


def test_the_cap_counts_what_this_run_opens() -> None:
    machines = {name: Machine(f"i-{name}", name, "compute") for name in ("n1", "n2")}
    run = evidence(job=job("NODE_FAIL"), nodes=nodes(n1={"failed_in_run": True}, n2={"failed_in_run": True}))
    both = {name: replace(one, events=(fault(HANG - n * 300, 79),)) for n, (name, one) in enumerate(machines.items())}
    found = recommend(attribute(run), run, machines=both, site=Site(open={"x": "reboot"}), now=NOW)
    assert [(item.target, item.rule) for item in found] == [("n1", "ladder.reboot"), ("n2", "ladder.queued")]
