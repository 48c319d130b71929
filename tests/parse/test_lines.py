"""Lines of each producer and version → kind, role, rank and data."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parse.conftest import Read

Expected = tuple[str, str, "int | None", dict[str, Any]]

TORCH: list[tuple[str, Expected]] = [
    (
        "  what():  [Rank 5] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE, "
        "Timeout(ms)=1800000) ran for 1801530 milliseconds before timing out.",
        ("torch.watchdog-timeout", "consequence", None, {"op": "ALLREDUCE", "timeout_ms": 1800000, "group_rank": 5}),
    ),
    (
        "[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=64088, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1800834 milliseconds before",
        ("torch.watchdog-timeout", "consequence", None, {"seq": 64088, "op": "BROADCAST", "ran_ms": 1800834}),
    ),
    (
        "[rank97]:[E318 08:39:22.969036376 ProcessGroupNCCL.cpp:683] [Rank 6] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=1, OpType=COALESCED, NumelIn=0, NumelOut=0, Timeout(ms)=600000) ran for 651421 "
        "milliseconds before timing out.",
        ("torch.watchdog-timeout", "consequence", 97, {"seq": 1, "group_rank": 6, "numel_in": 0}),
    ),
    (
        "[rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 1 Rank 1] Timeout at NCCL work: 158, last enqueued NCCL work: 160, "
        "last completed NCCL work: 157.",
        ("torch.pg-status", "consequence", 1, {"seq": 158, "enqueued": 160, "completed": 157, "pg_id": 1}),
    ),
    (
        "[rank12]:[E831 14:56:29.3 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 12] Exception (either an error "
        "or timeout) detected by watchdog at work: 20, last enqueued NCCL work: 22, last completed NCCL work: 19.",
        ("torch.pg-status", "consequence", 12, {"pg": "0", "pg_name": "default_pg", "enqueued": 22, "group_rank": 12}),
    ),
    (
        "[rank4]:[E704 19:50:32.4 ProcessGroupNCCL.cpp:2395] [PG ID 12 PG GUID 99(TENSOR_GROUP) Rank 0]  failure "
        "detected by watchdog at work sequence id: 78 PG status: last enqueued work: 79, last completed work: -1",
        (
            "torch.pg-status",
            "consequence",
            4,
            {"pg": "99", "pg_id": 12, "pg_name": "TENSOR_GROUP", "group_rank": 0, "completed": -1},
        ),
    ),
    (
        "[rank4]:[E704 19:50:32.4 ProcessGroupNCCL.cpp:2395] [PG ID 0 PG GUID 0(default_pg) Rank 4] Timeout at NCCL "
        "work: 8, last enqueued NCCL work: 9, last started NCCL work: 8, last completed NCCL work: 7.",
        ("torch.pg-status", "consequence", 4, {"enqueued": 9, "started": 8, "completed": 7}),
    ),
    (
        "[rank3]:[E704 19:50:32.6 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump "
        "signal due to a collective timeout from this local rank and we will try our best to dump the debug info. "
        "Last enqueued NCCL work: 79, last completed NCCL work: 77.This is most likely caused by",
        ("torch.dump-signal-local", "consequence", 3, {"enqueued": 79, "completed": 77, "pg": "0"}),
    ),
    (
        "[rank7]:[E704 19:50:32.6 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 7] Received a dump "
        "signal due to a collective timeout from  rank 3 and we will try our best to dump the debug info. "
        "Last enqueued NCCL work: 77, last completed NCCL work: 77.This is most likely caused by",
        ("torch.dump-signal-remote", "context", 7, {"told_by": 3, "enqueued": 77, "completed": 77}),
    ),
    (
        "[rank0]:[E ProcessGroupNCCL.cpp:1316] [PG 5 Rank 0] Heartbeat monitor timed out! Process will be terminated "
        "after dumping debug info. workMetaList_.size()=3",
        ("torch.heartbeat", "cause", 0, {"work": 3, "pg_id": 5}),
    ),
    (
        "[rank2]:[E1215 16:08:05.48 ProcessGroupNCCL.cpp:542] [Rank 2] Collective WorkNCCL(SeqNum=9, OpType=BROADCAST, "
        "NumelIn=7, NumelOut=7, Timeout(ms)=1800000) raised the following async exception: NCCL error: remote process "
        "exited or there was a network error, NCCL version 2.21.5",
        ("torch.async-error", "consequence", 2, {"seq": 9, "op": "BROADCAST"}),
    ),
    (
        "[rank12]:[E827 00:09:34.2 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 12] Process group watchdog "
        "thread terminated with exception: CUDA error: uncorrectable ECC error encountered",
        ("cuda.ecc", "cause", 12, {}),
    ),
    (
        "[rank0]: torch.distributed.DistBackendError: NCCL error in: ../NCCLUtils.cpp:93, unhandled system error (run "
        "with NCCL_DEBUG=INFO for details), NCCL version 2.29.3",
        ("torch.nccl-error", "context", 0, {"error": "unhandled system error", "version": "2.29.3"}),
    ),
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=6OpType=BARRIER), but Rank 1 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=6, OpType=ALLREDUCE, TensorShape=[8, 4], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float (default), device=cpu)).Collectives differ in the following "
        "aspects: \t Op type: BARRIERvs ALLREDUCE",
        (
            "torch.mismatch",
            "cause",
            None,
            {"rank_a": 3, "rank_b": 1, "seq_a": 6, "op_a": "BARRIER", "op_b": "ALLREDUCE", "shape_b": "8, 4"},
        ),
    ),
    (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running inconsistent collective: "
        "CollectiveFingerPrint(OpType=ALLREDUCE, TensorShape=[2], TensorDtypes=Float, TensorDeviceTypes=x)",
        ("torch.mismatch", "cause", None, {"rank_a": 0, "op_a": "ALLREDUCE", "shape_a": "2"}),
    ),
    (
        "RuntimeError: [Rank 0]: Ranks 1, 2, 5 failed to pass monitoredBarrier in 2000 ms",
        ("torch.barrier-failed", "consequence", None, {"missing": [1, 2, 5], "group_rank": 0, "timeout_ms": 2000}),
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /default_pg/0//cpu//0/3",
        ("torch.store-wait", "consequence", None, {"missing": [3], "timeout_ms": 12000}),
    ),
    (
        "torch.distributed.DistStoreError: wait timeout after 12000ms, keys: /my/own/key/3",
        ("torch.store-wait", "consequence", None, {"keys": "/my/own/key/3"}),
    ),
    (
        "RuntimeError: [2] is setting up NCCL communicator and retreiving ncclUniqueId from [0] via c10d key-value "
        "store by key '0:1', but store->get('0:1') got error: Socket Timeout",
        ("torch.unique-id", "consequence", None, {"group_rank": 2, "group_root": 0, "error": "Socket Timeout"}),
    ),
    (
        "[E socket.cpp:860] [c10d] The client socket has timed out after 60s while trying to connect to 10.0.0.1:1234",
        ("torch.client-timeout", "cause", None, {"timeout_ms": 60000, "address": "10.0.0.1", "port": 1234}),
    ),
    (
        "[E1129 12:28:04.8 socket.cpp:1028] [c10d] The client socket has timed out after 12000ms while trying to "
        "connect to (n1, 49143).",
        ("torch.client-timeout", "cause", None, {"timeout_ms": 12000, "address": "n1", "port": 49143}),
    ),
    (
        "[rank2]: RuntimeError: DDP expects same model across all ranks, but Rank 2 has 51 params, while rank 0 has "
        "inconsistent 0 params.",
        ("torch.ddp-unequal-none", "consequence", 2, {"params_a": 51, "params_b": 0}),
    ),
    (
        "[rank1]:[W1129 12:28:04.86 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=9): x",
        ("torch.store-lost", "consequence", 1, {"call": "recvValueWithTimeout"}),
    ),
]

NCCL: list[tuple[str, Expected]] = [
    (
        "n1:8:9 [3] NCCL INFO comm 0x55 rank 3 nranks 16 cudaDev 3 busId 1a000 commId 0xfe - Init COMPLETE",
        (
            "nccl.init-complete",
            "context",
            3,
            {"group_rank": 3, "nranks": 16, "gpu": "0000:1a:00", "comm_id": "0xfe"},
        ),
    ),
    (
        "n1:8:9 [3] NCCL INFO ncclCommSplit comm 0x55 rank 1 nranks 2 cudaDev 3 nvmlDev 3 busId 1a000 parent 0x44 "
        "splitCount 1 color 7 key 3- Init START",
        ("nccl.init-start", "context", None, {"parent": "0x44", "color": 7, "key": 3, "api": "ncclCommSplit"}),
    ),
    (
        "[1,7]<stdout>:n2:8:9 [7] NCCL INFO Ring 00 : 7 -> 8 [send] via NET/AWS Libfabric/0",
        ("nccl.channel", "context", 7, {"via": "NET/AWS Libfabric", "group_from": 7, "group_to": 8}),
    ),
    (
        "n1:8:9 [3] NCCL INFO Channel 00 : 0[1a000] -> 1[1b000] via P2P/IPC",
        ("nccl.channel", "context", None, {"via": "P2P/IPC"}),
    ),
    (
        "n1:8:9 [3] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, vendor err 129",
        ("nccl.ib-completion", "cause", None, {"status": 12, "vendor": 129}),
    ),
    (
        "[2026-03-13 22:26:02] n1:8:9 [0] net_ib/p2p.cc:10 (ncclIbTest) NCCL WARN NET/IB: Got completion from peer "
        "10.0.0.7<4120> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129  localGid fe80::1 "
        "remoteGids fe80::2 hca mlx5_3",
        ("nccl.ib-completion", "cause", None, {"status": 12, "status_name": "IBV_WC_RETRY_EXC_ERR", "hca": "mlx5_3"}),
    ),
    (
        "NET/IB : Got completion from peer 10.0.0.7<4120> with status=5 opcode=48 len=3 vendor err 249 (Send)",
        ("nccl.ib-flush", "consequence", None, {"status": 5, "peer": "10.0.0.7"}),
    ),
    (
        "n1:8:9 [0] NCCL WARN NET/IB : Got async event : port error",
        ("nccl.ib-port", "cause", None, {"event": "port error"}),
    ),
    (
        "n1:8:9 [0] transport/net_ib.cu:80 NCCL WARN NET/IB : Got async event : local catastrophic error",
        ("nccl.ib-fatal", "cause", None, {"event": "local catastrophic error"}),
    ),
    (
        "n1:8:9 [0] NCCL WARN Call to ibv_modify_qp failed with error Connection timed out errno 110",
        ("nccl.ib-setup", "cause", None, {"call": "modify_qp", "error": "Connection timed out", "code": 110}),
    ),
    (
        "n1:8:9 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out",
        ("nccl.connect-failed", "cause", None, {"reason": "Connection timed out"}),
    ),
    (
        "n1:8:9 [0] NCCL WARN socketPollConnect: Connect to 10.0.0.7<4120> returned 113(No route to host) errno "
        "113(No route to host)",
        ("nccl.connect-failed", "cause", None, {"peer": "10.0.0.7"}),
    ),
    (
        "n1:8:9 [0] NCCL WARN socketProgressOpt: Call to recv from n2<58355> failed : Connection reset by peer",
        ("nccl.peer-lost", "consequence", None, {"error": "Connection reset by peer"}),
    ),
    (
        "n1:8:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
        ("nccl.service-closed", "benign", None, {"local_rank": 0}),
    ),
    (
        "n1:8:9 [0] NCCL WARN Error while creating shared memory segment nccl-shm-recv-1f (size 9637888)",
        ("nccl.shm", "cause", None, {"bytes": 9637888}),
    ),
    (
        "n1:8:9 [0] init.cc:1 NCCL WARN Cuda failure 'invalid argument'",
        ("nccl.cuda", "cause", None, {"error": "invalid argument"}),
    ),
    (
        "n1:8:9 [0] create_component:459 NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
        ("ofi.setup", "cause", None, {}),
    ),
]

REST: list[tuple[str, Expected]] = [
    (
        "[rank1]: RuntimeError: [../gloo/tcp/pair.cc:553] Connection closed by peer [10.0.0.9]:1943. GLHF! 🤞",
        ("gloo.peer-closed", "consequence", 1, {"peer": "10.0.0.9", "port": 1943}),
    ),
    (
        "RuntimeError: [../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.9]:1943: Connection reset by peer",
        ("gloo.peer-closed", "consequence", None, {"port": 1943}),
    ),
    (
        "[rank1]: RuntimeError: [../unbound_buffer.cc:129] Timed out waiting 12000ms for send operation to complete",
        ("gloo.timeout", "consequence", 1, {"timeout_ms": 12000, "direction": "send"}),
    ),
    (
        "WARNING:torch.distributed.elastic.multiprocessing.api:Unable to shutdown process 55 via 15, forcefully "
        "exitting via 9",
        ("elastic.forced-kill", "consequence", None, {"pid": 55}),
    ),
    (
        "W1129 12:29:58.2 31 torch/distributed/elastic/multiprocessing/api.py:1047] Unable to shutdown process 55 via "
        "Signals.SIGTERM, forcefully exiting via Signals.SIGKILL",
        ("elastic.forced-kill", "consequence", None, {"pid": 55, "forced": "SIGKILL"}),
    ),
    (
        "E1129 12:29:58.6 31 torch/x/api.py:1002] failed (exitcode: -11) local_rank: 2 (pid: 77) of binary: /bin/py",
        ("elastic.failed", "cause", None, {"exitcode": -11, "local_rank": 2, "pid": 77}),
    ),
    (
        "E1129 12:29:58.6 31 torch/x/api.py:1002] failed (exitcode: -15) local_rank: 2 (pid: 77) of binary: /bin/py",
        ("elastic.closed-worker", "consequence", None, {"exitcode": -15}),
    ),
    (
        "srun: error: n[1-2]: tasks 0-3,9: Exited with exit code 1",
        ("slurm.task-exit", "cause", None, {"tasks": [0, 1, 2, 3, 9], "exitcode": 1, "hosts": "n[1-2]"}),
    ),
    ("srun: error: n1: tasks 0-2: Terminated", ("slurm.task-terminated", "consequence", None, {"node": "n1"})),
    ("srun: error: n1: task 0: Killed", ("slurm.task-signal", "cause", None, {"signal": "Killed", "tasks": [0]})),
    (
        "slurmstepd: error: Detected 2 oom_kill events in StepId=1.batch. Some of the step tasks have been OOM Killed.",
        ("slurm.oom-kill", "cause", None, {"events": 2, "step": "1.batch"}),
    ),
    ("salloc: error: Node failure on w-1", ("slurm.node-failure", "cause", None, {"node": "w-1"})),
    (
        "slurmstepd: error: *** STEP 1.0 ON n17 CANCELLED AT 2026-03-06T03:17:51 DUE TO NODE FAILURE, SEE LOG ***",
        ("slurm.cancelled-node-failure", "consequence", None, {"first_node": "n17"}),
    ),
    (
        "slurmstepd: error: *** JOB 1 ON n17 CANCELLED AT 2026-03-06T03:17:51 DUE to SIGNAL Terminated ***",
        ("slurm.cancelled", "consequence", None, {"reason": "SIGNAL Terminated"}),
    ),
    (
        "[2026-09-21T10:00:00.123] error: *** STEP 1.0 ON n17 CANCELLED AT 2026-09-21T10:00:00 ***",
        ("slurm.cancelled", "consequence", None, {"step": "1.0"}),
    ),
    (
        "AssertionError: Rank 11: found NaN in local grad norm in backward pass. Device: 3",
        ("framework.nan", "cause", 11, {"device": 3}),
    ),
    (
        "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2",
        ("framework.nan", "cause", 3, {"iteration": 3}),
    ),
    ("[rank5]: ValueError: loss is nan", ("python.exception", "cause", 5, {"type": "ValueError"})),
    ("[rank5]: KeyboardInterrupt", ("python.interrupt", "consequence", 5, {})),
    (
        "mpirun noticed that process rank 3 with PID 812 on node n2 exited on signal 9 (Killed).",
        ("framework.mpi-exit", "cause", 3, {"signal": 9, "node": "n2"}),
    ),
    (
        "mpirun noticed that process rank 3 with PID 812 on node n2 exited on signal 15 (Terminated).",
        ("framework.mpi-ended", "consequence", 3, {"signal": 15, "node": "n2"}),
    ),
    ("missing ranks: {1, 3}", ("flight-recorder.missing-ranks", "cause", None, {"missing": [1, 3]})),
    (
        "Rank 12 has not launched any operations -- GPU 4 managed by process 323 on node 10.0.0.1",
        ("nccl.ras-rank", "context", None, {"group_rank": 12, "node": "10.0.0.1"}),
    ),
]


@pytest.mark.parametrize(
    ("line", "expected"), TORCH + NCCL + REST, ids=lambda value: value[0] if isinstance(value, tuple) else ""
)
def test_line(read: Read, line: str, expected: Expected) -> None:
    kind, role, rank, data = expected
    parsed = read(("job.log", f"before\n{line}\nafter\n"))
    assert [fact.kind for fact in parsed.facts] == [kind]
    fact = parsed.facts[0]
    assert (fact.role, fact.rank, fact.file, fact.line, fact.offset, fact.text) == (role, rank, "job.log", 2, 7, line)
    assert {key: fact.data.get(key) for key in data} == data
    assert fact.trust == "job"


@pytest.mark.parametrize(
    "line",
    [
        "step 5 loss 2.1 tokens/s 123",
        "n1:8:9 [0] NCCL INFO Connected all rings",
        "ep 1 train, step 97, acc 0.004, loss 8.624, mem_usage:cuda:2 8.8GB, 0.82 sec/step",
        "INFO:torch.distributed.elastic.agent.server.api:Done waiting for other agents. Elapsed: 0.0007 seconds",
        "[Rank 3] all good",
    ],
)
def test_ordinary_lines_are_no_facts(read: Read, line: str) -> None:
    parsed = read(("job.log", line + "\n"))
    assert not parsed.facts
    assert parsed.lines_unknown == 1
