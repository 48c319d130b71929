"""Kernel log → facts: Xid, SXid, lost GPUs, OOM kills, links, file systems, machine checks.

The kernel quotes what users choose: a program's name (15 bytes at most, and any bytes) and names of files. So only a
record that begins with the driver's own form is the driver's word.
"""

from __future__ import annotations

import re
from typing import Any, Iterable

from nccl_slurm.model import Fact
from nccl_slurm.parse.finding import Finding, find, host_name
from nccl_slurm.parse.patterns import Rows, load_rows

__all__ = ["Pending", "kernel_facts"]

TEXT_LIMIT = 1000
#: The kernel's clock against the wall clock drifts by about this much over weeks of uptime.
UNCERTAINTY_S = 1.0
_NAMED, _LOST = "kernel.gpu-named", "kernel.gpu-lost"
#: A record that begins with a program's name and pid, or quotes a file's name: any user chooses both, so nothing in it
#: is the word of a driver.
_OF_A_PROGRAM = re.compile(r"traps: |process '|.{1,24}?\[\d{1,10}\](?::| )|.{1,24}? ?\(\d{1,10}\): ", re.DOTALL)


def kernel_facts(records: Iterable[tuple[float | None, str]], host: str, rows: Rows | None = None) -> list[Fact]:
    """Facts of trust ``root`` from (seconds since 1970 or None, whole record). Records of no interest give none.

    ``rows``: as `read_sources` uses them; None loads the package's own. Raises ConfigError only for that load.
    """
    rows = load_rows() if rows is None else rows
    numbers = [number for number, row in enumerate(rows.rows) if row.producer == "kernel"]
    pending = Pending()
    found = []
    for number, (seconds, text) in enumerate(records, start=1):
        finding = None if _OF_A_PROGRAM.match(text) else find(text, rows, numbers)
        finding = finding and pending.join(finding)
        if finding is not None:
            found.append(_fact(finding, number, seconds, text, host))
    return found


class Pending:
    """Puts together the message of three lines whose first names the GPU and whose last says that it is lost."""

    def __init__(self) -> None:
        self._pci: Any = None

    def join(self, finding: Finding) -> Finding | None:
        """None for the first of the lines."""
        if finding.kind == _NAMED:
            self._pci = finding.data.get("pci")
            return None
        if finding.kind == _LOST and "pci" not in finding.data and self._pci is not None:
            finding, self._pci = finding._replace(data={**finding.data, "pci": self._pci}), None
        return finding


def _fact(finding: Finding, number: int, seconds: float | None, text: str, host: str) -> Fact:
    return Fact(
        kind=finding.kind,
        text=text[:TEXT_LIMIT],
        producer="kernel",
        role=finding.role,
        trust="root",
        hint=finding.hint,
        line=number,
        host=host_name(host),
        time=seconds,
        uncertainty_s=None if seconds is None else UNCERTAINTY_S,
        data=dict(finding.data),
    )
