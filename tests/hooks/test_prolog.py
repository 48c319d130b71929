from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.hooks.site import CHECKOUT, HOOKS, PROLOG, SHELLS, SLURM_COMMANDS, USER, Site, mode, variables

HOOK = "prolog.d/50-nccl-slurm"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_makes_the_run_folder(site: Site, shell: tuple[str, ...]) -> None:
    done = site.run(HOOK, PROLOG, shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    run = site.only_run()
    assert run.name.startswith("42.") and run.name[3:].isdigit()
    assert [mode(path) for path in (site.spool, run, run / "root", run / "user")] == [0o711, 0o711, 0o700, 0o700]
    assert (os.stat(run / "user").st_uid, os.stat(run / "user").st_gid) == (USER, USER)
    assert os.stat(run / "root").st_uid == 0
    assert mode(run / "root" / "prolog.env") == 0o600
    assert os.readlink(site.spool / "42") == run.name
    assert site.worker_log() == [f"--conf {site.conf} --queued before {run}"]


def test_prolog_env_starts_with_time_and_boot_id(site: Site) -> None:
    site.run(HOOK, {**PROLOG, "SLURM_JOB_COMMENT": "secret", "LD_PRELOAD_X": "no"})
    run = site.only_run()
    lines = (run / "root" / "prolog.env").read_text().splitlines()
    assert lines[0] == f"time={run.name[3:]}"
    assert lines[1] == "boot_id=" + Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    known = variables(run, "prolog.env")
    assert {key: value for key, value in known.items() if key.isupper()} == PROLOG


def test_each_value_stays_on_one_line(site: Site) -> None:
    site.run(HOOK, {**PROLOG, "SLURM_JOB_WORK_DIR": "/home/a\nSLURM_JOB_UID=0\r$(touch /x)`touch /y` 'q\" é"})
    known = variables(site.only_run(), "prolog.env")
    assert known["SLURM_JOB_WORK_DIR"] == "/home/a SLURM_JOB_UID=0 $(touch /x)`touch /y` 'q\" é"
    assert known["SLURM_JOB_UID"] == str(USER)


def test_a_second_start_within_one_second_gets_a_folder_of_its_own(site: Site) -> None:
    site.run(HOOK, PROLOG)
    (site.only_run() / "closed").touch()
    site.run(HOOK, PROLOG)
    old, new = site.runs()
    assert os.readlink(site.spool / "42") == new.name and old != new


def test_a_component_is_found_by_the_id_of_its_heterogeneous_job(site: Site) -> None:
    site.run(HOOK, {**PROLOG, "SLURM_JOB_ID": "43", "SLURM_HET_JOB_ID": "42"})
    assert os.readlink(site.spool / "42") == os.readlink(site.spool / "43") == site.only_run().name


@pytest.mark.parametrize("off", ["gpu", "cpu,gpu", "gpu,cpu"])
def test_nothing_where_the_partition_is_off(site: Site, off: str) -> None:
    site.configure(PARTITIONS_OFF=off)
    assert site.run(HOOK, PROLOG).returncode == 0
    assert not site.spool.exists()


def test_a_partition_whose_name_only_begins_alike_is_not_off(site: Site) -> None:
    site.configure(PARTITIONS_OFF="gpu-long,longgpu")
    site.run(HOOK, PROLOG)
    assert site.only_run().is_dir()


@pytest.mark.parametrize("job", ["", "x", "42;rm", "../../etc", "4 2", "-1"])
def test_a_strange_job_id_makes_no_folder(site: Site, job: str) -> None:
    assert site.run(HOOK, {**PROLOG, "SLURM_JOB_ID": job}).returncode == 0
    assert not site.spool.exists() or site.runs() == []


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
class TestExitsZero:
    """Whatever happens: Slurm drains a node for a non-zero exit."""

    def test_without_capture_conf(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        site.conf.unlink()
        assert site.run(hook, PROLOG, shell=shell).returncode == 0

    def test_with_a_broken_capture_conf(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        site.conf.write_text("if (\nNCCL_SLURM_SPOOL='\n")
        assert site.run(hook, PROLOG, shell=shell).returncode == 0

    def test_with_a_capture_conf_that_exits(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        site.conf.write_text("set -eu\nfalse\nexit 7\n")
        assert site.run(hook, PROLOG, shell=shell).returncode == 0

    def test_without_any_variable(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        assert site.run(hook, {}, shell=shell).returncode == 0

    def test_where_the_spool_is_a_file(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        site.spool.touch()
        assert site.run(hook, PROLOG, shell=shell).returncode == 0

    def test_where_the_spool_cannot_be_made(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        site.configure(SPOOL="/proc/no/such", EVENTS="/proc/no/such")
        assert site.run(hook, PROLOG, shell=shell).returncode == 0

    def test_with_a_hostile_environment(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        hostile = {
            "IFS": "/",
            "PATH": "",
            "ENV": "/dev/zero",
            "CDPATH": "/",
            "PS4": "$(exit 9)",
            "SLURM_JOB_USER": "$(exit 9)",
        }
        assert site.run(hook, {**PROLOG, **hostile}, shell=shell).returncode == 0

    def test_where_the_worker_is_missing(self, site: Site, hook: str, shell: tuple[str, ...]) -> None:
        site.configure(HOOKS="/nonexistent", PYTHON="/nonexistent/python3")
        assert site.run(hook, PROLOG, shell=shell).returncode == 0


@pytest.fixture
def full_spool(site: Site) -> Site:
    """A spool of 16 kB that holds nothing more."""
    site.spool.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,nr_inodes=64", "none", site.spool], check=False)
    if made.returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    return site


@pytest.mark.parametrize("hook", [HOOK, "epilog.d/50-nccl-slurm"])
@pytest.mark.parametrize("state", ["full", "read-only"])
def test_exits_zero_on_a_full_or_read_only_spool(full_spool: Site, hook: str, state: str) -> None:
    site = full_spool
    try:
        (site.spool / "filler").write_bytes(b"x" * 16384)
        if state == "read-only":
            subprocess.run(["mount", "-o", "remount,ro", site.spool], check=True)
        assert site.run(hook, PROLOG).returncode == 0
    finally:
        subprocess.run(["umount", site.spool], check=True)


@pytest.mark.parametrize("hook", [HOOK, "epilog.d/50-nccl-slurm"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_exits_zero_when_told_to_stop(site: Site, hook: str, number: int) -> None:
    """Slurm's time limit sends SIGTERM to the group; the hook sleeps in capture.conf so that the signal finds it."""
    with site.conf.open("a") as file:
        file.write("sleep 1\n")
    process = subprocess.Popen([site.folder / hook], env=PROLOG, start_new_session=True)
    time.sleep(0.2)
    os.killpg(process.pid, number)
    assert process.wait(timeout=5) == 0


def test_does_not_wait_for_its_worker_and_holds_no_stream(site: Site) -> None:
    """A child with slurmd's pipe open would keep the node in COMPLETING: subprocess.run waits for the pipe's end."""
    site.worker_writes(f"ls -l /proc/$$/fd >{site.folder}/fds; sleep 15")
    site.run(HOOK, PROLOG)
    time.sleep(0.3)
    streams = [line.split(" -> ")[1] for line in (site.folder / "fds").read_text().splitlines() if " -> " in line]
    assert not [name for name in streams if name.startswith("pipe:")]


def test_the_worker_has_left_the_hooks_process_group_when_the_hook_ends(site: Site) -> None:
    """Slurm kills that group then. Ten times: it was a race once."""
    site.worker_writes(f'sleep 0.05; echo "$*" >>{site.folder}/worker.log')
    for number in range(10):
        env = {**PROLOG, "SLURM_JOB_ID": str(100 + number)}
        process = subprocess.Popen([site.folder / HOOK], env=env, start_new_session=True)
        assert process.wait(timeout=5) == 0
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    started = sorted(line.rpartition("/")[2].partition(".")[0] for line in site.worker_log(10))
    assert started == [str(100 + number) for number in range(10)]


@pytest.mark.parametrize("hook", HOOKS)
def test_names_no_slurm_command(hook: str) -> None:
    code = [line for line in (CHECKOUT / "slurm" / hook).read_text().splitlines() if not line.lstrip().startswith("#")]
    assert not set(SLURM_COMMANDS) & set(" ".join(code).replace('"', " ").split())


@pytest.mark.parametrize("hook", HOOKS)
def test_has_exactly_one_line_for_the_installer_to_rewrite(hook: str) -> None:
    text = (CHECKOUT / "slurm" / hook).read_text()
    assert text.count("\nNCCL_SLURM_CONF=/etc/nccl-slurm/capture.conf\n") == 1
    assert os.access(CHECKOUT / "slurm" / hook, os.X_OK)
