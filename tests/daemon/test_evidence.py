from __future__ import annotations

from typing import Any

import pytest

from nccl_slurm.daemon.evidence import assemble, merge_ranks, role_of, shows_nccl_or_torch
from nccl_slurm.model import Evidence, Fact, Job, NodeView, Parsed, Rank
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
    ],
)
def test_role(running: bool | None, node_type: str | None, controllers: list[str], role: str) -> None:
    machine = {**record()["machine"], "role": {"slurmctld_running": running, "node_type": node_type}}
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
