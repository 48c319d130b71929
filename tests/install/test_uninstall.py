"""What --uninstall looks at before it removes anything: Slurm's answer, its files, and records that wait."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from nccl_slurm.install.layout import Layout
from nccl_slurm.install.processes import daemons
from nccl_slurm.install.uninstall import config_texts
from tests.cluster.processes import wait_until
from tests.install.staging import Installer

EPILOG = "Epilog=/opt/nccl-slurm/slurm/epilog.d/*"


def scontrol(folder: Path, text: str, status: int = 0) -> Path:
    """Answers as scontrol of a site would. That of a real cluster is asked in tests/cluster/test_installed.py."""
    folder.mkdir(exist_ok=True)
    (folder / "answer").write_text(text)
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\ncat {folder}/answer\nexit {status}\n")
    program.chmod(0o755)
    return folder


@pytest.fixture
def node(installer: Installer) -> Installer:
    installer("--node")
    return installer


def test_a_line_in_force_holds_it_back(node: Installer, tmp_path: Path) -> None:
    slurm = scontrol(
        tmp_path / "bin", "Epilog[0]               = /opt/nccl-slurm/slurm/epilog.d/*\nTaskProlog = (null)\n"
    )
    done = node("--uninstall", "--slurm-bin", str(slurm), check=False)
    assert done.returncode == 1
    assert "scontrol show config: Epilog[0]" in done.stderr
    assert node.at("/opt/nccl-slurm/slurm/epilog.d/50-nccl-slurm").exists()


def test_other_hooks_are_no_reason(node: Installer, tmp_path: Path) -> None:
    slurm = scontrol(tmp_path / "bin", "Epilog = /etc/slurm/epilog.sh\nProlog = (null)\n")
    node("--uninstall", "--slurm-bin", str(slurm), "--slurmd-reconfigured")
    assert not node.at("/opt").exists()


def test_hooks_of_another_folder_are_known_from_the_installation(installer: Installer, tmp_path: Path) -> None:
    installer("--node", "--hooks", "/local/hooks")
    slurm = scontrol(tmp_path / "bin", "TaskProlog = /local/hooks/task_prolog\n")
    done = installer("--uninstall", "--slurm-bin", str(slurm), check=False)
    assert done.returncode == 1
    assert "TaskProlog = /local/hooks/task_prolog" in done.stderr


@pytest.mark.parametrize("place", ["/etc/slurm/slurm.conf", "/var/spool/slurmd/conf-cache/slurm.conf"])
def test_a_line_in_a_file_holds_it_back(node: Installer, tmp_path: Path, place: str) -> None:
    node.at(place).parent.mkdir(parents=True)
    node.at(place).write_text(f"ClusterName=x\n{EPILOG}\n#Prolog=/opt/nccl-slurm/slurm/prolog.d/*\n")
    done = node("--uninstall", "--slurm-bin", str(scontrol(tmp_path / "bin", "Epilog = (null)\n")), check=False)
    assert done.returncode == 1
    assert f"{node.at(place)}: {EPILOG}" in done.stderr
    assert "Prolog=" not in done.stderr


def test_where_slurm_does_not_answer_it_takes_a_word(node: Installer, tmp_path: Path) -> None:
    slurm = scontrol(tmp_path / "bin", "", status=1)
    node.at("/etc/slurm").mkdir()
    node.at("/etc/slurm/slurm.conf").write_text(EPILOG + "\n")
    assert node("--uninstall", "--slurm-bin", str(slurm), check=False).returncode == 1
    done = node("--uninstall", "--slurm-bin", str(slurm), "--slurm-is-gone")
    assert f"{EPILOG} (left there: --slurm-is-gone)" in done.stdout


def test_the_word_does_not_help_against_slurms_own_answer(node: Installer, tmp_path: Path) -> None:
    slurm = scontrol(tmp_path / "bin", EPILOG.replace("=", " = ") + "\n")
    assert node("--uninstall", "--slurm-bin", str(slurm), "--slurm-is-gone", check=False).returncode == 1


def test_undelivered_records_are_shown_and_stay(node: Installer) -> None:
    spool = node.at("/var/spool/nccl-slurm")
    for job in ("7.1700000000", "8.1700000000"):
        (spool / job / "root").mkdir(parents=True)
    (spool / "8.1700000000/root/delivered").write_text("1700000009\n")
    done = node("--uninstall", "--slurm-is-gone", check=False)
    assert done.returncode == 1
    assert f"not handed over: {spool}/7.1700000000" in done.stderr
    assert "8.1700000000" not in done.stderr
    assert (spool / "7.1700000000").exists()
    node("--uninstall", "--slurm-is-gone", "--discard-records")
    assert not spool.exists()


def test_a_users_link_in_the_spool_is_not_followed(node: Installer, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("stays")
    user = node.at("/var/spool/nccl-slurm/7.1700000000/user")
    user.mkdir(parents=True)
    os.chown(user, 7001, 7001)
    (user / "link").symlink_to(victim)
    node("--uninstall", "--slurm-is-gone", "--discard-records")
    assert (victim / "file").read_text() == "stays"


def test_a_dry_run_removes_nothing_and_names_all(node: Installer) -> None:
    told = node("--uninstall", "--slurm-is-gone", "--dry-run", "--verbose").stdout
    assert node.at("/opt/nccl-slurm/slurm/task_prolog").exists()
    named = {line.rpartition(" ")[2] for line in told.splitlines() if "remove:" in line}
    listed = {line.split(" ", 1)[1] for line in node.at("/etc/nccl-slurm/installed.node").read_text().splitlines()}
    assert named == listed


def test_data_goes_with_the_number_of_its_files(node: Installer) -> None:
    for job in ("7.1700000000", "8.1700000000"):
        (node.at("/var/spool/nccl-slurm") / job / "root").mkdir(parents=True)
        (node.at("/var/spool/nccl-slurm") / job / "root" / "record").write_text("{}")
    options = ("--uninstall", "--slurm-is-gone", "--discard-records")
    for more in (("--dry-run",), ()):
        assert "remove: data, 2 files /var/spool/nccl-slurm\n" in node(*options, *more).stdout
    assert not node.at("/var/spool/nccl-slurm").exists()


def test_links_that_check_told_of_go_and_others_are_named(installer: Installer) -> None:
    installer.at("/etc/nccl-slurm").mkdir(parents=True)
    installer("--node")
    folder = installer.at("/etc/nccl-slurm/epilog.d")
    folder.mkdir()
    (folder / "50-site").symlink_to("/etc/slurm/epilog.sh")
    (folder / "90-nccl-slurm").symlink_to("/opt/nccl-slurm/slurm/epilog.d/50-nccl-slurm")
    (folder / "70-other").write_text("#!/bin/sh\n")
    told = installer("--uninstall", "--slurm-is-gone").stdout
    assert "not ours, lies in /etc/nccl-slurm/epilog.d: 70-other" in told
    assert os.listdir(folder) == ["70-other"]


def test_a_daemon_that_systemd_does_not_know_holds_it_back(installer: Installer) -> None:
    """A real process, run by the environment's interpreter; a sleeping one stands for the daemon."""
    venv = installer.at("/opt/nccl-slurm/venv/bin")
    venv.mkdir(parents=True)
    shutil.copy("/bin/bash", venv / "python")
    installer.at("/etc/nccl-slurm").mkdir(parents=True)
    listed = installer.at("/etc/nccl-slurm/installed.controller")
    listed.write_text("tree /opt/nccl-slurm/venv\nfile /etc/nccl-slurm/installed.controller\n")
    command = [str(venv / "python"), "-c", "sleep 600; :", "daemon"]
    with subprocess.Popen(command, start_new_session=True) as child:
        try:
            assert wait_until(lambda: daemons(str(venv.parent)) == [child.pid], 30.0)
            done = installer("--uninstall", "--slurm-is-gone", check=False)
            assert done.returncode == 1
            assert f"the daemon runs (pid {child.pid}); kill it (SIGTERM), then run this again" in done.stderr
            assert (venv / "python").exists()
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    installer("--uninstall", "--slurm-is-gone")
    assert not venv.exists()


def test_included_files_are_read(tmp_path: Path) -> None:
    main, extra = tmp_path / "slurm.conf", tmp_path / "hooks-lab.conf"
    main.write_text("Include hooks-%c.conf\ninclude nowhere.conf\nInclude slurm.conf\n")
    extra.write_text(EPILOG + "\n")
    texts = dict(config_texts("ClusterName = lab\n", [str(main)], Layout(root=str(tmp_path))))
    assert texts[str(extra)] == EPILOG + "\n"
    assert len([path for path in texts if path.startswith(str(tmp_path))]) == 2
