"""Xid lines of the NVIDIA driver: PCI id in one spelling, class and role from the Xid table."""

from __future__ import annotations

import re
from typing import Any

from nccl_slurm.parse.patterns import Row, Rows

__all__ = ["details", "pci_id", "refine"]

_PCI = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.[0-7])?\Z")
_RECOVERY = re.compile(r"changed from 0x([0-9A-Fa-f]{1,8}) \([^)]{0,80}\) to 0x([0-9A-Fa-f]{1,8}) \(([^)]{0,80})\)")
_LINK = re.compile(r"\b[Ll]ink (-?\d{1,4})")
_SEVERITY = re.compile(r"\b(Nonfatal|Fatal)\b")
_PREVIOUS = re.compile(r"caused by previous Xid (\d{1,4})")
_RECOVERY_CHANGED = 154


def refine(row: Row, data: dict[str, Any], text: str, rows: Rows) -> tuple[str, str | None]:
    if row.id != "kernel.xid":
        return row.role, row.hint
    message = str(data.get("message", ""))
    details(message, data)
    xid = rows.xids.get(data["xid"])
    if xid is None:
        return "context", None
    data.update(mnemonic=xid.mnemonic, action=xid.action)
    role = "context" if xid.role == "cause" and data.get("severity") == "Nonfatal" else xid.role
    before = rows.xids.get(data.get("previous_xid", data["xid"]), xid)
    hint = before.hint if role == "consequence" else xid.hint
    return role, None if hint == "unknown" else hint


def pci_id(text: Any) -> str | None:
    """``PCI:0000:3B:00.0``, ``00000000:3b:00``, ``3b:00.0`` → ``0000:3b:00``; None for anything else."""
    match = _PCI.match(str(text).replace("PCI:", ""))
    if match is None:
        return None
    domain, bus, device = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}".lower()


def details(message: str, data: dict[str, Any]) -> None:
    """Link, severity, the Xid that came before; of Xid 154 the recovery action: parse the number, show the text."""
    link, severity, previous = _LINK.search(message), _SEVERITY.search(message), _PREVIOUS.search(message)
    if link is not None:
        data["link"] = int(link.group(1))
    if severity is not None:
        data["severity"] = severity.group(1)
    if previous is not None:
        data["previous_xid"] = int(previous.group(1))
    recovery = _RECOVERY.search(message) if data["xid"] == _RECOVERY_CHANGED else None
    if recovery is not None:
        data.update(recovery=int(recovery.group(2), 16), recovery_text=recovery.group(3))
