"""GPU readings of a node record → faults of its machine: what is bad now and was not in the reading before. Pure.

A counter of a lifetime says nothing about when, so the first reading of a machine makes no fault of it. A state that
is still bad after a boot is a fault again: that it outlived the boot is what one wants to know. A GPU that is not there
is remembered, so that the board which comes in its place is known to be another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nccl_slurm.history.machine import MachineEvent

__all__ = ["Reading", "compared", "readings_of"]

_Gpu = Mapping[str, Any]
_WORD, _LINKS = 100, 64
#: GPUs of a node that are remembered; nobody builds nodes with more.
_GPUS = 64


class Reading(NamedTuple):
    """One snapshot. ``configured``: GPUs that Slurm has for the node, None where that is not told."""

    at: float
    boot_id: str | None
    gpus: Sequence[_Gpu]
    configured: int | None
    of_job: int | None


def readings_of(record: Mapping[str, Any], configured: int | None) -> list[Reading]:
    """The record's snapshots in which GPUs were read, oldest first."""
    prolog = record["prolog"] or {}
    env = {**prolog.get("env", {}), **(record["epilog"] or {}).get("env", {})}
    numbers = [part for part in env.get("SLURM_JOB_GPUS", "").split(",") if part]
    boots = {"before": prolog.get("boot_id"), "after": record["machine"]["boot_id"]}
    found = []
    for when in ("before", "after"):
        taken = record["snapshots"][when]
        if taken is not None and taken["gpus"] is not None:
            found.append(Reading(taken["end"], boots[when], taken["gpus"], configured, len(numbers) or None))
    return found


def compared(known: Mapping[str, Any], reading: Reading) -> tuple[list[MachineEvent], dict[str, Any]]:
    """Faults, boards that were changed, states that are over; and what is to be known next time. ``known``: what this
    function gave back before, or empty.

    A reading that is older than the known one changes nothing.
    """
    if known and reading.at <= known["at"]:
        return [], dict(known)
    gpus = {str(gpu.get("uuid") or gpu.get("bus_id"))[:_WORD]: _kept(gpu, reading.boot_id) for gpu in reading.gpus}
    events: list[MachineEvent] = []
    for name, now in gpus.items():
        before = _known_gpu(known, name)
        booted = not known or before.get("boot", known["boot"]) != reading.boot_id
        events += _changed(name, now, known, reading.at)
        events += _of_gpu(now, before, gpus, booted, reading.at)
    few = _few(reading)
    if few and (known.get("boot") != reading.boot_id or not known.get("few")):
        events.append(_missing(known, gpus, reading))
    return events, {"at": reading.at, "boot": reading.boot_id, "gpus": _remembered(known, gpus), "few": few}


def _remembered(known: Mapping[str, Any], now: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Those that are there, with what could not be read this time as it was, and those that were and whose places are
    empty."""
    gpus = {name: {**gpu, **_unread(gpu, _known_gpu(known, name))} for name, gpu in now.items()}
    places = {gpu["bus"] for gpu in gpus.values()}
    gone = {name: gpu for name, gpu in known.get("gpus", {}).items() if name not in gpus and gpu["bus"] not in places}
    return dict([*gpus.items(), *gone.items()][:_GPUS])


def _unread(now: _Gpu, before: Mapping[str, Any]) -> dict[str, Any]:
    return {key: before[key] for key, *_ in _STATES if now[key] is None and before.get(key) is not None}


def _kept(gpu: _Gpu, boot_id: str | None) -> dict[str, Any]:
    """The record's schema leaves a snapshot's inside open, and what is kept is kept for years: so each by its type."""
    ecc, remapped, links = _part(gpu, "ecc"), _part(gpu, "remapped"), _part(gpu, "nvlink")
    down = links.get("inactive")
    return {
        "uuid": _word(gpu.get("uuid")),
        "bus": _word(gpu.get("bus_id")),
        "boot": boot_id,
        "name": _word(gpu.get("name")),
        "volatile": _count(ecc.get("volatile_uncorrected")),
        "aggregate": _count(ecc.get("aggregate_uncorrected")),
        "sram": _flag(ecc.get("sram_threshold_exceeded")),
        "pending": _flag(remapped.get("pending")),
        "failure": _flag(remapped.get("failure")),
        "action": _word(gpu.get("recovery_action")),
        "up": _count(links.get("active")),
        "down": [link for link in down[:_LINKS] if _count(link) is not None] if isinstance(down, list) else None,
    }


def _part(gpu: _Gpu, name: str) -> Mapping[str, Any]:
    value = gpu.get(name)
    return value if isinstance(value, dict) else {}


def _word(value: object) -> str | None:
    return value[:_WORD] if isinstance(value, str) else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63 else None


def _known_gpu(known: Mapping[str, Any], name: str) -> dict[str, Any]:
    gpus: Mapping[str, dict[str, Any]] = known.get("gpus", {})
    return gpus.get(name, {})


def _of_gpu(
    now: dict[str, Any], before: Mapping[str, Any], all_now: Mapping[str, Any], booted: bool, at: float
) -> list[MachineEvent]:
    found = [_rise(now, before, booted)]
    found += [_state(now, before, booted, *row) for row in _STATES]
    found += [_action(now, before, booted), _links(now, before, all_now, booted)]
    faults = [_event(now, at, *one) for one in found if one is not None]
    return [*faults, *(_over(now, at, name) for key, name, *_ in _STATES if before.get(key) and now[key] is False)]


def _over(gpu: _Gpu, at: float, name: str) -> MachineEvent:
    return MachineEvent(
        at, "gpu", "over", "gpu", f"GPU {gpu['bus']}: {name} is over", data={**_which(gpu), "was": name}
    )


def _changed(name: str, now: _Gpu, known: Mapping[str, Any], at: float) -> Iterator[MachineEvent]:
    """Both boards told their uuid, so that it is certain."""
    for before, gpu in known.get("gpus", {}).items():
        if gpu["bus"] and gpu["bus"] == now["bus"] and before != name and _are_uuids(before, name):
            text = f"GPU {now['bus']}: {name} in the place of {before}"
            yield MachineEvent(at, "gpu", "changed", "gpu", text, data={**_which(now), "before": before})


def _are_uuids(*names: str) -> bool:
    return all(name.startswith("GPU-") for name in names)


def _which(gpu: _Gpu) -> dict[str, Any]:
    return {"gpu": gpu["bus"], **({"uuid": gpu["uuid"]} if gpu["uuid"] else {})}


_Found = tuple[str, str, "str | None", dict[str, Any]]

#: Key of a reading, name of the fault, its words, its class. Names as in data/classes.toml.
_STATES = (
    ("failure", "gpu.remap-failure", "a row could not be remapped", "gpu-hw-ecc"),
    ("pending", "gpu.remap-pending", "a row remap waits for the next reset", None),
    ("sram", "gpu.sram-threshold", "uncorrectable SRAM errors are beyond the threshold", "gpu-hw-ecc"),
)


def _state(
    now: _Gpu, before: Mapping[str, Any], booted: bool, key: str, name: str, words: str, failure_class: str | None
) -> _Found | None:
    if not now[key] or (before.get(key) and not booted):
        return None
    return name, words, failure_class, {}


def _rise(now: _Gpu, before: Mapping[str, Any], booted: bool) -> _Found | None:
    """The aggregate counter outlives boots; the volatile one starts again at 0 with each."""
    keys = ("aggregate",) if booted else ("volatile", "aggregate")
    for key in keys:
        was, is_now = before.get(key), now[key]
        if was is not None and is_now is not None and is_now > was:
            words = f"uncorrected ECC errors rose from {was} to {is_now} ({key})"
            return "gpu.ecc-uncorrected", words, "gpu-hw-ecc", {"before": was, "after": is_now}
    return None


def _action(now: _Gpu, before: Mapping[str, Any], booted: bool) -> _Found | None:
    action = now["action"]
    if action in (None, "None") or (before.get("action") == action and not booted):
        return None
    return "gpu.recovery-action", f"the driver asks for recovery action {action}", None, {"action": action}


def _links(now: _Gpu, before: Mapping[str, Any], all_now: Mapping[str, Any], booted: bool) -> _Found | None:
    """Boards without a bridge have links that are never up: only a link that was up, or that is up on the other GPUs of
    this kind, is missed."""
    down = now["down"]
    if not down or now["up"] is None or (before.get("down") == down and not booted):
        return None
    most = max(
        (one["up"] for one in all_now.values() if one["name"] == now["name"] and one["up"] is not None), default=0
    )
    if now["up"] >= max(most, before.get("up") or 0):
        return None
    return "gpu.nvlink-inactive", f"NVLinks that are not active: {_listed(down)}", "nvlink-fabric", {"link": list(down)}


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _event(
    gpu: _Gpu, at: float, name: str, words: str, failure_class: str | None, data: dict[str, Any]
) -> MachineEvent:
    return MachineEvent(
        at, "fault", name, "gpu", f"GPU {gpu['bus']}: {words}", failure_class, 0.0, {**_which(gpu), **data}
    )


def _few(reading: Reading) -> bool:
    """Fewer GPUs than Slurm has for the node. Where a hook sees the job's own GPUs alone (PrologFlags=RunInJob with
    device cgroups) it can't be told."""
    if reading.configured is None or len(reading.gpus) >= reading.configured:
        return False
    return reading.of_job is None or len(reading.gpus) != reading.of_job


def _missing(known: Mapping[str, Any], now: Mapping[str, Any], reading: Reading) -> MachineEvent:
    gone = [gpu["bus"] for name, gpu in known.get("gpus", {}).items() if name not in now and gpu["bus"]]
    count = len(reading.gpus)
    data: dict[str, Any] = {"found": count, "configured": reading.configured, "gpus": gone}
    if len(gone) == 1:
        data["gpu"] = gone[0]
    text = f"{count} GPUs, Slurm has {reading.configured} for the node"
    if set(known.get("gpus", {})) <= set(now):
        text += ", and the machine never showed more"
    return MachineEvent(reading.at, "fault", "gpu.count", "gpu", text, "gpu-hw-lost", 0.0, data)
