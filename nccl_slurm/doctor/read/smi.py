"""``nvidia-smi -q -x``: all that is judged of a GPU, in the names of any driver branch. None: not told.

The XML and not ``--query-gpu``: one field that a driver does not know makes it refuse the whole CSV query.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

from nccl_slurm.capture import gpu as base

__all__ = ["Gpu", "Process", "Smi", "read"]

_NUMBER = re.compile(r"-?([0-9]{1,9})(?:\.[0-9]{1,6})?(?: ?[A-Za-z%]+)?\Z")
_WATTS = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)(?: W)?\Z")
_ABSENT = {"", "n/a", "[n/a]", "not supported", "[not supported]", "unknown", "[unknown error]", "err!"}
#: What NVML tells in the place of a value: that the GPU can't be reached (NVML_ERROR_GPU_IS_LOST, ..._RESET_REQUIRED),
#: or that reading it failed.
_LOST = re.compile(r"\[?gpu (?:is lost|requires reset)\]?\Z", re.IGNORECASE)
_FAILED = re.compile(r"\[?(?:unknown error|gpu (?:is lost|requires reset))\]?\Z|err!\Z", re.IGNORECASE)
#: Of these one at least is told of a GPU that answers.
_VALUES = (
    "temperature/gpu_temp",
    "clocks/sm_clock",
    "max_clocks/sm_clock",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen",
)
_ECC = (
    *(
        f"ecc_errors/volatile/{name}"
        for name in (
            "dram_uncorrectable",
            "sram_uncorrectable",
            "sram_uncorrectable_parity",
            "sram_uncorrectable_secded",
            "double_bit/total",
        )
    ),
    "ecc_errors/aggregate/sram_threshold_exceeded",
    "ecc_errors/unrepairable_memory",
)


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    bus: str | None
    mib: int | None = None


@dataclass(frozen=True)
class Gpu:
    """``volatile``, ``aggregate``: uncorrected ECC errors since the driver was loaded, and of the board's life.

    ``remapped``: rows that are, by uncorrectable errors. ``repairs``: what of the board waits for a reset to be
    repaired. ``resets``: resets that the driver asks for in the words before ``recovery``. ``throttle``: reasons that
    are active. ``fabric``: state and status of its registration with the NVSwitch fabric, ``health``: what is told of
    its ways there. Clocks in MHz, power in W, ``width`` in lanes.

    ``lost``: the words in which the driver says that it can't reach this GPU. ``mute``: those in the place of all its
    values. ``ecc_failed``: counts of errors that could not be read.
    """

    index: int
    bus: str | None
    uuid: str | None = None
    name: str | None = None
    vbios: str | None = None
    ecc: str | None = None
    volatile: int | None = None
    aggregate: int | None = None
    sram_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failure: bool | None = None
    remapped: int | None = None
    retired_pending: bool | None = None
    unrepairable: bool | None = None
    repairs: tuple[str, ...] = ()
    recovery: str | None = None
    resets: tuple[str, ...] = ()
    throttle: tuple[str, ...] | None = None
    fabric: tuple[str | None, str | None] = (None, None)
    health: tuple[tuple[str, str], ...] = ()
    gen: int | None = None
    gen_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    clock: int | None = None
    clock_max: int | None = None
    power_limit: float | None = None
    power_default: float | None = None
    temperature: int | None = None
    mig: bool | None = None
    persistence: bool | None = None
    lost: str = ""
    mute: str = ""
    ecc_failed: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"GPU {self.index}" + (f" ({self.bus})" if self.bus else "")


@dataclass(frozen=True)
class Smi:
    """``gpus`` None with ``why``: no answer that can be read."""

    gpus: Sequence[Gpu] | None
    processes: Sequence[Process] = ()
    driver: str | None = None
    cuda: str | None = None
    why: str = ""


@lru_cache(maxsize=2)
def read(text: str) -> Smi:
    """The same text as `capture.gpu.parse`, whose reading of ECC, rows and throttle reasons is taken over. A dozen
    checks ask for one node's, one after the other: it is read once."""
    found = base.parse(text)
    if found.gpus is None:
        return Smi(None, why=found.gaps[0].why if found.gaps else "nvidia-smi: no answer")
    log = _log(text)
    nodes = log.findall("gpu") if log is not None else []
    gpus = [_gpu(one, node) for one, node in zip(found.gpus, nodes, strict=False)]
    processes = [
        Process(one["pid"], str(one["name"] or "?"), one["bus_id"], one["used_mib"])
        for one in found.processes or ()
        if one["pid"]
    ]
    return Smi(gpus, processes, found.driver, None if log is None else _word(log, "cuda_version"))


def _log(text: str) -> ElementTree.Element | None:
    """Without its DOCTYPE, so that there are no entities."""
    start, end = text.find("<nvidia_smi_log>"), text.rfind("</nvidia_smi_log>")
    try:
        return ElementTree.fromstring(text[start:end] + "</nvidia_smi_log>")  # noqa: S314 # see above
    except ElementTree.ParseError:
        return None


def _gpu(one: dict[str, Any], node: ElementTree.Element) -> Gpu:
    throttle, remapped, ecc = one["throttle_reasons"], one["remapped"], one["ecc"]
    return Gpu(
        index=one["index"],
        bus=one["bus_id"],
        uuid=one["uuid"],
        name=one["name"],
        vbios=_word(node, "vbios_version"),
        ecc=_word(node, "ecc_mode/current_ecc"),
        volatile=ecc["volatile_uncorrected"],
        aggregate=ecc["aggregate_uncorrected"],
        sram_exceeded=ecc["sram_threshold_exceeded"],
        remap_pending=remapped["pending"],
        remap_failure=remapped["failure"],
        remapped=remapped["uncorrectable"],
        retired_pending=_flag(node, "retired_pages/pending_retirement", "retired_pages/pending_blacklist"),
        unrepairable=_flag(node, "ecc_errors/unrepairable_memory"),
        repairs=_yes(node, "ecc_errors", ("channel_repair_pending", "tpc_repair_pending")),
        recovery=_failure(node, "gpu_recovery_action") or one["recovery_action"],
        resets=_yes(node, "gpu_reset_status", ("reset_required", "drain_and_reset_recommended")),
        throttle=None if throttle is None or not _tells_reasons(node) else tuple(throttle),
        fabric=(_word(node, "fabric/state"), _word(node, "fabric/status")),
        health=_health(node),
        **_links(node),
        **_rates(node),
        temperature=_whole(node, "temperature/gpu_temp"),
        mig=_enabled(_word(node, "mig_mode/current_mig")),
        persistence=_enabled(_word(node, "persistence_mode")),
        lost=next((word for word in _texts(node) if _LOST.match(word)), ""),
        mute=_mute(node),
        ecc_failed=tuple(path.split("/", 1)[1] for path in _ECC if _failure(node, path)),
    )


def _texts(node: ElementTree.Element) -> Iterator[str]:
    return ((one.text or "").strip()[:60] for one in node.iter())


def _failure(node: ElementTree.Element, path: str) -> str:
    """The words that stand there because reading it failed; else empty."""
    word = (node.findtext(path) or "").strip()[:60]
    return word if _FAILED.match(word) else ""


def _mute(node: ElementTree.Element) -> str:
    if any(_whole(node, path) is not None for path in _VALUES):
        return ""
    return next((word for word in _texts(node) if _FAILED.match(word)), "")


def _yes(node: ElementTree.Element, group: str, names: Sequence[str]) -> tuple[str, ...]:
    """Those of a group that are said to be so; where a driver has given one up, it says that in a sentence."""
    return tuple(name for name in names if base.flag(_word(node, f"{group}/{name}")))


def _health(node: ElementTree.Element) -> tuple[tuple[str, str], ...]:
    """Of drivers from 570 on, in order; what is not told is left out."""
    told = node.find("fabric/health")
    words = [] if told is None else [(one.tag, _word(told, one.tag)) for one in told]
    return tuple((name[:60], word) for name, word in words if word is not None)


def _tells_reasons(node: ElementTree.Element) -> bool:
    """Of the hardware: at least one with *Active* or *Not Active*."""
    groups = [node.find(f"clocks_{name}_reasons") for name in ("event", "throttle")]
    words = {
        (one.text or "").strip().lower() for group in groups if group is not None for one in group if "_hw_" in one.tag
    }
    return bool(words) and words <= {"active", "not active"}


def _links(node: ElementTree.Element) -> dict[str, int | None]:
    info = "pci/pci_gpu_link_info"
    return {
        "gen": _whole(node, f"{info}/pcie_gen/current_link_gen"),
        "gen_max": _whole(node, f"{info}/pcie_gen/max_link_gen"),
        "width": _whole(node, f"{info}/link_widths/current_link_width"),
        "width_max": _whole(node, f"{info}/link_widths/max_link_width"),
    }


def _rates(node: ElementTree.Element) -> dict[str, Any]:
    """``power_readings`` and ``power_limit`` before driver 535."""
    limits = ("gpu_power_readings/current_power_limit", "power_readings/power_limit")
    defaults = ("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")
    return {
        "clock": _whole(node, "clocks/sm_clock"),
        "clock_max": _whole(node, "max_clocks/sm_clock"),
        "power_limit": _watts(node, *limits),
        "power_default": _watts(node, *defaults),
    }


def _word(node: ElementTree.Element, path: str) -> str | None:
    value = (node.findtext(path) or "").strip()
    return None if value.lower() in _ABSENT else value[:200]


def _whole(node: ElementTree.Element, path: str) -> int | None:
    match = _NUMBER.match((_word(node, path) or "").removesuffix("x"))
    return int(match.group(1)) if match and not match.group(0).startswith("-") else None


def _watts(node: ElementTree.Element, *paths: str) -> float | None:
    for path in paths:
        match = _WATTS.match(_word(node, path) or "")
        if match:
            return float(match.group(1))
    return None


def _flag(node: ElementTree.Element, *paths: str) -> bool | None:
    told = [base.flag(_word(node, path)) for path in paths]
    return None if all(one is None for one in told) else any(told)


def _enabled(word: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((word or "").lower())
