"""The kernel's words: Xids by class and in the window, OOM kills, panics, lockups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.machines import BOOT, findings, journal, of, worst

XID = "NVRM: Xid (PCI:0000:13:1c): {code}, pid='<unknown>', name=<unknown>, {words}"


def xid(code: int, words: str = "words") -> str:
    return XID.format(code=code, words=words)


@pytest.mark.parametrize(
    ("lines", "expected", "words"),
    [
        ([], "PASS", "no Xid"),
        ([xid(79, "GPU has fallen off the bus.")], "FAIL P0", "Xid 79"),
        ([xid(48, "DBE")], "FAIL P0", "Xid 48"),
        pytest.param([xid(31, "MMU Fault")], "WARN P2", "Xid 31", id="W23: a program's fault"),
        pytest.param([xid(13, "Graphics Exception")], "WARN P2", "Xid 13", id="W23: an application's exception"),
        pytest.param([xid(43)], "PASS", "1 lines that ask for nothing", id="W23: 43 follows another"),
        pytest.param([xid(63)], "PASS", "1 lines that ask for nothing", id="W23: a row was remapped"),
        pytest.param(
            [xid(79, "GPU has fallen off the bus."), *[xid(45)] * 9],
            "FAIL P0",
            "Xid 79",
            id="W23: not pushed out by 45s",
        ),
        (["nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"], "FAIL P0", "sxid"),
        (["NVRM: GPU at PCI:0000:13:1c: GPU-1", "nvme nvme1: I/O 5 QID 3 timeout, aborting"], "PASS", "no Xid"),
        pytest.param(
            ["traps: NVRM: Xid (PCI:0000:13:00): 79[12] trap"], "PASS", "no Xid", id="a program's name is no driver"
        ),
    ],
)
def test_xid(lines: list[str], expected: str, words: str, tmp_path: Path) -> None:
    found = findings(of("p5").kernel(*lines), "node.xid", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (None, "FAIL P0"),
        (BOOT + 900.0, "FAIL P0"),
        pytest.param(BOOT + 5000.0, "PASS", id="W8: before the job"),
    ],
)
def test_only_the_window_counts(since: float | None, expected: str, tmp_path: Path) -> None:
    machine = of("p5").kernel(xid(79, "GPU has fallen off the bus."))
    found = findings(machine, "node.xid", tmp_path, since=since)
    assert worst(found) == expected
    if expected != "PASS":
        assert found[0].since == pytest.approx(BOOT + 1000.0)


@pytest.mark.parametrize(("until", "expected"), [(None, "FAIL P0"), (BOOT + 900.0, "FAIL P0"), (BOOT + 500.0, "PASS")])
def test_what_came_after_a_job_that_has_ended_is_another_jobs(
    until: float | None, expected: str, tmp_path: Path
) -> None:
    machine = of("p5").kernel(xid(79, "GPU has fallen off the bus."))  # 1,000 s after the boot
    assert worst(findings(machine, "node.xid", tmp_path, since=BOOT + 100.0, until=until)) == expected


@pytest.mark.parametrize("name", ["node.xid", "node.oom", "node.kernel"])
@pytest.mark.parametrize(
    ("since", "expected"),
    [
        pytest.param(BOOT - 86400.0, "UNKNOWN", id="a day before this boot"),
        pytest.param(BOOT - 30.0, "PASS", id="within what clocks differ by"),
        (BOOT, "PASS"),
    ],
)
def test_a_window_that_is_older_than_this_boot(name: str, since: float, expected: str, tmp_path: Path) -> None:
    found = findings(of("p5"), name, tmp_path, since=since)
    assert [one.status for one in found] == [expected]
    assert ("the kernel's log begins with this boot" in found[0].text) == (expected == "UNKNOWN")


def test_what_was_read_of_a_window_older_than_this_boot_stays(tmp_path: Path) -> None:
    machine = of("p5").kernel(xid(79, "GPU has fallen off the bus."))
    found = findings(machine, "node.xid", tmp_path, since=BOOT - 86400.0)
    assert sorted(one.status for one in found) == ["FAIL", "UNKNOWN"]


def test_a_log_that_can_not_be_read_is_not_quiet(tmp_path: Path) -> None:
    """W23: an unreadable kernel log is no *no Xid*."""
    machine = of("p5")
    machine.commands["journalctl"] = "exit 1"
    for name in ("node.xid", "node.oom", "node.kernel"):
        assert worst(findings(machine, name, tmp_path / name)) == "UNKNOWN"


def test_a_log_whose_beginning_is_lost_says_so(tmp_path: Path) -> None:
    found = findings(of("p5").kernel(first=BOOT + 20000.0, at=BOOT + 20001.0), "node.xid", tmp_path)
    assert worst(found) == "UNKNOWN" and "overwritten" in found[-1].text


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        *((word, "PASS") for word in ("None", "none", "NONE", "N/A")),
        *((word, "FAIL P0") for word in ("Reset", "GPU Reset", "Node Reboot", "Drain P2P", "Drain and Reset")),
        *((word, "UNKNOWN") for word in ("Whatever", "[Unknown Error]", "ERR!")),
    ],
)
def test_the_drivers_own_word(action: str, expected: str, tmp_path: Path) -> None:
    assert worst(findings(of("p5").gpu(1, recovery=action), "node.xid", tmp_path)) == expected


VERDICT = "GPU recovery action changed from 0x{0[0]:x} ({0[1]}) to 0x{1[0]:x} ({1[1]})"
NOTHING, RESET, REBOOT = (0, "None"), (1, "GPU Reset Required"), (2, "Node Reboot Required")
DOMAIN, NEW = (5, "IMEX Domain Reset"), (77, "Something New")


def verdict(before: tuple[int, str], after: tuple[int, str]) -> str:
    return xid(154, VERDICT.format(before, after))


@pytest.mark.parametrize(
    ("lines", "now", "expected", "words"),
    [
        ([verdict(NOTHING, REBOOT)], "N/A", "FAIL P0", "GPU 0000:13:1c: the driver asked for: Node Reboot Required"),
        ([xid(43), verdict(NOTHING, RESET)], "N/A", "FAIL P0", "GPU Reset Required (Xid 154)"),
        ([verdict(NOTHING, RESET)], "GPU Reset", "FAIL P0", "the driver asks for: GPU Reset"),
        ([verdict(NOTHING, RESET), verdict(RESET, NOTHING)], "N/A", "WARN P2", "does not any more"),
        ([verdict(NOTHING, RESET), verdict(RESET, NOTHING)], "None", "WARN P2", "does not any more"),
        ([verdict(NOTHING, RESET)], "None", "WARN P1", "does not any more"),
        ([verdict(NOTHING, REBOOT)], "None", "FAIL P0", "the driver asked for: Node Reboot Required"),
        ([verdict(NOTHING, REBOOT), verdict(REBOOT, NOTHING)], "None", "WARN P1", "took it back without a reboot"),
        ([xid(43), verdict(NOTHING, REBOOT)], "None", "FAIL P0", "Node Reboot Required"),
        ([verdict(NOTHING, RESET), verdict(RESET, NOTHING), verdict(NOTHING, REBOOT)], "N/A", "FAIL P0", "Node Reboot"),
        ([verdict(NOTHING, DOMAIN)], "N/A", "WARN P1", "of its IMEX domain"),
        ([verdict(NOTHING, NEW)], "N/A", "WARN P1", "which is not known"),
        ([verdict(RESET, NOTHING)], "None", "PASS", "1 lines that ask for nothing"),
    ],
)
def test_the_drivers_word_in_the_log(lines: list[str], now: str, expected: str, words: str, tmp_path: Path) -> None:
    found = findings(of("p5").gpu(3, recovery=now).kernel(*lines), "node.xid", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]
    assert len([one for one in found if one.status in ("FAIL", "WARN")]) == (expected != "PASS")


def test_the_drivers_word_in_the_log_of_a_dead_driver(tmp_path: Path) -> None:
    machine = of("p5").kernel(verdict(NOTHING, REBOOT)).says("nvidia-smi", "couldn't communicate with the driver", 9)
    assert worst(findings(machine, "node.xid", tmp_path)) == "FAIL P0"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reset_required": "Yes"}, "FAIL P0"),
        ({"drain": "Yes"}, "FAIL P0"),
        ({"reset_required": "No", "drain": "N/A"}, "PASS"),
    ],
)
def test_the_drivers_older_words(changes: dict[str, str], expected: str, tmp_path: Path) -> None:
    assert worst(findings(of("p5").gpu(1, recovery="N/A", **changes), "node.xid", tmp_path)) == expected


def test_no_gpu_no_xid(tmp_path: Path) -> None:
    assert worst(findings(of("plain"), "node.xid", tmp_path)) == "NOT-APPLICABLE"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Linux version 6.8.0", "PASS"),
        ("Memory cgroup out of memory: Killed process 8121 (python) total-vm:9kB, anon-rss:8kB", "WARN P1"),
        ("Out of memory: Killed process 8121 (python)", "WARN P1"),
    ],
)
def test_oom(line: str, expected: str, tmp_path: Path) -> None:
    assert worst(findings(of("plain").kernel(line), "node.oom", tmp_path)) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Linux version 6.8.0", "PASS"),
        ("Kernel panic - not syncing: Fatal exception in interrupt", "FAIL P0"),
        ("BUG: unable to handle page fault for address: ffff", "FAIL P0"),
        ("watchdog: BUG: soft lockup - CPU#12 stuck for 23s! [python:8121]", "FAIL P0"),
        ("kernel BUG at mm/slub.c:379!", "FAIL P0"),
        ("invalid opcode: 0000 [#1] SMP NOPTI", "FAIL P0"),
        ("divide error: 0000 [#1] SMP PTI", "FAIL P0"),
        ("general protection fault, probably for non-canonical address 0xdead0108: 0000 [#1] PREEMPT SMP", "FAIL P0"),
        ("Oops: general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1]", "FAIL P0"),
        ("Oops: 0002 [#1] SMP NOPTI", "FAIL P0"),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "FAIL P0"),
        ("BUG: Bad page state in process python  pfn:12345", "FAIL P0"),
        ("Unable to handle kernel NULL pointer dereference at virtual address 0000000000000028", "FAIL P0"),
        ("Internal error: Oops: 0000000096000004 [#1] SMP", "FAIL P0"),
        ("Internal error: Oops - BUG: 00000000f2000800 [#1] SMP", "FAIL P0"),
        ("traps: python[8121] general protection fault ip:7f00 sp:7f00 error:0 in libc.so[7f00+1]", "PASS"),
        ("traps: python[8121] trap invalid opcode ip:7f00 sp:7f00 error:0 in libc.so[7f00+1]", "PASS"),
        ("kernel BUG at x:1![8121]: segfault at 0 ip 00007f00", "PASS"),  # a program's name is no kernel's word
        ("INFO: task python:8121 blocked for more than 120 seconds.", "WARN P1"),
        ("INFO: task kworker/u385:2:2345 blocked for more than 122 seconds.", "WARN P1"),
        ("INFO: task my job:8121 blocked for more than 122 seconds.", "WARN P1"),
        ("nvme nvme1: Device not ready; aborting reset, CSTS=0x1", "WARN P1"),
        ("nvme nvme1: Disabling device after reset failure: -19", "WARN P1"),
        ("nvme nvme1: Removing after probe failure status: -19", "WARN P1"),
        ("nvme nvme1: 8/0/0 default/read/poll queues", "PASS"),
        ("XFS (nvme1n1): log I/O error -5", "WARN P1"),
        ('XFS (nvme1n1): metadata I/O error in "xfs_buf_ioend+0x1" at daddr 0x8 len 8 error 5', "WARN P1"),
        ("XFS (nvme1n1): Filesystem has been shut down due to log error (0x2).", "WARN P1"),
        ("XFS (nvme1n1): Corruption detected. Unmount and run xfs_repair", "WARN P1"),
        ("XFS (nvme1n1): Metadata corruption detected at xfs_inode_buf_verify+0x1, xfs_inode block 0x8", "WARN P1"),
        ("XFS (nvme1n1): Mounting V5 Filesystem", "PASS"),
        ("EXT4-fs (nvme0n1p1): Remounting filesystem read-only", "WARN P1"),
        ("EXT4-fs warning (device dm-0): ext4_end_bio:343: I/O error 10 writing to inode 12", "WARN P1"),
        ("EXT4-fs (nvme0n1p1): Delayed block allocation failed for inode 12 at logical offset 0", "WARN P1"),
        ("EXT4-fs (nvme0n1p1): mounted filesystem with ordered data mode", "PASS"),
        ("Aborting journal on device nvme0n1p1-8.", "WARN P1"),
        ("critical medium error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x80700 phys_seg 4", "WARN P1"),
        ("blk_update_request: critical medium error, dev sda, sector 12345", "WARN P1"),
        ("print_req_error: I/O error, dev nvme0n1, sector 0", "WARN P1"),
        ("I/O error, dev sda, sector 0 op 0x0:(READ)", "WARN P1"),
        ("critical target error, dev nvme0n1, sector 0 op 0x3:(DISCARD) flags 0x800", "PASS"),  # it can't discard
        ("BTRFS error (device nvme1n1): bdev /dev/nvme1n1 errs: wr 1, rd 0, flush 0, corrupt 0, gen 0", "WARN P1"),
        ("md/raid1:md0: Disk failure on nvme1n1, disabling device.", "WARN P1"),
        ("blk_update_request: I/O error, dev fd0, sector 0", "PASS"),
        ("I/O error, dev sr0, sector 0 op 0x0:(READ)", "PASS"),
        ("I/O error, dev loop3, sector 0 op 0x0:(READ)", "PASS"),
        ("Buffer I/O error on dev fd0, logical block 0, async page read", "PASS"),
        ("Buffer I/O error on dev sr0, logical block 0, async page read", "PASS"),
        ("Buffer I/O error on dev dm-0, logical block 0, async page read", "WARN P1"),
        ("EXT4-fs error (device loop3): ext4_find_entry:1455", "PASS"),
        ("nvme nvme1: I/O 5 QID 3 timeout, aborting", "WARN P1"),
        ("EXT4-fs error (device nvme0n1p1): ext4_find_entry:1455", "WARN P1"),
        ("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", "WARN P1"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_Channel#1_DIMM#0", "WARN P1"),
        ("nfs: server 10.0.0.9 not responding, still trying", "WARN P1"),
        ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", "WARN P2"),
        ("mlx5_core 0000:ab:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", "WARN P2"),
        ("mlx5_core 0000:ab:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer", "WARN P1"),
        ("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0", "WARN P1"),
        ("{1}[Hardware Error]: event severity: corrected", "WARN P2"),
        ("{1}[Hardware Error]: It has been corrected by h/w and requires no further action", "WARN P2"),
        ("[Hardware Error]: Corrected error, no action required.", "WARN P2"),
        ("EDAC MC0: 1 CE memory read error on CPU_SrcID#0_Channel#1_DIMM#0", "WARN P2"),
        ("mce: [Hardware Error]: Machine check events logged", "WARN P2"),
        ("mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 7: 8c00004000010091", "WARN P2"),
        ("mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 7: be00000000800400", "WARN P1"),
        ("mce: [Hardware Error]: TSC 0 ADDR 1234 MISC 5678", "WARN P1"),
    ],
)
def test_kernel(line: str, expected: str, tmp_path: Path) -> None:
    assert worst(findings(of("plain").kernel(line), "node.kernel", tmp_path)) == expected


def test_links_that_go_down_while_drivers_load(tmp_path: Path) -> None:
    machine = of("plain").kernel("mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN", at=BOOT + 40.0)
    assert worst(findings(machine, "node.kernel", tmp_path)) == "PASS"


@pytest.mark.parametrize(("word", "expected"), [("corrected", "WARN P2"), ("fatal", "WARN P1")])
def test_lines_of_one_error_go_together(word: str, expected: str, tmp_path: Path) -> None:
    lines = (f"{{1}}[Hardware Error]: event severity: {word}", "{1}[Hardware Error]:   section_type: memory error")
    found = findings(of("plain").kernel(*lines), "node.kernel", tmp_path)
    assert worst(found).replace("FAIL P0", "WARN P1") == expected


LOGGED = "mce: [Hardware Error]: Machine check events logged"


@pytest.mark.parametrize(
    ("bank", "expected"), [("8c00004000010091", "WARN P2"), ("be00000000800400", "WARN P1"), (None, "WARN P1")]
)
def test_that_checks_were_logged_is_said_of_any(bank: str | None, expected: str, tmp_path: Path) -> None:
    status = () if bank is None else (f"mce: [Hardware Error]: CPU 1: Machine Check: 0 Bank 7: {bank}",)
    lines = (LOGGED, *status, "mce: [Hardware Error]: TSC 0 ADDR 1234")
    assert worst(findings(of("plain").kernel(*lines), "node.kernel", tmp_path)) == expected


@pytest.mark.parametrize(
    ("count", "apart_s", "expected"),
    [(9, 300, "WARN P2"), (10, 300, "WARN P1"), (30, 1, "WARN P1"), (15, 1, "WARN P2"), (20, 86400, "WARN P2")],
)
def test_corrected_errors_that_grow(count: int, apart_s: int, expected: str, tmp_path: Path) -> None:
    """A line a second is of one error for two seconds."""
    rows = [(BOOT + 100.0 + number * apart_s, LOGGED) for number in range(count)]
    machine = of("plain").says("journalctl", journal(rows))
    found = findings(machine, "node.kernel", tmp_path, at=BOOT + 100.0 + count * apart_s)
    assert worst(found) == expected
    assert ("again and again" in found[0].text) == (expected == "WARN P1")


NEWEST_FIRST = """case "$*" in *-r*) ;; *) exit 1;; esac
cat <<'END'
{"__REALTIME_TIMESTAMP": "1790001000000000", "SYSLOG_FACILITY": "0", "MESSAGE": "%s"}
END
yes '{"__REALTIME_TIMESTAMP": "1790000900000000", "SYSLOG_FACILITY": "0", "MESSAGE": "cni0: port 3 entered a state"}'
"""


SMALL = {"kernel": {"bytes": 1 << 16}}


def test_a_journal_that_is_too_large_keeps_its_newest_lines(tmp_path: Path) -> None:
    machine = of("p5")
    machine.commands["journalctl"] = NEWEST_FIRST % xid(79, "GPU has fallen off the bus.")
    found = findings(machine, "node.xid", tmp_path / "xid", options=SMALL)
    assert worst(found) == "FAIL P0"
    machine.commands["journalctl"] = NEWEST_FIRST % "quiet"
    found = findings(machine, "node.kernel", tmp_path / "quiet", options=SMALL)
    assert [one.status for one in found] == ["UNKNOWN"]
    assert worst(findings(machine, "node.kernel", tmp_path / "since", since=BOOT + 1000.0, options=SMALL)) == "PASS"


def test_a_journal_that_ended_badly_is_no_quiet_one(tmp_path: Path) -> None:
    machine = of("p5").kernel("quiet")
    machine.commands["journalctl"] = machine.commands["journalctl"].replace("exit 0", "exit 1")
    assert worst(findings(machine, "node.xid", tmp_path)) == "UNKNOWN"


def test_more_lines_than_are_kept(tmp_path: Path) -> None:
    machine = of("plain").kernel(*["nvme nvme1: 8/0/0 default/read/poll queues"] * 1001)
    found = findings(machine, "node.kernel", tmp_path / "all")
    assert [one.status for one in found] == ["UNKNOWN"] and "the oldest are left out" in found[0].text
    assert worst(findings(machine, "node.kernel", tmp_path / "since", since=BOOT + 1500.0)) == "PASS"
