"""JSON as its standard has it, with numbers that a clock or a counter can hold.

Python's reader also takes NaN, makes infinity of ``1e999``, and reads integers of any length. A whole number may be
written ``3.0``, also for JSON Schema: it becomes an int here, so that it prints as one.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["loads"]

#: Of a 64-bit integer, with its sign.
_INT_DIGITS, _BEYOND = 20, 1 << 64


def loads(data: bytes) -> Any:
    """UTF-8 alone. Raises ValueError."""
    try:
        return json.loads(data.decode(), parse_constant=_no_number, parse_float=_float, parse_int=_int)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _no_number(digits: str) -> int:
    raise ValueError(f"{digits[:40]} is no number")


def _float(digits: str) -> float | int:
    value = float(digits)
    if abs(value) >= _BEYOND:
        return _no_number(digits)
    return int(value) if value.is_integer() else value


def _int(digits: str) -> int:
    """What has more digits than a 64-bit integer can't be added to a float."""
    return int(digits) if len(digits) <= _INT_DIGITS else _no_number(digits)
