from __future__ import annotations

import pytest

from nccl_slurm.info.split import split
from nccl_slurm.info.teller import Teller, told


@pytest.mark.parametrize(
    ("said", "values", "odd"),
    [
        ([], None, ()),
        ([(0, "a")], None, ()),
        ([(0, "a"), (1, "a")], None, ()),
        ([(0, "a"), (1, "b")], {"a": (0,), "b": (1,)}, ()),
        ([(0, "a"), (1, "b"), (2, "a")], {"a": (0, 2), "b": (1,)}, (1,)),
        ([(0, "a"), (1, "b"), (2, "a"), (3, "b")], {"a": (0, 2), "b": (1, 3)}, ()),
        ([(0, "a"), (1, "b"), (2, "c")], {"a": (0,), "b": (1,), "c": (2,)}, ()),
        ([(0, "a"), (1, "a"), (2, "b"), (3, "c")], {"a": (0, 1), "b": (2,), "c": (3,)}, ()),
        ([("n1", "a"), ("n2", "a"), ("n3", "b")], {"a": ("n1", "n2"), "b": ("n3",)}, ("n3",)),
        # a rank that says both is not counted
        ([(0, "a"), (1, "a"), (2, "a"), (2, "b")], None, ()),
    ],
)
def test_split(said: list[tuple[Teller, str]], values: dict[str, tuple[Teller, ...]] | None, odd: object) -> None:
    found = split(said)
    assert (None if found is None else dict(found.values)) == values
    assert (() if found is None else found.odd) == odd


@pytest.mark.parametrize(
    ("tellers", "text"),
    [
        ([], ""),
        ([7], "rank 7 (n2)"),
        ([0, 1, 2, 4], "ranks 0-2,4"),
        ([6, 7], "ranks 6-7 (n2)"),
        (["n1", "n2", "n3"], "n[1-3]"),
        ([3, "n9"], "rank 3 and n9"),
    ],
)
def test_told(tellers: list[Teller], text: str) -> None:
    assert told(tellers, {0: "n1", 6: "n2", 7: "n2"}) == text
