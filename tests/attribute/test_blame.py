from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Evidence, Fact, Gap, Job, NodeView, Rank, Step, Verdict
from nccl_slurm.recommend.ladder import recommend
from tests.attribute.scenarios import (
    HANG,
    SCENARIOS,
    START,
    agent_saw,
    cancelled,
    closing,
    cuda,
    detail,
    evidence,
    exception,
    fact,
    forced,
    gloo_timeout,
    job,
    nodes,
    peer_closed,
    table,
    task_exit,
    told,
    watchdog,
    xid,
)


def culprits(verdict: Verdict) -> list[tuple[int | None, str | None]]:
    return [(culprit.rank, culprit.host) for culprit in verdict.culprits]


def suspects(verdict: Verdict) -> list[int | None]:
    return [suspect.rank for suspect in verdict.suspects]


@pytest.mark.parametrize(
    ("scenario", "failure_class", "named", "action"),
    [
        ("missing-rank", "collective-missing-rank", [(5, "n2")], "fix-code"),
        ("exception", "rank-exception", [(2, "n2")], "fix-code"),
        ("sigkill", "process-signal", [(2, "n2")], "fix-config"),
        ("mismatch", "collective-mismatch", [(3, "n2")], "fix-code"),
        ("node-fail", "gpu-hw-lost", [(3, "n2")], "reboot"),
        ("cancelled", "preempt-cancel", [], "none"),
        ("nothing-observed", "unknown", [], "unknown"),
    ],
)
def test_scenarios(scenario: str, failure_class: str, named: list[tuple[int, str]], action: str) -> None:
    verdict = attribute(SCENARIOS[scenario]())
    assert (verdict.failure_class, culprits(verdict), verdict.action) == (failure_class, named, action)
    assert verdict.determinable == bool(named)


def test_a_rank_that_its_own_count_shows_waiting_is_no_culprit_whatever_it_raises() -> None:
    counts = {rank: {"0": {"enqueued": 5 if rank != 2 else 4, "completed": 4}} for rank in range(4)}
    rows = [Rank(rank, host=f"n{rank // 2 + 1}", progress=counts[rank]) for rank in range(4)]
    verdict = attribute(evidence([exception(0, "RuntimeError: ring broken")], rows, world=4, job=job(), nodes=nodes()))
    assert (verdict.failure_class, culprits(verdict), suspects(verdict)) == ("collective-missing-rank", [], [2])


@pytest.mark.parametrize(
    ("enqueued", "named"),
    [(499, [(2, "n2")]), (498, []), (300, [])],
    ids=["never entered it", "never entered one that is complete", "left by yesterday's job"],
)
def test_a_count_that_others_completed_without_is_of_another_moment(
    enqueued: int, named: list[tuple[int, str]]
) -> None:
    counts = dict.fromkeys((0, 1, 3), (500, 499)) | {2: (enqueued, enqueued)}
    waits = [watchdog(rank, 500, pg="0") for rank in (0, 1, 3)]
    verdict = attribute(evidence(waits, table(4, progress=counts), world=4))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-missing-rank", named)
    assert [*suspects(verdict), *(rank for rank, _ in culprits(verdict))] == [2]


def test_ranks_of_a_group_are_no_ranks_of_the_job() -> None:
    """The other node's record is lost, and NCCL's largest communicator has all its members on this one."""
    rows = [Rank(rank, host="n2", gpu=f"0000:a{rank}:00", files=("n2/nccl.log",)) for rank in range(4)]
    memory = replace(cuda(3, "cuda-oom", f"{_TRIED}2.00 GiB."), host="n2")
    found = attribute(evidence([memory], rows, world=4, job=job(gpus=8), nodes=nodes()))
    assert (found.failure_class, found.confidence, culprits(found)) == ("cuda-oom", "likely", [])
    assert found.summary.endswith("Ranks are counted in a group of NCCL's here, not in the job.")
    lost = attribute(evidence([xid("n2", pci="0000:a3:00")], rows, world=4, job=job(gpus=8), nodes=nodes()))
    assert culprits(lost) == [(None, "n2")]
    whole = attribute(evidence([memory], rows, world=4, job=job(gpus=4), nodes=nodes()))
    assert culprits(whole) == [(3, "n2")]


def test_labels_of_srun_are_ranks_where_each_task_is_one() -> None:
    word = replace(exception(None), data={"type": "ValueError", "task": 3})
    ended = replace(task_exit("n2", "3", "Exited with exit code 1", 51, exitcode=1), host="n2")
    found = attribute(evidence([word, ended], [], world=4, job=job(), nodes=nodes()))
    assert [(one.rank, one.host) for one in (*found.culprits, *found.suspects)] == [(3, "n2")]
    under_torchrun = attribute(evidence([word, ended, agent_saw(1, 0)], [], world=4, job=job(), nodes=nodes()))
    assert not under_torchrun.culprits


@pytest.mark.parametrize(
    ("gpus", "words", "named"),
    [
        (0, [], [(1, "n2")]),  # a job of Slurm's alone: what it calls a task is all that there is
        (None, [], []),  # one task a node may be the launcher of eight ranks
        (16, [], []),
        (2, [], [(1, "n2")]),
        (0, [replace(exception(None), data={"type": "ValueError"})], []),
    ],
)
def test_a_task_a_node_is_a_rank_where_the_job_has_no_ranks_of_its_own(
    gpus: int | None, words: list[Fact], named: list[tuple[int, str]]
) -> None:
    ended = replace(task_exit("n2", "1", "Exited with exit code 7", 51, exitcode=7), host="n2")
    found = attribute(evidence([*words, ended], [], job=job(gpus=gpus), nodes=nodes()))
    told = [(one.rank, one.host) for one in (*found.culprits, *found.suspects)]
    assert [one for one in told if one[0] is not None] == named


def test_a_killed_pid_is_a_rank_of_its_own_host_only() -> None:
    rows = [Rank(0, host="n1", pid=4000), Rank(1, host="n2", pid=5000)]
    killed = Fact(
        "kernel.oom",
        "Out of memory: Killed process 5000",
        "kernel",
        "cause",
        "root",
        "host-oom",
        host="n1",
        data={"pid": 5000},
    )
    found = attribute(evidence([killed], rows, world=2, job=job("OUT_OF_MEMORY"), nodes=nodes()))
    assert 1 not in {one.rank for one in (*found.culprits, *found.suspects)}


def test_nothing_at_all_names_nobody() -> None:
    verdict = attribute(Evidence())
    assert (verdict.failure_class, verdict.confidence) == ("unknown", "possible")
    assert not verdict.culprits and not verdict.suspects and not verdict.inferences


def test_gaps_turn_into_no_verdict() -> None:
    verdict = attribute(evidence(gaps=[Gap("nvidia-smi", "not installed"), Gap("record n1", "missing")]))
    assert (verdict.failure_class, culprits(verdict), suspects(verdict)) == ("unknown", [], [])


# --- progress


def hang(behind: dict[int, tuple[int, int]], world: int = 8, *, seen: int | None = None) -> Evidence:
    counts = dict.fromkeys(range(world), (41, 40)) | behind
    facts = [watchdog(rank, 41, pg="0") for rank in range(world) if rank not in behind]
    return evidence(facts, table(world, progress=counts)[:seen], world=world)


def test_enqueued_run_ahead_is_no_proof() -> None:
    counts = {rank: (41 + 3 * rank, 40) for rank in range(8)}
    facts = [watchdog(rank, 41, pg="0") for rank in range(8)]
    verdict = attribute(evidence(facts, table(8, progress=counts), world=8))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-hang-unattributed", [])
    assert not verdict.suspects


def test_two_ranks_behind_by_their_own_count_are_both_proven() -> None:
    assert culprits(attribute(hang({3: (40, 40), 6: (40, 40)}))) == [(3, "n1"), (6, "n2")]


def test_a_silent_rank_beside_one_behind_leaves_it_unproven() -> None:
    silent = hang({3: (40, 40)}, seen=7)
    verdict = attribute(replace(silent, facts=[f for f in silent.facts if f.rank != 7]))
    assert culprits(verdict) == [] and suspects(verdict) == [3]
    assert verdict.failure_class == "collective-missing-rank"


def test_a_majority_behind_proves_nobody() -> None:
    """One rank issued a collective too many: it waits, the others are the healthy ones."""
    counts = {0: (41, 40)} | dict.fromkeys(range(1, 8), (40, 40))
    verdict = attribute(evidence([watchdog(0, 41, pg="0")], table(8, progress=counts), world=8))
    assert culprits(verdict) == [] and verdict.failure_class == "collective-hang-unattributed"


def test_a_rank_that_waits_in_another_group_is_a_victim() -> None:
    """Rank 3 is short in the default group because it waits for rank 7 in a pair group, where 7 is short."""
    rows = table(8, progress=dict.fromkeys(range(8), (41, 40)) | {3: (40, 40), 7: (40, 40)})
    rows[3] = replace(rows[3], progress={**rows[3].progress, "9": {"enqueued": 5, "completed": 4}})
    rows[7] = replace(rows[7], progress={**rows[7].progress, "9": {"enqueued": 4, "completed": 4}})
    facts = [watchdog(rank, 41, pg="0") for rank in range(8) if rank not in (3, 7)]
    assert culprits(attribute(evidence(facts, rows, world=8))) == [(7, "n2")]


def test_counts_of_different_groups_are_not_compared() -> None:
    rows = table(4)
    rows[0] = replace(rows[0], progress={"0": {"enqueued": 51, "completed": 51}})
    rows[2] = replace(rows[2], progress={"17": {"enqueued": 900, "completed": 899}})
    verdict = attribute(evidence([watchdog(2, 900, pg="17"), told(0, 2, 51, 51)], rows, world=4))
    assert culprits(verdict) == []


def test_dumps_without_any_timeout_prove_nobody() -> None:
    """A cancelled healthy job: dumps were taken at slightly different moments."""
    counts = dict.fromkeys(range(8), (41, 40)) | {5: (40, 40)}
    assert culprits(attribute(evidence((), table(8, progress=counts), world=8))) == []


# --- missing


def gloo_hang(missing: int, *, exits: dict[int, int] | None = None, more: Iterable[int] = ()) -> Evidence:
    facts = [gloo_timeout(rank) for rank in range(4) if rank != missing and rank not in tuple(more)]
    ends = {rank: 1 for rank in range(4) if rank != missing} if exits is None else exits
    return evidence([*facts, closing(31)], table(4, exits=ends), world=4)


def test_gloo_hang_names_the_rank_that_its_agent_ended_without_a_timeout() -> None:
    verdict = attribute(gloo_hang(3))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-missing-rank", [(3, "n2")])
    assert attribute(gloo_hang(0, exits={0: -15, 1: 1, 2: 1, 3: 1})).culprits[0].rank == 0


def test_two_silent_ranks_are_suspects() -> None:
    verdict = attribute(gloo_hang(3, more=[2], exits={0: 1, 1: 1}))
    assert culprits(verdict) == [] and suspects(verdict) == [2, 3]


def test_silence_without_a_known_world_is_nothing() -> None:
    verdict = attribute(replace(gloo_hang(3), world_size=None))
    assert (verdict.failure_class, culprits(verdict), suspects(verdict)) == ("collective-hang-unattributed", [], [])


def test_silence_without_any_own_end_is_a_suspicion() -> None:
    quiet = replace(gloo_hang(3), facts=[f for f in gloo_hang(3).facts if f.kind != "elastic.closing"])
    verdict = attribute(quiet)
    assert culprits(verdict) == [] and suspects(verdict) == [3]


def test_one_witness_is_not_enough() -> None:
    facts = [gloo_timeout(0), closing(31)]
    verdict = attribute(evidence(facts, table(2, exits={0: 1}), world=2))
    assert culprits(verdict) == [] and suspects(verdict) == [1]


def test_a_rank_that_finished_early_is_the_missing_one() -> None:
    assert culprits(attribute(gloo_hang(1, exits={0: 1, 1: 0, 2: 1, 3: 1}))) == [(1, "n1")]


def store_wait(rank: int, missing: int) -> object:
    text = f"torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/{missing}"
    return fact("torch.store-wait", text, hint="collective-missing-rank", rank=rank, data={"missing": [missing]})


def test_store_key_needs_every_other_rank() -> None:
    all_others = [store_wait(rank, 3) for rank in range(3)]
    assert culprits(attribute(evidence(all_others, table(4), world=4))) == [(3, "n2")]  # type: ignore[arg-type]
    two = attribute(evidence(all_others[:2], table(4), world=4))  # type: ignore[arg-type]
    assert culprits(two) == [] and suspects(two) == [3]


def barrier(missing: list[int]) -> list[object]:
    text = f"[Rank 0]: Ranks {missing} failed to pass monitoredBarrier in 8000 ms"
    first = fact("torch.barrier-failed", text, hint="collective-missing-rank", rank=0, data={"missing": missing})
    reached = [
        fact("torch.barrier-reached", "Rank reached monitoredBarrier", rank=rank, data={"group_rank": rank})
        for rank in range(1, 4)
        if rank not in missing
    ]
    return [first, *reached]


def test_monitored_barrier_names_who_did_not_arrive_where_all_others_did() -> None:
    assert culprits(attribute(evidence(barrier([2]), table(4), world=4))) == [(2, "n2")]  # type: ignore[arg-type]
    alone = attribute(evidence(barrier([2])[:1], table(4), world=4))  # type: ignore[arg-type]
    assert culprits(alone) == [] and suspects(alone) == [2]


def test_monitored_barrier_may_name_those_that_wait_elsewhere() -> None:
    waiting = [*barrier([1, 2]), gloo_timeout(1), gloo_timeout(2)]
    assert culprits(attribute(evidence(waiting, table(4), world=4))) == []  # type: ignore[arg-type]


def test_analyser_of_dumps_names_missing_ranks() -> None:
    found = fact("flight-recorder.missing-ranks", "missing ranks: {1}", "cause", data={"missing": [1]})
    assert culprits(attribute(evidence([found], table(4), world=4))) == [(1, "n1")]
    assert culprits(attribute(evidence([found]))) == []


# --- mismatch


def test_detail_majority_ignores_the_odd_ones_own_word() -> None:
    facts = [detail(0, 2), detail(1, 2), detail(2, 0), detail(3, 2)]
    assert culprits(attribute(evidence(facts, table(4), world=4))) == [(2, "n2")]


@pytest.mark.parametrize(
    "votes",
    [[(0, 1)], [(0, 1), (1, 0)], [(0, 2), (1, 2), (2, 0), (3, 0)], [(0, 2), (1, 2), (2, 0)]],
    ids=["one", "two", "two against two", "the fourth printed nothing"],
)
def test_detail_without_a_majority_names_nobody(votes: list[tuple[int, int]]) -> None:
    verdict = attribute(evidence([detail(*vote) for vote in votes], table(4), world=4))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-mismatch", [])
    assert verdict.suspects


def test_detail_names_whom_more_name_than_could_side_with_it() -> None:
    facts = [detail(rank, 4) for rank in (0, 1, 2, 3, 5, 6)]
    assert culprits(attribute(evidence(facts, table(8), world=8))) == [(4, "n2")]
    assert culprits(attribute(evidence(facts[:4], table(8), world=8))) == []


def test_detail_inside_a_sub_group_counts_its_own_ranks() -> None:
    """Global ranks 4-7 report as 0-3 of their group: "Rank 2" is global rank 6, which nothing proves."""
    facts = [replace(detail(rank, 2), rank=4 + rank) for rank in (0, 1, 3)]
    assert culprits(attribute(evidence(facts, table(8), world=8))) == []


def test_unlike_operations_at_one_sequence_number() -> None:
    facts = [watchdog(rank, 7, pg="0", op="BROADCAST" if rank == 2 else "ALLREDUCE") for rank in range(4)]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-mismatch", [(2, "n2")])
    unknown_group = [replace(f, data={k: v for k, v in f.data.items() if k != "pg"}) for f in facts]
    assert culprits(attribute(evidence(unknown_group, table(4), world=4))) == []


@pytest.mark.parametrize(("groups", "expected"), [(["0"], [(2, "n2")]), (["0", "17"], []), ([None], [])])
def test_the_line_that_follows_tells_the_group(groups: list[str | None], expected: list[tuple[int, str]]) -> None:
    """The operation in one line, the group in the next. A number of two groups tells none, nor does torch 2.3."""
    facts = [watchdog(rank, 7, op="BROADCAST" if rank == 2 else "ALLREDUCE") for rank in range(4)]
    for rank in range(4):
        facts += [status_of(rank, 7, group) for group in groups]
    assert culprits(attribute(evidence(facts, table(4), world=4))) == expected


def status_of(rank: int, seq: int, group: str | None) -> Fact:
    text = f"Timeout at NCCL work: {seq}, last enqueued NCCL work: {seq}, last completed NCCL work: {seq - 1}."
    data = {"seq": seq, "enqueued": seq, "completed": seq - 1, **({} if group is None else {"pg": group})}
    return fact("torch.pg-status", text, rank=rank, time=HANG, data=data)


@pytest.mark.parametrize("ops", [("SEND", "RECV", "RECV", "RECV"), ("COALESCED", "SEND", "SEND", "SEND")], ids="-".join)
def test_sends_and_receives_are_unlike_by_nature(ops: tuple[str, ...]) -> None:
    facts = [watchdog(rank, 7, op=op, pg="5") for rank, op in enumerate(ops)]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-hang-unattributed", [])


def test_counts_of_a_group_with_sends_and_receives_are_of_both() -> None:
    rows = table(4, progress={0: (41, 40), 1: (40, 40), 2: (41, 40), 3: (41, 40)})
    ops = {0: "ALLREDUCE", 2: "ALLREDUCE", 3: "ALLREDUCE"}
    waits = {rank: watchdog(rank, 41, op=op, pg="0") for rank, op in ops.items()}
    assert culprits(attribute(evidence(waits.values(), rows, world=4))) == [(1, "n1")]
    waits[3] = watchdog(3, 41, op="RECV", pg="0")
    assert culprits(attribute(evidence(waits.values(), rows, world=4))) == []


def test_world_of_a_job_by_the_tables_of_all_its_agents() -> None:
    def block(rank: int, exitcode: int, root: int) -> Fact:
        return fact(
            "elastic.failure",
            f"rank : {rank}",
            "consequence" if exitcode == -15 else "cause",
            rank=rank,
            hint=None if exitcode == -15 else "rank-exception",
            data={"rank": rank, "exitcode": exitcode, "root": root},
        )

    blocks = [block(0, 1, 1), block(1, 1, 0), block(2, 1, 1), block(3, -15, 0)]
    facts = [*(gloo_timeout(rank) for rank in range(3)), *blocks]
    rows = table(4, exits={0: 1, 1: 1, 2: 1, 3: -15})
    assert culprits(attribute(evidence(facts, rows))) == [(3, "n2")]
    one_table = [*facts[:3], block(0, 1, 1), block(1, 1, 0), block(2, 1, 0), block(3, -15, 0)]
    verdict = attribute(evidence(one_table, rows))
    assert culprits(verdict) == [] and suspects(verdict) == [3]
    assert culprits(attribute(evidence(facts, rows, job=None))) == []


# --- first failure


def test_two_exceptions_at_one_time_are_suspects() -> None:
    facts = [exception(1, time=HANG, uncertainty_s=0.5), exception(2, time=HANG + 1, uncertainty_s=0.5), peer_closed(0)]
    verdict = attribute(evidence([*facts, peer_closed(3)], table(4), world=4))
    assert culprits(verdict) == [] and suspects(verdict) == [1, 2]


def test_the_earlier_exception_is_named_beyond_the_clocks() -> None:
    facts = [exception(1, time=HANG + 60, uncertainty_s=0.5), exception(2, time=HANG, uncertainty_s=0.5)]
    verdict = attribute(evidence([*facts, peer_closed(0), peer_closed(3)], table(4), world=4))
    assert culprits(verdict) == [(2, "n2")]


@pytest.mark.parametrize(
    ("gap", "clocks", "named"),
    [
        (60, {"n1": (0.0, 0.01), "n2": (0.0, 0.01)}, 2),
        (60, {}, None),  # nobody measured: munge lets clocks be 300 s off, each
        (590, {}, None),
        (610, {}, 2),
        (60, {"n1": (0.0, 30.0), "n2": (0.0, 30.0)}, None),
        (60, {"n1": (0.0, 0.01)}, None),
        (60, {"n1": (120.0, 1.0), "n2": (0.0, 1.0)}, 1),  # n1's clock was ahead: its exception came first
        (60, {"n1": (60.0, 1.0), "n2": (0.0, 1.0)}, None),
    ],
)
def test_the_order_of_two_nodes_is_that_of_their_measured_clocks(
    gap: float, clocks: dict[str, tuple[float, float]], named: int | None
) -> None:
    """Rank 2 on n2 raised ``gap`` seconds before rank 1 on n1, each by its own node's clock."""
    facts = [exception(1, time=HANG + gap, uncertainty_s=0.5), exception(2, time=HANG, uncertainty_s=0.5)]
    measured = {name: clocks.get(name, (None, None)) for name in ("n1", "n2")}
    views = nodes(**{name: {"clock_offset_s": of[0], "clock_error_s": of[1]} for name, of in measured.items()})
    verdict = attribute(evidence([*facts, peer_closed(0), peer_closed(3)], table(4), world=4, nodes=views))
    assert [rank for rank, _ in culprits(verdict)] == ([] if named is None else [named])
    assert suspects(verdict) == ([1, 2] if named is None else [])


@pytest.mark.parametrize(
    ("hosts", "named"),
    [({1: "n1", 2: "n1"}, [2]), ({1: "n1", 2: "n2"}, []), ({1: "n1"}, [2]), ({}, [2]), ({1: "n1", 3: "n2"}, [])],
    ids=str,
)
def test_logs_that_name_one_host_at_most_have_one_clock(hosts: dict[int, str], named: list[int]) -> None:
    facts = [exception(1, time=HANG + 60, uncertainty_s=0.5), exception(2, time=HANG, uncertainty_s=0.5)]
    rows = [Rank(rank, host=hosts.get(rank), exit=1) for rank in range(4)]
    verdict = attribute(evidence([*facts, peer_closed(0), peer_closed(3)], rows, world=4, job=None))
    assert [rank for rank, _ in culprits(verdict)] == named


def test_logs_of_more_ranks_than_a_node_has_gpus_have_several_clocks() -> None:
    facts = [exception(1, time=HANG + 60, uncertainty_s=0.5), exception(2, time=HANG, uncertainty_s=0.5)]
    said = [peer_closed(rank) for rank in range(9) if rank not in (1, 2)]
    assert culprits(attribute(evidence([*facts, *said], world=9, job=None))) == []


def test_a_xid_of_a_node_whose_clock_was_off_is_inside_the_run() -> None:
    late = xid("n2", at=START - 900)
    assert culprits(attribute(evidence([late]))) == []
    off = nodes(n2={"clock_offset_s": -1000.0, "clock_error_s": 2.0})
    assert culprits(attribute(evidence([late], nodes=off))) == [(None, "n2")]


def test_an_exception_after_the_own_timeout_is_a_consequence() -> None:
    facts = [*(watchdog(rank, 41) for rank in range(3)), exception(1)]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert culprits(verdict) == [] and 1 not in suspects(verdict)


def test_a_victim_with_an_exit_code_is_no_culprit() -> None:
    """The agent saw rank 0 first, which only lost its peer; the segmentation fault is on rank 3."""
    facts = [agent_saw(1, 0, rank=0), *(peer_closed(rank) for rank in (0, 1, 2))]
    verdict = attribute(evidence(facts, table(4, exits={0: 1, 1: 1, 2: 1, 3: -11}), world=4))
    assert (verdict.failure_class, culprits(verdict)) == ("process-signal", [(3, "n2")])


def test_sigterm_and_forced_sigkill_of_the_agent_are_no_own_failure() -> None:
    rows = [replace(row, pid=30 + row.rank) for row in table(4, exits={0: -15, 1: -9, 2: -11, 3: -15})]
    verdict = attribute(evidence([forced(31)], rows, world=4))
    assert culprits(verdict) == [(2, "n2")]


def test_an_exception_beside_a_silent_rank_is_a_suspicion() -> None:
    verdict = attribute(evidence([exception(1), peer_closed(0)], table(8)[:2], world=8))
    assert culprits(verdict) == [] and suspects(verdict) == [1]


def test_earliest_attempt_counts() -> None:
    facts = [
        exception(2, file="run_x/attempt_0/2/stderr.log"),
        exception(0, "RuntimeError: other", file="run_x/attempt_1/0/stderr.log"),
        exception(2, "RuntimeError: later", file="run_x/attempt_1/2/stderr.log"),
    ]
    verdict = attribute(evidence([*facts, peer_closed(1), peer_closed(3)], table(4), world=4))
    assert culprits(verdict) == [(2, "n2")]
    assert verdict.culprits[0].why == "ValueError: loss is nan"


@pytest.mark.parametrize(
    ("line", "task", "why"),
    [
        (" 3: ValueError: x", 3, "ValueError: x"),
        ("3: [rank3]: ValueError: x", 3, "ValueError: x"),
        ("[rank3]: ValueError: x", None, "ValueError: x"),
        ("3: ValueError: x", None, "3: ValueError: x"),
        ("7: ValueError: x", 3, "7: ValueError: x"),
        ("[rank7]: ValueError: x", None, "[rank7]: ValueError: x"),
        ("ValueError: " + "x" * 200, None, "ValueError: " + "x" * 82 + "..." + "x" * 63),
    ],
)
def test_labels_of_task_and_rank_are_in_the_evidence_and_not_in_the_summary(
    line: str, task: int | None, why: str
) -> None:
    told = exception(3, line, data={} if task is None else {"task": task})
    verdict = attribute(evidence([told, peer_closed(0), peer_closed(1), peer_closed(2)], table(4), world=4))
    assert verdict.culprits[0].why == why and verdict.summary == f"Rank 3 failed first: {why}."


_TRIED = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "


@pytest.mark.parametrize(
    ("tried", "at", "others", "named"),
    [
        ("2.50 GiB. GPU 3 has", 400, 4, [1]),  # after the others' waits, and its own
        ("13194139533312.00 GiB. GPU 3 has", 400, 4, []),  # ranks wait before it
        ("more than 1EB memory.", 400, 4, []),
        ("13194139533312.00 GiB. GPU 3 has", 2, 4, [1]),  # before all of them
        ("13194139533312.00 GiB. GPU 3 has", 2, 2, []),  # two ranks left no word: it needs their alibi
        ("2.50 GiB. GPU 3 has", 2, 2, [1]),  # the GPU was full by its own doing
    ],
)
def test_memory_of_an_absurd_size_is_a_cause_only_before_anybody_reacted(
    tried: str, at: int, others: int, named: list[int]
) -> None:
    oom = cuda(1, "cuda-oom", _TRIED + tried, file="slurm-42.out", line=at)
    facts = [oom, *(peer_closed(rank) for rank in (0, 2, 3)[: others - 1])]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert [rank for rank, _ in culprits(verdict)] == named


def test_device_error_says_more_than_its_exception() -> None:
    facts = [exception(1, "RuntimeError: x"), cuda(1, "cuda-oom", "CUDA out of memory"), peer_closed(0)]
    verdict = attribute(evidence(facts, table(2), world=2))
    assert (verdict.failure_class, culprits(verdict)) == ("cuda-oom", [(1, "n2")])


TASKS = [
    task_exit("n2", "3", "Exited with exit code 1", 10, exitcode=1),
    task_exit("n1", "0-2", "Terminated", 12),
]


def test_srun_tasks_are_ranks_without_torchrun() -> None:
    verdict = attribute(evidence([exception(None, line=5), *TASKS]))
    assert (verdict.failure_class, [c.rank for c in verdict.culprits]) == ("rank-exception", [3])
    assert culprits(attribute(evidence([exception(None, line=5), *TASKS, closing(5)]))) == []


def test_a_bare_exit_code_proves_nothing() -> None:
    """It may be that of a victim whose words were not captured; its peers are ended by srun in the same way."""
    assert culprits(attribute(evidence(TASKS))) == []
    unheard = replace(gloo_timeout(0), rank=None)
    assert culprits(attribute(evidence([exception(None, line=5), unheard, *TASKS]))) == []


def test_a_word_that_names_no_rank_is_told_of() -> None:
    """srun's line overtakes the task's standard error: the traceback below it has no rank."""
    failed = task_exit("n1", "0", "Exited with exit code 1", 10, exitcode=1)
    assert "without a word why" in attribute(evidence([failed])).summary
    told = attribute(evidence([failed, exception(None, line=12)])).summary
    assert "and an exception that names no rank" in told and "without a word" not in told


def test_a_task_killed_after_the_step_began_to_end_is_no_lead() -> None:
    facts = [
        exception(None, line=5),
        task_exit("n1", "1", "Exited with exit code 1", 10, exitcode=1),
        task_exit("n1", "0", "Killed", 12),
        task_exit("n2", "2-3", "Terminated", 13),
    ]
    assert [c.rank for c in attribute(evidence(facts)).culprits] == [1]


def test_an_exception_that_wraps_a_lost_peer_is_a_reaction() -> None:
    """Rank 3 was killed and left nothing; rank 0 turns its lost connection into an exception of its own."""
    wrapped = exception(0, "TrainingFailed: giving up", line=400)
    facts = [peer_closed(0), wrapped, peer_closed(1), peer_closed(2), closing(31)]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert culprits(verdict) == [] and 0 not in suspects(verdict)
    elsewhere = replace(wrapped, file="attempt_0/0/error.json", line=1)
    assert culprits(attribute(evidence([*facts, elsewhere], table(4), world=4))) == []


def test_a_crash_while_winding_up_is_a_reaction() -> None:
    verdict = attribute(evidence([peer_closed(0), exception(2)], table(4, exits={0: -11}), world=4))
    assert 0 not in [culprit.rank for culprit in verdict.culprits] and 0 not in suspects(verdict)


def test_one_kill_among_wrapped_exceptions_is_the_suspect() -> None:
    facts = [exception(0), exception(2), agent_saw(-9, 1, rank=1)]
    verdict = attribute(evidence(facts, table(3, exits={0: 1, 1: -9, 2: 1}), world=3))
    assert (verdict.failure_class, culprits(verdict), suspects(verdict)) == ("process-signal", [], [1])


def test_abort_beside_data_of_a_wrong_size_accuses_nobody() -> None:
    """The one who received what it did not expect aborts; the sender may be the odd one."""
    size = fact("gloo.size-mismatch", "Received data size doesn't match", "cause", hint="collective-mismatch")
    verdict = attribute(evidence([size, peer_closed(0), peer_closed(2)], table(3, exits={1: -6}), world=3))
    assert (verdict.failure_class, culprits(verdict)) == ("collective-mismatch", [])


@pytest.mark.parametrize(("code", "named"), [(3, [1]), (1, []), (139, [1]), (143, [])])
def test_exit_codes_without_a_word(code: int, named: list[int]) -> None:
    """3 is a choice of the program; 1 may be any uncaught exception; 128 + n is a signal that a shell tells of."""
    verdict = attribute(evidence([peer_closed(0), peer_closed(2)], table(3, exits={1: code}), world=3))
    assert [culprit.rank for culprit in verdict.culprits] == named


def test_a_peer_lost_after_the_own_exception_does_not_clear_it() -> None:
    facts = [exception(2, line=50), *(peer_closed(rank) for rank in range(4))]
    assert culprits(attribute(evidence(facts, table(4), world=4))) == [(2, "n2")]


# --- the machine, and who may say so


def test_what_a_job_prints_proves_nothing_about_a_machine() -> None:
    printed = xid("n2", trust="job", file="slurm-42.out", rank=3)
    verdict = attribute(evidence([printed, exception(1), peer_closed(0)], table(4), world=4))
    assert (None, "n2") not in culprits(verdict)
    assert verdict.action not in ("reboot", "replace")


@pytest.mark.parametrize(
    ("of_a_job", "expected"), [(True, ("gpu-hw-lost", "possible")), (False, ("gpu-hw-lost", "likely"))]
)
def test_kernel_lines_that_nobody_vouches_for_name_nobody(of_a_job: bool, expected: tuple[str, str]) -> None:
    """Pasted between other lines, or of no known node; the job's own words weigh less than an admin's paste."""
    loose = replace(xid("n2", trust="job", file="job.log"), host=None)
    given = evidence([loose, fact("torch.pg-options", "torch", "context", file="job.log")])
    verdict = attribute(given if of_a_job else replace(given, job=None, nodes=()))
    assert (verdict.failure_class, verdict.confidence) == expected
    assert (culprits(verdict), verdict.suspects, verdict.action) == ([], (), "investigate")


@pytest.mark.parametrize(
    ("file", "trust", "host"),
    [("/home/alice/slurm-42.out", "job", None), ("n2/nccl.n2.7.log", "job", "n2"), ("n1/nccl.n2.7.log", "job", None)],
    ids=["printed", "read-on-n2", "read-on-n1"],
)
def test_a_host_that_a_job_claims_is_nobodys_host_for_a_machine_action(file: str, trust: str, host: str | None) -> None:
    """The job prints an ECC error of rank 3, and that rank 3 runs on n2."""
    ecc = cuda(3, "gpu-hw-ecc", "CUDA error: uncorrectable ECC error encountered", host="n2", file=file, trust=trust)
    found = evidence([ecc, peer_closed(0), peer_closed(1), peer_closed(2)], table(4), world=4)
    verdict = attribute(found)
    assert (verdict.failure_class, verdict.action, culprits(verdict)) == ("gpu-hw-ecc", "investigate", [(3, host)])
    assert [item.target for item in recommend(verdict, found)] == [host]
    assert {item.action for item in recommend(verdict, found)} == {"investigate"}


def test_cuda_ecc_text_earns_a_look_at_most() -> None:
    facts = [cuda(1, "gpu-hw-ecc", "CUDA error: uncorrectable ECC error encountered"), peer_closed(0)]
    there = [replace(row, files=[f"{row.host}/nccl.{row.host}.7.log"]) for row in table(2)]
    verdict = attribute(evidence(facts, there, world=2))
    assert (verdict.failure_class, culprits(verdict), verdict.action) == ("gpu-hw-ecc", [(1, "n2")], "investigate")


def test_host_outside_the_run_is_never_named() -> None:
    verdict = attribute(evidence([xid("n9")], table(4), world=4))
    assert culprits(verdict) == [] and verdict.failure_class == "unknown"


def test_xid_outside_the_window_is_not_this_runs() -> None:
    assert attribute(evidence([xid("n2", at=HANG - 10_000)])).failure_class == "unknown"
    assert attribute(evidence([xid("n2", at=HANG + 10_000)])).failure_class == "unknown"


def test_a_full_name_is_the_short_node() -> None:
    assert culprits(attribute(evidence([xid("n2.cluster.local")]))) == [(None, "n2")]


def test_an_earlier_exception_goes_before_a_later_xid() -> None:
    first = exception(1, time=HANG - 300, uncertainty_s=0.1)
    facts = [first, peer_closed(0), peer_closed(2), peer_closed(3), xid("n2")]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert (verdict.failure_class, culprits(verdict)) == ("rank-exception", [(1, "n1")])
    assert any(step.rule == "machine.hardware" for step in verdict.inferences)


def test_xids_on_two_nodes_accuse_neither() -> None:
    verdict = attribute(evidence([xid("n1"), xid("n2", at=HANG + 0.2)]))
    assert culprits(verdict) == [] and [s.host for s in verdict.suspects] == ["n1", "n2"]


def test_failed_node_of_slurm() -> None:
    dead: list[NodeView] = nodes(n1={"failed_in_run": True, "state_at_end": "DOWN"})
    verdict = attribute(evidence([peer_closed(3)], table(4), world=4, job=job("NODE_FAIL"), nodes=dead))
    assert (verdict.failure_class, culprits(verdict)) == ("slurm-node-fail", [(None, "n1")])
    verdict = attribute(evidence(job=job("NODE_FAIL", failed_node="n2")))
    assert culprits(verdict) == [(None, "n2")]
    assert culprits(attribute(evidence(job=job("NODE_FAIL")))) == []


def test_node_down_after_an_exception_elsewhere_is_open() -> None:
    dead = nodes(n2={"failed_in_run": True, "state_at_end": "DOWN"})
    verdict = attribute(evidence([exception(0), peer_closed(1)], table(4), world=4, nodes=dead))
    assert (None, "n2") not in culprits(verdict)


def test_srun_speaks_of_a_node_only_in_logs_without_a_job() -> None:
    line = fact("slurm.node-failure", "srun: error: Node failure on n7", "cause", data={"node": "n7"}, host="n7")
    assert culprits(attribute(evidence([line], job=None))) == [(None, "n7")]
    assert culprits(attribute(evidence([line]))) == []
    assert culprits(attribute(evidence([replace(line, host="n2", data={"node": "n2"})]))) == []


def test_kernel_log_given_by_hand_is_believed_unless_a_job_wrote_the_file() -> None:
    line = xid("n7", trust="job", file="n7/dmesg.log")
    verdict = attribute(evidence([line], job=None))
    assert (culprits(verdict), verdict.action) == ([(None, "n7")], "investigate")
    mixed = [line, exception(None, file="n7/dmesg.log")]
    assert culprits(attribute(evidence(mixed, job=None))) == []


def test_memory_kill_names_the_process_that_the_kernel_names() -> None:
    kill = fact(
        "kernel.oom",
        "Memory cgroup out of memory: Killed process 33 (python)",
        "cause",
        hint="host-oom",
        trust="root",
        host="n2",
        time=HANG,
        data={"pid": 33},
    )
    rows = [replace(row, pid=30 + row.rank) for row in table(4, exits={3: -9})]
    verdict = attribute(evidence([kill, peer_closed(0)], rows, world=4))
    assert (verdict.failure_class, culprits(verdict), verdict.action) == ("host-oom", [(3, "n2")], "fix-config")


def test_memory_kill_by_slurms_state() -> None:
    step = Step("42.0", "python", "OUT_OF_MEMORY", 0, 125, ("n2",))
    verdict = attribute(evidence(ranks=table(4, exits={3: -9}), world=4, job=job(steps=(step,))))
    assert (verdict.failure_class, culprits(verdict)) == ("host-oom", [(3, "n2")])


# --- endings


def test_exit_codes_after_a_requeue_are_its_consequence() -> None:
    facts = [cancelled("JOB REQUEUE", line=10), task_exit("n1", "2-3", "Exited with exit code 1", 20, exitcode=1)]
    verdict = attribute(evidence(facts, job=job("REQUEUED")))
    assert (verdict.failure_class, culprits(verdict)) == ("preempt-cancel", [])
    assert attribute(evidence(facts, job=None)).failure_class == "preempt-cancel"


def test_a_hang_before_the_time_limit_is_a_hang() -> None:
    facts = [*(watchdog(rank, 41, pg="0") for rank in range(8)), cancelled("TIME LIMIT", at=HANG + 900)]
    verdict = attribute(evidence(facts, table(8), world=8, job=job("TIMEOUT", exit="0:0")))
    assert verdict.failure_class == "collective-hang-unattributed"


@pytest.mark.parametrize(("after", "measured", "hang"), [(60, True, True), (60, False, False), (900, False, True)])
def test_a_limit_comes_after_a_hang_only_where_the_clocks_tell(after: float, measured: bool, hang: bool) -> None:
    facts = [*(watchdog(rank, 41, pg="0") for rank in range(4, 8)), cancelled("TIME LIMIT", at=HANG + after)]
    facts[-1] = replace(facts[-1], data={"first_node": "n1"}, file="slurm-42.out")
    views = nodes() if measured else nodes(n1={"clock_error_s": None}, n2={"clock_error_s": None})
    verdict = attribute(evidence(facts, table(8), world=8, job=job("TIMEOUT", exit="0:0"), nodes=views))
    assert (verdict.failure_class != "preempt-cancel") is hang


def test_time_limit_with_nothing_before() -> None:
    verdict = attribute(evidence(ranks=table(4), world=4, job=job("TIMEOUT", exit="0:0")))
    assert (verdict.failure_class, verdict.confidence, verdict.action) == ("preempt-cancel", "proven", "none")
    assert verdict.summary.startswith("The run reached its time limit")


def test_an_exception_whose_moment_is_unknown_does_not_beat_a_cancel() -> None:
    facts = [exception(1, file="rank_1.log"), peer_closed(0), cancelled(at=HANG)]
    verdict = attribute(evidence(facts, table(2), world=2, job=job("CANCELLED")))
    assert (verdict.failure_class, culprits(verdict)) == ("preempt-cancel", [])
    before = attribute(evidence([exception(1), *facts[1:]], table(2), world=2, job=job("CANCELLED")))
    assert culprits(before) == [(1, "n2")]


def test_completed_job_is_benign() -> None:
    fine = job("COMPLETED", exit="0:0", steps=(Step("42.0", "train", "COMPLETED", 0, 0),))
    verdict = attribute(evidence(ranks=table(4, exits=dict.fromkeys(range(4), 0)), world=4, job=fine))
    assert (verdict.failure_class, verdict.action, culprits(verdict)) == ("benign", "none", [])


# --- shared causes and what is left


@pytest.mark.parametrize(
    ("kind", "hint", "action"),
    [
        ("nccl.ib-completion", "net-ib-transport", "network"),
        ("nccl.ib-setup", "net-ib-setup", "fix-config"),
        ("torch.client-timeout", "rendezvous-store", "fix-config"),
        ("ofi.setup", "net-efa-ofi", "fix-config"),
        ("nccl.connect-failed", "net-socket-connect", "network"),
    ],
)
def test_shared_causes_accuse_nobody(kind: str, hint: str, action: str) -> None:
    verdict = attribute(evidence([fact(kind, "text", "cause", hint=hint, rank=1, host="n1")], table(2), world=2))
    assert (verdict.failure_class, verdict.action, culprits(verdict)) == (hint, action, [])


def test_full_shared_memory_is_the_printing_ranks_own() -> None:
    line = fact("nccl.shm", "failed to extend /dev/shm/nccl-a", "cause", hint="resource-shm", rank=1, host="n2")
    verdict = attribute(evidence([line], table(2), world=2))
    assert (verdict.failure_class, culprits(verdict), verdict.action) == ("resource-shm", [(1, "n2")], "fix-config")
    spoofed = replace(line, rank=None, host="n1")
    assert culprits(attribute(evidence([spoofed], table(2), world=2))) == []


def test_lost_peers_alone_name_nobody() -> None:
    verdict = attribute(evidence([peer_closed(0), peer_closed(1)], table(4), world=4))
    assert (verdict.failure_class, culprits(verdict), suspects(verdict)) == ("net-peer-lost", [], [])


@pytest.mark.parametrize(
    ("line", "known", "failure_class", "action"),
    [
        (46, None, "preempt-cancel", "none"),
        (20, None, "net-peer-lost", "investigate"),  # lost before anybody was told to end
        (27, None, "preempt-cancel", "none"),  # the first took its ranks along
        (
            46,
            job(),
            "net-peer-lost",
            "investigate",
        ),  # srun ends the rest where a task failed
    ],
)
def test_peers_that_were_lost_after_torchrun_was_told_to_end(
    line: int, known: Job | None, failure_class: str, action: str
) -> None:
    word = fact("elastic.death-signal", "Received 15 death signal", hint="preempt-cancel")
    told = [replace(word, rank=None, file="job.out", line=at, data={"signal": "15"}) for at in (26, 29)]
    last = replace(word, rank=None, file="job.out", line=75, data={"pid": 10155, "number": 15})
    lost = replace(peer_closed(1), file="job.out", line=line, time=None)
    verdict = attribute(evidence([*told, lost, last], table(4), world=4, job=known))
    assert (verdict.failure_class, verdict.action, culprits(verdict)) == (failure_class, action, [])


def test_stuck_watchdog() -> None:
    line = fact("torch.heartbeat", "watchdog got stuck for 480 seconds", "cause", hint="watchdog-stuck", rank=0)
    assert attribute(evidence([line], table(2), world=2)).failure_class == "watchdog-stuck"


def test_a_world_size_that_nobody_can_have_is_ignored() -> None:
    huge = evidence([gloo_timeout(0), gloo_timeout(1)], [Rank(0), Rank(1)], world=10**12)
    assert culprits(attribute(huge)) == []


def test_kernel_names_the_program_on_a_ranks_gpu() -> None:
    rows = table(4)
    rows[3] = replace(rows[3], gpu="0000:a1:00")
    verdict = attribute(evidence([xid("n2", 31), *(peer_closed(rank) for rank in range(3))], rows, world=4))
    assert (verdict.failure_class, culprits(verdict), verdict.action) == ("gpu-app-fault", [(3, "n2")], "fix-code")
    assert culprits(attribute(evidence([xid("n1", 31), *(peer_closed(r) for r in range(3))], rows, world=4))) == []


BIG = 16_384


@pytest.mark.timeout(120)  # quadratic work would take hours
@pytest.mark.parametrize(
    "facts",
    [
        [watchdog(rank, 41, pg="0") for rank in range(BIG)],
        [exception(rank) for rank in range(5000)] + [cancelled(at=HANG)] * 300,
        [agent_saw(1, 0)] * 10_000,
        [exception(None)] + [task_exit("n1", str(task), "Killed", 10 + task) for task in range(4000)],
        [xid("n2", 31)] * 5000,
    ],
    ids=["hang", "cancel", "agents", "tasks", "kernel"],
)
def test_time_grows_with_the_evidence_alone(facts: list[Fact]) -> None:
    rows = [Rank(rank, host="n2", gpu="0000:a1:00", exit=-6) for rank in range(BIG)]
    assert attribute(evidence(facts, rows, world=BIG, job=job("CANCELLED"))).summary


HIDING = {"type": "RuntimeError", "message": "step 3 failed", "from_none": 1}
WRAPPING = {"type": "RuntimeError", "message": "step 3 failed"}
IMPORT = {"type": "ModuleNotFoundError", "message": "No module named 'x'"}
PLAIN = {"type": "ValueError", "message": "no learning rate"}


@pytest.mark.parametrize(
    ("data", "world", "lost", "named"),
    [
        (HIDING, 2, False, []),
        (HIDING, 4, False, []),
        (HIDING, 4, True, []),
        (WRAPPING, 2, False, []),
        (WRAPPING, 2, True, [(0, "n1")]),
        (WRAPPING, 4, False, []),
        (WRAPPING, 4, True, [(0, "n1")]),
        (PLAIN, 2, False, [(0, "n1")]),
        (IMPORT, 4, False, []),
        (IMPORT, 4, True, [(0, "n1")]),
    ],
    ids=[
        "hides-2",
        "hides-4",
        "hides-lost",
        "wraps-2",
        "wraps-2-lost",
        "wraps-4",
        "wraps-4-lost",
        "plain-2",
        "import",
        "import-lost",
    ],
)
def test_an_exception_that_may_hide_a_wait_proves_nobody(
    data: dict[str, str | int], world: int, lost: bool, named: list[tuple[int, str]]
) -> None:
    word = exception(0, f"{data['type']}: {data['message']}", data=data)
    facts = [word, *([peer_closed(1)] if lost else []), *(closing(30 + rank) for rank in range(1, world))]
    exits = {0: 1, **dict.fromkeys(range(1, world), -15)}
    verdict = attribute(evidence(facts, table(world, exits=exits), world=world))
    assert (verdict.failure_class, culprits(verdict)) == ("rank-exception", named)
    assert named or suspects(verdict) == [0]


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ([peer_closed(1)], [(0, "n1")]),
        ([], []),
        ([peer_closed(1), fact("framework.exited-with-threads", "terminate called without an active exception")], []),
    ],
    ids=["lost", "nobody-tells", "left-with-threads"],
)
def test_sigabrt_needs_a_witness(facts: list[Fact], named: list[tuple[int, str]]) -> None:
    ends = [closing(31), closing(32), *facts]
    verdict = attribute(evidence(ends, table(3, exits={0: -6, 1: -15, 2: -15}), world=3))
    assert culprits(verdict) == named


def recorded(rank: int, *calls: str, group: str = "0") -> Fact:
    return fact(
        "flight-recorder.status",
        f"flight recorder: group {group}",
        "context",
        rank=rank,
        data={"pg": group, "recent": [f"{seq} {call}" for seq, call in enumerate(calls, 7)]},
    )


REDUCE, OTHER, SHORT = "nccl:all_reduce [[64]]", "nccl:broadcast [[64]]", "nccl:all_reduce [[32]]"
GATHER, UNEVEN = "nccl:all_gather [[64]]", "nccl:all_gather [[48]]"


@pytest.mark.parametrize(
    ("odd", "rest", "named"),
    [
        ((REDUCE, OTHER), (REDUCE, REDUCE), [2]),
        ((REDUCE, SHORT), (REDUCE, REDUCE), [2]),
        ((REDUCE, OTHER, REDUCE), (REDUCE, REDUCE, REDUCE), [2]),
        ((REDUCE, UNEVEN), (REDUCE, GATHER), []),
        ((OTHER, OTHER), (REDUCE, REDUCE), []),  # a dump of something else: they agree in nothing
        ((REDUCE,), (REDUCE, REDUCE), []),
        ((REDUCE, "nccl:all_reduce [[8, 8]]"), (REDUCE, REDUCE), []),
        ((REDUCE, "nccl:send 2->3 [[64]]"), (REDUCE, REDUCE), []),
        ((OTHER, *[REDUCE] * 31), (REDUCE, *[REDUCE] * 31), []),  # the list may be cut inside a coalesced call
    ],
    ids=["operation", "size", "earlier", "uneven", "strange", "behind", "shape", "message", "cut"],
)
def test_dumps_tell_who_issued_another_operation(odd: tuple[str, ...], rest: tuple[str, ...], named: list[int]) -> None:
    facts = [recorded(rank, *(odd if rank == 2 else rest)) for rank in range(4)]
    verdict = attribute(evidence(facts, table(4), world=4))
    assert [rank for rank, _ in culprits(verdict)] == named


def counts(**groups: tuple[int, int]) -> dict[str, dict[str, int]]:
    return {name.strip("g"): {"enqueued": enqueued, "completed": done} for name, (enqueued, done) in groups.items()}


@pytest.mark.parametrize(
    ("odd", "rest", "world", "named"),
    [
        (counts(g1=(3, 3), g2=(4, 3)), counts(g1=(4, 3), g2=(3, 3)), 4, [2]),
        (counts(g1=(3, 3), g2=(4, 3)), counts(g1=(4, 3), g2=(3, 3)), 5, []),  # somebody is unseen
        (counts(g1=(3, 3), g2=(4, 3)), counts(g1=(4, 3), g2=(4, 3)), 4, []),  # the others wait there too
        (counts(g1=(3, 3)), counts(g1=(4, 3)), 4, [2]),  # its own word: it waits, and gloo waits in one thing at a time
    ],
    ids=["other-group", "unseen", "both", "blocked"],
)
def test_who_waits_elsewhere_than_all_others_is_out_of_order(
    odd: dict[str, dict[str, int]], rest: dict[str, dict[str, int]], world: int, named: list[int]
) -> None:
    rows = [Rank(rank, host="n1", progress=odd if rank == 2 else rest) for rank in range(4)]
    facts = [gloo_timeout(rank) for rank in range(4)]
    verdict = attribute(evidence(facts, rows, world=world))
    assert [rank for rank, _ in culprits(verdict)] == named
    assert not named or verdict.failure_class == "collective-mismatch"


@pytest.mark.parametrize(("world", "lived", "named"), [(3, False, [2]), (None, True, [2]), (None, False, [])])
def test_a_rank_that_never_came_to_the_store(world: int | None, lived: bool, named: list[int]) -> None:
    text = "torch.distributed.DistStoreError: wait timeout after 15000ms, keys: /default_pg/0//cpu//0/2"
    waits = [
        fact("torch.store-wait", text, hint="collective-missing-rank", rank=r, data={"missing": [2]}) for r in (0, 1)
    ]
    rows = table(3, exits={0: 1, 1: 1, **({2: -15} if lived else {})})
    verdict = attribute(evidence(waits, rows if lived or world else rows[:2], world=world, job=None))
    assert [rank for rank, _ in culprits(verdict)] == named


@pytest.mark.parametrize(("kind", "named"), [("nccl.p2p-memory", [0]), ("nccl.no-algorithm", [])])
def test_settings_that_all_ranks_have_in_common_prove_nobody(kind: str, named: list[int]) -> None:
    word = fact(kind, "NCCL WARN x", "cause", rank=0, hint="rank-exception")
    facts = [word, *(closing(30 + rank) for rank in range(1, 4))]
    verdict = attribute(evidence(facts, table(4, exits={0: 1, 1: -15, 2: -15, 3: -15}), world=4))
    assert [rank for rank, _ in culprits(verdict)] == named


@pytest.mark.parametrize(("word", "named"), [("KeyError: 'hidden_size'", [1]), ("ModuleNotFoundError: no x", [])])
def test_a_nameless_exception_that_all_would_meet_proves_nobody(word: str, named: list[int]) -> None:
    told = exception(None, word, data={"type": word.split(":")[0]})
    facts = [told, agent_saw(1, 1, rank=1), closing(30), closing(32)]
    verdict = attribute(evidence(facts, table(3, exits={0: -15, 1: 1, 2: -15}), world=3))
    assert [rank for rank, _ in culprits(verdict)] == named
