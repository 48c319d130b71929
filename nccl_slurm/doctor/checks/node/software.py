"""Libraries that the ranks really have mapped (from /proc, inside their containers), and NCCL's RAS.

What lies on the node's disk says little: a container brings its own. Without a rank only what is installed can be told.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from nccl_slurm.doctor.check import Finding, NotObserved, Priority, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck, is_absent
from nccl_slurm.doctor.checks.node.machine import GPU_SOURCES, RDMA_SOURCES
from nccl_slurm.doctor.read import efa, procfs
from nccl_slurm.doctor.read.libraries import Library, version_in_file
from nccl_slurm.doctor.table import table
from nccl_slurm.parse.finding import find

__all__ = ["CHECKS"]

_NO_RANK = "no rank runs on this node now"
_NCCL_OF_DRIVER = ((2, 20), 525)
_NUMBERS = re.compile(r"([0-9]{1,4})\.([0-9]{1,4})")


def _by_rank(look: Look, *kinds: str) -> list[tuple[Mapping[str, Any], list[Library]]]:
    """Ranks that have a communication library, each with its libraries of these kinds."""
    rows = [(row, machine.libraries_of(row)) for row in machine.ranks(look.seen)]
    talking = [(row, found) for row, found in rows if any(one.kind == "nccl" for one in found)]
    return [(row, [one for one in found if one.kind in kinds]) for row, found in talking]


def _rank(row: Mapping[str, Any]) -> str:
    number = machine.fields(row.get("environment")).get("RANK")
    return f"rank {number}" if number else f"pid {row.get('pid')}"


def _maps(row: Mapping[str, Any], line: str) -> Proof:
    return Proof(f"/proc/{row.get('pid')}/maps", f"{_rank(row)}: {line}")


def _cards(look: Look) -> int:
    return sum(one.efa for one in machine.devices(look.seen))


# plugin


def _plugin(look: Look) -> Iterator[Finding]:
    """Without it NCCL takes sockets over EFA's Ethernet side: ten times slower, and no error."""
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable("this machine has no NVIDIA GPU: NCCL does not run on it")
        return
    if not _cards(look):
        yield look.not_applicable("no EFA card is here: NCCL needs no plugin for it")
        return
    everyone = _by_rank(look, "ofi-plugin", "net-plugin")
    ranks = [(row, found) for row, found in everyone if not _stays_here(row)]
    without = [row for row, found in ranks if not found]
    early = [row for row in without if not _talks(row, ranks)]
    if everyone and not ranks:
        yield look.not_applicable(f"{len(everyone)} ranks with NCCL here talk to no other node: no plugin is needed")
    elif early:
        proofs = [_maps(row, "libnccl.so, and no libnccl-net*.so") for row in early]
        text = f"{len(early)} of {len(ranks)} ranks have NCCL and no plugin, and may have no communicator yet"
        yield look.unknown(text, *proofs)
    elif without:
        path = machine.fields(without[0].get("environment")).get("LD_LIBRARY_PATH", "")
        proofs = [_maps(row, "libnccl.so, and no libnccl-net*.so") for row in without]
        proofs.append(Proof(f"/proc/{without[0].get('pid')}/environ", f"LD_LIBRARY_PATH={path}"[:300]))
        text = f"{len(without)} of {len(ranks)} ranks have NCCL and no plugin for EFA: they talk by sockets"
        yield look.fail("P0", text, *proofs, pid=str(without[0].get("pid")))
    elif ranks:
        paths = sorted({one.path for _, found in ranks for one in found})
        yield look.passed(f"all {len(ranks)} ranks have a plugin mapped", Proof("/proc/*/maps", ", ".join(paths)[:400]))
    else:
        yield from _installed(look)


def _stays_here(row: Mapping[str, Any]) -> bool:
    """Its world is on this node: NCCL needs no network then."""
    told = machine.fields(row.get("environment"))
    world, local = told.get("WORLD_SIZE"), told.get("LOCAL_WORLD_SIZE")
    return told.get("SLURM_JOB_NUM_NODES") == "1" or world == "1" or (world is not None and world == local)


def _talks(row: Mapping[str, Any], ranks: Sequence[tuple[Mapping[str, Any], list[Library]]]) -> bool:
    """It has a communicator: NCCL listens for its peers then; or others of its job on this node have theirs. The
    library alone is mapped by ``import torch`` already."""
    peers = [found for other, found in ranks if other.get("job") == row.get("job")]
    return bool(row.get("listens")) or any(peers)


def _installed(look: Look) -> Iterator[Finding]:
    files = [path for path in look.seen.present("ofi-plugin") if "libnccl-net" in path]
    if files:
        yield look.passed("aws-ofi-nccl is installed; no rank runs that could use it", Proof("ls", files[0]))
    else:
        text = "aws-ofi-nccl is not where EFA's installer puts it; a container may bring its own"
        yield look.warn("P2", text, Proof("ls /opt/amazon/ofi-nccl/lib", "no libnccl-net*.so"))


def _libfabric(look: Look) -> Iterator[Finding]:
    cards = _cards(look)
    if not cards:
        yield look.not_applicable("no EFA card is here")
        return
    ranks = _by_rank(look, "libfabric")
    yield from _differing(look, ranks, "libfabric")
    yield from _providers(look, cards, bool(ranks))
    yield from _installer(look)


def _providers(look: Look, cards: int, used: bool) -> Iterator[Finding]:
    """``fi_info`` lists a card two or three times: its domains are counted."""
    try:
        output = look.seen.command("fi-info")
    except NotObserved as error:
        if not is_absent(error):
            raise
        if used:
            yield look.passed("ranks have libfabric mapped; fi_info is not on this node")
        else:
            yield look.unknown("fi_info is not on this node: whether libfabric sees the cards is not known")
        return
    domains = efa.domains(efa.providers(output.out))
    first = (output.err.strip() or output.out.strip() or f"status {output.rc}").splitlines()[0][:200]
    proof = Proof("fi_info -p efa", f"{len(domains)} domains" if domains else first)
    if not domains:
        yield look.fail("P0", "libfabric sees none of the EFA cards", proof, cards=str(cards))
    elif len(domains) < cards:
        yield look.warn("P1", "libfabric sees fewer EFA cards than the kernel", proof, cards=str(cards))
    else:
        yield look.passed("libfabric sees all EFA cards", proof)


def _installer(look: Look) -> Iterator[Finding]:
    """Old installers bring a libfabric and a plugin that new NCCL releases do not work with."""
    try:
        version = efa.installer_version(look.seen.text("efa-installed"))
    except NotObserved:
        return
    found = _NUMBERS.match(version or "")
    least = table()["efa-installer-minor"]
    if found and (int(found.group(1)), int(found.group(2))) < (1, least):
        proof = Proof("/opt/amazon/efa_installed_packages", f"EFA installer version: {version}")
        yield look.warn("P2", f"EFA's installer is older than 1.{least:g}", proof)


# NCCL


def _nccl(look: Look) -> Iterator[Finding]:
    ranks = _by_rank(look, "nccl")
    if not ranks:
        yield look.not_applicable(_NO_RANK if not machine.ranks(look.seen) else "no rank here has NCCL mapped")
        return
    yield from _several(look, ranks)
    yield from _differing(look, ranks, "NCCL")
    yield from _old_driver(look, ranks)


def _several(look: Look, ranks: Sequence[tuple[Mapping[str, Any], list[Library]]]) -> Iterator[Finding]:
    for row, found in ranks:
        if len({one.path for one in found}) > 1:
            proof = _maps(row, ", ".join(one.path for one in found))
            yield look.warn("P1", "a rank has two NCCL libraries mapped at once", proof, pid=str(row.get("pid")))
            return
    gone = [(row, one) for row, found in ranks for one in found if one.deleted]
    if gone:
        proof = _maps(gone[0][0], f"{gone[0][1].path} (deleted)")
        yield look.warn("P2", "NCCL's library was replaced under running ranks", proof)


def _differing(look: Look, ranks: Sequence[tuple[Mapping[str, Any], list[Library]]], what: str) -> Iterator[Finding]:
    """Ranks of one world on one node with different files: an environment of some. Other jobs, steps and programs side
    by side may have others."""
    worlds: dict[tuple[str, ...], list[tuple[Mapping[str, Any], list[Library]]]] = {}
    for row, found in ranks:
        worlds.setdefault(_world(row), []).append((row, found))
    for group in worlds.values():
        yield from _differing_in(look, group, what)


def _world(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Its job, its step, and where its ranks meet."""
    told = machine.fields(row.get("environment"))
    names = ("SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    return (str(row.get("job")), *(str(told.get(name, "")) for name in names))


def _differing_in(look: Look, ranks: Sequence[tuple[Mapping[str, Any], list[Library]]], what: str) -> Iterator[Finding]:
    """Which one a rank uses that has several at once is not told: two ranks differ where they have none in common."""
    versions: dict[str, list[Mapping[str, Any]]] = {}
    untold: dict[str, Mapping[str, Any]] = {}
    sets: dict[frozenset[str], Mapping[str, Any]] = {}
    for row, found in ranks:
        told = {one.path: _version(look, one) for one in found}
        for path, version in told.items():
            if version:
                versions.setdefault(version, []).append(row)
            else:
                untold.setdefault(path, row)
        if told and all(told.values()):
            sets.setdefault(frozenset(map(str, told.values())), row)
    if any(one.isdisjoint(other) for one, other in combinations(sets, 2)):
        proofs = [_maps(row, f"{what} {' and '.join(sorted(one))}") for one, row in sets.items()]
        yield look.fail("P0", f"ranks of this node have different versions of {what}", *proofs)
    elif len(versions) > 1 and not untold:
        proofs = [_maps(row, f"{what} {' and '.join(sorted(one))}") for one, row in sets.items()]
        yield look.unknown(
            f"ranks here have several versions of {what} at once: which of them they use is not told", *proofs
        )
    elif len(untold) + len(versions) > 1:
        proofs = [_maps(row, path) for path, row in untold.items()]
        yield look.unknown(f"ranks here have several files of {what}, and not each tells its version", *proofs)
    elif versions:
        rows = next(iter(versions.values()))
        yield look.passed(
            f"{what} {next(iter(versions))} in {len(rows)} ranks",
            _maps(rows[0], ranks[0][1][0].path if ranks[0][1] else ""),
        )
    elif untold:
        path, row = next(iter(untold.items()))
        yield look.passed(f"ranks here have one file of {what}, which tells no version", _maps(row, path))


def _version(look: Look, one: Library) -> str | None:
    """What the file says of itself, else what its name says. None: nothing tells."""
    files = machine.fields(machine.fields(look.seen.reader("ranks")).get("libraries"))
    return version_in_file(files.get(one.path), one)


def _old_driver(look: Look, ranks: Sequence[tuple[Mapping[str, Any], list[Library]]]) -> Iterator[Finding]:
    try:
        driver = procfs.driver(look.seen.text("nvidia-driver"))
    except NotObserved:
        return
    told = (_version(look, one) for _, found in ranks for one in found)
    version = next((_NUMBERS.match(one) for one in told if one), None)
    if driver is None or version is None:
        return
    (major, minor), least = _NCCL_OF_DRIVER
    if (int(version.group(1)), int(version.group(2))) >= (major, minor) and int(driver.version.split(".")[0]) < least:
        proof = Proof("/proc/driver/nvidia/version", driver.version)
        yield look.warn("P1", f"NCCL {version.group(0)} wants driver {least} or newer", proof, driver=driver.version)


# RAS

#: By kind of line. Ranks at different operations may be so for a moment in a healthy job.
_BAD_RAS: Mapping[str, tuple[Priority, str]] = {
    "nccl.ras-dead": ("P1", "processes that give no data or are considered dead"),
    "nccl.ras-error": ("P1", "ranks with an error"),
    "nccl.ras-mismatch": ("P2", "ranks at different operations"),
}


def _ras(look: Look) -> Iterator[Finding]:
    """NCCL from 2.24 on. The one node that is asked for the job's whole state answers for all ranks."""
    why = "no RAS answered"
    try:
        rows = machine.rows(look.seen.reader("ras"))
    except NotObserved as error:
        rows, why = [], str(error)
    if not any("greeting" in row for row in rows) and not _by_rank_or_none(look):
        yield look.not_applicable(_NO_RANK)
        return
    if not rows:
        raise NotObserved(f"{why} (NCCL older than 2.24, or NCCL_RAS_ENABLE=0, has no RAS)")
    for row in rows:
        yield from _ras_of(look, row)


def _ras_of(look: Look, row: Mapping[str, object]) -> Iterator[Finding]:
    """Of one job."""
    job = str(row.get("job") or "")[:20]
    whose, values = (f" of job {job}", {"job": job}) if job else ("", {})
    if "greeting" not in row:
        yield look.unknown(f"NCCL's RAS{whose} was not heard: {str(row.get('why'))[:300]}")
        return
    text, where = str(row.get("status") or ""), f"NCCL RAS{whose} {str(row.get('address', ''))[:100]}"
    wrong = _said(text)
    for kind, lines in wrong.items():
        weight, words = _BAD_RAS[kind]
        proofs = [Proof(where, line) for line in lines]
        yield look.warn(weight, f"NCCL's RAS tells of {words}", *proofs, values=values)
    if not wrong:
        proof = Proof(where, str(row.get("greeting"))[:100])
        yield look.passed("NCCL's RAS answers" + (" and finds nothing" if text else ""), proof)


def _by_rank_or_none(look: Look) -> bool:
    try:
        return bool(_by_rank(look, "nccl"))
    except NotObserved:
        return True


def _said(text: str) -> dict[str, list[str]]:
    rows = machine.pattern_rows()
    numbers = [number for number, row in enumerate(rows.rows) if row.id in _BAD_RAS]
    wrong: dict[str, list[str]] = {}
    for line in text.splitlines()[:20000]:
        finding = find(line, rows, numbers)
        if finding is not None:
            wrong.setdefault(finding.kind, []).append(line.strip()[:300])
    return wrong


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.ofi-plugin",
        "Ranks have NCCL's plugin for EFA",
        (*RDMA_SOURCES, *GPU_SOURCES, "ranks", "ofi-plugin"),
        _plugin,
        explains=("fleet.bandwidth",),
    ),
    NodeCheck(
        "node.libfabric", "libfabric sees all cards", (*RDMA_SOURCES, "ranks", "fi-info", "efa-installed"), _libfabric
    ),
    NodeCheck("node.nccl-library", "Ranks have one NCCL", ("ranks", "nvidia-driver"), _nccl),
    NodeCheck("node.ras", "NCCL's RAS has no complaint", ("ras", "ranks"), _ras),
)
