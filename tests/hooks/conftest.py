from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hooks.site import Site


@pytest.fixture
def site() -> Iterator[Site]:
    if os.geteuid() != 0:
        pytest.skip("hooks run as root")
    folder = Path(tempfile.mkdtemp(prefix="nccl-slurm-hooks-"))
    folder.chmod(0o755)
    site = Site(folder)
    yield site
    site.mark.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # a detached worker may still write into it
