"""What the kernel quotes of a user's choice (names of programs and files) is no word about the machine."""

from __future__ import annotations

import pytest

from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import Row, Rows, load_rows
from tests.parse.conftest import Read, source

ROWS: Rows = load_rows()
KERNEL = [row for row in ROWS.rows if row.producer == "kernel"]
#: How the kernel begins what it says of a program: ``{comm}`` are 15 bytes and ``{file}`` a name, of the user's choice.
OF_PROGRAMS = [
    "{comm}[19360]: segfault at 0 ip 00007f sp 00007f error 6 in {file}[7f0+1000]",
    "{comm}[19360] bad frame in rt_sigreturn frame:1 ip:2 sp:3 orax:f in {file}[400000+1000]",
    "traps: {comm}[9] general protection fault ip:1 sp:2 error:0 in {file}[1+2]",
    "traps: {comm}[9] trap invalid opcode ip:1 sp:2 error:0 in {file}[1+2]",
    "process '{file}' started with executable stack",
    "{comm} (8): {file}",
    "{comm}(8): {file}",
    "{comm}: page allocation failure: order:0, mode:0x1, nodemask=(null),cpuset={file}",
    "{comm}: potentially unexpected fatal signal 11. {file}",
    "{comm}[8]: {file}",
    "{comm}:8 {file}",
    "{comm} invoked oom-killer: gfp_mask=0x0, order=0 {file}",
    "audit: type=1701 audit(1.2:3): pid=8 comm={comm} exe={file} sig=11",
    "core pattern: |{file}",
    "warning: process `{comm}' used the deprecated call in {file}",
    "warning: '{file}' uses a deprecated call",
    "overlayfs: {file}",
    "INFO: task {comm}:8 is {file}",
    "Out of memory: {file}",
    " {file}",
]


def kinds(record: str) -> list[str]:
    return [fact.kind for fact in kernel_facts([(1.0, record)], "n1", ROWS)]


@pytest.mark.parametrize("form", OF_PROGRAMS)
@pytest.mark.parametrize("row", KERNEL, ids=lambda row: row.id)
def test_a_name_in_a_record_is_no_word_of_the_kernel(row: Row, form: str) -> None:
    """The user calls the program as the row's own line begins, and the file as all of it or as what is left."""
    for length in range(16):
        for file in (row.yes, row.yes[length:], row.yes[15:]):
            assert kinds(form.format(comm=row.yes[:length], file=file)) in ([], ["kernel.hung-task"]), (length, file)


@pytest.mark.parametrize("row", KERNEL, ids=lambda row: row.id)
def test_rows_of_the_kernel_match_from_the_start_alone(row: Row) -> None:
    assert row.data(row.yes) is not None
    assert row.data(f"x {row.yes}") is None and row.data(f"x\n{row.yes}") is None


@pytest.mark.parametrize(
    "prefix",
    [
        "Feb 14 05:03:41 n7 kernel: ",
        "Feb 14 05:03:41 n7 kernel: [ 1843.308145] ",
        "2026-02-14T05:03:41.123456+0000 n7 kernel: ",
        "2026-02-14T05:03:41.123456+00:00 n7 kernel: [1843.308145] ",
        "1795956000.123456 n7 kernel: ",
        "[ 1843.308145] ",
        "<4>[ 1843.308145][  T123] ",
        "[Sat Feb 14 05:03:41 2026] ",
        "[Fri Feb 6 05:03:41 2026] ",
        "kernel: ",
        "srun: ",
    ],
)
def test_kernel_lines_in_files_are_found_behind_what_stands_before_them(read: Read, prefix: str) -> None:
    line = "NVRM: Xid (PCI:0000:a1:00): 79, pid=1, GPU has fallen off the bus."
    parsed = read(source("kern.log", f"{prefix}{line}\n"))
    assert [fact.kind for fact in parsed.facts] == (["kernel.xid"] if prefix != "srun: " else [])
