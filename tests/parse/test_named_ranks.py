"""A row may know several wordings, each with a group for the rank: all of them are read."""

from __future__ import annotations

import pytest

from nccl_slurm.parse.finding import find
from nccl_slurm.parse.patterns import load_rows

ROWS = load_rows()


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: Rank 7: found NaN in local grad norm in backward pass",
        "Unexpected result nan on rank 7 at iteration #12",
        "AssertionError: Rank 7, node n1, device 3, iteration 12: Unexpected result nan (message=loss)",
    ],
)
def test_each_wordings_rank(text: str) -> None:
    found = find(text, ROWS)
    assert found is not None and found.rank == 7
    assert not any(key.startswith("global_rank") for key in found.data)
