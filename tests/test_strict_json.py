"""JSON of nodes and of Slurm: what the standard has, and no number that can't be counted with."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm import strict_json

TOP = (1 << 64) - 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"3", 3),
        (b"3.0", 3),
        (b"-0.0", 0),
        (b"3.5", 3.5),
        (b"1e3", 1000),
        (b'{"a": [1.0, {"b": 2.0}], "c": "3.0"}', {"a": [1, {"b": 2}], "c": "3.0"}),
        (b"%d" % TOP, TOP),
        (b"-9223372036854775808", -(1 << 63)),
        ('"\u00e4\u20ac"'.encode(), "\u00e4\u20ac"),
        (rb'{"name\udcff": 3.0, "n": 1.5}', {"name\udcff": 3, "n": 1.5}),  # a file's name that is not UTF-8
        (rb'["\uD83D\uDE00"]', ["\U0001f600"]),
    ],
)
def test_read(text: bytes, expected: Any) -> None:
    found = strict_json.loads(text)
    assert found == expected and repr(found) == repr(expected)


@pytest.mark.parametrize("lone", [False, True])
@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e20", "1" + "0" * 400, str(1 << 64), "0x1", "01", "1."],
)
def test_what_is_no_number(number: str, lone: bool) -> None:
    with pytest.raises(ValueError):
        strict_json.loads(f'{{"a": {number}, "b": {json.dumps(chr(0xDCFF)) if lone else 1}}}'.encode())


@pytest.mark.parametrize(
    "text", [b"", b"{", b'"\xff"', b"[1,]", b"[" * 200_000, b'["\\ud800"' + b"," * 9, b"\xef\xbb\xbf1"]
)
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(ValueError):
        strict_json.loads(text)


def test_what_is_made_of_such_numbers_may_be_larger() -> None:
    """A report adds times and uncertainties of records, and is read again."""
    twice = json.dumps([2 * TOP]).encode()
    assert strict_json.loads(twice, strict_json.BEYOND * 1024) == [int(2.0 * TOP)]
    with pytest.raises(ValueError, match="no number"):
        strict_json.loads(twice)


@given(st.binary(max_size=100) | st.text(alphabet='[]{}",:\\ud80123.eE-+ ', max_size=60).map(str.encode))
def test_any_bytes_give_a_value_or_a_value_error(data: bytes) -> None:
    try:
        found = strict_json.loads(data)
    except ValueError:
        return
    assert json.loads(data) == found
