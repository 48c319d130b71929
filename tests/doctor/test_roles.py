"""A host that may be a controller, a database or a login by any of its names is no compute node."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from nccl_slurm.doctor.roles import addresses_of, compute_nodes, controller_hosts, database_hosts
from nccl_slurm.install.slurmconf import values
from nccl_slurm.scheduler.client import NodeState

DNS = {"ctl": "10.0.0.7", "head": "10.0.0.7", "n1": "10.0.0.1", "n2": "10.0.0.2", "db": "10.0.0.2"}


def resolve(hosts: Collection[str]) -> dict[str, frozenset[str]]:
    known = {**DNS, **{address: address for address in DNS.values()}}
    return {host: frozenset({known[host]} if host in known else ()) for host in hosts}


def node(name: str, address: str | None = None, host: str | None = None) -> NodeState:
    return NodeState(name, "IDLE", address=address, hostname=host)


@pytest.mark.parametrize(
    ("config", "pinged", "others", "nodes", "compute"),
    [
        ("SlurmctldHost[0] = ctl", ["ctl"], [], [node("n1"), node("n2")], {"n1", "n2"}),
        ("SlurmctldHost[0] = ctl(10.0.0.7)", ["ctl"], [], [node("n7", "10.0.0.7"), node("n1")], {"n1"}),
        ("SlurmctldHost[0] = odd(10.0.0.7)", ["odd"], [], [node("n7", "10.0.0.7"), node("n1")], {"n1"}),
        ("SlurmctldHost[0] = ctl", ["ctl"], [], [node("head"), node("n1")], {"n1"}),  # one host, two names
        ("SlurmctldHost[0] = n9\nSlurmctldHost[1] = ctl", ["n9", "ctl"], [], [node("n1")], set()),  # n9: not known
        ("SlurmctldHost[0] = ctl", ["ctl"], ["db"], [node("n2"), node("n1")], {"n1"}),
        ("SlurmctldHost[0] = ctl", ["ctl"], ["db9"], [node("n1")], set()),  # db9: any node may be it
        ("SlurmctldHost[0] = ctl", ["ctl"], ["login1"], [node("n2", "10.0.0.2", "login1.x.org")], set()),
        ("SlurmctldHost[0] = ctl", ["ctl"], [], [node("n3")], set()),  # has no address that is known here
        ("", ["10.0.0.7"], [], [node("n7", "ctl"), node("n1")], {"n1"}),
        ("", [], [], [node("n1")], set()),
    ],
)
def test_compute_nodes(
    config: str, pinged: Sequence[str], others: Sequence[str], nodes: Sequence[NodeState], compute: set[str]
) -> None:
    assert compute_nodes(nodes, controller_hosts(values(config), pinged), others, resolve) == compute


def test_hosts_of_databases() -> None:
    text = "AccountingStorageHost = db1\nAccountingStorageExternalHost = db2:6819,db3(10.0.0.3)\nAuthInfo = (null)\n"
    assert database_hosts(values(text)) == [("db1",), ("db2",), ("db3", "10.0.0.3")]


def test_addresses() -> None:
    found = addresses_of(["192.0.2.7", "no name at all", "127.0.0.1"], limit_s=20)
    assert found["192.0.2.7"] == {"192.0.2.7"} and "127.0.0.1" in found["127.0.0.1"]
    assert not found.get("no name at all")
