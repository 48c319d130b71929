"""What ``install.sh --check`` prints, followed to the letter on sites with hooks of their own: theirs still run."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from nccl_slurm.install import check
from nccl_slurm.install.apply import Applied
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.options import parse
from nccl_slurm.install.uninstall import still_named
from nccl_slurm.install.wiring import ours_in
from tests.cluster.conftest import scratch_slot
from tests.cluster.harness import CHECKOUT, Cluster
from tests.cluster.processes import wait_until
from tests.cluster.scratch import install_hooks

#: Differ from job to job or by how a shell was started; what ours gives to a batch script, which its steps inherit.
PASSING = re.compile(
    r"(SLURM_(JOB_?ID|JOB_START_TIME|JOB_END_TIME|JOB_SLUID|TASK_PID|STEP_ID|STEPID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT"
    r"|LAUNCH_NODE_IPADDR|TOPOLOGY_ADDR|JOB_NODELIST|NODELIST|STEP_NODELIST|JOB_GPUS|STEP_GPUS|.*RESV_PORTS|HOSTFILE)"
    r"|CUDA_VISIBLE_DEVICES|GPU_DEVICE_ORDINAL|ROCR_VISIBLE_DEVICES|ZE_AFFINITY_MASK|_|PWD|SHLVL|OLDPWD"
    r"|NCCL_SLURM_SET|NCCL_DEBUG\w*|TORCH_\w+|PET_LOG_DIR)="
)
#: From 24.11 a step whose end could not be told, because slurmctld was just being restarted, tells it 60 s later.
IDLE_S = 120


@dataclass
class Site:
    """A cluster of which the hooks, and what the site has itself, lie below ``etc`` and ``site``."""

    cluster: Cluster
    slurm_conf: str
    capture_conf: str

    @property
    def folder(self) -> Path:
        return self.cluster.scratch / "home" / "site"

    @property
    def layout(self) -> Layout:
        scratch = self.cluster.scratch
        return Layout(str(scratch / "prefix"), str(scratch / "prefix" / "slurm"), str(scratch / "etc"))

    @property
    def seen(self) -> Path:
        return self.cluster.log / "site"

    def script(self, name: str, more: str = "") -> Path:
        """Writes its name, then its environment, into one file a run."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        report = f"{self.seen}/$(date +%s%N).{path.name}.${{SLURMD_NODENAME:-controller}}.$$"
        path.write_text(f"#!/bin/bash\nto={report}\nenv >$to.part && mv $to.part $to.env\n{more}\n")
        path.chmod(0o755)
        return path

    def configure(self) -> None:
        self.cluster.heal()
        for folder in (self.folder, self.seen):
            shutil.rmtree(folder, ignore_errors=True)
        for key in ("prolog.d", "epilog.d"):
            shutil.rmtree(self.cluster.scratch / "etc" / key, ignore_errors=True)
        self.seen.mkdir(mode=0o1777)
        self.seen.chmod(0o1777)
        self.cluster.capture_conf.write_text(self.capture_conf)
        self.cluster.conf.write_text(self.slurm_conf)

    def restart(self, *lines: str) -> None:
        self.cluster.conf.write_text(self.cluster.conf.read_text() + "".join(f"{line}\n" for line in lines))
        self.cluster.restart_slurmctld()
        self.cluster.reconfigure()
        self.cluster.wait_idle(IDLE_S)

    def job(self) -> tuple[str, str]:
        """Its id and state, when all hooks are through."""
        job = self.cluster.sbatch("#!/bin/sh\nsrun true\n", "-N2", "--gpus-per-node=1")
        state = self.cluster.wait_job(job)
        self.cluster.wait_idle(IDLE_S)
        return job, state

    def ran(self, job: str) -> dict[str, list[str]]:
        """Host → names of the site's scripts in the order in which they ran for the job."""
        order: dict[str, list[str]] = {}
        for path in sorted(self.seen.glob("*.env")):
            name, host = path.name.split(".")[1:3]
            if f"SLURM_JOB_ID={job}\n" in path.read_text():
                order.setdefault(host, []).append(name)
        return order

    @property
    def looks(self) -> str:
        """For `script`: notes what our hooks have left of the job by then."""
        return f"ls {self.cluster.spool}/$SLURMD_NODENAME/$SLURM_JOB_ID.*/root >${{to}}.left 2>/dev/null || :"

    def after_ours(self, job: str) -> set[tuple[str, bool]]:
        """Prolog and Epilog (``prolog``, ``epilog``) of scripts that look, and whether ours had run before."""
        found = set()
        for path in self.seen.glob("*.env"):
            text = path.read_text()
            if f"SLURM_JOB_ID={job}\n" in text and (context := re.search(r"CONTEXT=(\w+)_slurmd\n", text)):
                left = path.with_suffix(".left").read_text().split()
                found.add((context[1], f"{context[1]}.env" in left))
        return found

    def environments(self, job: str) -> dict[str, set[frozenset[str]]]:
        """Script → the environments that it had, without what differs from job to job."""
        found: dict[str, set[frozenset[str]]] = {}
        for path in self.seen.glob("*.env"):
            lines = path.read_text().splitlines()
            if f"SLURM_JOB_ID={job}" in lines:
                kept = frozenset(line for line in lines if not PASSING.match(line))
                found.setdefault(path.name.split(".")[1], set()).add(kept)
        return found


@pytest.fixture(scope="module")
def site(release: str | None) -> Iterator[Site]:
    with scratch_slot() as folder, Cluster(folder, hooks=False, gpus=1, release=release) as cluster:
        install_hooks(folder, CHECKOUT)
        code = folder / "prefix" / "nccl_slurm"
        shutil.copytree(CHECKOUT / "nccl_slurm", code, ignore=shutil.ignore_patterns("__pycache__"))
        capture = re.sub(
            r"(?m)^NCCL_SLURM_PREFIX=.*", f"NCCL_SLURM_PREFIX={folder}/prefix", cluster.capture_conf.read_text()
        )
        slurm = (
            cluster.conf.read_text()
            .replace("PrologFlags=Alloc\n", "")
            .replace("AccountingStoreFlags=job_comment\n", "")
        )
        yield Site(cluster, slurm, capture)


def checked(site: Site, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    of = site.layout
    where = ["--prefix", of.prefix, "--hooks", of.hooks, "--conf", of.conf, "--slurm-conf", str(site.cluster.conf)]
    where += ["--slurm-bin", str(site.cluster.slurm_bin)]
    status = check.run([*where, *options])
    return status, capsys.readouterr().out


def follow(site: Site, told: str) -> None:
    """What an admin does who reads from top to bottom, and nothing else."""
    paragraphs = [part.splitlines() for part in told.split("\n\n")]
    for head, *rest in paragraphs:
        lines = [line.strip() for line in rest]
        if head == "On every node, as root:":
            subprocess.run(["sh", "-e", "-c", "\n".join(lines)], check=True)
        elif head.startswith("In "):
            file = Path(head.split()[1])
            file.write_text(file.read_text() + "\n".join(lines) + "\n")
        elif head.startswith("Lines for "):
            edit(Path(head.split()[2].rstrip(",")), lines)
        elif head == "Then: scontrol reconfigure":
            site.cluster.reconfigure()
        elif head == "Then: restart slurmctld (running jobs go on), and scontrol reconfigure":
            site.restart()
    site.cluster.wait_idle(IDLE_S)


def edit(conf: Path, lines: list[str]) -> None:
    text = conf.read_text()
    place = ""
    for line in lines:
        if line.startswith("#"):
            place = line
        elif place.startswith("# in place of "):
            old = place[len("# in place of ") :]
            assert text.count(f"\n{old}\n") == 1, old
            text, place = text.replace(f"\n{old}\n", f"\n{line}\n"), ""
        elif place.startswith("# above your own "):
            key = place.split()[-1]
            text, place = text.replace(f"\n{key}", f"\n{line}\n{key}", 1), ""
        else:
            text += line + "\n"
    conf.write_text(text)


def wire(site: Site, capsys: pytest.CaptureFixture[str]) -> str:
    """At most two rounds: what has to be there first, then the lines. Returns what the last one printed."""
    status, told = checked(site, capsys)
    if status == 1:
        assert "\nLines for " not in told
        follow(site, told)
        status, told = checked(site, capsys)
    assert status == 0, told
    follow(site, told)
    return told


def take_away(site: Site, told: str) -> None:
    """The printed undo to the letter, then our files are gone: no node may notice."""
    head = "To undo it, lines first and files last (a missing Prolog or Epilog drains its node):\n"
    text = site.cluster.conf.read_text()
    for line in told.partition(head)[2].splitlines():
        command = line.strip()
        if command.endswith(("take these lines out", "take these lines out, put back")):
            assert command.startswith(f"in {site.cluster.conf}: ")
            ours = told.partition("Lines for ")[2].partition("\n\n")[0].splitlines()[1:]
            out = [one.strip() for one in ours if not one.strip().startswith("#")]
            text = "".join(f"{one}\n" for one in text.splitlines() if one not in out)
        elif line.startswith("        "):
            text += command + "\n"
        elif command.startswith("restart slurmctld, then scontrol reconfigure"):
            site.cluster.conf.write_text(text)
            site.restart()
        elif command.startswith("on every node: "):
            subprocess.run(["sh", "-e", "-c", command.partition(": ")[2]], check=True)
        elif command.startswith("srun -w NODE true on each node"):
            no_hook_runs(site)
        else:
            assert command.startswith("on every host: ./install.sh --uninstall ") and "--slurmd-reconfigured" in command
    remove_files(site)


def no_hook_runs(site: Site) -> None:
    before = set(site.cluster.spool.glob("*/[0-9]*.*"))
    for node in site.cluster.nodes:
        site.cluster.slurm("srun", "-w", node, "true", user="alice")
    site.cluster.wait_idle(IDLE_S)
    assert set(site.cluster.spool.glob("*/[0-9]*.*")) == before


def remove_files(site: Site) -> None:
    """As --uninstall does when it finds no reason not to (tests/cluster/test_installed.py runs it)."""
    slurm = ["--slurm-bin", str(site.cluster.slurm_bin), "--slurm-conf", str(site.cluster.conf)]
    options = parse(["--uninstall", *slurm, "--slurmd-reconfigured"])
    assert list(still_named(replace(options, layout=site.layout), Applied(False, print))) == []
    hooks = Path(site.layout.hooks)
    aside = hooks.with_name("aside")
    hooks.rename(aside)
    try:
        for node in site.cluster.nodes:
            site.cluster.slurm("srun", "-w", node, "true", user="alice")
        site.cluster.wait_idle(IDLE_S)
        assert site.cluster.slurm("sinfo", "-R", "-h", "-o", "%E").stdout == ""
    finally:
        aside.rename(hooks)


#: docs/wiring.md: ours end with 0 whatever happens, so they go first.
OURS_FIRST = {("prolog", True), ("epilog", True)}


def both_run(site: Site, before: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The site's as before, ours too, and the checker and the uninstaller see what is in force. Returns the job."""
    job, state = site.job()
    assert state == "COMPLETED"
    assert wait_until(lambda: (site.cluster.events / "new" / f"{job}.0").exists(), 20)
    nodes = [node for node in site.cluster.nodes if list((site.cluster.spool / node).glob(f"{job}.*"))]
    assert len(nodes) == 2
    for node in nodes:
        (run,) = (site.cluster.spool / node).glob(f"{job}.*")
        assert (run / "root" / "prolog.env").exists() and (run / "root" / "epilog.env").exists()
    assert sorted(site.ran(job).values()) == sorted(site.ran(before).values())
    assert site.environments(job) == site.environments(before)
    config = site.cluster.slurm("scontrol", "show", "config").stdout
    assert len(ours_in(config, site.layout)) == 4
    status, told = checked(site, capsys)
    assert status == 0 and "nothing to add" in told, told
    return job


def test_a_site_without_hooks(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    site.restart()
    before, _ = site.job()
    wired = wire(site, capsys)
    both_run(site, before, capsys)
    status, told = checked(site, capsys, "--nodes", "n2")
    assert status == 0 and "Proven on this controller and on n2.\n" in told
    flags = "Alloc" in site.cluster.slurm("scontrol", "show", "config").stdout
    assert flags and "gres/gpu" in site.cluster.slurm("scontrol", "show", "config").stdout
    take_away(site, wired)


def test_a_site_with_one_prolog_and_one_epilog(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    fails = site.folder / "fails"
    epilog = site.script("epilog", f"{site.looks}; [ ! -e {fails} ]")
    lines = [f"Prolog={site.script('prolog', site.looks)}", f"Epilog={epilog}", "PrologFlags=Alloc,NoHold"]
    site.restart(*lines)
    before, _ = site.job()
    assert sorted(site.ran(before).values()) == [["prolog", "epilog"]] * 2
    wired = wire(site, capsys)
    assert site.after_ours(both_run(site, before, capsys)) == OURS_FIRST
    site.cluster.wait_idle(IDLE_S)
    fails.touch()
    site.cluster.wait_job(site.cluster.sbatch("#!/bin/sh\ntrue\n", "-N1"))
    drained = "Epilog error"
    assert wait_until(lambda: drained in site.cluster.slurm("sinfo", "-R", "-h", "-o", "%E").stdout, 30)
    fails.unlink()
    site.cluster.heal()
    take_away(site, wired)


def test_a_site_with_folders(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    for name in ("10-first", "Zfs", "a-check"):
        site.script(f"prolog.d/{name}", site.looks)
        site.script(f"epilog.d/{name}", site.looks)
    lines = [f"Prolog={site.folder}/prolog.d/*", f"Epilog={site.folder}/epilog.d/*", "PrologFlags=Contain"]
    site.restart(*lines)
    before, _ = site.job()
    assert sorted(site.ran(before).values()) == [["a-check", "Zfs", "10-first"] * 2] * 2
    wired = wire(site, capsys)
    assert site.after_ours(both_run(site, before, capsys)) == OURS_FIRST
    take_away(site, wired)


def test_a_site_with_a_task_prolog(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    path = site.script("tasks", "echo export SITE=kept; echo print from the site; exit ${FAILS:-0}")
    site.restart(f"TaskProlog={path}", "PrologFlags=Alloc")
    before, _ = site.job()
    wired = wire(site, capsys)
    both_run(site, before, capsys)
    told = site.cluster.slurm("srun", "sh", "-c", "echo $SITE", user="alice").stdout
    assert told.splitlines() == ["from the site", "kept"]
    failed = site.cluster.slurm("srun", "--export=ALL,FAILS=3", "true", user="alice", check=False)
    assert failed.returncode != 0
    take_away(site, wired)


def test_a_site_with_an_epilog_slurmctld(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    path = site.script("controller", "exit 3")
    site.restart(f"EpilogSlurmctld={path}", "PrologFlags=Alloc")
    before, _ = site.job()
    assert wait_until(lambda: site.ran(before) == {"controller": ["controller"]}, 20)
    wired = wire(site, capsys)
    job, _ = site.job()
    assert wait_until(lambda: site.ran(job) == {"controller": ["controller"]}, 20)
    both_run(site, before, capsys)
    log = (site.cluster.log / "slurmctld.log").read_text(errors="replace")
    for each in (before, job):
        assert re.search(rf"JobId={each} .*exit status 3:0", log), log[-2000:]
    take_away(site, wired)


def hide(site: Site, node: str, path: str) -> None:
    """On this node alone the file is missing: its slurmd has a mount name space of its own."""
    cluster, hooks = site.cluster, site.layout.hooks
    view = cluster.scratch / "home" / "view"
    shutil.copytree(hooks, view)
    (view / Path(path).relative_to(hooks)).unlink()
    cluster.kill_slurmd(node)
    cluster.start_slurmd(node, before=f"mount --bind {shlex.quote(str(view))} {shlex.quote(hooks)}")


def test_a_node_without_the_task_prolog_gets_no_lines(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    site.restart()
    hide(site, "n4", site.layout.task_prolog)
    try:
        site.cluster.wait_idle(IDLE_S)
        status, told = checked(site, capsys)
        assert status == 1
        assert f"  n4: {site.layout.task_prolog} is missing\n" in told
        assert "Lines for" not in told and "n[1-3]" not in told
        status, told = checked(site, capsys, "--except", "n4")
        assert status == 0 and "Proven on this controller and on n[1-3].\n" in told
        site.cluster.slurm("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
        status, told = checked(site, capsys, "--nodes", "n[2-3]")
        assert status == 1 and "  n3: not proven: is IDLE+DRAIN\n" in told
        assert "  n[1,4]: not proven: was not asked (--nodes)\n" in told and "Lines for" not in told
        site.cluster.resume("n3")
    finally:
        site.cluster.kill_slurmd("n4")
        site.cluster.start_slurmd("n4")
        site.cluster.wait_idle(IDLE_S)


def test_a_dry_run_asks_no_host(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.configure()
    status, told = checked(site, capsys, "--dry-run")
    assert status == 0
    assert " --partition=batch --nodelist=n1,n2,n3,n4 --nodes=4 " in told
    assert not list(site.cluster.spool.glob("*/.check*")) and "Proven" not in told
