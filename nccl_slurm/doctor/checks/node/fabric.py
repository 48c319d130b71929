"""NVLinks of GPUs: those that are up and what they count; DCGM's opinion of the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.gpu import gpus_or_none
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck, is_absent
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES
from nccl_slurm.doctor.read import dcgm, nvlink, topo
from nccl_slurm.doctor.read.nvlink import Links
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS"]

_NONE = "this machine has no NVIDIA GPU"
_NO_LINKS = "its GPUs have no NVLink"
#: Links of one bridge between boards for PCIe slots (NVIDIA's A100, H100 and H200 NVL: three bridges, twelve links).
_BRIDGE = 4
_SPLIT = "its GPUs are split (MIG), and parts of a GPU use no NVLink"
_STATUS, _ERRORS = "nvidia-smi nvlink --status", "nvidia-smi nvlink -e"
_BAD_LOG = re.compile(r"row ?remap\w*.{0,40}(?:pending|fail)|\bFAIL: |\bError: ", re.IGNORECASE)
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)")
#: DCGM's log is in the node's local time, whatever that is.
_ZONES_S = 14 * 3600.0
_DAY_S = 86400.0


def _links_wanted(look: Look) -> int | None:
    """Of each GPU; 0: this type has none; None: not in the table."""
    row = machine.instance(look.seen)
    return None if row is None else row.nvlinks


def _nvlink(look: Look) -> Iterator[Finding]:
    wanted = _links_wanted(look)
    if machine.has_gpus(look.seen) is False or wanted == 0:
        yield look.not_applicable(_NO_LINKS if machine.has_gpus(look.seen) else _NONE)
        return
    found = nvlink.status(look.seen.text("nvlink-status"))
    split = [gpu for gpu in found if _is_split(look, gpu)]
    up = [links.active for links in found.values()]
    dumb = {gpu: links for gpu, links in found.items() if links.untold and gpu not in split}
    for gpu, links in dumb.items():
        yield _unsaid(look, gpu, links)
    if found and len(split) == len(found) and not any(up):
        yield look.not_applicable(_SPLIT)
        return
    if wanted is None and not any(up):
        if not dumb:
            yield _all_off(look, {gpu: links for gpu, links in found.items() if gpu not in split})
        return
    if not found:
        raise NotObserved(f"{_STATUS}: no GPU in its answer")
    least = wanted if wanted is not None else max(up)
    short = {gpu: links for gpu, links in found.items() if _up_at_most(links) < least and gpu not in split}
    for gpu, links in short.items():
        sure = wanted is not None or machine.on_a_base(look.seen) or links.active % _BRIDGE > 0
        yield _short(look, gpu, links, least, sure=sure)
    yield from _errors(look)
    untold = _untold(look, len(found))
    if untold:
        yield look.unknown(f"{_STATUS} tells of {len(found)} GPUs, and {untold} are here")
    elif not short and not dumb:
        yield look.passed(f"{least} NVLinks of each GPU are up" + (f"; {len(split)} are split (MIG)" if split else ""))


def _all_off(look: Look, found: Mapping[str, Links]) -> Finding:
    """On a machine that the table does not have. A board for a PCIe slot shows links that are off where it has no
    bridge; one GPU that a guest was given has nobody to be linked with."""
    off = [gpu for gpu, links in found.items() if links.off]
    linked = _is_linked(look)
    if not off and not linked:
        return look.not_applicable(_NO_LINKS)
    if len(off) < 2 or not (linked or machine.on_a_base(look.seen)):
        return look.unknown("no NVLink is up; whether this machine's GPUs are linked at all is not known")
    proofs = [_off_proof(gpu, links) for gpu, links in found.items() if links.off]
    return look.fail("P0", f"no NVLink of {len(off)} GPUs is up", *proofs, gpu=off[0])


def _untold(look: Look, told: int) -> int:
    """How many GPUs nvidia-smi lists, where that is more than were told of; else 0."""
    listed = len(gpus_or_none(look) or ())
    return listed if listed > told else 0


def _is_linked(look: Look) -> bool:
    """By what else tells of NVLink: the paths between GPUs, and their registration with its fabric."""
    if any((gpu.fabric[0] or "").lower() not in ("", "not supported") for gpu in gpus_or_none(look) or ()):
        return True
    try:
        return any(word.startswith("NV") for word in topo.read(look.seen.text("gpu-topology")).pairs().values())
    except NotObserved:
        return False


def _short(look: Look, gpu: str, links: Links, least: int, *, sure: bool) -> Finding:
    """Not ``sure``: on a machine that the table does not have, a GPU may have no bridge, or fewer than another pair."""
    proof = _off_proof(gpu, links)
    text = f"GPU {gpu}: {_up_at_most(links)} of {least} NVLinks are up"
    if sure:
        return look.fail("P0", text, proof, gpu=gpu)
    return look.warn("P1", f"{text}; it may have fewer bridges than others", proof, gpu=gpu)


def _up_at_most(links: Links) -> int:
    """With those whose words tell nothing."""
    return links.active + len(links.untold)


def _unsaid(look: Look, gpu: str, links: Links) -> Finding:
    proofs = [Proof(_STATUS, f"GPU {gpu}: Link {number}: {word[:100]}") for number, word in links.untold]
    return look.unknown(f"GPU {gpu}: whether all its NVLinks are up is told in words that are not known", *proofs)


def _off_proof(gpu: str, links: Links) -> Proof:
    off = ", ".join(map(str, links.inactive)) or ("all, without their numbers" if links.off else "none is listed")
    return Proof(_STATUS, f"GPU {gpu}: {links.active} links with a speed; inactive: {off}")


def _is_split(look: Look, gpu: str) -> bool:
    """A GPU that is split (MIG) uses no NVLink, and its links may be off."""
    return any(one.mig for one in gpus_or_none(look) or () if gpu in (str(one.index), one.bus))


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
            yield look.fail("P0", f"DCGM: {one.where}: {one.system} fails", proof, values=_gpus(look), gpu=one.where)
        else:
            yield look.warn("P1", f"DCGM: {one.where}: {one.system} warns", proof, values=_gpus(look), gpu=one.where)
    proof = Proof("dcgmi health --check", f"Overall Health: {found.overall}")
    if found.overall == "Healthy":
        yield look.passed("DCGM calls all GPUs healthy", proof)
    elif not found.incidents:
        said = look.fail if found.overall == "Failure" else look.warn
        text = f"DCGM's overall health: {found.overall}"
        yield said("P0" if found.overall == "Failure" else "P1", text, proof, values=_gpus(look))


def _gpus(look: Look) -> dict[str, str]:
    """For a command that takes all of the node."""
    count = machine.gres(look.seen)
    return {"gpus": str(count)} if count else {}


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
        "node.nvlink",
        "All NVLinks are up and without errors",
        (*GPU_SOURCES, "nvlink-status", "nvlink-errors", "gpu-topology"),
        _nvlink,
        explains=("node.p2p-topology", "node.dcgm"),
    ),
    NodeCheck("node.dcgm", "DCGM calls the GPUs healthy", (*GPU_SOURCES, "dcgm-health", "dcgm-log"), _dcgm),
)
