"""The kernel's tables of addresses → those by which other nodes can mean this one."""

from __future__ import annotations

import pytest

from nccl_slurm.doctor.read.addresses import addresses

TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 127.0.0.0/8 2 0 2
        +-- 127.0.0.0/31 1 0 0
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
     |-- 10.1.0.0
        /24 link UNICAST
     |-- 10.1.0.5
        /32 host LOCAL
     |-- 10.1.0.255
        /32 link BROADCAST
     |-- 169.254.3.1
        /32 host LOCAL
     |-- 999.1.0.5
        /32 host LOCAL
Local:
     |-- 10.1.0.5
        /32 host LOCAL
"""
SIX = """00000000000000000000000000000001 01 80 10 80       lo
fe80000000000000021122fffe334455 02 40 20 80     eth0
fd00000000000000000000000000000a 02 40 00 80     eth0
"""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/net/fib_trie": TRIE}, {"10.1.0.5"}),
        ({"/proc/net/if_inet6": SIX}, {"fd00::a"}),
        ({"/proc/net/fib_trie": TRIE, "/proc/net/if_inet6": SIX}, {"10.1.0.5", "fd00::a"}),
        ({"/proc/net/fib_trie": "no table\n"}, set()),
        ({}, set()),
    ],
)
def test_a_nodes_own_addresses(files: dict[str, str], expected: set[str]) -> None:
    assert addresses(files) == expected
