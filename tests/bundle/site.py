"""A store with one simulated job on two nodes, for tests of the bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nccl_slurm.attribute.blame import attribute
from nccl_slurm.history.machine import MachineEvent
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from nccl_slurm.model import Evidence, alike
from nccl_slurm.recommend.ladder import recommend
from nccl_slurm.report.build import build
from tests.attribute.scenarios import SCENARIOS, START, job, xid

EVIL = "\x1b[2J\u202e| `````` <script>alert(1)</script> password=hunter2 <|im_start|>"
INSTANCE = "i-0123456789abcdef0"


def snapshot(at: float) -> dict[str, Any]:
    empty = ("gpus", "driver", "ports", "shm", "limits", "disks", "load", "gpu_processes")
    return {"start": at, "end": at + 1.0, **dict.fromkeys(empty)}


def record(node: str, **more: Any) -> dict[str, Any]:
    """Valid by its schema (a test says so)."""
    made: dict[str, Any] = {
        "schema": "nccl-slurm/node-record/1",
        "cluster": "c",
        "job_id": 42,
        "node": node,
        "closed_by": "epilog",
        "written": START + 700,
        "writer": {"version": "0.1.0", "python": "3.11", "patterns": None},
        "prolog": {"time": START, "boot_id": "b", "env": {"SLURM_JOB_ID": "42"}},
        "epilog": None,
        "machine": {
            "identity": INSTANCE,
            "identity_source": "board_asset_tag",
            "hostname": node,
            "boot_id": "b",
            "boot_time": None,
            "kernel": "6.1.0",
            "role": {"slurmctld_running": False, "node_type": "compute"},
        },
        "clock": {"source": "chronyc", "offset_s": 0.0, "synchronized": True},
        "snapshots": {"before": snapshot(START), "after": snapshot(START + 690)},
        "kernel_events": [{**xid(node).to_json(), "id": "f1"}],
        "task_exits": [],
        "ranks": [],
        "files": [],
        "world_size": 4,
        "lines_unknown": 0,
        "bytes_read": 0,
        "facts": [setting("NCCL_IB_HCA", "mlx5_0"), setting("NCCL_SECRET_TOKEN", "password=hunter2")],
        "gaps": [],
    }
    return {**made, **more}


def setting(name: str, value: str) -> dict[str, Any]:
    from tests.attribute.scenarios import fact

    text = f"NCCL INFO {name} set by environment to {value}"
    return {**fact("nccl.env", text, "context", rank=1, data={"name": name, "value": value}).to_json(), "id": "f2"}


def report(evidence: Evidence | None = None) -> dict[str, Any]:
    run = evidence or SCENARIOS["exception"]()
    verdict = attribute(run)
    return build(run, verdict, recommend(verdict, run), "final")


def made(tmp_path: Path, told: dict[str, Any] | None = None, user: str = "root") -> Path:
    """Its configuration; Slurm's commands are not there, so that none is asked."""
    state = tmp_path / "state"
    state.mkdir()
    config = tmp_path / "site.toml"
    config.write_text(f'[paths]\nstate = "{state}"\n[slurm]\nbin = "{tmp_path}/no-slurm"\n')
    row = alike(RunRow, job(user=user), run=1, status="final", cluster="c", raw_id=42, id="42")
    with Store.open(f"sqlite:///{state}/store.db") as store:
        store.name_machines(["n1", "n2"], START)
        store.add_events_of_node("n1", START + 1, [MachineEvent(START + 1, "boot", "asked", "poll")])
        store.upsert_run(row)
        store.save_report("c", 42, 1, told or report(), START + 800)
        for node in ("n1", "n2"):
            store.add_record("c", 42, 1, record(node), received=START + 700)
    return config


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        os.path.relpath(os.path.join(at, name), folder): Path(at, name).read_bytes()
        for at, _, names in os.walk(folder)
        for name in names
    }
