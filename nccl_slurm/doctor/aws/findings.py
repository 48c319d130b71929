"""Lines of HyperPod's own health checks in CloudWatch Logs → what they say. Never raises: they are text of a service
that changes its form (``details`` and ``details: `` are both seen), and hold kernel lines of nodes.

Streams: ``SagemakerHealthMonitoringAgent/<group>/<instance id>``, ``DeepHealthCheckResults/<id>`` (AWS, HyperPod
resiliency).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["AGENT", "DEEP_CHECKS", "DETECTION", "NONE", "NOT", "Detection", "Result", "read_detection", "read_result"]

AGENT, DEEP_CHECKS = "SagemakerHealthMonitoringAgent/", "DeepHealthCheckResults/"
#: What CloudWatch is asked to filter by.
DETECTION = "HealthMonitoringAgentDetectionEvent"

_INSTANCE = re.compile(r"i-[0-9a-f]{8}(?:[0-9a-f]{9})?(?![0-9a-z])")
#: *None of them* in the words of people and of JSON.
_EMPTY = r"\[\s*\]|\{\s*\}|none\b|null\b"
#: A number after what is listed one by one is one of them: *failed gpus: 0*.
NONE = (
    rf"(?!(?:[\W_]{{0,4}}(?:tests|checks|count))?\W{{0,4}}(?:{_EMPTY}|0\b|false\b))"
    rf"(?![\W_]{{0,4}}(?:gpus|nodes|instances|devices)\W{{0,4}}(?:{_EMPTY}))"
)
NOT = r"(?<!\bno )(?<!\b0 )(?<!\bnot )(?<!\bwithout )"
_FAULTY = re.compile(
    rf"{NOT}faulty[ _]?instance\w*\b{NONE}|{NOT}health ?check failed\b{NONE}|(?<!latency )less than threshold"
    rf"|\b(?:dcgm|nccl|efa|gpu|nvlink|bandwidth|stress)\b.{{0,80}}?{NOT}\bfail(?:ed|ures?)\b{NONE}",
    re.IGNORECASE,
)
#: What makes good what stands before it: the next attempt passed; of a threshold, its own test did.
_AGAIN = re.compile(
    r"[;,.] ?(?:the )?(?:(?:next|second|last) )?(?:attempt|retry|try)(?: [0-9]{1,2})? (?:pass(?:ed)?|succeeded)\b",
    re.IGNORECASE,
)
_WITHIN = re.compile(r"[^;.\n]{0,40}?[:=,] ?(?:pass(?:ed)?|ok)\b", re.IGNORECASE)
#: Of the whole, not of one of its tests.
_PASSED = re.compile(
    rf"\bdeep ?health ?checks?\b.{{0,40}}?{NOT}\b(?:pass(?:ed)?|succeeded|complet\w+ successfully)\b(?! 0\b)",
    re.IGNORECASE,
)
_READ_MAX = 1 << 16
_BAD_LEVELS = ("error", "fatal", "critical")


@dataclass(frozen=True)
class Detection:
    """``reason``: XidHardwareFailure, XidUserAppError …; ``text``: the condition and the kernel's line. Hostile."""

    time: float | None
    instance: str | None
    reason: str | None
    text: str


@dataclass(frozen=True)
class Result:
    """``bad``: it speaks of a faulty instance. ``unclear``: an error that names no fault, as of an upload. ``passed``:
    the check as a whole went well.
    ``time``: seconds since 1970."""

    time: float | None
    instance: str | None
    bad: bool
    text: str
    unclear: bool = False
    passed: bool = False


def read_detection(event: Mapping[str, Any]) -> Detection | None:
    """None where the line is no detection: the filter of CloudWatch matches words."""
    message = _message(event)
    if DETECTION not in message:
        return None
    tree = _tree(message)
    details = next((value for key, value in tree.items() if key.strip(" :").lower() == "details"), None)
    told = details if isinstance(details, Mapping) else {}
    reason, text = told.get("reason"), told.get("message")
    return Detection(
        time=_time(event),
        instance=_instance(event, message),
        reason=reason if isinstance(reason, str) and reason else None,
        text=text if isinstance(text, str) and text else message,
    )


def read_result(event: Mapping[str, Any]) -> Result:
    message = _message(event)
    tree = _tree(message)
    text = tree.get("msg")
    level = str(tree.get("level") or "").lower()
    bad = _is_faulty(message[:_READ_MAX])
    said = text if isinstance(text, str) and text else message
    unclear = not bad and level in _BAD_LEVELS
    passed = not bad and not unclear and _PASSED.search(message[:_READ_MAX]) is not None
    return Result(_time(event), _instance(event, message), bad, said, unclear, passed)


def _is_faulty(text: str) -> bool:
    return any(not _is_good(found.group(), text, found.end()) for found in _FAULTY.finditer(text))


def _is_good(said: str, text: str, end: int) -> bool:
    return bool(_AGAIN.match(text, end) or (said.lower().endswith("threshold") and _WITHIN.match(text, end)))


def _message(event: Mapping[str, Any]) -> str:
    message = event.get("message")
    return message if isinstance(message, str) else ""


def _tree(message: str) -> dict[str, Any]:
    try:
        value = json.loads(message)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _instance(event: Mapping[str, Any], message: str) -> str | None:
    """By the stream's name; in a deep check's stream the lines may tell it."""
    stream = event.get("logStreamName")
    for text in (stream if isinstance(stream, str) else "", message):
        found = _INSTANCE.findall(text)
        if found:
            return str(found[-1] if text is stream else found[0])
    return None


def _time(event: Mapping[str, Any]) -> float | None:
    """CloudWatch counts milliseconds."""
    at = event.get("timestamp")
    return at / 1000.0 if isinstance(at, int) and not isinstance(at, bool) else None
