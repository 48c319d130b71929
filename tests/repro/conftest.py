from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.logs import report_of_logs
from nccl_slurm.parse.patterns import Rows, load_rows
from nccl_slurm.repro.plan import Plan, plan

Planned = Callable[..., Plan]


@pytest.fixture(scope="session")
def rows() -> Rows:
    return load_rows()


@pytest.fixture
def reported(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """``reported(job="text", rank3=b"...")``: the report of a folder with these files."""

    def make(**files: str | bytes) -> dict[str, Any]:
        for name, text in files.items():
            (tmp_path / f"{name}.log").write_bytes(text.encode() if isinstance(text, str) else text)
        return report_of_logs(str(tmp_path))

    return make


@pytest.fixture
def planned(reported: Callable[..., dict[str, Any]], rows: Rows) -> Planned:
    return lambda **files: plan(reported(**files), rows)
