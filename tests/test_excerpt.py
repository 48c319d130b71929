"""What is left of a line that is too long holds what it was kept for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.excerpt import excerpt


@pytest.mark.parametrize(
    ("text", "span", "expected"),
    [
        ("short", None, "short"),
        ("a" * 30 + "b" * 30, None, "aaaaaaaaaa...bbbbbbb"),
        ("a" * 30 + "NEEDLE", (30, 36), "...aaaaaaaaaaaNEEDLE"),
        ("NEEDLE" + "a" * 30, (0, 6), "NEEDLEaaaaaaaaaaa..."),
        ("a" * 30 + "NEEDLE" + "b" * 30, (30, 36), "...aaaaaNEEDLEbbb..."),
        ("a" * 5 + "<" + "x" * 40 + ">" + "b" * 5, (5, 47), "...<xxxxx...xxxx>..."),
    ],
)
def test_what_counts_stays(text: str, span: tuple[int, int] | None, expected: str) -> None:
    assert excerpt(text, 20, span) == expected


@given(st.text(min_size=1, max_size=300), st.integers(16, 120), st.data())
def test_it_is_never_longer_and_keeps_what_fits(text: str, limit: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    cut = excerpt(text, limit, (start, end))
    assert len(cut) <= limit
    assert len(excerpt(text, limit)) <= limit
    if end - start <= limit - 6:
        assert text[start:end] in cut
