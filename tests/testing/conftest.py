from __future__ import annotations

import pytest

from nccl_slurm.parse.patterns import Rows, load_rows


@pytest.fixture(scope="session")
def rows() -> Rows:
    return load_rows()
