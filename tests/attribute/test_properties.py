"""Whatever the parsers and the nodes hand over: no exception, nobody named who is not of the run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import ACTIONS, CLASSES, Evidence, Fact, Job, NodeView, Rank, Step, numbered
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.report.build import build
from nccl_slurm.report.line import COMMENT_MAX, comment
from nccl_slurm.report.text import render

KINDS = sorted(
    reading.WAITS
    | reading.TOLD
    | reading.HEARTBEAT
    | reading.AGENT_TERM
    | reading.AGENT_KILL
    | reading.DETAIL_MISMATCH
    | reading.ANALYSER_MISSING
    | reading.STORE_WAITS
    | reading.BARRIERS
    | reading.BARRIER_REACHED
    | reading.NODE_FAILURES
    | reading.LAUNCH_ON_NODE
    | reading.END_OF_RUN
    | reading.STEP_ENDING
    | reading.OWN_ADAPTER
    | reading.INTRINSIC
    | {
        reading.STATUS,
        "kernel.xid",
        "kernel.oom",
        "python.exception",
        "slurm.task-signal",
        "elastic.failed",
        "cuda.ecc",
    }
)
HOSTS = ["n1", "n2", "n9", "n1.cluster", "x y", "\x1b[31m", ""]
NUMBERS = st.integers(-3, 9) | st.just(10**12)
TIMES = st.none() | st.floats(0, 4e9) | st.sampled_from([1e300, -1.0, 1000.0, 1001.0])
DATA = st.fixed_dictionaries(
    {},
    optional={
        **{
            key: NUMBERS | st.text(max_size=5)
            for key in ("seq", "enqueued", "completed", "told_by", "rank_a", "rank_b", "exitcode", "pid", "ran_ms")
        },
        "missing": st.lists(NUMBERS, max_size=3) | st.text(max_size=5),
        "tasks": st.lists(NUMBERS, max_size=3) | st.just("0-2,5") | st.text(max_size=5),
        "pg": st.sampled_from(["0", "7"]),
        "op": st.sampled_from(["ALLREDUCE", "BROADCAST"]) | st.integers(),
        "node": st.sampled_from(HOSTS),
        "pci": st.just("0000:a1:00") | st.text(max_size=5),
        "action": st.sampled_from([*ACTIONS, "nonsense"]),
        "timeout_ms": NUMBERS,
        "version": st.text(max_size=5),
    },
)
FACTS = st.builds(
    Fact,
    kind=st.sampled_from(KINDS) | st.text(max_size=8),
    text=st.text(max_size=30),
    producer=st.sampled_from(["torch", "kernel", "slurm", "elastic", "python", "nccl"]),
    role=st.sampled_from(["cause", "consequence", "context", "benign"]),
    trust=st.sampled_from(["root", "job"]),
    hint=st.none() | st.sampled_from(CLASSES),
    file=st.none() | st.sampled_from(["a.log", "x/attempt_0/1/stderr.log", "x/attempt_1/1/stderr.log"]),
    line=st.none() | st.integers(1, 50),
    rank=st.none() | st.integers(0, 9),
    host=st.none() | st.sampled_from(HOSTS),
    time=TIMES,
    uncertainty_s=st.none() | st.floats(0, 100),
    data=DATA,
)
COUNTS = st.dictionaries(st.sampled_from(["enqueued", "started", "completed"]), st.integers(-1, 5))
RANKS = st.lists(
    st.builds(
        Rank,
        rank=st.integers(0, 9),
        host=st.none() | st.sampled_from(HOSTS),
        gpu=st.none() | st.just("0000:a1:00"),
        pid=st.none() | st.integers(-1, 9),
        exit=st.none() | st.integers(-15, 2),
        last=TIMES,
        last_line=st.none() | st.text(max_size=20),
        progress=st.dictionaries(st.sampled_from(["0", "7"]), COUNTS, max_size=2),
    ),
    max_size=8,
    unique_by=lambda rank: rank.rank,
)
STATES = ["FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "COMPLETED", "OUT_OF_MEMORY", "REQUEUED", None, "NONSENSE"]
STEPS = st.lists(
    st.builds(Step, st.just("42.0"), st.just("x"), st.sampled_from(["FAILED", "OUT_OF_MEMORY"]), NUMBERS, NUMBERS)
)
JOBS = st.builds(
    Job,
    id=st.sampled_from(["42", "42_1", "43+1", "42_[1-3]", "'; drop table"]),
    raw_id=st.integers(1, 99),
    cluster=st.just("c"),
    state=st.sampled_from(STATES),
    nodes=st.sampled_from([(), ("n1",), ("n1", "n2")]),
    start=TIMES,
    end=TIMES,
    steps=STEPS,
    failed_node=st.none() | st.sampled_from(HOSTS),
)
NODES = st.lists(
    st.builds(
        NodeView,
        name=st.sampled_from(["n1", "n2"]),
        role=st.sampled_from(["compute", "controller", "unknown"]),
        record=st.sampled_from(["present", "late", "missing"]),
        failed_in_run=st.booleans(),
    ),
    max_size=2,
    unique_by=lambda node: node.name,
)
EVIDENCE = st.builds(
    Evidence,
    job=st.none() | JOBS,
    nodes=NODES,
    facts=st.lists(FACTS, max_size=12).map(numbered),
    ranks=RANKS,
    world_size=st.none() | st.sampled_from([-1, 0, 2, 4, 10, 10**9]),
)
RELAXED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def _ranks(evidence: Evidence) -> set[int]:
    told = {fact.rank for fact in evidence.facts if fact.rank is not None} | {rank.rank for rank in evidence.ranks}
    tasks = {task for fact in evidence.facts for task in reading.numbers(fact.data.get("tasks"))}
    if evidence.job is None:  # an analyser's word counts
        tasks |= {rank for fact in evidence.facts for rank in reading.numbers(fact.data.get("missing"))}
    world = evidence.world_size or 0
    return told | tasks | set(range(world if world <= 10 else 0))


@RELAXED
@given(EVIDENCE)
def test_never_raises_and_names_only_the_runs_own(evidence: Evidence) -> None:
    verdict = attribute(evidence)
    assert verdict.failure_class in CLASSES and verdict.action in ACTIONS
    hosts = {node.name for node in evidence.nodes} | set(evidence.job.nodes if evidence.job else ())
    for culprit in (*verdict.culprits, *verdict.suspects):
        assert culprit.rank is not None or culprit.host is not None
        assert culprit.rank is None or culprit.rank in _ranks(evidence) or (evidence.world_size or 0) > culprit.rank
        if evidence.job is not None:
            assert culprit.host is None or culprit.host in hosts
    assert not (verdict.culprits and verdict.suspects)


@RELAXED
@given(EVIDENCE)
def test_whole_report_is_always_printable(evidence: Evidence) -> None:
    verdict = attribute(evidence)
    report = build(evidence, verdict, recommend(verdict, evidence), "final")
    json.dumps(report)
    text = render(report, ranks=True)
    assert all(character.isprintable() or character == "\n" for character in text)
    line = comment(report)
    if line is not None:
        assert line.isascii() and line.isprintable() and len(line) <= COMMENT_MAX
        assert not set(line[1:-1]) & set("'\"`|[]\\\n")


@RELAXED
@given(EVIDENCE)
def test_reboot_needs_roots_word_and_a_compute_node(evidence: Evidence) -> None:
    verdict = attribute(evidence)
    roles = {node.name: node.role for node in evidence.nodes}
    for item in recommend(verdict, evidence):
        assert item.action != "replace"
        if item.action == "reboot":
            assert item.target is not None and roles[item.target] == "compute"
            cited = [fact for fact in evidence.facts if fact.id in item.evidence]
            assert any(fact.trust == "root" for fact in cited)


def test_every_kind_here_is_a_row_of_the_patterns() -> None:
    assert set(KINDS) - {row.id for row in load_rows().rows} == set()


@pytest.mark.parametrize("value", [None, True, 1.5, {}, "a-b", "1-", "-", [True, "2"]])
def test_numbers_of_odd_values(value: Any) -> None:
    assert reading.numbers(value) in ((), (1,))
