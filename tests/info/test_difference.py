from __future__ import annotations

import pytest

from nccl_slurm.info.difference import differences
from nccl_slurm.info.setting import settings
from nccl_slurm.model import Fact
from tests.info.lines import info, read


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("n1:8:8 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0", [("NCCL_SOCKET_IFNAME", "eth0")]),
        ("n1:8:8 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.", [("NCCL_IB_TIMEOUT", "22")]),
        (
            "n1:8:8 [0] NCCL INFO NET/OFI Setting FI_EFA_FORK_SAFE environment variable to 1",
            [("FI_EFA_FORK_SAFE", "1")],
        ),
        ('n1:8:8 [0] NCCL INFO NET/OFI Setting NCCL_PROTO to "simple"', [("NCCL_PROTO", "simple")]),
        ("n1:8:8 [0] NCCL INFO NET/OFI Adding NCCL_BUFFSIZE=8388608 to environment", [("NCCL_BUFFSIZE", "8388608")]),
        ("export NCCL_TIMEOUT=3600", [("NCCL_TIMEOUT", "3600")]),
        ("+ export FI_PROVIDER='efa'", [("FI_PROVIDER", "efa")]),
        ('declare -x TORCH_NCCL_DUMP_ON_TIMEOUT="1"', [("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")]),
        (
            "[rank0]:[I1209 23:39:42.495654123 ProcessGroupNCCL.cpp:914] [PG ID 0 PG GUID 0 Rank 0] HeartbeatMonitor "
            "environments: TORCH_NCCL_ENABLE_MONITORING (Whether to kill program when no watchdog heartbeat "
            "detected): 1, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC: 480",
            [("TORCH_NCCL_ENABLE_MONITORING", "1"), ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480")],
        ),
    ],
)
def test_settings(line: str, expected: list[tuple[str, str]]) -> None:
    assert [(name, value) for name, value, _ in settings([read(line)])] == expected


def env(rank: int, name: str, value: str) -> Fact:
    return info(rank, f"{name} set by environment to {value}")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        ([env(rank, "NCCL_IB_HCA", "mlx5") for rank in range(4)], []),
        (
            [env(rank, "NCCL_IB_HCA", "mlx5" if rank != 2 else "mlx4") for rank in range(4)],
            [("setting", "NCCL_IB_HCA", {"mlx5": (0, 1, 3), "mlx4": (2,)}, (2,))],
        ),
        # set on all ranks but one, which prints others
        (
            [
                env(rank, name, "1")
                for rank in range(4)
                for name in ("NCCL_DEBUG", "NCCL_NET")
                if (rank, name[5:8]) != (3, "NET")
            ],
            [("setting", "NCCL_NET", {"1": (0, 1, 2), "not seen": (3,)}, (3,))],
        ),
        # read on rank 0 alone: nothing to say
        ([*(env(rank, "NCCL_DEBUG", "INFO") for rank in range(4)), env(0, "NCCL_ALGO", "Ring")], []),
        # one of each process by design
        ([env(rank, "NCCL_HOSTID", str(rank)) for rank in range(4)], []),
        # versions first; of two that differ nobody is odd
        (
            [
                *(env(rank, "NCCL_NET", str(rank)) for rank in range(2)),
                *(info(rank, f"cudaDriverVersion 12{rank}00") for rank in range(2)),
            ],
            [
                ("version", "cuda driver", {"12.0": (0,), "12.10": (1,)}, ()),
                ("setting", "NCCL_NET", {"0": (0,), "1": (1,)}, ()),
            ],
        ),
        # no rank: nodes are compared
        (
            [read(f"n{n}:8:8 [0] NCCL INFO NCCL version 2.2{min(n, 2)}.3+cuda12.4") for n in (1, 2, 3)],
            [("version", "nccl", {"2.22.3": ("n2", "n3"), "2.21.3": ("n1",)}, ("n1",))],
        ),
        # neither rank nor host
        ([read("NCCL_NET=IB"), read("NCCL_NET=Socket")], []),
    ],
)
def test_differences(facts: list[Fact], expected: list[object]) -> None:
    found = differences(facts)
    assert [(one.kind, one.name, dict(one.split.values), one.split.odd) for one in found] == expected
    for one in found:
        first = one.facts[0].rank if one.facts[0].rank is not None else one.facts[0].host
        assert not one.split.odd or first in one.split.odd or "not seen" in one.split.values


def test_an_absent_setting_means_nothing_where_lines_were_left_out() -> None:
    facts = [env(rank, "NCCL_NET", "IB") for rank in range(3)] + [env(3, "NCCL_DEBUG", "INFO")]
    assert [one.name for one in differences(facts)] == ["NCCL_NET"]
    assert differences(facts, whole=False) == []
