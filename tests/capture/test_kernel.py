from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from nccl_slurm.capture import kernel
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap
from tests.capture.machine_tree import EARLIER_BOOT, write

XID = "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus."


def journalctl(folder: Path, text: str) -> Path:
    """A journalctl that logs its arguments."""
    folder.mkdir(exist_ok=True)
    script = folder / "journalctl"
    script.write_text(f'#!/bin/sh\necho "$*" >>{folder}/calls\n{text}\n')
    script.chmod(0o755)
    return folder


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return tmp_path / "bin"


def test_a_file_gives_the_lines_of_the_window(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    log.write_text(
        f"99.5 too short a stamp\n1700000010.5 n1 kernel: {XID}\n1700000099 n1 kernel: late\n1699999999.9 early\n"
    )
    gaps: list[Gap] = []
    found = kernel.kernel_lines(Conf(kernel_log=str(log)), 1700000000.0, 1700000050.0, None, gaps)
    assert (found, gaps) == ([(1700000010.5, XID)], [])


def test_a_line_of_another_form_continues_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("no stamp yet\n1700000010 n1 kernel: one\n   two\n\n1700000011 n1 kernel: three\n")
    found = kernel.kernel_lines(Conf(kernel_log=str(log)), 1700000000.0, 1700000050.0, None, [])
    assert found == [(1700000010.0, "one two"), (1700000011.0, "three")]


def test_only_the_drivers_own_messages_have_several_lines(tmp_path: Path) -> None:
    """A line break in the name of a user's file must not begin a message of its own."""
    log = tmp_path / "kernel.log"
    log.write_text(
        "1700000010 n1 kernel: NVRM: The NVIDIA GPU 0000:b3:00.0\n  NVRM: fallen off the bus\n"
        "1700000011 n1 kernel: NVRM: a[7]: segfault at 0 ip 1 sp 2 error 6 in x\n  NVRM: Xid (PCI:0000:a1:00): 79\n"
    )
    found = kernel.kernel_lines(Conf(kernel_log=str(log)), 1700000000.0, 1700000050.0, None, [])
    assert [text for _, text in found][1:] == [
        "NVRM: fallen off the bus",
        "NVRM: a[7]: segfault at 0 ip 1 sp 2 error 6 in x NVRM: Xid (PCI:0000:a1:00): 79",
    ]


def test_a_missing_file_is_a_gap(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    assert kernel.kernel_lines(Conf(kernel_log=str(tmp_path / "none")), 0.0, 9e9, None, gaps) == []
    assert [one.source for one in gaps] == ["kernel log"]


def test_journald_first(programs: Path) -> None:
    journalctl(programs, f"echo '1700000010.25 n1 kernel: {XID}'")
    gaps: list[Gap] = []
    assert kernel.kernel_lines(Conf(), 1700000000.7, 1700000050.0, None, gaps) == [(1700000010.25, XID)]
    assert (programs / "calls").read_text() == "-k -o short-unix --no-pager -q --since=@1700000000\n"
    assert gaps == []


def test_an_earlier_boot_by_its_id(programs: Path) -> None:
    journalctl(programs, f"echo '1700000010.25 n1 kernel: {XID}'")
    assert kernel.kernel_lines(Conf(), 1700000000.0, 1700000050.0, EARLIER_BOOT, [])
    assert f"--boot={EARLIER_BOOT.replace('-', '')}" in (programs / "calls").read_text()


def test_an_earlier_boot_that_the_journal_lost_is_a_gap_and_not_this_boots_log(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "echo 'Data from the specified boot is not available: No such boot ID in journal' >&2; exit 1")
    write(tmp_path, {"dev/kmsg": "6,1,1000,-;of this boot\n"})
    gaps: list[Gap] = []
    assert kernel.kernel_lines(Conf(sysroot=str(tmp_path)), 0.0, 9e9, EARLIER_BOOT, gaps) == []
    assert "not available" in gaps[0].why


def test_a_quiet_window_of_a_journal_that_works_is_no_gap(programs: Path) -> None:
    journalctl(programs, "case $* in *--since*) ;; *) echo '1600000000.0 n1 kernel: old' ;; esac")
    gaps: list[Gap] = []
    assert kernel.kernel_lines(Conf(), 1700000000.0, 1700000050.0, None, gaps) == []
    assert gaps == []


def test_an_empty_journal_and_no_ring_buffer_is_a_gap(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 0")
    gaps: list[Gap] = []
    assert kernel.kernel_lines(Conf(sysroot=str(tmp_path)), 0.0, 9e9, None, gaps) == []
    assert "holds no kernel line" in gaps[0].why and "/dev/kmsg" in gaps[0].why


def test_the_ring_buffer_stands_in(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 1")
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    write(tmp_path, {"dev/kmsg": f"6,339,5000000,-;first\n SUBSYSTEM=pci\n4,340,9000000,-,caller=T1;{XID}\n"})
    gaps: list[Gap] = []
    found = kernel.kernel_lines(Conf(sysroot=str(tmp_path)), booted, time.time() + 1e6, None, gaps)
    assert [text for _, text in found] == ["first", XID]
    assert found[1][0] == pytest.approx(booted + 9.0, abs=1.0)
    assert gaps == []


def test_a_ring_buffer_that_lost_the_runs_start_is_a_gap(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 1")
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    write(tmp_path, {"dev/kmsg": "6,339,500000000,-;first\n"})
    gaps: list[Gap] = []
    kernel.kernel_lines(Conf(sysroot=str(tmp_path)), booted + 100, booted + 1e6, None, gaps)
    assert [one.source for one in gaps] == ["kernel log before"] and "400 s" in gaps[0].why


def test_a_panic_that_pstore_kept(tmp_path: Path) -> None:
    text = f"Panic#1 Part1\n<4>[ 1843.308145] {XID}\n<0>[ 1843.4][  T123] Kernel panic - not syncing: Fatal\nnoise\n"
    write(tmp_path, {"sys/fs/pstore/dmesg-erst-1": text, "var/lib/systemd/pstore/17/dmesg.txt": "[ 1.0] moved\n"})
    for path in tmp_path.rglob("dmesg*"):
        os.utime(path, (1700000100, 1700000100))
    found = kernel.panic_lines(Conf(sysroot=str(tmp_path)), 1700000000.0, 1700000200.0, [])
    assert found == [(None, XID), (None, "Kernel panic - not syncing: Fatal"), (None, "moved")]


def test_an_older_panic_is_not_this_runs(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/pstore/dmesg-erst-1": "[ 1.0] old\n"})
    os.utime(tmp_path / "sys/fs/pstore/dmesg-erst-1", (1600000000, 1600000000))
    assert kernel.panic_lines(Conf(sysroot=str(tmp_path)), 1700000000.0, 1700000200.0, []) == []
