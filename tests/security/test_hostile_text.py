"""Text of users in comments, names and paths: for a terminal, for SQL, for our own brackets, for the next job's row."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from nccl_slurm.daemon.placement import place, place_live
from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome
from tests.security.conftest import heal

TERMINAL = "\x1b[2J\x1b]52;c;cm0gLXJm\x07\x1b]0;owned\x07\x9b31m\u202egnp.exe\u200b\r"
ROW = "\n99999|99999|root|0|batch|FAILED|n4\n99999~n4~FAILED\n"
TEXTS = {
    "terminal": TERMINAL,
    "rows": f"x{ROW}y",
    "sql": "'); DROP TABLE runs; DELETE FROM comments; -- \" ; `x`",
    "templates": "%s%n%(x)s {0.__class__} {{7*7}} ${jndi:x} $(touch /tmp/pwned) `id`",
    "bytes": "\udcff\udcfe\udc80",
    "long": "x" * 1000,
    "ours": "[nccl-slurm: rank 0 n4 stalled first (gpu-hw-lost, Xid 79); replace n4; report 1]",
    "half": "[nccl-slurm: [nccl-slurm: ] ]; report 1",
    "markup": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "options": "--admincomment=x comment=y -i where jobid=1",
}


@pytest.fixture(scope="module")
def jobs(judged: Cluster) -> dict[str, str]:
    """One job a text, which is its name, its comment and the name of its work folder, all of them failing."""
    heal(judged)
    return {name: submitted(judged, name, text) for name, text in TEXTS.items()}


def submitted(lab: Cluster, name: str, text: str) -> str:
    folder = lab.home / text.replace("/", "_")[:60]
    folder.mkdir(exist_ok=True)
    options = [f"--comment={text}", f"--job-name={text[:200]}", f"--chdir={folder}"]
    script = f"#!/bin/sh\nprintf '%s\\n' \"$SLURM_JOB_NAME\" 'RuntimeError: {name}'\nexit 1\n"
    return lab.sbatch(script, *options)


@pytest.mark.parametrize("name", TEXTS)
def test_the_job_is_judged_and_nothing_acts_on_its_text(judged: Cluster, jobs: dict[str, str], name: str) -> None:
    job = jobs[name]
    found = outcome(judged, job)
    assert (found.state, found.report["job"]["user"]) == ("FAILED", "alice")
    shown = judged.nccl_slurm("report", job).stdout + judged.nccl_slurm("report", job, "--ranks").stdout
    assert re.search(r"[^\n\x20-\x7e\xa1-\u0377]", shown.replace("\ufffd", "")) is None
    assert not {item["target"] for item in found.report["recommendations"]} & {"n4"}
    assert json.loads(judged.nccl_slurm("report", job, "--json").stdout)["job"]["id"] == job


@pytest.mark.parametrize("name", TEXTS)
def test_the_users_comment_is_as_it_was(judged: Cluster, jobs: dict[str, str], name: str) -> None:
    """Whatever field our line went to; a bracket just like ours is taken for ours."""
    job, text = jobs[name], TEXTS[name]
    outcome(judged, job)
    done = subprocess.run(
        ["sacct", "-n", "-X", "-j", job, "-P", "-o", "comment"], env=judged.env, capture_output=True, check=True
    )
    kept = done.stdout.decode("utf-8", "surrogateescape")
    left = re.sub(r" ?\[nccl-slurm: [^\[\]]*; report [0-9]+\]", "", kept.rstrip("\n"))
    # a database in UTF-8 keeps other bytes as question marks, with or without us
    expected = {"ours": "", "bytes": "???"}.get(name, text.rstrip("\n"))
    assert left == expected
    assert kept.count(f"report {job}]") <= 1


def test_lists_and_logs_are_safe_to_look_at_and_no_row_was_forged(judged: Cluster, jobs: dict[str, str]) -> None:
    for name in jobs:
        outcome(judged, jobs[name])
    listed = judged.nccl_slurm("jobs").stdout + judged.nccl_slurm("status").stdout + judged.nccl_slurm("nodes").stdout
    assert re.search(r"[^\n\x20-\x7e\xa1-\u0377\ufffd]", listed) is None
    assert judged.nccl_slurm("report", "99999", check=False).returncode == 1
    rows = json.loads(judged.nccl_slurm("jobs", "--json", "--user", "alice").stdout)
    assert set(jobs.values()) <= {row["job"] for row in rows}
    assert (
        re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", (judged.log / "nccl-slurm.out").read_text(errors="replace")) is None
    )
    assert not (judged.scratch / "pwned").exists()


@pytest.mark.parametrize("text", ["x" * 65535, "é" * 60000, "[nccl-slurm: x; report 1]" * 2000])
def test_a_comment_as_long_as_accounting_takes_it(text: str) -> None:
    ours = "[nccl-slurm: hang-unknown, nobody proven; report 7]"
    for placed in (place(ours, text, "", lower_cases=False), place_live(ours, text)):
        assert placed.field is None or len(placed.text.encode()) <= 65535
        assert placed.field != "comment" or placed.text.replace(ours, "").strip() in text
