"""Paths that a user gives to Slurm: job output, and what a batch script names. Read as that user, or not at all."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from nccl_slurm.daemon.conclude import AT_ONCE
from nccl_slurm.daemon.output import MAX_LEFT, OutputReader
from nccl_slurm.daemon.settle import in_turn
from nccl_slurm.history.rows import RunRow
from tests.cluster import mounts
from tests.cluster.harness import Cluster
from tests.cluster.outcome import outcome
from tests.cluster.processes import wait_until
from tests.cluster.scratch import USERS
from tests.security.conftest import heal
from tests.security.loot import Canary, fingerprint, said

#: Lines that are never run: the daemon reads them for places where steps write.
NAMED = (
    "srun --output={0} true",
    "srun -o {1} -e {2} true",
    "torchrun --log-dir={3} x.py",
    "torchrun --log_dir {4}/../{4} x.py",
    "srun --output=/proc/self/environ --error=/proc/1/environ true",
    "srun --output=/proc/*/environ --error=/proc/self/fd/* true",
    "srun -o /dev/zero -e /dev/stdin true",
    "srun -o %%t/../../%s -e '/*/*/*/*/*.log' true",
    "srun -o $(cat {0}) -e `id` true",
    "srun -o 'unbalanced true",
    "srun -o '{0}\nsrun -o' true",
)


def test_what_a_batch_script_names_is_read_as_its_user(lab: Cluster) -> None:
    root_only = Canary.plant(lab.scratch / "dev" / "root-only.log", 0)
    closed = lab.scratch / "dev" / "closed"
    closed.mkdir(mode=0o700, exist_ok=True)
    kept = Canary.plant(closed / "kept.log", USERS["alice"])
    bobs = Canary.plant(lab.scratch / "home" / "bob" / "open.log", USERS["bob"], 0o644)
    own = Canary.plant(lab.home / "named.log", USERS["alice"])
    link = lab.home / "link.log"
    link.unlink(missing_ok=True)
    link.symlink_to(own.path)
    before = fingerprint(root_only.path, kept.path, bobs.path)
    given = (root_only.path, bobs.path, link, closed, "/etc")
    lines = [line.format(*given) for line in NAMED]
    script = "\n".join(["#!/bin/sh", "exit 1", *lines, f"srun -o {own.path} true"]) + "\n"
    job = lab.sbatch(script, "-w", "n1")
    found = outcome(lab, job)
    text, gaps = said(lab, job), {gap["source"]: gap["why"] for gap in found.report["gaps"]}
    assert not [one.word for one in (root_only, kept, bobs) if one.word in text]
    assert own.word in text, "what is alice's is read where she named it"
    assert gaps[str(root_only.path)] == "Permission denied" and gaps[str(closed)] == "Permission denied"
    assert "not by the job's user" in gaps[str(bobs.path)] and "a link is not followed" in gaps[str(link)]
    assert gaps["/dev/zero"] == "not a regular file"
    assert "PATH=" not in text.split('"gaps"')[0] or "LANG=C.UTF-8\0" not in text
    assert fingerprint(root_only.path, kept.path, bobs.path) == before


@dataclass(frozen=True)
class Outputs:
    """Jobs that run at the same time, by what each calls its output. ``before``: of the files that are not alice's."""

    root_only: Canary
    bobs: Canary
    before: dict[str, tuple[int, ...]]
    jobs: dict[str, str]

    def now(self) -> dict[str, tuple[int, ...]]:
        return fingerprint(self.root_only.path, self.bobs.path, Path("/etc/shadow"))


@pytest.fixture(scope="module")
def outputs(judged: Cluster) -> Outputs:
    lab = judged
    heal(lab)
    root_only = Canary.plant(lab.scratch / "dev" / "root-only.log", 0)
    bobs = Canary.plant(lab.scratch / "home" / "bob" / "open.log", USERS["bob"], 0o644)
    fifo, link = lab.home / "fifo", lab.home / "output-link"
    os.mkfifo(fifo)
    os.chown(fifo, USERS["alice"], USERS["alice"])
    link.symlink_to(root_only.path)
    paths = {"shadow": Path("/etc/shadow"), "root-only": root_only.path, "bobs": bobs.path, "fifo": fifo, "link": link}
    made = Outputs(root_only, bobs, fingerprint(root_only.path, bobs.path, Path("/etc/shadow")), {})
    for kind, path in {**paths, "folder": lab.home}.items():
        options = ("-w", "n1", "--error=/dev/null", f"--output={path}")
        made.jobs[kind] = lab.sbatch("#!/bin/sh\nexit 1\n", *options)
    lab.wait_job(made.jobs["fifo"], {"RUNNING"})  # its own open waits for a reader; ours must not wait for a writer
    lab.slurm("scancel", made.jobs["fifo"])
    for job in made.jobs.values():
        lab.wait_job(job)
    return made


@pytest.mark.parametrize("kind", ["shadow", "root-only", "bobs", "fifo", "link", "folder"])
def test_what_a_job_calls_its_output(judged: Cluster, outputs: Outputs, kind: str) -> None:
    lab = judged
    found = outcome(lab, outputs.jobs[kind])
    text = said(lab, outputs.jobs[kind])
    assert outputs.root_only.word not in text and outputs.bobs.word not in text
    assert "root:$" not in text and "root:*" not in text
    assert found.culprits == frozenset()
    assert outputs.now() == outputs.before
    idle = wait_until(lambda: lab.node_state("n1") == "IDLE", 300, every=0.3)
    assert idle, "Slurm's own open of it must not be ours to mend"


def test_a_reader_that_is_held_up_ends_with_a_gap(tmp_path: Path) -> None:
    """As on a mount that hangs: the process that reads does not answer."""
    hung = tmp_path / "python3"
    hung.write_text("#!/bin/sh\nexec sleep 600\n")
    hung.chmod(0o755)
    began = time.monotonic()
    read = OutputReader("", 1.0, python=str(hung)).read([str(tmp_path)], 0, 0.0)
    assert "no answer within 1 s" in read.gaps[0].why and time.monotonic() - began < 60


def test_many_runs_of_one_user_wait_behind_the_first_of_each_other() -> None:
    runs = [RunRow("lab", number, 1, str(number), uid=uid) for number, uid in enumerate((1, 1, 1, 1, 2, 2, None))]
    assert [run.raw_id for run in in_turn(runs)] == [0, 4, 6, 1, 5, 2, 3]


#: Those of this cluster: other tests have users of these numbers too. A reader may be gone between any two looks at it.
STOPS_READERS = """
import os, sys, time

def stop(pid):
    words = open(f"/proc/{pid}/cmdline", "rb").read()
    if b"capture/main.py" in words and os.fsencode(sys.argv[1]) in words:
        if f"Uid:\\t{os.getuid()}\\t" in open(f"/proc/{pid}/status").read():
            os.kill(pid, 19)

end = time.time() + 1500
while time.time() < end:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            stop(int(name))
        except OSError:
            pass
"""


def test_a_user_who_stops_all_readers_delays_others_a_little(lab: Cluster) -> None:
    """alice's reader on the controller is stopped each time; bob's verdict comes all the same."""
    program = lab.home / "stop.py"
    program.write_text(STOPS_READERS)
    stopper = lab.sbatch(f"#!/bin/sh\nexec python3 {program} {lab.scratch}\n", "-w", "n4")
    lab.wait_job(stopper, {"RUNNING"})
    much = "#!/bin/sh\nyes 'a line of this job' | head -n 400000\nexit 1\n"
    slow = [lab.sbatch(much, "-w", "n1") for _ in range(8)]
    bobs = lab.sbatch("#!/bin/sh\nexit 1\n", "-w", "n2", user="bob")
    found = outcome(lab, bobs)
    assert found.state == "FAILED" and f"report {bobs}]" in found.comment
    assert lab.job_states(stopper) == ["RUNNING"], "alice's readers were stopped all the time"
    lab.slurm("scancel", f"--signal={signal.SIGKILL.name[3:]}", "--full", stopper)
    gaps = [gap["why"] for job in slow for gap in outcome(lab, job).report["gaps"]]
    assert any("stopped by a signal" in why for why in gaps), gaps


@pytest.fixture
def dead_server(lab: Cluster) -> Iterator[ExitStack]:
    """A folder of alice's that is a mount whose server never answers, for the daemon alone: Slurm itself, on the nodes,
    opens the job's output before we do."""
    folder = lab.home / "nfs"
    folder.mkdir(exist_ok=True)
    lab.run(["chown", "alice", str(folder)])
    lab.stop_daemon()
    with ExitStack() as stack:
        stack.callback(lab.stop_daemon)
        stack.enter_context(mounts.private_mounts())
        mount = stack.enter_context(ExitStack())
        mount.enter_context(mounts.hung(folder))
        lab.start_daemon()
        yield mount


@pytest.mark.skipif(not mounts.can_hang(), reason="no /dev/fuse")
def test_output_on_a_mount_that_hangs(lab: Cluster, dead_server: ExitStack) -> None:
    """Readers there can't be killed: a bounded number is left behind, each job is judged without its output."""
    program = "#!/bin/sh\necho 'RuntimeError: of this job'\nexit 1\n"
    hanging = [lab.sbatch(program, "-w", "n1", f"--output={lab.home}/nfs/%j.log") for _ in range(MAX_LEFT + 2)]
    bobs = lab.sbatch(program, "-w", "n2", user="bob")
    assert f"report {bobs}]" in outcome(lab, bobs).comment
    for job in hanging:
        found = outcome(lab, job)
        why = {gap["source"]: gap["why"] for gap in found.report["gaps"]}["job output"]
        assert "no answer within" in why or "earlier readers hang" in why, why
        assert "of this job" not in str(found.report["facts"]) and f"report {job}]" in found.comment
    assert 0 < len(asleep(lab)) < MAX_LEFT + AT_ONCE, "those that had begun before the eighth was given up"
    dead_server.close()
    assert wait_until(lambda: not asleep(lab), 300)
    after = lab.sbatch(program, "-w", "n2", user="bob")
    assert "of this job" in str(outcome(lab, after).report["facts"])


def asleep(lab: Cluster) -> list[int]:
    """Readers of the daemon in uninterruptible sleep."""
    pid = lab.daemon_pid()
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for path in children for one in path.read_text().split() if _state(one) == "D"]


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return "gone"
