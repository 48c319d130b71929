"""The paths between GPUs of a node: which pairs are joined by NVLink, and whether the driver lets them use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.gpu import gpus_or_none
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES
from nccl_slurm.doctor.read import topo
from nccl_slurm.doctor.table import Instance

__all__ = ["CHECKS"]

_NONE = "this machine has no NVIDIA GPU"
_SPLIT = "its GPUs are split (MIG), and parts of a GPU reach no other GPU"
_Pairs = Mapping[tuple[str, str], str]


def _topology(look: Look) -> Iterator[Finding]:
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable(_NONE)
        return
    listed = gpus_or_none(look) or ()
    if listed and all(gpu.mig for gpu in listed):
        yield look.not_applicable(_SPLIT)
        return
    pairs = _whole_ones(look, topo.read(look.seen.text("gpu-topology")).pairs())
    if not pairs:
        if len([gpu for gpu in machine.gpus(look.seen) if not gpu.mig]) > 1:
            raise NotObserved("nvidia-smi topo -m: no matrix in its answer")
        yield look.not_applicable("one GPU has no peer")
        return
    untold = _pairs_missing(look, pairs)
    if untold:
        yield look.unknown(f"nvidia-smi topo -m: {untold}", *_first_line(look))
    peers = list(_peers(look, pairs))
    yield from _linked(look, pairs, whole=not untold, heard=all(one.status != "UNKNOWN" for one in peers))
    yield from peers


def _whole_ones(look: Look, pairs: _Pairs) -> dict[tuple[str, str], str]:
    """Without GPUs that are split: their parts reach no other GPU (NVIDIA's MIG guide)."""
    split = {f"GPU{gpu.index}" for gpu in gpus_or_none(look) or () if gpu.mig}
    return {pair: word for pair, word in pairs.items() if not split & set(pair)}


def _linked(look: Look, pairs: _Pairs, *, whole: bool, heard: bool) -> Iterator[Finding]:
    """``whole``: all pairs are told. ``heard``: so is the driver's word on each."""
    row = machine.instance(look.seen)
    words = Counter(pairs.values())
    if row is not None and row.mesh:
        yield from _meshed(look, pairs, row, whole=whole and heard)
    elif row.nvlinks if row is not None else len(words) == 1 and any(map(_links_in, words)):
        yield from _all_linked(look, pairs, whole=whole and heard)
    elif whole and row is None and _mostly_linked(words) and not _is_even(pairs):
        yield _uneven(look, pairs)
    elif whole:
        yield look.passed(_told(words))


def _told(words: Counter[str]) -> str:
    return f"paths between GPUs: {', '.join(f'{number} by {word}' for word, number in words.most_common())}"


def _links_in(word: str) -> int:
    """``NV18`` → 18; 0: another way."""
    return int(word[2:]) if word.startswith("NV") else 0


def _links_of(pairs: _Pairs) -> Counter[str]:
    """GPU → NVLinks to those that are here."""
    found: Counter[str] = Counter()
    for pair, word in pairs.items():
        for gpu in pair:
            found[gpu] += _links_in(word)
    return found


def _mostly_linked(words: Counter[str]) -> bool:
    linked = [word for word in words if _links_in(word)]
    return len(linked) == 1 and words[linked[0]] * 2 > words.total()


def _is_even(pairs: _Pairs) -> bool:
    """Each GPU has as many links to peers as each other one: a machine may be built so (a cube, rings)."""
    return len(set(_links_of(pairs).values())) == 1


def _uneven(look: Look, pairs: _Pairs) -> Finding:
    """Most GPUs of a machine that the table does not have are joined, and some are not."""
    bare = {pair: word for pair, word in pairs.items() if not _links_in(word)}
    text = f"{len(bare)} of {len(pairs)} pairs of GPUs are not joined by NVLink"
    proofs = _path_proofs(bare)
    if _is_part(look):
        return look.unknown(f"{text}; which GPUs those have as peers that this look was not given is not told", *proofs)
    if machine.on_a_base(look.seen):
        return look.fail("P0", text, *proofs)
    return look.warn("P1", f"{text}, and most are; some may have no bridge", *proofs)


def _is_part(look: Look) -> bool:
    """Whether Slurm may have given this look less than all GPUs of the machine."""
    given, all_of_it = look.seen.gpus, machine.gres(look.seen)
    if given is None:
        return look.seen.job is not None
    return all_of_it is None or len(given) < all_of_it


def _path_proofs(pairs: _Pairs) -> list[Proof]:
    return [Proof("nvidia-smi topo -m", f"{one} {other} {word}") for (one, other), word in pairs.items()]


def _pairs_missing(look: Look, pairs: _Pairs) -> str:
    """What keeps a matrix from telling of all GPUs that nvidia-smi lists; empty where it does."""
    listed = len([gpu for gpu in gpus_or_none(look) or () if not gpu.mig])
    wanted = listed * (listed - 1) // 2
    if len(pairs) >= wanted:
        return ""
    return f"paths of {len(pairs)} of {wanted} pairs of GPUs are told in words that are known"


def _first_line(look: Look) -> list[Proof]:
    lines = [line for line in look.seen.text("gpu-topology").splitlines() if line.strip().startswith("GPU")]
    return [Proof("nvidia-smi topo -m", line.strip()[:200]) for line in lines[:2]]


def _all_linked(look: Look, pairs: _Pairs, *, whole: bool) -> Iterator[Finding]:
    common = Counter(pairs.values()).most_common(1)[0][0]
    plain = {pair: word for pair, word in pairs.items() if not _links_in(word)}
    fewer = {pair: word for pair, word in pairs.items() if word not in plain.values() and word != common}
    proofs = _path_proofs(plain or fewer)
    if plain:
        yield look.fail("P0", f"{len(plain)} of {len(pairs)} pairs of GPUs are not joined by NVLink", *proofs)
    elif fewer:
        yield look.warn("P1", f"{len(fewer)} of {len(pairs)} pairs of GPUs have another number of NVLinks", *proofs)
    elif whole:
        yield look.passed(f"all pairs of GPUs are joined by NVLink ({common})")


def _meshed(look: Look, pairs: _Pairs, row: Instance, *, whole: bool) -> Iterator[Finding]:
    """Where all GPUs of the machine are here, all links of each of them go to the others."""
    links = _links_of(pairs)
    short = [gpu for gpu in links if links[gpu] < row.nvlinks]
    told = _told(Counter(pairs.values()))
    if len(links) < row.gpus:
        yield look.passed(f"{told}; links to GPUs that this look was not given are not counted")
    elif short:
        text = f"{', '.join(short)}: NVLinks to peers are fewer than {row.nvlinks}"
        proofs = [
            Proof("nvidia-smi topo -m", f"{gpu}: {links[gpu]} of {row.nvlinks} NVLinks to peers") for gpu in short
        ]
        yield look.fail("P0", text, *proofs)
    elif whole:
        yield look.passed(f"{told}: all NVLinks of each GPU go to its peers in the mesh")


def _peers(look: Look, paths: _Pairs) -> Iterator[Finding]:
    """The driver's word on P2P: OK, or why not. Only where GPUs are joined by NVLink it has to be OK."""
    row = machine.instance(look.seen)
    if row is None or not row.nvlinks:
        return
    try:
        pairs = _whole_ones(look, topo.read_p2p(look.seen.text("gpu-p2p")))
    except NotObserved as error:
        yield look.unknown(str(error))
        return
    apart = {pair for pair, word in paths.items() if row.mesh and not _links_in(word)}
    bad = {pair: word for pair, word in pairs.items() if word not in ("OK", "U") and pair not in apart}
    unknown = _pairs_missing(look, {pair: word for pair, word in pairs.items() if word != "U"})
    if unknown:
        yield look.unknown(f"nvidia-smi topo -p2p n: {unknown}")
    if bad:
        proofs = [Proof("nvidia-smi topo -p2p n", f"{one} {other} {word}") for (one, other), word in bad.items()]
        yield look.fail("P0", f"the driver allows no P2P by NVLink for {len(bad)} of {len(pairs)} pairs", *proofs)


CHECKS: Iterable[NodeCheck] = (
    NodeCheck("node.p2p-topology", "GPUs reach each other", (*GPU_SOURCES, "gpu-topology", "gpu-p2p"), _topology),
)
