"""The switches between GPUs: whether GPUs are registered with their fabric, its health, and who manages it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from nccl_slurm.doctor.check import Finding, NotObserved, Priority, Proof, Status
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.gpu import gpus_or_none
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES
from nccl_slurm.doctor.read import pci, procfs, services
from nccl_slurm.doctor.read.smi import Gpu

__all__ = ["CHECKS"]

_UNIT = "nvidia-fabricmanager"
_BLOCKED = "GPUs behind NVSwitches can't start CUDA"
#: From Hopper on CUDA goes on without the manager (NVIDIA's Fabric Manager guide, ABORT_CUDA_JOBS_ON_FM_EXIT).
_LATER = "GPUs that are registered go on, and none can register again after a reset"
_ELSEWHERE = "may run in a container, or outside of this machine"
#: A GPU that is being registered: some seconds after the driver was loaded.
_UNDER_WAY = ("in progress", "not started")
#: ``<fabric><health>``: words that are well, names of what is only under way, and what the others are worth.
_WELL = ("full", "false", "none", "healthy")
_RECOVERS = ("route_recovery_in_progress", "access_timeout_recovery")
_SICK: Mapping[tuple[str, str], tuple[Status | None, Priority]] = {
    ("route_unhealthy", "true"): ("FAIL", "P0"),
    ("summary", "unhealthy"): ("FAIL", "P0"),
    ("summary", "limited capacity"): ("WARN", "P1"),
    ("bandwidth", "degraded"): ("WARN", "P1"),
}
#: Its words tell what is wrong in the configuration, and there are many.
_CONFIGURATION = "incorrect_configuration"


def _manager(look: Look) -> Iterator[Finding]:
    seen = look.seen
    row = machine.instance(seen)
    found = [gpu for gpu in gpus_or_none(look) or () if gpu.fabric[0]]
    if machine.has_gpus(seen) is None:
        raise NotObserved("whether this machine has GPUs is not known")
    if not (row and row.nvswitch) and not found and not _has_switches(look):
        yield look.not_applicable("its GPUs have no NVSwitch of this node")
        return
    yield from _registration(look)
    if machine.is_grace(seen) or (row is not None and not row.nvswitch):
        yield look.passed("its switches stand outside of the node, and so does their manager")
        return
    yield from _service(look, registered=bool(found) and all(map(_is_registered, found)))


def _service(look: Look, *, registered: bool) -> Iterator[Finding]:
    """``registered``: all GPUs are, which somebody's manager did: CUDA starts."""
    values = services.show(look.seen.text("fabric-manager"))
    state, active = values.get("ActiveState"), services.is_active(values)
    proof = Proof(f"systemctl show {_UNIT}", f"ActiveState={state} {values.get('SubState')}")
    if services.is_absent(values):
        proof = Proof(proof.source, f"LoadState={values.get('LoadState')}")
        yield _without(look, "is not installed", proof, registered=registered, installed=False)
    elif state in ("activating", "reloading"):
        yield look.unknown(f"{_UNIT} starts just now: look again in a minute", proof)
    elif active is False:
        yield _without(look, "does not run", proof, registered=registered, installed=True)
    elif active is None:
        raise NotObserved(f"systemctl tells no state of {_UNIT}")
    else:
        yield _same_version(look, proof, registered=registered)


def _without(look: Look, what: str, proof: Proof, *, registered: bool, installed: bool) -> Finding:
    """A guest that was given a share of the switches, and one whose driver is in a container, have no such service."""
    if not registered:
        return look.fail("P0", f"{_UNIT} {what}: {_BLOCKED}", proof)
    row = machine.instance(look.seen)
    switches = bool(row and row.nvswitch) or _has_switches(look)
    text = f"{_UNIT} {what}, and all GPUs are registered with the NVLink fabric"
    if installed and switches:
        return look.fail("P1", f"{_UNIT} {what}: {_LATER}", proof)
    if installed or switches:
        return look.warn("P2", f"{text}: their manager {_ELSEWHERE}", proof)
    return look.passed(f"{text}: their manager is none of this node's services", proof)


def _has_switches(look: Look) -> bool:
    try:
        return bool(pci.switches(machine.functions(look.seen)))
    except NotObserved:
        return False


def _same_version(look: Look, proof: Proof, *, registered: bool) -> Finding:
    """It refuses to work with a driver of another version (NVIDIA's Fabric Manager guide); the one that runs may have
    been started before an upgrade."""
    try:
        own = services.version_in(look.seen.text("fabric-manager-version"))
        driver = procfs.driver(look.seen.text("nvidia-driver"))
    except NotObserved:
        own, driver = None, None
    if not own or driver is None or own == driver.version:
        return look.passed(f"{_UNIT} runs", proof)
    proofs = (Proof("nv-fabricmanager --version", own), Proof("/proc/driver/nvidia/version", driver.version))
    text = f"{_UNIT} is of another version than the driver"
    if registered:
        return look.fail("P1", f"{text}: {_LATER}", *proofs, driver=driver.version)
    return look.fail("P0", text, *proofs, driver=driver.version)


# registration


def _is_registered(gpu: Gpu) -> bool:
    state, status = gpu.fabric
    return (state or "").lower() == "completed" and (status or "success").lower() == "success"


def _registration(look: Look) -> Iterator[Finding]:
    """From Hopper on each GPU registers with the fabric; ``N/A`` before."""
    found = gpus_or_none(look) or ()
    silent = [gpu.label for gpu in found if gpu.fabric[0] is None]
    if silent and len(silent) < len(found):
        yield look.unknown(f"the NVLink fabric's state is not told of {', '.join(silent)}")
    for gpu in found:
        if gpu.fabric[0] is not None and not _is_registered(gpu):
            yield _unregistered(look, gpu)
        yield from _health(look, gpu)


def _unregistered(look: Look, gpu: Gpu) -> Finding:
    state, status = gpu.fabric[0] or "", gpu.fabric[1]
    proof = machine.smi_proof(f"{gpu.bus} fabric: state {state}, status {status}")
    if state.lower() in _UNDER_WAY:
        return look.unknown(f"{gpu.label}: its registration with the NVLink fabric is under way: {state}", proof)
    if state.lower() != "completed" or (status or "").lower() in ("unknown error", "unknown"):
        return look.unknown(f"{gpu.label}: its state in the NVLink fabric is not known: {state}, {status}", proof)
    text = f"{gpu.label}: not registered with the NVLink fabric: {state}, {status}"
    return look.fail("P0", text, proof, gpu=gpu.bus or "")


def _health(look: Look, gpu: Gpu) -> Iterator[Finding]:
    """The summary only where nothing else tells why."""
    sick = [(name, word) for name, word in gpu.health if word.lower() not in _WELL]
    parts = [(name, word) for name, word in sick if name != "summary"]
    for name, word in parts or sick:
        what = f"{gpu.label}: its way into the NVLink fabric: {name.replace('_', ' ')}: {word}"
        proof = machine.smi_proof(f"{gpu.bus} fabric/health/{name}: {word}")
        status, priority = _SICK.get((name, word.lower()), (None, "P1"))
        if name == _CONFIGURATION or status == "FAIL":
            yield look.fail(priority, what, proof, gpu=gpu.bus or "")
        elif status == "WARN":
            yield look.warn(priority, what, proof, gpu=gpu.bus or "")
        elif name in _RECOVERS:
            yield look.unknown(f"{what}: look again in a minute", proof)
        else:
            yield look.unknown(f"{what}, which is not known", proof)


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.fabric-manager",
        "NVSwitches are managed",
        (*GPU_SOURCES, "fabric-manager", "fabric-manager-version", "nvidia-driver"),
        _manager,
        explains=("node.nvlink", "node.p2p-topology"),
    ),
)
