"""Pure readers of what Slurm's commands print; tested with the texts of 22.05, 24.11 and 26.05.

Users choose job names, comments and paths, with newlines, ``|`` and ``JobState=COMPLETED`` in them. So ``scontrol show
job`` is never read: a comment with a newline can forge a whole job there. squeue and sacct print a delimiter of our
choice after each field; it is random in each call, and records are counted in fields, not in lines.
Nodes' reasons and comments are an administrator's text: ``scontrol show nodes`` is read by its known keys.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import lru_cache

from nccl_slurm.errors import SlurmRefused
from nccl_slurm.hosts import expand
from nccl_slurm.scheduler.client import Controller, NodeEvent, NodeState, Settings

__all__ = [
    "EVENT_FIELDS",
    "NO_TOPOLOGY",
    "clean",
    "configured_gpus",
    "exit_pair",
    "gpus_of",
    "hosts_of",
    "modified_jobs",
    "number_of",
    "read_config",
    "read_controllers",
    "read_database_hosts",
    "read_events",
    "read_nodes",
    "read_offered_fields",
    "read_partitions",
    "read_switches",
    "read_version",
    "records",
    "split_state",
    "text_of",
    "time_of",
]

#: Slurm's word where no plugin of topology is set.
NO_TOPOLOGY = "No topology information available"
_DATABASE_HOSTS = (
    "AccountingStorageHost",
    "AccountingStorageBackupHost",
    "DbdHost",
    "DbdAddr",
    "DbdBackupHost",
    "StorageHost",
    "StorageBackupHost",
)
_LOOPBACK = re.compile(r"localhost|127\.|::1")
#: What Slurm prints for *nothing*.
_NOTHING = frozenset(
    {"", "(null)", "N/A", "n/a", "None", "NONE", "Unknown", "UNKNOWN", "None assigned", "Not Set", "NOT_SET"}
)

#: One-character trailers of states in sinfo and sacctmgr (man sinfo, NODE STATE CODES).
_TRAILERS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWER_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}

#: sinfo's words for a base with a flag.
_COMPACT = {"DRAINED": ("IDLE", "DRAIN"), "DRAINING": ("ALLOCATED", "DRAIN"), "FAILING": ("ALLOCATED", "FAIL")}

#: ``reason`` is last because it may hold the delimiter.
EVENT_FIELDS = ("nodename", "timestart", "timeend", "state", "user", "reason")


def records(text: str, delimiter: str, fields: Sequence[str]) -> list[dict[str, str]]:
    """Records of ``len(fields)`` fields, each field ended by ``delimiter``, each record by a newline.

    `SlurmRefused` where the count does not fit: the delimiter was cut, or this Slurm prints another form.
    """
    parts = text.split(delimiter)
    rest = parts.pop()
    width = len(fields)
    if rest.strip("\n") or len(parts) % width:
        raise SlurmRefused("Slurm printed records of an unknown form; is this version of Slurm supported?")
    rows = []
    for at in range(0, len(parts), width):
        row = dict(zip(fields, parts[at : at + width], strict=True))
        if at:
            row[fields[0]] = row[fields[0]].removeprefix("\n")
        rows.append(row)
    return rows


def clean(text: str) -> str:
    """Bytes that are not UTF-8 as U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def text_of(value: str | None) -> str | None:
    """None for all of Slurm's words for nothing."""
    return None if value is None or value in _NOTHING else clean(value)


def time_of(value: str | None) -> float | None:
    """Seconds since 1970, from SLURM_TIME_FORMAT=%s or, as UTC, from Slurm's own form; 0 is *not set*."""
    number = number_of(value)
    if number is None and value and re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", value, re.ASCII):
        try:
            return datetime.fromisoformat(value).replace(tzinfo=timezone.utc).timestamp()
        except ValueError:
            return None
    return float(number) if number else None


def number_of(value: str | None, digits: int = 18) -> int | None:
    return int(value) if value and re.fullmatch(rf"[0-9]{{1,{digits}}}", value, re.ASCII) else None


def exit_pair(value: str | None) -> str | None:
    """``3:0`` from sacct's ``3:0`` or from squeue's wait status ``768``. Code and signal, as Slurm writes them."""
    if value and re.fullmatch(r"[0-9]{1,10}:[0-9]{1,10}", value, re.ASCII):
        return value
    status = number_of(value)
    return None if status is None else f"{status >> 8 & 0xFF}:{status & 0x7F}"


def gpus_of(tres: str | None, *, tracked: bool) -> int | None:
    """GPUs in ``cpu=2,gres/gpu=4``; of typed counts alone (``gres/gpu:h100=8``) the sum.

    Slurm prints only the TRES that AccountingStorageTRES names, so no count is 0 only where GPUs are ``tracked``.
    """
    if text_of(tres) is None:
        return None
    counts = re.findall(r"(?:^|,)gres/gpu(:[^=,]*)?=([0-9]{1,9})", tres or "", re.ASCII)
    plain = [int(count) for kind, count in counts if not kind]
    typed = [int(count) for kind, count in counts if kind]
    if plain or typed:
        return plain[0] if plain else sum(typed)
    return 0 if tracked else None


def hosts_of(hostlist: str | None) -> tuple[str, ...]:
    """Names of a host list; none for *nothing* and for what is no host list."""
    value = text_of(hostlist)
    try:
        return tuple(expand(value)) if value else ()
    except ValueError:
        return ()


@lru_cache(maxsize=1024)
def split_state(text: str) -> tuple[str, frozenset[str]]:
    """``DOWN*+DRAIN`` → ``DOWN``, {``DRAIN``, ``NOT_RESPONDING``}."""
    flags: set[str] = set()
    words = []
    for word in text.strip().upper().split("+"):
        bare = word.rstrip("".join(_TRAILERS))
        flags.update(_TRAILERS[sign] for sign in word[len(bare) :])
        words.append(bare)
    base, *more = words
    if base in _COMPACT:
        base, flag = _COMPACT[base]
        flags.add(flag)
    return base, frozenset(flags.union(more))


_NODE_KEYS = {
    "state": re.compile(r" State=(\S+)"),
    "address": re.compile(r" NodeAddr=(\S+)"),
    "boot": re.compile(r" BootTime=(\S+)"),
    "slurmd": re.compile(r" SlurmdStartTime=(\S+)"),
    "version": re.compile(r" Version=(\S+)"),
    "gres": re.compile(r" Gres=(\S+)"),
    "hostname": re.compile(r" NodeHostName=(\S+)"),
}
#: Text of administrators, in this order; InstanceId and InstanceType are Slurm's.
_REASON = re.compile(r" Reason=(.*?)(?= (?:Comment|Extra|InstanceId|InstanceType)=|\s*$)", re.DOTALL)
#: The stamp follows the first line of the reason; more lines follow it after eight blanks each.
_STAMP = re.compile(r" \[([^\s@\]]+)@([^\s\]]+)\](?= {8}|$)")
#: Where the fields end that slurmd or slurmctld made, and text of administrators begins.
_FREE_TEXT = re.compile(r" (?:Reason|Comment|Extra)=")


def read_nodes(text: str) -> tuple[NodeState, ...]:
    """``scontrol -o show nodes``, one node a line. Lines that hold no node and no state are left out."""
    chunks = re.split(r"^(?=NodeName=)", text, flags=re.MULTILINE)
    return tuple(node for node in map(_node, chunks) if node)


def _node(chunk: str) -> NodeState | None:
    name = re.match(r"NodeName=(\S+)", chunk)
    free = _FREE_TEXT.search(chunk)
    fixed = chunk[: free.start()] if free else chunk
    found = {key: pattern.search(fixed) for key, pattern in _NODE_KEYS.items()}
    values = {key: match.group(1) for key, match in found.items() if match}
    if not name or "state" not in values:
        return None
    base, flags = split_state(values["state"])
    reason, by, at = _reason(chunk[free.start() :]) if free else (None, None, None)
    return NodeState(
        name=clean(name.group(1)),
        state=base,
        flags=flags,
        reason=reason,
        reason_by=by,
        reason_at=at,
        boot_time=time_of(values.get("boot")),
        slurmd_start=time_of(values.get("slurmd")),
        version=text_of(values.get("version")),
        gpus=configured_gpus(values.get("gres")),
        hostname=text_of(values.get("hostname")),
        address=text_of(values.get("address")),
    )


@lru_cache(maxsize=1024)
def configured_gpus(gres: str | None) -> int | None:
    """``gpu:h100:8(S:0-1),shard:16`` → 8. Types such as ``1g.10gb`` are parts of a GPU (MIG)."""
    if gres is None:
        return None
    found = re.findall(r"(?:^|,)gpu(?::([^:,()]+))??:([0-9]{1,4})(?=[,(]|$)", gres, re.ASCII)
    if any(re.match(r"(?:\w+_)?[0-9]+g\.", kind) for kind, _ in found):
        return None
    return sum(int(count) for _, count in found)


def _reason(free: str) -> tuple[str | None, str | None, float | None]:
    """Text, user and time of ``Reason=…``; all None where the free text begins with something else."""
    found = _REASON.match(free)
    if not found:
        return None, None, None
    stamp = _STAMP.search(found.group(1))
    text = re.sub(r" {8,}", " ", _STAMP.sub("", found.group(1), count=1))
    return clean(text), (clean(stamp.group(1)) if stamp else None), (time_of(stamp.group(2)) if stamp else None)


def read_events(bare: str, told: str = "") -> tuple[NodeEvent, ...]:
    """``sacctmgr -nP show event``, oldest first: ``bare`` with ``format=`` all of EVENT_FIELDS but the reason, ``told``
    with all of them. Rows without a node (TRES changes) left out.

    A reason may hold ``|`` and newlines, and so whole rows of other nodes: what rows there are, ``bare`` alone tells.
    """
    rows = [row for line in bare.split("\n") if len(row := line.split("|")) == len(EVENT_FIELDS) - 1]
    reasons = _reasons(told, rows)
    events = [event for number, row in enumerate(rows) if (event := _event(row, reasons.get(number)))]
    return tuple(sorted(events, key=lambda event: event.start))


def _reasons(told: str, rows: Sequence[Sequence[str]]) -> dict[int, str]:
    """By number of the row. Lines that begin no row go on with the reason of the one before."""
    waiting: dict[tuple[str, str], list[int]] = {}
    for number, (node, start, *_) in enumerate(rows):
        waiting.setdefault((node, start), []).append(number)
    reasons: dict[int, str] = {}
    current: int | None = None
    for line in told.split("\n"):
        parts = line.split("|", len(EVENT_FIELDS) - 1)
        numbers = waiting.get((parts[0], parts[1])) if len(parts) == len(EVENT_FIELDS) else None
        if numbers:
            current = numbers.pop(0)
            reasons[current] = parts[-1]
        elif current is not None and line:
            reasons[current] += f" {line}"
    return reasons


def _event(row: Sequence[str], reason: str | None) -> NodeEvent | None:
    name, start, end, state, user = row
    begun = time_of(start)
    if not name or begun is None or not state:
        return None
    base, flags = split_state(state)
    return NodeEvent(clean(name), begun, time_of(end), base, flags, text_of(user), text_of(reason))


def read_config(text: str) -> Settings:
    """``scontrol show config``."""
    pairs = _pairs(text)
    cluster = text_of(pairs.get("ClusterName"))
    if cluster is None:
        raise SlurmRefused("scontrol show config names no cluster; is this version of Slurm supported?")
    user = re.fullmatch(r"(.+)\(([0-9]{1,10})\)", pairs.get("SlurmUser", ""), re.ASCII)
    age = re.match(r"([0-9]{1,9}) sec", pairs.get("MinJobAge", ""), re.ASCII)
    return Settings(
        cluster=cluster,
        version=read_version(pairs.get("SLURM_VERSION", "")),
        accounting=pairs.get("AccountingStorageType", "").endswith("/slurmdbd"),
        stores_comments="job_comment" in pairs.get("AccountingStoreFlags", "").lower(),
        tracks_gpus="gres/gpu" in pairs.get("AccountingStorageTRES", ""),
        slurm_user=user.group(1) if user else None,
        slurm_uid=int(user.group(2)) if user else None,
        database_hosts=_hosts(pairs, _DATABASE_HOSTS[:2]),
        min_job_age_s=float(age.group(1)) if age else 300.0,
        reboots=text_of(pairs["RebootProgram"]) is not None if "RebootProgram" in pairs else None,
        started=time_of(pairs.get("BOOT_TIME", "")),
    )


def read_database_hosts(text: str) -> tuple[str, ...]:
    """``sacctmgr show configuration``: slurm.conf's words for slurmdbd's host, then slurmdbd's own for its and its
    database's."""
    return _hosts(_pairs(text), _DATABASE_HOSTS)


def _pairs(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\S+)[ \t]*= ?(.*?)[ \t]*$", text, re.MULTILINE))


def _hosts(pairs: dict[str, str], names: Sequence[str]) -> tuple[str, ...]:
    """A loopback address is that of whoever says so: the host that another line names."""
    told = [text_of(pairs.get(name)) for name in names]
    return tuple(dict.fromkeys(host for host in told if host and not _LOOPBACK.match(host)))


def read_switches(text: str) -> dict[str, str]:
    """``scontrol show topology`` (topology/tree): ``SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]``; leaves alone."""
    found = re.findall(r"^SwitchName=(\S+) Level=0 (?:.* )?Nodes=(\S+)", text, re.MULTILINE)
    return {node: clean(switch) for switch, nodes in found for node in hosts_of(nodes)}


def read_version(text: str) -> tuple[int, int] | None:
    """``slurm-wlm 22.05.8`` → (22, 5)."""
    found = re.search(r"\b([0-9]{2})\.([0-9]{2})\b", text, re.ASCII)
    return (int(found.group(1)), int(found.group(2))) if found else None


def read_controllers(text: str) -> tuple[Controller, ...]:
    """``scontrol ping``. Roles are ``primary``, ``backup`` and, with three hosts, ``backup1``, ``backup2``."""
    found = re.findall(r"^Slurmctld\((primary|backup)[0-9]*\) at (\S+) is (UP|DOWN)", text, re.MULTILINE)
    return tuple(Controller(clean(host), role, up == "UP") for role, host, up in found)


def read_partitions(text: str) -> frozenset[str]:
    """``scontrol -o show partitions``: one a line."""
    return frozenset(map(clean, re.findall(r"^PartitionName=(\S+)", text, re.MULTILINE)))


def read_offered_fields(text: str) -> frozenset[str]:
    """``sacct --helpformat``: the fields that this version has, in lower case."""
    return frozenset(text.lower().split())


def modified_jobs(text: str) -> frozenset[int]:
    """``sacctmgr modify job``: ``  9 submitted at 2026-…``. The time is in slurmdbd's time zone: not read."""
    return frozenset(int(found) for found in re.findall(r"^ +([0-9]{1,10}) submitted at ", text, re.MULTILINE))
