"""Looks one after the other: what moves, what is silent, whose counts stand still."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nccl_slurm.attribute.live import Quiet, judge
from nccl_slurm.live.look import Answer, File, Look, Looks, evidence_of
from nccl_slurm.model import Fact, Job, Parsed

JOB = Job(id="5", raw_id=5, cluster="c", state="RUNNING", nodes=("n1", "n2"))
NODE = {"facts": [], "ranks": [], "gaps": [], "files": [], "world_size": 4, "bytes_read": 0, "lines_unknown": 0}


def rank(number: int, **more: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("host", "local_rank", "gpu", "pid", "exit", "first", "last", "uncertainty_s", "last_line"))
    return {**empty, "rank": number, "progress": {}, "files": [], **more}


def look(at: float, *, lines: dict[int, str], counts: dict[int, tuple[int, int]] | None = None, **more: Any) -> Look:
    """Two ranks a node. ``counts``: enqueued, completed, each in a file of its rank."""
    answers, files = {}, []
    for node, own in (("n1", (0, 1)), ("n2", (2, 3))):
        ranks, facts = [], []
        for number in own:
            if counts and number in counts:
                pair = dict(zip(("enqueued", "completed"), counts[number], strict=True))
                name = f"nccl_trace_rank_{number}"
                dump = Fact("flight-recorder.status", "x", "flight-recorder", "context", "job", file=name, rank=number)
                facts.append({**dump.to_json(), "data": {**pair, "started": pair["enqueued"]}})
                ranks.append(rank(number, last_line=lines.get(number), progress={"0": pair}, files=[name]))
                files.append(
                    File(f"{node}/{name}", sum(counts[number]), float(sum(counts[number])), more.get("age", 0.0))
                )
            else:
                ranks.append(rank(number, last_line=lines.get(number)))
        answers[node] = Answer({**NODE, "ranks": ranks, "facts": facts})
    return Look(at, evidence_of(JOB, answers, Parsed()), files)


def steps(step: int, *, but: int | None = None, stuck: int = 0) -> dict[int, str]:
    return {number: f"step {stuck if number == but else step}" for number in range(4)}


def last(looks: Looks, *given: Look) -> Quiet:
    return [looks.see(one) for one in given][-1]


def test_all_go_on() -> None:
    quiet = last(Looks(30.0), *(look(10.0 * n, lines=steps(n)) for n in range(5)))
    assert quiet.moving == {0, 1, 2, 3} and not quiet.ranks and quiet.all_s is None and quiet.written
    assert judge(look(50.0, lines=steps(5)).evidence, quiet)[1].failure_class == "benign"


def test_one_look_tells_no_rhythm() -> None:
    quiet = last(Looks(30.0), look(0.0, lines=steps(0)))
    assert quiet == Quiet()


def test_a_rank_that_stopped_while_others_go_on() -> None:
    given = [look(10.0 * n, lines=steps(n, but=2, stuck=min(n, 3))) for n in range(12)]
    quiet = last(Looks(30.0), *given)
    assert set(quiet.ranks) == {2} and quiet.ranks[2] == 80.0 and quiet.moving == {0, 1, 3}
    assert quiet.longest_s == 10.0 and quiet.all_s is None


def test_a_rank_that_never_printed_is_not_silent() -> None:
    quiet = last(Looks(30.0), *(look(10.0 * n, lines={0: f"step {n}"}) for n in range(12)))
    assert quiet.moving == {0} and not quiet.ranks


def test_all_silent_beyond_their_rhythm() -> None:
    given = [look(20.0 * n, lines=steps(min(n, 3))) for n in range(12)]
    looks = Looks(30.0)
    told = [looks.see(one).all_s for one in given]
    assert told[:6] == [None] * 6 and told[6] == 60.0 and told[-1] == 160.0  # three times 20 s after the last at 60 s


def test_counts_that_rose_and_stand_still() -> None:
    moving = [look(10.0 * n, lines={}, counts=dict.fromkeys(range(4), (n, n))) for n in range(4)]
    hung = {0: (4, 3), 1: (4, 3), 2: (3, 3), 3: (4, 3)}
    looks = Looks(30.0)
    last(looks, *moving)
    early = looks.see(look(40.0, lines={}, counts=hung))
    assert early.still_s is None
    still = look(90.0, lines={}, counts=hung)
    quiet = looks.see(still)
    assert quiet.still_s == 50.0 and quiet.rose
    evidence, verdict = judge(still.evidence, quiet)
    assert [(one.rank, one.host) for one in verdict.culprits] == [(2, "n2")] and evidence.job == JOB


def test_where_a_node_gave_no_answer_nobody_is_proven() -> None:
    hung = {0: (4, 3), 1: (4, 3), 2: (3, 3), 3: (4, 3)}
    looks = Looks(30.0)
    last(looks, *(look(10.0 * n, lines={}, counts=dict.fromkeys(range(4), (n, n))) for n in range(4)))
    looks.see(look(40.0, lines={}, counts=hung))
    quiet = looks.see(replace(look(90.0, lines={}, counts=hung), whole=False))
    assert quiet.still_s == 50.0 and not quiet.rose


def test_old_dumps_prove_nothing() -> None:
    """Each may have been written at its own moment, and no count was seen to rise."""
    hung = {0: (4, 3), 1: (4, 3), 2: (3, 3), 3: (4, 3)}
    given = look(0.0, lines={}, counts=hung, age=600.0)
    quiet = last(Looks(30.0), given)
    assert quiet.still_s == 600.0 and not quiet.rose
    verdict = judge(given.evidence, quiet)[1]
    assert not verdict.culprits and [one.rank for one in verdict.suspects] == [2]


def test_a_node_without_an_answer_is_a_gap_and_no_silence() -> None:
    answers = {"n1": Answer({**NODE, "ranks": [rank(0), rank(1)]}), "n2": Answer(None, "no answer within 45 s")}
    evidence = evidence_of(JOB, answers, Parsed())
    assert [(gap.source, gap.why) for gap in evidence.gaps] == [("n2: ranks' files", "no answer within 45 s")]


def test_output_that_tells_no_rank_has_a_rhythm_too() -> None:
    looks, told = Looks(30.0), []
    for number in range(12):
        size = min(number, 3)
        file = File("/home/a/slurm-5.out", size, float(size), 0.0 if number <= 3 else 10.0 * (number - 3))
        told.append(looks.see(Look(10.0 * number, evidence_of(JOB, {}, Parsed()), [file])))
    assert told[3].written and told[3].all_s is None
    assert told[-1].all_s == 80.0 and not told[-1].ranks


def test_ras_counts_that_differ_in_one_look_alone_are_none() -> None:
    def ras(at: float, count: int) -> Look:
        data = {"comm_hash": "fa", "op": "AllReduce", "group_rank": 2, "count": count, "lead": -1}
        fact = Fact("nccl.ras-rank", "x", "nccl", "context", "job", file="ras", data=data)
        return Look(at, evidence_of(JOB, {"n1": Answer({**NODE, "facts": [fact.to_json()]})}, Parsed()))

    looks = Looks(30.0)
    assert looks.see(ras(0.0, 5)).ras_s == {} and looks.see(ras(40.0, 6)).ras_s == {}
    assert looks.see(ras(80.0, 6)).ras_s == {"f1": 40.0}
