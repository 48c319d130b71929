"""Records that wait to be fetched, and what is answered to whoever comes for them."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nccl_slurm.capture import outbox, serve
from nccl_slurm.capture.conf import Conf
from nccl_slurm.doctor.observation import unpacked
from nccl_slurm.doctor.sources import SOURCES
from nccl_slurm.errors import InputError
from tests.capture.test_worker import PACKAGE, START, Node, node, pythons

__all__ = ["node"]

NAME = f"42.{START}.n1.json"


def offering(node: Node, *, shared: bool = False) -> Conf:
    """Records of this node are offered to the group of whoever runs the tests."""
    node.env["NCCL_SLURM_OUTBOX_GROUP"] = str(os.getegid())
    if not shared:
        del node.env["NCCL_SLURM_SHARED"]
    return Conf(spool=str(node.spool), outbox_group=str(os.getegid()), shared="" if not shared else str(node.shared))


def finished(node: Node, job: str = "42") -> Path:
    run = node.starts(job=job)
    node.ends(run)
    assert node.work("finish", run) == ""
    return run


def said(conf: Conf, wanted: str) -> bytes:
    out = io.BytesIO()
    serve.answer(conf, wanted, out)
    return out.getvalue()


@pytest.mark.parametrize("python", pythons())
def test_a_record_is_offered_and_counts_as_delivered(node: Node, python: str) -> None:
    node.python = python
    conf = offering(node)
    run = finished(node)
    data = (run / "root" / "record.json").read_bytes()
    assert outbox.offers(conf) == [(NAME, len(data))]
    folder, record = node.spool / "outbox", node.spool / "outbox" / NAME
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, record)] == [0o750, 0o640]
    assert {path.stat().st_gid for path in (folder, record)} == {os.getegid()}
    assert (run / "root" / "delivered").exists() and os.listdir(folder) == [NAME]
    assert node.work("finish", run) == ""  # once more: the newer record takes its place
    assert os.listdir(folder) == [NAME] and record.samefile(run / "root" / "record.json")


def test_it_is_offered_beside_a_shared_folder_that_works_and_one_that_does_not(node: Node) -> None:
    conf = offering(node, shared=True)
    assert node.record(finished(node))["job_id"] == 42
    node.env["NCCL_SLURM_SHARED"] = str(node.folder / "absent")
    run = node.starts(job="43")
    node.ends(run)
    assert "No such file" in node.work("finish", run, status=1)
    assert not (run / "root" / "delivered").exists()
    assert {offer.name for offer in outbox.offers(conf)} == {NAME, f"43.{START}.n1.json"}


def test_a_group_that_is_not_there_is_told_and_the_record_stays(node: Node) -> None:
    offering(node)
    run = node.starts()
    node.ends(run)
    told = node.work("finish", run, status=1, NCCL_SLURM_OUTBOX_GROUP="no-such-group")
    assert "no group 'no-such-group'" in told and not (run / "root" / "delivered").exists()
    assert node.work("sweep") == "" and (run / "root" / "delivered").exists()


def test_old_records_go_with_their_run_and_all_when_nothing_is_offered_any_more(node: Node) -> None:
    conf = offering(node)
    first, second = finished(node), finished(node, "43")
    old = START - 73 * 3600
    os.utime(first / "root" / "delivered", (old, old))
    assert node.work("sweep") == ""
    assert not first.exists() and [offer.name for offer in outbox.offers(conf)] == [f"43.{START}.n1.json"]
    assert node.work("sweep", NCCL_SLURM_OUTBOX_GROUP="", NCCL_SLURM_SHARED=str(node.shared)) == ""
    assert outbox.offers(conf) == [] and second.exists()


def test_a_full_spool_costs_users_files_and_no_record_that_waits(node: Node) -> None:
    conf = offering(node)
    run = finished(node)
    node.writes(run, "large", "x" * 2_000_000)
    node.work("sweep", status=1, NCCL_SLURM_SPOOL_MAX_MB="0.001")
    assert not (run / "user").exists() and [offer.name for offer in outbox.offers(conf)] == [NAME]


def test_a_record_is_sent_whole_or_from_where_it_was_cut(node: Node) -> None:
    conf = offering(node)
    data = (finished(node) / "root" / "record.json").read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    whole = f"{serve.HEADER} 0 {len(data)} {digest}\n".encode() + data
    assert said(conf, f"get {NAME}") == whole
    assert said(conf, f"get {NAME} 100 {digest}") == f"{serve.HEADER} 100 {len(data)} {digest}\n".encode() + data[100:]
    assert said(conf, f"get {NAME} 100 {'0' * 64}") == whole  # another record by now
    assert said(conf, f"get {NAME} 99999999 {digest}") == whole


def test_a_listing_is_of_one_job_where_one_is_named(node: Node) -> None:
    conf = offering(node)
    finished(node), finished(node, "421")
    assert said(conf, "list 42").decode().split()[0::2] == [NAME]
    assert len(said(conf, "list").splitlines()) == 2 and said(conf, "list 7") == b""


@pytest.mark.parametrize(
    "command",
    [
        "",
        "sh",
        "nccl-slurm-node sweep",
        "nccl-slurm-node serve",
        "nccl-slurm-node serve list; id",
        "nccl-slurm-node serve list\nid",
        "nccl-slurm-node serve $(id)",
        "sh -c nccl-slurm-node serve list",
        "/usr/lib/openssh/sftp-server",
    ],
)
def test_no_other_command_gets_through(command: str) -> None:
    with pytest.raises(InputError, match="list, get, snapshot and doctor alone"):
        serve.asked([], {"SSH_ORIGINAL_COMMAND": command})


@pytest.mark.parametrize(
    "wanted",
    [
        "",
        "list x",
        "list 1 2",
        "list -1",
        "get",
        "get ../42.1.n1.json",
        f"get /etc/{NAME}",
        f"get {NAME}/..",
        f"get {NAME} 1",
        "snapshot now",
        "doctor x",
        "doctor 42 /etc/shadow",
        "sweep",
        "get 42.1.n1.txt",
    ],
)
def test_no_other_question_is_answered(node: Node, wanted: str) -> None:
    conf = offering(node)
    finished(node)
    with pytest.raises(InputError):
        said(conf, wanted)


def test_before_the_first_record_nothing_is_offered_and_without_a_group_that_is_a_fault(node: Node) -> None:
    conf = offering(node)
    assert said(conf, "list") == b""
    with pytest.raises(InputError, match="set NCCL_SLURM_OUTBOX_GROUP"):
        said(Conf(spool=str(node.spool)), "list")


def test_links_and_large_files_in_the_outbox_are_not_sent(node: Node) -> None:
    conf = offering(node)
    finished(node)
    folder = node.spool / "outbox"
    (folder / "1.1.n1.json").symlink_to("/etc/passwd")
    (folder / "2.1.n1.json").write_bytes(b"x" * ((4 << 20) + 1))
    os.mkfifo(folder / "3.1.n1.json")
    for job in (1, 2, 3):
        with pytest.raises(InputError):
            said(conf, f"get {job}.1.n1.json")


def test_the_original_command_is_asked_by_a_forced_one(node: Node) -> None:
    offering(node)
    finished(node)
    command = [sys.executable, "-I", "-S", str(PACKAGE / "capture" / "main.py"), "serve"]
    env = {**node.env, "SSH_ORIGINAL_COMMAND": "/opt/nccl-slurm/slurm/nccl-slurm-node serve list 42"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split()[0] == NAME
    env["SSH_ORIGINAL_COMMAND"] = "bash -i"
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "") and "for list, get, snapshot and doctor alone" in done.stderr


def test_a_snapshot_tells_what_could_not_be_seen(node: Node) -> None:
    conf = Conf(spool=str(node.spool), sysroot=str(node.root), outbox_group=str(os.getegid()))
    told = json.loads(said(conf, "snapshot"))
    assert told["machine"]["kernel"] and told["snapshot"]["load"] and told["snapshot"]["gpus"] is None
    assert "gpus" in {gap["source"] for gap in told["gaps"]}


def test_the_doctor_reads_what_its_sources_name_and_nothing_else(node: Node) -> None:
    conf = Conf(spool=str(node.spool), sysroot=str(node.root))
    for wanted in ("doctor", "doctor 42"):
        seen = unpacked(said(conf, wanted), "n1", "ssh")
        assert set(seen.found) == set(SOURCES)
        assert seen.kernel and "load" in seen.found


def test_without_a_right_to_the_lock_no_gpu_is_asked(node: Node) -> None:
    conf = Conf(spool=str(node.folder / "absent"), sysroot=str(node.root))
    told = json.loads(said(conf, "snapshot"))
    assert any(gap["source"] == "gpus" and "there is no lock" in gap["why"] for gap in told["gaps"])
