from __future__ import annotations

from nccl_slurm.info.nic import nics
from tests.info.lines import channel, info

TWELVE = "NET/IB : Using " + " ".join(f"[{n}]mlx5_{n}:1/IB" for n in range(12)) + " [RO]; OOB eth0:10.0.0.9<0>"
SOCKET = "NET/Socket : Using [0]eth0:10.0.0.9<0> [1]eth1:10.0.1.9<0>"


def test_adapters_are_named_by_the_list_of_the_same_process() -> None:
    facts = [
        info(0, TWELVE),
        info(2, SOCKET),
        channel(0, 2, "NET/IB/10/GDRDMA"),
        channel(0, 2, "NET/IB/9/GDRDMA"),
        channel(0, 1, "P2P/CUMEM"),
        channel(1, 2, "NET/IB/3"),
        channel(2, 0, "NET/Socket/1"),
        channel(3, 0, "NET/AWS Libfabric/2/GDRDMA"),
        channel(4, 5, "P2P/indirect/3[3]"),
    ]
    assert nics(facts) == {0: ("mlx5_9", "mlx5_10"), 1: ("IB 3",), 2: ("eth1",), 3: ("AWS Libfabric 2",)}


def test_a_line_that_names_no_rank_is_of_nobody() -> None:
    from dataclasses import replace

    assert nics([replace(channel(0, 2, "NET/IB/0"), rank=None)]) == {}
