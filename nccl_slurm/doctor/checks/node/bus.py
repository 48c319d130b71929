"""PCI Express and what lies on it: link widths, access control, IOMMU, GPUDirect RDMA, NUMA."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck, is_absent
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES, PCI_SOURCES, RDMA_SOURCES
from nccl_slurm.doctor.read import lspci, pci, procfs
from nccl_slurm.doctor.read.ports import Device, Port
from nccl_slurm.doctor.read.smi import Gpu

__all__ = ["CHECKS"]

_NONE = "this machine has no NVIDIA GPU"
_NETWORK = ("efa", "mlx5_core", "bnxt_en", "ice", "irdma", "ionic")
_PEERMEM = ("nvidia_peermem", "efa_nv_peermem", "nv_peer_mem")
#: From Linux 5.12 on a device's memory is shared by DMA-BUF; of NVIDIA's drivers the open one does its part.
_DMABUF_KERNEL = (5, 12)


def _links(look: Look) -> Iterator[Finding]:
    """Width of GPUs and of RDMA cards. One link of fewer lanes than those of like boards is a bad contact or a dying
    board; where all are alike, or there is one, the machine may be built so. A lower speed is how an idle GPU saves
    power: busy ones count alone."""
    if machine.has_gpus(look.seen) is False and not look.seen.present("rdma-drivers"):
        yield look.not_applicable("no GPU and no RDMA card")
        return
    links = _all_links(look)
    if not links:
        raise NotObserved("neither the driver nor the kernel tells the width of a link")
    groups: dict[tuple[str, str], list[_Link]] = {}
    for one in links:
        groups.setdefault((one.kind, one.board), []).append(one)
    wrong = [finding for _, mine in sorted(groups.items()) for finding in _of_board(look, mine)]
    yield from wrong
    if not wrong:
        yield look.passed(f"all {len(links)} links that tell a width have all their lanes")


@dataclass(frozen=True)
class _Link:
    """``board``: what it is compared by. ``slow``: words on a generation below what both ends can, under load."""

    kind: str
    board: str
    label: str
    slot: str
    width: int
    most: int
    proof: Proof
    slow: str = ""


def _all_links(look: Look) -> list[_Link]:
    """GPUs by nvidia-smi, else by the kernel; cards by the kernel."""
    found = machine.functions(look.seen, "pci-links", "pci-devices")
    boards = {one.slot[:-2]: one.device for one in found}
    try:
        links = [link for gpu in machine.gpus(look.seen) for link in _of_gpu(gpu, boards.get(gpu.bus or "", ""))]
    except NotObserved:
        links = []
    listed, bridges = {one.slot for one in links}, _bridges(look, found)
    gpus = {one.slot for one in pci.gpus(found)}
    for one in found:
        if (one.driver in _NETWORK or one.slot in gpus) and one.slot[:-2] not in listed:
            links += _of_function(one, "GPU" if one.slot in gpus else str(one.driver), bridges.get(one.slot))
    return links


def _bridges(look: Look, found: Iterable[pci.Function]) -> dict[str, pci.Function]:
    """Slot → the bridge above it. Empty where there are none (a guest), or that can't be read."""
    try:
        above = pci.above(look.seen.present("pci-paths"))
    except NotObserved:
        return {}
    by_slot = {one.slot: one for one in found}
    return {slot: by_slot[bridge] for slot, bridge in above.items() if bridge in by_slot}


def _of_function(one: pci.Function, kind: str, bridge: pci.Function | None) -> Iterator[_Link]:
    """A slot may have fewer lanes than the card in it: the bridge above tells how many."""
    if one.width is None or one.width_max is None:
        return
    words = f"current_link_width {one.width}, max_link_width {one.width_max}"
    most = one.width_max
    if bridge is not None and bridge.width_max is not None:
        most = min(most, bridge.width_max)
        words += f"; of the bridge above, {bridge.slot}: {bridge.width_max}"
    proof = Proof(f"/sys/bus/pci/devices/{one.slot}", words)
    yield _Link(kind, f"{one.device} {one.kind}", f"{kind} {one.slot}", one.slot, one.width, most, proof)


def _of_gpu(gpu: Gpu, board: str) -> Iterator[_Link]:
    if gpu.width is None or gpu.width_max is None:
        return
    proof = machine.smi_proof(f"{gpu.bus} link_width {gpu.width}x of {gpu.width_max}x, gen {gpu.gen} of {gpu.gen_max}")
    idle = gpu.throttle is None or "gpu_idle" in gpu.throttle
    slow = not idle and gpu.gen is not None and gpu.gen_max is not None and gpu.gen < gpu.gen_max
    words = f"PCIe generation {gpu.gen} of {gpu.gen_max} under load" if slow else ""
    yield _Link("GPU", board, gpu.label, gpu.bus or "", gpu.width, gpu.width_max, proof, words)


def _of_board(look: Look, mine: Sequence[_Link]) -> Iterator[Finding]:
    short = [one for one in mine if one.width < _belongs(one, mine)]
    built = all(one.width < one.most for one in mine) and len({one.width for one in mine}) == 1
    for one in [] if built else short:
        text = f"{one.label}: PCIe link of {one.width} lanes, where {_belongs(one, mine)} belong"
        yield look.fail("P1", text, one.proof, gpu=one.slot, device=one.slot)
    if built:
        lanes = f"{mine[0].width} of {mine[0].most} lanes"
        whose = f"PCIe links of {mine[0].kind}s have {lanes}, all alike"
        text = whose if len(mine) > 1 else f"{mine[0].label}: PCIe link of {lanes}, and no like board is here"
        yield look.warn("P2", f"{text}: the machine may be built so", *(one.proof for one in mine))
    for one in mine:
        if one.slow and one not in short:
            yield look.warn("P1", f"{one.label}: {one.slow}", one.proof, gpu=one.slot)


def _belongs(one: _Link, mine: Sequence[_Link]) -> int:
    """GPUs of a node are alike, so one whose link tells fewer lanes at both ends is odd; cards are of many kinds."""
    return max(two.width for two in mine) if one.kind == "GPU" and len(mine) > 1 else one.most


def _acs(look: Look) -> Iterator[Finding]:
    """Access Control Services that redirect make GPU and card talk through the root complex: GPUDirect gets slow, or
    hangs. Inside a virtual machine there are no such bridges, and nothing to do."""
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable(_NONE)
        return
    found = lspci.read(look.seen.text("pci-access"))
    ends = _ends(look)
    bridges = [one for one in found.bridges if not ends or any(one.is_above(slot) for slot in ends)]
    redirects = [one for one in bridges if one.redirects]
    validates = [one for one in bridges if one.validates and not one.redirects]
    if redirects:
        proofs = [Proof("lspci -vvv", f"{one.slot} ACSCtl: {one.control}") for one in redirects]
        text = f"{len(redirects)} PCI bridges above GPUs or RDMA cards redirect peer-to-peer traffic (ACS)"
        yield look.warn("P1", text, *proofs, bridge=redirects[0].slot)
    elif found.denied:
        raise NotObserved(f"lspci shows capabilities to root alone: {look.seen.more_rights}")
    elif validates:
        proofs = [Proof("lspci -vvv", f"{one.slot} ACSCtl: {one.control}") for one in validates]
        yield look.warn("P2", f"{len(validates)} PCI bridges check sources (ACS), and redirect nothing", *proofs)
    elif not found.devices:
        raise NotObserved("lspci lists no device")
    else:
        others = sum(one.redirects for one in found.bridges)
        more = f"; {others} do above nothing of the kind" if others else ""
        yield look.passed(f"no PCI bridge above GPUs and RDMA cards redirects peer-to-peer traffic{more}")


def _ends(look: Look) -> list[str]:
    """Slots of GPUs and RDMA cards. Empty where the bus can't be read: then any bridge may be above one."""
    try:
        found = machine.functions(look.seen)
    except NotObserved:
        return []
    return [one.slot for one in (*pci.gpus(found), *(one for one in found if one.driver in _NETWORK))]


def _iommu(look: Look) -> Iterator[Finding]:
    """On, and translating, it sends GPUDirect traffic through the root complex; passed through it does no harm."""
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable(_NONE)
        return
    options = procfs.options(look.seen.text("kernel-command-line"))
    kinds = {text.strip() for text in _kinds(look).values()} - {""}
    units = [name for path, text in _groups(look).items() if path.endswith("/class/iommu") for name in text.split()]
    passed = options.get("iommu") == "pt" or options.get("iommu.passthrough") == "1" or _says_passthrough(look)
    if not units:
        yield look.passed("no IOMMU is at work")
    elif kinds and kinds <= {"identity"}:
        proof = Proof("/sys/kernel/iommu_groups/*/type", "identity")
        yield look.passed("the IOMMU passes devices through", proof)
    elif not kinds and not passed and not _translates(options) and _log_is_short(look):
        yield look.unknown(
            "whether the IOMMU passes devices through is told neither by its groups nor by the kernel's log",
            Proof("/sys/class/iommu", " ".join(units)[:200]),
        )
    elif passed and not kinds & {"DMA", "DMA-FQ"}:
        yield look.passed("the IOMMU passes devices through", Proof("/sys/class/iommu", " ".join(units)[:200]))
    elif machine.is_grace(look.seen):
        text = (
            "the SMMU of a Grace processor translates addresses, as it is built to: GPUs reach memory by its own links"
        )
        yield look.passed(text, Proof("/sys/class/iommu", " ".join(units)[:200]))
    else:
        proofs = (Proof("/proc/cmdline", look.seen.text("kernel-command-line").strip()[:300]),)
        text = "the IOMMU translates addresses of devices: GPUDirect goes through the root complex"
        yield look.warn("P1", text, Proof("/sys/class/iommu", " ".join(units)[:200]), *proofs)


def _kinds(look: Look) -> dict[str, str]:
    """Path → ``identity``, ``DMA`` or ``DMA-FQ``, of the groups in which GPUs are, else of all. Empty where they can't
    be read."""
    try:
        told = look.seen.present("iommu-types")
        links = look.seen.present("pci-groups")
        slots = {one.slot for one in pci.gpus(machine.functions(look.seen))}
    except NotObserved:
        return {}
    groups = {target.rsplit("/", 1)[-1] for path, target in links.items() if path.split("/")[-2].lower() in slots}
    return {path: text for path, text in told.items() if not groups or path.split("/")[-2] in groups}


def _translates(options: dict[str, str]) -> bool:
    """The kernel was told to: its own default is not asked for then."""
    asked = (("iommu.passthrough", "0"), ("intel_iommu", "on"), ("iommu", "nopt"))
    return any(options.get(name) == value for name, value in asked)


def _log_is_short(look: Look) -> bool:
    """The line in which the kernel tells its default, at its start, may be missing."""
    try:
        told = machine.reader(look.seen, "kernel")
    except NotObserved:
        return True
    first, boot = told.get("first"), told.get("boot")
    late = not isinstance(first, (int, float)) or not isinstance(boot, (int, float)) or first > boot + 60.0
    return late or bool(told.get("cut") or told.get("part"))


def _groups(look: Look) -> dict[str, str]:
    files = look.seen.present("iommu-groups")
    if files.unread and not files:
        raise NotObserved(f"/sys/class/iommu: {next(iter(files.unread.values()))}")
    return files


def _says_passthrough(look: Look) -> bool:
    try:
        lines = look.seen.reader("kernel")["lines"]
        return any("Default domain type: Passthrough" in str(line) for line in lines)
    except (NotObserved, KeyError, TypeError):
        return False


def _peermem(look: Look) -> Iterator[Finding]:
    """GPUDirect RDMA needs somebody who gives the card the GPU's pages: EFA's driver names him in ``p2p``."""
    seen = look.seen
    if machine.has_gpus(seen) is False:
        yield look.not_applicable(_NONE)
        return
    found = machine.devices(seen, "rdma-p2p", "rdma-cards")
    if not found and machine.rdma_on_bus(seen):
        raise NotObserved("no driver holds the InfiniBand cards on the bus: see node.ib-ports")
    if not found:
        yield look.not_applicable("no RDMA card is here")
        return
    told = {one.p2p for one in found if one.p2p is not None}
    if told:
        proof = Proof("/sys/class/infiniband/*/device/p2p", ", ".join(sorted(told)) or "(empty)")
        if all(word.startswith("NVIDIA") for word in told):
            yield look.passed(f"EFA gets the GPUs' pages from: {', '.join(sorted(told))}", proof)
        else:
            yield _without_gpudirect(look, look.fail("P1", f"EFA has {_NOBODY}: no GPUDirect RDMA", proof))
        return
    ours = _for_gpus(found)
    if not ours:
        yield look.not_applicable("no RDMA card here but for administration: slow Ethernet, or the one of a guest")
        return
    doubtful = len(ours) == 1 and all(port.layer == "Ethernet" for port in ours[0].ports)
    for one in _by_modules(look):
        yield _without_gpudirect(look, _if_meant(one) if doubtful else one)


def _if_meant(found: Finding) -> Finding:
    """One Ethernet card, however fast, may be for administration."""
    if found.status != "WARN":
        return found
    return replace(found, priority="P2", text=f"{found.text}, if the one Ethernet card here is meant for it")


def _for_gpus(found: Sequence[Device]) -> list[Device]:
    """Those that may carry a job's traffic: with a port of InfiniBand that is not switched off, or of fast Ethernet.
    The one Ethernet adapter of a guest, a virtual function, is its host's way to speed up its network."""
    fast = [one for one in found if not one.ports or any(map(_carries, one.ports))]
    guests = len(fast) == 1 and pci.is_virtual(fast[0].pci) and all(port.layer == "Ethernet" for port in fast[0].ports)
    return [] if guests else fast


def _carries(port: Port) -> bool:
    """Also where its state or rate is not told."""
    if port.layer != "Ethernet":
        return port.physical != "Disabled"
    return (port.active or port.state is None) and (not port.gigabits or port.gigabits >= _FAST_GBPS)


#: Adapters for administration are slower.
_FAST_GBPS = 100.0
_NOBODY = "nobody who gives it the GPUs' pages"


def _without_gpudirect(look: Look, found: Finding) -> Finding:
    """What a type is not known to have it can't lack."""
    row = machine.instance(look.seen)
    if row is None or row.gpudirect or found.status not in ("FAIL", "WARN"):
        return found
    return look.not_applicable(f"{row.type} is not known to have GPUDirect RDMA over EFA")


def _by_modules(look: Look) -> Iterator[Finding]:
    loaded = procfs.modules(look.seen.text("kernel-modules"))
    helpers = sorted(loaded & set(_PEERMEM))
    if helpers:
        yield look.passed(f"{', '.join(helpers)} gives RDMA cards the GPUs' pages", Proof("/proc/modules", helpers[0]))
        return
    release = procfs.kernel_release(look.seen.kernel)
    driver = procfs.driver(look.seen.text("nvidia-driver"))
    if release is None or driver is None:
        raise NotObserved("kernel and driver versions are not told, and nvidia_peermem is not loaded")
    proofs = (Proof("/proc/modules", "no nvidia_peermem"), Proof("uname -r", look.seen.kernel))
    if release >= _DMABUF_KERNEL and driver.open:
        yield look.passed("kernel and open driver share the GPUs' pages by DMA-BUF", *proofs)
    else:
        text = "nvidia_peermem is not loaded, and DMA-BUF needs Linux 5.12 and the open driver: no GPUDirect RDMA"
        yield look.warn("P1", text, *proofs)


def _numa(look: Look) -> Iterator[Finding]:
    """Memory on each node of the machine, and GPUs that tell which they are near."""
    files = {path: text for path, text in look.seen.files("numa").items() if path.count("/") > 1}
    empty = [
        path.split("/")[-2]
        for path, text in files.items()
        if path.endswith("/meminfo") and "MemTotal:" in text and text.split("MemTotal:")[1].split()[:1] == ["0"]
    ]
    nodes = {path.split("/")[-2] for path in files}
    with_cpus = {path.split("/")[-2] for path, text in files.items() if path.endswith("/cpulist") and text.strip()}
    bare = sorted(set(empty) & with_cpus)
    lost = _lost_gpus(look) if len(with_cpus) > 1 else []
    if bare:
        proofs = [Proof(f"/sys/devices/system/node/{name}/meminfo", "MemTotal: 0 kB") for name in bare]
        yield look.warn("P1", f"processors without memory of their own: {', '.join(bare)}", *proofs)
    elif lost:
        proofs = [Proof(f"/sys/bus/pci/devices/{slot}/numa_node", "-1") for slot in lost]
        yield look.warn("P2", "the firmware does not tell which processor GPUs are near", *proofs)
    else:
        bare_of_all = len(set(empty) - with_cpus)
        more = f"; {bare_of_all} of neither memory nor processors (a GPU's own are kept so)" if bare_of_all else ""
        yield look.passed(f"{len(nodes) - bare_of_all} NUMA nodes, each with memory{more}")


def _lost_gpus(look: Look) -> list[str]:
    try:
        found = pci.gpus(machine.functions(look.seen, "pci-numa"))
        told = look.seen.present("pci-numa")
    except NotObserved as error:
        if is_absent(error):
            return []
        raise
    slots = {path.split("/")[-2].lower() for path in told if path.count("/") > 1}
    return [one.slot for one in found if one.numa is None and one.slot in slots]


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.pcie",
        "PCIe links have their full width",
        (*GPU_SOURCES, "pci-links", "pci-devices", "pci-paths", "rdma-drivers"),
        _links,
    ),
    NodeCheck("node.acs", "No bridge redirects peer-to-peer traffic", (*GPU_SOURCES, "pci-access"), _acs),
    NodeCheck(
        "node.iommu",
        "The IOMMU does not stand in the way",
        (*GPU_SOURCES, "kernel-command-line", "iommu-groups", "iommu-types", "pci-groups", "kernel"),
        _iommu,
    ),
    NodeCheck(
        "node.peermem",
        "RDMA cards reach the GPUs' memory",
        (*GPU_SOURCES, *RDMA_SOURCES, "pci-devices", "rdma-p2p", "rdma-cards", "kernel-modules", "nvidia-driver"),
        _peermem,
    ),
    NodeCheck("node.numa", "Every processor has its memory", (*PCI_SOURCES, "numa", "pci-numa"), _numa),
)
