"""Lines of Xid 74 and 144-150 against NVIDIA's page. Lines marked (log) were seen in public reports."""

from __future__ import annotations

import pytest

from nccl_slurm.recommend.nvlink import bits_of, read
from nccl_slurm.recommend.policy import Decode, default

POLICY = default()


def line74(*registers: int) -> str:
    words = ", ".join(f"0x{value:x}" for value in registers)
    return f"NVRM: Xid (PCI:0000:03:00): 74, pid='<unknown>', name=<unknown>, NVLink: error on link 14({words})"


def line5(code: int, unit: str, intr: int, status: int, severity: str = "Fatal") -> str:
    return (
        f"NVRM: Xid (PCI:0018:01:00): {code}, {unit} {severity} XC0 i0 Link 12 (0x{intr:08x} 0x{status:08x} 0x00000000)"
    )


@pytest.mark.parametrize(
    ("registers", "bits"),
    [
        ((0, 0, 0x10000, 0, 0, 0, 0), {(3, 16)}),  # the sample of NVIDIA's page
        ((0x21, 0, 0, 0, 0, 0, 0), {(1, 0), (1, 5)}),
        ((0, 0xFFFFFFFF, 0, 0, 0, 0xFF, 0xFF), set()),  # registers 2, 6 and 7 tell nothing
        ((0, 0, 0, 0x40000), {(4, 18)}),  # four registers, older drivers
    ],
)
def test_registers(registers: tuple[int, ...], bits: set[tuple[int, int]]) -> None:
    assert bits_of(line74(*registers)) == bits


@pytest.mark.parametrize(
    ("registers", "alone", "action", "words"),
    [
        ((1 << 0,), True, "none", "ignore"),
        ((1 << 23 | 1 << 30,), True, "none", "ignore"),
        ((1 << 1,), True, "investigate", "sympathetic"),
        ((1 << 20,), False, "none", "follows another error"),
        ((1 << 1 | 1 << 4,), True, None, "parity"),
        ((1 << 5,), True, None, "parity"),
        ((1 << 8,), True, None, "seating"),
        ((1 << 28,), True, None, "seating"),
        ((1 << 21,), True, None, "signal"),
        ((1 << 27,), True, None, "repeated"),
        ((1 << 2,), True, None, "unlisted"),
        ((0, 0, 1 << 0), True, None, "parity"),
        ((0, 0, 1 << 13), True, None, "unexpected"),
        ((0, 0, 1 << 16), True, None, "repeated"),
        ((0, 0, 1 << 17), True, None, "repeated"),
        ((0, 0, 0, 1 << 16), True, "investigate", "sympathetic"),
        ((0, 0, 0, 1 << 18), False, "none", "sympathetic"),
        ((0, 0, 0, 0, 1 << 18), True, None, "parity"),
        ((0, 0, 0, 0, 1 << 29), True, "none", "threshold"),
        ((1 << 0, 0, 0, 0, 1 << 20), True, "none", "ignore, threshold"),
    ],
)
def test_xid_74(registers: tuple[int, ...], alone: bool, action: str | None, words: str) -> None:
    told = read(74, line74(*registers, *[0] * (7 - len(registers))), POLICY, alone=alone)
    assert told is not None
    assert told.action == action
    assert words in told.why


@pytest.mark.parametrize("text", ["", "NVLink: fatal error detected on link 14", "(0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"])
def test_xid_74_without_a_bit_is_its_row(text: str) -> None:
    assert read(74, text, POLICY, alone=True) is None


ACTION = {"IGNORE": "none", "XID_154_EVAL": "none", "RESET_GPU": "reboot"}


def _id(row: Decode) -> str:
    return f"{row.xid}-{row.units[0]}-{row.reason}-{row.status}"


@pytest.mark.parametrize("row", POLICY.nvlink5, ids=_id)
def test_each_row_is_found_by_its_line(row: Decode) -> None:
    """By each name of its unit; RLW_RXPIPE's own number keeps the bit above it clear."""
    intr = (row.reason or 0) << 20 | (0xC2 if row.units == ("RLW_RXPIPE",) else 0)
    for unit in (*row.units, "/".join(row.units)):
        told = read(row.xid, line5(row.xid, unit, intr, row.status or 0), POLICY, alone=True)
        assert told is not None
        assert told.action == ACTION[row.nvidia]
        assert row.investigatory in told.why
        assert "replace" not in (told.after or ()) or row.investigatory == "CONTACT_SUPPORT"


@pytest.mark.parametrize(
    ("line", "action", "after"),
    [
        # (log)
        ("145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 12 (0x040988e2 0x00000008 0x00000000 0x0", "none", ()),
        ("145, pid=1, name=ray::W, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1", "none", ()),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000", "reboot", ("investigate",)),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x00086226 0x00000001 0x0", "none", ()),
        # reason 4, a hardware code to GPUd (inspection at once); NVIDIA resets first: ours too
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x0", "reboot", ("investigate",)),
        # the bit above the unit's number, before R575 and since
        ("145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x000004c2 0x00000001 0x0", "reboot", ("replace",)),
        ("145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x00000086 0x00000001 0x0", "reboot", ("replace",)),
        ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x000000c2 0x00000001 0x0", "none", ()),
        # two bits at once: the heavier one
        ("144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000021 0x00000003 0x0", "reboot", ("replace",)),
        # 149 has codes, no bits
        ("149, NETIR_MFDE_EVENT Fatal XC0 i0 Link 00 (0x00000014 0x00000006 0x0", "investigate", ()),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x03f00011 0x00000000 0x0", "investigate", ()),
        ("144, SAW_EGR Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001 0x0", "investigate", ()),
        ("150, MSE Degraded Fatal XC0 i0 Link 00 (0x00000000 0xffffffff 0x0", "reboot", ("replace",)),
    ],
)
def test_lines_of_nvlink_5(line: str, action: str, after: tuple[str, ...]) -> None:
    told = read(int(line[:3]), f"NVRM: Xid (PCI:0008:01:00): {line}", POLICY, alone=True)
    assert told is not None
    assert (told.action, told.after) == (action, after)


@pytest.mark.parametrize("text", ["RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0 ", "RLW_RXPIPE Nonfatal XC0", "", "149"])
def test_a_line_that_is_cut_is_its_row(text: str) -> None:
    assert read(149, text, POLICY, alone=True) is None
    assert read(79, text, POLICY, alone=True) is None
