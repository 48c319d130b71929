"""Kernel log → facts: Xid, SXid, lost GPUs, OOM kills, links, file systems, machine checks."""

from __future__ import annotations

import re
from typing import Any, Iterable

from nccl_slurm.model import Fact
from nccl_slurm.parse.finding import Finding, find, host_name
from nccl_slurm.parse.patterns import Rows, load_rows

__all__ = ["Pending", "kernel_facts", "spoken_by_the_kernel"]

TEXT_LIMIT = 1000
#: The kernel's clock against the wall clock drifts by about this much over weeks of uptime.
UNCERTAINTY_S = 1.0
_NAMED, _LOST = "kernel.gpu-named", "kernel.gpu-lost"
#: The kernel's words about a faulting program hold its name and a file's name, which any user chooses: one called
#: ``NVRM: Xid (PCI:…): 79`` must not become an Xid. Such lines begin with the program's name and pid.
_OF_A_PROGRAM = re.compile(
    r"^(?:traps: )?.{0,32}\[\d+\](?::| ).{0,40}(?:segfault|trap |protection|fault|bad |potentially)"
)
#: Who speaks of GPUs and their links in the kernel log.
_GPU_DRIVERS = ("NVRM: ", "nvidia", "NVSwitch", "[drm")


def kernel_facts(lines: Iterable[tuple[float | None, str]], host: str, rows: Rows | None = None) -> list[Fact]:
    """Facts of trust ``root`` from (seconds since 1970 or None, message). Lines of no interest give none.

    ``rows``: as `read_sources` uses them; None loads the package's own. Raises ConfigError only for that load.
    """
    rows = load_rows() if rows is None else rows
    pending = Pending()
    found = []
    for number, (seconds, text) in enumerate(lines, start=1):
        finding = find(text, rows)
        if finding is None or finding.producer != "kernel" or not spoken_by_the_kernel(text, finding.hint):
            continue
        finding = pending.join(finding)
        if finding is not None:
            found.append(_fact(finding, number, seconds, text, host))
    return found


def spoken_by_the_kernel(text: str, hint: str | None) -> bool:
    """Not quoted from a user's choice; what speaks of GPUs stands at the start of its message."""
    if _OF_A_PROGRAM.match(text):
        return False
    return not (hint or "").startswith(("gpu-", "nvlink")) or text.lstrip().startswith(_GPU_DRIVERS)


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
