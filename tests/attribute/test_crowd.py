"""Jobs of many ranks, of which some left nothing: what is proven all the same, and what is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import Evidence, Fact, NodeView, Rank, Verdict
from tests.attribute.scenarios import (
    HANG,
    closing,
    evidence,
    exception,
    fact,
    gloo_timeout,
    job,
    peer_closed,
    table,
    told,
    watchdog,
)

WORLD = 64


def named(verdict: Verdict) -> list[int | None]:
    return [culprit.rank for culprit in verdict.culprits]


def hang(unheard: Iterable[int], *, group: str = "0", dumped: bool = False, world: int = WORLD) -> Evidence:
    """Rank 3 never entered collective 41, in which those of the others wait that are heard of."""
    gone = set(unheard)
    rows = table(world, progress=dict.fromkeys(range(world), (41, 40)) | {3: (40, 40)})
    facts = [watchdog(rank, 41, pg=group) for rank in range(world) if rank != 3 and rank not in gone]
    facts.append(told(3, 0, 40, 40))
    if dumped:
        facts.append(fact("flight-recorder.status", "flight recorder: group 0", "context", rank=3))
    if group != "0":
        waiting = {"enqueued": 9, "completed": 8}
        rows = [replace(row, progress={**row.progress, group: waiting}) if row.rank == 20 else row for row in rows]
    return evidence(facts, [row for row in rows if row.rank not in gone], world=world)


@pytest.mark.parametrize(
    ("unheard", "group", "dumped", "proven"),
    [
        ((), "0", False, True),
        (range(8, 16), "0", False, True),  # a node's record is lost
        (range(8, 24), "0", False, False),  # 16 of 63: more than one in four of those that wait
        (range(8, 16), "7", False, False),  # rank 3 may wait in another group, for one that nobody heard of
        (range(8, 16), "7", True, True),  # its dump tells of all groups
    ],
)
def test_a_rank_that_is_behind_by_its_own_count(unheard: Iterable[int], group: str, dumped: bool, proven: bool) -> None:
    verdict = attribute(hang(unheard, group=group, dumped=dumped))
    assert verdict.failure_class == "collective-missing-rank"
    assert named(verdict) == ([3] if proven else [])


def failure(dark: Iterable[int], *, at: float | None = None, lost_at: float | None = None) -> Evidence:
    """Rank 5 raises, those that are not in the dark lose a peer."""
    gone = set(dark)
    cause = exception(5, time=at, uncertainty_s=None if at is None else 0.5, file="rank_5.log")
    lost = [peer_closed(rank) for rank in range(WORLD) if rank != 5 and rank not in gone]
    if lost_at is not None:
        lost[0] = replace(lost[0], time=lost_at, uncertainty_s=0.5)
    exits = dict.fromkeys(range(WORLD), 1)
    return evidence([cause, *lost], table(WORLD, exits=exits), world=WORLD)


@pytest.mark.parametrize(
    ("dark", "at", "lost_at", "proven"),
    [
        ((), None, None, True),
        (range(8, 16), None, None, True),
        (range(8, 24), None, None, False),  # 16 of 47 that explain themselves
        (range(8, 16), HANG, HANG + 1, True),
        (range(8, 16), HANG, HANG - 60, False),  # somebody had lost a peer a minute before
    ],
)
def test_an_exception_beside_ranks_of_which_nothing_is_known(
    dark: Iterable[int], at: float | None, lost_at: float | None, proven: bool
) -> None:
    verdict = attribute(failure(dark, at=at, lost_at=lost_at))
    assert verdict.failure_class == "rank-exception"
    assert named(verdict) == ([5] if proven else [])


def unnamed(*, own: bool = False, word: bool = False) -> Evidence:
    """Rank 5 raises, as its agent's table quotes; the others' lines of torch 2.1 tell how they reacted and not who."""
    cause = exception(5, file="slurm-42.out", time=HANG, uncertainty_s=1.0)
    waits = [
        fact(
            "torch.watchdog-timeout",
            "Watchdog caught collective operation timeout",
            hint="collective-hang-unattributed",
            host=f"n{1 + rank // 8}",
            file=f"n{1 + rank // 8}/elastic/x/attempt_0/{rank % 8}/stderr.log",
            data={"local_rank": rank % 8, "attempt": 0},
        )
        for rank in range(WORLD)
        if (rank != 5 or own) and not 8 <= rank < 16
    ]
    nameless = [exception(0, file="n3/elastic/x/attempt_0/1/stderr.log")]
    words = [replace(one, rank=None) for one in nameless] if word else []
    hosts = tuple(f"n{1 + rank // 8}" for rank in range(0, WORLD, 8))
    rows = [Rank(rank, f"n{1 + rank // 8}", rank % 8, exit=1 if rank == 5 else None) for rank in range(WORLD)]
    views = tuple(NodeView(host, record="present") for host in hosts)
    return evidence([cause, *waits, *words], rows, world=WORLD, job=job(nodes=hosts), nodes=views)


@pytest.mark.parametrize(
    ("own", "word", "proven"),
    [
        (False, False, True),
        (True, False, False),  # it waited too, and may have raised for that
        (False, True, False),  # some other rank raised as well
    ],
)
def test_ranks_that_tell_how_they_reacted_and_not_who_they_are(own: bool, word: bool, proven: bool) -> None:
    verdict = attribute(unnamed(own=own, word=word))
    assert named(verdict) == ([5] if proven else [])


def test_in_a_small_job_the_rank_that_nobody_heard_of_may_have_been_the_first() -> None:
    facts = [exception(5), *(peer_closed(rank) for rank in (0, 1, 2, 3, 4, 6))]
    verdict = attribute(evidence(facts, table(8, exits=dict.fromkeys(range(8), 1)), world=8))
    assert named(verdict) == [] and [suspect.rank for suspect in verdict.suspects] == [5]


def test_sigabrt_accuses_nobody() -> None:
    """A path broke; one rank's words about it are lost, and its watchdog ended it."""
    broken = fact(
        "nccl.ib-completion", "NET/IB : Got completion with error 12", "cause", hint="net-ib-transport", rank=31
    )
    facts = [broken, *(peer_closed(rank) for rank in range(WORLD) if rank not in (31, 32))]
    verdict = attribute(evidence(facts, table(WORLD, exits={31: -6, 32: -6}), world=WORLD))
    assert verdict.failure_class == "net-ib-transport"
    assert named(verdict) == []


@pytest.mark.parametrize(
    ("own_file", "proven"), [(None, False), ("nccl.n1.132.log", False), ("elastic/x/attempt_0/32/stderr.log", True)]
)
def test_sigabrt_whose_words_were_lost_is_no_failure_of_its_own(own_file: str | None, proven: bool) -> None:
    """gloo aborts a process that got data of a wrong size from a peer, and says so on that process's stderr."""
    name = "elastic/x/attempt_0/{}/stderr.log"
    lost = [replace(peer_closed(rank), file=name.format(rank)) for rank in range(WORLD) if rank != 32]
    listed = [replace(peer_closed(rank), file="slurm-42.out") for rank in range(8)]  # by their agent's table too
    files = {32: (own_file,)} if own_file else {}
    rows = [replace(row, files=files.get(row.rank, ())) for row in table(WORLD, exits={32: -6})]
    verdict = attribute(evidence([*listed, *lost], rows, world=WORLD))
    assert named(verdict) == ([32] if proven else [])


def test_a_crash_is_told_from_those_whose_watchdog_ended_them() -> None:
    nccl = fact("nccl.network", "NCCL INFO Using network Socket", "context", rank=0, data={"network": "Socket"})
    lost = [peer_closed(rank) for rank in range(WORLD) if rank not in (16, 47, 57)]
    verdict = attribute(evidence([nccl, *lost], table(WORLD, exits={16: -6, 47: -6, 57: -7}), world=WORLD))
    assert (verdict.failure_class, named(verdict)) == ("process-signal", [57])


def test_a_kernel_line_that_a_rank_prints_is_no_failure_of_it() -> None:
    text = "9: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    printed = fact("kernel.xid", text, "cause", hint="gpu-hw-lost", rank=9, data={"xid": 79, "pci": "0000:1b:00"})
    verdict = attribute(evidence([printed], table(8), world=8))
    assert named(verdict) == []


def gloo_hang(exits: dict[int, int], *, own_file: str | None = None, rows: int = WORLD, own: bool = False) -> Evidence:
    """All but rank 3 wait; its launcher ended it."""
    name = "elastic/x/attempt_0/{}/stderr.log" if own else "slurm-42.out"
    facts: list[Fact] = [replace(gloo_timeout(rank), file=name.format(rank)) for rank in range(rows) if rank != 3]
    files = {3: (own_file,)} if own_file else {}
    ranks: list[Rank] = [
        replace(row, files=files.get(row.rank, ()), pid=100 + row.rank) for row in table(rows, exits=exits)
    ]
    return evidence([*facts, closing(103)], ranks, world=rows)


@pytest.mark.parametrize(
    ("rows", "code", "proven"),
    [(8, -15, True), (WORLD, -15, False), (WORLD, 0, True)],
)
def test_silence_of_a_rank_that_its_agent_ended(rows: int, code: int, proven: bool) -> None:
    """Of many one may have come a moment later than the others, and then SIGTERM came first."""
    verdict = attribute(gloo_hang({3: code}, rows=rows))
    assert verdict.failure_class == "collective-missing-rank"
    assert named(verdict) == ([3] if proven else [])


@pytest.mark.parametrize(
    ("own_file", "proven"), [(None, False), ("nccl.n1.103.log", False), ("elastic/x/attempt_0/3/stderr.log", True)]
)
def test_a_file_that_was_lost_is_no_silence(own_file: str | None, proven: bool) -> None:
    verdict = attribute(gloo_hang({3: -15}, own_file=own_file, rows=8, own=True))
    assert named(verdict) == ([3] if proven else [])


def unread(*, read: bool, code: int | None = None) -> Evidence:
    """Of 64 ranks eight say nothing; all others wait, each in a file of its own."""
    name = "elastic/x/attempt_0/{}/stderr.log"
    silent = range(8, 16)
    waits = [replace(gloo_timeout(rank), file=name.format(rank)) for rank in range(WORLD) if rank not in silent]
    files = {rank: (name.format(rank),) for rank in range(WORLD) if rank not in silent or (read and rank == 9)}
    exits = {} if code is None else dict.fromkeys(silent, code)
    rows = [replace(row, files=files.get(row.rank, ())) for row in table(WORLD, exits=exits)]
    return evidence(waits, rows, world=WORLD)


@pytest.mark.parametrize(
    ("read", "code", "failure_class"),
    [
        (False, None, "collective-hang-unattributed"),  # their node's record is lost
        (True, None, "collective-missing-rank"),
        (False, 1, "collective-hang-unattributed"),  # srun tells how they ended, which is how the others ended too
        (False, 0, "collective-missing-rank"),
    ],
)
def test_ranks_of_which_nothing_was_read_are_not_missing(read: bool, code: int | None, failure_class: str) -> None:
    verdict = attribute(unread(read=read, code=code))
    assert (verdict.failure_class, named(verdict)) == (failure_class, [])


@pytest.mark.parametrize(
    ("state", "failure_class"), [("CANCELLED", "preempt-cancel"), ("COMPLETED", "benign"), ("FAILED", "gpu-hw-lost")]
)
def test_a_kernel_line_that_a_job_prints_explains_nothing_that_is_explained(state: str, failure_class: str) -> None:
    text = "9: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."
    printed = fact("kernel.xid", text, "cause", hint="gpu-hw-lost", rank=9, time=HANG, data={"xid": 79})
    ended = fact("slurm.cancelled", "CANCELLED AT", hint="preempt-cancel", time=HANG + 60)
    facts = [printed, ended] if state == "CANCELLED" else [printed]
    run = evidence(facts, table(16), world=16, job=job(state=state, steps=()))
    verdict = attribute(run)
    assert (verdict.failure_class, named(verdict)) == (failure_class, [])


@pytest.mark.parametrize(
    ("kind", "hint", "failure_class"),
    [
        ("nccl.ib-completion", "net-ib-transport", "net-ib-transport"),
        ("cuda.nvlink", "nvlink-fabric", "nvlink-fabric"),
    ],
)
def test_a_rank_that_told_another_failure_is_not_the_silent_one(kind: str, hint: str, failure_class: str) -> None:
    word = fact(kind, "NET/IB : Got completion with error 12", "cause", hint=hint, rank=3)
    waits = [watchdog(rank, 41, pg="0") for rank in range(8) if rank != 3]
    verdict = attribute(evidence([word, *waits], table(8), world=8))
    assert (verdict.failure_class, named(verdict)) == (failure_class, [])


def test_a_process_that_the_heartbeat_monitor_ended_died_of_no_unknown_signal() -> None:
    stuck = fact("torch.heartbeat", "ProcessGroupNCCL's watchdog got stuck", "cause", hint="watchdog-stuck")
    failed = fact("elastic.failed", "failed (exitcode: -6)", "cause", hint="process-signal", data={"exitcode": -6})
    assert attribute(evidence([stuck, failed], world=8)).failure_class == "watchdog-stuck"


def test_the_class_of_a_bare_exit_is_that_of_the_only_words_that_name_no_rank() -> None:
    words = fact("cuda.oom", "torch.OutOfMemoryError: CUDA out of memory.", "cause", hint="cuda-oom")
    verdict = attribute(evidence([words], table(2, exits={0: 0, 1: 1}), world=2))
    assert (verdict.failure_class, named(verdict)) == ("cuda-oom", [1])


@pytest.mark.parametrize(
    ("waits", "loses", "suspects"),
    [
        ((0, 1, 3), (2,), [2]),
        ((0, 1), (2, 3), []),  # two of four: which came late?
        ((0,), (1,), []),
    ],
)
def test_the_only_one_that_lost_its_connection_in_place_of_waiting(
    waits: tuple[int, ...], loses: tuple[int, ...], suspects: list[int]
) -> None:
    facts = [gloo_timeout(rank) for rank in waits] + [peer_closed(rank) for rank in loses]
    verdict = attribute(evidence(facts, table(len(waits) + len(loses)), world=None))
    assert (verdict.failure_class, named(verdict)) == ("collective-hang-unattributed", [])
    assert [one.rank for one in verdict.suspects] == suspects
