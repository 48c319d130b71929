"""Pattern rows of this node, read once a process: that costs more than the reading of a small run."""

from __future__ import annotations

from functools import lru_cache

from nccl_slurm.capture.conf import Conf
from nccl_slurm.parse.patterns import Rows, load_rows

__all__ = ["rows"]


def rows(conf: Conf) -> Rows:
    """Raises ConfigError (a node without compiled rows whose Python reads no TOML)."""
    return _rows(conf.patterns)


@lru_cache(maxsize=1)
def _rows(path: str) -> Rows:
    return load_rows(path or None)
