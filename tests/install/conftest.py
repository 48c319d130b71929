from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.install.staging import Installer, copy_checkout


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("source") / "checkout")


@pytest.fixture
def installer(frozen: Path, tmp_path: Path) -> Installer:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    return Installer(frozen, root)


@pytest.fixture(scope="session")
def wheels(frozen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As somebody with a package index makes them for a controller without one."""
    folder, source = tmp_path_factory.mktemp("wheels"), copy_checkout(tmp_path_factory.mktemp("build") / "checkout")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "-w", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1:]}")
    return folder
