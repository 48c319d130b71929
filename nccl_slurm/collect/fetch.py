"""Records fetched from nodes: each lands whole in a folder of the shape of the shared one, for the same intake.

A transfer that was cut leaves ``tmp/NAME.SHA256`` and goes on there at the next visit. Only names that hold the
node that was asked are taken: a node can't speak in another one's name.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from nccl_slurm.capture.outbox import NAME
from nccl_slurm.capture.serve import HEADER
from nccl_slurm.collect.shared import MAX_RECORD_BYTES
from nccl_slurm.collect.ssh import Session, Target, Visitor
from nccl_slurm.config import Config
from nccl_slurm.errors import ConfigError, InputError, RemoteError

__all__ = ["Fetcher", "Landing", "Offer", "Visit", "landing_of", "offered", "visit", "visitor_of"]

_HEADER = re.compile(rf"{re.escape(HEADER)} ([0-9]{{1,8}}) ([0-9]{{1,8}}) ([0-9a-f]{{64}})")
_OFFER = re.compile(r"(\S{1,300}) ([0-9]{1,8})")
_MAX_LISTING = 2 << 20
#: At one visit. What is left comes at the next.
_MAX_VISIT_BYTES = 256 << 20
_MAX_HEADER = 200

#: Name of a record and its size in bytes.
Offer = tuple[str, int]


@dataclass(frozen=True)
class Visit:
    """``offered``: how many of the wanted records the node has. ``why``: what went wrong, None where nothing did."""

    node: str
    offered: int = 0
    fetched: tuple[Offer, ...] = ()
    why: str | None = None


class Landing:
    """``folder`` holds ``tmp/``, ``new/`` and ``quarantine/``, the daemon's, 0700; see `shared.Inbox`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def prepare(self) -> None:
        """Raises InputError."""
        try:
            for path in (self._folder, *(os.path.join(self._folder, part) for part in ("tmp", "new", "quarantine"))):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)
                    self._give(path)
        except OSError as error:
            raise InputError(f"{error.filename}: {error.strerror}; run this as the daemon's user") from None

    def take(self, session: Session, name: str) -> int:
        """Bytes of the record, which is in ``new/`` then. Raises RemoteError, OSError."""
        offset, digest = self._begun(name)
        answer = session.ask(f"get {name} {offset} {digest}" if offset else f"get {name}")
        start, size, new_digest, first = _header(name, answer)
        if start not in (0, offset if new_digest == digest else 0):
            raise RemoteError(f"{name}: sent from byte {start} on, which was not asked")
        with self._part(name, new_digest) as part:
            os.ftruncate(part, start)
            _receive(part, start, size, first, answer)
            self._land(part, name, new_digest)
        return size

    def _begun(self, name: str) -> tuple[int, str]:
        """Bytes that are here, and the SHA-256 of the whole."""
        tmp = os.path.join(self._folder, "tmp")
        for part in sorted(os.listdir(tmp)):
            digest = part.removeprefix(name + ".")
            if digest != part and re.fullmatch(r"[0-9a-f]{64}", digest):
                with suppress(OSError):
                    return os.lstat(os.path.join(tmp, part)).st_size, digest
        return 0, ""

    @contextmanager
    def _part(self, name: str, digest: str) -> Iterator[int]:
        path = os.path.join(self._folder, "tmp", f"{name}.{digest}")
        part = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(part, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield part
        except BlockingIOError:
            raise RemoteError(f"{name}: another process fetches it just now") from None
        finally:
            os.close(part)

    def _land(self, part: int, name: str, digest: str) -> None:
        path = os.path.join(self._folder, "tmp", f"{name}.{digest}")
        if hashlib.sha256(os.pread(part, MAX_RECORD_BYTES + 1, 0)).hexdigest() != digest:
            os.unlink(path)
            raise RemoteError(f"{name}: what came is not what was announced")
        self._give(path)
        os.fsync(part)
        os.rename(path, os.path.join(self._folder, "new", name))
        folder = os.open(os.path.join(self._folder, "new"), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _give(self, path: str) -> None:
        """Root fetches by hand for a daemon that runs as SlurmUser."""
        owner = os.stat(os.path.dirname(self._folder))
        if os.geteuid() == 0 and owner.st_uid != 0:
            os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def landing_of(config: Config) -> str:
    """The folder in which fetched records land, for the daemon's intake."""
    return os.path.join(config.paths.state, "fetched")


def visitor_of(config: Config) -> Visitor:
    return Visitor(config.ssh, os.path.join(config.paths.state, "known_hosts"))


class Fetcher:
    """Visits of one site's nodes, from many threads."""

    def __init__(self, config: Config) -> None:
        self._visitor = visitor_of(config)
        self._landing = Landing(landing_of(config))

    def prepare(self) -> None:
        """Raises ConfigError and InputError where no node could be visited."""
        self._visitor.check()
        self._landing.prepare()

    def visit(self, target: Target, wanted: Collection[int] | None, known: Collection[Offer] = ()) -> Visit:
        return visit(self._visitor, self._landing, target, wanted, known)

    def close(self) -> None:
        """Ends visits that are under way."""
        self._visitor.close()


def visit(
    visitor: Visitor,
    landing: Landing,
    target: Target,
    wanted: Collection[int] | None,
    known: Collection[Offer] = (),
) -> Visit:
    """Fetches what the node offers of the ``wanted`` raw job ids (None: all) and is not ``known``. Never raises."""
    fetched: list[Offer] = []
    count = 0
    try:
        with visitor.session(target) as session:
            mine = [one for one in offered(session, target.node) if wanted is None or _job_of(one) in wanted]
            count = len(mine)
            for name, size in mine:
                if (name, size) not in known and sum(had for _, had in fetched) + size <= _MAX_VISIT_BYTES:
                    landing.take(session, name)
                    fetched.append((name, size))
    except (RemoteError, ConfigError) as error:
        return Visit(target.node, count, tuple(fetched), str(error))
    except OSError as error:
        return Visit(target.node, count, tuple(fetched), f"{error.filename}: {error.strerror}")
    except Exception as error:  # a thread of the pool: what leaves it nobody sees
        return Visit(target.node, count, tuple(fetched), f"{target.node}: {type(error).__name__}: {error}")
    return Visit(target.node, count, tuple(fetched))


def offered(session: Session, node: str) -> list[Offer]:
    """Of this node, in the order of the listing; lines that are none are left out. Raises RemoteError."""
    data = b""
    for chunk in session.ask("list"):
        data += chunk
        if len(data) > _MAX_LISTING:
            raise RemoteError(f"{node}: its list of records is longer than 2 MiB")
    found = (_OFFER.fullmatch(line) for line in data.decode("ascii", "replace").split("\n"))
    offers = [(match[1], int(match[2])) for match in found if match and int(match[2]) <= MAX_RECORD_BYTES]
    return [one for one in offers if (match := NAME.match(one[0])) and match["node"] == node]


def _job_of(offer: Offer) -> int:
    return int(offer[0].split(".", 1)[0])


def _header(name: str, answer: Iterator[bytes]) -> tuple[int, int, str, bytes]:
    """Offset, size, SHA-256, and what came behind the line."""
    data = b""
    while b"\n" not in data and len(data) < _MAX_HEADER:
        chunk = next(answer, b"")
        if not chunk:
            break
        data += chunk
    line, _, rest = data.partition(b"\n")
    match = _HEADER.fullmatch(line[:_MAX_HEADER].decode("ascii", "replace"))
    if match is None or int(match[2]) > MAX_RECORD_BYTES or int(match[1]) > int(match[2]):
        raise RemoteError(f"{name}: not sent as a record")
    return int(match[1]), int(match[2]), match[3], rest


def _receive(part: int, start: int, size: int, first: bytes, answer: Iterator[bytes]) -> None:
    """What has come stays where the transfer is cut. Raises RemoteError."""
    at = start
    chunk: bytes | None = first
    while chunk is not None:
        if at + len(chunk) > size:
            raise RemoteError("more came than was announced")
        view = memoryview(chunk)
        while view:
            written = os.pwrite(part, view, at)
            at, view = at + written, view[written:]
        chunk = next(answer, None)
    if at < size:
        raise RemoteError("the record was cut")
