"""Runs made up for tests: pieces that look as the parsers make them, and the scenarios of the golden files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from nccl_slurm.model import Evidence, Fact, Gap, Job, NodeView, Rank, Step, numbered

START = 1_795_000_000.0
HANG = START + 600
NODES = ("n1", "n2")


def fact(kind: str, text: str, role: str = "consequence", **more: Any) -> Fact:
    return Fact(kind=kind, text=text, producer=kind.split(".", 1)[0], role=role, trust=more.pop("trust", "job"), **more)


def watchdog(rank: int, seq: int, *, op: str = "ALLREDUCE", at: float = HANG, **data: Any) -> Fact:
    return fact(
        "torch.watchdog-timeout",
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, "
        "NumelIn=64, NumelOut=64, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.",
        hint="collective-hang-unattributed",
        rank=rank,
        time=at,
        uncertainty_s=0.001,
        file=f"rank_{rank}.log",
        line=10,
        data={"seq": seq, "op": op, "timeout_ms": 600000, "ran_ms": 600010, **data},
    )


def told(rank: int, by: int, enqueued: int, completed: int) -> Fact:
    return fact(
        "torch.dump-signal-remote",
        f"Received a dump signal due to a collective timeout from  rank {by} and we will try our best to dump.",
        role="context",
        rank=rank,
        data={"told_by": by, "enqueued": enqueued, "completed": completed},
    )


def gloo_timeout(rank: int) -> Fact:
    return fact(
        "gloo.timeout",
        "RuntimeError: Timed out waiting 10000ms for recv operation to complete",
        hint="collective-hang-unattributed",
        rank=rank,
        file="slurm-42.out",
        line=100 + rank,
        data={"timeout_ms": 10000, "direction": "recv"},
    )


def peer_closed(rank: int) -> Fact:
    text = (
        "RuntimeError: Connection closed by peer [10.0.0.1]:1943. This is typically caused by a remote worker crashing."
    )
    return fact("gloo.peer-closed", text, hint="net-peer-lost", rank=rank, file="slurm-42.out", line=200 + rank)


def exception(rank: int | None, text: str = "ValueError: loss is nan", **more: Any) -> Fact:
    return fact(
        "python.exception",
        text,
        role="cause",
        hint="rank-exception",
        rank=rank,
        **{"file": "slurm-42.out", "line": 50, "data": {"type": text.split(":")[0]}, **more},
    )


def cuda(rank: int | None, hint: str, text: str, **more: Any) -> Fact:
    return fact(f"cuda.{hint}", text, role="cause", hint=hint, rank=rank, **more)


def closing(pid: int) -> Fact:
    text = f"Sending process {pid} closing signal SIGTERM"
    return fact("elastic.closing", text, file="slurm-42.out", line=300, data={"pid": pid, "signal": "SIGTERM"})


def forced(pid: int) -> Fact:
    text = f"Unable to shutdown process {pid} via 15, forcefully exiting via 9"
    return fact("elastic.forced-kill", text, file="slurm-42.out", line=310, data={"pid": pid})


def agent_saw(exitcode: int, local_rank: int, rank: int | None = None) -> Fact:
    return fact(
        "elastic.failed",
        f"failed (exitcode: {exitcode}) local_rank: {local_rank} (pid: 7) of binary: python3",
        role="cause",
        rank=rank,
        file="slurm-42.out",
        line=290,
        data={"exitcode": exitcode, "local_rank": local_rank, "pid": 7},
    )


def detail(reporter: int, other: int) -> Fact:
    return fact(
        "torch.mismatch",
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank {reporter} is running collective: "
        f"CollectiveFingerPrint(SequenceNumber=5, OpType=ALLREDUCE), but Rank {other} is running collective: "
        "CollectiveFingerPrint(SequenceNumber=5, OpType=ALLGATHER)",
        role="cause",
        hint="collective-mismatch",
        rank=reporter,
        file="slurm-42.out",
        line=60 + reporter,
        data={"rank_a": reporter, "rank_b": other},
    )


def xid(
    host: str, code: int = 79, *, trust: str = "root", pci: str = "0000:a1:00", at: float = HANG, **more: Any
) -> Fact:
    hint = {79: "gpu-hw-lost", 94: "gpu-hw-ecc", 31: "gpu-app-fault", 145: "nvlink-fabric"}[code]
    return fact(
        "kernel.xid",
        f"NVRM: Xid (PCI:{pci}): {code}, GPU has fallen off the bus.",
        role="cause",
        hint=hint,
        trust=trust,
        host=host,
        time=at,
        uncertainty_s=0.5,
        data={"xid": code, "pci": pci, "message": "GPU has fallen off the bus."},
        **more,
    )


def task_exit(host: str, tasks: str, words: str, line: int, **data: Any) -> Fact:
    kind = "slurm.task-exit" if "exitcode" in data else "slurm.task-signal"
    kind = "slurm.task-terminated" if words == "Terminated" else kind
    text = f"srun: error: {host}: tasks {tasks}: {words}"
    role = "consequence" if words == "Terminated" else "cause"
    return fact(kind, text, role, file="slurm-42.out", line=line, data={"hosts": host, "tasks": tasks, **data})


def cancelled(reason: str | None = None, *, at: float | None = None, line: int = 500) -> Fact:
    due = f" DUE TO {reason}" if reason else ""
    text = f"slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-11-20T10:00:00{due} ***"
    return fact(
        "slurm.cancelled", text, hint="preempt-cancel", file="slurm-42.out", line=line, time=at, uncertainty_s=1.0
    )


def table(
    world: int, *, exits: dict[int, int] | None = None, progress: dict[int, tuple[int, int]] | None = None
) -> list[Rank]:
    """``world`` ranks on n1, n2 by halves; ``progress`` = (enqueued, completed) in the default group."""
    rows = []
    for rank in range(world):
        counts = (progress or {}).get(rank)
        rows.append(
            Rank(
                rank=rank,
                host=NODES[rank * len(NODES) // world],
                local_rank=rank % max(1, world // 2),
                exit=(exits or {}).get(rank),
                last=HANG - 600,
                uncertainty_s=0.001,
                last_line=f"step 5 rank {rank}",
                progress={"0": {"enqueued": counts[0], "completed": counts[1]}} if counts else {},
            )
        )
    return rows


def job(state: str = "FAILED", **more: Any) -> Job:
    values: dict[str, Any] = {
        "id": "42",
        "raw_id": 42,
        "cluster": "test",
        "user": "alice",
        "name": "train",
        "state": state,
        "exit": "1:0",
        "nodes": NODES,
        "submit": START - 10,
        "start": START,
        "end": HANG + 30,
        "gpus": 8,
        "steps": (Step("42.batch", "batch", "FAILED", 1, 0, ("n1",)),),
    }
    return Job(**{**values, **more})


def nodes(**changes: dict[str, Any]) -> list[NodeView]:
    views = []
    for name in NODES:
        view = NodeView(name, f"machine-{name}", "compute", "IDLE", "IDLE", None, "present", clock_error_s=0.0)
        views.append(replace(view, **changes.get(name, {})))
    return views


def evidence(
    facts: Iterable[Fact] = (), ranks: Iterable[Rank] = (), *, world: int | None = None, **more: Any
) -> Evidence:
    """With a job of two nodes unless ``job=None`` is given."""
    values: dict[str, Any] = {"job": job(), "nodes": nodes(), **more}
    if values["job"] is None:
        values["nodes"] = ()
    return Evidence(facts=numbered(facts), ranks=list(ranks), world_size=world, **values)


def _missing_rank() -> Evidence:
    counts = dict.fromkeys(range(8), (41, 40)) | {5: (40, 40)}
    facts = [watchdog(rank, 41, pg="0") for rank in range(8) if rank != 5]
    exits = dict.fromkeys(range(8), -6)
    version = fact("nccl.version", "NCCL version 2.27.5+cuda12.8", "context", rank=0, data={"version": "2.27.5"})
    network = fact("nccl.network", "NCCL INFO Using network IB", "context", rank=3, data={"network": "IB"})
    return evidence([*facts, told(5, 2, 40, 40), version, network], table(8, exits=exits, progress=counts), world=8)


def _exception() -> Evidence:
    facts = [exception(2, "ValueError: loss is nan at step 6"), *(peer_closed(rank) for rank in (0, 1)), closing(31)]
    return evidence(facts, table(4, exits={0: 1, 1: 1, 2: 1}), world=4)


def _sigkill() -> Evidence:
    facts = [agent_saw(-9, 0, rank=2), *(peer_closed(rank) for rank in (0, 1)), closing(31)]
    return evidence(facts, table(4, exits={0: 1, 1: 1, 2: -9}), world=4)


def _mismatch() -> Evidence:
    facts = [detail(0, 3), detail(1, 3), detail(2, 3), detail(3, 0)]
    return evidence(facts, table(4, exits=dict.fromkeys(range(4), 1)), world=4)


def _node_fail() -> Evidence:
    rows = table(4)
    rows[3] = replace(rows[3], gpu="0000:a1:00")
    failed = {"state_at_end": "DOWN", "reason": "Not responding", "failed_in_run": True, "record": "late"}
    return evidence(
        [xid("n2"), peer_closed(0)], rows, world=4, job=job("NODE_FAIL", exit="0:0"), nodes=nodes(n2=failed)
    )


def _cancelled() -> Evidence:
    return evidence([cancelled(at=HANG)], table(4), world=4, job=job("CANCELLED", exit="0:15", cancelled_by="alice"))


def _nothing() -> Evidence:
    missing = [replace(view, record="missing") for view in nodes()]
    gaps = [Gap(f"{name}: record", "the node has sent none") for name in NODES]
    return evidence(nodes=missing, gaps=gaps)


#: Name of the golden files → evidence.
SCENARIOS = {
    "cancelled": _cancelled,
    "exception": _exception,
    "mismatch": _mismatch,
    "missing-rank": _missing_rank,
    "node-fail": _node_fail,
    "nothing-observed": _nothing,
    "sigkill": _sigkill,
}
