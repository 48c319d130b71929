"""``dcgmi health --check`` as JSON or as its box: overall word and what each GPU's subsystem says.

Words are Healthy, Warning, Failure (dcgmi/Health.cpp of DCGM 4). Without watches DCGM has looked at nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Health", "Incident", "read"]

Word = Literal["Healthy", "Warning", "Failure"]
_WORDS: Mapping[str, Word] = {
    "healthy": "Healthy",
    "pass": "Healthy",
    "warning": "Warning",
    "warn": "Warning",
    "failure": "Failure",
    "fail": "Failure",
}
_OVERALL = re.compile(r"Overall Health:?[ |:]*([A-Za-z]+)", re.IGNORECASE)
_LINE = re.compile(
    r"[|\s>-]*((?:PCIe|NVLINK|PMU|MCU|Memory|SM|InfoROM|Thermal|Power|Driver|ConnectX|NvSwitch)[^|:]{0,30})"
)
_MAX = 200


@dataclass(frozen=True)
class Incident:
    """``where``: ``GPU 3``. ``system``: ``Memory system``."""

    where: str
    system: str
    word: Word
    text: str = ""


@dataclass(frozen=True)
class Health:
    """``overall`` None with ``why``: nothing was judged by DCGM."""

    overall: Word | None
    incidents: Sequence[Incident] = ()
    why: str = ""


def read(text: str) -> Health:
    if "watches not enabled" in text.lower():
        return Health(None, why="DCGM's health watches are not enabled, so it has looked at nothing")
    value = _json(text)
    if value is not None:
        return _of_json(value)
    found = _OVERALL.search(text)
    overall = _WORDS.get(found.group(1).lower()) if found else None
    if overall is None:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no answer")
        return Health(None, why=f"dcgmi: {first[:_MAX]}")
    return Health(overall, tuple(_of_box(text)))


def _json(text: str) -> Any:
    start = text.find("{")
    try:
        value = json.loads(text[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _of_json(value: Mapping[str, Any]) -> Health:
    body = _dict(value.get("body"))
    overall = next((one for key, one in body.items() if key.lower().startswith("overall health")), None)
    word = _word(overall)
    if word is None:
        return Health(None, why="dcgmi: JSON without an overall health")
    return Health(word, tuple(_incidents(body))[:_MAX])


def _incidents(body: Mapping[str, Any]) -> Iterator[Incident]:
    """body → entity kind → children → number → children → Errors → children → system → value, overflow."""
    for kind, group in body.items():
        for number, entity in _children(group).items():
            for system, said in _children(_children(entity).get("Errors")).items():
                word = _word(said)
                if word is not None and word != "Healthy":
                    lines = _dict(said).get("overflow")
                    text = " ".join(str(one) for one in lines) if isinstance(lines, list) else ""
                    yield Incident(f"{kind} {number}", system, word, text[:_MAX])


def _of_box(text: str) -> Iterator[Incident]:
    """``| GPU ID: 0 | Warning |`` and ``| | PCIe system: Warning - words |``; newer: ``| -> 0 -> Errors | |``."""
    where = "?"
    for line in text.splitlines():
        gpu = re.search(r"GPU(?: ID)?[:\s|>-]*([0-9]{1,3})\b", line)
        where = f"GPU {gpu.group(1)}" if gpu else where
        system, word = _LINE.match(line), re.search(r"\b(Warning|Failure|Fail|Warn)\b", line)
        if system and word:
            rest = line[word.end() :].strip(" |-")
            yield Incident(where, system.group(1).strip(), _WORDS[word.group(1).lower()], rest[:_MAX])


def _word(value: Any) -> Word | None:
    return _WORDS.get(str(_dict(value).get("value", value)).strip().lower())


def _children(value: Any) -> Mapping[str, Any]:
    return _dict(_dict(value).get("children"))


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
