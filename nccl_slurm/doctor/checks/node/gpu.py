"""GPUs: are all there, what their memory, clocks and power say, who holds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES, smi_proof
from nccl_slurm.doctor.gather import CONTAINER
from nccl_slurm.doctor.read import pci
from nccl_slurm.doctor.read.smi import Gpu
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS", "gpus_or_none", "of_gpus"]

_NONE = "this machine has no NVIDIA GPU"
#: Active reasons that take speed away: hardware's own, and the driver's for heat. Idle, power cap under load and
#: chosen clocks are none.
_HARDWARE = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
_SOFT = ("sw_thermal_slowdown",)
#: Programs of the driver and of monitoring that hold GPUs all the time.
_RESIDENT = (
    "nvidia-persiste",
    "nv-hostengine",
    "nvidia-smi",
    "dcgm-exporter",
    "nvidia-fabricm",
    "nv-fabricmanage",
    "nvidia-cuda-mps",
)
_YOUNG_S = 300.0
#: What a program without a GPU of its own is told only where the driver itself is gone.
_DEAD = re.compile(r"couldn't communicate|version mismatch|GPU is lost|driver (?:is )?not loaded", re.IGNORECASE)
_RESIDENT_MORE = ("dcgmi", "nvvs", "nvsm", "nvidia-imex", "nv_fabricmanager", "Xorg", "gpud", "node_exporter")


def of_gpus(look: Look) -> Sequence[Gpu] | None:
    """None where the machine has none. Raises where it has some and they can't be read."""
    return None if machine.has_gpus(look.seen) is False else machine.gpus(look.seen)


def gpus_or_none(look: Look) -> Sequence[Gpu] | None:
    """None also where they can't be read."""
    try:
        return of_gpus(look)
    except NotObserved:
        return None


# count


def _count(look: Look) -> Iterator[Finding]:
    seen = look.seen
    if machine.has_gpus(seen) is False:
        yield look.not_applicable(_NONE)
        return
    yield from _stuck(look)
    wanted, why = _wanted(look)
    on_bus = _on_bus(look)
    if on_bus is not None and wanted is not None and len(on_bus) < wanted:
        text = f"{len(on_bus) or 'none'} of {wanted} GPUs ({why}) {'is' if len(on_bus) < 2 else 'are'} on the PCI bus"
        proofs = [Proof("/sys/bus/pci/devices", f"{one.slot} {one.vendor} {one.kind}") for one in on_bus]
        proofs = [*_promise(look), *(proofs or [Proof("/sys/bus/pci/devices", "no function of a GPU")])]
        if _may_be_parts(look, wanted, on_bus):
            yield look.unknown(f"{text}: gone, or split (MIG) into parts that Slurm counts, which is not told", *proofs)
        else:
            told = {"count": str(len(on_bus)), "wanted": str(wanted)}
            yield look.fail("P0", f"{text}: {'the others' if on_bus else 'they'} are gone", *proofs, values=told)
            return
    yield from _answered(look, wanted, why, on_bus)


def _are_split(look: Look) -> bool:
    """Whether a GPU is in MIG mode, by the driver: then Slurm counts parts, whatever type its GRES has."""
    return any(gpu.mig for gpu in gpus_or_none(look) or ())


def _may_be_parts(look: Look, wanted: int, on_bus: Sequence[pci.Function]) -> bool:
    """Where the driver tells of no GPU, or a job sees some alone, others may be split. A GRES of parts mostly has a
    type that says so (gres.conf(5)): one that has another counts whole GPUs."""
    row = machine.instance(look.seen)
    told = machine.gres_has_type(look.seen) or (row is not None and wanted <= row.gpus)
    return bool(on_bus) and not told and len(gpus_or_none(look) or ()) < len(on_bus)


def _wanted(look: Look) -> tuple[int | None, str]:
    """The larger of what Slurm, as long as it counts whole GPUs, and the instance type promise."""
    told = None if _are_split(look) else machine.gres(look.seen)
    row = machine.instance(look.seen)
    if row is not None and row.gpus >= (told or 0):
        return row.gpus, row.type
    return told, f"Gres={look.seen.slurm.get('Gres', '')}"


def _promise(look: Look) -> Iterator[Proof]:
    """Whose word the number of GPUs is."""
    row, told = machine.instance(look.seen), look.seen.slurm.get("Gres", "")
    if row is not None and row.gpus >= (machine.gres(look.seen) or 0):
        yield Proof("instance type", f"{row.type}: {row.gpus} GPUs")
    elif told:
        yield Proof("scontrol show node", f"Gres={told}")


def _on_bus(look: Look) -> list[pci.Function] | None:
    try:
        return pci.gpus(machine.functions(look.seen))
    except NotObserved:
        return None


def _answered(look: Look, wanted: int | None, why: str, on_bus: Sequence[pci.Function] | None) -> Iterator[Finding]:
    """What nvidia-smi lists; inside a job only the GPUs that Slurm gave to it."""
    given = look.seen.gpus
    if given is not None and not given:
        yield look.unknown("Slurm gave this look no GPU: nvidia-smi can't list them")
        return
    listed, proof = _listed(look)
    if listed is None and (not _in_a_job(look) or _DEAD.search(proof.line)):
        yield look.fail("P0", f"the GPU driver does not answer: {proof.line}", proof, wanted=str(wanted or ""))
        return
    least = len(given) if given is not None else wanted
    dumb = list(_dumb(look))
    yield from dumb
    if listed is None or (least is not None and listed < least):
        shown = "given by Slurm" if given is not None else why
        yield _fewer(look, f"{listed or 0} of {least} GPUs ({shown}) answer", proof, on_bus)
    elif wanted is not None and given is None and listed > wanted:
        yield look.warn("P2", f"{listed} GPUs, and Slurm counts on {wanted}", proof)
    elif dumb:
        return
    elif least is None:
        yield look.unknown(f"{listed} GPUs answer; how many there should be was not told by Slurm or DMI", proof)
    else:
        yield look.passed(f"{listed} GPUs answer", proof)


def _dumb(look: Look) -> Iterator[Finding]:
    """GPUs that nvidia-smi lists and can't read."""
    for gpu in gpus_or_none(look) or ():
        proof = smi_proof(f"{gpu.bus}: {gpu.lost or gpu.mute}")
        if gpu.lost:
            yield look.fail("P0", f"{gpu.label}: the driver says: {gpu.lost}", proof, gpu=gpu.bus or "")
        elif gpu.mute:
            yield look.unknown(f"{gpu.label}: the driver tells nothing of it but: {gpu.mute}", proof)


def _fewer(look: Look, text: str, proof: Proof, on_bus: Sequence[pci.Function] | None) -> Finding:
    """Slurm shows a job no GPU but its own, and counts the parts of a GPU that is split (MIG) one by one."""
    if _in_a_job(look):
        return look.unknown(f"{text}; this look is in a job, and which GPUs Slurm gave to it is not told", proof)
    if look.seen.gpus is not None and (machine.counts_parts(look.seen) or _are_split(look)):
        return look.unknown(f"{text}: GPUs are split (MIG), and Slurm counts their parts", proof)
    return look.fail("P0", text, proof, *_undriven(on_bus))


def _in_a_job(look: Look) -> bool:
    """Of which it is not told what it may see."""
    return look.seen.job is not None and look.seen.gpus is None


def _listed(look: Look) -> tuple[int | None, Proof]:
    """None: the driver is there and answers no. Raises where it was not asked, or its program is missing."""
    try:
        found = machine.asked(look.seen)
    except NotObserved as error:
        if look.seen.command("nvidia-smi").rc == 0:
            raise
        return None, smi_proof(str(error))
    if found.gpus:
        return len(found.gpus), smi_proof(", ".join(f"{one.bus} {one.name}" for one in found.gpus)[:400])
    return (None, smi_proof(found.why)) if found.gpus is None else (0, smi_proof("no <gpu> in its answer"))


def _undriven(on_bus: Sequence[pci.Function] | None) -> list[Proof]:
    return [Proof("/sys/bus/pci/devices", f"{one.slot}: no driver") for one in on_bus or () if one.driver is None]


_MAYBE = "with a GPU open can't be ended now: whether they hang in its driver is not told"


def _stuck(look: Look) -> Iterator[Finding]:
    try:
        rows = look.seen.reader("stuck")
    except NotObserved:
        return
    for driver, text in ((True, "hang in the GPU driver and can't be ended"), (None, _MAYBE)):
        held = [row for row in machine.rows(rows) if row.get("gpu") and row.get("driver") is driver]
        proofs = [Proof(f"/proc/{row.get('pid')}/stat", f"{row.get('comm')} D {row.get('wchan')}") for row in held]
        if held and driver:
            yield look.fail("P0", f"{len(held)} processes {text}", *proofs)
        elif held:
            yield look.unknown(f"{len(held)} processes {text} ({look.seen.more_rights})", *proofs)


# memory

#: What no reset heals.
_RETURN = {"action": "replace"}


def _ecc(look: Look) -> Iterator[Finding]:
    """Uncorrected errors since the driver was loaded. Those of the board's life are history: a reset clears nothing."""
    found = of_gpus(look)
    if found is None:
        yield look.not_applicable(_NONE)
        return
    clean: list[Gpu] = []
    for gpu in found:
        wrong = list(_ecc_of(look, gpu))
        yield from wrong
        if not wrong and gpu.volatile is None:
            yield look.unknown(f"{gpu.label}: the driver tells no ECC errors")
        elif gpu.ecc_failed:
            text = f"{gpu.label}: the driver can't read all of its ECC errors"
            yield look.unknown(text, smi_proof(f"{gpu.bus} ecc_errors: not read: {', '.join(gpu.ecc_failed)}"))
        elif not wrong:
            clean.append(gpu)
    if clean:
        old = sum(gpu.aggregate or 0 for gpu in clean)
        more = f"; {old} in the boards' lives, which were dealt with" if old else ""
        yield look.passed(f"{len(clean)} GPUs without uncorrected ECC errors since the driver was loaded{more}")


def _about(gpu: Gpu) -> dict[str, str]:
    final = gpu.sram_exceeded or gpu.unrepairable or gpu.remap_failure
    return {"gpu": gpu.bus or str(gpu.index), **(_RETURN if final else {})}


def _ecc_of(look: Look, gpu: Gpu) -> Iterator[Finding]:
    values = _about(gpu)
    if gpu.volatile:
        proof = smi_proof(f"{gpu.bus} ecc_errors/volatile: {gpu.volatile} uncorrected")
        yield look.fail(
            "P0",
            f"{gpu.label}: {gpu.volatile} uncorrected ECC errors since the driver was loaded",
            proof,
            values=values,
        )
    if gpu.sram_exceeded:
        proof = smi_proof(f"{gpu.bus} sram_threshold_exceeded: Yes")
        yield look.fail(
            "P0",
            f"{gpu.label}: uncorrected errors in SRAM passed NVIDIA's threshold for a return (RMA)",
            proof,
            values=values,
        )
    if gpu.unrepairable:
        yield look.fail(
            "P0",
            f"{gpu.label}: memory that can't be repaired",
            smi_proof("unrepairable_memory: Yes"),
            values=values,
        )
    if gpu.ecc == "Disabled":
        yield look.warn("P2", f"{gpu.label}: ECC is off", smi_proof(f"{gpu.bus} current_ecc: Disabled"), values=values)


def _rows(look: Look) -> Iterator[Finding]:
    found = of_gpus(look)
    if found is None:
        yield look.not_applicable(_NONE)
        return
    told = [gpu for gpu in found if gpu.remap_failure is not None and gpu.remap_pending is not None]
    for gpu in found:
        yield from _rows_of(look, gpu)
    good = [gpu for gpu in told if not _wants_repair(gpu)]
    if good:
        rows = sum(gpu.remapped or 0 for gpu in good)
        more = f"; {rows} rows were remapped before, which is done with" if rows else ""
        yield look.passed(f"{len(good)} GPUs without a remapping or repair that failed or waits{more}")
    wrong = [gpu for gpu in found if _wants_repair(gpu)]
    paged = [gpu for gpu in found if gpu not in (*told, *wrong) and gpu.retired_pending is False and not _remaps(gpu)]
    if paged:
        yield look.passed(f"{len(paged)} GPUs without a retired page that waits")
    silent = [gpu.label for gpu in found if gpu not in (*told, *wrong, *paged)]
    if silent:
        yield look.unknown(f"the driver tells no remapped rows of {', '.join(silent)}")


def _wants_repair(gpu: Gpu) -> bool:
    return bool(gpu.remap_failure or gpu.remap_pending or gpu.retired_pending or gpu.repairs)


def _remaps(gpu: Gpu) -> bool:
    """Before Ampere pages were retired, and no rows remapped: then both of its flags are untold."""
    return gpu.remap_failure is not None or gpu.remap_pending is not None


def _rows_of(look: Look, gpu: Gpu) -> Iterator[Finding]:
    values = _about(gpu)
    if gpu.remap_failure:
        proof = smi_proof(f"{gpu.bus} remapped_row_failure: Yes")
        text = f"{gpu.label}: remapping a row failed: no spare rows are left"
        yield look.fail("P0", text, proof, values=values)
    elif gpu.remap_pending:
        proof = smi_proof(f"{gpu.bus} remapped_row_pending: Yes")
        yield look.fail("P1", f"{gpu.label}: a remapped row waits for a reset of the GPU", proof, values=values)
    elif gpu.retired_pending:
        proof = smi_proof(f"{gpu.bus} pending_retirement: Yes")
        yield look.fail("P1", f"{gpu.label}: a retired page waits for a reset of the GPU", proof, values=values)
    for name in gpu.repairs:
        part = {"tpc_repair_pending": "processors (TPC)"}.get(name, "a memory channel")
        text = f"{gpu.label}: the repair of {part} waits for a reset of the GPU"
        yield look.fail("P1", text, smi_proof(f"{gpu.bus} {name}: Yes"), values=values)


# speed


def _clocks(look: Look) -> Iterator[Finding]:
    found = of_gpus(look)
    if found is None:
        yield look.not_applicable(_NONE)
        return
    silent = [gpu.label for gpu in found if gpu.throttle is None]
    if len(silent) == len(found):
        raise NotObserved("the driver tells no reasons for lowered clocks")
    wrong = [finding for gpu in found for finding in _slowed(look, gpu)]
    yield from wrong
    if silent:
        yield look.unknown(f"the driver tells no reasons for lowered clocks of {', '.join(silent)}")
    elif not wrong:
        yield look.passed(f"no GPU of {len(found)} is slowed by heat or hardware")


def _slowed(look: Look, gpu: Gpu) -> Iterator[Finding]:
    reasons, values = set(gpu.throttle or ()), {"gpu": gpu.bus or str(gpu.index)}
    hard, soft = sorted(reasons & set(_HARDWARE)), sorted(reasons & set(_SOFT))
    speed = f"{gpu.clock} of {gpu.clock_max} MHz, {gpu.temperature} C"
    proof = smi_proof(f"{gpu.bus} clocks_event_reasons: {', '.join(sorted(reasons))}; {speed}")
    if hard:
        yield look.fail("P1", f"{gpu.label}: the hardware slows it ({', '.join(hard)}): {speed}", proof, values=values)
    elif soft:
        yield look.warn("P1", f"{gpu.label}: the driver slows it for its heat: {speed}", proof, values=values)
    elif gpu.temperature is not None and gpu.temperature >= table()["temperature-c"]:
        yield look.warn("P2", f"{gpu.label}: {gpu.temperature} C", proof, values=values)


def _power(look: Look) -> Iterator[Finding]:
    found = of_gpus(look)
    if found is None:
        yield look.not_applicable(_NONE)
        return
    told = [gpu for gpu in found if gpu.power_limit is not None and gpu.power_default]
    if not told:
        raise NotObserved("the driver tells no power limits")
    share = table()["power-share"]
    low = [gpu for gpu in told if _watts(gpu) < (gpu.power_default or 0.0) * share]
    most = max(map(_watts, told))
    odd = [gpu for gpu in low if _watts(gpu) < most * share]
    alike = [gpu for gpu in low if gpu not in odd]
    silent = [gpu.label for gpu in found if gpu not in told]
    for gpu in odd:
        text = f"{gpu.label}: power limit {gpu.power_limit:g} W, of others here {most:g} W, by default"
        watts = f"{gpu.power_default:g}"
        yield look.warn("P1", f"{text} {watts} W", _power_proof(gpu), gpu=gpu.bus or str(gpu.index), watts=watts)
    if alike:
        yield _capped(look, alike)
    if silent:
        yield look.unknown(f"the driver tells no power limits of {', '.join(silent)}")
    elif not low:
        limits = ", ".join(sorted({f"{gpu.power_limit:g} W" for gpu in told}))
        yield look.passed(f"power limits of {len(told)} GPUs are not lowered ({limits})")


def _watts(gpu: Gpu) -> float:
    return gpu.power_limit or 0.0


def _capped(look: Look, alike: Sequence[Gpu]) -> Finding:
    """A limit that no GPU of the node exceeds is most often meant; whether its peers have it too, `fleet.versions`
    tells."""
    first = alike[0]
    whose = "the power limit of the one GPU here is" if len(alike) == 1 else f"power limits of {len(alike)} GPUs are"
    text = f"{whose} lowered: {first.power_limit:g} of {first.power_default:g} W"
    return look.warn("P2", text, *map(_power_proof, alike), watts=f"{first.power_default:g}")


def _power_proof(gpu: Gpu) -> Proof:
    return smi_proof(f"{gpu.bus} current_power_limit {gpu.power_limit} W, default {gpu.power_default} W")


# processes

#: A service that the site started, slurmd itself apart: what a job left behind may stand there.
_SERVICE = re.compile(r"/system\.slice/(?!slurm|user@)[^/\n]{1,200}\.service", re.MULTILINE)


def _processes(look: Look) -> Iterator[Finding]:
    """A program that holds a GPU and belongs to no job takes its memory and time from the next one."""
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable(_NONE)
        return
    told = machine.reader(look.seen, "gpu-holders")
    rows = machine.rows(told.get("processes"))
    judged = [(_standing(look, row), row) for row in rows]
    left = [row for standing, row in judged if standing == "left"]
    unsure = [row for standing, row in judged if standing == "unsure"]
    if told.get("hidden") and not left:
        raise NotObserved(f"whether a process holds a GPU is not known: {str(told['hidden'])[:300]}")
    if left:
        proofs = [Proof(f"/proc/{row.get('pid')}", _named(row)) for row in left]
        text = f"{len(left)} processes hold a GPU and belong to no running job: {', '.join(map(_named, left[:4]))}"
        yield look.fail("P1", text, *proofs, pid=str(left[0].get("pid")))
    elif unsure:
        proofs = [Proof(f"/proc/{row.get('pid')}/cgroup", f"{_named(row)} {row.get('cgroup')}") for row in unsure]
        yield look.unknown("whether processes that hold a GPU are of a job can't be told", *proofs)
    elif told.get("more"):
        yield look.unknown("more processes hold a GPU than are judged", Proof("/proc", f"{told['more']} more"))
    elif told.get("unreadable") and look.seen.uid and not _nobody_computes(look):
        proof = Proof("/proc", f"{told['unreadable']} processes of other users")
        text = f"whether processes of other users hold a GPU can't be seen: {look.seen.more_rights}"
        yield look.unknown(text, proof)
    else:
        yield look.passed(f"{len(rows)} processes hold a GPU, each of a job, of a service, or a reader of counters")


def _nobody_computes(look: Look) -> bool:
    """nvidia-smi lists the programs of all users, with their pids alone."""
    try:
        found = machine.asked(look.seen)
    except NotObserved:
        return False
    return look.seen.gpus is None and bool(found.gpus) and not found.processes


def _standing(look: Look, row: Mapping[str, Any]) -> str:
    """``left``, ``unsure`` or ``well``. On an idle node a job's processes have outlived it. What is young may be a
    health check, or of a job that began after Slurm was asked; what does not compute takes nothing from anybody."""
    start = row.get("start")
    young = isinstance(start, (int, float)) and look.seen.at - start < _YOUNG_S
    resident = str(row.get("comm", "")).startswith((*_RESIDENT, *_RESIDENT_MORE))
    if young or resident or not row.get("computes"):
        return "well"
    idle = look.seen.slurm.get("State", "").split("+")[0] == "IDLE"
    cgroup = str(row.get("cgroup") or "")
    if idle and (row.get("job") or row.get("claims")):
        return "left"
    if row.get("job") is not None or _SERVICE.search(cgroup):
        return "well"
    return "unsure" if row.get("claims") or CONTAINER.search(cgroup) else "left"


def _named(row: Mapping[str, Any]) -> str:
    job = f", job {row['job']}" if row.get("job") else ""
    return f"{row.get('comm')} (pid {row.get('pid')}, uid {row.get('uid')}{job})"


def _every(*more: str) -> tuple[str, ...]:
    return (*GPU_SOURCES, *more)


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.gpu-count",
        "All GPUs are there and answer",
        _every("stuck"),
        _count,
        explains=("node.nvlink", "node.p2p-topology", "node.dcgm", "node.fabric-manager"),
    ),
    NodeCheck("node.ecc", "No uncorrected memory errors", _every(), _ecc, explains=("node.dcgm",)),
    NodeCheck("node.remapped-rows", "No row remapping that failed or waits", _every(), _rows, explains=("node.dcgm",)),
    NodeCheck(
        "node.clocks", "GPUs are not slowed", _every(), _clocks, explains=("fleet.stragglers", "fleet.bandwidth")
    ),
    NodeCheck("node.power-cap", "Power limits are not lowered", _every(), _power),
    NodeCheck("node.gpu-processes", "No program without a job holds a GPU", _every("gpu-holders"), _processes),
)
