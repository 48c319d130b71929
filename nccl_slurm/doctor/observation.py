"""What checks are given: of one node, of a job, of all nodes. What was not observed raises `NotObserved`.

All text in them was written by nodes, jobs and users: it is hostile, and cut to what `doctor.sources` allows.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.gather import MARK
from nccl_slurm.model import Parsed
from nccl_slurm.scheduler.client import LiveJob

__all__ = ["Files", "Fleet", "JobObserved", "Observation", "Output", "unpacked"]

_LARGEST = 64 << 20


class Output(NamedTuple):
    """Of a command that ended by itself, whatever its status. ``cut``: there was more."""

    rc: int
    out: str
    err: str
    cut: bool = False


class Files(dict[str, str]):
    """Path → text. ``unread``: path → why; ``cut``: paths of which there is more; ``more``: there are more files."""

    unread: Mapping[str, str] = {}
    cut: Sequence[str] = ()
    more: bool = False


@dataclass(frozen=True)
class Observation:
    """Of one node. ``node``: Slurm's name. ``way``: job-step, job, ssh, or local. ``at``: the node's clock when it was
    read. ``offset_s``: how far its clock was ahead of ours, None where the way there took too long to tell.

    ``since``: what is older is of no matter (the job's start, ``--since``), None: since the boot. ``until``: nor is
    what is newer (the end of a job that has ended), None: until now. ``slurm``: Slurm's fields of this node
    (``scontrol -o show node``) up to the texts of administrators, empty where it was not asked.
    ``owner``: of the job whose step read it, empty where none did: Slurm lets nobody else, and root becomes that user.
    ``gpus``: the GPUs that Slurm let the reading process see (``["0", "1"]``), None where it was not confined by a job.
    """

    node: str
    found: Mapping[str, Mapping[str, Any]]
    way: str = "local"
    uid: int = 0
    at: float = 0.0
    boot_time: float = 0.0
    boot_id: str = ""
    kernel: str = ""
    host: str = ""
    gpus: Sequence[str] | None = None
    job: str | None = None
    offset_s: float | None = None
    since: float | None = None
    until: float | None = None
    slurm: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""

    @property
    def user(self) -> str:
        """Who read it, in words."""
        return f"{self.owner} (by the job's step)" if self.owner else "this user"

    @property
    def more_rights(self) -> str:
        """How to see what the reader was not let see. Root's look at a running job is its owner's, too."""
        if not self.owner:
            return "look as root"
        return f"read as {self.owner}, by the job's step; SSH as root sees more (--ssh)"

    def text(self, key: str, *, part: bool = False) -> str:
        """Of a source that is one file, or of the first of its files that is there. A command: its standard output,
        where it ended with 0. For ``part`` see `present`."""
        one = self._one(key)
        if "out" in one:
            output = self.command(key, part=part)
            if output.rc != 0:
                lines = (output.err or output.out).strip().splitlines()
                raise NotObserved(f"{key}: ended with status {output.rc}: {lines[0][:200] if lines else 'no message'}")
            return output.out
        files = self.files(key, part=part)
        return next(iter(files.values()))

    def files(self, key: str, *, part: bool = False) -> Files:
        """At least one; those that could not be read are in ``unread``. See `present` for *none is no fault*."""
        files = self.present(key, part=part)
        if not files:
            why = next((f"{path}: {why}" for path, why in files.unread.items()), "no such file")
            raise NotObserved(f"{key}: {why}")
        return files

    def present(self, key: str, *, part: bool = False) -> Files:
        """Empty where the node has no such file. Raises where there is more than was read: what stands in the rest is
        not known. ``part``: the check says that a part is enough."""
        one = self._one(key)
        files = Files(_texts(one.get("texts")))
        files.unread = _texts(one.get("unread"))
        cut = one.get("cut")
        files.cut = [str(path) for path in cut] if isinstance(cut, list) else []
        files.more = bool(one.get("more"))
        if not part and (files.cut or files.more):
            what = f"{files.cut[0][:200]} is longer" if files.cut else "there are more files"
            raise NotObserved(f"{key}: {what} than is read of it")
        return files

    def command(self, key: str, *, part: bool = False) -> Output:
        """Also where its status is not 0. Raises where it is not there, did not end, or said more than is read of it,
        but for ``part``."""
        one = self._one(key)
        try:
            output = Output(int(one["rc"]), str(one["out"]), str(one["err"]), bool(one["cut"]))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise NotObserved(f"{key}: the node's answer is none") from None
        if output.cut and not part:
            raise NotObserved(f"{key}: its answer is longer than the {len(output.out)} bytes that are read of it")
        return output

    def reader(self, key: str) -> Any:
        """JSON as in `doctor.gather`'s reader of that name; its parts may be anything: a node said it."""
        one = self._one(key)
        if "value" not in one:
            raise NotObserved(f"{key}: the node's answer is none")
        return one["value"]

    def only(self, keys: Iterable[str]) -> Observation:
        """Without the texts of other keys: 1,000 nodes are many."""
        return replace(self, found={key: self.found[key] for key in keys if key in self.found})

    def _one(self, key: str) -> Mapping[str, Any]:
        one = self.found.get(key)
        if not isinstance(one, dict):
            raise NotObserved(f"{key}: not read on this node")
        if "why" in one:
            raise NotObserved(f"{key}: {str(one['why'])[:300].replace('this user', self.user)}")
        return one


@dataclass(frozen=True)
class Fleet:
    """``silent``: nodes that were to be looked at and gave nothing → why. ``bandwidth``: name → output of nccl-tests;
    ``bandwidth_before``: the same of earlier runs."""

    nodes: Mapping[str, Observation]
    silent: Mapping[str, str] = field(default_factory=dict)
    bandwidth: Mapping[str, str] = field(default_factory=dict)
    bandwidth_before: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobObserved:
    """``live``: as slurmctld tells it, None where it does not know the job any more. ``output``: what its output files
    say, None where they could not be read, and then ``output_why``. ``part``: not all of its nodes were to be looked
    at (a sample, this node alone, one component of a heterogeneous job): ranks that are not seen may be on the others.
    """

    id: str
    raw_id: int
    fleet: Fleet
    live: LiveJob | None = None
    output: Parsed | None = None
    output_why: str = "the job's output was not read"
    part: bool = False

    def parsed(self) -> Parsed:
        if self.output is None:
            raise NotObserved(self.output_why)
        return self.output

    def ranks(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Node → rows of `gather.ranks`, of the nodes where they could be read. Raises where no node has one."""
        found: dict[str, Sequence[Mapping[str, Any]]] = {}
        why = "no node of the job answered"
        for name, node in self.fleet.nodes.items():
            try:
                rows = node.reader("ranks")["ranks"]
                found[name] = [row for row in rows if isinstance(row, dict)]
            except NotObserved as error:
                why = str(error)
            except (TypeError, KeyError):
                why = "ranks: the node's answer is none"
        if not any(found.values()):
            raise NotObserved(why if not found else "no rank of the job was seen on its nodes (ended, or not yours)")
        return found


def unpacked(data: bytes, node: str, way: str) -> Observation:
    """A node's answer. Raises NotObserved where it is none: what a node says is believed in its shape alone."""
    told = _told(data)
    if not isinstance(told.get("found"), dict):
        raise NotObserved(str(told.get("why") or "its answer is no observation")[:300])
    gpus, job = told.get("gpus"), told.get("in_job")
    return Observation(
        node=node,
        found=told["found"],
        way=way,
        uid=int(_number(told, "uid")),
        at=_number(told, "end"),
        boot_time=_number(told, "boot_time"),
        boot_id=str(told.get("boot_id"))[:64],
        kernel=str(told.get("kernel"))[:255],
        host=str(told.get("host"))[:255],
        gpus=[str(one)[:80] for one in gpus] if isinstance(gpus, list) else None,
        job=None if job is None else str(job)[:20],
    )


def _told(data: bytes) -> Mapping[str, Any]:
    _, mark, rest = data.rpartition(MARK.encode("ascii"))
    if not mark:
        said = data.decode("utf-8", "replace").strip().splitlines()
        raise NotObserved(f"no observation came: {said[-1][:200] if said else 'no word'}")
    try:
        unzip = zlib.decompressobj()
        text = unzip.decompress(base64.b64decode(rest.split(b"\n", 1)[0]), _LARGEST)
        told = json.loads(text)
    except (ValueError, zlib.error, RecursionError):
        raise NotObserved("its answer came damaged") from None
    if not isinstance(told, dict):
        raise NotObserved("its answer is no observation")
    return told


def _number(told: Mapping[str, Any], key: str) -> float:
    value = told.get(key)
    return float(value) if isinstance(value, (int, float)) and abs(value) < 1e15 else 0.0


def _texts(value: Any) -> dict[str, str]:
    return {str(path): str(text) for path, text in value.items()} if isinstance(value, dict) else {}
