"""slurm/nccl-slurm-node: what it starts, with which environment, and what it does where something is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.hooks.site import CHECKOUT, Site

WRAPPER = CHECKOUT / "slurm" / "nccl-slurm-node"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-eu", WRAPPER, *arguments], env={}, capture_output=True, text=True, check=False, timeout=20
    )


@pytest.fixture
def python(site: Site) -> Path:
    return site.script("python", 'echo "$@"; env | sort; nice')


def test_starts_the_worker_isolated_with_the_configuration_exported(site: Site, python: Path) -> None:
    site.configure(PYTHON=str(python), SHARED="/a b")
    done = run("--conf", str(site.conf), "sweep")
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert lines[0] == f"-I -S {site.prefix}/nccl_slurm/capture/main.py sweep"
    assert {f"NCCL_SLURM_CONF={site.conf}", "NCCL_SLURM_SHARED=/a b"} <= set(lines)
    assert int(lines[-1]) >= 10


def test_ends_the_worker_at_the_limit(site: Site) -> None:
    site.configure(PYTHON=str(site.script("python", "sleep 20")), WORKER_LIMIT_S="0.2")
    assert run("--conf", str(site.conf), "sweep").returncode == 124


@pytest.mark.parametrize("arguments", [[], ["--conf"], ["--conf", "x"]])
def test_usage(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode in (1, 2) and done.stderr.count("\n") == 1


def test_a_missing_configuration_is_one_line(site: Site) -> None:
    done = run("--conf", "/nonexistent", "sweep")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "nccl-slurm-node: /nonexistent can't be read; nothing done\n"


def test_a_missing_python_is_no_traceback(site: Site) -> None:
    site.configure(PYTHON="/nonexistent")
    done = run("--conf", str(site.conf), "sweep")
    assert done.returncode == 127 and "Traceback" not in done.stderr
