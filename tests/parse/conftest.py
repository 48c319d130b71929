from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_slurm.model import Fact, Parsed
from nccl_slurm.parse.folder import Source, read_sources
from nccl_slurm.parse.patterns import DATA, Rows, load_rows

Read = Callable[..., Parsed]

NOW = 1_790_000_000.0  # 21 September 2026


@pytest.fixture(scope="session")
def rows() -> Rows:
    return load_rows()


@pytest.fixture(scope="session")
def patterns_toml() -> str:
    return (Path(DATA) / "patterns.toml").read_text()


def source(
    name: str,
    text: str | bytes,
    *,
    host: str | None = None,
    trust: str = "job",
    size: int = -1,
    mtime: float = 0.0,
) -> Source:
    raw = text.encode() if isinstance(text, str) else text
    return Source(name, lambda: io.BytesIO(raw), len(raw) if size < 0 else size, mtime, host, trust)


@pytest.fixture
def read(rows: Rows) -> Read:
    """``read(("name", "text"), …)`` or ``read(source(…), …)``."""

    def run(*files: tuple[str, str | bytes] | Source) -> Parsed:
        return read_sources([one if isinstance(one, Source) else source(*one) for one in files], rows, now=NOW)

    return run


def kinds(parsed: Parsed) -> list[str]:
    return [fact.kind for fact in parsed.facts]


def one(parsed: Parsed, kind: str) -> Fact:
    found = [fact for fact in parsed.facts if fact.kind == kind]
    assert len(found) == 1, (kind, kinds(parsed))
    return found[0]
