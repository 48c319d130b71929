from __future__ import annotations

import pytest

from nccl_slurm.capture.difference import changes
from nccl_slurm.capture.ownership import Holding, gpus_of_run, own_events
from nccl_slurm.model import Fact, Gap
from nccl_slurm.parse.kernel import kernel_facts

A1, B3 = "0000:a1:00", "0000:b3:00"
BEFORE = [{"minor": 1, "index": 0, "bus_id": A1}, {"minor": 0, "index": 1, "bus_id": B3}]


def facts(*lines: str) -> list[Fact]:
    return kernel_facts([(1700000000.0, line) for line in lines], "n1")


def xid(bus: str, code: int = 79) -> str:
    return f"NVRM: Xid (PCI:{bus}): {code}, GPU has fallen off the bus."


def kept(held: Holding, *lines: str) -> tuple[list[Fact], list[str]]:
    gaps: list[Gap] = []
    return own_events(facts(*lines), held, gaps), [one.source for one in gaps]


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [("0", {B3}), ("1", {A1}), ("0,1", {A1, B3}), ("0-1", {A1, B3}), ("7", None), ("", None), ("GPU-aaaa", None)],
)
def test_slurm_counts_gpus_as_dev_nvidia_does(numbers: str, expected: set[str] | None) -> None:
    found = gpus_of_run({"SLURM_JOB_GPUS": numbers}, BEFORE)
    assert found == (None if expected is None else frozenset(expected))


def test_without_minor_numbers_the_order_of_the_bus_counts() -> None:
    assert gpus_of_run({"SLURM_JOB_GPUS": "0"}, [{**gpu, "minor": None} for gpu in BEFORE]) == frozenset({A1})


def test_without_a_snapshot_nothing_is_known() -> None:
    assert gpus_of_run({"SLURM_JOB_GPUS": "0"}, None) is None


@pytest.mark.parametrize("alone", [True, False])
def test_an_xid_of_another_gpu_is_not_this_runs(alone: bool) -> None:
    found, gaps = kept(Holding(frozenset({A1}), alone, 42, 7001), xid(A1), xid(B3), xid("00000000:A1:00"))
    assert [fact.data["pci"] for fact in found] == [A1, A1]
    assert gaps == ["kernel events of other runs"]


def test_alone_on_the_node_everything_is_this_runs() -> None:
    found, gaps = kept(Holding(None, True, 42, None), xid(A1), xid(B3))
    assert [fact.role for fact in found] == ["cause", "cause"] and gaps == []


def test_an_xid_whose_owner_cannot_be_told_accuses_nobody() -> None:
    found, gaps = kept(Holding(None, False, 42, 7001), xid(A1))
    assert [(fact.role, fact.hint) for fact in found] == [("context", None)]
    assert gaps == ["kernel event owner"]


def test_a_switch_is_shared_by_all_gpus() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Fatal, Link 46 Minion Link DLREQ interrupt"
    found, _ = kept(Holding(frozenset({A1}), True, 42, None), line)
    assert len(found) == 1


OOM = (
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0,oom_memcg=/slurm/uid_7001/job_{job},"
)
OOM += "task_memcg=/slurm/uid_7001/job_{job}/step_0,task=python,pid=8121,uid=7001"
KILLED = "Out of memory: Killed process 8121 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, UID:{uid} pgtables:1kB"


@pytest.mark.parametrize(("job", "expected"), [(42, 1), (421, 0), (7, 0)])
def test_an_oom_kill_names_its_job(job: int, expected: int) -> None:
    assert len(kept(Holding(None, False, 42, 7001), OOM.format(job=job))[0]) == expected


def test_an_oom_kill_of_another_user_is_not_this_runs() -> None:
    held = Holding(None, False, 42, 7001)
    assert kept(held, KILLED.format(uid=7002))[0] == []
    (same,) = kept(held, KILLED.format(uid=7001))[0]
    assert (same.role, same.hint) == ("context", None), "the same user may have two jobs here"


def readings(**more: object) -> dict[str, object]:
    gpu = {
        "bus_id": A1,
        "uuid": "GPU-aaaa",
        "ecc": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "sram_threshold_exceeded": False},
        "remapped": {"pending": False, "failure": False},
        "recovery_action": "None",
    }
    return {"end": 1700000000.0, "gpus": [{**gpu, **more}], "ports": None}


@pytest.mark.parametrize(
    ("more", "kind", "role", "hint"),
    [
        ({"ecc": {"volatile_uncorrected": 2}}, "gpu.ecc-uncorrected", "cause", "gpu-hw-ecc"),
        ({"remapped": {"pending": False, "failure": True}}, "gpu.remap-failure", "cause", "gpu-hw-ecc"),
        ({"remapped": {"pending": True, "failure": None}}, "gpu.remap-pending", "context", None),
        ({"recovery_action": "Node Reboot"}, "gpu.recovery-action", "context", None),
        ({"bus_id": "0000:ff:00"}, "gpu.missing", "cause", "gpu-hw-lost"),
    ],
)
def test_what_changed_on_a_gpu(more: dict[str, object], kind: str, role: str, hint: str | None) -> None:
    (fact,) = changes(readings(), readings(**more), None, "n1")
    assert (fact.kind, fact.role, fact.hint, fact.trust, fact.host) == (kind, role, hint, "root", "n1")
    assert fact.data["bus_id"] == A1 and fact.time is None


def test_what_did_not_change_says_nothing() -> None:
    old = readings(
        ecc={"volatile_uncorrected": 3}, remapped={"pending": True, "failure": True}, recovery_action="Reset"
    )
    assert changes(old, old, None, "n1") == []


def test_what_was_not_observed_says_nothing() -> None:
    unknown = readings(
        ecc={"volatile_uncorrected": None}, remapped={"pending": None, "failure": None}, recovery_action=None
    )
    for before, after in ((readings(), unknown), (unknown, unknown)):
        assert changes(before, after, None, "n1") == []
    assert changes(None, readings(), None, "n1") == changes(readings(), None, None, "n1") == []


@pytest.mark.parametrize("after", [None, []])
def test_a_query_that_failed_is_no_missing_gpu(after: list[object] | None) -> None:
    assert changes(readings(), {**readings(), "gpus": after}, None, "n1") == []


def test_another_runs_gpu_is_not_compared() -> None:
    assert changes(readings(), readings(ecc={"volatile_uncorrected": 9}), frozenset({B3}), "n1") == []


def test_ports_that_went_down() -> None:
    def port(state: str | None, downed: int) -> dict[str, object]:
        one = {"device": "mlx5_0", "port": "1", "state": state, "counters": {"link_downed": downed}}
        return {"end": 1.0, "gpus": None, "ports": [one]}

    found = changes(port("ACTIVE", 1), port("DOWN", 3), None, "n1")
    assert [(fact.kind, fact.role) for fact in found] == [("port.state", "context"), ("port.link-downed", "context")]
    assert changes(port("ACTIVE", 1), port(None, 1), None, "n1") == []
