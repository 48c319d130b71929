"""Machines that are not there: trees of /proc, /sys, /dev and fake commands, from a few rows.

`of` makes a healthy machine of a kind (p4d, p5, g5, trn1, infiniband, plain …); a test changes what it wants and
looks at it through the real `doctor.gather`. Texts have the forms of real commands, of several versions of them.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nccl_slurm.doctor import sources
from nccl_slurm.doctor.check import Finding, judged
from nccl_slurm.doctor.checks.node.look import NodeCheck
from nccl_slurm.doctor.observation import Observation, unpacked
from nccl_slurm.doctor.registry import checks

BOOT = 1_790_000_000.0


@dataclass(frozen=True)
class Gpu:
    """One ``<gpu>`` of ``nvidia-smi -q -x``. Words as nvidia-smi prints them."""

    bus: str
    name: str = "NVIDIA H100 80GB HBM3"
    uuid: str = ""
    vbios: str = "96.00.89.00.01"
    volatile: str = "0"
    sram: str = ""
    aggregate: str = "0"
    sram_exceeded: str = "No"
    ecc: str = "Enabled"
    pending: str = "No"
    failure: str = "No"
    retired: str = "N/A"
    recovery: str = "None"
    reset_required: str = "Requested functionality has been deprecated"
    drain: str = "Requested functionality has been deprecated"
    channel_repair: str = "No"
    tpc_repair: str = "No"
    health: Mapping[str, str] = field(default_factory=dict)
    throttle: Sequence[str] = ("gpu_idle",)
    fabric: Sequence[str] = ("Completed", "Success")
    width: str = "16x"
    width_max: str = "16x"
    gen: str = "5"
    gen_max: str = "5"
    clock: str = "1980 MHz"
    clock_max: str = "1980 MHz"
    temperature: str = "35 C"
    power: str = "700.00 W"
    power_default: str = "700.00 W"
    mig: str = "Disabled"
    processes: str = ""
    old: bool = False

    def xml(self) -> str:
        """``old``: the names before driver 535."""
        reasons = "clocks_throttle_reason" if self.old else "clocks_event_reason"
        known = ("gpu_idle", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
        power = "power_readings" if self.old else "gpu_power_readings"
        limit = "power_limit" if self.old else "current_power_limit"
        words = "".join(
            f"<{reasons}_{one}>{'Active' if one in self.throttle else 'Not Active'}</{reasons}_{one}>" for one in known
        )
        ways = {"bandwidth": "N/A", "route_recovery_in_progress": "N/A", "route_unhealthy": "N/A", **self.health}
        health = "".join(f"<{name}>{word}</{name}>" for name, word in ways.items())
        return f"""<gpu id="0000{self.bus}.0"><product_name>{self.name}</product_name>
<uuid>{self.uuid or "GPU-" + self.bus}</uuid><minor_number>0</minor_number><vbios_version>{self.vbios}</vbios_version>
<mig_mode><current_mig>{self.mig}</current_mig></mig_mode><persistence_mode>Enabled</persistence_mode>
<gpu_recovery_action>{self.recovery}</gpu_recovery_action>
<gpu_reset_status><reset_required>{self.reset_required}</reset_required>
<drain_and_reset_recommended>{self.drain}</drain_and_reset_recommended></gpu_reset_status>
<pci><pci_gpu_link_info><pcie_gen><max_link_gen>{self.gen_max}</max_link_gen>
<current_link_gen>{self.gen}</current_link_gen></pcie_gen><link_widths><max_link_width>{self.width_max}</max_link_width>
<current_link_width>{self.width}</current_link_width></link_widths></pci_gpu_link_info></pci>
<{reasons}s>{words}</{reasons}s><ecc_mode><current_ecc>{self.ecc}</current_ecc></ecc_mode>
<ecc_errors><volatile><dram_uncorrectable>{self.volatile}</dram_uncorrectable>
<sram_uncorrectable>{self.sram}</sram_uncorrectable></volatile>
<aggregate><dram_uncorrectable>{self.aggregate}</dram_uncorrectable>
<sram_threshold_exceeded>{self.sram_exceeded}</sram_threshold_exceeded></aggregate>
<channel_repair_pending>{self.channel_repair}</channel_repair_pending>
<tpc_repair_pending>{self.tpc_repair}</tpc_repair_pending></ecc_errors>
<retired_pages><pending_retirement>{self.retired}</pending_retirement></retired_pages>
<remapped_rows><remapped_row_unc>0</remapped_row_unc><remapped_row_pending>{self.pending}</remapped_row_pending>
<remapped_row_failure>{self.failure}</remapped_row_failure></remapped_rows>
<temperature><gpu_temp>{self.temperature}</gpu_temp></temperature>
<{power}><{limit}>{self.power}</{limit}><default_power_limit>{self.power_default}</default_power_limit></{power}>
<clocks><sm_clock>{self.clock}</sm_clock></clocks><max_clocks><sm_clock>{self.clock_max}</sm_clock></max_clocks>
<fabric><state>{self.fabric[0]}</state><status>{self.fabric[1]}</status>
<health>{health}</health></fabric>
<processes>{self.processes}</processes></gpu>"""


@dataclass(frozen=True)
class Kind:
    """What a healthy machine of a kind has. ``links``: NVLinks of each GPU; ``pair``: what topo says of two GPUs, or
    ``cube``: the mesh of NVIDIA's DGX-1."""

    vendor: str = "Amazon EC2"
    product: str = ""
    gpus: int = 0
    name: str = "NVIDIA H100 80GB HBM3"
    links: int = 0
    pair: str = "SYS"
    efa: int = 0
    ib: int = 0
    driver: str = "570.133.20"
    fabric: bool = True
    power: str = "700.00 W"


KINDS: Mapping[str, Kind] = {
    "p4d": Kind(
        product="p4d.24xlarge",
        gpus=8,
        name="NVIDIA A100-SXM4-40GB",
        links=12,
        pair="NV12",
        efa=4,
        fabric=False,
        power="400.00 W",
    ),
    "p5": Kind(product="p5.48xlarge", gpus=8, links=18, pair="NV18", efa=32),
    "p5en": Kind(product="p5en.48xlarge", gpus=8, name="NVIDIA H200", links=18, pair="NV18", efa=16),
    "p6": Kind(product="p6-b200.48xlarge", gpus=8, name="NVIDIA B200", links=18, pair="NV18", efa=8, power="1000.00 W"),
    "p6-b300": Kind(
        product="p6-b300.48xlarge", gpus=8, name="NVIDIA B300", links=18, pair="NV18", efa=16, power="1100.00 W"
    ),
    "p3dn": Kind(
        product="p3dn.24xlarge",
        gpus=8,
        name="Tesla V100-SXM2-32GB",
        links=6,
        pair="cube",
        efa=1,
        fabric=False,
        power="300.00 W",
    ),
    "gb200": Kind(
        vendor="Supermicro", product="ARS-121GL-NB2B-LCC", gpus=4, name="NVIDIA GB200", links=18, pair="NV18"
    ),
    "g5": Kind(product="g5.48xlarge", gpus=8, name="NVIDIA A10G", pair="PHB", efa=1, fabric=False, power="300.00 W"),
    "trn1": Kind(product="trn1.32xlarge", efa=8),
    "infiniband": Kind(vendor="NVIDIA", product="DGXH100", gpus=8, links=18, pair="NV18", ib=8),
    "plain": Kind(vendor="QEMU", product="Standard PC", gpus=0),
}


def bus(number: int) -> str:
    return f"0000:{0x10 + number:02x}:1c"


@dataclass
class Machine:
    """``files``: path → text; ``links``: path → target; ``commands``: name → shell script. ``owner``: whose the ranks
    are. Tests change it in place."""

    kind: Kind
    gpus: list[Gpu]
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    slurm: dict[str, str] = field(default_factory=dict)
    rooms: dict[str, dict[str, int]] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    owner: int = 1000

    def gpu(self, number: int, **changes: Any) -> Machine:
        self.gpus[number] = replace(self.gpus[number], **changes)
        return self

    def mute(self, number: int, word: str) -> Machine:
        """A GPU of which nvidia-smi tells this word in the place of every value."""
        words = {one.name: word for one in fields(Gpu) if one.type == "str" and one.name not in ("bus", "name", "uuid")}
        return self.gpu(number, **{**words, "processes": "", "fabric": (word, word)})

    def every_gpu(self, **changes: Any) -> Machine:
        self.gpus = [replace(one, **changes) for one in self.gpus]
        return self

    def without(self, *starts: str) -> Machine:
        for table in (self.files, self.links):
            for path in [path for path in table if path.startswith(starts)]:
                del table[path]
        return self

    def says(self, name: str, text: str, rc: int = 0, *, only: str = "") -> Machine:
        """``only``: the arguments for which it says so, before what it said for others."""
        here = f"cat <<'END'\n{text}\nEND\nexit {rc}"
        if only:
            rest = self.commands.get(name, "exit 1")
            here = f'case "$*" in {json.dumps(only)}) {here}\n;; esac\n{rest}'
        self.commands[name] = here
        return self

    def kernel(self, *lines: str, at: float = BOOT + 1000.0, first: float = BOOT + 1.0) -> Machine:
        """Records of the journal, a second apart, after one of the boot."""
        return self.says("journalctl", journal([(at + number, line) for number, line in enumerate(lines)], first))

    def process(self, pid: int, comm: str = "python", *, job: str = "", state: str = "S", **files: str) -> Machine:
        base = f"/proc/{pid}"
        self.files[f"{base}/stat"] = f"{pid} ({comm}) {state} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0\n"
        self.files[f"{base}/comm"] = comm + "\n"
        if job:
            self.files[f"{base}/cgroup"] = f"0::/system.slice/slurmstepd.scope/job_{job}/step_0/user/task_0\n"
        for name, text in files.items():
            self.files[f"{base}/{name}"] = text
        return self

    def rank(
        self, number: int, *libraries: str, environment: Mapping[str, str] | None = None, **limits: str
    ) -> Machine:
        """A rank of job 4711 with what it has mapped."""
        told = {"RANK": str(number), "SLURM_JOB_ID": "4711", **(environment or {})}
        maps = "".join(f"7f00-7f01 r-xp 0000 00:00 1  {path}\n" for path in libraries)
        words = "\0".join(f"{name}={value}" for name, value in told.items()) + "\0"
        return self.process(5000 + number, job="4711", environ=words, maps=maps, limits=limits_text(**limits))

    def look(
        self,
        root: Path,
        keys: Iterable[str],
        job: str | None = None,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        **changes: Any,
    ) -> Observation:
        """Through the real gather, in a Python of its own. ``options``: of readers, by key."""
        keys = list(keys)
        self.write(root, keys)
        told = sources.manifest(
            keys, job=job, sysroot=str(root / "root"), bin_folder=str(root / "bin"), limit_s=20.0, options=options
        )
        done = subprocess.run([sys.executable, "-I", "-"], input=sources.program(told), capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        seen = unpacked(done.stdout, "n1", "ssh")
        self._with_rooms(seen.found)
        return replace(seen, **{"slurm": self.slurm, "at": BOOT + 36000.0, "uid": 0, **changes})

    def _with_rooms(self, found: Mapping[str, Any]) -> None:
        """Files can't make sizes of file systems: these take the place of those of the disk that the test is on."""
        if "mounts" in found:
            found["mounts"]["value"]["room"] = self.rooms
        for row in found.get("ranks", {}).get("value", {}).get("ranks", ()):
            row["uid"] = self.owner
            row["shm"] = self.rooms.get("/dev/shm in the container")

    def room(self, path: str, gib: float, used: float = 0.1, inodes_used: float = 0.01) -> Machine:
        size = int(gib * (1 << 30))
        free, inodes = int(size * (1 - used)), 1_000_000
        left = int(inodes * (1 - inodes_used))
        self.rooms[path] = {"size": size, "free": free, "available": free, "inodes": inodes, "inodes_free": left}
        return self

    def write(self, root: Path, keys: Iterable[str]) -> None:
        """Of /sys only what the sources ask for: a large machine has a thousand files there."""
        wanted = [sources.SOURCES[key] for key in keys]
        files = [one for one in wanted if isinstance(one, sources.Files)]
        globs = re.compile("|".join(fnmatch.translate(glob) for one in files for glob in one.globs) or "(?!)")
        folders = tuple(f"{glob}/" for one in files if one.take == "names" for glob in one.globs)
        for path in [*self.files, *self.links]:
            where = root / "root" / path.lstrip("/")
            if path.startswith("/sys/") and not globs.match(path):
                if path.startswith(folders):
                    names = next(folder for folder in folders if path.startswith(folder))
                    (root / "root" / (names + path[len(names) :].split("/")[0]).lstrip("/")).mkdir(
                        parents=True, exist_ok=True
                    )
                continue
            where.parent.mkdir(parents=True, exist_ok=True)
            if path in self.links:
                where.symlink_to(self.links[path])
            else:
                where.write_text(self.files[path])
            if path in self.times:
                os.utime(where, (self.times[path], self.times[path]))
        (root / "bin").mkdir(exist_ok=True)
        for name, script in {**_smi_commands(self), **self.commands}.items():
            (root / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
            (root / "bin" / name).chmod(0o755)


def journal(records: Iterable[tuple[float, str]], first: float = BOOT + 1.0) -> str:
    """As ``journalctl -o json``, after a record of the boot."""
    rows = (
        {"__REALTIME_TIMESTAMP": str(int(when * 1e6)), "SYSLOG_FACILITY": "0", "MESSAGE": text}
        for when, text in [(first, "Linux version 6.8.0"), *records]
    )
    return "\n".join(map(json.dumps, rows))


def limits_text(
    memlock: str = "unlimited", stack: str = "8388608", nofile: str = "1048576", hard: str = "1048576"
) -> str:
    return (
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        f"Max stack size            {stack:<20} unlimited            bytes     \n"
        f"Max open files            {nofile:<20} {hard:<20} files     \n"
        f"Max locked memory         {memlock:<20} unlimited            bytes     \n"
    )


def of(name: str) -> Machine:
    """A healthy machine."""
    kind = KINDS[name]
    fabric = ("Completed", "Success") if kind.fabric else ("N/A", "N/A")
    gpus = [
        Gpu(bus(number), kind.name, fabric=fabric, power=kind.power, power_default=kind.power)
        for number in range(kind.gpus)
    ]
    machine = Machine(kind, gpus)
    machine.files.update(_system(kind))
    machine.commands.update(_tools(kind))
    for number in range(kind.efa):
        _card(
            machine,
            f"rdmap{16 + number}s0",
            0x60 + number,
            "efa",
            "0x1d0f",
            "0xefa2",
            "400 Gb/sec (4X NDR)",
            "Unspecified",
        )
        machine.files[f"/sys/class/infiniband/rdmap{16 + number}s0/device/p2p"] = "NVIDIA\n"
    for number in range(kind.efa + kind.ib):
        machine.files[f"/dev/infiniband/uverbs{number}"] = ""
    for number in range(kind.ib):
        _card(
            machine,
            f"mlx5_{number}",
            0x60 + number,
            "mlx5_core",
            "0x15b3",
            "0x1021",
            "400 Gb/sec (4X NDR)",
            "InfiniBand",
        )
    for name in ("eth0", "eth1"):
        machine.links[f"/sys/class/net/{name}/device/driver"] = "../../../bus/pci/drivers/ena"
    for number in range(kind.gpus):
        machine.links[f"/sys/bus/pci/devices/{bus(number)}.0/driver"] = "../../../bus/pci/drivers/nvidia"
    machine.slurm = {"NodeName": "n1", "State": "ALLOCATED", "Version": "24.11.5"}
    if kind.gpus:
        machine.slurm["Gres"] = f"gpu:h100:{kind.gpus}(S:0-1)"
    return machine.room("/", 100.0).room("/dev/shm", 1000.0).kernel()


def _system(kind: Kind) -> dict[str, str]:
    files = {
        "/proc/stat": f"cpu 1\nbtime {BOOT:.0f}\n",
        "/proc/2/stat": "2 (kthreadd) S 0 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0\n",
        "/proc/2/maps": "",
        "/proc/sys/kernel/osrelease": "6.8.0-1021-aws\n",
        "/proc/sys/kernel/hostname": "n1\n",
        "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/nvme0n1p1 ro console=ttyS0\n",
        "/proc/modules": "nvidia 1 0 - Live 0x0 (POE)\nefa 1 0 - Live 0x0 (OE)\nnvidia_uvm 1 0 - Live 0x0\n",
        "/proc/self/mounts": "/dev/root / ext4 rw,relatime 0 0\ntmpfs /dev/shm tmpfs rw,nosuid,nodev 0 0\n",
        "/proc/meminfo": "MemTotal: 2097152000 kB\nHugePages_Total:    5128\nHugePages_Free:     5000\n",
        "/proc/loadavg": "3.00 2.00 1.00 1/900 4711\n",
        "/sys/devices/system/cpu/online": "0-191\n",
        "/sys/devices/virtual/dmi/id/sys_vendor": kind.vendor + "\n",
        "/sys/devices/virtual/dmi/id/product_name": kind.product + "\n",
        "/opt/amazon/efa_installed_packages": "# EFA installer version: 1.37.0\n",
        "/etc/os-release": 'PRETTY_NAME="Ubuntu 22.04.5 LTS"\n',
        "/dev/shm/.keep": "",
        "/sys/kernel/iommu_groups/.keep": "",
    }
    files.update(_function("/sys/bus/pci/devices/0000:00:00.0", "0x8086", "0x060000", "0x1237"))
    for node in range(2):
        files[f"/sys/devices/system/node/node{node}/cpulist"] = f"{96 * node}-{96 * node + 95}\n"
        files[f"/sys/devices/system/node/node{node}/meminfo"] = f"Node {node} MemTotal:       1056000000 kB\n"
    for name, mtu in (("eth0", "9001"), ("eth1", "9001")):
        base = f"/sys/class/net/{name}"
        files.update({f"{base}/mtu": mtu, f"{base}/operstate": "up", f"{base}/type": "1"})
        files.update({f"{base}/statistics/rx_errors": "0", f"{base}/statistics/rx_dropped": "12345"})
    files["/sys/class/net/lo/mtu"] = "65536"
    if kind.gpus:
        files["/proc/driver/nvidia/version"] = (
            f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {kind.driver}  Release Build\n"
        )
    for number in range(kind.gpus):
        base = f"/sys/bus/pci/devices/{bus(number)}.0"
        files[f"/proc/driver/nvidia/gpus/{bus(number)}.0/information"] = f"Model: {kind.name}\n"
        files.update(_function(base, "0x10de", "0x030200", "0x2330", width="16"))
    return files


def _function(
    base: str, vendor: str, kind: str, device: str, width: str = "16", width_max: str = "16"
) -> dict[str, str]:
    return {
        f"{base}/vendor": vendor + "\n",
        f"{base}/class": kind + "\n",
        f"{base}/device": device + "\n",
        f"{base}/current_link_width": width + "\n",
        f"{base}/max_link_width": width_max + "\n",
        f"{base}/current_link_speed": "32.0 GT/s PCIe\n",
        f"{base}/numa_node": "0\n",
    }


def _card(
    machine: Machine, name: str, place: int, driver: str, vendor: str, device: str, rate: str, layer: str
) -> None:
    slot = f"0000:{place:02x}:00.0"
    base = f"/sys/class/infiniband/{name}"
    port = f"{base}/ports/1"
    kind = "0x020700" if layer == "InfiniBand" else "0x020000"
    machine.files.update(_function(f"/sys/bus/pci/devices/{slot}", vendor, kind, device))
    machine.links[f"/sys/bus/pci/devices/{slot}/driver"] = f"../../../bus/pci/drivers/{driver}"
    machine.links[f"{base}/device/driver"] = f"../../../bus/pci/drivers/{driver}"
    machine.files.update(
        {
            f"{port}/state": "4: ACTIVE\n",
            f"{port}/phys_state": "5: LinkUp\n",
            f"{port}/rate": rate + "\n",
            f"{port}/link_layer": layer + "\n",
            f"{port}/hw_counters/rx_drops": "0\n",
            f"{port}/counters/link_downed": "0\n",
            f"{base}/device/uevent": uevent(slot, vendor, device),
            f"{base}/fw_ver": "0.0.0.0\n" if driver == "efa" else "28.42.1000\n",
        }
    )


def uevent(slot: str, vendor: str, device: str) -> str:
    ids = f"PCI_ID={vendor[2:].upper()}:{device[2:].upper()}\nPCI_SUBSYS_ID={vendor[2:].upper()}:0041"
    return f"DRIVER=mlx5_core\nPCI_CLASS=20700\n{ids}\nPCI_SLOT_NAME={slot}\nMODALIAS=pci:x\n"


def _tools(kind: Kind) -> dict[str, str]:
    """Commands with fixed answers; nvidia-smi's are made from the GPUs when a test looks."""
    show = "echo LoadState=loaded; echo ActiveState=active; echo SubState=running"
    tools = {
        "systemctl": show,
        "chronyc": f"echo {chrony(0.000012)}",
        "nft": "exit 0",
        "lspci": "echo '00:00.0 Host bridge: Intel'",
    }
    if kind.links:
        tools["nv-fabricmanager"] = f"echo 'Fabric Manager version is : {kind.driver}'"
    if kind.efa:
        tools["fi_info"] = _fi_info(kind.efa)
    return tools


def chrony(offset_s: float, leap: str = "Normal") -> str:
    return f"A9FEA97B,169.254.169.123,4,1790000000.1,{offset_s},0.00001,0.00002,1.2,0.0,0.01,0.0002,0.0001,64.0,{leap}"


def fi_info(cards: int, direct: bool = True) -> str:
    """Each card three times, as libfabric 2 does; without ``direct`` twice, as libfabric 1 does."""
    blocks = []
    for number in range(cards):
        name = f"rdmap{16 + number}s0"
        rows = [("efa-direct", "rdm", "RDM")] if direct else []
        rows += [("efa", "rdm", "RDM"), ("efa", "dgrm", "DGRAM")]
        blocks += [
            f"provider: efa\n    fabric: {fabric}\n    domain: {name}-{end}\n    version: 201.0\n"
            f"    type: FI_EP_{kind}\n    protocol: FI_PROTO_EFA"
            for fabric, end, kind in rows
        ]
    return "\n".join(blocks)


def _fi_info(cards: int) -> str:
    return f"cat <<'END'\n{fi_info(cards)}\nEND"


def _smi_commands(machine: Machine) -> dict[str, str]:
    """nvidia-smi by its arguments; none where the machine has no GPU."""
    if not machine.gpus:
        return {}
    answers = {
        "-q -x": smi_xml(machine.gpus, machine.kind.driver),
        "nvlink --status": nvlink_status(machine.gpus, machine.kind.links),
        "nvlink -e": nvlink_errors(machine.gpus, machine.kind.links),
        "topo -m": topology(len(machine.gpus), *paths_of(machine.kind)),
        "topo -p2p n": p2p(len(machine.gpus), *p2p_of(machine.kind)),
    }
    cases = "\n".join(f"{json.dumps(words)}) cat <<'END'\n{text}\nEND\nexit 0;;" for words, text in answers.items())
    return {"nvidia-smi": f'case "$*" in\n{cases}\nesac\nexit 1'}


def smi_xml(gpus: Sequence[Gpu], driver: str = "570.133.20") -> str:
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n'
    body = "".join(one.xml() for one in gpus)
    versions = f"<driver_version>{driver}</driver_version><cuda_version>12.8</cuda_version>"
    return f"{head}<nvidia_smi_log>{versions}{body}</nvidia_smi_log>"


def nvlink_status(gpus: Sequence[Gpu], links: int, off: Mapping[int, Sequence[int]] | None = None) -> str:
    lines = []
    for number, gpu in enumerate(gpus):
        lines.append(f"GPU {number}: {gpu.name} (UUID: GPU-{number})")
        for link in range(links):
            word = "<inactive>" if link in (off or {}).get(number, ()) else "26.562 GB/s"
            lines.append(f"\t Link {link}: {word}")
    return "\n".join(lines)


def nvlink_errors(gpus: Sequence[Gpu], links: int, bad: Mapping[tuple[int, int, str], int] | None = None) -> str:
    """Up to NVLink 4."""
    lines = []
    for number, gpu in enumerate(gpus):
        lines.append(f"GPU {number}: {gpu.name} (UUID: GPU-{number})")
        for link in range(links):
            for what in ("Replay", "Recovery", "CRC"):
                lines.append(f"\t Link {link}: {what} Errors: {(bad or {}).get((number, link, what), 0)}")
            lines.append("")
    return "\n".join(lines)


def topology(gpus: int, pair: str, odd: Mapping[tuple[int, int], str] | None = None, nics: int = 2) -> str:
    """With NICs and affinities; the header underlined by escapes, as newer drivers do on any output."""
    names = [*(f"GPU{number}" for number in range(gpus)), *(f"NIC{number}" for number in range(nics))]
    lines = ["\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for row in range(gpus + nics):
        words = []
        for column in range(gpus + nics):
            both = (min(row, column), max(row, column))
            word = pair if row < gpus and column < gpus else "NODE"
            words.append(" X " if row == column else (odd or {}).get(both, word))
        lines.append("\t".join([names[row], *words, *(["0-95", "0", "N/A"] if row < gpus else [])]))
    legend = ["", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing a bonded set of # NVLinks"]
    return "\n".join([*lines, *legend, "", "NIC Legend:", "", "  NIC0: rdmap16s0", "  NIC1: rdmap17s0"])


#: Pairs that two links join, and one, on a DGX-1 with V100; the rest goes through the processors.
_CUBE = {
    "NV2": ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
    "NV1": ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
}


def cube(links: Mapping[str, Sequence[tuple[int, int]]] = _CUBE) -> dict[tuple[int, int], str]:
    return {pair: word for word, pairs in links.items() for pair in pairs}


def paths_of(kind: Kind) -> tuple[str, dict[tuple[int, int], str]]:
    return ("SYS", cube()) if kind.pair == "cube" else (kind.pair, {})


def p2p_of(kind: Kind) -> tuple[str, dict[tuple[int, int], str]]:
    if kind.pair == "cube":
        return "NS", dict.fromkeys(cube(), "OK")
    return ("OK" if kind.links else "NS"), {}


def p2p(gpus: int, word: str, odd: Mapping[tuple[int, int], str] | None = None) -> str:
    names = [f"GPU{number}" for number in range(gpus)]
    lines = [" \t" + "\t".join(names) + "\t"]
    for row in range(gpus):
        words = [
            "X" if row == other else (odd or {}).get((min(row, other), max(row, other)), word) for other in range(gpus)
        ]
        lines.append(f" {names[row]}\t" + "\t".join(words) + "\t")
    return "\n".join([*lines, "", "Legend:", "", "  X    = Self", "  OK   = Status Ok", "  NS   = Not supported"])


# checks


def check(name: str) -> NodeCheck:
    (found,) = [one for one in checks("node") if one.id == name]
    assert isinstance(found, NodeCheck)
    return found


def findings(machine: Machine, name: str, root: Path, job: str | None = None, **changes: Any) -> list[Finding]:
    """What a check says of a machine, by the sources that it asks for and no others."""
    one = check(name)
    return judged(one, machine.look(root, one.sources, job, **changes), ["n1"])


def worst(found: Sequence[Finding]) -> str:
    """``FAIL P0``, ``WARN P2``, ``UNKNOWN``, ``PASS``, ``NOT-APPLICABLE``: the heaviest word."""
    order = ("FAIL", "WARN", "UNKNOWN", "PASS", "NOT-APPLICABLE")
    first = min(found, key=lambda one: (order.index(one.status), one.priority or "P9"))
    return first.status if first.priority is None else f"{first.status} {first.priority}"
