"""What connects GPUs inside a node: NVLink, its switches and their manager, the paths between GPUs, DCGM's opinion."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.gpu import of_gpus
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck, is_absent
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES
from nccl_slurm.doctor.read import dcgm, nvlink, pci, procfs, services, topo
from nccl_slurm.doctor.read.nvlink import Links
from nccl_slurm.doctor.read.smi import Gpu
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS"]

_NONE = "this machine has no NVIDIA GPU"
_NO_LINKS = "its GPUs have no NVLink"
_STATUS, _ERRORS = "nvidia-smi nvlink --status", "nvidia-smi nvlink -e"
_BAD_LOG = re.compile(r"row ?remap\w*.{0,40}(?:pending|fail)|\bFAIL: |\bError: ", re.IGNORECASE)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
#: DCGM's log is in the node's local time, whatever that is.
_ZONES_S = 14 * 3600.0
_DAY_S = 86400.0
#: A GPU that is being registered: some seconds after the driver was loaded.
_UNDER_WAY = ("in progress", "not started")


def _links_wanted(look: Look) -> int | None:
    """Of each GPU; 0: this type has none; None: not in the table."""
    row = machine.instance(look.seen)
    return None if row is None else row.nvlinks


def _nvlink(look: Look) -> Iterator[Finding]:
    wanted = _links_wanted(look)
    if machine.has_gpus(look.seen) is False or wanted == 0:
        yield look.not_applicable(_NONE if wanted is None else _NO_LINKS)
        return
    found = nvlink.status(look.seen.text("nvlink-status"))
    up = [links.active for links in found.values()]
    linked = _is_linked(look)
    if wanted is None and not any(up) and not linked and not any(links.inactive for links in found.values()):
        yield look.not_applicable(_NO_LINKS)
        return
    if wanted is None and not any(up):
        yield look.unknown("no NVLink is up; whether this machine's GPUs are linked at all is not known")
        return
    if not found:
        raise NotObserved(f"{_STATUS}: no GPU in its answer")
    least = wanted if wanted is not None else max(up)
    short = {gpu: links for gpu, links in found.items() if links.active < least and not _is_split(look, gpu)}
    for gpu, links in short.items():
        yield _short(look, gpu, links, least, sure=wanted is not None or links.active > 0)
    yield from _errors(look)
    untold = _untold(look, len(found))
    if untold:
        yield look.unknown(f"{_STATUS} tells of {len(found)} GPUs, and {untold} are here")
    elif not short:
        yield look.passed(f"{least} NVLinks of each GPU are up")


def _untold(look: Look, told: int) -> int:
    """How many GPUs nvidia-smi lists, where that is more than were told of; else 0."""
    listed = len(_gpus_or_none(look) or ())
    return listed if listed > told else 0


def _is_linked(look: Look) -> bool:
    """By what else tells of NVLink: the paths between GPUs, and their registration with its fabric."""
    if any((gpu.fabric[0] or "").lower() not in ("", "not supported") for gpu in _gpus_or_none(look) or ()):
        return True
    try:
        return any(word.startswith("NV") for word in topo.read(look.seen.text("gpu-topology")).pairs().values())
    except NotObserved:
        return False


def _short(look: Look, gpu: str, links: Links, least: int, *, sure: bool) -> Finding:
    """Not ``sure``: on a machine that the table does not have, a GPU without any link may have no bridge."""
    off = ", ".join(map(str, links.inactive)) or "none is listed"
    proof = Proof(_STATUS, f"GPU {gpu}: {links.active} links with a speed; inactive: {off}")
    text = f"GPU {gpu}: {links.active} of {least} NVLinks are up"
    return look.fail("P0", text, proof, gpu=gpu) if sure else look.warn("P1", text, proof, gpu=gpu)


def _is_split(look: Look, gpu: str) -> bool:
    """A GPU that is split (MIG) has its links off."""
    try:
        return any(one.mig for one in machine.gpus(look.seen) if gpu in (str(one.index), one.bus))
    except NotObserved:
        return False


def _errors(look: Look) -> Iterator[Finding]:
    """Counters since the driver was loaded. A recovery is a link that had to be trained anew."""
    try:
        found = nvlink.errors(look.seen.text("nvlink-errors"))
    except NotObserved as error:
        yield look.unknown(str(error))
        return
    if not any(one.read for one in found.values()):
        yield look.unknown(f"{_ERRORS}: no counters in its answer")
        return
    for gpu, one in found.items():
        bad = {name: number for name, number in one.counts.items() if _is_bad(name, number)}
        if bad:
            proofs = [Proof(_ERRORS, f"GPU {gpu}: {name}: {number}") for name, number in bad.items()]
            yield look.warn("P1", f"GPU {gpu}: NVLink errors since the driver was loaded", *proofs, gpu=gpu)


def _is_bad(name: str, number: int) -> bool:
    return any(word in name.lower() for word in nvlink.FATAL) or number >= table()["nvlink-errors"]


# fabric manager


def _manager(look: Look) -> Iterator[Finding]:
    seen = look.seen
    found = _gpus_or_none(look)
    row = machine.instance(seen)
    states = [gpu.fabric for gpu in found or () if gpu.fabric[0]]
    if machine.has_gpus(seen) is None:
        raise NotObserved("whether this machine has GPUs is not known")
    if not (row and row.nvswitch) and not states and not _has_switches(look):
        yield look.not_applicable("its GPUs have no NVSwitch of this node")
        return
    yield from _registered(look)
    if row is not None and not row.nvswitch:
        yield look.passed("its switches stand outside of the node, and so does their manager")
        return
    values = services.show(seen.text("fabric-manager"))
    active = services.is_active(values)
    proof = Proof(
        "systemctl show nvidia-fabricmanager", f"ActiveState={values.get('ActiveState')} {values.get('SubState')}"
    )
    if services.is_absent(values):
        proof = Proof(proof.source, f"LoadState={values.get('LoadState')}")
        yield look.fail("P0", "nvidia-fabricmanager is not installed: GPUs behind NVSwitches can't start CUDA", proof)
    elif values.get("ActiveState") in ("activating", "reloading"):
        yield look.unknown("nvidia-fabricmanager starts just now: look again in a minute", proof)
    elif active is False:
        yield look.fail("P0", "nvidia-fabricmanager does not run: GPUs behind NVSwitches can't start CUDA", proof)
    elif active is None:
        raise NotObserved("systemctl tells no state of nvidia-fabricmanager")
    else:
        yield from _same_version(look, proof)


def _gpus_or_none(look: Look) -> Sequence[Gpu] | None:
    try:
        return of_gpus(look)
    except NotObserved:
        return None


def _has_switches(look: Look) -> bool:
    try:
        return bool(pci.switches(machine.functions(look.seen)))
    except NotObserved:
        return False


def _registered(look: Look) -> Iterator[Finding]:
    """From Hopper on each GPU registers with the fabric; ``N/A`` before."""
    found = _gpus_or_none(look) or ()
    silent = [gpu.label for gpu in found if gpu.fabric[0] is None]
    if silent and len(silent) < len(found):
        yield look.unknown(f"the NVLink fabric's state is not told of {', '.join(silent)}")
    for gpu in found:
        state, status = gpu.fabric
        if state is None or (state.lower() == "completed" and (status or "success").lower() == "success"):
            continue
        proof = machine.smi_proof(f"{gpu.bus} fabric: state {state}, status {status}")
        if state.lower() in _UNDER_WAY:
            yield look.unknown(f"{gpu.label}: its registration with the NVLink fabric is under way: {state}", proof)
            continue
        if state.lower() != "completed" or (status or "").lower() in ("unknown error", "unknown"):
            yield look.unknown(f"{gpu.label}: its state in the NVLink fabric is not known: {state}, {status}", proof)
            continue
        yield look.fail(
            "P0", f"{gpu.label}: not registered with the NVLink fabric: {state}, {status}", proof, gpu=gpu.bus or ""
        )


def _same_version(look: Look, proof: Proof) -> Iterator[Finding]:
    """It refuses to work with a driver of another version (NVIDIA's Fabric Manager guide)."""
    try:
        own = services.version_in(look.seen.text("fabric-manager-version"))
        driver = procfs.driver(look.seen.text("nvidia-driver"))
    except NotObserved:
        own, driver = None, None
    if own and driver and own != driver.version:
        proofs = (Proof("nv-fabricmanager --version", own), Proof("/proc/driver/nvidia/version", driver.version))
        yield look.fail(
            "P0", "nvidia-fabricmanager is of another version than the driver", *proofs, driver=driver.version
        )
    else:
        yield look.passed("nvidia-fabricmanager runs", proof)


# paths


def _topology(look: Look) -> Iterator[Finding]:
    wanted = _links_wanted(look)
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable(_NONE)
        return
    pairs = topo.read(look.seen.text("gpu-topology")).pairs()
    if not pairs:
        if len(machine.gpus(look.seen)) > 1:
            raise NotObserved("nvidia-smi topo -m: no matrix in its answer")
        yield look.not_applicable("one GPU has no peer")
        return
    untold = _pairs_missing(look, pairs)
    if untold:
        yield look.unknown(f"nvidia-smi topo -m: {untold}", *_first_line(look))
    words = Counter(pairs.values())
    linked = [word for word in words if word.startswith("NV")]
    peers = list(_peers(look))
    whole = not untold and all(one.status != "UNKNOWN" for one in peers)
    if wanted or (wanted is None and linked and len(linked) == 1 and words[linked[0]] * 2 > len(pairs)):
        yield from _all_linked(look, pairs, whole=whole)
    elif not untold:
        told = ", ".join(f"{number} by {word}" for word, number in words.most_common())
        yield look.passed(f"paths between GPUs: {told}")
    yield from peers


def _pairs_missing(look: Look, pairs: Mapping[tuple[str, str], str]) -> str:
    """What keeps a matrix from telling of all GPUs that nvidia-smi lists; empty where it does."""
    listed = len(_gpus_or_none(look) or ())
    wanted = listed * (listed - 1) // 2
    return (
        f"paths of {len(pairs)} of {wanted} pairs of GPUs are told in words that are known"
        if len(pairs) < wanted
        else ""
    )


def _first_line(look: Look) -> list[Proof]:
    lines = [line for line in look.seen.text("gpu-topology").splitlines() if line.strip().startswith("GPU")]
    return [Proof("nvidia-smi topo -m", line.strip()[:200]) for line in lines[:2]]


def _all_linked(look: Look, pairs: Mapping[tuple[str, str], str], *, whole: bool) -> Iterator[Finding]:
    common = Counter(pairs.values()).most_common(1)[0][0]
    plain = {pair: word for pair, word in pairs.items() if not word.startswith("NV")}
    fewer = {pair: word for pair, word in pairs.items() if word not in plain.values() and word != common}
    proofs = [Proof("nvidia-smi topo -m", f"{one} {other} {word}") for (one, other), word in (plain or fewer).items()]
    if plain:
        yield look.fail("P0", f"{len(plain)} of {len(pairs)} pairs of GPUs are not joined by NVLink", *proofs)
    elif fewer:
        yield look.warn("P1", f"{len(fewer)} of {len(pairs)} pairs of GPUs have another number of NVLinks", *proofs)
    elif whole:
        yield look.passed(f"all pairs of GPUs are joined by NVLink ({common})")


def _peers(look: Look) -> Iterator[Finding]:
    """The driver's word on P2P: OK, or why not. Only where GPUs are joined by NVLink it has to be OK."""
    if not _links_wanted(look):
        return
    try:
        pairs = topo.read_p2p(look.seen.text("gpu-p2p"))
    except NotObserved as error:
        yield look.unknown(str(error))
        return
    bad = {pair: word for pair, word in pairs.items() if word not in ("OK", "U")}
    unknown = _pairs_missing(look, {pair: word for pair, word in pairs.items() if word != "U"})
    if unknown:
        yield look.unknown(f"nvidia-smi topo -p2p n: {unknown}")
    if bad:
        proofs = [Proof("nvidia-smi topo -p2p n", f"{one} {other} {word}") for (one, other), word in bad.items()]
        yield look.fail("P0", f"the driver allows no P2P by NVLink for {len(bad)} of {len(pairs)} pairs", *proofs)


# DCGM


def _dcgm(look: Look) -> Iterator[Finding]:
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable(_NONE)
        return
    yield from _dcgm_log(look)
    try:
        output = look.seen.command("dcgm-health")
    except NotObserved as error:
        if is_absent(error):
            yield look.not_applicable("DCGM is not on this node")
            return
        raise
    found = dcgm.read(output.out or output.err)
    if found.overall is None:
        yield look.unknown(found.why)
        return
    for one in found.incidents:
        proof = Proof("dcgmi health --check", f"{one.where} {one.system}: {one.word} {one.text}")
        if one.word == "Failure":
            yield look.fail("P0", f"DCGM: {one.where}: {one.system} fails", proof, gpu=one.where)
        else:
            yield look.warn("P1", f"DCGM: {one.where}: {one.system} warns", proof, gpu=one.where)
    proof = Proof("dcgmi health --check", f"Overall Health: {found.overall}")
    if found.overall == "Healthy":
        yield look.passed("DCGM calls all GPUs healthy", proof)
    elif not found.incidents:
        said = look.fail if found.overall == "Failure" else look.warn
        yield said("P0" if found.overall == "Failure" else "P1", f"DCGM's overall health: {found.overall}", proof)


def _dcgm_log(look: Look) -> Iterator[Finding]:
    """The newest log of DCGM's diagnostics, as far as it is of the window."""
    try:
        files = look.seen.present("dcgm-log", part=True)
    except NotObserved:
        return
    start = machine.window(look.seen)[0] - _ZONES_S
    for path, text in files.items():
        bad = [line for line in text.splitlines() if _BAD_LOG.search(line) and _stamp(line, look.seen.at) >= start]
        if bad:
            proofs = [Proof(path, line.strip()[:300]) for line in bad[-4:]]
            yield look.warn("P1", "DCGM's diagnostics found errors", *proofs)
            return


def _stamp(line: str, now: float) -> float:
    """Seconds since 1970, of a line without a stamp 0.0."""
    found = _STAMP.search(line)
    try:
        at = datetime.strptime(f"{found.group(1)} {found.group(2)}", "%Y-%m-%d %H:%M:%S") if found else None
    except ValueError:
        at = None
    return 0.0 if at is None else min(at.replace(tzinfo=timezone.utc).timestamp(), now + _DAY_S)


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.fabric-manager",
        "NVSwitches are managed",
        (*GPU_SOURCES, "fabric-manager", "fabric-manager-version", "nvidia-driver"),
        _manager,
        explains=("node.nvlink", "node.p2p-topology"),
    ),
    NodeCheck(
        "node.nvlink",
        "All NVLinks are up and without errors",
        (*GPU_SOURCES, "nvlink-status", "nvlink-errors", "gpu-topology"),
        _nvlink,
        explains=("node.p2p-topology", "node.dcgm"),
    ),
    NodeCheck("node.p2p-topology", "GPUs reach each other", (*GPU_SOURCES, "gpu-topology", "gpu-p2p"), _topology),
    NodeCheck("node.dcgm", "DCGM calls the GPUs healthy", (*GPU_SOURCES, "dcgm-health", "dcgm-log"), _dcgm),
)
