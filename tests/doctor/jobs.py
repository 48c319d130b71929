"""Jobs as their nodes would tell them: ranks with environment and limits, adapters, output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nccl_slurm.doctor.check import Check, Finding, judged
from nccl_slurm.doctor.observation import Fleet, JobObserved, Observation
from nccl_slurm.parse.folder import read_sources, walk
from nccl_slurm.parse.patterns import load_rows
from nccl_slurm.scheduler.client import LiveJob

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            {stack}              unlimited            bytes
Max processes             1029000              1029000              processes
Max open files            {files}              {hard}               files
Max locked memory         {locked}             {locked}             bytes
Max address space         unlimited            unlimited            bytes
"""
MEETING = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
EFA = {f"rdmap{card}s0": "efa" for card in range(4)}
INFINIBAND = {f"mlx5_{card}": "mlx5_core" for card in range(8)}
ROCE = {f"mlx5_{card}": "mlx5_core 400" for card in range(8)}
#: RDMA devices too: a card for management, Azure's accelerated networking, cards without a cable.
NO_FABRIC: Mapping[str, Mapping[str, str]] = {
    "management": {"mlx5_0": "mlx5_core 25", "mlx5_1": "mlx5_core 25"},
    "accelerated networking": {"mlx5_0": "mlx5_core 100"},
    "Broadcom": {"bnxt_re0": "bnxt_en 25"},
}
UNPLUGGED = {"mlx5_0": "mlx5_core down"}
#: The nodes' clocks.
NOW = 1_790_000_000.0
_ROWS = load_rows()

Rows = list[dict[str, Any]]


def limits(*, stack: str = "8388608", files: str = "1024", hard: str = "131072", locked: str = "unlimited") -> str:
    return LIMITS.format(stack=stack, files=files, hard=hard, locked=locked)


def rank(number: int, size: int, *, local: Any = 2, text: Any = None, uid: Any = 1000, **more: str) -> dict[str, Any]:
    """A rank as `gather.ranks` tells it. ``more``: environment on top; an empty value takes a name out."""
    told = {"RANK": str(number), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(local), **MEETING, **more}
    environment = {name: value for name, value in told.items() if value}
    own = {"pid": 1000 + number, "parent": 900, "uid": uid, "environment": environment, "libraries": []}
    return {**own, "limits": limits() if text is None else text}


def launcher(**more: Any) -> dict[str, Any]:
    environment = {"SLURM_PROCID": "0", "WORLD_SIZE": "7", "NCCL_DEBUG": "INFO"}
    return {"pid": 900, "parent": 1, "uid": 1000, "environment": environment, "libraries": [], **more}


def even(size: Any = 4, nodes: Any = 2, **more: str) -> dict[str, Rows]:
    """Ranks in order over nodes n1, n2 …, all alike."""
    each = size // nodes
    numbers = {f"n{node + 1}": range(node * each, (node + 1) * each) for node in range(nodes)}
    return {node: [launcher(), *(rank(one, size, local=each, **more) for one in own)] for node, own in numbers.items()}


def job(
    rows: Mapping[str, Rows | str],
    *,
    adapters: Mapping[str, str] | None = None,
    silent: Mapping[str, str] | None = None,
    output: Path | None = None,
    more: int = 0,
    uid: int = 0,
    state: str | None = None,
    part: bool = False,
    own: Mapping[str, Sequence[str]] | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
) -> JobObserved:
    """``rows`` of a node as text: why they were not seen. ``adapters``: of every node, None: they were not seen.
    ``own``: node → addresses of its interfaces; ``names``: what any node's resolver says."""
    nodes = {
        name: Observation(name, {**_found(told, adapters, more), **_known(name, own, names)}, uid=uid, at=NOW)
        for name, told in rows.items()
    }
    parsed = None if output is None else read_sources(walk(str(output))[0], _ROWS)
    live = None if state is None else LiveJob(42, "42", "train", state)
    return JobObserved("42", 42, Fleet(nodes, silent or {}), live, output=parsed, part=part)


def _found(rows: Rows | str, adapters: Mapping[str, str] | None, more: int) -> dict[str, Any]:
    told = {"why": rows} if isinstance(rows, str) else {"value": {"ranks": rows, "more": more, "unreadable": 0}}
    links = {
        f"/sys/class/infiniband/{name}/device/driver": f"../x/{driver.split()[0]}"
        for name, driver in (adapters or {}).items()
    }
    ports = {
        f"/sys/class/infiniband/{name}/ports/1/{file}": text + "\n"
        for name, driver in (adapters or {}).items()
        for file, text in zip(("state", "rate", "link_layer"), _port(driver), strict=True)
    }
    if adapters is None:
        return {"ranks": told, "rdma-drivers": {"why": "no such file"}}
    return {"ranks": told, "rdma-drivers": _files(links), "rdma-ports": _files(ports)}


def _port(driver: str) -> tuple[str, str, str]:
    """``mlx5_core``: InfiniBand; ``mlx5_core 50``: Ethernet at that speed; ``mlx5_core down``."""
    _, _, speed = driver.partition(" ")
    if speed == "down":
        return "1: DOWN", "10 Gb/sec (4X SDR)", "InfiniBand"
    layer = "Unspecified" if driver == "efa" else "Ethernet" if speed else "InfiniBand"
    return "4: ACTIVE", f"{speed or 400} Gb/sec (4X NDR)", layer


def _files(texts: Mapping[str, str]) -> dict[str, Any]:
    return {"texts": dict(texts), "cut": [], "unread": {}, "more": False}


def _known(
    node: str, own: Mapping[str, Sequence[str]] | None, names: Mapping[str, Sequence[str]] | None
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if own is not None:
        lines = "".join(f"  |-- {one}\n     /32 host LOCAL\n" for one in ["127.0.0.1", *own[node]])
        found["own-addresses"] = _files({"/proc/net/fib_trie": lines})
    if names is not None:
        rows = {name: {"addresses": list(told), "seconds": 0.0} for name, told in names.items()}
        found["names"] = {"value": {"names": rows, "more": 0, "asked": "42"}}
    return found


def said(check: Check[Any], observed: JobObserved) -> list[Finding]:
    return judged(check, observed)


def words(findings: Sequence[Finding]) -> list[str]:
    """``FAIL P0``, ``PASS``: in the order in which they were found."""
    return [f"{one.status} {one.priority or ''}".strip() for one in findings]
