"""Polls and settings → what the guards ask; and a diagnosis that is given a history and a site."""

from __future__ import annotations

from typing import Any

from nccl_slurm.config import Config, loads
from nccl_slurm.daemon.diagnose import Parts, diagnose
from nccl_slurm.daemon.site import Layout, site
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Parsed
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.recommend.site import NodeNow, Running
from nccl_slurm.scheduler.client import LiveJob, NodeState
from tests.attribute.scenarios import HANG, job
from tests.collect.test_shared import record
from tests.recommend.past import NOW, after_reboots, line, machine

NODES = [
    NodeState("n1", "IDLE", frozenset({"DRAIN", "REBOOT_ISSUED"}), "x : reboot issued", boot_time=5.0),
    NodeState("n2", "MIXED"),
]
JOBS = [
    LiveJob(43, "43_1", "a", "RUNNING", user="bob", nodes=("n2", "n3")),
    LiveJob(44, "44", "b", "PENDING", user="al", nodes=()),
    LiveJob(45, "45", "c", "COMPLETED", user="al", nodes=("n2",)),
]


def row(**role: Any) -> RecordRow:
    facts = [fact.to_json() for fact in kernel_facts([(HANG, line(79))], "n2")]
    taken = record(node="n2", kernel_events=facts)
    taken["machine"] = {**taken["machine"], "identity": "i-0123456789abcdef0", "role": role}
    return RecordRow("test", 42, 1, "n2", HANG, "", False, taken)


def test_what_is_polled() -> None:
    found = site(Config(), ("c1",), NODES, JOBS, open_={"n7": "reboot"})
    assert found.now["n1"] == NodeNow("IDLE+DRAIN+REBOOT_ISSUED", "x : reboot issued", booted=5.0)
    assert found.jobs == {"n1": [], "n2": [Running("43_1", "bob", 2)], "n3": [Running("43_1", "bob", 2)]}
    assert (found.kind, found.controllers, found.open, found.nodes) == ("slurm", ("c1",), {"n7": "reboot"}, 2)


def test_what_seldom_changes() -> None:
    settings = loads("[site]\nlogin_nodes = ['l1']\ndatabase_hosts = ['db2']", "x.toml")
    nodes = [NodeState("n1", "IDLE", hostname="head1", address="head1"), NodeState("n2", "IDLE", address="10.0.0.2")]
    found = site(settings, ("c1",), nodes, None, layout=Layout(("db1",), {"n1": "leaf1"}))
    assert (found.databases, found.logins) == (["db1", "db2"], ["l1"])
    assert [(one.switch, one.hosts) for one in found.now.values()] == [("leaf1", ("head1",)), (None, ("10.0.0.2",))]


def test_what_was_not_asked_is_not_said() -> None:
    found = site(Config(), (), None, None)
    assert (found.now, found.jobs, found.nodes) == ({}, {}, None)


def test_hyperpod_by_records_or_by_settings() -> None:
    settings = loads("[site]\nkind = 'hyperpod'\naws_cluster = 'ml-1'\nregion = 'us-west-2'", "x.toml")
    told = site(settings, (), None, None)
    assert (told.kind, told.aws_cluster, told.region) == ("hyperpod", "ml-1", "us-west-2")
    assert site(Config(), (), None, None, [row(slurmctld_running=False, node_type="compute")]).kind == "hyperpod"


def test_a_diagnosis_with_a_history() -> None:
    one = row(slurmctld_running=False, node_type=None)
    parts = Parts(
        job(),
        [one],
        [],
        Parsed(),
        ("c1",),
        machines={"n2": machine(*after_reboots(1, 79))},
        site=site(Config(), ("c1",), None, JOBS, [one]),
        now=NOW,
    )
    made = diagnose(parts, "final")
    assert made.comment == "[nccl-slurm: n2 stalled first (gpu-hw-lost, Xid 79); replace n2; report 42]"
    assert "1 job ran there when this was judged" in made.report["recommendations"][0]["why"]
    bare = diagnose(Parts(job(), [one], [], Parsed(), ("c1",)), "final")
    assert bare.comment == "[nccl-slurm: n2 stalled first (gpu-hw-lost, Xid 79); reboot n2; report 42]"
