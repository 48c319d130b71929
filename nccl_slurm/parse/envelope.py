"""What a container runtime or a log shipper puts around a line: docker's json-file, CRI, fluent-bit, journald's JSON.

The line itself is inside, escaped. Runtimes print the time with its zone; the line inside may have its own stamp.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping, NamedTuple

__all__ = ["Envelope", "open_envelope"]

_TEXT = ("log", "message", "msg", "MESSAGE")
_STAMP = ("time", "timestamp", "@timestamp", "ts", "date", "__REALTIME_TIMESTAMP")
_CRI = re.compile(
    r"(?P<stamp>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) std(?:out|err) [FP](?::\S{0,20})? ?"
)
#: Docker cuts long lines and a scan shows a part of them: an object that has no end still has its text.
_CUT = re.compile(r'"(?:log|message|msg|MESSAGE)" ?: ?"(?P<text>(?:[^"\\]|\\.)*)')
_EPOCH = re.compile(r"1\d{9}(?:\.\d{1,9})?\Z")
_MICROSECONDS = re.compile(r"1\d{15}\Z")
#: Shippers wrap what a runtime has wrapped already.
_DEPTH = 3


class Envelope(NamedTuple):
    """``text``: the line inside. ``stamp``: as printed, or seconds since 1970 as text. ``host``: by the shipper."""

    text: str
    stamp: str | None = None
    host: str | None = None


def open_envelope(line: str) -> Envelope | None:
    """None for a line that has no envelope. Never raises."""
    found: Envelope | None = None
    text = line
    for _ in range(_DEPTH):
        inner = _json(text) if text.lstrip()[:1] == "{" else _cri(text)
        if inner is None:
            break
        text = inner.text
        found = Envelope(text, inner.stamp or (found and found.stamp), inner.host or (found and found.host))
    return found


def _cri(text: str) -> Envelope | None:
    match = _CRI.match(text)
    return None if match is None else Envelope(text[match.end() :], match.group("stamp"))


def _json(text: str) -> Envelope | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _cut(text)
    if not isinstance(value, dict):
        return None
    said = next((value[key] for key in _TEXT if isinstance(value.get(key), str)), None)
    return None if said is None else Envelope(said.rstrip("\r\n"), _stamp(value), _host(value))


def _cut(text: str) -> Envelope | None:
    match = _CUT.search(text)
    if match is None:
        return None
    try:
        return Envelope(str(json.loads('"' + match.group("text") + '"', strict=False)).rstrip("\r\n"))
    except ValueError:
        return None


def _stamp(value: Mapping[str, Any]) -> str | None:
    for key in _STAMP:
        text = str(value[key]) if isinstance(value.get(key), (str, int, float)) else ""
        if _MICROSECONDS.match(text):
            return f"{text[:10]}.{text[10:]}"
        if _EPOCH.match(text) or text[4:5] == "-":
            return text[:60]
    return None


def _host(value: Mapping[str, Any]) -> str | None:
    """The node that a Kubernetes shipper or journald names; ``host`` alone is often the collector's."""
    kubernetes = value.get("kubernetes")
    host = kubernetes.get("host") if isinstance(kubernetes, dict) else value.get("_HOSTNAME")
    return host if isinstance(host, str) else None
