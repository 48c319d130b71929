"""install.sh --node on a tree that stands for a node's disk."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from tests.install.staging import Installer, copy_checkout, snapshot

CAPTURE_CONF = "/etc/nccl-slurm/capture.conf"
PROLOG = "/opt/nccl-slurm/slurm/prolog.d/50-nccl-slurm"
#: An image has these before anybody installs anything.
SYSTEM = ("etc/systemd/system", "etc/tmpfiles.d", "usr/local/sbin", "var/spool", "opt")


def system(installer: Installer) -> None:
    for name in SYSTEM:
        (installer.root / name).mkdir(parents=True)


def made(output: str) -> set[str]:
    """Paths below the root that an installer's output names as created."""
    return {line.rpartition(" ")[2].lstrip("/") for line in output.splitlines() if " create: " in line}


def test_a_dry_run_tells_all_and_touches_nothing(installer: Installer) -> None:
    system(installer)
    before = snapshot(installer.root, times=True)
    told = installer("--node", "--shared", "/fsx/x", "--dry-run", "--verbose").stdout
    assert snapshot(installer.root, times=True) == before
    installer("--node", "--shared", "/fsx/x")
    assert made(told) == set(snapshot(installer.root)) - set(before)


def test_a_dry_run_is_short_and_begins_with_what_matters(installer: Installer) -> None:
    """The files of the code are counted by folder, and the counts are right."""
    told = installer("--node", "--dry-run").stdout.splitlines()
    assert len(told) < 80
    assert [line.split()[1] for line in told[:4]] == ["code", "hooks", "settings", "spool"]
    assert "records stay on the nodes" in told[4]
    counted = {line.rpartition(" ")[2]: int(line.split()[2]) for line in told if re.search(r" create: \d+ in ", line)}
    assert installer("--node").stdout.count("no SHARED: records stay on the nodes") == 1
    for folder, count in counted.items():
        assert len(list(installer.at(folder).iterdir())) == count, folder
    (capture,) = (folder for folder in counted if folder.endswith("/capture"))
    assert counted[capture] > 10


def test_a_second_run_changes_nothing(installer: Installer) -> None:
    installer("--node", "--shared", "/fsx/x")
    before = snapshot(installer.root, times=True)
    done = installer("--node", "--shared", "/fsx/x")
    assert "nothing changed" in done.stdout
    assert snapshot(installer.root, times=True) == before


def test_uninstall_leaves_the_tree_as_it_was(installer: Installer) -> None:
    system(installer)
    (installer.root / "etc" / "tmpfiles.d" / "site.conf").write_text("d /site\n")
    before = snapshot(installer.root)
    installer("--node", "--shared", "/fsx/x")
    (installer.at("/opt/nccl-slurm/nccl_slurm") / "__pycache__").mkdir()
    installer.at("/etc/nccl-slurm/note").write_text("the site's own")
    installer("--uninstall", "--slurm-is-gone")
    assert snapshot(installer.root) == before


def test_what_is_installed_can_take_itself_away(installer: Installer) -> None:
    installer("--node")
    main = installer.at("/opt/nccl-slurm/nccl_slurm/install/main.py")
    options = ["--uninstall", "--slurm-is-gone", "--root", str(installer.root)]
    done = subprocess.run(["/usr/bin/python3", "-I", "-S", str(main), *options], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert snapshot(installer.root) == {}


def test_all_of_the_code_is_installed(installer: Installer) -> None:
    """Whatever its suffix: what --check sends to nodes is sh."""
    installer("--node")
    source, there = installer.source / "nccl_slurm", installer.at("/opt/nccl-slurm/nccl_slurm")
    names = {path.relative_to(source) for path in source.rglob("*") if path.is_file()}
    assert {path.relative_to(there) for path in there.rglob("*") if path.is_file()} == names
    assert (there / "install" / "probe.sh").read_bytes() == (source / "install" / "probe.sh").read_bytes()


def test_uninstall_keeps_data_where_told(installer: Installer) -> None:
    installer("--node")
    with installer.at(CAPTURE_CONF).open("a") as file:
        file.write("NCCL_SLURM_PARTITIONS_OFF=debug\n")
    installer.at("/var/spool/nccl-slurm/7.1700000000/root").mkdir(parents=True)
    installer("--uninstall", "--slurm-is-gone", "--keep-data")
    left = {path for path, seen in snapshot(installer.root).items() if not os.path.isdir(installer.root / path)}
    assert left == {"etc/nccl-slurm/capture.conf"}
    assert installer.at("/var/spool/nccl-slurm/7.1700000000/root").is_dir()


def test_the_hooks_read_this_installation(installer: Installer) -> None:
    installer("--node", "--prefix", "/fsx/code", "--hooks", "/local/hooks", "--conf", "/etc/other")
    conf = installer.at("/etc/other/capture.conf").read_text()
    assert "\nNCCL_SLURM_PREFIX=/fsx/code\n" in conf
    assert "\nNCCL_SLURM_HOOKS=/local/hooks\n" in conf
    for name in (
        "prolog.d/50-nccl-slurm",
        "epilog.d/50-nccl-slurm",
        "task_prolog",
        "epilog_slurmctld",
        "nccl-slurm-node",
    ):
        hook = installer.at(f"/local/hooks/{name}")
        lines = re.findall(r"^NCCL_SLURM_CONF=.*", hook.read_text(), re.MULTILINE)
        assert lines == ["NCCL_SLURM_CONF=/etc/other/capture.conf"]
        assert hook.stat().st_mode & 0o7777 == 0o755
    assert installer.at("/fsx/code/nccl_slurm/capture/main.py").exists()
    for unit in installer.at("/etc/systemd/system").iterdir():
        assert "/opt/nccl-slurm" not in unit.read_text()
        assert "/etc/nccl-slurm" not in unit.read_text()


def test_the_installed_code_runs_where_it_lies(installer: Installer) -> None:
    installer("--node")
    main = installer.at("/opt/nccl-slurm/nccl_slurm/capture/main.py")
    env = {"NCCL_SLURM_SPOOL": str(installer.at("/var/spool/nccl-slurm"))}
    done = subprocess.run(["/usr/bin/python3", "-I", "-S", str(main), "sweep"], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_units_are_such_as_systemd_takes(installer: Installer) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("not installed: systemd-analyze")
    installer("--node")
    units = sorted(installer.at("/etc/systemd/system").iterdir())
    done = subprocess.run(["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True)
    # The program lies below the tree, and so does the manual.
    strange = [line for line in done.stderr.splitlines() if not re.search(r"is not executable|man nccl-slurm", line)]
    assert strange == []


class TestConfiguration:
    def test_a_file_that_is_there_stays(self, installer: Installer) -> None:
        installer("--node")
        conf = installer.at(CAPTURE_CONF)
        conf.write_text(conf.read_text() + "NCCL_SLURM_PARTITIONS_OFF=debug\n")
        before = conf.read_text()
        installer("--node")
        assert conf.read_text() == before
        assert not installer.at(CAPTURE_CONF + ".new").exists()

    def test_other_keys_bring_a_file_beside_it(self, installer: Installer) -> None:
        installer("--node")
        conf = installer.at(CAPTURE_CONF)
        conf.write_text("NCCL_SLURM_SHARED=/fsx/x\n")
        done = installer("--node")
        assert f"{CAPTURE_CONF}.new" in done.stdout
        assert conf.read_text() == "NCCL_SLURM_SHARED=/fsx/x\n"
        assert "\nNCCL_SLURM_SHARED=/fsx/x\n" in installer.at(CAPTURE_CONF + ".new").read_text()

    def test_what_an_option_asks_and_the_file_denies_is_said(self, installer: Installer) -> None:
        installer("--node", "--shared", "/fsx/x")
        done = installer("--node", "--shared", "/fsx/y", check=False)
        assert done.returncode == 1
        assert f"{CAPTURE_CONF} stays as it is: set NCCL_SLURM_SHARED=/fsx/y there yourself" in done.stderr

    def test_the_spool_in_force_is_made(self, installer: Installer) -> None:
        installer.at("/etc/nccl-slurm").mkdir(parents=True)
        installer.at(CAPTURE_CONF).write_text("NCCL_SLURM_SPOOL=/local/spool\n")
        installer("--node")
        assert installer.at("/local/spool").stat().st_mode & 0o7777 == 0o711
        assert not installer.at("/var/spool/nccl-slurm").exists()


class TestUpgrade:
    def test_a_hook_is_whole_at_every_moment(self, installer: Installer, tmp_path: Path) -> None:
        installer("--node")
        hook = installer.at(PROLOG)
        newer = Installer(copy_checkout(tmp_path / "newer"), installer.root)
        old, newer_text = hook.read_bytes(), (newer.source / "slurm/prolog.d/50-nccl-slurm").read_bytes() + b"# newer\n"
        (newer.source / "slurm/prolog.d/50-nccl-slurm").write_bytes(newer_text)
        seen: set[bytes] = set()
        modes: set[int] = set()
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                with hook.open("rb") as file:
                    seen.add(file.read())
                    modes.add(os.fstat(file.fileno()).st_mode & 0o7777)

        watcher = threading.Thread(target=look)
        watcher.start()
        newer("--node")
        over.set()
        watcher.join()
        assert seen <= {old, newer_text}
        assert modes == {0o755}
        assert hook.read_bytes() == newer_text
        assert [path.name for path in hook.parent.iterdir()] == [hook.name]

    def test_what_the_new_version_lacks_goes(self, installer: Installer, tmp_path: Path) -> None:
        older = Installer(copy_checkout(tmp_path / "older"), installer.root)
        (older.source / "nccl_slurm/capture/gone.py").write_text("")
        older("--node")
        assert installer.at("/opt/nccl-slurm/nccl_slurm/capture/gone.py").exists()
        assert "gone.py" in installer("--node", "--verbose").stdout
        assert not installer.at("/opt/nccl-slurm/nccl_slurm/capture/gone.py").exists()
        assert "nothing changed" in installer("--node").stdout

    def test_a_dry_run_shows_the_lines_that_change(self, installer: Installer, tmp_path: Path) -> None:
        installer("--node")
        newer = Installer(copy_checkout(tmp_path / "newer"), installer.root)
        unit = newer.source / "etc/systemd/nccl-slurm-node.timer"
        unit.write_text(unit.read_text().replace("OnUnitActiveSec=10min", "OnUnitActiveSec=20min"))
        told = newer("--node", "--dry-run").stdout
        assert "-OnUnitActiveSec=10min" in told
        assert "+OnUnitActiveSec=20min" in told

    def test_wrong_mode_and_owner_are_put_right(self, installer: Installer) -> None:
        installer("--node")
        installer.at(PROLOG).chmod(0o777)
        os.chown(installer.at(PROLOG), 7001, -1)
        assert "mode 0777 -> 0755, owner 7001:0 -> 0:0" in installer("--node").stdout
        info = installer.at(PROLOG).stat()
        assert (info.st_mode & 0o7777, info.st_uid) == (0o755, 0)


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "word"),
        [
            (("--node", "--prefix", "relative"), "--prefix"),
            (("--node", "--hooks", "/a b"), "--hooks"),
            (("--node", "--conf", "/etc/../tmp"), "--conf"),
            (("--node", "--shared", "/x\ny"), "--shared"),
            (("--node", "--spool", "/x;reboot"), "--spool"),
            (("--node", "--python", "/nowhere/python3"), "--python"),
            (("--node", "--python", "/bin/true"), "--python"),
            (("--node", "--patterns", "/etc/passwd"), "/etc/passwd"),
            (("--node", "--ship-user", "no-such-user"), "--ship-user"),
            (("--node", "--wheels", "/x"), "--wheels"),
            (("--node", "--keep-data"), "--keep-data"),
            (("--node", "--controller"), "--controller"),
            (("--node", "--no-such-option"), "--no-such-option"),
            (("--uninstall", "--shared", "/x"), "--shared"),
        ],
    )
    def test_bad_input_names_the_option(self, installer: Installer, options: tuple[str, ...], word: str) -> None:
        done = installer(*options, check=False)
        assert done.returncode == 2
        assert word in done.stderr
        assert snapshot(installer.root) == {}

    def test_a_python_that_others_may_write(self, installer: Installer, tmp_path: Path) -> None:
        python = tmp_path / "python3"
        python.write_text('#!/bin/sh\nexec /usr/bin/python3 "$@"\n')
        python.chmod(0o777)
        done = installer("--node", "--python", str(python), check=False)
        assert done.returncode == 2
        assert "others than root may write it" in done.stderr

    def test_a_folder_in_which_others_may_write(self, installer: Installer) -> None:
        (installer.root / "opt").mkdir()
        (installer.root / "opt").chmod(0o777)
        done = installer("--node", check=False)
        assert done.returncode == 2
        assert "writable by others" in done.stderr

    def test_a_spool_that_others_use(self, installer: Installer) -> None:
        installer.at("/var/spool/mail").mkdir(parents=True)
        done = installer("--node", "--spool", "/var/spool", check=False)
        assert done.returncode == 2
        assert "'mail'" in done.stderr
        assert not installer.at("/opt").exists()

    def test_a_link_in_a_folders_place_is_not_followed(self, installer: Installer, tmp_path: Path) -> None:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o700)
        installer.at("/var/spool").mkdir(parents=True)
        installer.at("/var/spool/nccl-slurm").symlink_to(elsewhere)
        done = installer("--node", check=False)
        assert done.returncode == 1
        assert "is a link where a folder has to be" in done.stderr
        assert "nothing was changed" in done.stderr and not installer.at("/opt").exists()
        assert elsewhere.stat().st_mode & 0o7777 == 0o700

    def test_a_failure_says_how_far_it_came_and_can_be_taken_away(self, installer: Installer) -> None:
        folder, name = os.path.split(PROLOG)
        part = installer.at(
            f"{folder}/.{name}.{os.uname().nodename}.new"
        )  # where the file is written before its rename
        part.mkdir(parents=True)
        before = snapshot(installer.root)
        done = installer("--node", check=False)
        assert done.returncode == 1
        assert part.name in done.stderr
        assert re.search(r"stopped after \d+ changes", done.stdout)
        assert not installer.at("/opt/nccl-slurm/slurm/task_prolog").exists()
        installer("--uninstall", "--slurm-is-gone")
        assert snapshot(installer.root) == before

    @pytest.mark.skipif(os.geteuid() != 0, reason="root alone can become another user")
    def test_an_ordinary_user_may_look_only(self) -> None:
        with tempfile.TemporaryDirectory(prefix="nccl-slurm-install-") as folder:
            os.chmod(folder, 0o755)
            script = copy_checkout(Path(folder, "checkout")) / "install.sh"
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", str(script), "--node"]
            done = subprocess.run([*command, "--root", f"{folder}/root"], capture_output=True, text=True)
            assert (done.returncode, "needs root" in done.stderr) == (2, True)
            look = subprocess.run([*command, "--root", f"{folder}/root", "--dry-run"], capture_output=True, text=True)
            assert look.returncode == 0, look.stderr
            assert not Path(folder, "root").exists()
            Path(folder, "root/etc/nccl-slurm").mkdir(mode=0o700, parents=True)
            closed = subprocess.run([*command, "--root", f"{folder}/root", "--dry-run"], capture_output=True, text=True)
            assert closed.returncode in (1, 2)
            assert "Permission denied; run it as root, --dry-run too" in closed.stderr


class TestOlderPython:
    @pytest.fixture
    def python(self) -> str:
        for path in ("/usr/bin/python3.8", os.environ.get("NCCL_SLURM_NODE_PYTHON", "")):
            if path and os.access(path, os.X_OK):
                return os.path.realpath(path)
        pytest.skip("no Python 3.8 here; name one in NCCL_SLURM_NODE_PYTHON")

    @pytest.mark.node_python
    def test_the_installer_itself_runs_on_it(self, installer: Installer, python: str) -> None:
        main = installer.source / "nccl_slurm/install/main.py"
        command = [python, "-I", "-S", "-B", str(main), "--node", "--python", python, "--root", str(installer.root)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        assert "nccl-slurm rules compile" in done.stderr
        assert installer.at(PROLOG).exists()
        conf = installer.at(CAPTURE_CONF).read_text()
        assert f"\nNCCL_SLURM_PYTHON={python}\n" in conf
        assert "\nNCCL_SLURM_PATTERNS=/opt/nccl-slurm/patterns.json\n" in conf

    @pytest.mark.node_python
    def test_a_newer_python_beside_it_compiles_the_rows(self, installer: Installer, python: str) -> None:
        installer("--node", "--python", python)
        rows = installer.at("/opt/nccl-slurm/patterns.json")
        load = f"import sys; sys.path.insert(0, {str(installer.source)!r})\n"
        load += f"from nccl_slurm.parse.patterns import load_rows; print(len(load_rows({str(rows)!r}).rows))"
        done = subprocess.run([python, "-I", "-S", "-B", "-c", load], capture_output=True, text=True, check=True)
        assert int(done.stdout) > 50
