"""Which machine this is, since when it runs, and whether it is a Slurm controller.

Identity is what survives a reboot and changes with a replacement: on SageMaker HyperPod the instance id (DMI board
asset tag), else the DMI system UUID, else only the node name. A wrong "no controller" could get a controller
rebooted, so role evidence that can't be read stays None.
"""

from __future__ import annotations

import json
import os
import re
import socket
from contextlib import suppress
from typing import Any, Mapping

from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap

__all__ = ["boot_id", "boot_time", "describe", "limits_of", "node_name", "process_names"]

_INSTANCE = re.compile(r"i-[0-9a-f]{8,32}\Z")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
#: UUIDs that vendors leave in unprogrammed boards; many machines carry the same.
_NO_UUID = ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff")
_SHARED_UUID = "03000200-0400-0500-0006-000700080009"
_SETTING = re.compile(r"[A-Za-z0-9._:/-]{1,255}\Z")
_ADDRESS = re.compile(r"\|-- ([0-9.]{7,15})\Z")


def describe(conf: Conf, node: str, names: Mapping[int, str], gaps: list[Gap]) -> dict[str, Any]:
    """The record's ``machine``. ``names``: see `process_names`."""
    identity, source = _identity(conf, node)
    running = "slurmctld" in names.values() if names else None
    if running is None:
        gaps.append(Gap("slurmctld process", "/proc can't be read: whether this is a controller is unknown"))
    return {
        "identity": identity,
        "identity_source": source,
        "hostname": (_line(conf.under("/proc/sys/kernel/hostname")) or socket.gethostname())[:255] or None,
        "boot_id": boot_id(conf.sysroot),
        "boot_time": boot_time(conf.sysroot),
        "kernel": _line(conf.under("/proc/sys/kernel/osrelease")),
        "role": {"slurmctld_running": running, "node_type": _node_type(conf.sysroot)},
    }


def node_name(env: dict[str, str]) -> str:
    """Slurm's name of this node (SLURMD_NODENAME of a hook), else the short host name; fit for a file name."""
    name = env.get("SLURMD_NODENAME") or os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:255] or "unknown"


def boot_id(sysroot: str) -> str | None:
    return (_line(sysroot + "/proc/sys/kernel/random/boot_id") or "")[:64] or None


def boot_time(sysroot: str) -> float | None:
    """Seconds since 1970, from btime in /proc/stat; it moves by a second when the clock is stepped."""
    try:
        with open(sysroot + "/proc/stat", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("btime "):
                    return float(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None


def _identity(conf: Conf, node: str) -> tuple[str, str]:
    if _SETTING.match(conf.identity):
        return conf.identity, "capture.conf"
    tag = (_line(conf.under("/sys/devices/virtual/dmi/id/board_asset_tag")) or "").lower()
    if _INSTANCE.match(tag):
        return tag, "board_asset_tag"
    uuid = (_line(conf.under("/sys/devices/virtual/dmi/id/product_uuid")) or "").lower()
    if _UUID.match(uuid) and uuid not in _NO_UUID and uuid != _SHARED_UUID:
        return uuid, "dmi-uuid"
    return node, "node-name"


def limits_of(sysroot: str, names: Mapping[int, str]) -> dict[str, Any] | None:
    """Locked-memory limit that jobs get: that of slurmstepd, else slurmd (a root shell's own differs).

    ``memlock`` is bytes or ``unlimited``.
    """
    for name in ("slurmstepd", "slurmd"):
        for pid in sorted(pid for pid, comm in names.items() if comm == name):
            try:
                with open(f"{sysroot}/proc/{pid}/limits", encoding="ascii", errors="replace") as file:
                    found = re.search(r"^Max locked memory +(\S+)", file.read(65536), re.MULTILINE)
            except OSError:
                continue
            if found:
                soft = found.group(1)
                return {"memlock": int(soft) if soft.isdigit() else soft[:20], "process": name}
    return None


def process_names(sysroot: str) -> dict[int, str]:
    """Of each process that can be seen, by pid; empty where none can. Thousands on a large node: so by bare calls."""
    names: dict[int, str] = {}
    try:
        pids = [name for name in os.listdir(sysroot + "/proc") if name.isdigit()]
    except OSError:
        return {}
    for pid in pids:
        with suppress(OSError):
            file = os.open(f"{sysroot}/proc/{pid}/comm", os.O_RDONLY | os.O_CLOEXEC)
            try:
                names[int(pid)] = os.read(file, 64).decode("utf-8", "backslashreplace").strip()
            finally:
                os.close(file)
    return names


def _node_type(sysroot: str) -> str | None:
    """``controller``, ``login`` or ``compute`` on SageMaker HyperPod: the instance group that this machine is in.

    By instance id, else by own address. /opt/ml/config/*.json are written by the service and readable by root.
    """
    parameters = _json(sysroot + "/opt/ml/config/provisioning_parameters.json")
    groups = _json(sysroot + "/opt/ml/config/resource_config.json").get("InstanceGroups")
    own = {(_line(sysroot + "/sys/devices/virtual/dmi/id/board_asset_tag") or "").lower(), *_addresses(sysroot)} - {""}
    for group in groups if isinstance(groups, list) else ():
        if not isinstance(group, dict) or not _holds(group, own):
            continue
        name = group.get("Name")
        if not parameters or not isinstance(name, str):
            return None
        roles = {parameters.get("controller_group"): "controller", parameters.get("login_group"): "login"}
        return roles.get(name, "compute")
    return None


def _holds(group: dict[str, Any], own: set[str]) -> bool:
    instances = group.get("Instances")
    return any(
        isinstance(one, dict) and own & {str(one.get("InstanceId")).lower(), str(one.get("CustomerIpAddress"))}
        for one in (instances if isinstance(instances, list) else ())
    )


def _addresses(sysroot: str) -> set[str]:
    """Own IPv4 addresses but loopback, from the LOCAL leaves of /proc/net/fib_trie."""
    found, last = set(), ""
    try:
        with open(sysroot + "/proc/net/fib_trie", encoding="ascii", errors="replace") as file:
            for line in file:
                leaf = _ADDRESS.search(line.rstrip())
                if leaf:
                    last = leaf.group(1)
                elif "host LOCAL" in line and not last.startswith("127."):
                    found.add(last)
    except OSError:
        pass
    return found


def _json(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _line(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.readline(255).strip() or None
    except OSError:
        return None
