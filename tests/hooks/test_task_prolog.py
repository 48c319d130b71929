from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from nccl_slurm.doctor.checks.job.ours import ours
from tests.hooks.site import CHECKOUT, PROLOG, SHELLS, USER, Site

STEP = {**PROLOG, "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_TASK_PID": "4711"}
BATCH = {key: value for key, value in STEP.items() if key != "SLURM_STEP_ID"}
OURS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,BOOTSTRAP,ENV,NET",
    "NCCL_DEBUG_FILE": "{user}/nccl.%h.%p.log",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "ALL",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_FR_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "{user}/nccl_trace_rank_",
    "TORCH_FR_DUMP_TEMP_FILE": "{user}/nccl_trace_rank_",
    "PET_LOG_DIR": "{user}/elastic",
}
FILES = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}


@pytest.fixture
def run(site: Site) -> Path:
    site.run("prolog.d/50-nccl-slurm", PROLOG)
    return site.only_run()


def exports(site: Site, env: Mapping[str, str], shell: tuple[str, ...] = ()) -> dict[str, str | None]:
    """What Slurm would set (a value) or remove (None). Every line must be one that Slurm knows."""
    done = site.run("task_prolog", env, shell=shell, user=USER)
    assert done.returncode == 0 and done.stderr == ""
    found: dict[str, str | None] = {}
    for line in done.stdout.splitlines():
        verb, _, rest = line.partition(" ")
        assert verb in ("export", "unset"), line
        name, equals, value = rest.partition("=")
        found[name] = value if equals else None
    return found


def expected(run: Path) -> dict[str, str]:
    return {name: value.format(user=run / "user") for name, value in OURS.items()}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_exports_everything_to_a_step(site: Site, run: Path, shell: tuple[str, ...]) -> None:
    found = exports(site, STEP, shell)
    assert found.pop("NCCL_SLURM_SET") == ",".join(OURS)
    assert found == expected(run)


def test_writes_who_the_task_is(site: Site, run: Path) -> None:
    exports(site, {**STEP, "SLURM_STEP_GPUS": "2,3"})
    lines = (run / "user" / "task.0.5").read_text().splitlines()
    assert lines[:6] == ["step=0", "procid=5", "localid=1", "pid=4711", "host=n1", "gpus=2,3"]
    assert (run / "user" / "task.0.5").stat().st_uid == USER


def test_a_fifo_in_its_place_holds_nobody_up(site: Site, run: Path) -> None:
    os.mkfifo(run / "user" / "task.0.5")
    os.mkfifo(site.folder / "nccl.conf")
    assert "TORCH_FR_BUFFER_SIZE" in exports(site, {**STEP, "NCCL_CONF_FILE": str(site.folder / "nccl.conf")})


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_DEBUG_NEW_THING"])
def test_a_users_own_nccl_debug_leaves_his_log_alone(site: Site, run: Path, name: str) -> None:
    found = exports(site, {**STEP, name: ""})
    assert not FILES & set(found)
    assert found["NCCL_DEBUG_TIMESTAMP_LEVELS"] == "ALL" and "TORCH_FR_BUFFER_SIZE" in found


def test_so_does_one_in_nccls_own_file(site: Site, run: Path) -> None:
    home = site.folder / "home"
    home.mkdir()
    (home / ".nccl.conf").write_text("# mine\nNCCL_DEBUG=WARN\n")
    assert not FILES & set(exports(site, {**STEP, "HOME": str(home)}))
    (home / ".nccl.conf").write_text("NCCL_IB_HCA=mlx5\n")
    assert set(exports(site, {**STEP, "HOME": str(home)})) >= FILES


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE"),
        ("TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_FR_DUMP_ON_TIMEOUT"),
        ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"),
    ],
)
def test_one_spelling_set_by_the_user_leaves_both_alone(site: Site, run: Path, old: str, new: str) -> None:
    for name in (old, new):
        assert not {old, new} & set(exports(site, {**STEP, name: "0"}))


@pytest.mark.parametrize(
    "more", [{}, {"SLURM_STEP_ID": "4294967290"}, {"SLURM_STEP_ID": "0", "SLURM_PTY_PORT": "4000"}]
)
def test_a_script_or_shell_gets_nothing_that_could_hide_its_later_choice(
    site: Site, run: Path, more: Mapping[str, str]
) -> None:
    """The user may still set NCCL_DEBUG or the new spelling in it, and must then win."""
    found = exports(site, {**BATCH, **more})
    found.pop("NCCL_SLURM_SET")
    names = [name for name in OURS if name not in FILES and not name.startswith("TORCH_FR")]
    assert found == {name: expected(run)[name] for name in names}


def test_steps_of_a_batch_script_get_the_folder_of_their_own_node(site: Site, run: Path) -> None:
    """Its environment goes to steps on other nodes, where the run's folder has another second in its name."""
    site.configure(NCCL_DEBUG_FILE="all")
    batch = {name: value or "" for name, value in exports(site, BATCH).items()}
    elsewhere = {name: value.replace(run.name, "42.1111111111") for name, value in batch.items()}
    assert elsewhere != batch
    found = exports(site, {**STEP, **elsewhere})
    found.pop("NCCL_SLURM_SET")
    assert found == expected(run)


def test_what_the_script_changed_since_is_the_users(site: Site, run: Path) -> None:
    site.configure(NCCL_DEBUG_FILE="all")
    batch = {name: value or "" for name, value in exports(site, BATCH).items()}
    found = exports(site, {**STEP, **batch, "NCCL_DEBUG": "WARN", "TORCH_FR_BUFFER_SIZE": "7"})
    assert "NCCL_DEBUG" not in found and "TORCH_FR_BUFFER_SIZE" not in found
    assert found["NCCL_DEBUG_FILE"] is None, "else his WARN lines would go into our file"
    assert found["TORCH_NCCL_TRACE_BUFFER_SIZE"] is None, "else two spellings would disagree"


def test_without_a_folder_nothing_is_exported(site: Site) -> None:
    assert exports(site, STEP) == {}


def test_without_a_folder_here_what_came_from_elsewhere_is_taken_back(site: Site, run: Path) -> None:
    batch = {name: value or "" for name, value in exports(site, BATCH).items()}
    (run / "closed").touch()
    found = exports(site, {**STEP, **batch})
    assert found == dict.fromkeys(name for name in batch if name != "NCCL_SLURM_SET")


def test_a_folder_that_is_not_writable_counts_as_none(site: Site, run: Path) -> None:
    (run / "user").chmod(0o500)
    assert exports(site, STEP) == {}


def test_capture_off_leaves_a_marker_and_exports_nothing(site: Site, run: Path) -> None:
    assert exports(site, {**STEP, "NCCL_SLURM_CAPTURE": "off"}) == {}
    assert (run / "user" / "capture-off").exists()
    assert not (run / "user" / "task.0.5").exists()


def test_partition_off(site: Site, run: Path) -> None:
    site.configure(PARTITIONS_OFF="gpu")
    assert exports(site, STEP) == {}


@pytest.mark.parametrize("env", [{"SLURM_CONTAINER": "/c"}, {"_SLURM_SPANK_OPTION_pyxis_container_image": "x"}])
def test_a_container_needs_the_mount(site: Site, run: Path, env: Mapping[str, str]) -> None:
    site.configure(SYSROOT=str(site.folder / "sys"))
    assert exports(site, {**STEP, **env}) == {}
    mounts = site.folder / "sys/etc/enroot/mounts.d"
    mounts.mkdir(parents=True)
    shutil.copy(CHECKOUT / "etc" / "enroot" / "50-nccl-slurm.fstab", mounts)
    assert set(exports(site, {**STEP, **env})) >= FILES


def test_the_mount_for_enroot_is_the_spool_at_its_own_path() -> None:
    """As enroot's image format has it: source, target, type, options."""
    text = (CHECKOUT / "etc" / "enroot" / "50-nccl-slurm.fstab").read_text()
    (line,) = [line.split() for line in text.splitlines() if not line.startswith("#")]
    spool = re.search(r"(?m)^#NCCL_SLURM_SPOOL=(\S+)$", (CHECKOUT / "etc" / "capture.conf").read_text())
    assert spool is not None and line[:3] == [spool[1], spool[1], "none"]
    assert {"bind", "rw", "x-create=dir"} <= set(line[3].split(","))


@pytest.mark.parametrize(
    ("values", "absent"),
    [
        ({"NCCL_DEBUG_FILE": "off"}, FILES),
        ({"TIMESTAMP_LEVELS": ""}, {"NCCL_DEBUG_TIMESTAMP_LEVELS"}),
        ({"NCCL_DEBUG_SUBSYS": ""}, {"NCCL_DEBUG_SUBSYS"}),
        ({"FR_DUMP": "off"}, {name for name in OURS if "DUMP" in name or "TEMP" in name}),
        ({"FR_BUFFER_SIZE": "0"}, {name for name in OURS if name.startswith("TORCH")}),
        ({"ELASTIC_LOGS": "off"}, {"PET_LOG_DIR"}),
        ({"FR_BUFFER_SIZE": "many"}, {name for name in OURS if name.startswith("TORCH")}),
    ],
)
def test_each_can_be_switched_off(site: Site, run: Path, values: dict[str, str], absent: set[str]) -> None:
    site.configure(**values)
    found = exports(site, STEP)
    found.pop("NCCL_SLURM_SET")
    assert set(found) == set(OURS) - absent


class TestSiteScript:
    def test_runs_first_with_the_jobs_own_environment(self, site: Site, run: Path) -> None:
        script = site.script("theirs", 'echo "export THEIRS=$HOME:$NCCL_SLURM_SPOOL:$PATH"')
        site.configure(SITE_TASK_PROLOG=str(script))
        done = site.run("task_prolog", {**STEP, "HOME": "/h"}, user=USER)
        first, second = done.stdout.splitlines()[:2]
        assert first == f"export THEIRS=/h::{site.folder}/traps:/usr/bin:/bin" and second == "export NCCL_DEBUG=INFO"

    @pytest.mark.parametrize("status", [1, 7])
    def test_its_failure_stays_a_failure(self, site: Site, run: Path, status: int) -> None:
        site.configure(SITE_TASK_PROLOG=str(site.script("theirs", f"echo print hello; exit {status}")))
        done = site.run("task_prolog", STEP, user=USER)
        assert (done.returncode, done.stdout) == (status, "print hello\n")

    def test_missing_it_fails_as_slurm_would(self, site: Site, run: Path) -> None:
        site.configure(SITE_TASK_PROLOG="/nonexistent")
        assert site.run("task_prolog", STEP, user=USER).returncode != 0

    def test_a_user_cannot_name_it(self, site: Site, run: Path) -> None:
        script = site.script("evil", "echo print evil")
        done = site.run("task_prolog", {**STEP, "NCCL_SLURM_SITE_TASK_PROLOG": str(script)}, user=USER)
        assert "evil" not in done.stdout


@pytest.mark.parametrize("shell", [(), ("dash",)])
@pytest.mark.parametrize("hook", ["task_prolog", "prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm"])
def test_without_room_for_one_more_process_a_hook_does_nothing(
    site: Site, run: Path, shell: tuple[str, ...], hook: str
) -> None:
    """As a user: root may always start one more by this limit."""
    limited = ("setpriv", f"--reuid={USER}", "--clear-groups", "prlimit", "--nproc=0", *shell)
    done = site.run(hook, STEP, shell=limited)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("shell", [(), ("dash",), ("bash",)])
@pytest.mark.parametrize("hook", ["task_prolog", "prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm"])
def test_where_no_file_may_be_written_a_hook_ends_well(
    site: Site, run: Path, shell: tuple[str, ...], hook: str
) -> None:
    done = site.run(hook, STEP, shell=("prlimit", "--fsize=0", *shell), limit=20.0)
    assert done.returncode == 0


INIT = "INIT,BOOTSTRAP,ENV"
CHOICES = {
    "warn": ("WARN", None),
    "info": ("INFO", INIT),
    "net": ("INFO", f"{INIT},NET"),
    "coll": ("INFO", f"{INIT},NET,COLL"),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("name", ["NCCL_SLURM_CAPTURE", "NCCL_SLURM_CAPTURE_OPTION"])
@pytest.mark.parametrize("where", [STEP, BATCH], ids=["step", "batch"])
def test_a_choice_sets_what_nccl_logs(site: Site, run: Path, where: Mapping[str, str], name: str, choice: str) -> None:
    """Who asks for it gets it in a batch script too, and where the site gives no file by itself."""
    site.configure(NCCL_DEBUG_FILE="off")
    found = exports(site, {**where, name: choice})
    assert (found["NCCL_DEBUG"], found.get("NCCL_DEBUG_SUBSYS")) == CHOICES[choice]
    assert found["NCCL_DEBUG_FILE"] == f"{run}/user/nccl.%h.%p.log"
    assert str(found["NCCL_SLURM_SET"]).endswith(f",@{choice}")
    told = {variable: value for variable, value in found.items() if value is not None}
    assert ours(told) == told.keys() - {"NCCL_SLURM_SET", "PET_LOG_DIR"}  # the doctor knows them again


def test_a_variable_of_the_user_counts_before_the_option(site: Site, run: Path) -> None:
    both = {**STEP, "NCCL_SLURM_CAPTURE_OPTION": "coll", "NCCL_SLURM_CAPTURE": "warn"}
    assert exports(site, both)["NCCL_DEBUG"] == "WARN"
    assert exports(site, {**both, "NCCL_SLURM_CAPTURE": "off"}) == {}
    assert (run / "user" / "capture-off").exists()


def test_a_word_that_is_no_choice_changes_nothing(site: Site, run: Path) -> None:
    assert exports(site, {**STEP, "NCCL_SLURM_CAPTURE": "loud; id"}) == exports(site, STEP)


def test_a_choice_never_changes_what_the_user_set(site: Site, run: Path) -> None:
    found = exports(site, {**STEP, "NCCL_SLURM_CAPTURE_OPTION": "coll", "NCCL_DEBUG": "TRACE"})
    assert not FILES & set(found)


def test_a_steps_own_choice_replaces_that_of_its_batch_script(site: Site, run: Path) -> None:
    batch = {name: value or "" for name, value in exports(site, {**BATCH, "NCCL_SLURM_CAPTURE_OPTION": "warn"}).items()}
    found = exports(site, {**STEP, **batch, "NCCL_SLURM_CAPTURE_OPTION": "coll"})
    assert (found["NCCL_DEBUG"], found["NCCL_DEBUG_SUBSYS"]) == CHOICES["coll"]
    changed = exports(site, {**STEP, **batch, "NCCL_DEBUG": "TRACE", "NCCL_SLURM_CAPTURE_OPTION": "coll"})
    assert "NCCL_DEBUG" not in changed


def test_the_reader_of_watch_is_no_rank(site: Site, run: Path) -> None:
    assert exports(site, {**STEP, "NCCL_SLURM_WATCH": "on"}) == {}
    assert not (run / "user" / "task.0.5").exists()
