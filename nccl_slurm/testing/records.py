"""Node records of a simulated job, as capture writes them, and the rest of what the daemon knows of it."""

from __future__ import annotations

import io
import platform
from collections.abc import Iterator
from functools import partial
from typing import Any

from nccl_slurm import __version__
from nccl_slurm.capture.facts import clean_fact, clean_facts, clean_gaps, clean_ranks
from nccl_slurm.capture.record import MAX_BYTES, fit
from nccl_slurm.model import Job, Parsed
from nccl_slurm.parse.folder import Source, read_sources
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.testing.folder import job_files, node_files
from nccl_slurm.testing.story import Story

__all__ = ["job", "node_record", "node_records", "output"]

#: What a node that has no GPU to ask says of it.
_NOT_SIMULATED = (
    {"source": "snapshot before", "why": "a simulated node has none"},
    {"source": "snapshot after", "why": "a simulated node has none"},
    {"source": "task exits", "why": "no SPANK plugin reports how each task ended"},
)


def node_records(story: Story, rows: Rows) -> Iterator[tuple[str, dict[str, Any]]]:
    """Node and its record (schema ``node-record/1``), without those that are missing."""
    for host in story.scenario.nodes:
        if host not in story.scenario.lost_nodes and host not in story.failed_nodes:
            yield host, node_record(story, host, rows)


def node_record(story: Story, host: str, rows: Rows) -> dict[str, Any]:
    """What the node's worker would hand over. Raises nothing: what can't be read is a gap in it."""
    scenario = story.scenario
    parsed = _parsed(story, node_files(story, host), host, rows)
    gaps: list[dict[str, str]] = [{"source": one.source, "why": one.why} for one in parsed.gaps]
    facts = clean_facts([fact.to_json() for fact in parsed.facts], "job", gaps)
    offset = scenario.offsets[host]
    record = {
        "schema": "nccl-slurm/node-record/1",
        "cluster": "simulated",
        "job_id": scenario.job_id,
        "node": host,
        "closed_by": "epilog",
        "written": story.place.clock(host, story.end) + 1.0,
        "writer": {"version": __version__, "python": platform.python_version(), "patterns": rows.hash},
        "prolog": _hook(story, host, scenario.start),
        "epilog": _hook(story, host, story.end),
        "machine": _machine(host),
        "clock": {
            "source": "chronyc" if scenario.offset_told else "unknown",
            "offset_s": round(offset, 6) if scenario.offset_told else None,
            "synchronized": True if scenario.offset_told else None,
        },
        "snapshots": {"before": None, "after": None},
        "kernel_events": _kernel_events(story, host, rows),
        "task_exits": [],
        "ranks": clean_ranks([rank.to_json() for rank in parsed.ranks]),
        "files": [],
        "world_size": parsed.world_size,
        "lines_unknown": parsed.lines_unknown,
        "bytes_read": parsed.bytes_read,
        "facts": facts,
        "gaps": clean_gaps([*gaps, *_NOT_SIMULATED]),
    }
    return fit(record, MAX_BYTES)


def _machine(host: str) -> dict[str, Any]:
    return {
        "identity": f"machine-{host}",
        "identity_source": "dmi-uuid",
        "hostname": host,
        "boot_id": f"boot-{host}",
        "boot_time": None,
        "kernel": "6.1.0",
        "role": {"slurmctld_running": False, "node_type": None},
    }


def _hook(story: Story, host: str, at: float) -> dict[str, Any]:
    env = {"SLURM_JOB_ID": str(story.scenario.job_id), "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": host}
    env["SLURM_JOB_GPUS"] = ",".join(str(local) for local in range(len(story.scenario.on(host))))
    return {"time": story.place.clock(host, at), "boot_id": f"boot-{host}", "env": env}


def _kernel_events(story: Story, host: str, rows: Rows) -> list[dict[str, Any]]:
    records = [(story.place.clock(host, line.time), line.text) for line in story.kernel.get(host, ())]
    cleaned = (clean_fact(fact.to_json(), "root") for fact in kernel_facts(records, host, rows))
    return [fact for fact in cleaned if fact is not None]


def _parsed(story: Story, files: dict[str, bytes], host: str | None, rows: Rows) -> Parsed:
    written = story.end if host is None else story.place.clock(host, story.end)
    sources = [
        Source(name, partial(io.BytesIO, content), len(content), written, host, "job")
        for name, content in sorted(files.items())
    ]
    return read_sources(sources, rows, now=story.end + 60.0)


def output(story: Story, rows: Rows) -> Parsed:
    """The job's own output, as the daemon reads it."""
    return _parsed(story, job_files(story), None, rows)


def job(story: Story) -> Job:
    """As accounting has it."""
    scenario = story.scenario
    return Job(
        id=str(scenario.job_id),
        raw_id=scenario.job_id,
        cluster="simulated",
        user=scenario.user,
        uid=1000,
        name="train",
        partition="gpu",
        state=story.state,
        exit=story.exit,
        nodes=scenario.nodes,
        submit=scenario.start - 30.0,
        start=scenario.start,
        end=story.end,
        steps=story.steps,
        gpus=scenario.world,
        failed_node=next(iter(story.failed_nodes), None) if story.state == "NODE_FAIL" else None,
        cancelled_by=scenario.user if story.state == "CANCELLED" else None,
    )
