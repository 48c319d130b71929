"""The GPUs as ``nvidia-smi -q -x`` and ``nvidia-smi nvlink --status`` tell them.

The XML form is read because its names have been stable over driver branches, while ``--query-gpu`` refuses a whole
query for one field that a driver does not know. A driver that hangs keeps every query hanging, and queries pile up:
never more than one runs on a node (a lock), each with a time limit.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from nccl_slurm.capture import command
from nccl_slurm.capture.conf import Conf
from nccl_slurm.capture.spool import lock
from nccl_slurm.model import Gap

if TYPE_CHECKING:
    from xml.etree import ElementTree

__all__ = ["DOWN", "Gpus", "bus_id", "count", "flag", "nvlinks", "parse", "query"]

_ABSENT = {"", "n/a", "[n/a]", "not supported", "[not supported]", "unknown", "[unknown error]", "err!"}
_BUS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?\Z", re.IGNORECASE)
_LINK = re.compile(r"\s*Link ([0-9]{1,3}): (.+)")
#: Words of a link that is down.
DOWN = ("inactive", "off", "disabled")
_GPU_LINE = re.compile(r"GPU [0-9]{1,4}: .*\(UUID: ([^)]{1,100})\)")
_MAX_GPUS = 64
_MAX_PROCESSES = 1024
_TEXT = 200


class Gpus(NamedTuple):
    """``gpus`` and ``processes`` are None where not observed; an empty list means that there are none."""

    gpus: list[dict[str, Any]] | None
    driver: str | None
    processes: list[dict[str, Any]] | None
    gaps: list[Gap]


def query(conf: Conf) -> Gpus:
    """Waits for another query of this node up to the limit, then asks. Costs 0.1 s to several seconds."""
    try:
        with lock(_lock_of(conf), conf.gpu_query_limit_s) as held:
            return _asked(conf) if held else _nothing("another GPU query on this node did not end in time")
    except OSError as error:
        return _nothing(f"not asked, since there is no lock: {error.filename}: {error.strerror}")


def _lock_of(conf: Conf) -> str:
    """Whoever may not write the spool, and reads its outbox, has the lock of that: one such query beside root's."""
    return os.path.join(conf.spool, "gpu.lock" if os.access(conf.spool, os.W_OK) else "outbox")


def _asked(conf: Conf) -> Gpus:
    answer = command.run(["nvidia-smi", "-q", "-x"], limit_s=conf.gpu_query_limit_s, limit_bytes=1 << 23)
    if answer.why is not None:
        return _nothing(answer.why)
    found = parse(answer.text)
    if not found.gpus:
        return found
    links = command.run(["nvidia-smi", "nvlink", "--status"], limit_s=conf.gpu_query_limit_s)
    if links.why is not None:
        return found._replace(gaps=[*found.gaps, Gap("nvlink", links.why)])
    by_uuid = nvlinks(links.text)
    for gpu in found.gpus:
        gpu["nvlink"] = by_uuid.get(gpu["uuid"])
    return found


def parse(text: str) -> Gpus:
    """One ``<nvidia_smi_log>``; anything else is a gap with its first line."""
    from xml.etree import ElementTree  # nodes without GPUs need none

    start = text.find("<nvidia_smi_log>")
    end = text.rfind("</nvidia_smi_log>")
    if start < 0 or end < start:
        return _nothing(f"nvidia-smi: no answer in XML: {text.strip()[:_TEXT]}")
    try:
        log = ElementTree.fromstring(text[start:end] + "</nvidia_smi_log>")  # noqa: S314 # root's own command
    except ElementTree.ParseError as error:
        return _nothing(f"nvidia-smi: broken XML: {error}")
    nodes = log.findall("gpu")[:_MAX_GPUS]
    processes: list[dict[str, Any]] = []
    for node in nodes:
        processes += _processes(node)
    return Gpus(
        [_gpu(index, node) for index, node in enumerate(nodes)],
        _word(log, "driver_version"),
        processes[:_MAX_PROCESSES],
        [],
    )


def _nothing(why: str) -> Gpus:
    return Gpus(None, None, None, [Gap("gpus", why)])


def _gpu(index: int, node: ElementTree.Element) -> dict[str, Any]:
    """``minor`` is the N of /dev/nvidiaN, which is what SLURM_JOB_GPUS counts in."""
    return {
        "index": index,
        "minor": count(_word(node, "minor_number")),
        "uuid": _word(node, "uuid"),
        "bus_id": bus_id(node.get("id") or _word(node, "pci/pci_bus_id")),
        "name": _word(node, "product_name"),
        "ecc": {
            "volatile_uncorrected": _uncorrected(node.find("ecc_errors/volatile")),
            "aggregate_uncorrected": _uncorrected(node.find("ecc_errors/aggregate")),
            "sram_threshold_exceeded": flag(_word(node, "ecc_errors/aggregate/sram_threshold_exceeded")),
        },
        "remapped": {
            "correctable": count(_word(node, "remapped_rows/remapped_row_corr")),
            "uncorrectable": count(_word(node, "remapped_rows/remapped_row_unc")),
            "pending": flag(_word(node, "remapped_rows/remapped_row_pending")),
            "failure": flag(_word(node, "remapped_rows/remapped_row_failure")),
        },
        "recovery_action": _word(node, "gpu_recovery_action"),
        "throttle_reasons": _throttle_reasons(node),
        "fabric": _word(node, "fabric/status"),
        "nvlink": None,
    }


def _word(node: ElementTree.Element, path: str) -> str | None:
    value = (node.findtext(path) or "").strip()
    return None if value.lower() in _ABSENT else value[:_TEXT]


def flag(value: str | None) -> bool | None:
    """``Yes No 1 0`` in any case; N/A, [Not Supported] and anything else are *not observed*."""
    return {"yes": True, "1": True, "no": False, "0": False}.get((value or "").strip().lower())


def count(value: str | None) -> int | None:
    match = re.match(r"([0-9]{1,18})(?: \w+)?\Z", value or "")
    return int(match.group(1)) if match else None


def _uncorrected(node: ElementTree.Element | None) -> int | None:
    """Sum of the parts that the driver gives: DRAM, SRAM, and from driver 550 on SRAM as parity and SEC-DED.

    Older drivers give one total (double_bit/total).
    """
    if node is None:
        return None
    names = ("dram_uncorrectable", "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded")
    known = [value for value in (count(_word(node, name)) for name in names) if value is not None]
    return sum(known) if known else count(_word(node, "double_bit/total"))


def _throttle_reasons(node: ElementTree.Element) -> list[str] | None:
    """Reasons that are active. Named clocks_throttle_reasons before driver 535."""
    for name in ("clocks_event_reason", "clocks_throttle_reason"):
        group = node.find(name + "s")
        if group is not None:
            active = [child.tag for child in group if (child.text or "").strip().lower() == "active"]
            return [tag[len(name) + 1 :] if tag.startswith(name) else tag for tag in active][:40]
    return None


def _processes(node: ElementTree.Element) -> list[dict[str, Any]]:
    bus = bus_id(node.get("id"))
    return [
        {
            "pid": count(_word(info, "pid")),
            "name": _word(info, "process_name"),
            "used_mib": count(_word(info, "used_memory")),
            "bus_id": bus,
        }
        for info in node.findall("processes/process_info")
    ]


def bus_id(value: str | None) -> str | None:
    """``00000000:A1:00.0`` (nvidia-smi), ``PCI:0000:a1:00`` (Xid line) → ``0000:a1:00``, the form of Xid lines."""
    match = _BUS.match((value or "").strip().replace("PCI:", ""))
    if match is None:
        return None
    domain = (match.group(1) or "0000").lower()
    return f"{domain[-4:] if int(domain, 16) < 0x10000 else domain}:{match.group(2)}:{match.group(3)}".lower()


def nvlinks(text: str) -> dict[str, dict[str, Any]]:
    """By GPU uuid: how many links are up, and which are not (``<inactive>``, ``Inactive``, ``Off``). Another word
    (``Unknown Error``, ``<N/A>``) tells neither."""
    found: dict[str, dict[str, Any]] = {}
    links: dict[str, Any] = {}
    for line in text.splitlines():
        head, link = _GPU_LINE.match(line), _LINK.match(line)
        if head:
            links = found.setdefault(head.group(1), {"active": 0, "inactive": []})
        elif link and links:
            word = link.group(2).strip()
            if word[:1].isdigit():
                links["active"] += 1
            elif word.strip("<>").lower() in DOWN and len(links["inactive"]) < _MAX_GPUS:
                links["inactive"].append(int(link.group(1)))
    return found
