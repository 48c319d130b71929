"""Ranks that are slow all along: what detectors of pace report, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.cli.logs import report_of_logs
from nccl_slurm.model import Evidence, Fact, Job

_MEGATRON = "0: INFO:megatron.core.utils:[2026-11-30 10:{:02}] | MnRtt/Rnk: {}.50ms/{} | MxRtt/Rnk: {}.20ms/{} | MnPwr"
_WARNING = "STRAGGLER DETECTION WARNING: Some GPUs {}. Affected ranks: {}"
_WORSE, _DROPPED = "have worse relative performance", "performance dropped"


def megatron(*slowest: int, ms: int = 900) -> str:
    return "\n".join(_MEGATRON.format(at, 400, 7, ms, rank) for at, rank in enumerate(slowest))


def warnings(*named: str, what: str = _WORSE) -> str:
    return "\n".join(_WARNING.format(what, one) for one in named)


def report(folder: Path, text: str) -> dict[str, Any]:
    (folder / "job.out").write_text(text + "\n")
    found: dict[str, Any] = report_of_logs(str(folder))["verdict"]
    return found


@pytest.mark.parametrize(
    "text",
    [
        megatron(21, 21, 21),
        megatron(3, 21, 21, 21),
        megatron(*range(8), *[21] * 8),
        warnings("[21]", "[21]"),
        warnings("[76, 21]", "[21, 13]", "[21]", "[9]"),
        warnings("{StragglerId(rank=21, node='n2')}", "{StragglerId(rank=21, node='n2')}"),
        warnings("[21]", "[21]", what=_DROPPED),
    ],
)
def test_who_is_named_again_and_again_is_a_suspect(tmp_path: Path, text: str) -> None:
    found = report(tmp_path, text)
    assert (found["class"], found["confidence"], found["action"]) == ("straggler", "likely", "investigate")
    assert [one["rank"] for one in found["suspects"]] == [21] and not found["culprits"]
    assert "rank 21" in found["summary"]


@pytest.mark.parametrize(
    "text",
    [
        megatron(21, 21, 21, ms=520),  # a pipeline's last stage
        megatron(21),
        megatron(1, 2, 3, 4, 5, 6, 7, 8),
        megatron(21, 21, 1, 2, 3, 4, 5, 6),
        megatron(*[21] * 8, *range(8)),
        warnings("[21]"),
        warnings("[21]", "[3]", "[5]", "[7]", "[21]"),
        warnings("[" + ", ".join(map(str, range(9))) + "]", "[" + ", ".join(map(str, range(9))) + "]"),
        "\n".join(f" iteration {n}/ 500 | elapsed time per iteration (ms): 126995.3 | lm loss: 2.3" for n in range(9)),
    ],
)
def test_slow_for_a_while_or_all_alike_is_nothing(tmp_path: Path, text: str) -> None:
    found = report(tmp_path, text)
    assert found["class"] != "straggler" and not found["culprits"] and not found["suspects"]


def test_a_detector_that_ends_the_run_says_why(tmp_path: Path) -> None:
    stop = "".join(f"[rank{rank}]: ERROR:nvrx:Detected stragglers. Terminating training...\n" for rank in range(4))
    found = report(tmp_path, warnings("[2]") + "\n" + stop)
    assert (found["class"], found["action"]) == ("straggler", "investigate")
    assert [one["rank"] for one in found["suspects"]] == [2] and not found["culprits"]


def test_exits_that_the_detector_asked_for_accuse_nobody(tmp_path: Path) -> None:
    text = warnings("[2]") + "\n[rank0]: ERROR:nvrx:Detected stragglers. Terminating training...\n"
    text += "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n1: task 2: Exited with exit code 1\n"
    found = report(tmp_path, text)
    assert (found["class"], found["culprits"]) == ("straggler", [])


def facts(count: int = 3, file: str = "job.out") -> tuple[Fact, ...]:
    data = {"shortest_ms": 400, "fastest": 7, "longest_ms": 900, "slowest": 2}
    said = [
        Fact("framework.pace", "MnRtt", "framework", "context", "job", id=f"p{n}", file=file, line=n, data=data)
        for n in range(count)
    ]
    return tuple(said)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "TIMEOUT"])
def test_beside_an_end_it_is_a_note(state: str) -> None:
    verdict = attribute(Evidence(job=Job("7", 7, "c", state=state, nodes=("n1",)), facts=facts(), world_size=8))
    assert verdict.failure_class != "straggler" and not verdict.suspects and not verdict.culprits
    assert [one.rule for one in verdict.inferences if one.rule.startswith("pace")] == ["pace.slow"]


def test_a_rank_that_the_run_does_not_have_is_not_named() -> None:
    verdict = attribute(Evidence(facts=facts(), world_size=2))
    assert verdict.failure_class != "straggler" and "rank 2" not in verdict.summary


def test_the_node_is_not_named_by_the_jobs_own_words() -> None:
    job = Job("7", 7, "c", state="RUNNING", nodes=("n1", "n2"))
    verdict = attribute(Evidence(job=job, facts=facts(), world_size=8))
    assert verdict.failure_class == "straggler" and [one.host for one in verdict.suspects] == [None]
