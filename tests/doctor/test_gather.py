"""What runs on nodes: each kind of source from a tree that stands in for a machine, and what it says where it can't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.doctor import gather, sources
from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.observation import Observation, unpacked

MAPS = "7f00-7f01 r-xp 0000 00:00 1  {path}\n"
STAT = "{pid} (python (x) y) {state} {parent} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0\n"


class Machine:
    def __init__(self, root: Path) -> None:
        self.root, self.bin = root / "root", root / "bin"
        self.bin.mkdir(parents=True)
        self.write("/proc/stat", "cpu 1\nbtime 1790000000\n")

    def write(self, path: str, text: str | bytes) -> None:
        where = self.root / path.lstrip("/")
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(text.encode() if isinstance(text, str) else text)

    def command(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def process(
        self, pid: int, files: Mapping[str, str] | None = None, *, state: str = "S", parent: int = 1, job: str = ""
    ) -> None:
        texts = {"stat": STAT.format(pid=pid, state=state, parent=parent), "comm": "python\n", **(files or {})}
        if job:
            texts["cgroup"] = f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n"
        for name, text in texts.items():
            self.write(f"/proc/{pid}/{name}", text)

    def look(self, *keys: str, job: str | None = None, limit_s: float = 20.0) -> Observation:
        told = sources.manifest(keys, job=job, sysroot=str(self.root), bin_folder=str(self.bin), limit_s=limit_s)
        return asked(told)


def asked(told: Mapping[str, Any]) -> Observation:
    """As on a node: another Python, isolated, fed the one file."""
    done = subprocess.run([sys.executable, "-I", "-"], input=sources.program(told), capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
    return unpacked(done.stdout, "n1", "ssh")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_files(machine: Machine) -> None:
    machine.write("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    machine.write("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n")
    seen = machine.look("rdma-ports", "memory").files("rdma-ports")
    assert dict(seen) == {
        "/sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "/sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n",
    }


def test_a_file_that_is_not_there_is_not_observed(machine: Machine) -> None:
    seen = machine.look("memory", "rdma-ports")
    assert seen.present("rdma-ports") == {}
    with pytest.raises(NotObserved, match="no such file"):
        seen.text("memory")
    with pytest.raises(NotObserved, match="not read on this node"):
        seen.text("load")


def test_a_folder_that_may_not_be_seen_is_not_an_empty_one(machine: Machine) -> None:
    machine.write("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    closed = machine.root / "sys/class/infiniband"
    closed.chmod(0o000)
    machine.write("/etc/prolog", "")  # what can be seen tells nothing of what can't
    paths = {"hooks": {"globs": ["/etc/prolog", "/sys/class/infiniband/*.sh"]}}
    told = sources.manifest(["rdma-ports", "hooks"], sysroot=str(machine.root), options=paths)
    for folder in (machine.root, *machine.root.parents[:-2]):  # one more below each worker of xdist
        folder.chmod(0o755)
    as_nobody: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-"], input=sources.program(told), capture_output=True, cwd="/", **as_nobody
    )
    closed.chmod(0o755)
    seen = unpacked(done.stdout, "n1", "ssh")
    assert "Permission denied" in str(seen.present("rdma-ports").unread)
    hooks = seen.present("hooks")
    assert (list(hooks), list(hooks.unread)) == (["/etc/prolog"], ["/sys/class/infiniband/*.sh"])


def test_long_files_are_cut_and_say_so(machine: Machine) -> None:
    machine.write("/proc/loadavg", "x" * 70000)
    seen = machine.look("load").files("load", part=True)
    assert len(seen["/proc/loadavg"]) == 1 << 16
    assert seen.cut == ["/proc/loadavg"]


def test_a_pipe_without_a_writer_holds_nobody(machine: Machine) -> None:
    (machine.root / "proc").mkdir(exist_ok=True)
    os.mkfifo(machine.root / "proc/loadavg")
    assert machine.look("load").text("load") == ""


@pytest.mark.parametrize(
    ("script", "rc", "out"),
    [("echo yes", 0, "yes\n"), ("echo no >&2; exit 3", 3, ""), ("yes", -9, None)],
)
def test_commands(machine: Machine, script: str, rc: int, out: str | None) -> None:
    machine.command("chronyc", script)
    output = machine.look("clock").command("clock", part=True)
    assert output.rc == rc
    assert output.cut if out is None else output.out == out


def test_a_command_that_is_not_there_or_failed_is_not_observed(machine: Machine) -> None:
    machine.command("timedatectl", "echo not with me >&2; exit 1")
    seen = machine.look("clock", "clock-systemd")
    with pytest.raises(NotObserved, match="not found"):
        seen.command("clock")
    with pytest.raises(NotObserved, match="status 1: not with me"):
        seen.text("clock-systemd")


def test_what_hangs_costs_its_lane_alone(machine: Machine) -> None:
    machine.command("nvidia-smi", "sleep 60")
    machine.write("/proc/loadavg", "1 2 3\n")
    start = time.monotonic()
    seen = machine.look("nvidia-smi", "nvlink-status", "load", limit_s=1.0)
    assert time.monotonic() - start < 10
    assert seen.text("load") == "1 2 3\n"
    with pytest.raises(NotObserved, match="no answer within"):
        seen.text("nvidia-smi")
    with pytest.raises(NotObserved, match="not asked: nvidia-smi before it"):
        seen.text("nvlink-status")


def test_a_driver_that_hangs_is_asked_once(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.command("nvidia-smi", "sleep 60")
    told = sources.manifest(["nvidia-smi", "nvlink-status"], sysroot=str(machine.root), bin_folder=str(machine.bin))
    told["sources"]["nvidia-smi"]["seconds"] = 0.3
    seen = asked(told)
    for key in ("nvidia-smi", "nvlink-status"):
        with pytest.raises(NotObserved, match=r"no answer within 0\.3 s"):
            seen.text(key)


@pytest.mark.parametrize(
    ("files", "driver"),
    [
        ({}, None),
        ({"wchan": "rwsem_down_read_slowpath"}, None),
        ({"wchan": "nv_wait"}, True),
        ({"wchan": "uvm_va_block_lock"}, True),
        ({"wchan": "down", "stack": "[<0>] down+0x1/0x2\n[<0>] nvidia_unlocked_ioctl+0x1/0x2 [nvidia]\n"}, True),
        ({"wchan": "down", "stack": "[<0>] down+0x1/0x2\n[<0>] xfs_buf_lock+0x1/0x2 [xfs]\n"}, False),
        ({"wchan": "folio_wait_bit_common"}, False),
        ({"wchan": "cl_sync_io_wait"}, False),
        ({"wchan": "rpc_wait_bit_killable"}, False),
    ],
)
def test_a_driver_in_which_a_process_is_stuck_is_not_asked(
    files: dict[str, str], driver: bool | None, machine: Machine
) -> None:
    """One that writes a checkpoint with a GPU open sleeps elsewhere."""
    machine.command("nvidia-smi", "echo an answer")
    machine.process(7, files, state="D")
    (machine.root / "proc/7/fd").mkdir()
    (machine.root / "proc/7/fd/3").symlink_to("/dev/nvidia0")
    seen = machine.look("nvidia-smi", "stuck")
    (row,) = seen.reader("stuck")
    assert (row["pid"], row["gpu"], row["driver"]) == (7, True, driver)
    if driver is False:
        assert seen.text("nvidia-smi") == "an answer\n"
    else:
        with pytest.raises(NotObserved, match=r"\(pid 7\) .* stuck in the GPU driver"):
            seen.text("nvidia-smi")


def test_ranks(machine: Machine, tmp_path: Path) -> None:
    library = "/opt/nccl/libnccl.so.2"
    rank = {"maps": MAPS.format(path=library), "environ": "RANK=3\0NCCL_DEBUG=INFO\0AWS_SECRET_ACCESS_KEY=x\0"}
    machine.process(100, {"limits": "Max locked memory 1 1 bytes\n", **rank}, job="42")
    machine.process(101, rank, job="42", parent=100)  # its data loader
    machine.process(102, rank, job="43")
    machine.process(103, {"environ": "HOME=/\0"}, job="42")
    machine.process(104, {"environ": "RANK=4\0NCCL_SLURM_DOCTOR=on\0"}, job="42")
    machine.write(f"/proc/100/root{library}", b"\x7fELF..NCCL version %d..NCCL version 2.21.5+cuda12.4\0")
    told = machine.look("ranks", job="42").reader("ranks")
    (row,) = told["ranks"]
    assert row["pid"] == 100
    assert row["environment"] == {"RANK": "3", "NCCL_DEBUG": "INFO"}
    assert row["start"] == 1790000005.0
    assert told["libraries"][library]["said"] == "2.21.5+cuda12.4"


@pytest.mark.parametrize(("here", "seen"), [(None, ["0", "1", "2"]), ("n1", ["0", "2"]), ("n2", ["1", "2"])])
def test_ranks_of_another_slurmd_of_this_machine_are_not_ours(
    here: str | None, seen: list[str], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank, more in enumerate(("SLURMD_NODENAME=n1\0", "SLURMD_NODENAME=n2\0", "")):
        machine.process(100 + rank, {"environ": f"RANK={rank}\0{more}"}, job="42")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    if here is not None:
        monkeypatch.setenv("SLURMD_NODENAME", here)
    told = gather.ranks(gather.Place(str(machine.root), "", "42"), {})["ranks"]
    assert [row["environment"]["RANK"] for row in told] == seen


def test_whose_word_on_its_job_counts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where jobs are in cgroups, not that of another user outside of them."""
    place = gather.Place(str(machine.root), "", "42")
    claim = {"environ": "RANK=3\0SLURM_JOB_ID=42\0"}
    machine.process(101, claim)
    assert gather.Claims(place).job_of(101, {"SLURM_JOB_ID": "42"}) == "42"  # no job is in a cgroup here
    machine.process(100, claim, job="42")
    machine.process(102, {**claim, "cgroup": "0::/user.slice/user-7.slice\n"})
    machine.process(103, {**claim, "cgroup": "0::/system.slice/docker-0a1b.scope\n"})
    owners = {100: 1000, 101: 1000, 102: 7, 103: 0}
    monkeypatch.setattr(gather, "owner_of", lambda _place, pid: owners[pid])
    told = {pid: gather.Claims(place).job_of(pid, {"SLURM_JOB_ID": "42"}) for pid in owners}
    assert told == {100: "42", 101: "42", 102: None, 103: "42"}


def test_the_environment_of_a_rank_is_read_by_name_alone() -> None:
    for name in ("NCCL_DEBUG", "FI_PROVIDER", "MASTER_ADDR", "RANK", "SLURM_PROCID"):
        assert gather.ENVIRONMENT.fullmatch(name)
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "SLURM_JWT", "WANDB_API_KEY", "RANKING", "MY_NCCL_X"):
        assert not gather.ENVIRONMENT.fullmatch(name)


def settings(number: int, size: int) -> str:
    return "".join(f"NCCL_X{at}={'x' * size}\0" for at in range(number))


@pytest.mark.parametrize(
    ("environ", "cut"),
    [("NCCL_DEBUG=INFO\0", False), (settings(254, 4096), True), (settings(1, 1 << 20), True), ("A=b\0" * 99999, True)],
)
def test_of_too_many_settings_the_short_ones_are_kept(machine: Machine, environ: str, cut: bool) -> None:
    machine.process(100, {"environ": f"RANK=3\0MASTER_ADDR=n1\0{environ}"}, job="42")
    (row,) = machine.look("ranks", job="42").reader("ranks")["ranks"]
    assert (row["cut"], row["environment"]["RANK"], row["environment"]["MASTER_ADDR"]) == (cut, "3", "n1")
    assert len(json.dumps(row)) < 1 << 16


def test_what_users_make_large_costs_itself(machine: Machine) -> None:
    """Not the node's other answers, and not its name."""
    machine.write("/proc/loadavg", "1 2 3\n")
    for pid in range(100, 130):
        machine.process(pid, {"environ": f"RANK={pid}\0{settings(60, 500)}"}, job="42")
    told = sources.manifest(["load", "ranks"], job="42", sysroot=str(machine.root), bin_folder=str(machine.bin))
    assert len(asked(told).reader("ranks")["ranks"]) == 30
    seen = asked({**told, "limit_bytes": 1 << 17})
    assert seen.text("load") == "1 2 3\n"
    with pytest.raises(NotObserved, match="make the answer larger"):
        seen.reader("ranks")


def test_efas_own_tools_go_before_those_of_the_distribution() -> None:
    assert gather.FOLDERS.index("/opt/amazon/efa/bin") < gather.FOLDERS.index("/usr/bin")


def test_kernel(machine: Machine) -> None:
    machine.write(
        "/dev/kmsg",
        "6,1,1000000,-;NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.\n"
        "6,2,2000000,-;usb 1-1: new device\n"
        "14,3,3000000,-;NVRM: Xid (PCI:0000:a1:00): 79, written by a program\n",
    )
    told = machine.look("kernel").reader("kernel")
    assert told["lines"] == [[1790000001.0, "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus."]]
    assert (told["source"], told["first"]) == ("/dev/kmsg", 1790000001.0)


def test_no_kernel_log_is_not_observed(machine: Machine) -> None:
    with pytest.raises(NotObserved, match="kmsg"):
        machine.look("kernel").reader("kernel")


def test_shared_memory_files(machine: Machine) -> None:
    for name in ("nccl-abc", "nccl-def", "other"):
        machine.write(f"/dev/shm/{name}", "x")
    machine.process(5, {"maps": MAPS.format(path="/dev/shm/nccl-abc")})
    told = machine.look("shm-files").reader("shm-files")
    assert {row["path"]: row["holders"] for row in told["files"]} == {"/dev/shm/nccl-abc": [5], "/dev/shm/nccl-def": []}


def test_every_reader_of_the_rows_is_there_and_lives_with_an_empty_machine(machine: Machine) -> None:
    seen = machine.look(*sources.SOURCES)
    assert set(seen.found) == set(sources.SOURCES)
    for key, found in seen.found.items():
        assert "Error" not in str(found.get("why")), key


def test_an_unknown_source_is_a_fault_of_the_check() -> None:
    with pytest.raises(KeyError, match="no-such"):
        sources.manifest(["memory", "no-such"])


def test_here_as_it_is() -> None:
    seen = asked(sources.manifest(["memory", "mounts", "daemons", "stuck"]))
    assert "MemTotal" in seen.text("memory")
    assert seen.reader("mounts")["room"]["/"]["size"] > 0
    assert abs(seen.at - time.time()) < 60


MAPPER = """
import mmap, os, sys, time
with open(sys.argv[1], "rb") as file:
    held = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
print("mapped", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="as root alone")
@pytest.mark.parametrize("how", ["itself", "link", "pipe"])
def test_root_reads_of_a_users_library_what_is_mapped_alone(tmp_path: Path, how: str) -> None:
    """A rank that puts a link to another file in its library's place learns nothing of that."""
    library, secret = tmp_path / "libnccl.so.2", tmp_path / "secret"
    library.write_bytes(b"\0NCCL version 2.21.5\0" + b"\0" * 4096)
    secret.write_bytes(b"NCCL version 6.6.6\0" + b"\0" * 4096)
    environment = {"RANK": "0", "SLURM_JOB_ID": "4242"}
    with subprocess.Popen(
        [sys.executable, "-c", MAPPER, str(library)], env=environment, stdout=subprocess.PIPE, text=True
    ) as rank:
        try:
            assert rank.stdout is not None and rank.stdout.readline() == "mapped\n"
            if how != "itself":
                library.unlink()
                library.symlink_to(secret) if how == "link" else os.mkfifo(library)
            told = sources.manifest(["ranks"], job="4242", limit_s=20.0)
            seen = asked(told).reader("ranks")
        finally:
            rank.kill()
    said = [one["said"] for one in seen["libraries"].values() if one]
    assert [one["pid"] for one in seen["ranks"]] == [rank.pid]
    assert said == (["2.21.5"] if how == "itself" else [None] if said else [])


@pytest.mark.parametrize(
    ("cgroup", "job"), [("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_0\n", "42"), ("0::/\n", None)]
)
def test_a_look_from_inside_a_job_says_so(
    cgroup: str, job: str | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    machine.write("/proc/self/cgroup", cgroup)
    assert machine.look("load").job == job
