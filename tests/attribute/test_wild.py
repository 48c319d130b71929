"""Kinds of failure as public threads tell of them: one text each, in this project's own words, and what it proves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.cli.logs import report_of_logs

_DIED = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, {}, NCCL version 2.26.2\n"
_WAIT = (
    "[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, "
    "OpType=BROADCAST, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600100 milliseconds before timing out.\n"
)
_NO_SPACE = "Traceback (most recent call last):\n  File 'x.py', line 1\nOSError: [Errno {}] {}\n"
_KERNEL = "[  812.345678] NVRM: Xid (PCI:0000:18:00): "

#: name → text, class, action. Nobody is to be named from any of these.
NAMELESS = {
    "two ranks on one GPU": (
        _DIED.format("invalid usage")
        + "Last error:\nDuplicate GPU detected : rank 5 and rank 1 both on CUDA device 3b000\n",
        "rank-exception",
        "fix-config",
    ),
    "two ranks on one GPU, NCCL's own lines": (
        "n1:8:9 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 2 and rank 0 both on CUDA device 1000\n"
        "n1:7:6 [0] init.cc:497 NCCL WARN Duplicate GPU detected : rank 0 and rank 2 both on CUDA device 1000\n",
        "rank-exception",
        "fix-config",
    ),
    "a GPU that is not there": ("RuntimeError: CUDA error: invalid device ordinal\n", "rank-exception", "fix-config"),
    "no GPU": (
        "RuntimeError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!\n",
        "rank-exception",
        "fix-config",
    ),
    "CUDA does not say what failed": (
        "n1:8:9 [0] include/alloc.h:112 NCCL WARN Cuda failure 999 'unknown error'\n" + _DIED.format("x"),
        "rank-exception",
        "investigate",
    ),
    "built for other GPUs": (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n",
        "version-mismatch",
        "fix-config",
    ),
    "another driver": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on "
        "non supported HW\n",
        "version-mismatch",
        "fix-config",
    ),
    "NVLS set-up": (
        "n1:8:9 [0] transport/nvls.cc:598 NCCL WARN Cuda failure 1 'invalid argument'\n",
        "nvlink-fabric",
        "investigate",
    ),
    "a full disk": (_NO_SPACE.format(28, "No space left on device"), "rank-exception", "fix-config"),
    "a full disk behind a stamp of the site's own": (
        "2026-04-29 06:01:12.977 [177/train (pid 9)] OSError: [Errno 122] Disk quota exceeded: '/home/a'\n",
        "rank-exception",
        "fix-config",
    ),
    "a file system that is gone": (
        _NO_SPACE.format(116, "Stale file handle: '/nfs/x'"),
        "storage-stall",
        "investigate",
    ),
    "the port is taken, no address told": ("RuntimeError: Address already in use\n", "rendezvous-store", "fix-config"),
    "a loader's bus error": (
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory.\n",
        "resource-shm",
        "fix-config",
    ),
    "a loader was killed": (
        "RuntimeError: DataLoader worker (pid 812) is killed by signal: Killed.\n",
        "process-signal",
        "fix-config",
    ),
    "another rank's shared memory is not there": (
        "n1:8:9 [4] misc/shmutils.cc:132 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-aB3dEf "
        "(size 9637888), error: No such file or directory (2)\n",
        "resource-shm",
        "fix-config",
    ),
    "a script's child was killed": (
        "train.sh: line 12:  8121 Killed                  python train.py\n",
        "process-signal",
        "fix-config",
    ),
    "a launcher tells of SIGSEGV": (
        "subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGSEGV: 11>.\n",
        "process-signal",
        "unknown",
    ),
    "DeepSpeed tells of SIGKILL": (
        "[2026-04-14 13:11:27,885] [ERROR] [launch.py:321:sigkill_handler] ['python', 't.py', '--local_rank=7'] exits "
        "with return code = -9\n",
        "process-signal",
        "fix-config",
    ),
    "MPICH tells of SIGBUS": (
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)\n",
        "process-signal",
        "fix-config",
    ),
    "UCX tells of SIGBUS": (
        "[n1:8121 :0:8125] Caught signal 7 (Bus error: nonexistent physical address)\n",
        "process-signal",
        "fix-config",
    ),
    "Ray lost an actor": (
        "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: End "
        "of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer.\n",
        "process-signal",
        "investigate",
    ),
    "Ray's memory monitor": (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n",
        "host-oom",
        "fix-config",
    ),
    "NCCL has no address": (
        "include/socket.h:344 NCCL WARN Socket creation failed : Address family not supported by protocol\n",
        "net-socket-connect",
        "network",
    ),
    "a queue pair without a reason": (
        "n1:8:9 [0] misc/ibvwrap.cu:269 WARN Call to ibv_create_qp failed\n",
        "net-ib-setup",
        "fix-config",
    ),
    "UCX's retries": (
        "[n1:8:0:8] ib_mlx5_log.c:174  Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81)\n",
        "net-ib-transport",
        "network",
    ),
    "locked memory, heard of one node": (
        "n1:8:9 [7] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory\n",
        "resource-memlock",
        "fix-config",
    ),
    "Slurm can't give that": (
        "srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification\n",
        "slurm-launch",
        "fix-config",
    ),
    "tasks that fit on no node": (
        "srun: error: Task launch for StepId=7.4 failed on node n3: Unable to layout tasks on given cpus\n"
        "srun: Job step aborted\n",
        "slurm-launch",
        "fix-config",
    ),
    "a plugin of Slurm": (
        "slurmstepd: error: spank: required plugin site_quota.so: task_init() failed with rc=-1\n",
        "slurm-launch",
        "fix-config",
    ),
    "a time limit of an old Slurm": (
        "slurmstepd: *** JOB 830 CANCELLED AT 2018-08-06T17:21:44 DUE TO TIME LIMIT on n447 ***\n",
        "preempt-cancel",
        "none",
    ),
    "a process that did not end": (
        "[2026-12-14T09:43:55.500] [63.0] error: *** STEP 63.0 ON n6 CANCELLED AT 2026-12-14T09:43:55 ***\n"
        "[2026-12-14T09:44:56.002] [63.0] error: *** STEP 63.0 STEPD TERMINATED ON n6 AT 2026-12-14T09:44:56 DUE TO "
        "JOB NOT ENDING WITH SIGNALS ***\n",
        "slurm-launch",
        "investigate",
    ),
    "a timeout whose line was broken": (
        "exception: [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(\nSeqNum=7, OpType=ALLREDUCE, "
        "Timeout(ms)=600000\n) ran for 600100 milliseconds before timing out.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "terabytes after a timeout of a rank that is not told": (
        _WAIT
        + "Traceback (most recent call last):\n  File 'x.py', line 1\ntorch.cuda.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate more than 1EB memory.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "an exit behind an error of NCCL's": (
        "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
        "ERROR:torch.distributed.elastic.x:failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: p\n",
        "rank-exception",
        "investigate",
    ),
    "a status line that a terminal broke": (
        "[rank3]:[E909 09:55:46.996672294 ProcessGroupNCCL.cpp:1709] [PG 0 (default_pg) Rank 3] Timeout at NCCL work: "
        "2070, last enqueued \nNCCL work: 2082, last completed NCCL work: 2069.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "an error of the store in other words": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\n"
        "torch.distributed.DistStoreError: the key is not there\n",
        "rendezvous-store",
        "fix-config",
    ),
    "the watchdog's last words": (
        "[E ProcessGroupNCCL.cpp:577] [Rank 3] Some NCCL operations have failed or timed out. Due to the asynchronous "
        "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
        "ERROR:torch.distributed.elastic.x:failed (exitcode: -6) local_rank: 0 (pid: 9) of binary: p\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "the watchdog's last words behind a fault": (
        "RuntimeError: CUDA error: an illegal memory access was encountered\n"
        "[E ProcessGroupNCCL.cpp:583] To avoid data inconsistency, we are taking the entire process down.\n"
        "ERROR:torch.distributed.elastic.x:failed (exitcode: -6) local_rank: 0 (pid: 9) of binary: p\n",
        "gpu-app-fault",
        "fix-code",
    ),
    "an exit behind a wait in the store": (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n"
        "ERROR:torch.distributed.elastic.x:failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: p\n",
        "rendezvous-store",
        "fix-config",
    ),
    "an exit before a wait in the store": (
        "ERROR:torch.distributed.elastic.x:failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: p\n"
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n",
        "rank-exception",
        "fix-code",
    ),
    "a signal behind a wait in the store": (
        "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n"
        "ERROR:torch.distributed.elastic.x:failed (exitcode: -11) local_rank: 0 (pid: 9) of binary: p\n",
        "process-signal",
        "unknown",
    ),
    "Lightning's word behind a hang": (
        "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=7753, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600061 "
        "milliseconds before timing out.\n[rank: 1] Child process with PID 812 terminated with code 1. Forcefully "
        "terminating all other processes to avoid zombies\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "Kubernetes tells of memory": (
        "    Last State:     Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n",
        "host-oom",
        "fix-config",
    ),
    "mpirun's word behind a flush": (
        "n1:8:9 [0] NCCL WARN NET/IB : Got completion with error 5, opcode 0, len 0, vendor err 249\n"
        "mpirun detected that one or more processes exited with non-zero status, thus causing the job to end.\n",
        "net-ib-transport",
        "network",
    ),
    "torch's old launcher": (
        "subprocess.CalledProcessError: Command '['/opt/python3.8', '-u', 'm.py', '--local_rank=7']' returned non-zero "
        "exit status 1.\n",
        "rank-exception",
        "fix-code",
    ),
    "torch's spawn": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with exit code 17\n",
        "rank-exception",
        "fix-code",
    ),
    "Horovod was shut down": (
        "[1,3]<stderr>:Traceback (most recent call last):\n[1,3]<stderr>:  File 'a.py', line 3, in x\n"
        "[1,3]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused "
        "by an exception on one of the ranks or an attempt to allreduce\n",
        "net-peer-lost",
        "investigate",
    ),
    "Ray's worker got SIGTERM behind a lost peer": (
        "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1943.\n"
        "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: 8 "
        "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker exits unexpectedly by a signal. The process "
        "receives a SIGTERM.\n",
        "net-peer-lost",
        "investigate",
    ),
    "Horovod's stall": (
        "Stalled ops:HorovodAllreduce_dense_0 [missing ranks: 1]\n",
        "collective-missing-rank",
        "fix-code",
    ),
    "JAX: tasks did not come": (
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect. "
        "Timed out task names:\n",
        "rendezvous-store",
        "fix-config",
    ),
    "JAX: a task went": (
        "UNAVAILABLE: Task /job:jax_worker/replica:0/task:3 heartbeat timeout. This indicates that the remote task has "
        "failed, got preempted, or crashed unexpectedly.\n",
        "net-peer-lost",
        "investigate",
    ),
    "the driver about a program": (
        _KERNEL + "31, pid=9, Ch 00000039, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted\n",
        "gpu-app-fault",
        "fix-code",
    ),
    "a container has a part of the GPUs": (
        "n1:8:9 [2] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found\n",
        "rank-exception",
        "fix-config",
    ),
    "no GPU in the container": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\nRuntimeError: No CUDA GPUs are available\n",
        "rank-exception",
        "fix-config",
    ),
    "NCCL gets no memory and CUDA's reason is not there": (
        _DIED.format("unhandled cuda error") + "Last error:\nFailed to CUDA calloc async 4608 bytes\n",
        "rank-exception",
        "investigate",
    ),
    "threads of a kernel assert": (
        "Indexing.cu:1553: indexSelect: block: [7,0,0], thread: [5,0,0] Assertion `at < size` failed.\n" * 3,
        "gpu-app-fault",
        "fix-code",
    ),
    "AMD's fault": (
        "Memory access fault by GPU node-3 (Agent handle: 0x5d1c) on address 0x7e2000. Reason: Unknown.\n",
        "gpu-app-fault",
        "fix-code",
    ),
    "a spawned process was killed": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGKILL\n",
        "process-signal",
        "fix-config",
    ),
    "EFA's driver": (
        "infiniband efa_1: Failed to process command REG_MR (opcode 7) comp_status 7 err -12\n",
        "net-efa-ofi",
        "fix-config",
    ),
    "a barrier names who did not come": (
        "[rank0]: RuntimeError: Rank 1 failed to pass monitoredBarrier in 900000 ms\n",
        "collective-missing-rank",
        "fix-code",
    ),
    "a name that nobody knows": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\nsocket.gaierror: [Errno -2] Name not known\n",
        "rank-exception",
        "fix-config",
    ),
    "CUDA's driver does not say what failed": (
        "RuntimeError: CUDA driver error: unknown error\n",
        "rank-exception",
        "investigate",
    ),
    "a kernel that ran too long": (
        "RuntimeError: CUDA error: the launch timed out and was terminated\n",
        "gpu-app-fault",
        "fix-code",
    ),
    "Slurm's daemons do not believe one another": (
        "slurmstepd: error: Munge decode failed: Unauthorized credential for client UID=7 GID=5\n"
        "slurmstepd: error:  mpi/pmix_v4: _auth_cred_verify: n5 [1]: pmixp_server.c:540: Verifying authentication "
        "credential: Invalid authentication credential\n",
        "slurm-launch",
        "investigate",
    ),
    "a queue pair, told by another library": (
        "Failed to modify QP to RTR: No such device\nerrno: 19\n",
        "net-ib-setup",
        "fix-config",
    ),
    "gloo without a mesh": (
        "RuntimeError: [gloo/transport/tcp/pair.cc:611] Connect timeout [10.0.0.13]:27023\n",
        "net-socket-connect",
        "network",
    ),
    "an adapter that can't be started": (
        "[  812.345678] NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x22:0x56:742)\n",
        "gpu-hw-lost",
        "investigate",
    ),
    "RAS saw unlike counts": (
        "#0-0 (fa93daea854b060b) MISMATCH\n  Communicator ranks have different AllGather operation counts\n"
        "  30 ranks have launched up to operation 640\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a peer's memory over NVLink": (
        "torch.AcceleratorError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error\n",
        "nvlink-fabric",
        "investigate",
    ),
    "JAX's allocator": (
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\n",
        "cuda-oom",
        "fix-code",
    ),
    "too many GPUs on one host for P2P": (
        "n1:8:9 [0] transport/p2p.cc:272 NCCL WARN Cuda failure 'peer mapping resources exhausted'\n",
        "rank-exception",
        "fix-config",
    ),
    "UCX asks for locked memory": (
        "[n1:8:0] ib_log.c:246  UCX  ERROR mlx5_0: ibv_create_cq() failed: Cannot allocate memory. Please set max "
        "locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)\n",
        "resource-memlock",
        "fix-config",
    ),
    "NCCL has no descriptor left": (
        "n1:8:9 [0] misc/socket.cc:663 NCCL WARN socketTryAccept: Accept failed: Too many open files\n",
        "net-socket-connect",
        "fix-config",
    ),
    "a buffer that NCCL can't use": (
        "n1:8:9 [0] misc/argcheck.cc:39 NCCL WARN AllReduce : sendbuff is not a valid pointer\n",
        "rank-exception",
        "fix-code",
    ),
    "a request of the other end, told by the adapter": (
        "n1:8:9 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_1:1 async fatal event on QP (0x7f10): invalid "
        "request local work queue error\n",
        "net-ib-transport",
        "investigate",
    ),
    "a completion whose line was broken": (
        "n2:8:9 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.0.0.5<33092> with error "
        "12, opcode 0, len\n0, vendor err 129 (Recv)\n",
        "net-ib-transport",
        "network",
    ),
    "EFA's own words": (
        "libfabric:8:1790000000::efa:cq:efa_rdm_rxe_handle_error():700<warn> err: 103, message: Unresponsive receiver "
        "My EFA addr: fi_addr_efa://[fe80::1]:0:7\n",
        "net-efa-ofi",
        "network",
    ),
    "a wait that blocked": (
        "RuntimeError: Work WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) timed out "
        "in blocking wait (TORCH_NCCL_BLOCKING_WAIT=1).\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a group that not all ranks came to": (
        "[rank3]: torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on "
        "rank 3, for key: store_based_barrier_key:1 (world_size=8, num_workers_joined=7, timeout=0:30:00 error=x)\n",
        "rendezvous-store",
        "fix-config",
    ),
    "a store that did not answer": (
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.\n",
        "rendezvous-store",
        "fix-config",
    ),
    "a store that went away": (
        "[rank1]: torch.distributed.DistNetworkError: Connection reset by peer\n",
        "net-peer-lost",
        "investigate",
    ),
    "gloo is refused": (
        "RuntimeError: [/src/gloo/transport/tcp/pair.cc:536] : Connection refused\n",
        "net-socket-connect",
        "network",
    ),
    "torchrun passes a hang-up on": (
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 8 closing signal SIGHUP\n",
        "preempt-cancel",
        "none",
    ),
    "an agent that ends workers, and noise of a teardown": (
        "[rank0]:[W219 09:17:03.293812312 ProcessGroupNCCL.cpp:1168] Warning: WARNING: destroy_process_group() was not "
        "called before program exit, which can leak resources.\n"
        "W0219 09:17:03.837000 9 torch/distributed/elastic/multiprocessing/api.py:858] Sending process 8 closing "
        "signal SIGTERM\n",
        "unknown",
        "unknown",
    ),
    "a launch that asks for CPUs of another step": (
        "srun: error: CPU binding outside of job step allocation, allocated CPUs are: 0x0F.\n"
        "srun: error: Task launch for StepId=7.0 failed on node n3: Unable to satisfy cpu bind request\n"
        "srun: error: Application launch failed: Unable to satisfy cpu bind request\n",
        "slurm-launch",
        "fix-config",
    ),
    "a node that slurm.conf has no address of": (
        "srun: error: Task launch for StepId=7.0 failed on node n3: Can't find an address, check slurm.conf\n",
        "slurm-launch",
        "fix-config",
    ),
    "an allocation that is over": (
        "srun: error: Unable to confirm allocation for job 42: Invalid job id specified\n",
        "slurm-launch",
        "fix-config",
    ),
    "a job's own mounts": (
        "slurmstepd: error: container_p_join: open failed for /nvme/42/.ns: No such file or directory\n"
        "slurmstepd: error: container_g_join failed: 42\n",
        "slurm-launch",
        "investigate",
    ),
    "a node's slurmstepd is gone": (
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 0\n",
        "net-peer-lost",
        "investigate",
    ),
    "tasks that srun killed behind those that gave up": (
        "[rank8]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 8] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600100 "
        "milliseconds before timing out.\nsrun: error: n2: tasks 8-15: Aborted (core dumped)\n"
        "srun: error: n1: tasks 0-7: Killed\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a GPU's firmware, without an Xid": (
        "[   24.302465] NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 8127 timeout 5200\n",
        "gpu-hw-lost",
        "investigate",
    ),
    "DeepSpeed tells of an exit code": (
        "[2026-03-20 20:31:29,269] [ERROR] [launch.py:321:sigkill_handler] ['python', 't.py', '--local_rank=4'] exits "
        "with return code = 1\n",
        "rank-exception",
        "fix-code",
    ),
    "Open MPI's handler": (
        "[n1:8121] *** Process received signal ***\n[n1:8121] Signal: Segmentation fault (11)\n",
        "process-signal",
        "unknown",
    ),
    "mpirun tells of SIGABRT, as any rank ends that gave up": (
        "prterun noticed that process rank 7 with PID 0 on node n4 exited on signal 6 (Aborted).\n",
        "process-signal",
        "unknown",
    ),
    "mpirun tells of an exit code": (
        "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
        "the job to be terminated. The first process to do so was:\n",
        "rank-exception",
        "fix-code",
    ),
    "mpirun lost a node": (
        "ORTE has lost communication with a remote daemon.\n\n  Remote daemon: [[8,0],1] on node n2\n",
        "net-peer-lost",
        "investigate",
    ),
    "Ray lost a node": (
        "ray.exceptions.ActorDiedError: The actor died because its node has died. Node Id: 9a3f\n",
        "net-peer-lost",
        "investigate",
    ),
    "a detector of hangs": (
        "[WARNING] [RankMonitorServer:34] Did not get subsequent heartbeat. Waited 171.92 seconds.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "glibc found its heap broken": ("double free or corruption (!prev)\n", "process-signal", "fix-code"),
    "Python got no memory": ("MemoryError\n", "host-oom", "fix-config"),
    "torch's shared memory": (
        "RuntimeError: unable to write to file </torch_812_1>: No space left on device (28)\n",
        "resource-shm",
        "fix-config",
    ),
    "too many open files": ("OSError: [Errno 24] Too many open files\n", "rank-exception", "fix-config"),
    "a library of another version": (
        "ImportError: /opt/venv/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister\n",
        "version-mismatch",
        "fix-config",
    ),
    "a mount that is gone": (
        "OSError: [Errno 107] Transport endpoint is not connected: '/mnt/blob/shard-3.tar'\n",
        "storage-stall",
        "investigate",
    ),
    "Slurm's signal before a requeue": ("Handling auto-requeue signal: 10\n", "preempt-cancel", "none"),
    "half of the ranks say nothing, in lines that may be a part": (
        "world_size=2\n" + _WAIT.replace("[Rank 3]", "[Rank 1]").replace("[E Proc", "[rank1]:[E Proc"),
        "collective-hang-unattributed",
        "investigate",
    ),
}

#: Texts that look like those and are none of them.
CALM = {
    "a step that was over": (
        "srun: error: Unable to create step for job 7: Job/step already completing or completed\n"
    ),
    "a child that was told to end": (
        "subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGTERM: 15>.\n"
    ),
    "a spawned process that was told to end": (
        "torch.multiprocessing.spawn.ProcessExitedException: process 2 terminated with signal SIGTERM\n"
    ),
    "DeepSpeed's own SIGTERM": "['python', 't.py'] exits with return code = -15\n",
    "an actor that left on purpose": (
        "The actor is dead because its worker process has died. Worker exit type: INTENDED_USER_EXIT\n"
    ),
    "mpirun's own SIGTERM": "[n1:8121] Signal: Terminated (15)\n",
    "a store that is asked again": "Connection reset by peer, retrying\n",
    "a barrier that is waited for": (
        "Waiting in store based barrier to initialize process group for rank: 0, key: store_based_barrier_key:1 "
        "(world_size=8, worker_count=7, timeout=0:30:00)\n"
    ),
    "CUDA at the end of a process": "n1:8:9 [0] NCCL WARN Cuda failure 4 'driver shutting down'\n",
}


def verdict(folder: Path, text: str) -> dict[str, Any]:
    (folder / "job.log").write_text(text)
    found = report_of_logs(str(folder))["verdict"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(("text", "failure_class", "action"), NAMELESS.values(), ids=list(NAMELESS))
def test_a_kind_of_failure_that_names_nobody(text: str, failure_class: str, action: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, text)
    assert (found["class"], found["action"], found["culprits"]) == (failure_class, action, [])


@pytest.mark.parametrize("text", CALM.values(), ids=list(CALM))
def test_a_near_text_is_none_of_them(text: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, text)
    assert (found["class"], found["culprits"]) == ("unknown", [])


def test_a_node_whose_prolog_failed_is_slurms_own_word(tmp_path: Path) -> None:
    found = verdict(tmp_path, "salloc: Prolog failure on node n3\nsalloc: Job allocation 7 has been revoked.\n")
    assert (found["class"], [one["host"] for one in found["culprits"]]) == ("slurm-launch", ["n3"])


def test_a_channel_that_a_link_took_along_is_the_links_failure(tmp_path: Path) -> None:
    found = verdict(
        tmp_path,
        "Nov 20 10:00:00 n1 kernel: " + "NVRM: Xid (PCI:0000:dc:00): 45, pid=9, name=python, Ch 1 "
        "caused by previous Xid 149\n",
    )
    assert (found["class"], found["action"], found["culprits"]) == ("nvlink-fabric", "investigate", [])


def test_an_exit_of_a_launcher_does_not_hide_the_exception(tmp_path: Path) -> None:
    text = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: loss is nan\n"
    found = verdict(tmp_path, text + NAMELESS["DeepSpeed tells of SIGKILL"][0])
    assert found["class"] == "rank-exception"


def test_the_rank_that_alone_met_a_cuda_failure_is_first_where_all_others_lost_it(tmp_path: Path) -> None:
    lost = "[rank{}]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1943.\n"
    text = "world_size=4\n[rank2]: RuntimeError: CUDA error: unknown error\n" + "".join(
        lost.format(r) for r in (0, 1, 3)
    )
    found = verdict(tmp_path, text)
    assert ([one["rank"] for one in found["culprits"]], found["action"]) == ([2], "investigate")


#: What one line of a launcher proves of the rank that it names.
NAMED = {
    "mpirun tells of SIGSEGV": (
        "mpirun noticed that process rank 3 with PID 9 on node n2 exited on signal 11 (Segmentation fault).\n",
        [3],
    ),
    "mpirun tells of SIGKILL": (
        "mpirun noticed that process rank 3 with PID 9 on node n2 exited on signal 9 (Killed).\n",
        [3],
    ),
    "mpirun tells of SIGABRT": (
        "mpirun noticed that process rank 3 with PID 9 on node n2 exited on signal 6 (Aborted).\n",
        [],
    ),
}


@pytest.mark.parametrize(("text", "ranks"), NAMED.values(), ids=list(NAMED))
def test_whom_one_line_names(text: str, ranks: list[int], tmp_path: Path) -> None:
    assert [one["rank"] for one in verdict(tmp_path, text)["culprits"]] == ranks


def test_a_launch_that_failed_on_a_node_names_it_where_the_node_is_the_reason(tmp_path: Path) -> None:
    told = "srun: error: Task launch for StepId=7.0 failed on node n3: {}\n"
    assert [one["host"] for one in verdict(tmp_path, told.format("Job prolog failed"))["culprits"]] == ["n3"]
    assert verdict(tmp_path, told.format("Unable to satisfy cpu bind request"))["culprits"] == []


def test_an_adapter_is_named_for_its_own_fault_and_not_for_a_request_of_the_other_end(tmp_path: Path) -> None:
    told = "n1:8:9 [0] transport/net_ib.cc:154 NCCL WARN NET/IB : mlx5_1:1 async fatal event{}\n"
    own = verdict(tmp_path, told.format(": local catastrophic error"))
    assert [one["host"] for one in own["culprits"]] == ["n1"]
    assert verdict(tmp_path, told.format(" on QP (0x7f10): local access violation work queue error"))["culprits"] == []


@pytest.mark.parametrize(
    ("missing", "suspects"),
    [(["1", "1"], [1]), (["1", "0"], []), (["1, 2, 3"], []), (["0", "0"], [0])],
    ids=["one rank", "two that wait for each other", "most of them", "the coordinator itself"],
)
def test_whom_horovods_coordinator_waits_for_is_a_suspect(
    missing: list[str], suspects: list[int], tmp_path: Path
) -> None:
    told = [f"[1,0]<stderr>:grad_{n} [missing ranks: {ranks}]\n" for n, ranks in enumerate(missing)]
    found = verdict(tmp_path, "".join(told))
    assert (found["class"], found["culprits"]) == ("collective-missing-rank", [])
    assert [one["rank"] for one in found["suspects"]] == suspects


def test_who_failed_comes_before_whom_horovods_coordinator_waited_for(tmp_path: Path) -> None:
    failed = "[1,1]<stderr>:torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    found = verdict(tmp_path, "[1,0]<stderr>:grad_0 [missing ranks: 0]\n" + failed)
    assert (found["class"], [one["rank"] for one in found["culprits"]]) == ("cuda-oom", [1])
