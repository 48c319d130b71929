"""What is told beside the verdict: it hints at settings, names nobody as a culprit and never changes a verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.attribute.notes import notes
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Evidence, Fact, Gap, Verdict, numbered
from nccl_slurm.report.text import render
from tests.attribute.scenarios import cancelled, evidence, exception, gloo_timeout, job, table, told, watchdog
from tests.info.lines import ROWS, channel, info, init, read
from tests.info.test_timeout import GAVE_UP
from tests.report.test_report import made

RULES = ("init.", "place.", "path.", "version.", "setting.", "timeout.")


def said(run: Evidence) -> list[tuple[str, str]]:
    return [(step.rule, step.text) for step in attribute(run).inferences if step.rule.startswith(RULES)]


def env(rank: int, value: str) -> Fact:
    return info(rank, f"NCCL_IB_HCA set by environment to {value}")


HEARTBEAT = (
    "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:1000] ProcessGroupNCCL's watchdog got stuck for 480 "
    "seconds without making progress in monitoring enqueued collectives."
)
MISSING = [*(watchdog(rank, 41, pg="0") for rank in range(4) if rank != 3), told(3, 2, 40, 40)]


@pytest.mark.parametrize(
    ("facts", "rule", "words"),
    [
        (
            [init(rank, phase) for rank in range(4) for phase in ("START", "COMPLETE") if (rank, phase[0]) != (3, "C")],
            "init.stopped",
            "Communicator 0xc0 of 4 ranks: init began on 4, finished on 3; open on rank 3 (n2).",
        ),
        (
            [init(rank, "START") for rank in range(3)],
            "init.stopped",
            "Communicator 0xc0 of 4 ranks: init began on 3, finished on none; open on ranks 0-2; no Init line of its "
            "rank 3.",
        ),
        (
            [info(rank, f"Using network {'Socket' if rank > 3 else 'IB'}") for rank in range(6)],
            "path.differs",
            "Nodes differ in the network: IB on n[1-2], Socket on n3 (odd: n3). A hint, no proof.",
        ),
        (
            [channel(rank, rank + 1, "NET/Socket/0" if rank == 5 else "NET/IB/0/GDRDMA") for rank in (1, 3, 5)],
            "path.differs",
            "Nodes differ in the path between nodes: NET/IB/GDRDMA on n[1-2], NET/Socket on n3 (odd: n3). First: 5 -> "
            "6 via NET/Socket. A hint, no proof.",
        ),
        (
            [env(rank, "mlx4" if rank == 2 else "mlx5") for rank in range(4)],
            "setting.differs",
            "NCCL_IB_HCA differs: mlx5 on ranks 0-1,3, mlx4 on rank 2 (n2) (odd: rank 2 (n2)). A hint, no proof.",
        ),
        (
            [info(rank, f"NCCL version 2.2{rank // 3}.5+cuda12.4") for rank in range(4)],
            "version.differs",
            "The version of nccl differs: 2.20.5 on ranks 0-2, 2.21.5 on rank 3 (n2) (odd: rank 3 (n2)). A hint, no "
            "proof.",
        ),
        (
            [read("export NCCL_TIMEOUT=3600")],
            "timeout.unread",
            "NCCL_TIMEOUT is set, and neither NCCL nor torch reads it: the limit is timeout= of init_process_group.",
        ),
        (
            [read("NCCL_IB_TIMEOUT=22")],
            "timeout.retries",
            "A queue pair gives up by its own clock: 4.096 µs × 2^22 × 7 retries = 120 s (137 s with the first "
            "attempt).",
        ),
        (
            [read("NCCL_IB_TIMEOUT=25"), watchdog(0, 7)],
            "timeout.hidden",
            "A queue pair may retry for 962 s, longer than the process group waits (600 s): a broken path then shows "
            "as a collective's timeout.",
        ),
    ],
)
def test_what_is_told(facts: list[Fact], rule: str, words: str) -> None:
    run = evidence(facts, table(4), job=job(nodes=("n1", "n2", "n3")))
    assert (rule, words) in said(run)
    verdict = attribute(run)
    assert not verdict.culprits and not verdict.suspects
    step = next(step for step in verdict.inferences if step.rule == rule)
    assert len(words) <= 320  # the text form shows no more
    assert step.facts and set(step.facts) <= {fact.id for fact in run.facts}


@pytest.mark.parametrize(
    ("facts", "rule", "words"),
    [
        (
            [watchdog(rank, 41) for rank in range(4)],
            "timeout.layer",
            "collective, set by timeout= of init_process_group",
        ),
        ([gloo_timeout(0)], "timeout.layer", "after 10 s is that of the collective"),
        (
            [read(HEARTBEAT)],
            "timeout.layer",
            "after 480 s is that of the heartbeat, set by TORCH_NCCL_HEARTBEAT_TIMEOUT",
        ),
        # the heartbeat may be lost while a group that timed out is torn down
        ([read(HEARTBEAT), watchdog(0, 41)], "timeout.layer", "after 600 s is that of the collective"),
        # a layer below ends the wait of those above
        (
            [watchdog(0, 41), read(GAVE_UP)],
            "timeout.layer",
            "InfiniBand retries, set by NCCL_IB_TIMEOUT. Look at the link",
        ),
        (
            [read("torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/9")],
            "timeout.layer",
            "after 12 s is that of the store",
        ),
        ([read("RendezvousTimeoutError")], "timeout.layer", "of the rendezvous, set by join_timeout"),
        # somebody is proven to have stopped
        (MISSING, "timeout.leave", "a longer one would only have made the others wait longer"),
        ([cancelled("TIME LIMIT")], "timeout.slurm", "Slurm's time limit (sbatch --time)"),
    ],
)
def test_one_setting_of_one_layer(facts: list[Fact], rule: str, words: str) -> None:
    counts = dict.fromkeys(range(4), (41, 40)) | {3: (40, 40)} if facts is MISSING else None
    state = "TIMEOUT" if rule == "timeout.slurm" else "FAILED"
    steps = said(evidence(facts, table(4, progress=counts), world=4, job=job(state)))
    spoken = [(name, text) for name, text in steps if name in ("timeout.layer", "timeout.leave", "timeout.slurm")]
    assert len(spoken) == 1
    assert spoken[0][0] == rule and words in spoken[0][1]
    assert "NCCL_TIMEOUT" not in spoken[0][1] and len(spoken[0][1]) <= 320


@pytest.mark.parametrize("facts", [[], [exception(1)], [env(rank, "mlx5") for rank in range(4)], [cancelled()]])
def test_nothing_to_tell(facts: list[Fact]) -> None:
    assert said(evidence(facts, table(4), world=4)) == []


@pytest.mark.parametrize("source", ["nccl.init-complete", "n1: nccl.init-complete"])
def test_absent_lines_mean_nothing_where_lines_were_left_out(source: str) -> None:
    facts = [init(rank, "START") for rank in range(4)]
    assert said(evidence(facts, table(4), world=4))
    assert not said(evidence(facts, table(4), world=4, gaps=[Gap(source, "3 more lines of this kind are left out")]))


def test_hosts_are_the_runs_own() -> None:
    """A node may be called by its full name; a host outside the run is not compared."""
    networks = [
        info(0, "Using network IB"),
        info(2, "Using network IB"),
        info(3, "Using network IB", host="n2.example"),
    ]
    stranger = replace(info(0, "Using network Socket", host="n9"), rank=None)
    assert said(evidence([*networks, stranger], table(4), world=4)) == []
    assert said(evidence([*networks, stranger], table(4), world=4, job=None))


def test_many_differences_are_few_notes() -> None:
    facts = [
        info(rank, f"NCCL_X{number} set by environment to {rank}") for number in range(50) for rank in range(4)
    ] + [init(rank, "START", shared=f"commId 0x{comm}", comm=f"0x{comm}") for comm in range(50) for rank in range(4)]
    steps = said(evidence(facts, table(4), world=4))
    assert len(steps) < 20
    assert any("44 more versions or settings differ" in text for _, text in steps)
    assert any("44 more communicators" in text for _, text in steps)


def test_the_report_tells_them_apart_from_the_proof() -> None:
    facts = [
        *(watchdog(rank, 41) for rank in range(4)),
        *(info(r, f"Using network {'IB' if r else 'Socket'}") for r in range(4)),
    ]
    run = evidence(facts, table(4), world=4)
    text = render(made(run), ranks=True)
    reasoning, beside = text.index("\nReasoning"), text.index("\nBeside the verdict")
    assert reasoning < beside < text.index("Nodes differ in the network")
    assert "Using network" not in text[: text.index("\nReasoning")]  # no evidence of the verdict
    assert "timeout of collective: 600 s (rank_0.log:10)" in text
    assert "timeout of heartbeat: no line tells it; default: 480 s" in text
    assert "timeout of InfiniBand retries: no line tells it" in text
    header = next(line for line in text.splitlines() if line.startswith("ranks "))
    assert header.split()[-1] == "network"


WORDS = st.sampled_from(["IB", "Socket", "22", "0xa", "0xb", "\x1b[31m", "", "x" * 300, "<script>"]) | st.text(
    max_size=8
)
KEYS = sorted(
    {key for row in ROWS.rows for key in row.regex.groupindex} | {"writer_pid", "split", "raised_at", "raised_in"}
)
FACTS = st.builds(
    Fact,
    kind=st.sampled_from([row.id for row in ROWS.rows if row.role == "context" or "timeout" in row.id]),
    text=WORDS,
    producer=st.sampled_from(["nccl", "torch", "ofi"]),
    role=st.just("context"),
    trust=st.just("job"),
    file=st.none() | st.sampled_from(["a", "b"]),
    line=st.none() | st.integers(1, 9),
    rank=st.none() | st.integers(0, 5),
    host=st.none() | st.sampled_from(["n1", "n2", "n9", "x y", ""]),
    data=st.dictionaries(st.sampled_from(KEYS), WORDS | st.integers(-2, 10**18) | st.booleans(), max_size=8),
)


@given(st.lists(FACTS, max_size=12).map(numbered))
def test_never_raises_and_changes_no_verdict(facts: tuple[Fact, ...]) -> None:
    run = replace(evidence([], table(4), world=4), facts=facts)
    found = notes(Scene(run), Verdict("unknown", "possible", "", "unknown"))
    assert all(step.rule.startswith(RULES) for step in found)
    text = render(made(run), ranks=True)
    assert all(character.isprintable() or character == "\n" for character in text)
