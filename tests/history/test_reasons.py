"""Reason of a node → row, class, owner, hardware; texts as Slurm, agents and people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.errors import ConfigError
from nccl_slurm.history.reasons import OWNERS, Reason, load, packaged
from nccl_slurm.model import CLASSES

TABLE: list[tuple[str | None, str | None, str | None, str, bool | None]] = [
    # reason, id, class, owner, hardware
    (None, None, None, "unknown", None),
    ("  ", None, None, "unknown", None),
    # Slurm
    ("Not responding", "not-responding", "slurm-node-fail", "slurm", None),
    ("Node unexpectedly rebooted", "unexpectedly-rebooted", "slurm-node-fail", "slurm", None),
    ("Kill task failed", "kill-task-failed", "slurm-launch", "slurm", None),
    ("batch job complete failure", "batch-job-complete-failure", None, "slurm", None),
    ("Prolog error", "prolog-error", "slurm-launch", "slurm", None),
    ("Epilog error", "epilog-error", None, "slurm", None),
    ("gres/gpu count reported lower than configured (7 < 8)", "gres-count", "gpu-hw-lost", "slurm", None),
    ("Low RealMemory (reported:515434 < 100.00% of configured:515435)", "low-resources", None, "slurm", None),
    ("kernel update : reboot issued", "reboot-issued", None, "slurm", None),
    ("kernel update : reboot issued : reboot timed out", "reboot-timed-out", None, "slurm", None),
    ("Reboot ASAP", "reboot-issued", None, "slurm", None),
    # power saving and clouds
    ("Powered down after SuspendTimeout", "powered-down", None, "cloud", False),
    ("ResumeTimeout reached", "resume-timeout", None, "cloud", None),
    ("bad fan : ResumeTimeout reached", "resume-timeout", None, "cloud", None),
    ("(Code:InsufficientInstanceCapacity)Failure when resuming nodes", "cloud-capacity", None, "cloud", False),
    ("Static node maintenance: unhealthy node is being replaced", "cloud-replacement", None, "cloud", None),
    # SageMaker HyperPod
    ("Action:Reboot", "hyperpod-action", None, "hyperpod", None),
    ("Action:Replace", "hyperpod-action", None, "hyperpod", None),
    ("XidHardwareFailure: Xid 79", "hyperpod-health", "gpu-hw-lost", "hyperpod", True),
    # NHC
    ("NHC: check_fs_mount:  /data not mounted", "nhc", None, "nhc", None),
    ("NHC: check_hw_mcelog: MCE log server reports errors", "nhc-hardware", None, "nhc", True),
    ("NHC: check_ps_unauth_users: root's sshd", "nhc-processes", None, "nhc", False),
    # soperator, Slinky
    ("[node_problem] Failed gpu-fryer: job 12 [slurm_job]", "soperator-node", None, "soperator", None),
    ("[hardware_problem] GPU check failed : reboot issued", "soperator-hardware", None, "soperator", True),
    ("[user_problem] boot_disk_full", "soperator-user", None, "soperator", False),
    ("[compute_maintenance] node replacement process", "soperator-maintenance", None, "soperator", None),
    ("slurm-operator: Pod is terminating", "slinky-pod", None, "slinky", False),
    ("slurm-operator: (GpuCountMismatch: Node has 3, expected 4)", "slinky", None, "slinky", None),
    # OCI, Azure
    ("Healthcheck:: RDMA link flapping", "oci-healthcheck", None, "oci", None),
    ("check_gpu_count: Expected 8, found 7. FaultCode: NHC2009", "azure-gpu-count", "gpu-hw-lost", "azure", None),
    ("ERROR:  nhc:  Health check failed:  check_gpu_ecc: x. FaultCode: NHC2001", "azure-nhc", None, "azure", None),
    # ourselves and people
    ("nccl-slurm: gpu-hw-lost, report 42", "nccl-slurm", None, "nccl-slurm", None),
    ("maintenance: new kernel", "maintenance", None, "person", None),
    ("ECC errors | gpu 3, 'quoted' é", None, None, "person", None),
    ("it was not responding to ping, PSU swapped", None, None, "person", None),
    ("does this look like a prolog error?", None, None, "person", None),
    ("waiting for Action:Replace", None, None, "person", None),
    ("kernel update : reboot issued : reboot timed out", "reboot-timed-out", None, "slurm", None),
    ("reboot timed out", "reboot-timed-out", None, "slurm", None),
    ("Reboot ASAP : reboot issued", "reboot-issued", None, "slurm", None),
    ("fan 3: last reboot timed out, ask bob", None, None, "person", None),
    ("GPU 3 bad, reboot requested from the vendor", None, None, "person", None),
]


@pytest.mark.parametrize(
    ("reason", "row", "failure_class", "owner", "hardware"), TABLE, ids=[repr(t[0]) for t in TABLE]
)
def test_reasons(
    reason: str | None, row: str | None, failure_class: str | None, owner: str, hardware: bool | None
) -> None:
    assert packaged().classify(reason, "root") == Reason(row, failure_class, owner, hardware)


def test_who_wrote_what_no_row_knows_is_unknown_where_slurm_does_not_tell() -> None:
    assert packaged().classify("fan is loud") == Reason(None, None, "unknown", None)


@pytest.mark.parametrize("row", packaged().rows, ids=lambda row: str(row["id"]))
def test_rows_are_whole_and_find_themselves(row: dict[str, object]) -> None:
    assert row["owner"] in OWNERS and row["hardware"] in (True, False, "unknown")
    assert row.get("class") in (None, *CLASSES)
    assert row.get("at") in (None, "start", "clause")
    words = row["match"]
    assert isinstance(words, list)
    assert [packaged().classify(f"{word} n1").id for word in words] == [row["id"]] * len(words)


@given(st.text(max_size=80), st.none() | st.text(max_size=10))
def test_any_text_has_an_owner(reason: str, by: str | None) -> None:
    assert packaged().classify(reason, by).owner in OWNERS


ROW = {
    "id": "robot",
    "match": ["robot"],
    "owner": "robot",
    "hardware": True,
    "means": "it says so",
    "source": "our own",
}


def toml(**changes: object) -> str:
    row = {key: value for key, value in {**ROW, **changes}.items() if value is not None}
    shown = {True: "true", False: "false"}
    lines = [f"{key} = {shown[value] if isinstance(value, bool) else repr(value)}" for key, value in row.items()]
    return "\n".join(["[[reason]]", *lines, ""])


@pytest.mark.parametrize(
    ("texts", "reason", "told"),
    [
        ([toml()], "Robot: fan 3", Reason("robot", None, "robot", True)),
        ([toml(match=["Not   responding"], hardware=False)], "not responding", Reason("robot", None, "robot", False)),
        ([toml(), toml(hardware="unknown")], "robot", Reason("robot", None, "robot", None)),
        ([toml(at="start")], "ask the robot", Reason(None, None, "person", None)),
        ([toml(**{"class": "gpu-hw-lost"})], "robot", Reason("robot", "gpu-hw-lost", "robot", True)),
        # in the place of ours: its words alone count then
        ([toml(id="nhc", match=["robot"], owner="nhc")], "NHC: x", Reason(None, None, "person", None)),
        ([toml()], "Not responding", packaged().classify("Not responding")),
        ([], "robot", Reason(None, None, "person", None)),
    ],
)
def test_rows_of_a_site(texts: list[str], reason: str, told: Reason) -> None:
    assert load(texts).classify(reason, "root") == told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = ", "not TOML"),
        ("reason = 3", "must be an array of tables"),
        (toml(id=None), "id must be text"),
        (toml(source=" "), "source must be text"),
        (toml(match="robot"), "match must be a list of texts"),
        (toml(match=[]), "match must be a list of texts"),
        (toml(match=["", "x"]), "match must be a list of texts"),
        (toml(hardware="yes"), 'hardware must be true, false or "unknown"'),
        (toml(hardware=1), "hardware must be"),
        (toml(under_way="true"), "under_way must be true or false"),
        (toml(at="end"), "at must be one of start, clause"),
        (toml(**{"class": "broken"}), "class must be one of"),
        (toml(on="job"), 'on must be "node"'),
        (toml(owner="x" * 41), "owner may have 40 characters"),
        (toml(colour="red"), "unknown key 'colour'"),
    ],
)
def test_a_wrong_row_of_a_site_says_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        load([text])
