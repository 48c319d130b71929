"""What can be read on a node: one row a source. A check names the keys that it needs; only those are read.

The rows say how; `doctor.gather` does it there. ``lane``: sources of one lane are read one after the other, and what
hangs costs the rest of its lane. Everything that asks the GPU driver is in ``gpu``.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import Any, Iterable, Mapping, Sequence, Union

from nccl_slurm.doctor import gather

__all__ = ["SOURCES", "Command", "Files", "Reader", "Source", "manifest", "program"]


@dataclass(frozen=True)
class Files:
    """Absolute paths or patterns. ``take``: text | tail (the last ``bytes``) | link | names | stat. At most ``most``
    files of ``bytes`` each."""

    globs: Sequence[str]
    take: str = "text"
    most: int = 64
    bytes: int = 1 << 16
    lane: str = "files"
    kind: str = "files"


@dataclass(frozen=True)
class Command:
    """``argv[0]`` is a name that is looked up in `gather.FOLDERS`. ``bytes``: of standard output, and of error."""

    argv: Sequence[str]
    seconds: float = 10.0
    bytes: int = 1 << 18
    lane: str = "commands"
    kind: str = "command"


@dataclass(frozen=True)
class Reader:
    """``name``: of a function of `gather.READERS`."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    lane: str = "processes"
    kind: str = "reader"


Source = Union[Files, Command, Reader]  # evaluated: Python 3.8


def _gpu(*argv: str, seconds: float = 30.0, size: int = 1 << 20) -> Command:
    return Command(argv, seconds=seconds, bytes=size, lane="gpu")


def _file(*globs: str, **limits: Any) -> Files:
    return Files(globs, **limits)


def _show(unit: str) -> Command:
    """systemd's word on a unit: ``LoadState=not-found`` where the node has none."""
    wanted = "LoadState,ActiveState,SubState,Result,ActiveEnterTimestamp,NRestarts,LimitMEMLOCK,LimitNOFILE,LimitSTACK"
    return Command(["systemctl", "show", unit, f"--property={wanted}"])


_GPU: Mapping[str, Source] = {
    "nvidia-smi": _gpu("nvidia-smi", "-q", "-x", size=1 << 24),
    "nvlink-status": _gpu("nvidia-smi", "nvlink", "--status"),
    "nvlink-errors": _gpu("nvidia-smi", "nvlink", "-e"),
    "gpu-topology": _gpu("nvidia-smi", "topo", "-m"),
    "gpu-p2p": _gpu("nvidia-smi", "topo", "-p2p", "n"),
    "dcgm-health": _gpu("dcgmi", "health", "--check", "-j"),
    "dcgm-log": _file("/var/log/nvidia-dcgm/nvvs*.log", take="tail", most=8, bytes=1 << 15),
    "fabric-manager": _show("nvidia-fabricmanager.service"),
    "fabric-manager-version": Command(["nv-fabricmanager", "--version"]),
    "nvidia-devices": _file("/dev/nvidia*", take="stat"),
    "nvidia-driver": _file("/proc/driver/nvidia/version", "/proc/driver/nvidia/params"),
    "nvidia-gpus": _file("/proc/driver/nvidia/gpus/*/information"),
    "gpu-holders": Reader("gpu_holders"),
    "stuck": Reader("stuck"),
}

_PCI: Mapping[str, Source] = {
    "pci-ids": _file("/sys/bus/pci/devices/*/vendor", "/sys/bus/pci/devices/*/class", most=4096, bytes=32),
    "pci-devices": _file("/sys/bus/pci/devices/*/device", most=2048, bytes=32),
    "pci-links": _file(
        *(f"/sys/bus/pci/devices/*/{way}_link_{what}" for way in ("current", "max") for what in ("speed", "width")),
        most=8192,
        bytes=64,
    ),
    "pci-paths": _file("/sys/bus/pci/devices/*", take="link", most=4096),
    "pci-drivers": _file("/sys/bus/pci/devices/*/driver", take="link", most=4096),
    "pci-access": Command(["lspci", "-vvv"], seconds=20.0, bytes=1 << 22),
    "numa": _file("/sys/devices/system/node/node*/cpulist", "/sys/devices/system/node/node*/meminfo", most=128),
    "pci-numa": _file("/sys/bus/pci/devices/*/numa_node", most=2048, bytes=16),
}

_NETWORK: Mapping[str, Source] = {
    "rdma-ports": _file(
        *(
            f"/sys/class/infiniband/*/ports/*/{name}"
            for name in ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
        ),
        most=1024,
        bytes=256,
    ),
    "rdma-counters": _file(
        "/sys/class/infiniband/*/ports/*/counters/*",
        "/sys/class/infiniband/*/ports/*/hw_counters/*",
        "/sys/class/infiniband/*/hw_counters/*",
        most=8192,
        bytes=64,
    ),
    "rdma-devices": _file("/sys/class/infiniband", take="names"),
    "rdma-drivers": _file("/sys/class/infiniband/*/device/driver", take="link", most=128),
    "rdma-cards": _file("/sys/class/infiniband/*/device/uevent", most=128, bytes=1024),
    "rdma-p2p": _file("/sys/class/infiniband/*/device/p2p", most=128, bytes=64),
    "rdma-firmware": _file("/sys/class/infiniband/*/fw_ver", most=128, bytes=128),
    "uverbs": _file("/dev/infiniband", take="names"),
    "efa-installed": _file("/opt/amazon/efa_installed_packages"),
    "efa-module": _file("/sys/module/efa/version", bytes=128),
    "fi-info": Command(["fi_info", "-p", "efa"], seconds=20.0, bytes=1 << 20),
    "fi-version": Command(["fi_info", "--version"]),
    "ofi-plugin": _file(
        "/opt/amazon/ofi-nccl/lib/libnccl-net*.so",
        "/opt/amazon/ofi-nccl/lib/*/libnccl-net*.so",
        "/opt/aws-ofi-nccl/lib/libnccl-net*.so",
        "/opt/amazon/efa/lib*/libfabric.so*",
        take="stat",
    ),
    "links": _file(
        *(f"/sys/class/net/*/{name}" for name in ("mtu", "operstate", "speed", "type", "flags")), most=1024, bytes=64
    ),
    "link-counters": _file("/sys/class/net/*/statistics/*", most=4096, bytes=64),
    "link-drivers": _file("/sys/class/net/*/device/driver", take="link", most=256),
    "tcp-listeners": _file("/proc/net/tcp", "/proc/net/tcp6", bytes=1 << 20),
    "firewall-nft": Command(["nft", "list", "ruleset"], bytes=1 << 21),
    "firewall-iptables": Command(["iptables-save"], bytes=1 << 21),
    "firewall-legacy": Command(["iptables-legacy-save"], bytes=1 << 21),
    "own-addresses": _file("/proc/net/fib_trie", "/proc/net/if_inet6", bytes=1 << 18),
    "resolver": _file("/etc/resolv.conf", "/etc/hosts", bytes=1 << 18),
    "names": Reader("names", lane="names"),
    "ras": Reader("ras", lane="ras"),
}

_MEMORY: Mapping[str, Source] = {
    "memory": _file("/proc/meminfo"),
    "huge-pages": _file("/sys/kernel/mm/hugepages/*/nr_hugepages", "/sys/kernel/mm/hugepages/*/free_hugepages"),
    "mounts": Reader(
        "mounts",
        {
            "paths": [
                "/",
                "/tmp",  # noqa: S108 # its room is what is asked
                "/var",
                "/var/log",
                "/var/spool/slurmd",
                "/dev/shm",  # noqa: S108
                "/opt/sagemaker",
                "/opt/dlami/nvme",
            ]
        },
        lane="mounts",
    ),
    "shm-files": Reader("shm_files", {"globs": [f"/dev/shm/{name}" for name in ("nccl-*", "sem.*", "torch_*")]}),  # noqa: S108
    "block-devices": _file("/sys/block/nvme*/size", "/sys/block/nvme*/device/model", bytes=256),
}

_LOGIND = ("logind.conf", "logind.conf.d/*.conf")

_SYSTEM: Mapping[str, Source] = {
    "kernel": Reader(
        "kernel",
        {
            "patterns": [
                r"\bNVRM\b|\bSXid\b|nvidia",
                r"oom[-_]kill|out of memory|killed process",
                r"panic|\bBUG\b|soft lockup|hard lockup|hung_task|blocked for more than|NMI|Oops|\[#[0-9]+\]",
                r"Unable to handle kernel",
                r"Hardware Error|\bmce\b|EDAC|machine check|ghes",
                r"pcieport|AER:|DMAR|iommu",
                r"\befa\b|mlx5|infiniband|rdma",
                r"nvme|I/O error| error, dev |EXT4-fs error|Remounting filesystem|block allocation failed",
                r"XFS .*(?:error|corrupt|shut)|BTRFS (?:error|critical)|md/raid.*failure|Aborting journal|IO errors",
                r"Lustre|nfs: server|self-detected stall|stalls on|NIC Link is|link status definitely",
            ],
            "most": 1000,
        },
        lane="kernel",
    ),
    "kernel-command-line": _file("/proc/cmdline"),
    "kernel-modules": _file("/proc/modules", bytes=1 << 18),
    "iommu-groups": _file("/sys/kernel/iommu_groups", "/sys/class/iommu", take="names"),
    "pci-groups": _file("/sys/bus/pci/devices/*/iommu_group", take="link", most=4096),
    "iommu-types": _file("/sys/kernel/iommu_groups/*/type", most=4096, bytes=32),
    "os-release": _file("/etc/os-release"),
    "clock": Command(["chronyc", "-n", "-c", "tracking"]),
    "clock-systemd": Command(["timedatectl", "show"]),
    "time-daemons": Reader("daemons", {"names": ["phc2sys", "ptp4l", "sfptpd", "timemaster", "ntpd", "openntpd"]}),
    "logind": _file(
        "/etc/systemd/logind.conf", "/etc/systemd/logind.conf.d/*.conf", "/usr/lib/systemd/logind.conf.d/*"
    ),
    "logind-runs": Reader("daemons", {"names": ["systemd-logind", "elogind", "elogind-daemon"]}),
    "init": _file("/proc/1/comm", bytes=64),
    "dmi": _file(
        *(
            f"/sys/devices/virtual/dmi/id/{name}"
            for name in ("sys_vendor", "product_name", "board_asset_tag", "bios_version")
        ),
        bytes=256,
    ),
    "hyperpod-folder": _file("/opt/sagemaker_cluster", take="stat"),
    "hyperpod": _file("/opt/ml/config/resource_config.json", bytes=1 << 21),
    "load": _file("/proc/loadavg"),
    "cpu": _file("/sys/devices/system/cpu/online", "/sys/devices/system/cpu/smt/active", bytes=256),
}

_SLURM: Mapping[str, Source] = {
    "slurmd-unit": _show("slurmd.service"),
    "munge-unit": _show("munge.service"),
    "munge": Command(["munge", "-n"]),
    "daemons": Reader("daemons", {"names": ["slurmd", "slurmstepd", "slurmctld", "munged", "nv-hostengine"]}),
    "slurmd-version": Command(["slurmd", "-V"]),
    "hooks": _file(take="stat", most=512),  # paths: what slurm.conf names
    "cgroup-conf": _file("/etc/slurm/cgroup.conf", "/opt/slurm/etc/cgroup.conf", "/run/slurm/conf/cgroup.conf"),
    "container": Command(["enroot", "version"]),
}

_JOB: Mapping[str, Source] = {"ranks": Reader("ranks", lane="ranks")}

SOURCES: Mapping[str, Source] = {**_GPU, **_PCI, **_NETWORK, **_MEMORY, **_SYSTEM, **_SLURM, **_JOB}


def manifest(
    keys: Iterable[str],
    *,
    job: str | None = None,
    limit_s: float = 45.0,
    sysroot: str = "",
    bin_folder: str = "",
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """What `gather.gather` takes. ``job``: raw id whose processes are the ranks. ``options``: more for readers, other
    limits and paths for files, by key.

    KeyError for a key that is no source: a fault of a check.
    """
    sources = {key: asdict(SOURCES[key]) for key in SOURCES if key in set(keys)}
    unknown = set(keys) - set(SOURCES)
    if unknown:
        raise KeyError(f"no such source: {', '.join(sorted(unknown))}")
    for key, more in (options or {}).items():
        if key in sources:
            part = sources[key].setdefault("options", {}) if sources[key]["kind"] == "reader" else sources[key]
            part.update(more)
    return {
        "sysroot": sysroot.rstrip("/"),
        "bin": bin_folder,
        "job": job,
        "limit_s": limit_s,
        "limit_bytes": 32 << 20,
        "sources": sources,
    }


def program(told: Mapping[str, Any]) -> bytes:
    """`gather`'s text with the manifest at its end: what ``python3 -`` on a node is fed."""
    import json

    with open(os.path.splitext(gather.__file__)[0] + ".py", "rb") as file:
        text = file.read()
    return text + b"\n\nmain(json.loads(" + ascii(json.dumps(told)).encode("ascii") + b"))\n"
