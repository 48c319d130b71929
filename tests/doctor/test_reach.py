"""Ways to nodes: a node that hangs, fails or is busy costs itself; a step in somebody's job is never made to fail."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from nccl_slurm.doctor import reach, sources
from nccl_slurm.doctor.observation import unpacked
from nccl_slurm.doctor.reach import Answer, Here, IdleJob, JobStep, NoPlace, Unreached, ask_all


class Told:
    """A way that says what it is told to."""

    def __init__(self, name: str, answer: bytes | Exception, wait_s: float = 0.0) -> None:
        self.name, self.answer, self.wait_s = name, answer, wait_s
        self.asked: list[str] = []

    def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
        self.asked.append(node)
        time.sleep(self.wait_s)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def asked(node: str, *ways: Told) -> Answer:
    (answer,) = ask_all([node], lambda _: ways, lambda _: b"", limit_s=1.0)
    return answer


def test_ways_are_tried_in_turn() -> None:
    bad, good, never = Told("job", Unreached("no")), Told("ssh", b"yes"), Told("local", b"other")
    assert asked("n1", bad, good, never).way == "ssh"
    assert not never.asked


@pytest.mark.parametrize(
    ("ways", "why", "tried"),
    [
        ([], "there is no way to it", False),
        ([NoPlace("busy")], "busy", False),
        ([Unreached("no route")], "no route", True),
        ([ZeroDivisionError("a fault of ours")], "a fault of ours", True),
        ([NoPlace("busy"), Unreached("no route")], "busy (0); no route (1)", True),
    ],
)
def test_why_nothing_came(ways: Sequence[Exception], why: str, tried: bool) -> None:
    answer = asked("n1", *(Told(str(at), error) for at, error in enumerate(ways)))
    assert why in answer.why and answer.tried == tried and not answer.data


def test_an_answer_that_is_too_large_is_no_fault_of_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "_MAX_BYTES", 1 << 10)
    (answer,) = ask_all(["n1"], lambda _: [Here(sys.executable)], lambda _: b"print('x' * 4096)", limit_s=20.0)
    assert "larger than" in answer.why and not answer.tried


def test_a_node_that_hangs_costs_itself() -> None:
    slow, quick = Told("ssh", b"late", 1.5), Told("ssh", b"soon", 0.01)
    nodes = [f"n{at}" for at in range(60)]
    start, when = time.monotonic(), {}
    for answer in ask_all(nodes, lambda node: [slow if node == "n0" else quick], lambda _: b"", limit_s=9, at_once=4):
        when[answer.node] = time.monotonic() - start
    assert len(when) == 60 and max(at for node, at in when.items() if node != "n0") < 1.4 < when["n0"]


def test_never_more_at_once_than_allowed() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    class Counting(Told):
        def ask(self, node: str, program: bytes, limit_s: float) -> bytes:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            time.sleep(0.01)
            with lock:
                now[0] -= 1
            return b"x"

    way = Counting("ssh", b"")
    assert len(list(ask_all(list(map(str, range(50))), lambda _: [way], lambda _: b"", limit_s=1, at_once=5))) == 50
    assert most[0] == 5


FIELDS = {"n1": {"Partitions": "debug,gpu", "RealMemory": "64000", "Gres": "gpu:h100:8(S:0-1),shard:16"}}


def test_the_job_on_an_idle_node() -> None:
    words = IdleJob("/usr/bin", "", FIELDS, ["gpu"]).command("n1", 45.0)
    for word in ("--gres=gpu:h100:8", "--partition=gpu", "--time=1", "--immediate=10", "--mem=512", "--nodelist=n1"):
        assert word in words
    with pytest.raises(NoPlace):
        IdleJob("/usr/bin", "", FIELDS, ["other"]).command("n1", 45.0)


def test_the_step_beside_a_job() -> None:
    words = JobStep("/usr/bin", "", 42, {}).command("n1", 45.0)
    assert {"--overlap", "--jobid=42", "--kill-on-bad-exit=0", "--nodes=1"} <= set(words)
    assert not any(word.startswith(("--gres", "--exclusive")) for word in words)
    assert words[-1].endswith("exit 0")
    assert any(word.startswith("--export=") and "NCCL_SLURM_WATCH=on" in word for word in words)  # our task_prolog


@pytest.mark.parametrize("gres", ["", "(null)", "shard:4", "nic:2"])
def test_no_gpus_are_asked_for_where_there_are_none(gres: str) -> None:
    assert reach.gpus_of(gres) == ""


def srun(folder: Path, script: str) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "srun").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "srun").chmod(0o755)
    return str(folder)


#: As srun does: options first, then the program and its words.
PASSES_ON = 'while [ "${1#-}" != "$1" ]; do shift; done; exec "$@"'


def test_a_node_answers_through_srun(tmp_path: Path) -> None:
    way = IdleJob(srun(tmp_path, PASSES_ON), "", FIELDS, ["gpu"])
    data = way.ask("n1", sources.program(sources.manifest(["memory"])), 20.0)
    assert "MemTotal" in unpacked(data, "n1", "job").text("memory")


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("echo 'srun: error: Unable to allocate resources: Requested nodes are busy' >&2; exit 1", NoPlace),
        ("echo 'srun: error: Unable to create step for job 42: Job/step already completing or completed' >&2", NoPlace),
        ("echo 'srun: error: Task launch failed: Invalid job credential' >&2; exit 1", Unreached),
        ("echo 'srun: error: Unable to create step: x' >&2; exit 1", Unreached),
        ("exit 0", Unreached),
    ],
)
def test_what_srun_says(tmp_path: Path, script: str, kind: type[Unreached]) -> None:
    with pytest.raises(Unreached) as caught:
        IdleJob(srun(tmp_path, script), "", FIELDS, ["gpu"]).ask("n1", b"", 1.0)
    assert type(caught.value) is kind
    assert str(caught.value).count("srun:") == 1  # it begins its lines with its own name


def test_a_step_that_takes_too_long_is_left_and_a_job_of_ours_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "_SPARE_S", 0.2)
    monkeypatch.setattr(reach, "_IMMEDIATE_S", 0)
    left = tmp_path / "left"
    folder = srun(tmp_path / "bin", f"trap 'echo ended >>{left}; exit 1' TERM; sleep 1.2 & wait; echo over >>{left}")
    with pytest.raises(Unreached, match="no answer within"):
        IdleJob(folder, "", FIELDS, ["gpu"]).ask("n1", b"", 0.1)
    assert left.read_text() == "ended\n"
    with pytest.raises(Unreached, match="no answer within"):
        JobStep(folder, "", 42, {}).ask("n1", b"", 0.1)
    for _ in range(300):
        if left.read_text() != "ended\n":
            break
        time.sleep(0.02)
    assert left.read_text() == "ended\nover\n"


def test_here() -> None:
    import sys

    data = Here(sys.executable).ask("me", sources.program(sources.manifest(["memory"])), 20.0)
    assert "MemTotal" in unpacked(data, "me", "local").text("memory")


def test_no_python_is_said(tmp_path: Path) -> None:
    import subprocess

    text = (
        reach.feed(5.0).replace("/usr/bin/python3", str(tmp_path / "none")).replace("/usr/local/bin/python3", "/none")
    )
    text = text.replace("/opt/bin/python3", "/none")
    done = subprocess.run(["/bin/sh", "-c", text], input=b"print(1)", capture_output=True)
    assert done.returncode == 0
    assert b"no Python 3.8" in done.stdout
