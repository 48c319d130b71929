"""From logs to what is to be shown: who, in which call, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from nccl_slurm.errors import NotReproducible
from nccl_slurm.model import CLASSES, Evidence, Fact, Verdict
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.report.build import build
from nccl_slurm.repro.call import UNTOLD, Call
from nccl_slurm.repro.plan import Plan, plan
from tests.repro.conftest import Planned

GROUP = "[PG ID 0 PG GUID 0(default_pg) Rank {0}]"
HEAD = "[rank{0}]:[E704 19:50:32.426182607 ProcessGroupNCCL.cpp:757] "


def waits(rank: int, work: str = "SeqNum=7, OpType=ALLREDUCE, NumelIn=64, NumelOut=64") -> str:
    """torch 2.8's words of a rank that waited."""
    text = f"{HEAD}{GROUP} Watchdog caught collective operation timeout: WorkNCCL({work}, Timeout(ms)=600000) "
    return text.format(rank) + "ran for 600077 milliseconds before timing out.\n"


def idle(rank: int) -> str:
    text = f"{HEAD}{GROUP} Received a dump signal due to a collective timeout from  rank 0 and we will try our best "
    counts = "Last enqueued NCCL work: 6, last completed NCCL work: 6."
    return f"{text.format(rank)}to dump the debug info. {counts}\n"


def behind(rank: int) -> str:
    text = f"{HEAD}{GROUP} failure detected by watchdog at work sequence id: 7 PG status: "
    return f"{text.format(rank)}last enqueued work: 7, last completed work: 6\n"


def differs(rank: int, own: str, other: int, others: str) -> str:
    """One rank's words under TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    sides = f"Rank {rank} is running collective: CollectiveFingerPrint({own}), but Rank {other} is running collective: "
    text = f"Detected mismatch between collectives on ranks. {sides}CollectiveFingerPrint({others})"
    return f"[rank{rank}]: RuntimeError: {text}.Collectives differ in the following aspects: \t ...\n"


def printed(op: str, shape: str = "8, 8", dtype: str = "Float") -> str:
    return f"SequenceNumber=3, OpType={op}, TensorShape=[{shape}], TensorDtypes={dtype}, TensorDeviceTypes=x"


def mismatch(odd: str, usual: str = printed("ALLREDUCE")) -> str:
    """Ranks 0 and 2 name rank 1, which names rank 0."""
    lines = [differs(0, usual, 1, odd), differs(1, odd, 0, usual), differs(2, usual, 1, odd)]
    return "WORLD_SIZE=3\n" + "".join(lines)


def dump(seq: int, op: str, *behind: str) -> bytes:
    """A flight recorder dump of a rank that waits in ``op``, with more ops enqueued behind it."""
    entries = [
        {
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": seq + at,
            "is_p2p": False,
            "profiling_name": f"nccl:{name}",
            "input_sizes": [[4, 4]],
            "output_sizes": [[4, 4]],
            "input_dtypes": ["Half"],
            "output_dtypes": ["Half"],
            "state": "started" if not at else "scheduled",
        }
        for at, name in enumerate((op, *behind))
    ]
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}}
    status = {"0": {"last_enqueued_collective": seq + len(behind), "last_completed_collective": seq - 1}}
    return pickle.dumps({"version": "2.10", "pg_config": config, "pg_status": status, "entries": entries}, protocol=2)


def frtrace(fault: str, title: str = "Error occurred in collective") -> str:
    """What PyTorch's analyser of dumps prints."""
    return f"{title}\ngroup info: 0:default_pg\ncollective: nccl:all_reduce\n{fault}\ninput sizes: [[3, 4]]\n"


SUM = Call("all_reduce", (8, 8), "float32")

PLANS: dict[str, tuple[dict[str, str | bytes], dict[str, Any]]] = {
    "one rank of four never came": (
        {"job": "WORLD_SIZE=4\n" + "".join(waits(rank) + behind(rank) for rank in (0, 1, 3)) + idle(2)},
        {"kind": "absent", "rank": 2, "call": Call("all_reduce", (64,))},
    ),
    "nobody is known": (
        {"job": "WORLD_SIZE=8\n" + waits(0) + waits(1)},
        {"kind": "absent", "rank": None, "call": Call("all_reduce", (64,))},
    ),
    "a monitored barrier that one rank did not reach": (
        {
            "rank0": "WORLD_SIZE=3\n[rank0]: RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 8 ms\n",
            "rank1": "[rank1]: RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while "
            "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n",
        },
        {"kind": "absent", "rank": 2, "call": Call("monitored_barrier")},
    ),
    "no line tells the collective": (
        {"job": "WORLD_SIZE=4\n[rank0]: RuntimeError: Timed out waiting 12000ms for recv operation to complete\n"},
        {"kind": "absent", "rank": None, "call": UNTOLD},
    ),
    "a receive without its sender": (
        {"job": "WORLD_SIZE=4\n" + waits(1, "SeqNum=7, OpType=RECV, NumelIn=64, NumelOut=64")},
        {"kind": "p2p", "rank": 1, "call": Call("recv", (64,))},
    ),
    "a rank is missing when groups are made": (
        {
            "job": "WORLD_SIZE=3\n"
            + "".join(
                f"[rank{rank}]: torch.distributed.DistStoreError: wait timeout after 12000ms, keys: "
                f"/default_pg/0//cpu//0/1\n"
                for rank in (0, 2)
            )
        },
        {"kind": "init", "rank": 1},
    ),
    "another operation": (
        {"job": mismatch(printed("BROADCAST"))},
        {"kind": "op", "rank": 1, "call": SUM, "other": Call("broadcast", (8, 8), "float32")},
    ),
    "another shape": (
        {"job": mismatch(printed("ALLREDUCE", "8, 9"))},
        {"kind": "shape", "rank": 1, "call": SUM, "other": Call("all_reduce", (8, 9), "float32")},
    ),
    "another dtype": (
        {"job": mismatch(printed("ALLREDUCE", dtype="BFloat16"))},
        {"kind": "dtype", "rank": 1, "call": SUM, "other": Call("all_reduce", (8, 8), "bfloat16")},
    ),
    "what a rank says of itself counts, not the garbage that others read": (
        {
            "job": "WORLD_SIZE=3\n"
            + differs(0, printed("ALLREDUCE"), 1, "SequenceNumber=0OpType=GATHER")
            + differs(1, printed("BROADCAST", "3"), 0, "SequenceNumber=0OpType=SCATTER")
            + differs(2, printed("ALLREDUCE"), 1, "SequenceNumber=0OpType=GATHER")
        },
        {"kind": "op", "rank": 1, "call": SUM, "other": Call("broadcast", (3,), "float32")},
    ),
    "garbage alone": (
        {"job": "WORLD_SIZE=2\n" + differs(0, printed("ALLREDUCE"), 1, "SequenceNumber=0OpType=GATHER")},
        {"kind": "shape", "rank": 1, "call": SUM, "other": Call("all_reduce", (8, 8, 1), "float32")},
    ),
    "a barrier against a collective": (
        {"job": "WORLD_SIZE=2\n" + differs(0, printed("ALLREDUCE"), 1, "SequenceNumber=3OpType=BARRIER")},
        {"kind": "op", "rank": 1, "call": SUM, "other": Call("barrier")},
    ),
    "time-outs at one number in unlike operations": (
        {
            "job": "WORLD_SIZE=3\n"
            + waits(0)
            + waits(2)
            + waits(1, "SeqNum=7, OpType=_ALLGATHER_BASE, NumelIn=64, NumelOut=192")
        },
        {"kind": "op", "rank": 1, "call": Call("all_reduce", (64,)), "other": Call("all_gather_into_tensor", (64,))},
    ),
    "time-outs at one number with unlike sizes": (
        {
            "job": "WORLD_SIZE=3\n"
            + waits(0)
            + waits(2)
            + waits(1, "SeqNum=7, OpType=ALLREDUCE, NumelIn=65, NumelOut=65")
        },
        {"kind": "shape", "rank": 1, "call": Call("all_reduce", (64,)), "other": Call("all_reduce", (65,))},
    ),
    "bytes that the transport did not expect": (
        {
            "rank1": "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n  what():  [enforce "
            "fail at "
            "x/pair.cc:456] op.preamble.length <= op.nbytes. 2048 vs 1024. Received data size doesn't match "
            "expected size\n"
        },
        {
            "kind": "shape",
            "rank": None,
            "call": Call("all_reduce", (256,), "float32"),
            "other": Call("all_reduce", (512,), "float32"),
        },
    ),
    "unequal models": (
        {
            "job": "[rank2]: RuntimeError: DDP expects same model across all ranks, but Rank 2 has 51 params, "
            "while rank 0 has inconsistent 50 params.\n"
        },
        {"kind": "ddp", "rank": 2, "parameters": (50, 51)},
    ),
    "torchfrtrace names the missing rank": (
        {"torchfrtrace": frtrace("missing ranks: {1}", "Not all ranks joining collective, sequence number: 4")},
        {"kind": "absent", "rank": 1, "call": Call("all_reduce", (3, 4))},
    ),
    "torchfrtrace names another operation": (
        {
            "torchfrtrace": frtrace(
                "Culprit rank 2; Error type: COLLECTIVE_TYPE_MISMATCH, Expected collective type: 'all_reduce' does not "
                "match found collective type: '_all_gather_base'"
            )
        },
        {"kind": "op", "rank": 2, "call": Call("all_reduce", (3, 4)), "other": Call("all_gather_into_tensor", (3, 4))},
    ),
    "torchfrtrace names other sizes": (
        {
            "torchfrtrace": frtrace(
                "Culprit rank 2; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[3, 4]]' does not match "
                "found input sizes: '[[3, 5]]'"
            )
        },
        {"kind": "shape", "rank": 2, "call": Call("all_reduce", (3, 4)), "other": Call("all_reduce", (3, 5))},
    ),
    "torchfrtrace names another dtype": (
        {
            "torchfrtrace": frtrace(
                "Culprit rank 2; Error type: COLLECTIVE_DTYPE_MISMATCH, Expected dtypes: '{'Float'}' does not match "
                "found dtype: '{'Float'}/{'Half'}/{'Half'}'"
            )
        },
        {
            "kind": "dtype",
            "rank": 2,
            "call": Call("all_reduce", (3, 4), "float32"),
            "other": Call("all_reduce", (3, 4), "float16"),
        },
    ),
    "an exception": (
        {
            "rank1": '[rank1]: Traceback (most recent call last):\n[rank1]:   File "t.py", line 3, in f\n'
            "[rank1]: ValueError: loss is nan\n",
            "rank0": "WORLD_SIZE=2\n" + waits(0),
        },
        {"kind": "raise", "rank": 1, "error": ("ValueError", "loss is nan"), "call": Call("all_reduce", (64,))},
    ),
    "a signal": (
        {"job": "srun: error: n1: task 0: Segmentation fault (core dumped)\nWORLD_SIZE=1\n"},
        {"kind": "signal", "rank": 0, "status": -11},
    ),
    "a lost peer": (
        {
            "rank0": "[rank0]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1943. This is "
            "typically\n"
        },
        {"kind": "exit", "rank": None, "status": 1},
    ),
    "no master": (
        {
            "job": "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect "
            "to 10.0.0.1:1\n"
        },
        {"kind": "master"},
    ),
    "a name that does not resolve": (
        {
            "job": "[W socket.cpp:764] [c10d] The IPv6 network addresses of (n9, 29500) cannot be retrieved "
            "(gai error: -2 - Name or service not known).\n[E socket.cpp:1028] [c10d] The client socket has timed out "
            "after 12000ms while trying to connect to (n9, 29500).\n"
        },
        {"kind": "name"},
    ),
    "a port that is taken": (
        {
            "job": "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
            "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
        },
        {"kind": "port"},
    ),
}


@pytest.mark.parametrize("case", PLANS)
def test_plans(case: str, planned: Planned) -> None:
    files, wanted = PLANS[case]
    made = planned(**files)
    assert {name: getattr(made, name) for name in wanted} == wanted


@pytest.mark.parametrize("behind", [True, False])
def test_two_swapped_collectives_are_seen_in_dumps(behind: bool, planned: Planned) -> None:
    first, second = (["all_reduce", "broadcast"], ["broadcast", "all_reduce"])
    work = {"all_reduce": "ALLREDUCE", "broadcast": "BROADCAST"}
    calls = {0: first, 1: second, 2: first}
    lines = [waits(rank, f"SeqNum=5, OpType={work[ops[0]]}, NumelIn=16, NumelOut=16") for rank, ops in calls.items()]
    dumps = {f"nccl_trace_rank_{rank}": dump(5, *ops[: 1 + behind]) for rank, ops in calls.items()}
    made = planned(job="WORLD_SIZE=3\n" + "".join(lines), **dumps)
    assert (made.kind, made.rank) == ("order" if behind else "op", 1)
    assert (made.call.op, made.other.op) == ("all_reduce", "broadcast")


def test_a_dump_tells_shape_dtype_and_the_size_of_the_group(planned: Planned) -> None:
    lines = "WORLD_SIZE=3\n[rank0]: RuntimeError: Timed out waiting 12000ms for recv operation to complete\n"
    made = planned(nccl_trace_rank_0=dump(5, "_all_gather_base"), job=lines)
    assert made.call == Call("all_gather_into_tensor", (4, 4), "float16")
    assert made.seen is not None and (made.seen.size, made.seen.seq, made.seen.group) == (3, 5, "0")


def test_ranks_that_all_waited_leave_nobody_who_was_missing(planned: Planned) -> None:
    made = planned(job="WORLD_SIZE=3\n" + waits(0) + waits(1) + waits(2))
    assert made.unsure[0].startswith("whether any rank was missing")


def judged(failure: str, *facts: Fact) -> dict[str, Any]:
    verdict = Verdict(failure, "possible", "summary", "unknown")
    return build(Evidence(facts=facts), verdict, (), "final")


SHOWN = {
    "collective-missing-rank",
    "collective-hang-unattributed",
    "net-peer-lost",
}


@pytest.mark.parametrize("failure", sorted(set(CLASSES) - SHOWN))
def test_what_no_script_shows_is_refused_with_its_reason(failure: str, rows: Rows) -> None:
    """Without a line that tells what to show, even where the class could be shown."""
    with pytest.raises(NotReproducible, match=f"no script for {failure}: [A-Za-z`]") as refused:
        plan(judged(failure), rows)
    assert "a few processes on one machine can't show it" not in str(refused.value)


def test_a_refusal_names_the_last_collective(rows: Rows) -> None:
    line = Fact("torch.watchdog-timeout", waits(1), "torch", "consequence", "job", id="f1", rank=1)
    with pytest.raises(NotReproducible, match=r"the last collective seen: all_reduce of \[64\]"):
        plan(judged("unknown", line), rows)


def test_a_run_that_is_not_judged_has_no_script(rows: Rows) -> None:
    with pytest.raises(NotReproducible, match="nothing is judged yet"):
        plan(build(Evidence(), None, (), "settling"), rows)


def test_the_text_of_a_report_is_enough(reported: Callable[..., dict[str, Any]], rows: Rows) -> None:
    """A published report has been through JSON, and holds no data of facts."""
    files, _ = PLANS["another shape"]
    report = json.loads(json.dumps(reported(**files)))
    assert plan(report, rows) == plan(reported(**files), rows)


@pytest.mark.parametrize("exit_code", [3, 137, -9, 0, 999_999])
def test_how_a_rank_ended(exit_code: int, rows: Rows) -> None:
    report = judged("rank-exception")
    report["verdict"]["culprits"] = [{"rank": 1, "host": None, "gpu": None, "why": "", "evidence": []}]
    row = {"host": None, "local_rank": None, "gpu": None, "first": None, "last": None, "last_line": None}
    report["ranks"] = [{**row, "rank": 1, "exit": exit_code, "progress": {}, "uncertainty_s": None}]
    wanted = {3: ("exit", 3), 137: ("signal", -9), -9: ("signal", -9)}.get(exit_code)
    if wanted is None:
        with pytest.raises(NotReproducible):
            plan(report, rows)
    else:
        made: Plan = plan(report, rows)
        assert (made.kind, made.status, made.rank) == (*wanted, 1)
