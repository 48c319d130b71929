"""The worker as the wrapper starts it, on pretended machines: a record is written and shipped whatever is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nccl_slurm.capture import child, command, spool, worker
from nccl_slurm.capture.conf import from_environment
from nccl_slurm.parse.patterns import DATA, compile_rows
from tests.capture import smi
from tests.capture.machine_tree import BOOT, EARLIER_BOOT, plain_machine
from tests.hooks.site import EPILOG, PROLOG

PACKAGE = Path(__file__).resolve().parents[2] / "nccl_slurm"
SCHEMA = json.loads((PACKAGE / "data/schemas/node-record-1.json").read_text(encoding="utf-8"))
NEW_GPU, OTHER_GPU = "00000000:A1:00.0", "00000000:B3:00.0"
START = 1700000000


def oldest_python() -> str | None:
    """A python3.8 that starts (a pyenv shim may not)."""
    for path in [*map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python3.8")), shutil.which("python3.8")]:
        if path and subprocess.run([path, "-V"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def pythons() -> list[Any]:
    """The one that runs the tests, and the oldest that node code claims."""
    oldest = oldest_python()
    absent = [] if oldest else [pytest.mark.skip(reason="no python3.8 here")]
    marks = [pytest.mark.node_python, *absent]
    return [pytest.param(sys.executable, id="this"), pytest.param(oldest, id="oldest", marks=marks)]


@dataclass
class Node:
    """One pretended machine with its spool, shared folder, programs and kernel log."""

    folder: Path
    python: str = sys.executable
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.spool, self.shared = self.folder / "spool", self.folder / "shared"
        self.root = plain_machine(self.folder / "machine")
        for path in (self.spool, self.shared / "new", self.shared / "tmp", self.folder / "bin"):
            path.mkdir(parents=True)
        rows = self.folder / "rows.json"
        rows.write_text(compile_rows(Path(DATA, "patterns.toml").read_text(encoding="utf-8")))
        self.kernel_log = self.folder / "kernel.log"
        self.kernel_log.touch()
        self.env = {
            "PATH": f"{self.folder}/bin:/usr/bin:/bin",
            "NCCL_SLURM_SPOOL": str(self.spool),
            "NCCL_SLURM_SHARED": str(self.shared),
            "NCCL_SLURM_SYSROOT": str(self.root),
            "NCCL_SLURM_KERNEL_LOG": str(self.kernel_log),
            "NCCL_SLURM_PATTERNS": str(rows),
        }

    def has_gpus(self, *gpus: str) -> None:
        self.program("nvidia-smi", f"[ \"$1\" = nvlink ] && exit 3\ncat <<'X'\n{smi.log(*gpus)}X")

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def starts(self, *, job: str = "42", at: int = START, boot: str = BOOT, **more: str) -> Path:
        run = self.spool / f"{job}.{at}"
        run.mkdir(mode=0o711)
        (run / "root").mkdir(mode=0o700)
        (run / "user").mkdir(mode=0o700)
        if os.geteuid() == 0:
            os.chown(run / "user", 65534, 65534)
        self._known(run / "root" / "prolog.env", {**PROLOG, "SLURM_JOB_ID": job, **more}, at, boot)
        return run

    def ends(self, run: Path, *, at: int = START + 60, boot: str = BOOT, **more: str) -> None:
        env = {**EPILOG, "SLURM_JOB_ID": run.name.split(".")[0], **more}
        self._known(run / "root" / "epilog.env", env, at, boot)
        (run / "closed").write_text("epilog\n")

    def _known(self, path: Path, env: dict[str, str], at: int, boot: str) -> None:
        uid = str(65534 if os.geteuid() == 0 else os.geteuid())
        env = {**env, "SLURM_JOB_UID": uid, "SLURM_JOB_GID": uid}
        path.write_text(f"time={at}\nboot_id={boot}\n" + "".join(f"{name}={value}\n" for name, value in env.items()))

    def writes(self, run: Path, name: str, text: str) -> None:
        path = run / "user" / name
        path.write_text(text)
        if os.geteuid() == 0:
            os.chown(path, 65534, 65534)

    def kernel_says(self, at: float, line: str) -> None:
        with self.kernel_log.open("a") as file:
            file.write(f"{at} n1 kernel: {line}\n")

    def work(self, verb: str, *arguments: Path, status: int = 0, **env: str) -> str:
        argv = [self.python, "-I", "-S", str(PACKAGE / "capture" / "main.py"), verb, *map(str, arguments)]
        done = subprocess.run(argv, env={**self.env, **env}, capture_output=True, text=True, check=False, timeout=120)
        assert "Traceback" not in done.stderr and done.returncode == status, done.stderr
        return done.stderr

    def record(self, run: Path) -> dict[str, Any]:
        """What was handed over: it must fit the schema."""
        path = self.shared / "new" / f"{run.name}.n1.json"
        assert path.stat().st_size <= 4 << 20
        value: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        jsonschema.Draft7Validator(SCHEMA).validate(value)
        return value


@pytest.fixture
def node() -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="nccl-slurm-node-"))
    folder.chmod(0o755)
    yield Node(folder)
    shutil.rmtree(folder)


def gaps(record: dict[str, Any]) -> dict[str, str]:
    return {gap["source"]: gap["why"] for gap in record["gaps"]}


def xid(bus: str) -> str:
    return f"NVRM: Xid (PCI:{bus}): 79, GPU has fallen off the bus."


@pytest.mark.parametrize("python", pythons())
def test_a_run_from_its_prolog_to_its_record(node: Node, python: str) -> None:
    node.python = python
    node.has_gpus(smi.gpu(NEW_GPU, minor="0"), smi.gpu(OTHER_GPU, minor="1", uuid="GPU-bbbb"))
    run = node.starts(SLURM_JOB_GPUS="0")
    node.work("before", run)
    node.writes(run, "nccl.n1.7.log", "n1:7:9 [0] NCCL INFO Bootstrap: Using eth0:10.1.2.3<0>\n")
    node.writes(run, "task.0.0", "step=0\nprocid=0\npid=7\nhost=n1\ntime=1700000001\n")
    node.kernel_says(START - 5, xid("0000:a1:00"))
    node.kernel_says(START + 30, xid("0000:a1:00"))
    node.kernel_says(START + 31, xid("0000:b3:00"))
    node.has_gpus(smi.gpu(NEW_GPU, volatile="4"), smi.gpu(OTHER_GPU, minor="1", volatile="9"))
    node.ends(run, SLURM_JOB_GPUS="0")
    assert node.work("finish", run) == ""
    record = node.record(run)
    assert (record["job_id"], record["node"], record["cluster"], record["closed_by"]) == (42, "n1", "lab", "epilog")
    assert record["prolog"]["time"] == START and record["epilog"]["env"]["SLURM_JOB_EXIT_CODE2"] == "9:0"
    assert record["machine"]["identity"] == "n1" and record["machine"]["role"]["slurmctld_running"] is False
    assert [gpu["minor"] for gpu in record["snapshots"]["before"]["gpus"]] == [0, 1]
    assert [(fact["kind"], fact["time"], fact["trust"]) for fact in record["kernel_events"]] == [
        ("kernel.xid", START + 30.0, "root")
    ]
    kinds = {fact["kind"]: fact["trust"] for fact in record["facts"]}
    assert kinds["gpu.ecc-uncorrected"] == "root" and kinds["slurm.task"] == "job"
    assert sum(fact["kind"] == "gpu.ecc-uncorrected" for fact in record["facts"]) == 1
    assert [(one["path"], one["read"]) for one in record["files"]] == [("nccl.n1.7.log", True), ("task.0.0", True)]
    assert len(record["writer"]["patterns"]) == 64
    assert {"ports", "task exits", "clock", "nvlink", "kernel events of other runs"} <= set(gaps(record))


@pytest.mark.parametrize("python", pythons())
def test_how_tasks_ended_is_handed_over_where_the_spank_plugin_told_it(node: Node, python: str) -> None:
    node.python = python
    run = node.starts()
    line = "step=0 task=5 local=1 pid=71 status=9 exit=0 signal=9 start=1700000000500000000 end=1700000002000000000\n"
    (run / "root" / "task_exits").write_text(line + line[:30])
    node.ends(run)
    assert node.work("finish", run) == ""
    record = node.record(run)
    assert record["task_exits"] == [
        {"rank": 5, "exit": -9, "pid": 71, "time": START + 2.0, "start": START + 0.5, "step": "0"}
    ]
    assert gaps(record)["task exits"] == "1 lines are cut or malformed"


def test_an_option_of_the_job_switches_capture_off(node: Node) -> None:
    run = node.starts(SPANK_NCCL_SLURM_CAPTURE="off")
    node.writes(run, "nccl.n1.7.log", "n1:7:1 [0] NCCL INFO x\n")
    node.ends(run)
    assert node.work("finish", run) == ""
    record = node.record(run)
    assert record["files"] == [] and gaps(record)["user files"] == spool.CAPTURE_OFF


@pytest.mark.parametrize("python", pythons())
def test_the_ranks_of_two_steps_are_told_apart(node: Node, python: str) -> None:
    node.python = python
    run = node.starts()
    for step, pid, rank, at in (("0", 7, 3, START + 10), ("1", 8, 1, START + 100)):
        init = f"n1:{pid}:1 [0] NCCL INFO comm 0xa rank {rank} nranks 4 cudaDev 0 commId 0x1 - Init COMPLETE\n"
        node.writes(run, f"task.{step}.0", f"step={step}\nprocid=0\npid={pid}\nhost=n1\ntime={at}\n")
        node.writes(run, f"nccl.n1.{pid}.log", init)
        os.utime(run / "user" / f"task.{step}.0", (at, at))
        os.utime(run / "user" / f"nccl.n1.{pid}.log", (at + 50, at + 50))
    node.ends(run)
    assert node.work("finish", run) == ""
    record = node.record(run)
    assert [(rank["rank"], rank["step"], rank["pid"]) for rank in record["ranks"]] == [(3, "0", 7), (1, "1", 8)]


def test_the_kernel_speaks_of_the_next_run_from_its_begin_on(node: Node) -> None:
    run = node.starts()
    node.ends(run, at=START + 60)
    node.starts(job="43", at=START + 65)
    for at in (START + 64, START + 70):
        node.kernel_says(at, xid("0000:a1:00"))
    node.work("finish", run)
    assert [(fact["time"], fact["hint"]) for fact in node.record(run)["kernel_events"]] == [(START + 64, "gpu-hw-lost")]


def test_a_short_job_whose_first_snapshot_came_too_late(node: Node) -> None:
    run = node.starts()
    node.ends(run)
    node.work("before", run)
    node.work("finish", run)
    record = node.record(run)
    assert record["snapshots"]["before"] is None
    assert gaps(record)["snapshot before"] == (
        "none was taken: the job was over within seconds, or its worker did not run or was ended"
    )


def test_an_epilog_without_a_prolog(node: Node) -> None:
    run = node.starts()
    shutil.rmtree(run / "user")
    (run / "root" / "prolog.env").unlink()
    node.kernel_says(START + 30, xid("0000:a1:00"))
    node.ends(run)
    node.work("finish", run)
    record = node.record(run)
    assert record["prolog"] is None and record["kernel_events"] == []
    assert {"prolog", "snapshot before", "user files", "kernel log"} <= set(gaps(record))


@pytest.mark.parametrize("what", ["folder gone", "folder a file", "rows broken", "capture off"])
def test_user_files_that_cannot_be_read_cost_only_themselves(node: Node, what: str) -> None:
    run = node.starts()
    node.writes(run, "nccl.n1.7.log", "n1:7:9 [0] NCCL INFO hello\n")
    if what == "capture off":
        node.writes(run, "capture-off", "")
    elif what == "rows broken":
        (node.folder / "rows.json").write_text("{")
    else:
        shutil.rmtree(run / "user")
        if what == "folder a file":
            (run / "user").touch()
    node.kernel_says(START + 30, "Out of memory: Killed process 7 (python)")
    node.ends(run)
    node.work("finish", run)
    record = node.record(run)
    assert record["files"] == [] and "user files" in gaps(record)
    assert len(record["kernel_events"]) == (0 if what == "rows broken" else 1)


FORGED = {"kind": "kernel.xid", "text": "x", "producer": "kernel", "role": "cause", "trust": "root", "host": "n2"}


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (command.Output("", "no answer within 5 s"), "no answer within 5 s"),
        (command.Output("", "ended with signal 9: no message"), "signal 9"),
        (command.Output("garbage", None), "no JSON"),
        (command.Output("[" * 100_000, None), "no JSON"),
        (command.Output(json.dumps({"facts": [FORGED, 7], "kernel_events": [FORGED], "ranks": 3}), None), None),
        (command.Output('{"files": [{"path": 1}], "world_size": -1, "gaps": {}, "bytes_read": 1e999}', None), None),
    ],
)
def test_a_reader_that_the_user_has_taken_over(
    node: Node, monkeypatch: pytest.MonkeyPatch, answer: command.Output, why: str | None
) -> None:
    """It runs with the user's rights: whatever it says, and if it says nothing, a record comes and fits."""
    run = node.starts()
    node.ends(run)
    monkeypatch.setattr(child, "answer_of", lambda work, **more: answer)
    conf = from_environment(node.env)
    assert worker.finish(conf, spool.open_run(conf.spool, str(run))) is None
    record = node.record(run)
    assert record["kernel_events"] == [] and {fact["trust"] for fact in record["facts"]} <= {"job"}
    assert why is None or why in gaps(record)["user files"]


def test_what_user_files_claim_about_the_machine_has_the_jobs_trust(node: Node) -> None:
    run = node.starts()
    node.writes(run, "nccl.n1.7.log", xid("0000:a1:00") + "\n\x1b[31m<script>'; DROP TABLE runs;--\n" + "\x00" * 100)
    node.ends(run)
    node.work("finish", run)
    record = node.record(run)
    assert record["kernel_events"] == []
    assert {fact["trust"] for fact in record["facts"]} <= {"job"}


def test_a_node_that_died_is_closed_at_its_next_boot(node: Node) -> None:
    run = node.starts(boot=EARLIER_BOOT)
    node.has_gpus(smi.gpu())
    node.writes(run, "nccl.n1.7.log", "n1:7:9 [0] NCCL INFO hello\n")
    node.kernel_says(START + 30, xid("0000:a1:00"))
    assert node.work("boot") == ""
    record = node.record(run)
    assert (record["closed_by"], record["epilog"]) == ("boot", None)
    assert [fact["kind"] for fact in record["kernel_events"]] == ["kernel.xid"]
    assert record["snapshots"]["after"] is None and record["files"]
    assert record["machine"]["boot_id"] != record["prolog"]["boot_id"]


def test_its_epilog_may_still_come_and_completes_the_record(node: Node) -> None:
    run = node.starts(boot=EARLIER_BOOT)
    node.work("boot")
    env = {**EPILOG, "SLURM_JOB_ID": "42"}
    node._known(run / "root" / "epilog.env", env, START + 500, BOOT)
    node.work("finish", run)
    record = node.record(run)
    assert record["closed_by"] == "boot" and record["epilog"]["time"] == START + 500
    assert record["snapshots"]["after"] is None


def test_the_boot_oneshot_reads_the_earlier_boots_journal(node: Node) -> None:
    run = node.starts(boot=EARLIER_BOOT)
    wanted = EARLIER_BOOT.replace("-", "")
    entry = {"__REALTIME_TIMESTAMP": f"{START + 9}000000", "SYSLOG_FACILITY": "0", "MESSAGE": xid("0000:a1:00")}
    node.program("journalctl", f"case $* in *--boot={wanted}*) echo '{json.dumps(entry)}' ;; esac")
    node.work("boot", NCCL_SLURM_KERNEL_LOG="")
    assert [fact["time"] for fact in node.record(run)["kernel_events"]] == [START + 9.0]


def test_leftovers_count_only_where_no_other_run_was_there(node: Node) -> None:
    node.has_gpus(smi.gpu(processes=smi.PROCESS))
    alone = node.starts()
    node.ends(alone)
    node.work("finish", alone)
    assert [one["pid"] for one in node.record(alone)["snapshots"]["after"]["gpu_processes"]] == [4711]
    beside = node.starts(job="43", at=START + 100)
    node.starts(job="44", at=START + 200)
    node.ends(beside, at=START + 190)
    node.work("finish", beside)
    record = node.record(beside)
    assert record["snapshots"]["after"]["gpu_processes"] is None and "gpu_processes" in gaps(record)


def test_an_undelivered_record_waits_for_the_sweep(node: Node) -> None:
    run = node.starts()
    node.ends(run)
    shutil.move(node.shared, node.folder / "away")
    assert "shared" in node.work("finish", run, status=1)
    assert not (run / "root" / "delivered").exists()
    shutil.move(node.folder / "away", node.shared)
    assert node.work("sweep") == ""
    assert node.record(run)["job_id"] == 42 and (run / "root" / "delivered").exists()


def test_a_record_of_a_flood_of_lines_keeps_its_size(node: Node) -> None:
    run = node.starts()
    line = "n1:{0}:9 [0] misc/socket.cc:5{0} NCCL WARN socketStartConnect: Connect to 10.1.2.3<4{0}> failed : {1}\n"
    for number in range(100, 140):
        node.writes(run, f"nccl.n1.{number}.log", "".join(line.format(number + n, "x" * 900) for n in range(300)))
    node.ends(run)
    node.work("finish", run)
    assert node.record(run)["bytes_read"] > 9_000_000


@pytest.mark.parametrize("arguments", [["before", "/etc"], ["finish", "/nonexistent/42.1"]])
def test_a_folder_that_is_no_run_is_one_line(node: Node, arguments: list[str]) -> None:
    said = node.work(arguments[0], Path(arguments[1]), status=1)
    assert said.count("\n") == 1 and "not a run folder" in said
