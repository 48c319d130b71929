"""Slurm's own daemons: controllers, slurmdbd, munge, versions of slurmd. A controller is never to be replaced."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from nccl_slurm.doctor.check import Finding, NotObserved, Proof
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.checks.scheduler.shape import SlurmCheck, data
from nccl_slurm.hosts import fold
from nccl_slurm.scheduler.client import Controller

__all__ = ["CHECKS"]

CONTROLLER, DATABASE, MUNGE, VERSION = (
    f"scheduler.{name}" for name in ("controller", "slurmdbd", "munge", "slurmd-version")
)
#: sacctmgr's ways to say that slurmdbd does not answer; other errors (no right, no such field) are no fault of it.
_AWAY = re.compile(
    r"unable to contact|connection refused|no answer|not responding|connect(?:ion)? fail|timed out", re.I
)
_STATE_FOLDER = re.compile(r"^\s*StateSaveLocation\s*=\s*([^\s#]+)", re.MULTILINE | re.IGNORECASE)
_STATUS = re.compile(r"^STATUS: +(.*)$", re.MULTILINE)


def _controllers(seen: SlurmObserved) -> Iterator[Finding]:
    """Roles one by one: the word backup has the word up in it."""
    every = seen.controllers()
    down = [one for one in every if not one.up]
    if len(down) == len(every):
        values = {"controller": down[0].host, **_where(seen)}
        text = f"no slurmctld answers: {_hosts(down)}"
        yield Finding(CONTROLLER, "FAIL", text, "P0", proofs=_pings(down), values=values)
    for one in down if len(down) < len(every) else ():
        up = [other for other in every if other.up]
        rest = f"{_hosts(up)} answers, and none is left if it fails" if len(up) == 1 else f"{_hosts(up)} answer"
        text = f"slurmctld at {one.host} ({one.role}) does not answer; {rest}"
        values = {"controller": one.host, "role": one.role, **_where(seen)}
        yield Finding(CONTROLLER, "WARN", text, "P1", proofs=_pings([one]), values=values)
    if not down:
        backup = "" if len(every) > 1 else "; there is no backup"
        yield Finding(CONTROLLER, "PASS", f"{_hosts(every)} answer{'s' if len(every) == 1 else ''}{backup}")


def _where(seen: SlurmObserved) -> dict[str, str]:
    """For commands, by the file: a slurmctld that is silent tells no setting."""
    if not seen.conf:
        return {}
    found = _STATE_FOLDER.search(seen.said("slurm.conf"))
    return {"conf": seen.conf, "state_folder": found[1] if found else "/var/spool"}


def _hosts(controllers: Sequence[Controller]) -> str:
    return ", ".join(f"{one.host} ({one.role})" for one in controllers)


def _pings(controllers: Sequence[Controller]) -> list[Proof]:
    return [
        Proof("scontrol ping", f"Slurmctld({one.role}) at {one.host} is {'UP' if one.up else 'DOWN'}")
        for one in controllers
    ]


def _database(seen: SlurmObserved) -> Iterator[Finding]:
    if not seen.setting("AccountingStorageType").endswith("/slurmdbd"):
        yield Finding(DATABASE, "NOT-APPLICABLE", "this cluster keeps no accounting in slurmdbd")
        return
    host = seen.setting("AccountingStorageHost")
    values = {"host": host} if host else {}
    try:
        rows = [line.split("|") for line in seen.said("slurmdbd").splitlines()]
    except NotObserved as error:
        if not _AWAY.search(str(error)):
            raise
        proof = Proof("sacctmgr show cluster", str(error))
        yield Finding(DATABASE, "FAIL", "slurmdbd does not answer", "P1", proofs=[proof], values=values)
        return
    own = next((row for row in rows if len(row) > 1 and row[0] == seen.setting("ClusterName").lower()), None)
    if own is None:
        raise NotObserved("sacctmgr show cluster: has no row of this cluster")
    if not own[1]:
        proof = Proof("sacctmgr show cluster", "|".join(own))
        text = "slurmctld is not registered at slurmdbd: what ends now is not accounted until it is"
        yield Finding(DATABASE, "WARN", text, "P1", proofs=[proof], values=values)
    else:
        yield Finding(DATABASE, "PASS", "slurmdbd answers and slurmctld is registered there")


def _munge(seen: SlurmObserved) -> Iterator[Finding]:
    """Here, and of each node's credential here: another key, or clocks that differ, show in no other way."""
    kind = ""
    with suppress(NotObserved):
        kind = seen.setting("AuthType")
    if kind and kind != "auth/munge":
        yield Finding(MUNGE, "NOT-APPLICABLE", f"Slurm authenticates by {kind}")
        return
    here = _status(seen.said("munge"))
    if here.startswith("Success"):
        yield Finding(MUNGE, "PASS", "a credential made on this host is read on it")
    else:
        proof = Proof("munge -n | unmunge", here)
        yield Finding(MUNGE, "FAIL", "munge does not work on this host", "P0", proofs=[proof])
    for node, status in seen.credentials.items():
        if status.startswith("Success"):
            yield Finding(MUNGE, "PASS", "its credential is read on this host", nodes=(node,))
    if here.startswith("Success"):
        yield from _refused(seen.credentials)


def _refused(credentials: Mapping[str, str]) -> Iterator[Finding]:
    """By what unmunge says. Of two hosts that differ nobody knows which is wrong: where most nodes differ alike, it is
    this host; where one of several does, it is that node."""
    kinds: dict[str, list[str]] = {}
    for node, status in credentials.items():
        if not status.startswith("Success"):
            kinds.setdefault(status.split(" ")[0], []).append(node)
    for kind, nodes in kinds.items():
        proofs = [Proof(f"munge -n on {node} | unmunge here", credentials[node]) for node in nodes]
        there, both = _MEANS.get(kind, (_OTHER, ""))
        if kind == _SILENT:
            yield Finding(MUNGE, "UNKNOWN", "unmunge here gave no answer in time", nodes=nodes, proofs=proofs)
        elif not both or 2 * len(nodes) <= len(credentials):
            yield from (
                Finding(MUNGE, "FAIL", there, "P0", nodes=(node,), proofs=[proof])
                for node, proof in zip(nodes, proofs, strict=True)
            )
        else:
            whose = "which of the two is wrong is not told" if len(nodes) == 1 else "look at this host first"
            text = f"{both.format(f'{len(nodes)} of {len(credentials)} nodes')}: {whose}"
            yield Finding(MUNGE, "FAIL", text, "P0", proofs=proofs[:6])


#: First word of unmunge's STATUS (munge's libmunge/m_error.c) → of a node, and of this host beside most nodes.
_MEANS: Mapping[str, tuple[str, str]] = {
    "Invalid": ("its munge key is another one than here", "munge keys of {} and of this host differ"),
    "Expired": (
        "its clock is behind, or it answers late: its credential has expired here",
        "credentials of {} have expired here, so their clocks and this host's differ, or they answer late",
    ),
    "Rewound": (
        "its clock is ahead: its credential is of the future here",
        "credentials of {} are of the future here, so their clocks and this host's differ",
    ),
    "Replayed": ("its credential was read before: munged here remembers it", ""),
}
_OTHER = "munge on the node makes no credential that is read here"
#: `AskedSlurm` says so where unmunge here hangs.
_SILENT = "unmunge:"


def _status(text: str) -> str:
    found = _STATUS.search(text)
    if found:
        return found.group(1).strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), "no answer")


def _versions(seen: SlurmObserved) -> Iterator[Finding]:
    """slurmd newer than slurmctld is never supported."""
    own = seen.setting("SLURM_VERSION")
    by_version: dict[str, list[str]] = {}
    for node in seen.nodes:
        if node.version:
            by_version.setdefault(node.version, []).append(node.name)
    if not own or not by_version:
        raise NotObserved("Slurm told no version of slurmctld or of any slurmd")
    bad = {version: why for version in by_version if (why := _misfit(version, own))}
    for version, why in bad.items():
        text = f"slurmd {version} {why} slurmctld {own}"
        yield Finding(VERSION, "FAIL", text, "P1", by_version[version], proofs=[_version_proof(version, by_version)])
    left = [version for version in by_version if version not in bad]
    most = max(by_version, key=lambda version: len(by_version[version]))
    for version in left if len(left) > 1 else ():
        if version != most:
            text = f"slurmd {version}, where most nodes have {most}"
            yield Finding(VERSION, "WARN", text, "P2", by_version[version])
    if len(by_version) == 1 and not bad:
        yield Finding(VERSION, "PASS", f"all nodes that Slurm has heard have slurmd {most}, slurmctld {own}")


def _version_proof(version: str, by_version: Mapping[str, Sequence[str]]) -> Proof:
    return Proof("scontrol show node", f"{fold(by_version[version])} Version={version}")


def _misfit(slurmd: str, slurmctld: str) -> str | None:
    """Why they don't go together; None where they do, or a release is not known."""
    releases = data()["releases"]
    order: Sequence[str] = releases["order"]
    there, here = (next((at for at, one in enumerate(order) if v.startswith(one)), None) for v in (slurmd, slurmctld))
    if there is None or here is None:
        return None
    if there > here:
        return "is newer than"
    allowed = releases["older_then"] if here >= order.index(releases["older_from"]) else releases["older"]
    return "is too old for" if here - there > allowed else None


CHECKS = (
    SlurmCheck(
        CONTROLLER,
        "Each slurmctld answers",
        _controllers,
        explains=(DATABASE, VERSION, "scheduler.node-state", "scheduler.stuck-jobs", "scheduler.hooks"),
    ),
    SlurmCheck(DATABASE, "slurmdbd answers", _database),
    SlurmCheck(
        MUNGE,
        "munge: a credential from here and from each node is read here",
        _munge,
        sources=("munge",),
        explains=(CONTROLLER, DATABASE, "scheduler.node-state"),
    ),
    SlurmCheck(VERSION, "Versions of slurmd go with that of slurmctld", _versions),
)
