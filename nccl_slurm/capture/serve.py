"""What a node answers to whoever comes by SSH: ``nccl-slurm-node serve``, the forced command of one key. It only reads.

    list [JOBID]                NAME SIZE, one a line: records in the outbox, newest run first
    get NAME [OFFSET SHA256]    a line ``nccl-slurm-record/1 OFFSET SIZE SHA256``, then the bytes from OFFSET on
    snapshot                    one JSON object: ``node``, ``machine``, ``snapshot``, ``gaps``
    doctor [JOBID]              one line: what `nccl-slurm doctor` reads, all of `doctor.sources`

Asked by its own words, or, where it has none, by SSH_ORIGINAL_COMMAND (sshd(8)): the words after ``serve`` there. A cut
transfer goes on at OFFSET if the record still has that SHA256, else it begins anew. Nothing asked ever reaches a shell.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any, BinaryIO, Mapping, Sequence

from nccl_slurm.capture import machine, outbox, snapshot
from nccl_slurm.capture.conf import Conf
from nccl_slurm.errors import InputError
from nccl_slurm.model import Gap

__all__ = ["HEADER", "answer", "asked"]

HEADER = "nccl-slurm-record/1"
_FORCED = re.compile(r"(?:[A-Za-z0-9._/+-]*/)?nccl-slurm-node serve ([A-Za-z0-9._ -]{1,400})\Z")
_LIST = re.compile(r"list(?: ([0-9]{1,18}))?\Z")
_DOCTOR = re.compile(r"doctor(?: ([0-9]{1,10}))?\Z")
_GET = re.compile(r"get ([0-9][A-Za-z0-9._-]{0,299})(?: ([0-9]{1,8}) ([0-9a-f]{64}))?\Z")


def asked(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What is wanted, as one line. Raises InputError."""
    if words:
        return " ".join(words)
    match = _FORCED.match(environment.get("SSH_ORIGINAL_COMMAND", ""))
    if match is None:
        raise InputError("serve: this key is for list, get, snapshot and doctor alone")
    return match.group(1)


def answer(conf: Conf, wanted: str, out: BinaryIO) -> None:
    """Raises InputError."""
    listing, getting = _LIST.match(wanted), _GET.match(wanted)
    if listing:
        job = None if listing.group(1) is None else int(listing.group(1))
        out.write("".join(f"{one.name} {one.size}\n" for one in outbox.offers(conf, job)).encode("ascii"))
    elif getting:
        _send(outbox.read(conf, getting.group(1)), int(getting.group(2) or 0), getting.group(3), out)
    elif doctor := _DOCTOR.match(wanted):
        out.write(_observation(conf, doctor.group(1)))
    elif wanted == "snapshot":
        out.write(json.dumps(_snapshot(conf), allow_nan=False).encode("ascii") + b"\n")
    else:
        raise InputError("serve: say list [JOBID], get NAME [OFFSET SHA256], snapshot, or doctor [JOBID]")
    out.flush()


def _send(data: bytes, offset: int, had: str | None, out: BinaryIO) -> None:
    digest = hashlib.sha256(data).hexdigest()
    start = offset if had == digest and offset <= len(data) else 0
    out.write(f"{HEADER} {start} {len(data)} {digest}\n".encode("ascii"))
    out.write(data[start:])


def _snapshot(conf: Conf) -> dict[str, Any]:
    gaps: list[Gap] = []
    names, node = machine.process_names(conf.sysroot), machine.node_name({})
    taken = snapshot.take(conf, names, gaps)
    told = machine.describe(conf, node, names, gaps)
    if os.geteuid() != 0:
        gaps.append(Gap("root", "read without root's rights: some of what a record holds can't be seen"))
    return {
        "node": node,
        "machine": told,
        "snapshot": taken,
        "gaps": [{"source": one.source, "why": one.why} for one in gaps],
    }


def _observation(conf: Conf, job: str | None) -> bytes:
    from nccl_slurm.doctor import gather, sources

    told = sources.manifest(sources.SOURCES, job=job, sysroot=conf.sysroot)
    return gather.packed(told).encode("ascii")
