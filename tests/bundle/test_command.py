"""``nccl-slurm bundle``: what is in it, for whom, and what it never does."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nccl_slurm import schema
from nccl_slurm.bundle.doctor import of_run
from nccl_slurm.bundle.extract import AROUND, Span, read_spans, shown
from nccl_slurm.bundle.part import text_part
from nccl_slurm.bundle.records import NODES_MAX
from nccl_slurm.cli.bundle import command
from nccl_slurm.cli.main import main
from nccl_slurm.doctor.check import Finding
from nccl_slurm.doctor.result import Result
from nccl_slurm.errors import InputError
from nccl_slurm.history.store import Store
from tests.attribute.scenarios import SCENARIOS, START, exception
from tests.bundle.site import EVIL, INSTANCE, files_of, made, record, report

WAITS = (
    "[rank{0}]:[E704 19:50:32.426182607 ProcessGroupNCCL.cpp:757] [Rank {0}] Watchdog caught collective "
    "operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600077 milliseconds\n"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return made(tmp_path)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "job.log").write_text(f"HF_TOKEN=hf_{'a' * 34}\n" + WAITS.format(0) + WAITS.format(1) + EVIL + "\n")
    return folder


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(command, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def bundled(site: Path, *arguments: str | Path) -> dict[str, bytes]:
    folder = site.parent / "out"
    run("42", "--config", site, "--folder", "-o", folder, *arguments)
    return files_of(folder)


def status(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["bundle", *map(str, arguments)])
    return int(ended.value.code or 0)


def test_the_record_of_these_tests_is_one() -> None:
    schema.loads(json.dumps(record("n1")).encode(), "node-record/1")


def test_what_is_in_it(site: Path) -> None:
    files = bundled(site)
    assert set(files) == {
        "INDEX.md",
        "SHA256SUMS",
        "case.json",
        "environment.txt",
        "nodes/n1/after.json",
        "nodes/n1/before.json",
        "nodes/n1/kernel.txt",
        "nodes/n1/record.json",
        "nodes/n2/after.json",
        "nodes/n2/before.json",
        "nodes/n2/kernel.txt",
        "nodes/n2/record.json",
        "report.json",
        "report.txt",
        "slurm/run.json",
        "support-case.md",
    }
    assert schema.loads(files["report.json"], "report/1")["job"]["id"] == "42"
    assert b"NVRM: Xid" in files["nodes/n1/kernel.txt"]
    assert b"NCCL_IB_HCA=mlx5_0" in files["environment.txt"]
    case = json.loads(files["case.json"])
    assert case["answers"]["window"][0].startswith("job: 20") and "(UTC)" in case["answers"]["window"][0]
    assert case["answers"]["orchestrator"] == ["Slurm"]
    assert f"n1: {INSTANCE}" in case["answers"]["instances"]


def test_the_past_of_machines_that_are_named(tmp_path: Path) -> None:
    told = report(SCENARIOS["node-fail"]())
    named = [item["target"] for item in told["recommendations"] if item["target"]]
    files = bundled(made(tmp_path, told))
    assert named == ["n2"] and "nodes/n2/history.json" not in files  # nothing ever happened to it
    told["recommendations"][0]["target"] = "n1"
    (tmp_path / "again").mkdir()
    files = bundled(made(tmp_path / "again", told))
    assert json.loads(files["nodes/n1/history.json"])["events"][0]["kind"] == "boot"


def test_of_many_nodes_those_that_are_named_come_first(tmp_path: Path) -> None:
    told = report(SCENARIOS["node-fail"]())
    told["recommendations"][0]["target"] = "n999"
    site = made(tmp_path, told)
    with Store.open(f"sqlite:///{tmp_path}/state/store.db") as store:
        for number in [*range(100, 100 + NODES_MAX), 999]:
            store.add_record("c", 42, 1, record(f"n{number}"), received=2e9)
    files = bundled(site)
    nodes = {name.split("/")[1] for name in files if name.startswith("nodes/")}
    assert len(nodes) == NODES_MAX and "n999" in nodes
    assert b"node records: those of 3 more nodes are not in it" in files["INDEX.md"]


def test_checksums_hold(site: Path) -> None:
    files = bundled(site)
    lines = files.pop("SHA256SUMS").decode().splitlines()
    assert sorted(lines) == sorted(f"{hashlib.sha256(data).hexdigest()}  {name}" for name, data in files.items())
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=site.parent / "out", check=False)
    assert done.returncode == 0


def test_the_same_case_makes_the_same_tar_for_its_owner_alone(site: Path) -> None:
    paths = [site.parent / "one.tar.gz", site.parent / "two.tar.gz"]
    for path in paths:
        run("42", "--config", site, "--no-slurm", "-o", path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with tarfile.open(paths[0]) as tar:
        members = tar.getmembers()
    assert [one.name for one in members] == sorted(one.name for one in members)
    assert {one.name.partition("/")[0] for one in members} == {"nccl-slurm-42-run1"}
    for one in members:
        assert (one.mode, one.uid, one.gid, one.uname, one.isreg()) == (0o600, 0, 0, "", True)


def test_a_folder_is_for_its_owner_alone(site: Path) -> None:
    before = os.umask(0)
    try:
        bundled(site)
    finally:
        os.umask(before)
    for at, _, names in os.walk(site.parent / "out"):
        assert stat.S_IMODE(os.stat(at).st_mode) == 0o700
        assert all(stat.S_IMODE(os.stat(os.path.join(at, name)).st_mode) == 0o600 for name in names)


def test_a_dry_run_lists_and_writes_nothing(site: Path) -> None:
    before = sorted(os.listdir(site.parent))
    told = run("42", "--config", site, "-o", site.parent / "x.tar.gz", "--dry-run")
    assert sorted(os.listdir(site.parent)) == before
    assert "nodes/n1/record.json" in told and "would be written" in told


def test_a_record_of_a_bundle_is_one_for_rules_test(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("42", "--config", site, "-o", site.parent / "case", "--folder")
    main(["rules", "test", str(site.parent / "case" / "nodes" / "n1" / "record.json"), "--json", "--config", str(site)])
    assert json.loads(capsys.readouterr().out)["node"] == "n1"


def test_a_dry_run_ends_as_the_real_one_would(site: Path) -> None:
    path = site.parent / "mine"
    path.write_text("mine")
    assert status("42", "--config", site, "-o", path, "--dry-run") == 1
    assert "would be written" in run("42", "--config", site, "-o", path, "--dry-run", "--force")
    assert path.read_text() == "mine"
    (site.parent / "folder").mkdir()
    for words in (["-o", "/nonexistent/x"], ["-o", path / "x"], ["-o", site.parent / "folder", "--force"]):
        assert status("42", "--config", site, *words) == status("42", "--config", site, *words, "--dry-run") == 1
    told = run("42", "--config", site, "--folder", "-o", f"{site.parent}/new/", "--dry-run")
    assert "would be written" in told and not (site.parent / "new").exists()


def test_what_is_there_stays(site: Path) -> None:
    path = site.parent / "mine"
    path.write_text("mine")
    assert status("42", "--config", site, "-o", path) == 1
    assert status("42", "--config", site, "-o", path, "--folder") == 1
    assert path.read_text() == "mine"
    run("42", "--config", site, "-o", path, "--force")
    assert tarfile.is_tarfile(path)


def test_a_link_is_replaced_and_not_followed(site: Path) -> None:
    target, link = site.parent / "target", site.parent / "link"
    target.write_text("mine")
    link.symlink_to(target)
    assert status("42", "--config", site, "-o", link) == 1
    run("42", "--config", site, "-o", link, "--force")
    assert target.read_text() == "mine" and not link.is_symlink()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["43"], 1),
        (["42", "--run", "2"], 1),
        (["42", "--logs", "x"], 2),
        ([], 2),
        (["42", "--force", "--folder"], 2),
        (["42", "--max-mb", "0"], 2),
        (["--logs", "x", "--with-doctor"], 2),
        (["42", "--with-doctor", "--doctor", "x"], 2),
        (["42", "--doctor", "/nonexistent"], 1),
        (["42", "-o", "/nonexistent/x"], 1),
        (["42", "-o", "-"], 2),
        (["42", "-o", "-", "--folder"], 2),
        (["42", "-o", ""], 2),
    ],
)
def test_what_is_refused(site: Path, arguments: list[str], expected: int) -> None:
    assert status(*arguments, "--config", site) == expected


def test_beyond_the_limit_the_least_telling_goes_and_the_index_says_so(site: Path) -> None:
    from nccl_slurm.bundle.make import Material, make
    from nccl_slurm.bundle.records import Kept
    from nccl_slurm.doctor.aws.place import Place

    records = {node: record(node) for node in ("n1", "n2")}
    material = Material(report(), Place(), Kept(records=records))
    whole = make(material)
    assert not whole.left
    always = {"INDEX.md", "SHA256SUMS", "case.json", "report.json", "report.txt", "support-case.md"}
    told = sum(
        len(part.data) for part in whole.parts if part.order <= 1 and part.path not in ("INDEX.md", "SHA256SUMS")
    )
    small = make(material, told + 10)
    kept, left = {part.path for part in small.parts}, {part.path for part in small.left}
    assert always <= kept and left and kept | left == {part.path for part in whole.parts}
    assert "nodes/n1/kernel.txt" in kept and "nodes/n1/record.json" in left
    page = next(part.data.decode() for part in small.parts if part.path == "INDEX.md")
    assert "Left out" in page and all(path in page for path in left)
    least = make(material, 1)
    assert {part.path for part in least.parts} == always


def test_secrets_and_hostile_text_come_out_harmless(tmp_path: Path) -> None:
    run_ = SCENARIOS["exception"]()
    evil = exception(1, f"ValueError: {EVIL}", file="/x/\x1b]0;t\x07../../etc/passwd", offset=3)
    told = report(replace(run_, facts=(replace(evil, id="f1"),)))
    told["nodes"] = [{**told["nodes"][0], "name": name} for name in ("../../up", EVIL, "n1")]
    told["recommendations"] = [
        {**item, "target": EVIL, "why": EVIL} for item in report(SCENARIOS["node-fail"]())["recommendations"]
    ]
    files = bundled(made(tmp_path, told))
    for name, data in files.items():
        assert not name.startswith((".", "/")) and ".." not in name
        assert b"\x1b" not in data and "\u202e".encode() not in data and b"hunter2" not in data, name
    for name in ("INDEX.md", "support-case.md"):
        outside, inside = [], False
        for line in files[name].decode().splitlines():
            if line.startswith("````"):
                inside = not inside
            elif not inside:
                outside.append(line)
            else:
                assert line[:1].isalpha() and ("| " in line or "@ " in line or line.endswith("|")), line
        assert "script" not in "\n".join(outside) and "im_start" not in "\n".join(outside)


def test_node_names_that_are_no_names_have_folders_of_their_own(tmp_path: Path) -> None:
    from nccl_slurm.bundle.records import Kept, of_records

    names = ["../../up", "", ".", "..", ".hidden", "n1", "N1", "a/b", "x" * 300, "\x1b[2J"]
    parts = of_records(Kept(records={name: record(name) for name in names}))
    folders = {part.path.split("/")[1] for part in parts}
    assert len({folder.lower() for folder in folders}) == len(names)
    for part in parts:
        top, folder, name = part.path.split("/")
        assert top == "nodes" and name and folder.isascii() and not folder.startswith(".") and len(folder) < 100


def test_lines_around_the_evidence_of_given_logs(logs: Path) -> None:
    folder = logs.parent / "out"
    run("--logs", logs, "--folder", "-o", folder)
    (name,) = [name for name in files_of(folder) if name.startswith("logs/")]
    text = (folder / name).read_text()
    assert "Watchdog caught collective operation timeout" in text and "job.log" in text
    assert "hf_" not in text and "hunter2" not in text and "\x1b" not in text
    case = json.loads((folder / "case.json").read_text())
    assert any("Watchdog caught" in line for line in case["answers"]["errors"])
    assert case["answers"]["cluster"] is None
    assert "## Name of the cluster\n\nnot known." in (folder / "support-case.md").read_text()


def test_what_a_dump_says_is_no_message_for_support() -> None:
    from nccl_slurm.bundle.make import Material, make
    from nccl_slurm.doctor.aws.place import Place

    told = report()
    cited = told["verdict"]["culprits"][0]["evidence"][0]
    dump = {
        "kind": "flight-recorder.waiting",
        "text": "flight recorder: group 0 default_pg: waits in sequence number 4",
    }
    told["facts"] = [{**one, **dump} if one["id"] == cited else one for one in told["facts"]] + [
        {**told["facts"][0], "id": "f90", "role": "cause", "text": "NCCL WARN one that was printed"}
    ]
    made = make(Material(told, Place()))
    case = json.loads(next(part for part in made.parts if part.path == "case.json").data)
    assert "NCCL WARN one that was printed" in case["answers"]["errors"]
    assert not [one for one in case["answers"]["errors"] if "flight recorder" in one]


_PASSWORD = b"export DB_PASSWORD=SuperSecretValue123 and more\n"
_KEY = (
    b"-----BEGIN RSA PRIVATE KEY-----\n"
    + b"MIIEpAIBAAKCAQEA1x/Ab1\n" * 4
    + b"shortTail9/ab==\n-----END RSA PRIVATE KEY-----\n"
)


@pytest.mark.parametrize("secret", [_PASSWORD, _KEY])
@pytest.mark.parametrize("into", [1, 5, 20, 30, 40, 60, 120])
def test_no_secret_is_cut_from_the_name_that_tells_it(tmp_path: Path, secret: bytes, into: int) -> None:
    """Wherever the piece begins; the line of the evidence stays, and those beside it."""
    into = min(into, len(secret) - 1)
    before = b"x" * 99 + b"\n"
    pad = b"step 1 of 2\n" * 400
    evidence = b"ValueError: loss is nan\n"
    fill = AROUND - (len(secret) - into)
    body = before + secret + (pad * 2)[: fill - 1] + b"\n" + evidence + b"after\n" + pad * 2
    path = tmp_path / "job.out"
    path.write_bytes(body)
    start = len(before) + into
    assert body[start + AROUND :].startswith(evidence)
    with path.open("rb") as file:
        pieces = read_spans(file, [Span(start, start + 2 * AROUND)])
    text = text_part("logs/1", shown("job.out", pieces), "x").data.decode()
    assert "ValueError: loss is nan\nafter\n" in text and "step 1 of 2\n" in text
    assert not any(part in text for part in ("SecretValue", "Value123", "MIIEp", "1x/Ab1", "shortTail9"))
    ((span, data),) = pieces
    assert body[span.start : span.end] == data and data.endswith(b"\n")


def test_evidence_in_a_line_longer_than_a_piece_stays(tmp_path: Path) -> None:
    body = b"y" * 20_000 + b"\n" + b"ValueError: loss " + b"z" * 20_000
    path = tmp_path / "job.out"
    path.write_bytes(body)
    at = 20_001
    with path.open("rb") as file:
        ((_, data),) = read_spans(file, [Span(at - AROUND, at + AROUND)])
    assert data.startswith(b"ValueError: loss zzz") and b"y" not in data


def output_report(paths: list[Path], user: str) -> dict[str, Any]:
    facts = [exception(1, file=str(path), offset=7) for path in paths]
    told = report(replace(SCENARIOS["exception"](), facts=[replace(one, id=f"f{n}") for n, one in enumerate(facts, 1)]))
    told["job"]["user"] = user
    return told


def test_lines_around_the_evidence_of_the_job(tmp_path: Path) -> None:
    path = tmp_path / "slurm-42.out"
    path.write_text("before\nValueError: loss is nan\nafter\n")
    files = bundled(made(tmp_path, output_report([path, tmp_path / "gone.out"], _me())))
    (text,) = [data.decode() for name, data in files.items() if name.startswith("logs/")]
    assert "before\nValueError: loss is nan\nafter" in text
    assert b"gone.out: No such file or directory" in files["INDEX.md"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_reads_the_output_of_a_job_as_its_user(tmp_path: Path) -> None:
    """What the user could not read, or put a link in the place of, stays closed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        mine, closed, others, link = (folder / each for each in ("mine", "closed", "others", "link"))
        for path in (mine, closed, others):
            path.write_text(f"1234567 this is {path.name}\n")
        os.chown(mine, 65534, 65534)
        closed.chmod(0o600)
        link.symlink_to(closed)
        files = bundled(made(tmp_path, output_report([mine, closed, others, link], "nobody")))
    (text,) = [data.decode() for name, data in files.items() if name.startswith("logs/")]
    assert "this is mine" in text
    assert not any(b"this is closed" in data or b"this is others" in data for data in files.values())


def test_a_user_that_this_host_does_not_know_is_a_gap(tmp_path: Path) -> None:
    files = bundled(made(tmp_path, output_report([tmp_path / "site.toml"], "no-such-user")))
    assert b"no-such-user is not known on this host" in files["INDEX.md"]
    assert not any(name.startswith("logs/") for name in files)


def test_a_packed_log_is_a_gap(logs: Path) -> None:
    import gzip

    text = (logs / "job.log").read_bytes()
    (logs / "job.log").unlink()
    (logs / "job.log.gz").write_bytes(gzip.compress(text))
    run("--logs", logs, "--folder", "-o", logs.parent / "out")
    files = files_of(logs.parent / "out")
    assert b"job.log.gz: packed" in files["INDEX.md"] and not any(name.startswith("logs/") for name in files)
    assert b"Watchdog caught" in files["report.json"]


def _me() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def test_what_slurm_says_and_what_it_does_not(tmp_path: Path) -> None:
    site = made(tmp_path)
    folder = tmp_path / "no-slurm"
    folder.mkdir()
    answers = {
        "scontrol": 'echo "$@"; echo "UserId=alice MungeKey=AKIAIOSFODNN7EXAMPLE"',
        "sacct": "echo no >&2; exit 1",
    }
    for name, script in answers.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    files = bundled(site)
    assert files["slurm/job.txt"].startswith(b"$ scontrol show job 42\nshow job 42\n")
    assert b"show node n[1-2]" in files["slurm/nodes.txt"]
    assert not any(b"AKIA" in data for data in files.values())
    assert "slurm/sacct.txt" not in files and b"ended with status 1: no" in files["INDEX.md"]
    assert b"sinfo: No such file" in files["INDEX.md"]


FAILED = Finding("node.gpu-count", "FAIL", "7 of 8", "P0", values={"t": "hf_" + "a" * 34})


def doctor_of(*findings: Finding, at: float = START + 800, job: str | None = "42", **more: Any) -> dict[str, Any]:
    result = Result(at, 1.0, findings or [FAILED], {"node.gpu-count": "x"}, job=job, **more)
    told: dict[str, Any] = json.loads(json.dumps(result.to_json()))
    return told


DOCTOR = doctor_of()


def test_findings_of_a_file(site: Path) -> None:
    path = site.parent / "doctor.json"
    path.write_text(json.dumps(DOCTOR))
    files = bundled(site, "--doctor", path)
    assert json.loads(files["doctor.json"])["findings"][0]["text"] == "7 of 8"
    assert b"hf_a" not in files["doctor.json"]
    assert b"node.gpu-count FAIL P0: 7 of 8" in files["support-case.md"]
    for text in ("", "{}", "[]", '{"findings": 7}', "[" * 100_000, json.dumps({**DOCTOR, "schema": "x"})):
        path.write_text(text)
        assert status("42", "--config", site, "--doctor", path, "--dry-run") == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_findings_of_what_is_no_file(
    site: Path, make: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    make(path := site.parent / "doctor.json")
    assert status("42", "--config", site, "--doctor", path, "--dry-run") == 1
    assert f"--doctor {path}: is no regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (doctor_of(job="7"), "it is of job 7, this case of job 42"),
        (doctor_of(cluster="other"), "it is of cluster other, this case of cluster test"),
        (doctor_of(job="42", cluster="Test"), ""),
        (doctor_of(job=None), ""),
    ],
)
def test_findings_of_another_case_are_refused(
    site: Path, told: dict[str, Any], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = site.parent / "doctor.json"
    path.write_text(json.dumps(told))
    if why:
        assert status("42", "--config", site, "--doctor", path, "--dry-run") == 1
        assert why in capsys.readouterr().err
    else:
        run("42", "--config", site, "--doctor", path, "--dry-run")


CLEAN = Finding("node.gpu-count", "PASS", "8 of 8")


@pytest.mark.parametrize(
    ("told", "clean", "gap"),
    [
        (doctor_of(CLEAN), True, ""),
        (doctor_of(CLEAN, narrowed=["--only node.gpu-count"]), False, "not all was looked at: --only node.gpu-count"),
        (doctor_of(CLEAN, left_out=["accounting: no answer"]), False, ""),
        (doctor_of(CLEAN, job="7"), False, ""),
        (doctor_of(CLEAN, job=None), False, "it was asked about no job"),
        (doctor_of(CLEAN, at=START - 5), False, "before the job began"),
        ({key: one for key, one in doctor_of(CLEAN).items() if key != "narrowed"}, False, ""),
    ],
)
def test_a_clean_doctor_is_one_of_this_job_and_of_all(told: dict[str, Any], clean: bool, gap: str) -> None:
    from nccl_slurm.bundle.make import Material, make
    from nccl_slurm.doctor.aws.place import Place

    made = make(Material(report(), Place(), doctor=told))
    case = next(part for part in made.parts if part.path == "support-case.md").data
    assert (b"nothing of it is wrong" in case) == clean
    assert any(gap in one.why for one in made.gaps if one.source == "nccl-slurm doctor") == bool(gap)


def test_findings_of_a_doctor_that_is_run_now(tmp_path: Path) -> None:
    script = tmp_path / "doctor"
    (tmp_path / "told").write_text(json.dumps(DOCTOR))
    script.write_text(f"#!/bin/sh\ncat {tmp_path}/told\nexit 1\n")
    assert of_run("42", None, ["/bin/sh", str(script)]) == DOCTOR
    script.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(InputError, match="exit 3"):
        of_run("42", None, ["/bin/sh", str(script)])


def test_nothing_is_sent_and_no_network_is_touched(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert b"report" in bundled(site)["report.txt"]


def test_the_tar_can_be_unpacked_by_tar_itself(site: Path, tmp_path: Path) -> None:
    path = tmp_path / "case.tar.gz"
    run("42", "--config", site, "-o", path)
    listed = subprocess.run(["tar", "tzf", str(path)], capture_output=True, text=True, check=True).stdout
    assert "nccl-slurm-42-run1/INDEX.md" in listed
    with tarfile.open(fileobj=io.BytesIO(path.read_bytes())) as tar:
        assert tar.getnames() == listed.splitlines()
