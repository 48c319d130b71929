"""One plan of each kind, for scripts that are looked at or run."""

from __future__ import annotations

from typing import Any

from nccl_slurm.model import Evidence, Fact, Inference, Verdict, numbered
from nccl_slurm.report.build import build
from nccl_slurm.repro.call import Call
from nccl_slurm.repro.plan import Plan
from nccl_slurm.repro.sighting import Sighting

SUM = Call("all_reduce", (64, 64), "float32")

PLANS = {
    "absent": Plan("absent", call=SUM),
    "absent, rank 0": Plan("absent", 0, call=Call("broadcast", (8,))),
    "absent, nothing told": Plan("absent", 5),
    "absent, monitored barrier": Plan("absent", call=Call("monitored_barrier")),
    "raise": Plan("raise", 1, call=SUM, error=("ValueError", "loss is nan")),
    "raise, a type of the program": Plan("raise", 1, call=SUM, error=("my.LossError", "loss is nan")),
    "exit": Plan("exit", call=Call("barrier"), status=3),
    "exit, status 0": Plan("exit", 0, call=SUM, status=0),
    "signal": Plan("signal", call=SUM, status=-11),
    "signal, SIGKILL": Plan("signal", call=SUM, status=-9),
    "op": Plan("op", call=SUM, other=Call("broadcast", (64, 64), "float32")),
    "shape": Plan("shape", call=SUM, other=Call("all_reduce", (64, 65), "float32")),
    "shape, uneven all_gather": Plan("shape", call=Call("all_gather", (3,)), other=Call("all_gather", (4,))),
    "shape, uneven parts": Plan(
        "shape", call=Call("reduce_scatter_tensor", (3, 5)), other=Call("reduce_scatter_tensor", (4, 5))
    ),
    "shape, number of dimensions": Plan("shape", call=SUM, other=Call("all_reduce", (64, 64, 1), "float32")),
    "dtype": Plan("dtype", call=SUM, other=Call("all_reduce", (64, 64), "bfloat16")),
    "order": Plan("order", call=SUM, other=Call("broadcast", (3,), "int64")),
    "p2p, recv": Plan("p2p", call=Call("recv", (8,))),
    "p2p, send": Plan("p2p", 0, call=Call("send", (8,))),
    "ddp": Plan("ddp", 1, parameters=(3, 5)),
    "init": Plan("init", 1),
    "clients": Plan("clients"),
    "master": Plan("master"),
    "name": Plan("name"),
    "port": Plan("port"),
}


def report(text: str = "a line", summary: str = "what happened", file: str = "job.log") -> dict[str, Any]:
    """A judged one with a single line of evidence, `seen` in it."""
    facts = numbered([Fact("torch.watchdog-timeout", text, "torch", "consequence", "job", file=file, line=7)])
    verdict = Verdict("collective-missing-rank", "likely", summary, "fix-code", inferences=[Inference("", "r", ["f1"])])
    return build(Evidence(facts=facts), verdict, (), "final")


def seen(group: str) -> Sighting:
    return Sighting(SUM, "f1", 1, 7, group)
