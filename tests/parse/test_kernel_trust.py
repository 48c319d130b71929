"""What the kernel quotes of a user's choice (names of programs and files) is no word about the machine."""

from __future__ import annotations

import pytest

from nccl_slurm.parse.kernel import kernel_facts

XID = "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        (XID, ["kernel.xid"]),
        (f"python3[13443]: segfault at 0 ip 00007f sp 00007f error 6 in {XID}[7f0+1000]", []),
        (f"NVRM: a[7]: segfault at 0 ip 1 sp 2 error 6 in {XID}", []),
        (f"traps: python3[9] general protection fault ip:1 sp:2 error:0 in {XID}[1+2]", []),
        (f"audit: type=1701 exe={XID}", []),
        (f"python3 (8): {XID}", []),
    ],
)
def test_a_name_is_no_xid(line: str, kinds: list[str]) -> None:
    assert [fact.kind for fact in kernel_facts([(1.0, line)], "n1")] == kinds
