"""What changed on the node between the two snapshots of a run: facts of trust ``root``."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from nccl_slurm.model import Fact

__all__ = ["changes"]

_Readings = Mapping[str, Any]


def changes(before: _Readings | None, after: _Readings | None, gpus: frozenset[str] | None, host: str) -> list[Fact]:
    """Nothing where either snapshot is missing. ``gpus``: bus ids of the run's GPUs, None for all of the node."""
    if before is None or after is None:
        return []
    at = after["end"]
    facts = _gpus(before.get("gpus"), after.get("gpus"), gpus) + _ports(before.get("ports"), after.get("ports"))
    return [_fact(kind, line, role, hint, host, at, data) for kind, line, role, hint, data in facts]


_Change = "tuple[str, str, str, str | None, dict[str, Any]]"


def _gpus(
    before: Sequence[_Readings] | None, after: Sequence[_Readings] | None, own: frozenset[str] | None
) -> list[Any]:
    """A query that failed is no missing GPU: both lists must have been read, and the second must hold some GPU."""
    if not before or not after:
        return []
    now = {gpu.get("bus_id"): gpu for gpu in after}
    found: list[Any] = []
    for gpu in before:
        bus = gpu.get("bus_id")
        if bus is None or (own is not None and bus not in own):
            continue
        if bus not in now:
            line = f"GPU {bus} was there before the run and is gone after it"
            found.append(("gpu.missing", line, "cause", "gpu-hw-lost", {"bus_id": bus, "uuid": gpu.get("uuid")}))
        else:
            found += _gpu(bus, gpu, now[bus])
    return found


def _gpu(bus: str, before: _Readings, after: _Readings) -> list[Any]:
    found: list[Any] = []
    base = {"bus_id": bus, "uuid": after.get("uuid")}
    was, now = before["ecc"]["volatile_uncorrected"], after["ecc"]["volatile_uncorrected"]
    if was is not None and now is not None and now > was:
        line = f"GPU {bus}: uncorrected ECC errors rose from {was} to {now} during the run"
        found.append(("gpu.ecc-uncorrected", line, "cause", "gpu-hw-ecc", dict(base, before=was, after=now)))
    for name, hint in (("failure", "gpu-hw-ecc"), ("pending", None)):
        if after["remapped"][name] and not before["remapped"][name]:
            line = f"GPU {bus}: row remapping {name} is set after the run and was not before"
            found.append((f"gpu.remap-{name}", line, "cause" if hint else "context", hint, base))
    if after["recovery_action"] not in (None, "None") and before["recovery_action"] != after["recovery_action"]:
        line = f"GPU {bus}: the driver asks for recovery action {after['recovery_action']}"
        found.append(("gpu.recovery-action", line, "context", None, dict(base, action=after["recovery_action"])))
    return found


def _ports(before: Sequence[_Readings] | None, after: Sequence[_Readings] | None) -> list[Any]:
    was = {(port["device"], port["port"]): port for port in before or ()}
    found: list[Any] = []
    for port in after or ():
        old = was.get((port["device"], port["port"]))
        if old is None:
            continue
        name = f"{port['device']} port {port['port']}"
        base = {"device": port["device"], "port": port["port"]}
        if old["state"] == "ACTIVE" and port["state"] not in (None, "ACTIVE"):
            line = f"{name} was ACTIVE before the run and is {port['state']} after it"
            found.append(("port.state", line, "context", "net-ib-transport", dict(base, state=port["state"])))
        downs = [one["counters"].get("link_downed") for one in (old, port)]
        if None not in downs and downs[1] > downs[0]:
            line = f"{name}: link went down {downs[1] - downs[0]} times during the run"
            data = dict(base, before=downs[0], after=downs[1])
            found.append(("port.link-downed", line, "context", "net-ib-transport", data))
    return found


def _fact(kind: str, line: str, role: str, hint: str | None, host: str, at: float, data: dict[str, Any]) -> Fact:
    """``time`` is None: it happened at some moment between the snapshots, which ``data`` gives the end of."""
    return Fact(
        kind=kind,
        text=line,
        producer="snapshot",
        role=role,
        trust="root",
        hint=hint,
        host=host,
        data=dict(data, read_at=at),
    )
