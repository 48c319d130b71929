"""install.sh by its options, and its package installation on pretended systems. Nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster.harness import CHECKOUT

SCRIPT = CHECKOUT / "install.sh"
TOOLS = (
    "bash",
    "sh",
    "dirname",
    "readlink",
    "id",
    "mktemp",
    "tail",
    "rm",
    "cat",
    "chmod",
    "env",
    "timeout",
    "sha256sum",
)


def install(*options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": path or os.environ["PATH"]}
    return subprocess.run(["/bin/bash", str(SCRIPT), *options], env=env, capture_output=True, text=True, timeout=60)


def test_help_names_every_option() -> None:
    done = install("--help")
    assert done.returncode == 0
    of_checkout = ("--dev", "--demo", "--keep", "--test", "--quick", "--with-torch")
    of_cluster = ("--node", "--shared", "--dry-run", "--verbose", "--slurmd-reconfigured")
    for option in (*of_checkout, *of_cluster, "--nodes", "--except", "--ssh"):
        assert f" {option} " in done.stdout or f" {option}\n" in done.stdout, option


@pytest.mark.parametrize(
    "options", [(), ("--devv",), ("--dev", "--demo"), ("--dev", "--keep"), ("--demo", "--quick"), ("--test", "--keep")]
)
def test_wrong_use_ends_with_2_and_the_usage(options: tuple[str, ...]) -> None:
    done = install(*options)
    assert done.returncode == 2
    assert "usage: ./install.sh --dev\n" in done.stderr
    assert done.stderr.startswith("install.sh: --devv: no such option\n" if "--devv" in options else "usage: ")


def functions(tmp_path: Path, body: str, **fakes: str) -> subprocess.CompletedProcess[str]:
    """Run ``body`` with install.sh's functions where only ``fakes`` (name → shell text) and a few tools exist."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        (tools / name).symlink_to(str(shutil.which(name)))
    for name, text in fakes.items():
        fake = tools / name.replace("_", "-")
        fake.write_text(f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/calls\n{text}\n')
        fake.chmod(0o755)
    text = SCRIPT.read_text()
    head = text[: text.index('main "$@"')].replace(":/usr/local/sbin:/usr/sbin:/sbin", "")
    head = head.replace("/usr/sbin/policy-rc.d", f"{tmp_path}/policy-rc.d")
    script = tmp_path / "script"
    script.write_text(head + body)
    env = {"PATH": str(tools), "HOME": str(tmp_path)}
    return subprocess.run(["/bin/bash", str(script)], env=env, capture_output=True, text=True, timeout=30)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_rhel_gets_slurm_from_epel_or_a_clear_word(tmp_path: Path) -> None:
    done = functions(tmp_path, "install_slurm || echo without slurm", dnf="exit 1")
    assert done.returncode == 0
    assert "not to be had here: munged mariadbd" in done.stdout
    assert done.stdout.endswith("without slurm\n")
    calls = (tmp_path / "calls").read_text().splitlines()
    wanted = "slurm slurm-slurmctld slurm-slurmd slurm-slurmdbd munge mariadb-server"
    assert calls == [
        f"dnf -q -y install {wanted}",
        "dnf -q -y install epel-release",
        "dnf -q config-manager --set-enabled crb",
        f"dnf -q -y install {wanted}",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_debian_packages_start_no_services(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"
    asked = f"{policy}; [ $? = 101 ] || exit 1"
    done = functions(tmp_path, "system_install slurmctld munge -- slurm", apt_get=asked)
    assert done.returncode == 0, done.stderr
    assert not policy.exists()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["apt_get update -q", "apt_get install -q -y --no-install-recommends slurmctld munge"]


def test_where_nothing_can_install_it_says_so(tmp_path: Path) -> None:
    done = functions(tmp_path, "system_install slurmctld -- slurm || echo no")
    assert done.returncode == 0
    assert done.stdout.endswith("no\n")
    assert "slurmctld" in done.stdout


@pytest.mark.parametrize(("packages", "cuda"), [(["torch", "sympy"], False), (["torch", "nvidia-cublas-cu12"], True)])
def test_a_cuda_build_of_torch_is_known_by_its_packages(tmp_path: Path, packages: list[str], cuda: bool) -> None:
    items = ", ".join(f'{{"metadata": {{"name": "{name}"}}}}' for name in packages)
    venv = tmp_path / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to("/usr/bin/python3")
    (venv / "pip").write_text(
        f"""#!/bin/sh\nwhile [ "$1" != --report ]; do shift; done\necho '{{"install": [{items}]}}' >"$2"\n"""
    )
    (venv / "pip").chmod(0o755)
    done = functions(tmp_path, "if torch_is_cuda; then echo cuda; else echo cpu; fi")
    assert done.stdout == ("cuda\n" if cuda else "cpu\n"), done.stderr
