"""The readers, with the texts that 22.05, 24.11 and 26.05 print (host names and times changed)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.errors import SlurmError, SlurmRefused
from nccl_slurm.scheduler import text
from nccl_slurm.scheduler.client import Controller

NODE_22 = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=3 CPUEfctv=8 CPUTot=8 CPULoad=0.37 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:4 NodeAddr=127.0.0.1 NodeHostName=n1 Port=6821 Version=22.05.8 "
    "OS=Linux 6.1.0 #1 SMP PREEMPT_DYNAMIC @0  RealMemory=2000 AllocMem=0 FreeMem=23407 Sockets=8 Boards=1 "
    "State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main  "
    "BootTime={boot} SlurmdStartTime=1795968200 LastBusyTime=1795968364 CfgTRES=cpu=8,mem=2000M,billing=8,gres/gpu=4 "
    "AllocTRES= CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{free}\n"
)
NODE_26 = (
    "NodeName=n2 Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=8 CPUTot=8 CPULoad=0.10 AvailableFeatures=(null) "
    "ActiveFeatures=(null) Gres=gpu:4 NodeAddr=127.0.0.1 NodeHostName=n2 Version=26.05.5 "
    "OS=Linux 6.12.0 #1 SMP  RealMemory=2000 AllocMem=0 FreeMem=100 Sockets=8 Boards=1 "
    "State=DOWN+DRAIN+NOT_RESPONDING ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main  "
    "BootTime=None SlurmdStartTime=2026-11-29T16:03:20 LastBusyTime=2026-11-29T16:03:38 ResumeAfterTime=None "
    "CfgTRES=cpu=8 AllocTRES= CurrentWatts=0 AveWatts=0  Reason=Not responding [slurm@2026-11-29T16:10:00] "
    "InstanceId=i-1 InstanceType=p5 \n"
)


def node(state: str = "IDLE", boot: str = "1795967390", free: str = "") -> str:
    return NODE_22.format(state=state, boot=boot, free=free)


def test_a_node_that_is_well() -> None:
    (found,) = text.read_nodes(node())
    assert (found.name, found.state, found.flags, found.reason) == ("n1", "IDLE", frozenset(), None)
    assert (found.boot_time, found.slurmd_start, found.version) == (1795967390.0, 1795968200.0, "22.05.8")
    assert not found.failed


@pytest.mark.parametrize(
    ("printed", "gpus"),
    [
        ("gpu:4", 4),
        ("gpu:h100:8(S:0-1)", 8),
        ("gpu:a100:4(S:0),gpu:l4:2(S:1),shard:32", 6),
        ("nic:2", 0),
        ("(null)", 0),
        ("gpu:1g.10gb:7(S:0)", None),
        ("gpu:a100:1,gpu:a100_3g.20gb:2", None),
    ],
)
def test_gpus_that_slurm_has_for_a_node(printed: str, gpus: int | None) -> None:
    (found,) = text.read_nodes(node().replace("Gres=gpu:4", f"Gres={printed}"))
    assert found.gpus == gpus


def test_a_dead_node_of_26() -> None:
    (found,) = text.read_nodes(NODE_26)
    assert found.state == "DOWN"
    assert found.flags == {"DRAIN", "NOT_RESPONDING"}
    assert found.full_state == "DOWN+DRAIN+NOT_RESPONDING"
    assert (found.reason, found.reason_by, found.reason_at) == ("Not responding", "slurm", 1795968600.0)
    assert found.boot_time is None
    assert found.failed


def test_reason_and_comment_of_administrators_forge_nothing() -> None:
    free = (
        " Reason=ECC errors | gpu 3, [x@y] 'q' State=DOWN BootTime=5 [root@1795968401]"
        " Comment=c State=DOWN Reason=evil [root@1] Extra=ex tra"
    )
    (found,) = text.read_nodes(node("IDLE+DRAIN", free=free))
    assert found.state == "IDLE"
    assert found.flags == {"DRAIN"}
    assert found.reason == "ECC errors | gpu 3, [x@y] 'q' State=DOWN BootTime=5"
    assert (found.reason_by, found.reason_at, found.boot_time) == ("root", 1795968401.0, 1795967390.0)


def test_a_comment_without_a_reason_is_no_reason() -> None:
    (found,) = text.read_nodes(node(free=" Comment=x Reason=evil [root@1]"))
    assert found.reason is None


def test_reason_of_several_lines() -> None:
    free = " Reason=line one [root@1795968795]        NodeName=evil State=DOWN        line three"
    (found,) = text.read_nodes(node("IDLE+DRAIN", free=free))
    assert found.reason == "line one NodeName=evil State=DOWN line three"
    assert found.reason_by == "root"


def test_several_nodes_and_rubbish_between() -> None:
    found = text.read_nodes("banner\n" + node() + "NodeName=broken\n" + NODE_26)
    assert [each.name for each in found] == ["n1", "n2"]


@pytest.mark.parametrize(
    ("printed", "base", "flags"),
    [
        ("IDLE", "IDLE", set()),
        ("DOWN*+DRAIN", "DOWN", {"DRAIN", "NOT_RESPONDING"}),
        ("IDLE+DRAIN+REBOOT_REQUESTED", "IDLE", {"DRAIN", "REBOOT_REQUESTED"}),
        ("BOOT^", "BOOT", {"REBOOT_ISSUED"}),
        ("IDLE~", "IDLE", {"POWERED_DOWN"}),
        ("mix#", "MIX", {"POWERING_UP"}),
        ("DRAINED*", "IDLE", {"DRAIN", "NOT_RESPONDING"}),
        ("DRAINING", "ALLOCATED", {"DRAIN"}),
        ("FAIL*", "FAIL", {"NOT_RESPONDING"}),
    ],
)
def test_states(printed: str, base: str, flags: set[str]) -> None:
    assert text.split_state(printed) == (base, frozenset(flags))


def bare(printed: str) -> str:
    """The same rows without their reasons, as sacctmgr prints them where it is not asked for these."""
    return "\n".join(line.rsplit("|", line.count("|") - 4)[0] for line in printed.split("\n"))


def test_a_reason_with_a_newline_makes_no_row() -> None:
    """What Slurm 22.05 printed: n1 was drained with two lines, of which the second one looks like a reboot of n2."""
    printed = (
        "n1|1796049236|1796049238|DRAIN|root(0)|NHC: check_ps_unauth_users: x\n"
        "n2|1796048636|1796048736|BOOT^|slurm(64030)|kernel : reboot issued\n"
        "and a third line\n"
        "n3|1796049300|Unknown|DOWN|root(0)|next\n"
    )
    rows = "n1|1796049236|1796049238|DRAIN|root(0)\nn3|1796049300|Unknown|DOWN|root(0)\n"
    one, other = text.read_events(rows, printed)
    assert (one.node, other.node, other.reason) == ("n1", "n3", "next")
    assert one.reason is not None and one.reason.startswith("NHC: check_ps_unauth_users: x n2|1796048636|")
    assert one.reason.endswith("reboot issued and a third line")
    (first, *_) = text.read_events(rows)
    assert first.reason is None


def test_two_rows_of_one_second() -> None:
    printed = "n1|5|5|DRAIN|root(0)|first\nn1|5|9|DRAIN|root(0)|second\n"
    found = text.read_events(bare(printed), printed)
    assert [(event.end, event.reason) for event in found] == [(5.0, "first"), (9.0, "second")]


def test_node_events() -> None:
    printed = (
        "|1795968200|Unknown|||Cluster Registered TRES\n"
        "n4|1795970357|1795970365|DOWN*|slurm(64030)|Not responding\n"
        "n1|1795970304|1795970306|DRAIN|root(0)|ECC errors | gpu 3, 'quoted' é\n"
        "n1|1795974398|Unknown|DOWN|slurm(64030)|Node unexpectedly rebooted\n"
        "n4|1795974769|1795974771|IDLE~||Powered down after SuspendTimeout\n"
        "n5|never|Unknown|DOWN|x|y\nrubbish\n"
    )
    found = text.read_events(bare(printed), printed)
    assert [event.node for event in found] == ["n1", "n4", "n1", "n4"]
    assert found[0].reason == "ECC errors | gpu 3, 'quoted' é"
    assert (found[1].state, found[1].end) == ("DOWN", 1795970365.0)
    assert found[1].flags == {"NOT_RESPONDING"}
    assert found[2].end is None
    assert found[3].user is None


CONFIG = """Configuration data as of 2026-11-29T16:03:40
AccountingStorageTRES   = cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu
AccountingStorageType   = accounting_storage/slurmdbd
AccountingStoreFlags    = JOB_COMMENT,JOB_EXTRA
ClusterName             = lab
SlurmUser               = slurm(64030)
SlurmctldHost[0]        = ctl(10.0.0.1)
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at ctl is UP
"""


def test_config() -> None:
    found = text.read_config(CONFIG)
    assert (found.cluster, found.version, found.slurm_user, found.slurm_uid) == ("lab", (22, 5), "slurm", 64030)
    assert found.accounting
    assert found.stores_comments
    assert found.tracks_gpus
    bare = text.read_config("ClusterName = x\nAccountingStorageType = (null)\nAccountingStoreFlags = (null)\n")
    assert (bare.accounting, bare.stores_comments, bare.tracks_gpus, bare.version) == (False, False, False, None)


@pytest.mark.parametrize(
    ("line", "reboots"), [("RebootProgram = /sbin/reboot\n", True), ("RebootProgram = (null)\n", False), ("", None)]
)
def test_whether_slurm_can_reboot(line: str, reboots: bool | None) -> None:
    assert text.read_config(f"ClusterName = x\n{line}").reboots is reboots


@pytest.mark.parametrize(
    ("line", "started"), [("BOOT_TIME = 2026-12-01T16:28:07\n", True), ("BOOT_TIME = N/A\n", False), ("", False)]
)
def test_when_slurmctld_began(line: str, started: bool) -> None:
    assert (text.read_config(f"ClusterName = x\n{line}").started is not None) is started


def test_config_without_a_cluster_is_refused() -> None:
    with pytest.raises(SlurmRefused, match="names no cluster"):
        text.read_config("slurm_load_ctl_conf error: whatever\n")


def test_controllers() -> None:
    banner = "*****\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n*****\n"
    printed = "Slurmctld(primary) at vm is DOWN\nSlurmctld(backup1) at b1 is UP\nSlurmctld(backup2) at b2 is DOWN\n"
    assert text.read_controllers(printed + banner) == (
        Controller("vm", "primary", False),
        Controller("b1", "backup", True),
        Controller("b2", "backup", False),
    )


@pytest.mark.parametrize(
    ("printed", "version"),
    [("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.5", (24, 11)), ("26.05.5", (26, 5)), ("", None)],
)
def test_version(printed: str, version: tuple[int, int] | None) -> None:
    assert text.read_version(printed) == version


def test_modified_jobs() -> None:
    printed = " Modified jobs...\n  1 submitted at 2026-11-29T16:03:38\n  9 submitted at 2026-11-29T16:03:38\n"
    assert text.modified_jobs(printed) == {1, 9}
    assert text.modified_jobs(" Nothing modified\n") == frozenset()


def test_exit_codes() -> None:
    assert text.exit_pair("3:0") == "3:0"
    assert text.exit_pair("768") == "3:0"
    assert text.exit_pair("9") == "0:9"
    assert text.exit_pair("253") == "0:125"
    assert text.exit_pair("") is None


def test_gpus() -> None:
    assert text.gpus_of("billing=2,cpu=2,gres/gpu=4,node=2", tracked=True) == 4
    assert text.gpus_of("gres/gpu:h100=8,gres/gpu:a100=2", tracked=True) == 10
    assert text.gpus_of("gres/gpu=8,gres/gpu:h100=8", tracked=True) == 8
    assert text.gpus_of("cpu=1", tracked=True) == 0
    assert text.gpus_of("cpu=1", tracked=False) is None
    assert text.gpus_of("", tracked=True) is None


def test_times() -> None:
    assert text.time_of("1795968218") == 1795968218.0
    assert text.time_of("2026-11-29T16:03:38") == 1795968218.0
    for nothing in (None, "", "0", "Unknown", "NONE", "None", "2026-13-41T99:99:99", "٣"):
        assert text.time_of(nothing) is None


def test_hosts() -> None:
    assert text.hosts_of("n[1-2],m5") == ("m5", "n1", "n2")
    for nothing in ("None assigned", "", "(null)", "@all", "n[1-999999999]", "a b"):
        assert text.hosts_of(nothing) == ()


def test_a_record_of_the_wrong_width_is_refused() -> None:
    with pytest.raises(SlurmRefused, match="unknown form"):
        text.records("a~b~c~\n", "~", ("one", "two"))
    with pytest.raises(SlurmRefused, match="unknown form"):
        text.records("a~b~\nand more", "~", ("one", "two"))
    assert text.records("", "~", ("one", "two")) == []


@given(st.lists(st.tuples(st.text(), st.text(), st.text())))
def test_records_give_back_what_users_wrote(rows: list[tuple[str, str, str]]) -> None:
    delimiter = "~0123456789abcdef~"
    # Slurm's own number comes first, so that no field of a user begins a record
    wanted = [(str(number), *row) for number, row in enumerate(rows)]
    printed = "".join("".join(field + delimiter for field in row) + "\n" for row in wanted)
    found = text.records(printed, delimiter, ("id", "a", "b", "c"))
    assert [tuple(row.values()) for row in found] == wanted


@given(st.text())
def test_no_reader_raises_anything_but_slurm_errors(printed: str) -> None:
    assert isinstance(text.read_nodes(printed), tuple)
    assert isinstance(text.read_nodes("NodeName=n1 State=" + printed), tuple)
    assert isinstance(text.read_events(printed, printed), tuple)
    assert isinstance(text.read_events(f"n1|5|{printed}|DOWN|x", f"n1|5|{printed}|DOWN|x|y"), tuple)
    assert isinstance(text.read_controllers(printed), tuple)
    assert isinstance(text.modified_jobs(printed), frozenset)
    assert isinstance(text.split_state(printed), tuple)
    assert isinstance(text.hosts_of(printed), tuple)
    text.time_of(printed), text.exit_pair(printed), text.gpus_of(printed, tracked=True), text.read_version(printed)
    for reader in (lambda: text.records(printed, "~", ("a", "b")), lambda: text.read_config(printed)):
        try:
            reader()
        except SlurmError as error:
            assert "\n" not in str(error)


#: Lines of 22.05's; ``localhost`` is that of the host that another line names.
CONFIGURATION = """Configuration data as of 2026-11-30T14:53:12
AccountingStorageBackupHost  = (null)
AccountingStorageHost  = db1.example
AccountingStoragePort  = 6819

SLURMDBD configuration:
DbdAddr                = 10.0.0.7
DbdBackupHost          = db2
DbdHost                = localhost
StorageBackupHost      = (null)
StorageHost            = 127.0.0.1
"""


def test_hosts_of_the_database() -> None:
    assert text.read_database_hosts(CONFIGURATION) == ("db1.example", "10.0.0.7", "db2")
    assert text.read_database_hosts("sacctmgr: error: whatever") == ()
    assert text.read_config("ClusterName = x\n" + CONFIGURATION).database_hosts == ("db1.example",)


def test_leaves_of_the_tree_of_switches() -> None:
    printed = (
        "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-2]\n"
        "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n3,n4\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=leaf[1-2]\n"
    )
    assert text.read_switches(printed) == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}
    assert text.read_switches("BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n") == {}


def test_the_names_of_a_node() -> None:
    (found,) = text.read_nodes(node().replace("NodeHostName=n1", "NodeHostName=head1"))
    assert (found.name, found.hostname, found.address) == ("n1", "head1", "127.0.0.1")
