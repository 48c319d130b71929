"""What lines of Xid 74 and 144-150 say beyond their code, by NVIDIA's tables in data/nvlink.toml."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from nccl_slurm.recommend.policy import DECODED, Decode, Policy, Register

__all__ = ["NVLINK4", "NVLINK5", "Told", "bits_of", "read"]

NVLINK4 = 74
NVLINK5 = range(144, 151)

_REGISTERS = re.compile(r"\((0x[0-9A-Fa-f]{1,8}(?:, ?0x[0-9A-Fa-f]{1,8}){3,6})\)")
#: ``RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 …``; the unit may have two names: ``NETIR/NETIR_INT``.
_LINE5 = re.compile(
    r"(?P<unit>MSE Degraded|[A-Z][A-Z0-9_]{2,30}(?:/[A-Z0-9_]{1,30})?) (?:Fatal|Nonfatal) XC\d i\d Link -?\d{1,4} "
    r"\(0x(?P<intr>[0-9A-Fa-f]{1,8}) 0x(?P<status>[0-9A-Fa-f]{1,8})"
)
#: Registers 2, 6 and 7 tell nothing.
_TELLING = (1, 3, 4, 5)
_AT_FAULT = ("parity", "seating", "signal", "repeated", "unexpected", "unlisted")
#: The unit's number stands in bits 9:5 of intrInfo before driver R575 and in bits 6:0 since; the bit above it promotes
#: the error. The line does not tell the driver, but the two forms of RLW_RXPIPE (number 6) can't be mistaken.
_PROMOTED = ((0x3FF, 0x0C2, 10), (0x7F, 0x06, 7))


class Told(NamedTuple):
    """``action`` None: what the code's row says. ``after`` None: the row's. ``report``: see `Register`, 0 for never."""

    action: str | None
    after: tuple[str, ...] | None
    why: str
    report: int = 0


def read(code: int, text: str, policy: Policy, *, alone: bool) -> Told | None:
    """None where the line can't be read on. ``alone``: no other error of this node stands beside it."""
    if code == NVLINK4:
        return _read4(text, policy, alone)
    return _read5(code, text, policy) if code in NVLINK5 else None


def bits_of(text: str) -> frozenset[tuple[int, int]]:
    """(register, bit) of each bit that is set in the registers that tell; empty where the line has none."""
    found = _REGISTERS.search(text)
    values = [int(word, 16) for word in found.group(1).split(",")] if found else []
    return frozenset(
        (number, bit)
        for number, value in enumerate(values, start=1)
        if number in _TELLING
        for bit in range(32)
        if value >> bit & 1
    )


def _read4(text: str, policy: Policy, alone: bool) -> Told | None:
    bits = bits_of(text)
    if not bits:
        return None
    rows = {place: _row(place, policy.nvlink4) for place in bits}
    means = sorted({row.means if row else "unlisted" for row in rows.values()})
    shown = ", ".join(f"register {register} bit {bit}" for register, bit in sorted(bits)[:6])
    why = f"{shown}: {', '.join(means)}"
    report = min((row.report for row in rows.values() if row and row.report), default=0)
    if set(means) & set(_AT_FAULT):
        return Told(None, None, why, report)
    if "sympathetic" in means:
        return Told("investigate" if alone else "none", (), f"{why}; follows another error" if not alone else why)
    return Told("none", (), f"{why}; nothing to do now")


def _row(place: tuple[int, int], rows: Iterable[Register]) -> Register | None:
    return next((row for row in rows if row.register == place[0] and place[1] in row.bits), None)


def _read5(code: int, text: str, policy: Policy) -> Told | None:
    found = _LINE5.search(text)
    if found is None:
        return None
    intr, status = int(found.group("intr"), 16), int(found.group("status"), 16)
    rows = _matching(code, found.group("unit"), intr, status, policy.nvlink5)
    if not rows:
        return Told("investigate", (), f"{found.group('unit')} 0x{status:08x} is not in NVIDIA's table")
    words = {row: _immediate(row, intr) for row in rows}
    row = max(rows, key=lambda one: _weight(words[one]))
    why = f"{found.group('unit')} 0x{status:08x}: NVIDIA {words[row]}, then {row.investigatory}"
    if words[row] == "RESET_GPU":
        return Told("reboot", ("replace",) if row.investigatory == "CONTACT_SUPPORT" else ("investigate",), why)
    return Told("none", (), why)


def _matching(code: int, unit: str, intr: int, status: int, rows: Sequence[Decode]) -> list[Decode]:
    """Rows of the unit, and of the reason where there is one. Where no row has this status, those of its bits: the
    status of Xid 144 to 148 has one bit for each error."""
    names = {unit, *unit.split("/")}
    mine = [row for row in rows if row.xid == code and names & {*row.units} and row.reason in (None, intr >> 20 & 0x3F)]
    exact = [row for row in mine if row.status in (None, status)]
    if exact or code > 148:
        return exact
    return [row for row in mine if row.status and row.status & status == row.status]


def _immediate(row: Decode, intr: int) -> str:
    promoted = any(intr & mask == value and intr >> bit & 1 for mask, value, bit in _PROMOTED)
    return row.promoted if row.promoted and promoted else row.nvidia


def _weight(bucket: str) -> int:
    return ("IGNORE", "XID_154_EVAL", "RESET_GPU").index(bucket) if bucket in DECODED else 0
