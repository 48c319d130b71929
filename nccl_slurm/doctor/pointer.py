"""From a finding to its section of the guide, and to the commands there, filled with what was found."""

from __future__ import annotations

import importlib
from collections.abc import Container
from typing import Any

from nccl_slurm.doctor.check import Finding
from nccl_slurm.doctor.reader import Reader
from nccl_slurm.errors import InputError
from nccl_slurm.recommend.site import Site

__all__ = ["commands", "pointer", "section"]


def pointer(check: str) -> str:
    return f"nccl-slurm explain {check}"


def section(check: str) -> Any:
    """`guide.Section`; None where the guide has none."""
    try:
        return importlib.import_module("nccl_slurm.doctor.guide").section(check)
    except (ImportError, InputError):
        return None


def commands(
    finding: Finding, site: Site | None = None, compute: Container[str] = (), reader: Reader | None = None
) -> tuple[str, ...]:
    """For a person to run. Empty for what is no fault, and for what follows from another finding."""
    if finding.status not in ("FAIL", "WARN", "UNKNOWN") or finding.explained_by or section(finding.check) is None:
        return ()
    guide = importlib.import_module("nccl_slurm.doctor.guide")
    return tuple(guide.suggested(finding, site=site, compute=compute, reader=reader))
