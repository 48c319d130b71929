"""All checks: one line a family. Modules are imported when asked for: ``--local`` must not pay for AWS.

A module named here has ``CHECKS``, a sequence of `check.Check`. What its area's checks are given:

    scheduler   `checks.scheduler.observed.SlurmObserved`
    node        `observation.Observation`, node by node
    job         `observation.JobObserved`
    fleet       `observation.Fleet`
    aws         see `doctor.aws`
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nccl_slurm.doctor.check import Area, Check

__all__ = ["FAMILIES", "checks"]

#: In the order in which findings of the same weight are told.
FAMILIES: Mapping[Area, Sequence[str]] = {
    "scheduler": ("scheduler.control", "scheduler.nodes", "scheduler.hooks", "scheduler.jobs", "scheduler.settings"),
    "node": (
        "node.kernel",
        "node.gpu",
        "node.nvswitch",
        "node.fabric",
        "node.paths",
        "node.bus",
        "node.network",
        "node.software",
        "node.limits",
        "node.system",
    ),
    "job": ("job.environment", "job.variables", "job.limits", "job.output", "job.transport"),
    "fleet": ("fleet.reached", "fleet.versions", "fleet.bandwidth", "fleet.stragglers"),
}


def checks(*areas: Area) -> Iterator[Check[Any]]:
    for area in areas:
        if area == "aws":
            yield from _of_aws()
        for name in FAMILIES.get(area, ()):
            yield from importlib.import_module(f"nccl_slurm.doctor.checks.{name}").CHECKS


def _of_aws() -> Iterator[Check[Any]]:
    with suppress(ModuleNotFoundError):
        yield from importlib.import_module("nccl_slurm.doctor.aws.checks").checks()
