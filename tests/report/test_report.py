"""The report object and its text; golden files are written anew only with NCCL_SLURM_UPDATE_GOLDEN=1."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.model import CLASSES, Culprit, Evidence, Fact, Gap, Rank, Verdict, numbered
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.report import ranks as rank_table
from nccl_slurm.report.build import FACTS_MAX, build
from nccl_slurm.report.line import comment
from nccl_slurm.report.lines import WIDTH
from nccl_slurm.report.pack import pack
from nccl_slurm.report.text import render
from nccl_slurm.report.words import happened, named
from tests.attribute.scenarios import SCENARIOS, evidence, exception, fact, job, table, watchdog

GOLDEN = Path(__file__).parent.parent / "golden"
SCHEMA: dict[str, Any] = json.loads(
    resources.files("nccl_slurm").joinpath("data/schemas/report-1.json").read_text("utf-8")
)


def made(run: Evidence) -> dict[str, Any]:
    verdict = attribute(run)
    report = build(run, verdict, recommend(verdict, run), "final")
    jsonschema.validate(report, SCHEMA)
    return report


def golden(name: str, text: str) -> str:
    path = GOLDEN / name
    if os.environ.get("NCCL_SLURM_UPDATE_GOLDEN"):
        path.write_text(text, "utf-8")
    return path.read_text("utf-8")


@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_golden(scenario: str) -> None:
    report = made(SCENARIOS[scenario]())
    text = f"{comment(report)}\n\n{render(report, ranks=True)}"
    assert golden(f"{scenario}.json", json.dumps(report, indent=1) + "\n") == json.dumps(report, indent=1) + "\n"
    assert golden(f"{scenario}.txt", text) == text


@pytest.mark.parametrize("status", ["pending", "settling", "live", "final"])
def test_empty_evidence_and_no_verdict(status: str) -> None:
    report = build(Evidence(), None, (), status)
    jsonschema.validate(report, SCHEMA)
    assert report["verdict"] is None and report["job"]["id"] is None
    assert f"Not judged yet ({status})" in render(report)


@pytest.mark.parametrize(
    ("clock", "told", "shown"),
    [
        ("utc", "utc", "Z ± 1 s,"),
        ("local", "local", "(zone not printed)"),
        ("local, year guessed", "local, year guessed", "(zone and year not printed)"),
        ("\x1b[31m", None, "Z ± 1 s,"),
        (None, None, "Z ± 1 s,"),
    ],
)
def test_what_of_a_time_was_not_printed_is_said(clock: str | None, told: str | None, shown: str) -> None:
    one = replace(exception(2, data={} if clock is None else {"clock": clock}), time=1.8e9, uncertainty_s=1.0)
    report = made(evidence([one], table(4), world=4))
    assert [fact["clock"] for fact in report["facts"]] == [told]
    assert shown in pack(report)


def test_facts_are_bounded_and_what_is_left_out_is_said() -> None:
    noise = [fact("nccl.env", f"line {number}", "context") for number in range(1000)]
    run = evidence([*noise, exception(1)], table(2), world=2)
    report = made(run)
    assert len(report["facts"]) == FACTS_MAX
    assert "ValueError: loss is nan" in {item["text"] for item in report["facts"]}
    assert {"source": "report", "why": "801 of 1001 facts are not printed here"} in report["gaps"]


def test_whatever_is_cited_is_printed() -> None:
    facts = numbered(fact("nccl.env", f"line {number}", "context") for number in range(500))
    verdict = Verdict(
        "unknown", "likely", "s", "unknown", suspects=[Culprit("w", 0, None, None, [f.id for f in facts])]
    )
    report = build(evidence(facts), verdict, (), "final")
    assert {item["id"] for item in report["facts"]} == {item.id for item in facts}


def test_silent_ranks_have_rows_and_a_gap() -> None:
    report = made(evidence(ranks=table(4)[:3], world=4))
    assert [row["rank"] for row in report["ranks"]] == [0, 1, 2, 3]
    assert report["ranks"][3]["last_line"] is None
    assert {"source": "ranks", "why": "1 of 4 ranks left no line, dump or exit status"} in report["gaps"]
    assert len(made(evidence(world=900_000))["ranks"]) == 0


def test_nodes_that_nobody_looked_at_are_listed() -> None:
    report = made(evidence(job=job(nodes=("n1", "n2", "n3"))))
    assert [(node["name"], node["record"]) for node in report["nodes"]][-1] == ("n3", "missing")


def test_transport_versions_timeouts() -> None:
    facts = [
        fact("nccl.network", "Using network IB", "context", rank=1, data={"network": "IB"}),
        fact("nccl.network", "Using network Socket", "context", rank=0, data={"network": "Socket"}),
        fact("nccl.version", "NCCL version 2.27.5", "context", data={"version": "2.27.5"}),
        fact("torch.version", "torch 2.13.0", "context", rank=0, data={"version": "2.13.0"}),
        watchdog(0, 7),
        watchdog(1, 7),
    ]
    report = made(evidence(facts))
    assert report["transport"] == {"IB": [1], "Socket": [0]}
    assert report["versions"] == {"nccl": {"2.27.5": []}, "torch": {"2.13.0": [0]}}
    assert report["timeouts"] == [{"layer": "collective", "seconds": 600.0, "from": ["f5", "f6"]}]
    bare = made(evidence())
    assert (bare["transport"], bare["versions"], bare["timeouts"]) == (None, None, None)


def test_damaged_times_become_null() -> None:
    rows = [Rank(0, last=1e300), Rank(1, last=-5.0), Rank(2, last=0.0)]
    report = made(evidence(ranks=rows))
    assert [row["last"] for row in report["ranks"]] == [None, None, "1970-01-01T00:00:00.000Z"]


def test_hostile_text_reaches_no_terminal() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e<script>'; DROP TABLE--"
    run = evidence(
        [exception(1, f"ValueError: {evil}", file=f"{evil}.log", host=None)],
        [replace(row, last_line=evil) for row in table(2)],
        world=2,
        job=job(name=evil, reason=evil),
    )
    text = render(made(run), ranks=True)
    assert "\x1b" not in text and "\u202e" not in text and "\x07" not in text
    assert "\\x1b]0;title\\x07" in text


def test_colour_only_if_asked() -> None:
    report = made(SCENARIOS["exception"]())
    assert "\x1b[" not in render(report)
    colored = render(report, color=True)
    assert "\x1b[31m" in colored and colored.count("\x1b[0m") >= 3


def test_sections_stand_in_order() -> None:
    text = render(made(SCENARIOS["node-fail"]()), ranks=True)
    titles = ["stalled first", "Culprits (proven)", "Evidence", "Reasoning", "Nodes", "Ranks", "Suggested command"]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert "run this yourself" in text


def test_evidence_shows_file_and_line() -> None:
    assert "slurm-42.out:50  rank 2  written by the job" in render(made(SCENARIOS["exception"]()))


def test_sixteen_thousand_ranks_stay_readable() -> None:
    rows = []
    for rank in range(16_384):
        behind = rank == 9_000
        rows.append(
            Rank(
                rank,
                host=f"n{rank // 8}",
                exit=-6,
                last=1000.0 + rank / 1e6,
                last_line=f"step 7 rank {rank} loss 0.{rank}",
                progress={"0": {"enqueued": 40 if behind else 41, "completed": 40}},
            )
        )
    run = evidence([watchdog(rank, 41, pg="0") for rank in range(64)], rows, world=16_384, job=job(nodes=()), nodes=())
    text = render(made(run), ranks=True)
    table_text = text[text.index("\nRanks (") :].split("\n\n")[0].splitlines()
    assert table_text[4].startswith("9000 ") and "n1125" in table_text[4]
    assert table_text[5].startswith("0-8999,9001-16383")
    assert len(text.splitlines()) < 150


def test_a_named_rank_of_which_nothing_was_observed_stands_on_top() -> None:
    report = made(evidence(ranks=table(4)[:3], world=4))
    person: dict[str, Any] = {"rank": 3, "host": None, "gpu": None, "why": "silent", "evidence": []}
    report["verdict"]["suspects"] = [person]
    rows, _, _ = rank_table.rows(report["ranks"], {}, named(report["verdict"]))
    assert [row[0] for row in rows] == ["3", "0-2"]
    assert "nothing observed" in rows[0][-1]
    assert "named ones on top" in render(report, ranks=True)
    rows, _, _ = rank_table.rows(report["ranks"], {})
    assert [row[0] for row in rows] == ["0-2", "3"]


def test_an_exit_status_alone_is_something() -> None:
    rows, _, _ = rank_table.rows(made(evidence(ranks=[Rank(0, exit=-11)]))["ranks"], {})
    assert rows[0][-1] == "no line"


def test_a_long_line_shows_what_it_was_kept_for() -> None:
    labels = "[default0]:[rank12]:[E827 00:09:34.227531918 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] "
    ecc = "Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered"
    dump = "Received a dump signal due to a collective timeout from this local rank. " + "x" * 600
    facts = [
        fact("cuda.ecc", labels + ecc, "cause", hint="gpu-hw-ecc", rank=1, data={"error": ecc[-40:]}),
        fact(
            "torch.dump-signal-local",
            f"{dump} Last enqueued NCCL work: 59957, last completed NCCL work: 59956.",
            rank=0,
        ),
        fact(
            "cuda.ecc",
            f"{'a' * 900} uncorrectable ECC error encountered {'b' * 900}",
            "cause",
            hint="gpu-hw-ecc",
            rank=2,
        ),
    ]
    text = render(made(evidence(facts, table(3), world=3)))
    assert "terminated\n      with exception: CUDA error: uncorrectable ECC error encountered" in text
    assert text.count("uncorrectable ECC error encountered") == 3  # why, evidence of both
    assert max(len(line) for line in text.splitlines() if line.startswith("    ")) <= WIDTH
    report = made(evidence(facts[:2], table(3), world=3))
    assert "last completed NCCL work: 59956" in render(report)


def test_of_lines_that_are_alike_one_is_printed_whole() -> None:
    line = f"Watchdog caught collective operation timeout: {'y ' * 100}ran for 600010 milliseconds"
    facts = [replace(watchdog(rank, 7), text=f"[Rank {rank}] {line}") for rank in range(4)]
    text = render(made(evidence(facts, table(4), world=4)))
    assert text.count("y " * 40) == 2  # the two lines of one fact
    assert all(f"[Rank {rank}] Watchdog" in text for rank in range(4))


def test_who_wrote_a_line_that_was_given_by_hand_is_not_claimed() -> None:
    xid = fact(
        "kernel.xid", "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.", "cause", file="n1/dmesg.log"
    )
    line = replace(xid, producer="kernel", host="n1", line=3)
    text = render(made(replace(evidence([line, exception(1)]), job=None)))
    assert "n1/dmesg.log:3  n1  given by hand, in the kernel's form" in text.replace("2026-11-18T11:16:40.000Z  ", "")
    assert "slurm-42.out:50  rank 1  written by the job" in text
    assert "written by the job" in render(made(evidence([line]))) and "given by" not in render(made(evidence([line])))


def test_a_next_step_tells_what_to_look_at() -> None:
    hang = [watchdog(rank, 7) for rank in range(4)]
    text = render(made(evidence(hang, table(4), world=4)))
    assert "  2. Run again with capture on all nodes; with torch from 2.4 on the flight recorder" in text
    assert "`nccl-slurm explain collective-hang-unattributed`" in text and "look at the report" not in text
    for scenario, step in (("cancelled", "nccl-slurm watch JOBID"), ("sigkill", "memory limits")):
        assert step in render(made(SCENARIOS[scenario]())).partition("Suggested next step\n")[2]
    assert "  1." not in render(made(SCENARIOS["node-fail"]())), "a node's own commands are the next step"


def test_what_changes_how_a_report_reads_stands_on_top() -> None:
    gap = Gap("runs", "logs of several: 1, 2; their ranks can't be told apart; give the folder of one")
    text = render(made(replace(evidence([exception(1)]), gaps=[gap])))
    assert text.index("\nNOTE runs: logs of several: 1, 2; ") < text.index("\nEvidence\n")


def test_clocks_of_torch_are_told_where_there_is_torch() -> None:
    ending = fact("slurm.ending", "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.", "context")
    with_slurm = replace(ending, producer="slurm", data={"seconds": 32})
    text = render(made(evidence([with_slurm])))
    assert "default" not in text
    assert "timeout of heartbeat: no line tells it; default" in render(made(evidence([with_slurm, watchdog(0, 7)])))


def test_what_did_not_stall_failed() -> None:
    stalled = {name for name in CLASSES if happened(name) == "stalled first"}
    assert {"collective-missing-rank", "gpu-hw-lost", "storage-stall"} <= stalled
    assert not stalled & {"gpu-hw-ecc", "resource-shm", "slurm-launch", "rank-exception", "slurm-node-fail"}


def test_one_is_one_and_a_dump_has_no_line() -> None:
    dump = fact("flight-recorder.status", "flight recorder: group 0", "context", file="n1/nccl_trace_rank_0", rank=0)
    report = made(evidence([replace(dump, line=None), exception(1)]))
    report["inferences"][0]["from"] = ["f1", "f2"]
    text = render(report)
    assert "n1/nccl_trace_rank_0  rank 0" in text and ":?" not in text
    assert "1 more facts" not in text


def test_ranks_are_sorted_by_progress_then_exit_then_time() -> None:
    def row(rank: int, exit: int | None, last: float | None, counts: tuple[int, int] | None) -> Rank:
        progress = {"0": {"enqueued": counts[0], "completed": counts[1]}} if counts else {}
        return Rank(rank, exit=exit, last=last, last_line=f"word-{chr(97 + rank)}", progress=progress)

    rows = [
        row(0, 0, 5.0, (41, 40)),
        row(1, -15, 4.0, (41, 40)),
        row(2, 1, 3.0, (41, 40)),
        row(3, 1, 2.0, (41, 40)),
        row(4, -15, 9.0, (40, 40)),
    ]
    report = made(evidence(ranks=[*rows, Rank(5)], world=6))
    lines, _, _ = rank_table.rows(report["ranks"], {})
    assert [line[0] for line in lines] == ["4", "3", "2", "1", "0", "5"]
    assert "nothing observed" in lines[-1]


def test_host_named_like_a_number_stays_as_written() -> None:
    node = replace(evidence().nodes[0], name="1e5")
    assert "1e5" in render(made(evidence(nodes=[node], job=job(nodes=("1e5",)))))


def test_fact_without_a_file_shows_its_producer() -> None:
    line = Fact(
        "kernel.xid", "NVRM: Xid (PCI:0000:a1:00): 79", "kernel", "cause", "root", hint="gpu-hw-lost", host="n1"
    )
    assert "kernel  n1  written by root" in render(made(evidence([line])))
