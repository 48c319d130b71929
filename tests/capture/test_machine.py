from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.capture import machine, ports, snapshot
from nccl_slurm.capture.conf import Conf, from_environment
from nccl_slurm.model import Gap
from tests.capture.machine_tree import BOOT, hyperpod, plain_machine, write

TAG = "sys/devices/virtual/dmi/id/board_asset_tag"
UUID = "sys/devices/virtual/dmi/id/product_uuid"
REAL_UUID = "4c4c4544-0042-3510-8051-b4c04f573732"


def described(root: Path, gaps: list[Gap] | None = None, identity: str = "") -> dict[str, object]:
    return machine.describe(
        Conf(sysroot=str(root), identity=identity), "n1", machine.process_names(str(root)), [] if gaps is None else gaps
    )


def test_describes_a_plain_node(tmp_path: Path) -> None:
    assert described(plain_machine(tmp_path)) == {
        "identity": "n1",
        "identity_source": "node-name",
        "hostname": "ip-10-1-2-3",
        "boot_id": BOOT,
        "boot_time": 1700000000.0,
        "kernel": "6.1.0-lab",
        "role": {"slurmctld_running": False, "node_type": None},
    }


@pytest.mark.parametrize(
    ("files", "setting", "expected"),
    [
        ({TAG: "i-0abcdef0123456789\n", UUID: REAL_UUID}, "", ("i-0abcdef0123456789", "board_asset_tag")),
        ({TAG: "Not Specified\n", UUID: REAL_UUID.upper()}, "", (REAL_UUID, "dmi-uuid")),
        ({UUID: "00000000-0000-0000-0000-000000000000"}, "", ("n1", "node-name")),
        ({UUID: "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"}, "", ("n1", "node-name")),
        ({UUID: "03000200-0400-0500-0006-000700080009"}, "", ("n1", "node-name")),
        ({TAG: "i-0abcdef0123456789\n"}, "machine-7", ("machine-7", "capture.conf")),
        ({TAG: "i-0abcdef0123456789\n"}, "bad; identity", ("i-0abcdef0123456789", "board_asset_tag")),
    ],
)
def test_identity(tmp_path: Path, files: dict[str, str], setting: str, expected: tuple[str, str]) -> None:
    found = described(write(plain_machine(tmp_path), files), identity=setting)
    assert (found["identity"], found["identity_source"]) == expected


def test_a_controller_shows_by_its_process(tmp_path: Path) -> None:
    found = described(write(plain_machine(tmp_path), {"proc/500/comm": "slurmctld\n"}))
    assert found["role"] == {"slurmctld_running": True, "node_type": None}


def test_a_role_that_cannot_be_read_stays_unknown(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    found = described(tmp_path, gaps)
    assert found["role"] == {"slurmctld_running": None, "node_type": None}
    assert [one.source for one in gaps] == ["slurmctld process"]


@pytest.mark.parametrize("address", [False, True])
@pytest.mark.parametrize(
    ("group", "role"), [("controller-machine", "controller"), ("login", "login"), ("worker-group-1", "compute")]
)
def test_node_type_on_hyperpod(tmp_path: Path, group: str, role: str, address: bool) -> None:
    found = described(hyperpod(plain_machine(tmp_path), group, address=address))
    assert found["role"] == {"slurmctld_running": False, "node_type": role}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"InstanceGroups": 1}', '{"InstanceGroups": [1, {"Instances": 2}]}'])
def test_broken_hyperpod_files_tell_nothing(tmp_path: Path, text: str) -> None:
    root = write(hyperpod(plain_machine(tmp_path), "login"), {"opt/ml/config/resource_config.json": text})
    assert described(root)["role"] == {"slurmctld_running": False, "node_type": None}


def test_an_instance_of_no_group_tells_nothing(tmp_path: Path) -> None:
    root = write(hyperpod(plain_machine(tmp_path), "login"), {TAG: "i-0999999999\n"})
    assert described(root)["role"] == {"slurmctld_running": False, "node_type": None}


@pytest.mark.parametrize(("name", "expected"), [("n1", "n1"), ("../x y", ".._x_y"), ("n" * 300, "n" * 255)])
def test_node_name_fits_a_file_name(name: str, expected: str) -> None:
    assert machine.node_name({"SLURMD_NODENAME": name}) == expected


def test_limits_are_those_of_slurmstepd_first(tmp_path: Path) -> None:
    root = plain_machine(tmp_path)
    assert machine.limits_of(str(root), machine.process_names(str(root))) == {"memlock": 65536, "process": "slurmd"}
    write(
        root, {"proc/99/comm": "slurmstepd\n", "proc/99/limits": "Max locked memory    unlimited    unlimited  bytes\n"}
    )
    assert machine.limits_of(str(root), machine.process_names(str(root))) == {
        "memlock": "unlimited",
        "process": "slurmstepd",
    }


def port_files(state: str = "4: ACTIVE", downed: str = "3") -> dict[str, str]:
    base = "sys/class/infiniband/mlx5_0/ports/1"
    return {
        f"{base}/state": state + "\n",
        f"{base}/phys_state": "5: LinkUp\n",
        f"{base}/rate": "400 Gb/sec (4X NDR)\n",
        f"{base}/link_layer": "InfiniBand\n",
        f"{base}/counters/link_downed": downed + "\n",
        f"{base}/counters/port_xmit_data": "999\n",
        f"{base}/hw_counters/out_of_sequence": "12\n",
        f"{base}/hw_counters/np_cnp_sent": "N/A\n",
    }


def test_ports_with_the_counters_that_tell_of_trouble(tmp_path: Path) -> None:
    root = write(tmp_path, port_files())
    (root / "sys/class/infiniband/mlx5_0/device").mkdir()
    (root / "sys/class/infiniband/mlx5_0/device/driver").symlink_to("/sys/bus/pci/drivers/mlx5_core")
    gaps: list[Gap] = []
    assert ports.read_ports(str(root), gaps) == [
        {
            "device": "mlx5_0",
            "port": "1",
            "driver": "mlx5_core",
            "state": "ACTIVE",
            "phys_state": "LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
            "link_layer": "InfiniBand",
            "counters": {"link_downed": 3, "out_of_sequence": 12},
        }
    ]
    assert gaps == []


def test_no_ports_is_a_gap(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    assert ports.read_ports(str(tmp_path), gaps) is None
    assert [one.source for one in gaps] == ["ports"]


def test_a_snapshot_of_a_bare_machine_is_nothing_but_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gaps: list[Gap] = []
    taken = snapshot.take(Conf(sysroot=str(tmp_path / "none"), spool=str(tmp_path)), {}, gaps)
    assert taken["start"] <= taken["end"]
    assert {key for key, value in taken.items() if value is None} == {
        "gpus",
        "driver",
        "ports",
        "shm",
        "limits",
        "load",
        "gpu_processes",
    }
    assert {one.source for one in gaps} == {"gpus", "ports", "shm", "limits", "load"}


def test_a_snapshot_of_a_plain_machine(tmp_path: Path) -> None:
    root = str(plain_machine(tmp_path))
    taken = snapshot.take(Conf(sysroot=root, spool=str(tmp_path)), machine.process_names(root), [])
    assert taken["load"] == [0.5, 1.25, 2.0]
    assert taken["shm"]["size"] > 0 and 0 <= taken["shm"]["used"] <= taken["shm"]["size"]
    assert taken["disks"] and set(taken["disks"][0]) == {"path", "size", "free", "inodes_free"}


def test_a_typo_in_capture_conf_gives_the_default() -> None:
    read = from_environment(
        {"NCCL_SLURM_WORKER_LIMIT_S": "5m", "NCCL_SLURM_RETAIN_HOURS": "nan", "NCCL_SLURM_SHIP_UID": "x"}
    )
    assert (read.worker_limit_s, read.retain_hours, read.ship_uid) == (300.0, 72.0, None)
    read = from_environment(
        {"NCCL_SLURM_SHIP_UID": "64030", "NCCL_SLURM_SYSROOT": "/x/", "NCCL_SLURM_RETAIN_HOURS": "0"}
    )
    assert (read.ship_uid, read.sysroot, read.retain_hours) == (64030, "/x", 0.0)
