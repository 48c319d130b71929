"""The SPANK plugin, built here and loaded by a real Slurm: how tasks end, --nccl-capture, and what can't go wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import releases
from tests.cluster.client import PATH, ClusterError
from tests.cluster.harness import CHECKOUT, Cluster
from tests.cluster.outcome import outcome
from tests.cluster.processes import wait_until

pytestmark = pytest.mark.end_to_end

SOURCE = CHECKOUT / "slurm" / "spank"
OTHER = {"22.05": ("24.11", "0x180b05"), "24.11": ("22.05", "0x160508"), "26.05": ("22.05", "0x160508")}


def headers(cluster: Cluster) -> Path:
    """Where ``slurm/spank.h`` of the cluster's release is."""
    return Path("/usr/include") if cluster.release is None else releases.find(cluster.release).headers


def build(out: Path, *more: str) -> Path:
    subprocess.run(["make", "-s", "-C", SOURCE, f"OUT={out}", *more], check=True, env={"PATH": PATH})
    (plugin,) = out.glob("nccl_slurm-*.so")
    return plugin


def load(cluster: Cluster, plugin: Path, arguments: str | None = None) -> None:
    """srun and slurmstepd read plugstack.conf anew; the prolog's way of the option needs no slurmd that has it."""
    arguments = (
        f"spool={cluster.scratch}/spool/%h conf={cluster.scratch}/etc/capture.conf" if arguments is None else arguments
    )
    (cluster.scratch / "etc" / "plugstack.conf").write_text(f"optional {plugin} {arguments}\n")


@pytest.fixture(scope="module")
def plugin(cluster: Cluster) -> Iterator[Path]:
    if not (headers(cluster) / "slurm" / "spank.h").exists() or shutil.which("make", path=PATH) is None:
        pytest.skip("needs make, a C compiler and libslurm-dev")
    folder = cluster.scratch / "prefix" / "spank"
    folder.mkdir(exist_ok=True)
    yield build(folder, f"SLURM_INCLUDE={headers(cluster)}")
    (cluster.scratch / "etc" / "plugstack.conf").unlink(missing_ok=True)


@pytest.fixture
def lab(idle_cluster: Cluster, plugin: Path) -> Cluster:
    load(idle_cluster, plugin)
    return idle_cluster


def record(lab: Cluster, job: str, node: str) -> dict[str, Any]:
    """Of the job's one run on the node, when its worker has written it."""

    def made() -> list[Path]:
        return list((lab.spool / node).glob(f"{job}.*/root/record.json"))

    assert wait_until(lambda: bool(made()), 60, every=0.3), f"no record of {job} on {node}"
    value: dict[str, Any] = json.loads(made()[0].read_text())
    return value


def ends(made: dict[str, Any], step: str = "0") -> dict[int, int]:
    return {one["rank"]: one["exit"] for one in made["task_exits"] if one["step"] == step}


def gaps(made: dict[str, Any]) -> list[str]:
    return [gap["why"] for gap in made["gaps"] if gap["source"] == "task exits"]


FOUR_WAYS = """#!/bin/sh
srun --kill-on-bad-exit=0 sh -c 'case $SLURM_PROCID in
    0) sleep 1; exit 0 ;; 1) exit 7 ;; 2) kill -KILL $$ ;; 3) kill -SEGV $$ ;; esac'
srun --kill-on-bad-exit=0 -N1 -n1 sh -c 'exit 137'
exit 3
"""


def test_how_each_task_ended_is_in_the_record(lab: Cluster) -> None:
    before = time.time()
    job = lab.sbatch(FOUR_WAYS, "-N2", "--ntasks-per-node=2", "-w", "n1,n2")
    assert lab.wait_job(job) == "FAILED"
    one, two = record(lab, job, "n1"), record(lab, job, "n2")
    assert (ends(one), ends(two)) == ({0: 0, 1: 7}, {2: -9, 3: -11})
    assert ends(one, "1") == {0: 137} and ends(one, "batch") == {0: 3}
    assert gaps(one) == gaps(two) == []
    for exit_ in one["task_exits"] + two["task_exits"]:
        assert before < exit_["start"] <= exit_["time"] < time.time() and exit_["pid"] > 1
    well = next(one_ for one_ in one["task_exits"] if one_["exit"] == 0)
    assert 1.0 <= well["time"] - well["start"] < 10.0


def test_cancelled_tasks_ended_by_sigterm(lab: Cluster) -> None:
    job = lab.sbatch("#!/bin/sh\nsrun sleep 300\n", "-N2", "-w", "n1,n2")
    lab.wait_job(job, {"RUNNING"})
    time.sleep(2)
    lab.slurm("scancel", job, user="alice")
    lab.wait_job(job)
    assert (ends(record(lab, job, "n1")), ends(record(lab, job, "n2"))) == ({0: -15}, {1: -15})


def test_a_report_dates_the_first_failure_by_it(lab: Cluster) -> None:
    """The task that failed prints nothing, and srun's words are elsewhere: slurmstepd's word is what is left."""
    before = lab.daemon_config.read_text()
    lab.write_daemon_config(before + '\n[scope]\ndefault = "all"\n')
    lab.start_daemon()
    try:
        script = "#!/bin/sh\nsrun sh -c '[ $SLURM_PROCID = 1 ] && exit 7; sleep 2' 2>/dev/null\n"
        found = outcome(lab, lab.sbatch(script, "-N2", "-w", "n1,n2"))
    finally:
        lab.stop_daemon()
        lab.write_daemon_config(before)
    told = [fact for fact in found.report["facts"] if fact["text"] == "task 1 of step 0 ended with exit code 7"]
    assert [(fact["host"], fact["trust"]) for fact in told] == [("n2", "root")] and told[0]["time"]
    named = [*found.report["verdict"]["culprits"], *found.report["verdict"]["suspects"]]
    assert [(one["rank"], one["host"]) for one in named] == [(1, "n2")]


SHOW = "#!/bin/sh\nenv | grep '^NCCL' | sed 's/^/batch /'\nsrun -n1 sh -c \"env | grep '^NCCL' | sed 's/^/step /'\"\n"


def shown(lab: Cluster, *options: str, script: str = SHOW) -> set[str]:
    job = lab.sbatch(script, "-w", "n1", *options)
    assert lab.wait_job(job) == "COMPLETED"
    return {line for line in lab.output(job).splitlines() if "NCCL_DEBUG=" in line or "SUBSYS=" in line}


def test_the_option_sets_what_nccl_logs_in_steps_and_the_batch_script(lab: Cluster) -> None:
    both = {"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV,NET,COLL"}
    everywhere = {f"{where} {what}" for where in ("batch", "step") for what in both}
    assert shown(lab, "--nccl-capture=coll") == everywhere
    assert shown(lab, script=SHOW.replace("sh\n", "sh\n#SBATCH --nccl-capture=coll\n", 1)) == everywhere
    warn = {"batch NCCL_DEBUG=WARN", "step NCCL_DEBUG=WARN"}
    assert shown(lab, "--nccl-capture=warn") == warn
    of_step = SHOW.replace("srun", "srun --nccl-capture=coll")
    assert shown(lab, "--nccl-capture=warn", script=of_step) == {"batch NCCL_DEBUG=WARN"} | {f"step {w}" for w in both}


def test_what_the_user_set_wins(lab: Cluster) -> None:
    own = SHOW.replace("sh\n", "sh\nexport NCCL_DEBUG=TRACE\n", 1)
    assert {line for line in shown(lab, "--nccl-capture=warn", script=own) if line.startswith("step")} == {
        "step NCCL_DEBUG=TRACE"
    }
    off = SHOW.replace("sh\n", "sh\nexport NCCL_SLURM_CAPTURE=off\n", 1)
    assert not [line for line in shown(lab, "--nccl-capture=coll", script=off) if line.startswith("step")]


def test_off_reaches_the_record_even_without_a_task(lab: Cluster) -> None:
    answer = lab.slurm("salloc", "-w", "n1", "--nccl-capture=off", "sh", "-c", "echo $SLURM_JOB_ID", user="alice")
    job = answer.stdout.split()[-1]
    made = record(lab, job, "n1")
    assert made["prolog"]["env"]["SPANK_NCCL_SLURM_CAPTURE"] == "off"
    assert any("switched capture off" in gap["why"] for gap in made["gaps"])
    job = lab.sbatch("#!/bin/sh\nsrun true\n", "-w", "n1", "--nccl-capture=off")
    lab.wait_job(job)
    assert any("switched capture off" in gap["why"] for gap in record(lab, job, "n1")["gaps"])


@pytest.mark.parametrize("command", ["srun", "salloc"])
def test_a_word_that_is_none_is_refused_before_there_is_a_job(lab: Cluster, command: str) -> None:
    done = lab.slurm(command, "--nccl-capture=loud", "true", user="alice", check=False)
    assert done.returncode != 0 and "nccl-slurm: --nccl-capture=loud: give off, warn, info, net or coll" in done.stderr
    with pytest.raises(ClusterError, match="nccl-slurm: --nccl-capture=loud"):
        lab.sbatch("#!/bin/sh\ntrue\n", "--nccl-capture=loud")


def test_a_plugin_of_another_slurm_stops_no_job(lab: Cluster, tmp_path: Path) -> None:
    name, number = OTHER[lab.release or releases.own() or ""]
    shutil.copytree(headers(lab) / "slurm", tmp_path / "include" / "slurm")
    version = tmp_path / "include" / "slurm" / "slurm_version.h"
    version.write_text(re.sub(r"(SLURM_VERSION_NUMBER )0x[0-9a-f]+", rf"\g<1>{number}", version.read_text()))
    other = build(lab.scratch / "run", f"SLURM_INCLUDE={tmp_path}/include")
    assert other.name == f"nccl_slurm-{name}.so"
    load(lab, other)
    job = lab.sbatch("#!/bin/sh\nsrun true\n", "-w", "n1")
    assert lab.wait_job(job) == "COMPLETED"
    assert gaps(record(lab, job, "n1")) == ["no SPANK plugin reports how each task ended"]


@pytest.mark.parametrize("arguments", ["spool=relative", "spool=/a/%x", "spol=/a", "spool=/nowhere"])
def test_wrong_arguments_stop_no_job(lab: Cluster, plugin: Path, arguments: str) -> None:
    load(lab, plugin, arguments)
    done = lab.slurm("srun", "-w", "n1", "sh", "-c", "exit 5", user="alice", check=False)
    assert done.returncode == 5
    assert ("nccl-slurm: plugstack.conf" in done.stderr) == (arguments != "spool=/nowhere")


def test_links_of_a_user_are_followed_nowhere(lab: Cluster) -> None:
    """The run's folder has a part of the user's own; root's part and the spool can't be written."""
    script = f"""#!/bin/sh
cd -P {lab.spool}/n1/$SLURM_JOB_ID/user || exit 9
for name in task_exits root record.json; do ln -s {lab.scratch}/home/alice/target $name; done
ln -s {lab.scratch}/home/alice ../root/x; ln -sfn {lab.scratch}/home/alice {lab.spool}/n1/$SLURM_JOB_ID
mv ../root ../gone; rm ../root/task_exits
srun true
"""
    target = lab.scratch / "home" / "alice" / "target"
    job = lab.sbatch(script, "-w", "n1")
    assert lab.wait_job(job) == "COMPLETED"
    assert ends(record(lab, job, "n1")) == {0: 0}
    assert not target.exists()
