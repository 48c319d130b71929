"""The checks of a job on what the real reader makes of a machine's processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nccl_slurm.doctor import registry
from nccl_slurm.doctor.observation import Fleet, JobObserved
from tests.doctor.jobs import limits, said, words
from tests.doctor.test_gather import MAPS, Machine

CHECKS = {check.id: check for check in registry.checks("job")}
KEYS = {key for check in CHECKS.values() for key in check.sources}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A torchrun with four ranks of job 42, a data loader's worker, and a rank of another job."""
    machine = Machine(tmp_path)
    for name, text in (("state", "4: ACTIVE"), ("rate", "400 Gb/sec (4X NDR)"), ("link_layer", "InfiniBand")):
        machine.write(f"/sys/class/infiniband/mlx5_0/ports/1/{name}", text + "\n")
    (machine.root / "sys/class/infiniband/mlx5_0/device").mkdir(parents=True)
    (machine.root / "sys/class/infiniband/mlx5_0/device/driver").symlink_to("../../../../bus/pci/drivers/mlx5_core")
    machine.process(90, {"maps": MAPS.format(path="/x/libtorch_cuda.so"), "environ": "SLURM_PROCID=0\0"}, job="42")
    for number in range(4):
        start(machine, 100 + number, number)
    start(machine, 200, 0, parent=100)
    start(machine, 300, 3, job="43", NCCL_P2P_DISABLE="1")
    return machine


def start(machine: Machine, pid: int, number: int, *, parent: int = 90, job: str = "42", **more: str) -> None:
    meeting = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}
    told = {"RANK": str(number), **meeting, "HF_TOKEN": "secret", **more}
    environ = "".join(f"{name}={value}\0" for name, value in told.items())
    maps = MAPS.format(path="/usr/lib/libnccl.so.2.21.5")
    files = {"environ": environ, "maps": maps, "limits": limits(), "cmdline": "python\0train.py"}
    machine.process(pid, files, parent=parent, job=job)


def judged(machine: Machine, check: str) -> list[str]:
    seen = machine.look(*KEYS, job="42")
    return words(said(CHECKS[check], JobObserved("42", 42, Fleet({"n1": seen}))))


@pytest.mark.parametrize("check", ["job.environment", "job.nccl-names", "job.nccl-values", "job.limits"])
def test_a_good_job_passes(check: str, machine: Machine) -> None:
    assert judged(machine, check) == ["PASS"]


def test_what_one_rank_has_otherwise_is_seen(machine: Machine) -> None:
    start(machine, 102, 2, NCCL_IB_DISABLE="1", NCCL_SOKET_IFNAME="eth0")
    assert judged(machine, "job.environment") == ["WARN P1", "WARN P1"]
    assert judged(machine, "job.nccl-values") == ["FAIL P1"]
    assert judged(machine, "job.nccl-names") == ["WARN P1"]


def test_a_rank_that_is_gone_is_missed(machine: Machine) -> None:
    for file in (machine.root / "proc" / "103").iterdir():
        file.unlink()
    (machine.root / "proc" / "103").rmdir()
    assert judged(machine, "job.environment") == ["FAIL P0"]


@pytest.mark.parametrize(("address", "expected"), [("10.1.0.5", ["PASS"]), ("10.1.0.6", ["WARN P1"])])
def test_a_node_tells_its_own_addresses(machine: Machine, address: str, expected: list[str]) -> None:
    machine.write("/proc/net/fib_trie", "Main:\n     |-- 10.1.0.5\n        /32 host LOCAL\n")
    start(machine, 103, 3, MASTER_ADDR=address)
    assert judged(machine, "job.environment") == expected


def test_small_limits_of_a_rank_are_seen(machine: Machine) -> None:
    machine.write("/proc/101/limits", limits(locked="65536"))
    if os.geteuid() == 0:
        os.chown(machine.root / "proc" / "101", 1000, 1000)
    assert judged(machine, "job.limits") == ["FAIL P0"]  # that it differs from the others' is no second finding
