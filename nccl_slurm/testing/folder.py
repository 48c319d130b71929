"""The files that a simulated job leaves: those of each node's run folder, and the job's own output."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from nccl_slurm.testing.scenario import Scenario
from nccl_slurm.testing.story import Line, Story

__all__ = ["job_files", "node_files", "write"]


def node_files(story: Story, host: str) -> dict[str, bytes]:
    """Path below the run's folder → content, without those that are missing. Nothing of a node that failed."""
    if host in story.failed_nodes:
        return {}
    files = _task_files(story, host)
    for rank in story.scenario.on(host):
        if rank not in story.scenario.lost_ranks:
            files.update(_rank_files(story, host, rank))
    return files


def _task_files(story: Story, host: str) -> dict[str, bytes]:
    """What task_prolog writes of each task of the step: a rank under srun, the agent under torchrun."""
    scenario, place = story.scenario, story.place
    if scenario.launcher == "srun":
        tasks = [(rank, scenario.local(rank), place.pid(rank)) for rank in scenario.on(host)]
    else:
        tasks = [(scenario.nodes.index(host), 0, place.agent_pid(host))]
    at = int(place.clock(host, scenario.start + 1.0))
    return {
        f"task.0.{task}": f"step=0\nprocid={task}\nlocalid={local}\npid={pid}\nhost={host}\ngpus=\ntime={at}\n".encode()
        for task, local, pid in tasks
    }


def _rank_files(story: Story, host: str, rank: int) -> dict[str, bytes]:
    scenario, place = story.scenario, story.place
    files: dict[str, bytes] = {}
    if rank in story.nccl:
        files[f"nccl.{host}.{place.pid(rank)}.log"] = _text(story.nccl[rank])
    if rank in story.dumps:
        files[f"nccl_trace_rank_{rank}"] = story.dumps[rank]
    if scenario.launcher == "torchrun":
        folder = f"elastic/{place.elastic_folder(host)}/attempt_{place.attempt}/{scenario.local(rank)}"
        if rank in story.error_files:
            files[f"{folder}/error.json"] = story.error_files[rank]
        if scenario.output != "job":
            files[f"{folder}/stderr.log"] = _text(story.ranks.get(rank, ()))
    return files


def job_files(story: Story) -> dict[str, bytes]:
    """``slurm-JOB.out``, and a file a task where srun was told so."""
    scenario = story.scenario
    lines = [*story.slurm, *_of_agents(story)]
    files: dict[str, bytes] = {}
    redirected = scenario.output == "redirects"
    for rank, own in story.ranks.items():
        if redirected and scenario.launcher == "srun" and rank not in scenario.lost_ranks:
            files[f"slurm-{scenario.job_id}_{rank}.out"] = _text(own)
        elif not redirected:
            label = _label(scenario, rank)
            lines += [line._replace(text=label + line.text) for line in own]
    return {f"slurm-{scenario.job_id}.out": _text(sorted(lines, key=lambda line: line.time)), **files}


def _of_agents(story: Story) -> Iterable[Line]:
    return (line for lines in story.agents.values() for line in lines)


def _label(scenario: Scenario, rank: int) -> str:
    """``srun -l`` numbers tasks; torchrun's ``--tee`` names the local rank."""
    if scenario.output != "label":
        return ""
    return f"{rank}: " if scenario.launcher == "srun" else f"[default{scenario.local(rank)}]:"


def _text(lines: Iterable[Line]) -> bytes:
    return "".join(f"{line.text}\n" for line in lines).encode()


def write(story: Story, folder: Path) -> Path:
    """All of it as an admin would collect it: the job's output, and a folder a node. Returns ``folder``."""
    files: dict[str, bytes] = dict(job_files(story))
    for host in story.scenario.nodes:
        if host not in story.scenario.lost_nodes:
            files.update({f"{host}/{name}": content for name, content in node_files(story, host).items()})
            files.update(_kernel_log(story, host))
    _write_all(folder, files, story.end)
    return folder


def _kernel_log(story: Story, host: str) -> Mapping[str, bytes]:
    """As syslog has it: the node's own clock, in whole seconds."""
    lines = story.kernel.get(host)
    if not lines or host in story.failed_nodes:
        return {}
    stamped = [(time.localtime(story.place.clock(host, line.time)), line.text) for line in lines]
    texts = [f"{time.strftime('%b %e %H:%M:%S', at)} {host} kernel: {text}" for at, text in stamped]
    return {f"{host}/kern.log": ("\n".join(texts) + "\n").encode()}


def _write_all(folder: Path, files: Mapping[str, bytes], at: float) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (at, at))
