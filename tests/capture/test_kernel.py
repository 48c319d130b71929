from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.capture import kernel
from nccl_slurm.capture.conf import Conf
from nccl_slurm.model import Gap
from nccl_slurm.parse.kernel import kernel_facts
from tests.capture.machine_tree import EARLIER_BOOT, write

XID = "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus."
#: What the kernel said of a program that called itself ``NVRM: x`` and whose file's name holds a line break.
CRASHED = f"NVRM: x[19360] bad frame in rt_sigreturn frame:1 ip:2 sp:3 orax:f in e\n{XID}[400000+1000]"
LOST = (
    "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)


def journalctl(folder: Path, text: str) -> Path:
    """A journalctl that logs its arguments."""
    folder.mkdir(exist_ok=True)
    script = folder / "journalctl"
    script.write_text(f'#!/bin/sh\necho "$*" >>{folder}/calls\n{text}\n')
    script.chmod(0o755)
    return folder


def entry(message: object, at: float = 1700000010.25, **more: Any) -> str:
    """As ``journalctl -k -o json`` prints one record."""
    stamp = str(int(at * 1e6))
    return json.dumps({"__REALTIME_TIMESTAMP": stamp, "SYSLOG_FACILITY": "0", "MESSAGE": message, **more})


def prints(folder: Path, entries: Sequence[str]) -> None:
    (folder.parent / "printed").write_text("\n".join(entries) + "\n")
    journalctl(folder, f"cat {folder.parent}/printed")


def kinds(records: Sequence[tuple[float | None, str]]) -> list[tuple[str, object]]:
    return [(fact.kind, fact.data.get("pci")) for fact in kernel_facts(records, "n1")]


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
    found = kernel.kernel_records(Conf(kernel_log=str(log)), 1700000000.0, 1700000050.0, None, gaps)
    assert (found, gaps) == ([(1700000010.5, XID)], [])


def test_a_line_of_another_form_continues_the_one_before(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("no stamp yet\n1700000010 n1 kernel: one\n   two\n\n1700000011 n1 kernel: three\n")
    found = kernel.kernel_records(Conf(kernel_log=str(log)), 1700000000.0, 1700000050.0, None, [])
    assert found == [(1700000010.0, "one two"), (1700000011.0, "three")]


def test_a_line_break_in_a_file_begins_no_record(tmp_path: Path) -> None:
    log = tmp_path / "kernel.log"
    log.write_text("".join(f"1700000010 n1 kernel: {text}\n" for text in (LOST, CRASHED)))
    found = kernel.kernel_records(Conf(kernel_log=str(log)), 1700000000.0, 1700000050.0, None, [])
    assert kinds(found) == [("kernel.gpu-lost", "0000:b3:00")]


def test_a_line_break_in_the_journal_begins_no_record(programs: Path) -> None:
    prints(programs, [entry(CRASHED), entry(list(CRASHED.encode() + b"\xff")), entry(LOST)])
    found = kernel.kernel_records(Conf(), 1700000000.0, 1700000050.0, None, [])
    assert len(found) == 3 and kinds(found) == [("kernel.gpu-lost", "0000:b3:00")]


def test_what_programs_write_among_the_kernels_records_is_none(programs: Path) -> None:
    """journald.conf's ForwardToKMsg does it, with a name that the program chose."""
    prints(programs, [entry(XID, SYSLOG_FACILITY="1"), entry(XID, SYSLOG_FACILITY=["0", "1"]), entry(None), "[3]", "x"])
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(), 1700000000.0, 1700000050.0, EARLIER_BOOT, gaps) == []
    assert "holds no kernel line" in gaps[0].why


def test_a_journal_that_is_cut_off_is_a_gap(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_LIMIT_BYTES", 1 << 20)
    prints(programs, [entry(XID)] * 20_000)
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(), 1700000000.0, 1700000050.0, None, gaps)
    assert [one.why for one in gaps] == ["larger than 1 MiB: its end was not read"]


def test_a_missing_file_is_a_gap(tmp_path: Path) -> None:
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(kernel_log=str(tmp_path / "none")), 0.0, 9e9, None, gaps) == []
    assert [one.source for one in gaps] == ["kernel log"]


def test_journald_first(programs: Path) -> None:
    prints(programs, [entry(XID)])
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(), 1700000000.7, 1700000050.0, None, gaps) == [(1700000010.25, XID)]
    assert (programs / "calls").read_text() == (
        "-k -o json --output-fields=MESSAGE,SYSLOG_FACILITY --no-pager -q --since=@1700000000\n"
    )
    assert gaps == []


def test_an_earlier_boot_by_its_id(programs: Path) -> None:
    prints(programs, [entry(XID)])
    assert kernel.kernel_records(Conf(), 1700000000.0, 1700000050.0, EARLIER_BOOT, [])
    assert f"--boot={EARLIER_BOOT.replace('-', '')}" in (programs / "calls").read_text()


def test_an_earlier_boot_that_the_journal_lost_is_a_gap_and_not_this_boots_log(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "echo 'Data from the specified boot is not available: No such boot ID in journal' >&2; exit 1")
    write(tmp_path, {"dev/kmsg": "6,1,1000,-;of this boot\n"})
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(sysroot=str(tmp_path)), 0.0, 9e9, EARLIER_BOOT, gaps) == []
    assert "not available" in gaps[0].why


def test_a_quiet_window_of_a_journal_that_works_is_no_gap(programs: Path) -> None:
    journalctl(programs, f"case $* in *--since*) ;; *) echo '{entry('old', 1600000000.0)}' ;; esac")
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(), 1700000000.0, 1700000050.0, None, gaps) == []
    assert gaps == []


def test_an_empty_journal_and_no_ring_buffer_is_a_gap(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 0")
    gaps: list[Gap] = []
    assert kernel.kernel_records(Conf(sysroot=str(tmp_path)), 0.0, 9e9, None, gaps) == []
    assert "holds no kernel line" in gaps[0].why and "/dev/kmsg" in gaps[0].why


def test_the_ring_buffer_stands_in(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 1")
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    write(tmp_path, {"dev/kmsg": f"6,339,5000000,-;first\n SUBSYSTEM=pci\n4,340,9000000,-,caller=T1;{XID}\n"})
    gaps: list[Gap] = []
    found = kernel.kernel_records(Conf(sysroot=str(tmp_path)), booted, time.time() + 1e6, None, gaps)
    assert [text for _, text in found] == ["first", XID]
    assert found[1][0] == pytest.approx(booted + 9.0, abs=1.0)
    assert gaps == []


def test_a_line_break_in_the_ring_buffer_begins_no_record(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 1")
    escaped = [text.replace("\n", "\\x0a") for text in (CRASHED, LOST)]
    lines = [f"4,{n},9000000,-;{text}\n KEY={escaped[0]}" for n, text in enumerate(escaped)]
    write(tmp_path, {"dev/kmsg": "\n".join([*lines, f"12,9,9000000,-;{XID}", ""])})
    found = kernel.kernel_records(Conf(sysroot=str(tmp_path)), 0.0, time.time() + 1e6, None, [])
    assert len(found) == 2 and kinds(found) == [("kernel.gpu-lost", "0000:b3:00")]


#: Runs what a file of zeros holds, which writes to where it may not, under a name of the program's own choice.
CRASH = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.prctl(15, b"NVRM: x", 0, 0, 0)
file = open(sys.argv[1], "rb")
address = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_EXEC, mmap.MAP_PRIVATE, file.fileno(), 0)
ctypes.CFUNCTYPE(None)(address)()
"""


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="the kernel's ring buffer can't be read here")
def test_a_program_that_crashes_makes_no_xid(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 1")
    file = tmp_path / f"e\n{XID}"
    file.write_bytes(bytes(4096))
    began = time.time()
    crash = subprocess.run([sys.executable, "-I", "-c", CRASH, str(file)], check=False)
    assert crash.returncode < 0
    found = kernel.kernel_records(Conf(), began - 60.0, time.time() + 60.0, None, [])
    if not any("NVRM: x[" in text and XID in text for _, text in found):
        pytest.skip("this kernel does not print crashes")
    assert kernel_facts(found, "n1") == []


def test_a_ring_buffer_that_lost_the_runs_start_is_a_gap(programs: Path, tmp_path: Path) -> None:
    journalctl(programs, "exit 1")
    booted = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    write(tmp_path, {"dev/kmsg": "6,339,500000000,-;first\n"})
    gaps: list[Gap] = []
    kernel.kernel_records(Conf(sysroot=str(tmp_path)), booted + 100, booted + 1e6, None, gaps)
    assert [one.source for one in gaps] == ["kernel log before"] and "400 s" in gaps[0].why


def test_a_panic_that_pstore_kept(tmp_path: Path) -> None:
    text = f"Panic#1 Part1\n<4>[ 1843.308145] {XID}\n<0>[ 1843.4][  T123] Kernel panic - not syncing: Fatal\nnoise\n"
    write(tmp_path, {"sys/fs/pstore/dmesg-erst-1": text, "var/lib/systemd/pstore/17/dmesg.txt": "[ 1.0] moved\n"})
    for path in tmp_path.rglob("dmesg*"):
        os.utime(path, (1700000100, 1700000100))
    found = kernel.panic_records(Conf(sysroot=str(tmp_path)), 1700000000.0, 1700000200.0, [])
    assert found == [(None, XID), (None, "Kernel panic - not syncing: Fatal"), (None, "moved")]


def test_a_line_break_in_pstore_begins_no_record(tmp_path: Path) -> None:
    """There the kernel puts the record's own prefix before each of its lines."""
    stamps = ((CRASHED, "<4>[ 1843.308145][ T123] "), (LOST, "<4>[ 1843.308146][ T123] "))
    text = "".join(f"{stamp}{line}\n" for record, stamp in stamps for line in record.split("\n"))
    write(tmp_path, {"sys/fs/pstore/dmesg-erst-1": text + "<4>[ 1844.000001] a\rb\n"})
    os.utime(tmp_path / "sys/fs/pstore/dmesg-erst-1", (1700000100, 1700000100))
    found = kernel.panic_records(Conf(sysroot=str(tmp_path)), 1700000000.0, 1700000200.0, [])
    assert len(found) == 3 and kinds(found) == [("kernel.gpu-lost", "0000:b3:00")]


def test_an_older_panic_is_not_this_runs(tmp_path: Path) -> None:
    write(tmp_path, {"sys/fs/pstore/dmesg-erst-1": "[ 1.0] old\n"})
    os.utime(tmp_path / "sys/fs/pstore/dmesg-erst-1", (1600000000, 1600000000))
    assert kernel.panic_records(Conf(sysroot=str(tmp_path)), 1700000000.0, 1700000200.0, []) == []
