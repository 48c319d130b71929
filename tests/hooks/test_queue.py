"""Hooks and the wrapper together: one worker at a time, and no run is lost where many come at once."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import wait_until
from tests.hooks.site import CHECKOUT, EPILOG, PROLOG, Site

RUNS = 20
#: Stands in for Python: notes that it runs, and takes what is queued, as `dispatch.attend` does.
WORKER = """
queue={spool}/queue
mkdir {folder}/alone || echo two at once >>{folder}/faults
echo start >>{folder}/starts
for one in "$queue"/finish.*; do
    [ -e "$one" ] && rm "$one" && echo "${{one##*/}}" >>{folder}/done
done
sleep 0.1
rmdir {folder}/alone
"""


@pytest.fixture
def node(site: Site) -> Iterator[Site]:
    """Hooks with the real wrapper, and patience enough for many of them at once on a loaded machine.

    Waits at the end until no wrapper of this test is left."""
    for hook in ("prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm"):
        text = (site.folder / hook).read_text()
        (site.folder / hook).write_text(re.sub(r"(?m)^patience=[0-9]+$", "patience=60", text))
    wrapper = site.hooks / "nccl-slurm-node"
    wrapper.write_text((CHECKOUT / "slurm" / "nccl-slurm-node").read_text())
    site.configure(PYTHON=str(site.script("python", WORKER.format(spool=site.spool, folder=site.folder))))
    yield site
    wait_until(lambda: not _at_work(site), 30.0)


def _at_work(site: Site) -> bool:
    held = subprocess.run(["flock", "-n", str(site.spool / "queue" / "lock.worker"), "true"], check=False)
    return held.returncode != 0


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_no_run_is_lost_when_many_end_at_once(node: Site) -> None:
    ends = [
        subprocess.Popen([node.folder / "epilog.d/50-nccl-slurm"], env={**EPILOG, "SLURM_JOB_ID": str(100 + number)})
        for number in range(RUNS)
    ]
    assert [end.wait(60) for end in ends] == [0] * RUNS
    assert wait_until(lambda: len(set(_lines(node.folder / "done"))) == RUNS, 60.0)
    assert _lines(node.folder / "faults") == []


def test_a_job_that_is_over_at_once_costs_no_first_look(node: Site) -> None:
    node.run("prolog.d/50-nccl-slurm", PROLOG)
    assert (node.spool / "queue" / f"before.{node.only_run().name}").exists()
    (node.spool / "queue" / f"before.{node.only_run().name}").unlink()
    assert wait_until(lambda: _lines(node.spool / "queue" / "lock.sleeper") == [""], 20.0), "it is awake"
    assert wait_until(lambda: not _at_work(node), 20.0)
    assert _lines(node.folder / "starts") == []


@pytest.mark.parametrize(("hook", "file"), [("prolog", "sleeper"), ("epilog", "waiter")])
def test_a_number_that_a_killed_one_left_may_be_anybodys(node: Site, hook: str, file: str) -> None:
    queue = node.spool / "queue"
    queue.mkdir(parents=True, mode=0o700)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (queue / f"lock.{file}").write_text(f"{stranger.pid}\n")
        node.run(f"{hook}.d/50-nccl-slurm", PROLOG if hook == "prolog" else EPILOG)
        assert wait_until(lambda: _lines(node.folder / "starts") == ["start"], 20.0)
        stranger.kill()


def test_a_worker_that_fails_is_not_started_again_and_again(node: Site) -> None:
    node.configure(PYTHON=str(node.script("python", f"echo start >>{node.folder}/starts; exit 1")))
    node.run("epilog.d/50-nccl-slurm", EPILOG)
    assert wait_until(lambda: _lines(node.folder / "starts") == ["start"] and not _at_work(node), 20.0)
    assert list((node.spool / "queue").glob("finish.*")), "it stays queued, for the next hook or the timer"
