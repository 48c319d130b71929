"""exits.c and settings.c by themselves, compiled with a small main: what root's part of the plugin writes where."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccl_slurm.capture import taskexits
from nccl_slurm.capture.spool import Run
from nccl_slurm.model import Gap

SOURCE = Path(__file__).resolve().parents[2] / "slurm" / "spank"
JOB, RUN = 42, "42.1700000000"
USER = 7001
MAIN = r"""
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "nccl_slurm.h"

void slurm_error(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
}

int main(int count, char **arguments)
{
    struct task_exit ended = {.job = 42, .step = (uint32_t)strtoul(arguments[1], NULL, 0), .task = 3, .local = 1,
        .pid = 71, .status = atoi(arguments[2]), .begin = 1700000000000000000, .end = 1700000001500000000};
    struct settings settings;
    const char *why = "kept";

    read_settings(&settings, count - 3, arguments + 3);
    if (!settings.good)
        return 3;
    if (keep_exit(&settings, &ended, &why))
        return puts(settings.spool) < 0;
    puts(why);
    return 1;
}
"""


@dataclass
class Writer:
    program: Path
    spool: Path

    def call(self, *arguments: str, step: str = "0", status: int = 0) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), step, str(status), *(arguments or (f"spool={self.spool}",))]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def refuses(self) -> str:
        done = self.call()
        assert done.returncode == 1
        return done.stdout.strip()

    @property
    def root(self) -> Path:
        return self.spool / RUN / "root"

    @property
    def file(self) -> Path:
        return self.root / "task_exits"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if os.geteuid() != 0:
        pytest.skip("it looks for root's folders")
    if shutil.which("cc") is None or not Path("/usr/include/slurm/spank.h").exists():
        pytest.skip("needs a C compiler and libslurm-dev")
    folder = tmp_path_factory.mktemp("spank")
    (folder / "main.c").write_text(MAIN)
    sources = [SOURCE / "exits.c", SOURCE / "settings.c", folder / "main.c"]
    flags = ["-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", f"-I{SOURCE}"]
    subprocess.run(["cc", *flags, "-o", folder / "writer", *sources], check=True)
    return folder / "writer"


@pytest.fixture
def writer(program: Path, tmp_path: Path) -> Writer:
    made = Writer(program, tmp_path / "spool")
    made.root.mkdir(parents=True)
    made.spool.chmod(0o711)
    made.root.chmod(0o700)
    (made.spool / str(JOB)).symlink_to(RUN)
    return made


def test_what_is_written_is_what_the_worker_reads(writer: Writer) -> None:
    for step, status in (("0", 1792), ("4294967291", 0), ("4294967290", 9), ("7", 139)):
        assert writer.call(step=step, status=status).returncode == 0
    gaps: list[Gap] = []
    found = taskexits.task_exits(Run(str(writer.spool / RUN), JOB, 1700000000), gaps)
    assert gaps == []
    assert [(one["step"], one["exit"]) for one in found] == [("0", 7), ("batch", 0), ("interactive", -9), ("7", -11)]
    assert found[0] == {"rank": 3, "exit": 7, "pid": 71, "time": 1700000001.5, "start": 1700000000.0, "step": "0"}
    assert (writer.file.stat().st_mode & 0o7777, writer.file.stat().st_uid) == (0o600, 0)


def test_a_folder_that_is_not_roots_alone_is_not_written_to(writer: Writer) -> None:
    for folder in (writer.spool, writer.root.parent, writer.root):
        os.chown(folder, USER, USER)
        assert "not root's alone" in writer.refuses()
        os.chown(folder, 0, 0)
        before = folder.stat().st_mode & 0o7777
        folder.chmod(before | 0o020)
        assert "not root's alone" in writer.refuses()
        folder.chmod(before)
    assert writer.call().returncode == 0


def test_links_are_not_followed(writer: Writer, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    writer.file.symlink_to(elsewhere / "file")
    assert writer.refuses() == "the run's file of them can't be opened"
    writer.file.unlink()
    shutil.rmtree(writer.root)
    writer.root.symlink_to(elsewhere)
    assert "absent, or not root's alone" in writer.refuses()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    "target", ["43.1700000000", "42.", "42.17x", "../" + RUN, "42.17/../" + RUN, "/etc", "42." + "1" * 90, "421.1"]
)
def test_the_jobs_link_names_a_run_of_this_job(writer: Writer, target: str) -> None:
    link = writer.spool / str(JOB)
    link.unlink()
    link.symlink_to(target)
    assert writer.refuses() == "the job has no run in the spool"
    link.unlink()
    assert writer.refuses() == "the job has no run in the spool"


def test_a_file_of_two_names_a_fifo_and_a_full_one_are_left_alone(writer: Writer, tmp_path: Path) -> None:
    writer.file.touch(mode=0o600)
    os.link(writer.file, tmp_path / "other")
    assert writer.refuses() == "the run's file of them can't be opened"
    writer.file.unlink()
    os.mkfifo(writer.file)
    assert writer.refuses() == "the run's file of them can't be opened"
    writer.file.unlink()
    with writer.file.open("wb") as file:
        file.truncate((8 << 20) - 255)
    assert writer.refuses() == "the run's file of them is full"


@pytest.mark.parametrize("given", ["/srv/{0}/capture.conf", "/srv/%h.{0}/capture.conf", "/srv//{0}.conf"])
def test_where_the_prolog_gave_up_the_spool_is_not_looked_at(writer: Writer, given: str) -> None:
    """That of this capture.conf alone: a host may be several nodes (slurmd -N), and of several clusters."""
    host, own = os.uname().nodename.partition(".")[0], str(os.getpid())
    conf = given.format(own).replace("%h", host)
    mark, others, nodes = (
        Path(f"/run/nccl-slurm{path.replace('/', '-')}.{name}")
        for path, name in ((conf, host), (f"/other{conf}", host), (conf, f"{host}x"))
    )
    arguments = (f"spool={writer.spool}", f"conf={given.format(own)}")
    try:
        others.touch()
        nodes.touch()
        assert writer.call(*arguments).returncode == 0
        mark.touch()
        done = writer.call(*arguments)
        assert (done.returncode, done.stdout) == (1, "the node's prolog gave up on a file system that hangs\n")
        assert writer.call().returncode == 0
    finally:
        for one in (mark, others, nodes):
            one.unlink(missing_ok=True)


def test_the_host_stands_in_the_spools_name(writer: Writer) -> None:
    host = os.uname().nodename.partition(".")[0]
    there = writer.spool.with_name(host)
    writer.spool.rename(there)
    assert writer.call(f"spool={there.parent}/%h").stdout.strip() == str(there)


@pytest.mark.parametrize(
    "arguments",
    [
        ["spool=rel"],
        ["spool="],
        ["spool=/a/%n"],
        ["spool=/a%"],
        ["spool=/" + "a" * 5000],
        ["sp=/a"],
        ["x"],
        ["conf=rel"],
        ["conf="],
        ["conf=/a/%%"],
        ["conf=/" + "a" * 5000],
        ["spool=/a", "conf=b"],
    ],
)
def test_arguments_are_read_strictly(writer: Writer, arguments: list[str]) -> None:
    done = writer.call(*arguments)
    assert done.returncode == 3 and done.stdout.startswith("nccl-slurm: plugstack.conf: ")
