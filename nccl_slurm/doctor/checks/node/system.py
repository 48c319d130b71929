"""Disks, mounts and the clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nccl_slurm.capture import clock as parsers
from nccl_slurm.doctor.check import Finding, NotObserved, Priority, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.table import table

__all__ = ["CHECKS"]

_GIB = 1 << 30
_NVME = "/opt/dlami/nvme"
#: Without these neither slurmd nor a login works.
_VITAL = ("/", "/var", "/var/spool/slurmd")
#: What is there for one job after another, and lost at a replacement: full of a job's data as a rule.
_SCRATCH = (_NVME,)
#: Images: full and read-only by nature.
_IMAGES = ("squashfs", "erofs", "iso9660", "cramfs", "romfs")
_NO_DISK = ("/dev/shm",)  # noqa: S108 # has a check of its own


def _mounts(look: Look) -> tuple[list[list[str]], Mapping[str, Mapping[str, Any]]]:
    told = machine.reader(look.seen, "mounts")
    if not isinstance(told.get("room"), dict):
        raise NotObserved("mounts: the node's answer is none")
    rows = told.get("table")
    rows = [list(map(str, row)) for row in rows if isinstance(row, list)] if isinstance(rows, list) else []
    return rows, {path: room for path, room in told["room"].items() if isinstance(room, dict)}


def _disk(look: Look) -> Iterator[Finding]:
    """Each local file system once. Full is what an ordinary user can't write to any more."""
    rows, rooms = _mounts(look)
    seen: set[tuple[object, ...]] = set()
    wrong = []
    for path, room in rooms.items():
        key = tuple(room.get(name) for name in ("size", "inodes", "free"))
        if path not in _NO_DISK and key not in seen and not _is_image(rows, path):
            seen.add(key)
            wrong += list(_full(look, path, room))
    yield from wrong
    yield from _read_only(look, rows, rooms)
    if not seen:
        raise NotObserved("no local file system can be read")
    if not wrong:
        yield look.passed(f"{len(seen)} local file systems have room")


def _is_image(rows: list[list[str]], path: str) -> bool:
    """Whether nobody writes there by design: an image, or another's disk that is mounted read-only."""
    above = [row for row in rows if len(row) > 3 and (path + "/").startswith(row[1].rstrip("/") + "/")]
    if not above:
        return False
    longest = max(len(row[1]) for row in above)
    mount = [row for row in above if len(row[1]) == longest][-1]  # the last one covers the others
    return mount[2] in _IMAGES or ("ro" in mount[3].split(",") and not mount[0].startswith("/dev/"))


def _full(look: Look, path: str, room: Mapping[str, Any]) -> Iterator[Finding]:
    space, inodes = _share(room, "size", "available"), _share(room, "inodes", "inodes_free")
    proof = Proof(f"df {path}", f"{space:.0%} of {_number(room, 'size') / _GIB:.0f} GiB, {inodes:.0%} of inodes in use")
    weight: Priority = "P0" if path == "/" else "P1"
    if path in _SCRATCH and table()["disk-share"] <= space < table()["disk-full-share"]:
        yield look.warn("P2", f"{path} is nearly full", proof, path=path)
    elif space >= table()["disk-full-share"]:
        yield look.fail(weight, f"{path} is full", proof, path=path)
    elif space >= table()["disk-share"]:
        yield look.fail("P1", f"{path} is nearly full", proof, path=path)
    elif space >= table()["disk-watch-share"] and path == "/":
        yield look.warn("P2", f"{path} fills up", proof, path=path)
    if inodes >= table()["disk-share"]:
        yield look.fail("P1", f"{path} has hardly any inodes left", proof, path=path)


def _share(room: Mapping[str, Any], whole: str, rest: str) -> float:
    """0 where a file system counts none (btrfs has no inodes)."""
    return 1.0 - _number(room, rest) / _number(room, whole) if _number(room, whole) else 0.0


def _number(room: Mapping[str, Any], key: str) -> float:
    value = room.get(key)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _read_only(look: Look, rows: list[list[str]], rooms: Iterable[str]) -> Iterator[Finding]:
    """The kernel makes a broken disk read-only, wherever it is mounted. Images are so by design, a server's folder by
    its export, and a snapshot that is booted from beside a /var of the same disk (transactional systems)."""
    written = {row[0] for row in rows if len(row) > 3 and "rw" in row[3].split(",")}
    for row in rows:
        if (
            len(row) > 3
            and (row[1] in _VITAL or row[1] in rooms)
            and "ro" in row[3].split(",")
            and row[0].startswith("/dev/")
            and row[0] not in written
            and row[2] not in (*_IMAGES, "overlay")
        ):
            proof = Proof("/proc/mounts", " ".join(row)[:200])
            yield look.fail("P0" if row[1] in _VITAL else "P1", f"{row[1]} is read-only", proof, path=row[1])


def _nvme(look: Look) -> Iterator[Finding]:
    """HyperPod's own images mount the instance store there; jobs and containers that miss it fill the root disk."""
    if not machine.dmi(look.seen):
        raise NotObserved("what machine this is (DMI) is not told")
    row = machine.instance(look.seen)
    if row is None or not row.nvme or not look.seen.present("hyperpod-folder"):
        yield look.not_applicable("no HyperPod node whose type has an instance store")
        return
    mounted, _ = _mounts(look)
    mine = [one for one in mounted if len(one) > 1 and one[1] == _NVME]
    if mine:
        yield look.passed(f"{_NVME} is mounted", Proof("/proc/mounts", " ".join(mine[-1])[:200]))
    else:
        yield look.warn("P1", f"{_NVME} is not mounted", Proof("/proc/mounts", f"no {_NVME}"))


def _clock(look: Look) -> Iterator[Finding]:
    """By the node's own word. That it differs from this host's is no fault of the one that is kept."""
    found, proof = _kept(look)
    measured, keepers = look.seen.offset_s, _keepers(look)
    if found is not None and found["synchronized"] is False and keepers:
        found = None
        proof = Proof("ps -C " + ",".join(keepers), "runs; the kernel is not told that it keeps the clock")
    elif found is not None and found["synchronized"] is False:
        yield look.warn("P1", "nothing keeps this node's clock", proof)
    offset = found["offset_s"] if found is not None else None
    kept = bool(keepers) if found is None else bool(found["synchronized"])
    if offset is not None and abs(offset) >= table()["clock-watch-s"]:
        yield _off(look, abs(offset), proof)
    elif measured is not None and abs(measured) >= table()["clock-watch-s"]:
        beside = Proof("clock beside that of this host", f"{measured:+.3f} s")
        idle = found is not None and not kept
        yield _off(look, abs(measured), proof, beside) if idle else _differs(look, abs(measured), kept, proof, beside)
    elif found is None and measured is None:
        raise NotObserved(
            f"{', '.join(keepers)} runs here, and how far the clock is off is not told"
            if keepers
            else "neither chronyc nor timedatectl tells whether the clock is kept"
        )
    elif found is None or kept:
        yield look.passed("the clock is kept" if found else "the clock agrees with this host's", proof)


def _off(look: Look, seconds: float, *proofs: Proof) -> Finding:
    if seconds >= table()["clock-s"]:
        text = f"the clock is off by more than {table()['clock-s']:g} s"
        return look.fail("P1", text, *proofs, seconds=f"{seconds:.3f}")
    return look.warn("P2", f"the clock is off by more than {table()['clock-watch-s']:g} s", *proofs)


def _differs(look: Look, seconds: float, kept: bool, *proofs: Proof) -> Finding:
    """Of two clocks nobody knows which is wrong; one that is kept is the right one as a rule."""
    least = next(one for one in ("clock-s", "clock-watch-s") if seconds >= table()[one])
    text = f"its clock and that of this host differ by more than {table()[least]:g} s"
    if kept:
        return look.warn("P2", f"{text}, and its own is kept: look at this host's first", *proofs)
    heavy = least == "clock-s"
    return look.warn("P1" if heavy else "P2", f"{text}, and nothing tells whether its own is kept", *proofs)


def _keepers(look: Look) -> list[str]:
    """They keep the clock and don't tell the kernel so (adjtimex(2), STA_UNSYNC), of which timedatectl speaks."""
    try:
        return sorted({str(row.get("comm")) for row in machine.rows(look.seen.reader("time-daemons"))})
    except NotObserved:
        return []


def _kept(look: Look) -> tuple[dict[str, Any] | None, Proof]:
    for key, source, parse in (
        ("clock", "chronyc -n -c tracking", parsers.chrony),
        ("clock-systemd", "timedatectl show", _timedate),
    ):
        try:
            found = parse(look.seen.text(key))
        except NotObserved:
            continue
        if found is not None:
            return found, Proof(source, f"offset {found['offset_s']} s, synchronised {found['synchronized']}")
    return None, Proof("chronyc, timedatectl", "no answer")


def _timedate(text: str) -> dict[str, Any] | None:
    lines = (line for line in text.splitlines() if line.startswith("NTPSynchronized="))
    return parsers.timedate(next(lines, ""))


CHECKS: Iterable[NodeCheck] = (
    NodeCheck("node.disk", "Local disks have room", ("mounts",), _disk),
    NodeCheck("node.nvme-mount", "HyperPod's fast disk is mounted", ("mounts", "dmi", "hyperpod-folder"), _nvme),
    NodeCheck("node.clock", "The clock is kept", ("clock", "clock-systemd", "time-daemons"), _clock),
)
