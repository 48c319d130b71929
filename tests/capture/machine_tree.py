"""A folder that stands in for a machine: /proc, /sys, /dev and /opt below it (NCCL_SLURM_SYSROOT)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

BOOT = "11111111-2222-3333-4444-555555555555"
EARLIER_BOOT = "99999999-8888-7777-6666-555555555555"
LIMITS = "Limit                     Soft Limit           Hard Limit           Units     \n"


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def plain_machine(root: Path, boot: str = BOOT) -> Path:
    """A compute node with nothing but a kernel and slurmd."""
    (root / "dev" / "shm").mkdir(parents=True)
    return write(
        root,
        {
            "proc/sys/kernel/random/boot_id": boot + "\n",
            "proc/sys/kernel/hostname": "ip-10-1-2-3\n",
            "proc/sys/kernel/osrelease": "6.1.0-lab\n",
            "proc/stat": "cpu  1 2 3\nbtime 1700000000\n",
            "proc/loadavg": "0.50 1.25 2.00 1/200 999\n",
            "proc/1/comm": "systemd\n",
            "proc/77/comm": "slurmd\n",
            "proc/77/limits": LIMITS
            + "Max locked memory         65536                unlimited            bytes     \n",
        },
    )


def hyperpod(root: Path, group: str, *, controller: str = "controller-machine", address: bool = False) -> Path:
    """The two files of SageMaker HyperPod that tell which instance group this machine is in."""
    instance = {"InstanceName": f"{group}-1", "InstanceId": "i-0abcdef0123456789", "CustomerIpAddress": "10.1.2.3"}
    other = {"InstanceName": "x-1", "InstanceId": "i-0fff", "CustomerIpAddress": "10.1.2.4"}
    groups = [{"Name": "x", "Instances": [other]}, {"Name": group, "Instances": [instance]}]
    write(
        root,
        {
            "opt/ml/config/resource_config.json": json.dumps({"InstanceGroups": groups}),
            "opt/ml/config/provisioning_parameters.json": json.dumps(
                {
                    "version": "1.0.0",
                    "workload_manager": "slurm",
                    "controller_group": controller,
                    "login_group": "login",
                }
            ),
        },
    )
    if address:
        leaves = "".join(f"     |-- {one}\n        /32 host LOCAL\n" for one in ("10.1.2.3", "127.0.0.1"))
        return write(root, {"proc/net/fib_trie": "Local:\n  +-- 0.0.0.0/0 3 0 5\n" + leaves})
    return write(root, {"sys/devices/virtual/dmi/id/board_asset_tag": "i-0abcdef0123456789\n"})
