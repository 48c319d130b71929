"""The lifecycle script on an instance whose /opt/ml/config is pretended: it installs by role and never fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.staging import Installer, copy_checkout

SCRIPT = "etc/hyperpod/nccl-slurm.sh"
PROLOG = "/opt/nccl-slurm/slurm/prolog.d/50-nccl-slurm"


def instance(installer: Installer, group: str, name: str) -> None:
    """As HyperPod's agent writes the two files; the address is this machine's own."""
    folder = installer.at("/opt/ml/config")
    folder.mkdir(parents=True)
    address = subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split()
    if not address:
        pytest.skip("this machine has no address")
    parameters = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "controller-machine",
        "login_group": "login-group",
        "worker_groups": [{"instance_group_name": "worker-group-1", "partition_name": "dev"}],
        "fsx_dns_name": "fs-0.fsx.invalid",
    }
    groups = [
        {"Name": "other", "Instances": [{"InstanceName": "other-1", "CustomerIpAddress": "10.255.255.1"}]},
        {"Name": group, "Instances": [{"InstanceName": name, "CustomerIpAddress": address[0], "InstanceId": "i-0"}]},
    ]
    (folder / "provisioning_parameters.json").write_text(json.dumps(parameters))
    (folder / "resource_config.json").write_text(json.dumps({"ClusterConfig": {}, "InstanceGroups": groups}))


def lifecycle(installer: Installer, script: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        ["bash", str(script or installer.source / SCRIPT)],
        env={**os.environ, "NCCL_SLURM_ROOT": str(installer.root), "NCCL_SLURM_WAIT_S": "0", **env},
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout


def test_a_worker_gets_hooks_and_a_second_run_changes_nothing(installer: Installer) -> None:
    instance(installer, "worker-group-1", "worker-group-1-3")
    told = lifecycle(installer)
    assert told.endswith("nccl-slurm: done\n"), told
    assert installer.at(PROLOG).stat().st_mode & 0o111
    assert "NCCL_SLURM_SHARED=/fsx/nccl-slurm/shared\n" in installer.at("/etc/nccl-slurm/capture.conf").read_text()
    assert not installer.at("/etc/systemd/system/nccl-slurm.service").exists()
    assert "nothing changed" in lifecycle(installer)


def test_a_login_node_gets_none(installer: Installer) -> None:
    instance(installer, "login-group", "login-group-1")
    assert "login node" in lifecycle(installer)
    assert not installer.at("/opt/nccl-slurm").exists()


@pytest.mark.parametrize(("name", "first"), [("controller-machine-1", True), ("controller-machine-2", False)])
def test_a_controller_gets_the_daemon_and_one_of_them_starts_it(installer: Installer, name: str, first: bool) -> None:
    instance(installer, "controller-machine", name)
    source = installer.root.parent / "lifecycle"
    source.mkdir()
    shutil.copy(installer.source / SCRIPT, source)
    told_to = source / "nccl-slurm"
    (told_to / "nccl_slurm/install").mkdir(parents=True)
    (told_to / "nccl_slurm/install/main.py").write_text("")
    (told_to / "install.sh").write_text(f'echo "$@" >{source}/options\n')
    lifecycle(installer, source / "nccl-slurm.sh", NCCL_SLURM_WHEELS="/fsx/wheels")
    options = (source / "options").read_text().split()
    assert options[:5] == ["--controller", "--slurm-user", "slurm", "--wheels", "/fsx/wheels"]
    assert ("--no-start" not in options) == first
    assert options[options.index("--shared") + 1] == "/fsx/nccl-slurm/shared"


def test_hooks_come_before_a_file_system_that_is_not_there(installer: Installer, tmp_path: Path) -> None:
    instance(installer, "worker-group-1", "worker-group-1-3")
    folder = tmp_path / "lifecycle"
    folder.mkdir()
    shutil.copy(installer.source / SCRIPT, folder)
    shutil.copytree(installer.source / "slurm", folder / "slurm")
    told = lifecycle(installer, folder / "nccl-slurm.sh", NCCL_SLURM_SOURCE=f"{tmp_path}/fsx/source")
    assert "no code" in told
    hook = installer.at(PROLOG)
    done = subprocess.run([str(hook)], env={"SLURM_JOB_ID": "1", "SLURM_JOB_UID": "0"}, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    shutil.copytree(installer.source, tmp_path / "fsx/source")
    told = lifecycle(installer, folder / "nccl-slurm.sh", NCCL_SLURM_SOURCE=f"{tmp_path}/fsx/source")
    assert told.endswith("nccl-slurm: done\n"), told


def _everyone_may_write(path: Path) -> None:
    path.chmod(0o777)


def _is_alices(path: Path) -> None:
    os.chown(path, 7001, 7001)


def _is_a_link(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (_everyone_may_write, "fsx/source"),
        (_everyone_may_write, "fsx"),  # who can rename the folder can swap it between a look and its use
        (_is_alices, "fsx"),
        (_is_alices, "fsx/source/install.sh"),
        (_is_alices, "fsx/source/nccl_slurm/capture"),
        (_everyone_may_write, "fsx/source/slurm/prolog.d/50-nccl-slurm"),
        (_is_a_link, "fsx/source/nccl_slurm/install/main.py"),
    ],
)
def test_code_that_others_may_change_is_not_run(
    installer: Installer, tmp_path: Path, spoil: Callable[[Path], None], name: str
) -> None:
    instance(installer, "worker-group-1", "worker-group-1-3")
    folder = tmp_path / "lifecycle"
    folder.mkdir()
    (tmp_path / "fsx").mkdir(mode=0o755)
    shutil.copy(installer.source / SCRIPT, folder)
    source = copy_checkout(tmp_path / "fsx/source")
    spoil(tmp_path / name)
    told = lifecycle(installer, folder / "nccl-slurm.sh", NCCL_SLURM_SOURCE=str(source))
    assert f"{tmp_path / name} is not root's alone" in told
    assert told.count("is not root's alone") == 1
    assert not installer.at("/opt/nccl-slurm").exists()


def test_a_link_to_code_that_is_roots_alone_is_resolved_first(installer: Installer, tmp_path: Path) -> None:
    """The link's folder is everybody's, as /tmp; what is run is named without it."""
    instance(installer, "worker-group-1", "worker-group-1-3")
    folder = tmp_path / "lifecycle"
    folder.mkdir()
    shutil.copy(installer.source / SCRIPT, folder)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    copy_checkout(tmp_path / "open/source").chmod(0o775)  # as root's tar leaves an archive that git made
    (tmp_path / "link").symlink_to(tmp_path / "open/source")
    told = lifecycle(installer, folder / "nccl-slurm.sh", NCCL_SLURM_SOURCE=str(tmp_path / "link"))
    assert told.endswith("nccl-slurm: done\n"), told


@pytest.mark.parametrize("text", ["", "{", '{"InstanceGroups": []}', None])
def test_a_role_that_cant_be_told_gets_hooks(installer: Installer, text: str | None) -> None:
    if text is not None:
        instance(installer, "worker-group-1", "worker-group-1-3")
        (installer.at("/opt/ml/config") / "resource_config.json").write_text(text)
    told = lifecycle(installer)
    assert "does not tell the role" in told
    assert installer.at(PROLOG).exists()


def test_an_installer_that_fails_does_not_fail_the_instance(installer: Installer) -> None:
    instance(installer, "worker-group-1", "worker-group-1-3")
    installer.at(PROLOG).mkdir(parents=True)
    assert "the instance comes up all the same" in lifecycle(installer)
