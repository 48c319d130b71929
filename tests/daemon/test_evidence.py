from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nccl_slurm.daemon.diagnose import Parts, diagnose
from nccl_slurm.daemon.evidence import assemble, merge_ranks, role_of, shows_nccl_or_torch
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Evidence, Fact, Job, NodeView, Parsed, Rank, Step
from nccl_slurm.report.build import build
from tests.collect.test_shared import record

JOB = Job("42", 42, "c", nodes=("ip-10-0-0-1", "ip-10-0-0-2"))
NODES = [NodeView("ip-10-0-0-1"), NodeView("ip-10-0-0-2")]


def fact(**changes: Any) -> Fact:
    base: dict[str, Any] = {"kind": "k", "text": "t", "producer": "torch", "role": "cause", "trust": "job"}
    return Fact(**{**base, **changes})


def put_together(records: dict[str, Any], output: Parsed | None = None) -> Evidence:
    return assemble(JOB, NODES, records, output or Parsed(), [])


def test_a_records_facts_are_its_nodes_whatever_they_claim() -> None:
    lies = record(facts=[fact(host="ip-10-0-0-2", trust="root", file="a.log").to_json()])
    found = put_together({"ip-10-0-0-1": lies}).facts[0]
    assert (found.host, found.trust, found.file, found.id) == ("ip-10-0-0-1", "job", "ip-10-0-0-1/a.log", "f1")


def test_a_clock_that_was_off_makes_times_less_certain() -> None:
    seen = NodeView("ip-10-0-0-1", clock_offset_s=-8.0, clock_error_s=2.0)
    told = record(facts=[fact(time=100.0, uncertainty_s=1.0).to_json(), fact().to_json()])
    evidence = assemble(JOB, [seen, NODES[1]], {"ip-10-0-0-1": told}, Parsed(), [])
    assert [one["uncertainty_s"] for one in build(evidence, None, (), "final")["facts"]] == [11.0, None]


def test_job_output_is_never_roots_word_and_its_hosts_are_the_nodes() -> None:
    said = Parsed(facts=[fact(host="ip-10-0-0-2.ec2.internal", trust="root"), fact(host="elsewhere.example")])
    hosts = [(one.host, one.trust) for one in put_together({}, said).facts]
    assert hosts == [("ip-10-0-0-2", "job"), ("elsewhere.example", "job")]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("550.54.15", None, ["550.54.15"]),
        (None, "535.1", ["535.1"]),
        ("550.54.15", "535.1", ["550.54.15"]),
        (None, None, []),
    ],
)
def test_the_gpu_driver_is_the_nodes_own_word(before: str | None, after: str | None, told: list[str]) -> None:
    one = record()
    shot = {"start": 1.0, "end": 2.0}
    one["snapshots"] = {"before": {**shot, "driver": before}, "after": {**shot, "driver": after} if after else None}
    facts = put_together({"ip-10-0-0-1": one}).facts
    assert [(f.kind, f.trust, f.host, f.data["version"]) for f in facts] == [
        ("gpu.driver", "root", "ip-10-0-0-1", version) for version in told
    ]


def test_group_ranks_that_look_global_on_every_node_are_dropped() -> None:
    one = record(world_size=2, ranks=[Rank(0).to_json(), Rank(1).to_json()], facts=[fact(rank=0).to_json()])
    two = record(node="n2", world_size=2, ranks=[Rank(0).to_json(), Rank(1).to_json()])
    found = put_together({"ip-10-0-0-1": one, "ip-10-0-0-2": two})
    assert (found.ranks, found.world_size, found.facts[0].rank) == ((), None, None)
    assert [gap.source for gap in found.gaps] == ["rank numbers"]


def test_world_sizes_that_disagree_are_none() -> None:
    found = put_together({"ip-10-0-0-1": record(world_size=8)}, Parsed(world_size=16))
    assert found.world_size is None and "8, 16" in found.gaps[0].why


def test_ranks_are_merged_by_number() -> None:
    merged = merge_ranks(
        [
            Rank(1, host="n1", first=5.0, last=9.0, last_line="old", progress={"0": {"enqueued": 4}}),
            Rank(0),
            Rank(1, local_rank=1, exit=-9, first=4.0, last=11.0, last_line="new", progress={"1": {"enqueued": 2}}),
        ]
    )
    assert merged[0] == Rank(0)
    one = merged[1]
    assert (one.host, one.local_rank, one.exit, one.first, one.last, one.last_line) == ("n1", 1, -9, 4.0, 11.0, "new")
    assert set(one.progress) == {"0", "1"}


@pytest.mark.parametrize(
    ("running", "node_type", "controllers", "role"),
    [
        (False, None, ["ctl"], "compute"),
        (True, None, ["ctl"], "controller"),
        (None, None, ["ctl"], "unknown"),
        (False, "controller", [], "controller"),
        (False, None, ["n1.example"], "controller"),
        (False, None, ["head1.example"], "controller"),  # NodeName=n1, the host is head1
        (False, None, ["head"], "compute"),
    ],
)
def test_role(running: bool | None, node_type: str | None, controllers: list[str], role: str) -> None:
    machine = {
        **record()["machine"],
        "hostname": "head1",
        "role": {"slurmctld_running": running, "node_type": node_type},
    }
    assert role_of("n1", record(machine=machine), controllers) == role


def test_a_node_without_record_may_be_a_controller() -> None:
    assert role_of("n1", None, []) == "unknown"


@pytest.mark.parametrize(("producer", "shows"), [("nccl", True), ("gloo", True), ("kernel", False), ("python", False)])
def test_evidence_of_a_training_job(producer: str, shows: bool) -> None:
    assert shows_nccl_or_torch(Evidence(facts=[fact(producer=producer)])) is shows


@pytest.mark.parametrize(
    ("claimed", "row", "told"),
    [
        (
            Rank(3, host="ip-10-0-0-2"),
            ("ip-10-0-0-1", 1, "g"),
            ["host: both ip-10-0-0-1 and ip-10-0-0-2; ip-10-0-0-1 by its node's record"],
        ),
        (
            Rank(3, host="ip-10-0-0-2.ec2.internal"),
            ("ip-10-0-0-1", 1, "g"),
            ["host: both ip-10-0-0-1 and ip-10-0-0-2; ip-10-0-0-1 by its node's record"],
        ),
        (Rank(3, host="container-7"), ("ip-10-0-0-1", 1, "g"), []),
        (
            Rank(3, local_rank=2, gpu="h"),
            ("ip-10-0-0-1", None, None),
            ["local_rank: both 1 and 2; not used", "gpu: both g and h; not used"],
        ),
        (Rank(3, local_rank=1, gpu="g"), ("ip-10-0-0-1", 1, "g"), []),
    ],
    ids=["host", "full-host", "container", "local-and-gpu", "agree"],
)
def test_a_record_and_the_output_that_differ_about_a_rank_are_a_gap(
    claimed: Rank, row: tuple[Any, ...], told: list[str]
) -> None:
    there = record(ranks=[Rank(3, local_rank=1, gpu="g").to_json()])
    found = put_together({"ip-10-0-0-1": there}, Parsed(ranks=[claimed]))
    (one,) = found.ranks
    assert (one.host, one.local_rank, one.gpu) == row
    assert [gap.why for gap in found.gaps if gap.source == "rank 3"] == told


def test_a_rank_of_two_steps_on_two_nodes_is_no_contradiction() -> None:
    one = record(ranks=[Rank(3, step="0").to_json()], facts=[fact(rank=3, data={"of_step": "0"}).to_json()])
    two = record(node="n2", ranks=[Rank(3, step="1").to_json()], facts=[fact(rank=3, data={"of_step": "1"}).to_json()])
    found = put_together({"ip-10-0-0-1": one, "ip-10-0-0-2": two})
    assert [(rank.rank, rank.step, rank.host) for rank in found.ranks] == [
        (3, "0", "ip-10-0-0-1"),
        (3, "1", "ip-10-0-0-2"),
    ]
    assert [one.rank for one in found.facts] == [3, 3] and found.gaps == ()
    same = put_together({"ip-10-0-0-1": one, "ip-10-0-0-2": one})
    assert same.ranks == () and [one.rank for one in same.facts] == [None, None]


def test_a_job_that_tried_again_on_another_node_is_reported_by_the_step_that_failed() -> None:
    def rows(*ranks: int, step: str) -> list[dict[str, Any]]:
        return [Rank(rank, step=step).to_json() for rank in ranks]

    def said(rank: int, step: str, *, lost: bool) -> dict[str, Any]:
        more = {"role": "consequence", "hint": "net-peer-lost", "kind": "gloo.peer-closed"}
        why = more if lost else {"hint": "rank-exception", "kind": "python.exception", "text": "ValueError: nan"}
        return fact(rank=rank, data={"of_step": step}, **why).to_json()

    def world(step: str) -> dict[str, Any]:
        return fact(kind="slurm.step-world", role="context", data={"of_step": step, "world_size": 3}).to_json()

    nodes = ("n1", "n2", "n3")
    steps = (
        Step("42.0", "train", "FAILED", 1, 0, ("n1", "n2"), 1000.0, 2000.0),
        Step("42.1", "train", "COMPLETED", 0, 0, ("n1", "n3"), 2005.0, 3000.0),
    )
    job = Job("42", 42, "c", state="COMPLETED", nodes=nodes, start=1000.0, end=3000.0, steps=steps)
    records = {
        "n1": record(
            ranks=[*rows(0, 1, step="0"), *rows(0, 1, step="1")],
            facts=[said(0, "0", lost=True), said(1, "0", lost=True), world("0")],
        ),
        "n2": record(node="n2", ranks=rows(2, step="0"), facts=[said(2, "0", lost=False)]),
        "n3": record(node="n3", ranks=rows(2, step="1"), facts=[said(2, "1", lost=True), world("1")]),
    }
    parts = [RecordRow("c", 42, 1, node, 1.0, "", False, one) for node, one in records.items()]
    found = diagnose(Parts(job, parts, (), Parsed(), ()), "final")
    assert [(one["rank"], one["host"]) for one in found.report["verdict"]["culprits"]] == [(2, "n2")]
    assert [(one["rank"], one["host"]) for one in found.report["ranks"]] == [(0, "n1"), (1, "n1"), (2, "n2")]
    assert found.report["job"]["state"] == "COMPLETED" and len(found.report["job"]["steps"]) == 2
    assert [one["name"] for one in found.report["nodes"]] == list(nodes)
    told = [step["text"] for step in found.report["inferences"] if step["rule"] == "step.judged"]
    judged = "Step 0 (FAILED) is judged, one of 2 of this job."
    assert told == [f"{judged} Step 1 completed after it, so its failure did not end the job."]
    assert found.comment == "[nccl-slurm: rank 2 n2 failed first (rank-exception); fix-code; report 42]"


def test_a_node_that_had_one_step_alone_speaks_for_that_one() -> None:
    def task(step: str) -> dict[str, Any]:
        return fact(kind="slurm.task", role="context", producer="slurm", data={"step": step, "procid": 0}).to_json()

    def told(*steps: str, node: str = "n1") -> dict[str, Any]:
        own = [*map(task, steps), fact(rank=3).to_json()]
        return record(node=node, ranks=[Rank(3).to_json()], facts=own, world_size=4)

    two = put_together({"ip-10-0-0-1": told("0", "batch"), "ip-10-0-0-2": told("1", node="n2")})
    assert [(rank.rank, rank.step) for rank in two.ranks] == [(3, "0"), (3, "1")]
    assert [one.data["of_step"] for one in two.facts if one.rank == 3] == ["0", "1"]
    worlds = [(one.data["of_step"], one.data["world_size"]) for one in two.facts if one.kind == "slurm.step-world"]
    assert worlds == [("0", 4), ("1", 4)] and two.world_size is None
    once = put_together({"ip-10-0-0-1": told("0", "batch"), "ip-10-0-0-2": told("0", node="n2")})
    assert [gap.source for gap in once.gaps] == ["rank numbers"]


def test_a_fact_is_the_same_as_if_it_were_made_key_by_key() -> None:
    whole = fact(rank=3, data={"seq": 41, "recent": ["1 gloo:all_reduce [[64]]"]})
    assert Fact.from_json(whole.to_json()) == whole
    assert Fact.from_json(whole.to_json(), host="n7", id="f1") == replace(whole, host="n7", id="f1")
    few = {key: value for key, value in whole.to_json().items() if key not in ("data", "line", "id")}
    assert Fact.from_json(few) == replace(whole, data={}, line=None, id="")
    assert Fact.from_json({**whole.to_json(), "hint": "a-newer-class"}).hint is None
    with pytest.raises(TypeError):
        Fact.from_json({**whole.to_json(), "of_a_newer_version": 1})
    with pytest.raises(AttributeError):
        Fact.from_json(whole.to_json()).rank = 4  # type: ignore[misc]
