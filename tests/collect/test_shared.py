from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.collect.shared import Inbox, validate_record
from nccl_slurm.errors import InputError, RecordError

NAME = "42.1796000000.n1.json"


def record(**changes: Any) -> dict[str, Any]:
    """A record with nothing in it but what the schema asks for."""
    empty: dict[str, Any] = {
        "schema": "nccl-slurm/node-record/1",
        "cluster": "c",
        "job_id": 42,
        "node": "n1",
        "closed_by": "epilog",
        "written": 1.0,
        "writer": {"version": "0", "python": "3.8", "patterns": None},
        "prolog": None,
        "epilog": None,
        "machine": {
            "identity": "m1",
            "identity_source": "capture.conf",
            "hostname": "n1",
            "boot_id": None,
            "boot_time": None,
            "kernel": None,
            "role": {"slurmctld_running": None, "node_type": None},
        },
        "clock": {"source": "unknown", "offset_s": None, "synchronized": None},
        "snapshots": {"before": None, "after": None},
        "kernel_events": [],
        "facts": [],
        "ranks": [],
        "task_exits": [],
        "files": [],
        "world_size": None,
        "lines_unknown": 0,
        "bytes_read": 0,
        "gaps": [],
    }
    return {**empty, **changes}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    for part in ("new", "tmp", "quarantine"):
        (tmp_path / part).mkdir(mode=0o700)
    return tmp_path


def inbox(shared: Path) -> Inbox:
    return Inbox(str(shared), [os.geteuid()])


def put(shared: Path, content: Any = None, name: str = NAME) -> Path:
    path = shared / "new" / name
    path.write_text(json.dumps(record() if content is None else content))
    return path


def test_good_record(shared: Path) -> None:
    put(shared)
    box = inbox(shared)
    assert box.pending() == [NAME]
    incoming = box.read(NAME)
    assert (incoming.record["node"], incoming.folder_time) == ("n1", 1796000000)
    box.done(NAME)
    box.done(NAME)
    assert box.pending() == []


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [
        (record(node="n2"), NAME, "disagree"),
        (record(job_id=43), NAME, "disagree"),
        (record(schema="nccl-slurm/node-record/9"), NAME, "node-record/1"),
        (record(surprise=1), NAME, "node-record/1"),
        (record(), "../42.1.n1.json", "name"),
        (record(), "42.n1.json", "name"),
        ([], NAME, "node-record/1"),
        (record(written=float("nan")), NAME, "not JSON"),
        (record(world_size=10**400), NAME, "not JSON: number is"),
    ],
)
def test_what_is_refused(shared: Path, content: Any, name: str, why: str) -> None:
    if "/" not in name:
        put(shared, content, name)
    with pytest.raises(RecordError, match=why):
        inbox(shared).read(name)


def test_foreign_owner_is_refused(shared: Path) -> None:
    put(shared)
    box = Inbox(str(shared), [os.geteuid() + 1])
    with pytest.raises(RecordError, match="not trusted"):
        box.read(NAME)
    box.quarantine(NAME)
    assert (shared / "quarantine" / NAME).exists() and box.pending() == []


def test_what_is_wrong_with_the_folder_is_named(shared: Path) -> None:
    """Each of the two has a remedy of its own."""
    (shared / "new").chmod(0o720)
    with pytest.raises(InputError, match=r"others may write here \(mode 0720\); chmod 0700"):
        inbox(shared).pending()
    (shared / "new").chmod(0o700)
    os.chown(shared / "new", 7002, -1)
    with pytest.raises(InputError, match=r"belongs to uid 7002; chown it to root, or add 7002 to daemon\.record_uids"):
        inbox(shared).pending()


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "folder"])
def test_only_plain_files(shared: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.write_text(json.dumps(record()))
    path = shared / "new" / NAME
    if kind == "symlink":
        path.symlink_to(target)
    elif kind == "hard link":
        path.hardlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(RecordError):
        inbox(shared).read(NAME)


def test_oversized(shared: Path) -> None:
    (shared / "new" / NAME).write_bytes(b" " * (4 * 1024 * 1024 + 1))
    with pytest.raises(RecordError, match="4 MiB"):
        inbox(shared).read(NAME)


def test_a_folder_that_others_may_write_is_not_read(shared: Path) -> None:
    (shared / "new").chmod(0o777)
    with pytest.raises(InputError, match="0700"):
        inbox(shared).pending()


def test_missing_folder_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="create it"):
        inbox(tmp_path).pending()


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)).map(
        lambda v: json.dumps(v).encode()
    )
)
def test_any_bytes_are_refused_with_a_word(data: bytes) -> None:
    with pytest.raises(RecordError):
        validate_record(data)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400])
def test_a_number_that_no_clock_or_counter_can_hold_is_refused(number: str) -> None:
    data = json.dumps(record()).replace('"written": 1.0', f'"written": {number}')
    with pytest.raises(RecordError, match="not JSON: number is"):
        validate_record(data.encode())


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(RecordError):
        validate_record(b"[" * 200000)


def test_old_parts_of_killed_writers_go_and_nothing_else(shared: Path) -> None:
    old = [f"{NAME}.77.1796000000123456789", f"{NAME}.78.1", "notes.txt", f"{NAME}.77", ".nfs0001"]
    for name in [*old, f"{NAME}.79.2"]:
        (shared / "tmp" / name).write_text("{")
    (shared / "tmp" / f"{NAME}.80.3").mkdir()
    (shared / "tmp" / f"{NAME}.81.4").symlink_to("notes.txt")
    for name in [*old, f"{NAME}.80.3"]:
        os.utime(shared / "tmp" / name, (1000.0, 1000.0))
    assert inbox(shared).remove_parts(2000.0) == 2
    left = {path.name for path in (shared / "tmp").iterdir()}
    assert left == {"notes.txt", f"{NAME}.77", ".nfs0001", f"{NAME}.79.2", f"{NAME}.80.3", f"{NAME}.81.4"}
