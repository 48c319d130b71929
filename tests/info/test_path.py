from __future__ import annotations

import pytest

from nccl_slurm.info.path import changes, odd_paths, pair, path, paths, ways
from nccl_slurm.model import Fact
from tests.info.lines import channel, info, init, read


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC", "P2P/IPC"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer", "P2P/direct pointer"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[3]", "P2P/indirect"),
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/IPC comm 0x5641b97d2640 nRanks 08", "P2P/IPC"),
        ("Channel 01 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/1(3)/GDRDMA", "NET/IB/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/IB/0", "NET/IB"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/AWS Libfabric/0/GDRDMA/Shared", "NET/AWS Libfabric/GDRDMA"),
        ("Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0", "NET/Socket"),
    ],
)
def test_path(line: str, expected: str) -> None:
    fact = read(f"n1:8:9 [0] NCCL INFO {line}")
    assert (path(fact), pair(fact)) == (expected, "0 -> 1")


def ring(**other: str) -> list[Fact]:
    """Eight ranks on four nodes; ``n3`` = how rank 5 goes on to n4."""
    lines = [channel(rank, rank + 1, "P2P/CUMEM") for rank in range(0, 8, 2)]
    way = {"n1": "NET/IB/0/GDRDMA", "n2": "NET/IB/0/GDRDMA", "n3": "NET/IB/0/GDRDMA", "n4": "NET/IB/0/GDRDMA", **other}
    return lines + [channel(rank, (rank + 1) % 8, way[f"n{rank // 2 + 1}"]) for rank in range(1, 8, 2)]


IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.9<0>"
ROCE = "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.9<0>"
ONE = "NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.9<0>"
SOCKET = "NET/Socket : Using [0]eth0:10.0.0.9<0> [1]eth1:10.1.0.9<0>"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([], []),
        (ring(), []),
        (
            ring(n3="NET/Socket/0"),
            [("the path between nodes", {"NET/IB/GDRDMA": 3, "NET/Socket": 1}, ("n3",), "5 -> 6")],
        ),
        (ring(n2="NET/IB/0"), [("the path between nodes", {"NET/IB/GDRDMA": 3, "NET/IB": 1}, ("n2",), "3 -> 4")]),
        (
            [*ring()[1:], channel(0, 1, "SHM/direct/direct")],
            [("the path inside a node", {"P2P/CUMEM": 3, "SHM/direct": 1}, ("n1",), "0 -> 1")],
        ),
        # lines of one rank of n1 are not here: its channels are not compared
        (ring(n1="NET/Socket/0")[1:], []),
        (
            [info(rank, f"Using network {'Socket' if rank > 5 else 'IB'}") for rank in range(8)],
            [("the network", {"IB": 3, "Socket": 1}, ("n4",), "? -> ?")],
        ),
        (
            [info(rank, ONE if rank == 4 else IB) for rank in range(0, 8, 2)],
            [("their adapters", {"2 IB": 3, "1 IB": 1}, ("n3",), "? -> ?")],
        ),
        (
            [info(0, IB), info(2, ROCE)],
            [("their adapters", {"2 IB": 1, "2 RoCE": 1}, (), "? -> ?")],
        ),
        (
            [info(0, IB), info(2, IB), info(4, "NET/IB : No device found."), info(4, SOCKET)],
            [("their adapters", {"2 IB": 2, "2 socket + no IB": 1}, ("n3",), "? -> ?")],
        ),
        (
            [
                info(rank, f"NET/IB : GPU Direct RDMA {'Disabled' if rank == 2 else 'Enabled'} for HCA 0 'mlx5_0'")
                for rank in range(0, 8, 2)
            ],
            [("GPUDirect RDMA", {"enabled": 3, "disabled": 1}, ("n2",), "? -> ?")],
        ),
        (
            [
                info(rank, f"NVLS multicast support is {'not ' if rank == 2 else ''}available on dev 0")
                for rank in range(0, 8, 2)
            ],
            [("NVLS multicast", {"available": 3, "not available": 1}, ("n2",), "? -> ?")],
        ),
        (
            [
                read(f"n{n}:8:8 [0] NCCL INFO NET/OFI Selected Provider is {'tcp' if n == 2 else 'efa'}")
                for n in (1, 2, 3)
            ],
            [("libfabric's provider", {"efa": 2, "tcp": 1}, ("n2",), "? -> ?")],
        ),
    ],
)
def test_odd_paths(facts: list[Fact], expected: list[object]) -> None:
    found = odd_paths(facts)
    values = [{value: len(who) for value, who in one.split.values.items()} for one in found]
    assert [(o.what, v, o.split.odd, pair(o.facts[0])) for o, v in zip(found, values, strict=True)] == expected


def test_channels_are_compared_within_their_communicator() -> None:
    """Ranks of a data-parallel group go over the network by design; those of another group need not."""
    begun = [init(rank, "START", size=8, shared=f"commId 0x{rank % 2}", line=1) for rank in range(8)]
    lines = [channel(rank, (rank + 2) % 8, "NET/IB/0" if rank % 2 else "NET/Socket/0", line=2) for rank in range(8)]
    assert odd_paths([*begun, *lines]) == []
    strange = [channel(rank, 0, "NET/Socket/0", line=3) for rank in (4, 5)]
    named = {one.communicators for one in odd_paths([*begun, *lines, *strange])}
    assert named == {("0x1",)}


def test_paths_of_the_report() -> None:
    facts = [info(0, "Using network IB"), channel(1, 2, "NET/IB/0/GDRDMA"), info(0, IB)]
    facts.append(info(0, "NVLS multicast support is available on dev 0"))
    assert [name for name, _ in paths(facts)] == ["IB", "NET/IB/GDRDMA", "NVLS multicast"]


def test_ways_of_a_run_by_host() -> None:
    facts = [info(0, IB), info(2, ONE), *ring(n2="NET/Socket/0")]
    assert ways(facts) == {
        "n1": {
            "their adapters": ["2 IB"],
            "the path inside a node": ["P2P/CUMEM"],
            "the path between nodes": ["NET/IB/GDRDMA"],
        },
        "n2": {
            "their adapters": ["1 IB"],
            "the path inside a node": ["P2P/CUMEM"],
            "the path between nodes": ["NET/Socket"],
        },
        "n3": {"the path inside a node": ["P2P/CUMEM"], "the path between nodes": ["NET/IB/GDRDMA"]},
        "n4": {"the path inside a node": ["P2P/CUMEM"], "the path between nodes": ["NET/IB/GDRDMA"]},
    }


_IB, _BOTH = {"the path between nodes": ["NET/IB/GDRDMA"]}, {"the path between nodes": ["NET/IB/GDRDMA", "NET/Socket"]}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({"n1": _IB, "n2": _IB}, {"n2": "NET/Socket/0"}, [("NET/IB/GDRDMA", "NET/Socket", ["n2"])]),
        ({"n1": _IB, "n2": _IB}, {}, []),
        ({"n1": _IB, "n2": _BOTH}, {"n2": "NET/Socket/0"}, []),  # took it before, among others
        ({"n1": _IB, "n2": {"the network": ["IB"]}}, {"n2": "NET/Socket/0"}, []),  # nothing was told of it
        (
            {f"n{n}": _IB for n in range(1, 5)},
            {"n1": "NET/IB/0", "n2": "NET/IB/0", "n3": "NET/IB/0", "n4": "NET/IB/0"},
            [("NET/IB/GDRDMA", "NET/IB", ["n1", "n2", "n3", "n4"])],
        ),
        ({}, {"n2": "NET/Socket/0"}, []),
    ],
    ids=["one-node", "same", "among-others", "not-told", "all-nodes", "nothing-before"],
)
def test_changes_since_an_earlier_run(
    before: dict[str, dict[str, list[str]]], now: dict[str, str], expected: list[tuple[str, str, list[str]]]
) -> None:
    found = changes(before, ring(**now))
    assert [(" + ".join(one.before), " + ".join(one.now), list(one.hosts)) for one in found] == expected
    assert all({fact.host for fact in one.facts} == set(one.hosts) for one in found)


def test_a_way_of_an_odd_form_is_kept_by_nobody() -> None:
    from dataclasses import replace

    network = info(0, "Using network IB")
    assert ways([network]) == {"n1": {"the network": ["IB"]}}
    assert ways([replace(network, data={**network.data, "network": "IB]; report 9"})]) == {}
    assert ways([replace(network, data={**network.data, "network": "x" * 81})]) == {}
