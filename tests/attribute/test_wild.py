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
    "a container without the shell, on two nodes": (
        "slurmstepd: error: pyxis: container start failed with error code: 1\n"
        "slurmstepd: error: pyxis: printing contents of log file ...\n"
        "slurmstepd: error: pyxis:     enroot-switchroot: failed to execute: /bin/bash: No such file or "
        "directory\n"
        "srun: error: pg0-1: task 0: Exited with exit code 1\n",
        "slurm-launch",
        "fix-config",
    ),
    "pyxis, behind a daemon that names its host": (
        "slurmstepd-sp-0016: error: pyxis: couldn't start container\n"
        "slurmstepd-sp-0016: error: spank: required plugin spank_pyxis.so: task_init() failed with rc=-1\n"
        "slurmstepd-sp-0016: error: Failed to invoke spank plugin stack\n"
        "srun: error: sp-0016: task 0: Exited with exit code 1\n",
        "slurm-launch",
        "fix-config",
    ),
    "SGLang quotes an error of NCCL's without its reason": (
        "[2025-08-08 09:09:09 TP5] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/opt/pynccl_wrapper.py", line 350, in NCCL_CHECK\n'
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
        "[2025-08-08 09:09:09] Received sigquit from a child process. It usually means the child failed.\n",
        "rank-exception",
        "investigate",
    ),
    "vLLM quotes an error of NCCL's behind its logger's label": (
        "ERROR 05-13 11:32:54 [core.py:387] EngineCore hit an exception: Traceback (most recent call last):\n"
        'ERROR 05-13 11:32:54 [core.py:387]   File "/opt/parallel_state.py", line 735, in '
        "init_model_parallel_group\n"
        "ERROR 05-13 11:32:54 [core.py:387] RuntimeError: NCCL error: unhandled system error (run with "
        "NCCL_DEBUG=INFO for details)\n",
        "rank-exception",
        "investigate",
    ),
    "nccl-tests quote an error of NCCL's": (
        "[1,2]<stdout>:w-0:72:92 [2] graph/search.cc:1127 NCCL WARN Could not find a path for pattern 4\n"
        "[1,2]<stdout>:w-0:72:92 [2] NCCL INFO graph/search.cc:1129 -> 3\n"
        "[1,2]<stdout>:w-0: Test NCCL failure common.cu:961 'internal error - please report this issue to "
        "the NCCL developers / '\n"
        "[1,3]<stdout>: .. w-0 pid 73: Test failure common.cu:844\n",
        "rank-exception",
        "investigate",
    ),
    "XLA quotes an error of NCCL's of one replica": (
        "2023-09-01 10:20:11.257901: W external/xla/xla/service/gpu/runtime/support.cc:58] Intercepted XLA "
        "runtime error:\n"
        "INTERNAL: external/xla/xla/service/gpu/nccl_utils.cc:275: NCCL operation ncclCommInitRank(&comm, "
        "nranks, id, rank) failed: unhandled cuda error\n"
        "2023-09-01 10:20:11.257981: E external/xla/xla/pjrt/pjrt_stream_executor_client.cc:2593] Execution "
        "of replica 3 failed: INTERNAL: Failed to execute XLA Runtime executable: run time error: custom "
        "call 'xla.gpu.all_reduce' failed: external/xla/xla/service/gpu/nccl_utils.cc:275: NCCL operation "
        "ncclCommInitRank(&comm, nranks, id, rank) failed: unhandled cuda error; current tracing scope: "
        "all-reduce-start.163\n",
        "rank-exception",
        "investigate",
    ),
    "a rank that waited for others to load": (
        "sglang-0:100:1012 [1] NCCL INFO ncclCommInitRank comm 0x55c8 rank 1 nranks 16 cudaDev 1 nvmlDev 1 "
        "busId 3a000 commId 0x11e35ff62bc85e0d - Init COMPLETE\n"
        "[2025-03-17 17:15:55 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"
        "ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish "
        "loading.\n"
        "[2025-03-17 17:15:55] Received sigquit from a child process. It usually means the child failed.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "the heartbeat monitor in its first words, of some of the ranks": (
        "[rank0]:[E1019 01:04:03.350947152 ProcessGroupNCCL.cpp:1413] [PG 3 Rank 0] Heartbeat monitor timed "
        "out! Process will be terminated after dumping debug info. workMetaList_.size()=121\n"
        "[rank7]:[E1019 01:04:03.357615073 ProcessGroupNCCL.cpp:1375] [PG 3 Rank 7] First PG on this rank "
        "that detected no heartbeat of its watchdog.\n"
        "[rank2]:[F1019 01:14:03.356851194 ProcessGroupNCCL.cpp:1224] [PG 3 Rank 2] [PG 3 Rank 2] "
        "ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring "
        "enqueued collectives.\n",
        "watchdog-stuck",
        "fix-code",
    ),
    "a script's child and the memory of its step": (
        "Epoch: [0][511/1736]\t Loss 0.5119 MAE 0.6553 RMSE 0.7159\n"
        "/var/spool/slurmd/job00191/slurm_script: line 28:  8156 Killed                  python3 main.py "
        "--epochs 400\n"
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup.\n",
        "host-oom",
        "fix-config",
    ),
    "JAX: an error of another task": (
        "E0929 17:42:48.594192 1044529 coordination_service_agent.cc:332] Polled an error from coordination "
        "service (this can be an error from this or another task).\n"
        "F0929 17:42:48.594200 1044529 client.h:77] Terminating process because the JAX distributed service "
        "detected fatal errors.\n",
        "net-peer-lost",
        "investigate",
    ),
    "JAX: a barrier lists who did not come": (
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: "
        "multihost_broadcast_sync0. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:3\n"
        "/job:jax_worker/replica:0/task:0\n"
        "Additional GRPC error information from remote target unknown_target_for_coordination_leader while "
        "calling /tensorflow.CoordinationService/Barrier:\n",
        "collective-missing-rank",
        "fix-code",
    ),
    "JAX: tasks did not register": (
        "Stopping coordination service as cluster registration failed.\n"
        "Original error: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.\n",
        "rendezvous-store",
        "fix-config",
    ),
    "JAX without NCCL": (
        "external/xla/xla/service/gpu/nccl_utils.cc:133: NCCL operation ncclGetUniqueId(&id) failed: Unable "
        "to load NCCL library. Multi-GPU collectives will not work.;\n",
        "version-mismatch",
        "fix-config",
    ),
    "a request of libfabric's that failed": (
        "algo-1:462:1032 [0] ofi_process_cq:1033 NCCL WARN NET/OFI Request completed with error. RC: 21. "
        "Error: unknown error. Completed length: 0, Request: { buffer_index: 255, dev: 0, size: 0, state: "
        "CREATED, direction: SEND }\n",
        "net-efa-ofi",
        "network",
    ),
    "a step that asks for more memory than is left": (
        "srun: Job 299 step creation temporarily disabled, retrying (Requested nodes are busy)\n"
        "srun: Job 299 step creation still disabled, retrying (Requested nodes are busy)\n"
        "srun: error: Unable to create step for job 299: Memory required by task is not available\n",
        "slurm-launch",
        "fix-config",
    ),
    "mpirun's ssh is refused": (
        "ssh: connect to host 10.0.11.1 port 50000: Connection refused\n"
        "ORTE was unable to reliably start one or more daemons.\n",
        "slurm-launch",
        "fix-config",
    ),
    "mpirun's daemons do not reach one another": (
        "ORTE does not know how to route a message to the specified daemon\n"
        "located on the indicated node:\n"
        "  my node:   w-0\n"
        "  target node:  w-1\n",
        "slurm-launch",
        "fix-config",
    ),
    "Ray does not hear from several nodes": (
        "The node with node id: 75b2eec875b2eec875b2eec875b2eec875b2eec875b2eec875b2eec875b2eec8 and ip: "
        "10.4.4.100 has been marked dead because the detector has missed too many heartbeats from it.\n"
        "The node with node id: 1880aeb81880aeb81880aeb81880aeb81880aeb81880aeb81880aeb81880aeb8 and ip: "
        "10.4.4.101 has been marked dead because the detector has missed too many heartbeats from it.\n",
        "net-peer-lost",
        "investigate",
    ),
    "a raylet that Ray took for dead": (
        "[2022-02-16 12:45:07,907 W 149 199] node_manager.cc:157: Last heartbeat was sent 6901 ms ago.\n"
        "[2022-02-16 12:46:52,789 C 149 149] node_manager.cc:170: This node has beem marked as dead.\n",
        "net-peer-lost",
        "investigate",
    ),
    "sizes that differ, told by the adapter's side": (
        "10.10.23.10: so-10:1307367:1307586 [0] transport/net_ib.cc:1038 NCCL WARN NET/IB : req 0/1 tag 0 "
        "peer 10.10.23.6<58683> collective mismatch error, local size 496640 remote size 65536\n",
        "collective-mismatch",
        "fix-code",
    ),
    "hydra can't start a program, and kills another rank": (
        "[8] [proxy:1:1@node2] HYD_spawn "
        "(../../../../../src/pm/i_hydra/libhydra/spawn/intel/hydra_spawn.c:117): execvp error on file "
        "/opt/intel64/bin/ep_server (No such file or directory)\n"
        "=   RANK 2 PID 30362 RUNNING AT node2\n"
        "=   KILLED BY SIGNAL: 9 (Killed)\n",
        "slurm-launch",
        "fix-config",
    ),
    "hydra's table tells a signal as a shell does": (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
        "=   PID 4774 RUNNING AT WS1\n"
        "=   EXIT CODE: 139\n"
        "[mpiexec@WS2] HYDT_bscu_wait_for_completion (tools/bootstrap/utils/bscu_wait.c:75): one of the "
        "processes terminated badly; aborting\n",
        "process-signal",
        "unknown",
    ),
    "TensorFlow gives a collective up, and aborts": (
        "2023-05-25 11:10:57.934361: E tensorflow/core/common_runtime/base_collective_executor.cc:249] "
        "BaseCollectiveExecutor::StartAbort DEADLINE_EXCEEDED: Deadline Exceeded\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0:\n"
        "Fatal Python error: Aborted\n",
        "net-peer-lost",
        "investigate",
    ),
    "an Open MPI that srun can't start": (
        'The application appears to have been direct launched using "srun",\n'
        "but OMPI was not built with SLURM's PMI support and therefore cannot\n"
        "execute. There are several options for building PMI support under\n",
        "slurm-launch",
        "fix-config",
    ),
    "AMD: all processes are told of one GPU's reset": (
        "HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang\n"
        "HW Exception by GPU node-4 (Agent handle: 0x2df30600) reason :GPU Hang\n"
        "HW Exception by GPU node-4 (Agent handle: 0x33c245e0) reason :GPU Hang\n"
        "HW Exception by GPU node-4 (Agent handle: 0x462ca2e0) reason :GPU Hang\n"
        "E0902 15:10:49.013000 819010 torch/distributed/elastic/multiprocessing/api.py:874] failed "
        "(exitcode: -6) local_rank: 0 (pid: 819025) of binary: /opt/bin/python\n",
        "gpu-hw-lost",
        "investigate",
    ),
    "Ascend: a rank waited for another one's socket": (
        '[rank1]:   File "/opt/distributed_c10d.py", line 2501, in all_reduce\n'
        "[rank1]:     work = group.allreduce([tensor], opts)\n"
        "[rank1]: RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp:281 OPS function "
        "error: HcclAllreduce, error code is 6\n"
        "[rank1]: EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: "
        "Remote Rank did not send the data in time.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "Ascend: a rank waited for another one's notification": (
        "[ERROR] 2025-10-11-15:09:34 (PID:2969, Device:0, RankID:101) ERR00100 PTA call acl api failed.\n"
        "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times "
        "out. Reason: The Notify register has not received the Notify record from remote rank: [24].\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "DeepSpeed can't reach a host": (
        "Traceback (most recent call last):\n"
        '  File "/opt/deepspeed/launcher/runner.py", line 437, in main\n'
        "    subprocess.check_call(ssh_check_cmd, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, "
        "shell=True)\n"
        "RuntimeError: Using hostfile at hostfile but host=10.0.3.100 was not reachable via ssh.\n",
        "slurm-launch",
        "fix-config",
    ),
    "a time limit that Lightning bypassed": (
        "slurmstepd: error: *** STEP 555.0 ON m-3017 CANCELLED AT 2025-01-10T15:27:25 DUE TO TIME LIMIT ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "[rank: 0] Received SIGTERM: 15\n"
        "Bypassing SIGTERM: 15\n",
        "preempt-cancel",
        "none",
    ),
    "a barrier of the store that 256 ranks did not come to": (
        "    raise RuntimeError(\n"
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 4330, for key: "
        "store_based_barrier_key:522 (world_size=2048, worker_count=1792, timeout=0:30:00)\n",
        "rendezvous-store",
        "fix-config",
    ),
    "torchrun's node that could not reach the store's": (
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'd.b_3427_0' has failed to "
        "send a keep-alive heartbeat to the rendezvous 'test' due to an error of type "
        "RendezvousConnectionError.\n"
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 3494 closing signal SIGTERM\n"
        "WARNING:torch.distributed.elastic.rendezvous.dynamic_rendezvous:The node 'd.b_3427_0' has failed to "
        "shutdown the rendezvous 'test' due to an error of type RendezvousConnectionError.\n",
        "rendezvous-store",
        "fix-config",
    ),
    "Slurm's controller does not take a node": (
        "May 23 12:49:52 mgmt1 slurmctld[80708]: slurmctld: error: Setting node nodegpu1 state to INVAL with "
        "reason:gres/gpu count reported lower than configured (3 < 4)\n"
        "May 23 12:49:52 mgmt1 slurmctld[80708]: slurmctld: drain_nodes: node nodegpu1 state set to DRAIN\n",
        "slurm-node-fail",
        "investigate",
    ),
    "slurmd without the device of its GPU": (
        "Feb 02 09:51:48 w1 slurmd[12912]: slurmd: error: Waiting for gres.conf file /dev/nvidia0\n"
        "Feb 02 09:52:07 w1 slurmd[12912]: slurmd: fatal: can't stat gres.conf file /dev/nvidia0: No such "
        "file or directory\n"
        "Feb 02 09:52:07 w1 systemd[1]: slurmd.service: Failed with result 'exit-code'.\n",
        "slurm-node-fail",
        "investigate",
    ),
    "a node that did not come up in time": (
        "[2024-12-03T17:45:58.897] node comp-2205 not resumed by ResumeTimeout(2400) - marking down and "
        "power_save\n"
        "[2024-12-03T17:45:58.899] POWER: power_save: handle failed nodes comp-2205\n"
        "[2024-12-03T17:45:59.000] POWER: no more nodes to resume for job JobId=1129368_58533(1187901)\n",
        "slurm-node-fail",
        "investigate",
    ),
    "DeepEP's kernels waited": (
        "DeepEP timeout check failed: rank = 6, thread = 0, value = 0)\n"
        "DeepEP timeout check failed: rank = 6, thread = 5, value = 1024)\n"
        "DeepEP timeout check failed: rank = 2, thread = 0, value = 0)\n"
        "DeepEP timeout check failed: rank = 2, thread = 5, value = 1024)\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "NVSHMEM without a transport": (
        "WARN: init failed for remote transport: ibrc\n"
        "/opt/nvshmem_src/src/host/transport/transport.cpp:nvshmemi_transport_init:275: init failed for "
        "transport: IBGDA\n"
        "/opt/nvshmem_src/src/host/transport/transport.cpp:nvshmemi_transport_init:287: Unable to initialize "
        "any transports. returning error.\n"
        "/opt/nvshmem_src/src/host/init/init.cu:989: non-zero status: 7 nvshmem detect topo failed \n",
        "net-ib-setup",
        "fix-config",
    ),
    "NVSHMEM can't make a queue pair ready": (
        "/opt/nvshmem/src/modules/transport/ibgda/ibgda.cpp:1348: NULL value \n"
        "/opt/nvshmem/src/modules/transport/ibgda/ibgda.cpp:1348: NULL value \n"
        "Unable to create ah.\n"
        "ibgda_rc_init2rtr failed on RC #216.\n",
        "net-ib-setup",
        "fix-config",
    ),
    "NVSHMEM's bootstrap lost somebody": (
        "/opt/nvshmem/src/modules/bootstrap/uid/ncclSocket/ncclsocket_socket.cpp:socketProgressOpt:39: "
        "socketProgressOpt: Call to recv from 10.179.114.196<38229> failed : Broken pipe\n"
        "/opt/nvshmem/src/host/init/init.cu:nvshmemi_check_state_and_init:1080: nvshmem initialization "
        "failed, exiting\n",
        "net-peer-lost",
        "investigate",
    ),
    "munged is gone": (
        "srun: error: If munged is up, restart with --num-threads=10\n"
        'srun: error: Munge encode failed: Failed to access "/var/run/munge/munge.socket.2": No such file or '
        "directory\n"
        "srun: error: slurm_send_node_msg: auth_g_create: REQUEST_RESOURCE_ALLOCATION has authentication "
        "error\n",
        "slurm-launch",
        "investigate",
    ),
    "Slurm's controller is not reached": (
        "srun: error: Unable to confirm allocation for job 60564: Unable to contact slurm controller "
        "(connect failure)\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 60564\n",
        "slurm-launch",
        "fix-config",
    ),
    "torch reads from a file system that is gone": (
        '  File "main.py", line 473, in main_loop\n'
        "    state = torch.load(output_folder / model_file_name)\n"
        "RuntimeError: read(): fd 33 failed with Stale file handle\n"
        "  what():  owning_ptr == NullType::singleton() || owning_ptr->refcount_.load() > 0 INTERNAL ASSERT "
        "FAILED at ../c10/util/intrusive_ptr.h:348, please report a bug to PyTorch.\n",
        "storage-stall",
        "investigate",
    ),
    "Neuron without enough EFA adapters": (
        "2025-Jan-16 00:39:18.628881 31598:33752 ERROR   ENC:enc_init_comm                           global "
        "comm (2) has less channels than this replica group (4) :likely not enough EFA devices found\n"
        "python3: /opt/workspace/KaenaRuntime/tdrv/encd.c:4147: prep_metaring_topsp_config: Assertion `spe "
        "!= NULL' failed.\n",
        "net-efa-ofi",
        "fix-config",
    ),
    "vLLM lost a worker": (
        "srv  | ERROR 11-08 11:01:29 [multiproc_executor.py:135] Worker proc VllmWorker-3 died unexpectedly, "
        "shutting down executor.\n"
        "srv  | ERROR 11-08 11:01:30 [core.py:502] EngineCore encountered a fatal error.\n"
        "srv  | ERROR 11-08 11:01:30 [core.py:502] Traceback (most recent call last):\n"
        "srv  | ERROR 11-08 11:01:30 [core.py:502] RuntimeError: Executor failed.\n",
        "process-signal",
        "investigate",
    ),
    "UCX can't ask the adapter": (
        "[1595598109.293924] [cn007:58829:0]       ib_verbs.h:84   UCX  ERROR ibv_exp_query_device(mlx5_0) "
        "returned 38: Inappropriate ioctl for device\n"
        "[1595598109.293924] [cn007:58830:0]       ib_verbs.h:84   UCX  ERROR ibv_exp_query_device(mlx5_0) "
        "returned 38: Inappropriate ioctl for device\n",
        "net-ib-setup",
        "fix-config",
    ),
    "gloo waited, and Ray lost a worker": (
        "(pid=3769) 2020-05-07 21:07:16,707    WARNING torch_trainer.py:413 -- "
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:72] Timed out waiting 10000ms for "
        "recv operation to complete\n"
        "(pid=3769) 2020-05-07 21:07:19,155    INFO torch_trainer.py:377 -- Retrying training step with 2 "
        "workers.\n"
        "2020-05-07 21:07:20,152 WARNING worker.py:1072 -- A worker died or was killed while executing task "
        "ffffffffffffffff2512146c0100.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "vLLM's logger in front of a traceback": (
        "(EngineCore_DP0 pid=8) (VllmWorker TP1 pid=9) ERROR 10-11 12:00:01 [multiproc_executor.py:597] Traceback "
        "(most recent call last):\n"
        "(EngineCore_DP0 pid=8) (VllmWorker TP1 pid=9) ERROR 10-11 12:00:01 [multiproc_executor.py:597]   File 'x.py'\n"
        "(EngineCore_DP0 pid=8) (VllmWorker TP1 pid=9) ERROR 10-11 12:00:01 [multiproc_executor.py:597] KeyError: 0\n",
        "rank-exception",
        "fix-code",
    ),
    "an actor of Ray's whose name has an argument": (
        "(ActorWorker(actor_train-1) pid=9, ip=10.0.0.2) Traceback (most recent call last):\n"
        "(ActorWorker(actor_train-1) pid=9, ip=10.0.0.2)   File 'x.py', line 295, in inner\n"
        "(ActorWorker(actor_train-1) pid=9, ip=10.0.0.2) KeyError: 'k'\n",
        "rank-exception",
        "fix-code",
    ),
    "a process that aborts behind its timeout": (
        _WAIT + "Fatal Python error: Aborted\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "lspci's word on a GPU that does not answer": (
        "1a:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev a1)\n"
        "1c:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev ff)\n",
        "gpu-hw-lost",
        "investigate",
    ),
    "a link of a GPU that the driver did not detect": (
        "[  812.345678] NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!\n",
        "nvlink-fabric",
        "investigate",
    ),
    "horovodrun's ssh is refused": (
        "Launching horovodrun task function was not successful:\n"
        "ssh: connect to host 10.0.0.119 port 12345: Connection refused\n",
        "slurm-launch",
        "fix-config",
    ),
    "MPI without a fabric": (
        "3: Abort(1091215) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:\n"
        "3: MPIDI_OFI_mpi_init_hook(1061): OFI addrinfo() failed (ofi_init.c:1061:MPIDI_OFI_mpi_init_hook:No data)\n",
        "net-efa-ofi",
        "fix-config",
    ),
    "Cray's MPI may not open its fabric": (
        "MPICH ERROR [Rank 0] [job id f] [Thu May 16 17:41:46 2024] [n8] - Abort(1091983) (rank 0 in comm 0): Fatal "
        "error in PMPI_Init: Other MPI error, error stack:\n"
        "MPIDI_OFI_mpi_init_hook(599): OFI fi_open domain failed (ofi_init.c:599:MPIDI_OFI_mpi_init_hook:Invalid)\n",
        "net-efa-ofi",
        "fix-config",
    ),
    "oneCCL without a provider": (
        "2024:08:21-10:41:21:( 8320) |CCL_ERROR| atl_ofi.cpp:243 init: can't find suitable provider\n"
        "RuntimeError: oneCCL: atl_ofi_comm.cpp:278 init_transport: EXCEPTION: failed to initialize ATL\n",
        "net-efa-ofi",
        "fix-config",
    ),
    "Singularity can't mount an image": (
        "FATAL:   container creation failed: mount /proc/self/fd/3->/var/s error: can't mount image /proc/self/fd/3: "
        "failed to mount squashfs filesystem: invalid argument\n"
        "srun: error: n2: task 3: Exited with exit code 255\n",
        "slurm-launch",
        "fix-config",
    ),
    "Kubernetes made room on a node": (
        "Status:         Failed\nReason:         Evicted\nMessage:        The node was low on resource: memory.\n",
        "host-oom",
        "fix-config",
    ),
    "TensorFlow without a handle of cuBLAS": (
        "2018-10-09 14:57:07.811459: E tensorflow/stream_executor/cuda/cuda_blas.cc:464] failed to create cublas "
        "handle: CUBLAS_STATUS_NOT_INITIALIZED\n",
        "rank-exception",
        "fix-code",
    ),
    "NCCL_NET names what is not there": (
        "n1:8:9 [0] NCCL INFO NET/gIB : No device found.\n"
        "n1:8:9 [0] plugin/net.cc:310 NCCL WARN Failed to initialize any NET plugin\n",
        "net-ib-setup",
        "fix-config",
    ),
    "a socket of the store that waited": (
        "[rank0]:[W902 16:27:57.294674455 socket.cpp:494] [c10d] waitForInput: socket SocketImpl(fd=3, addr=[n2]:39, "
        "remote=[n1]:29501) timed out after 1800000ms\n",
        "rendezvous-store",
        "fix-config",
    ),
    "a key of the store behind vLLM's label": (
        "(Worker pid=9) ERROR 08-31 06:22:53 [multiproc_executor.py:944] torch.distributed.DistStoreError: wait "
        "timeout after 1800000ms, keys: /default_pg/0//2//cpu//0/2\n",
        "collective-missing-rank",
        "fix-code",
    ),
    "a rank's timeout in the C++ runtime's words, and its agent ends the others": (
        "  what():  [Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=806, OpType=BROADCAST, "
        "Timeout(ms)=1800000) ran for 1801027 milliseconds before timing out.\n"
        "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 561635 closing signal SIGTERM\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 7 (pid: 9) of binary: "
        "p\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a tokenizer's bar, and timeouts of all ranks but the one that works": (
        "Running tokenizer on dataset:   9%|#  | 280000/2969526 [29:55<4:48:08, 155.57 examples/s]"
        "[E ProcessGroupNCCL.cpp:475] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800328 milliseconds before timing "
        "out.\n[E ProcessGroupNCCL.cpp:475] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=2, "
        "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800572 milliseconds before timing "
        "out.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a worker that is gone behind its timeout, as Ray sees it": (
        _WAIT
        + "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker PID: "
        "9 Worker exit type: SYSTEM_ERROR\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a worker that is gone, and others that lost it": (
        "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1943.\n"
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: x\n",
        "process-signal",
        "investigate",
    ),
    "a worker that is gone behind its timeout, as vLLM sees it": (
        _WAIT + "ERROR 11-08 11:01:29 [multiproc_executor.py:135] Worker proc VllmWorker-3 died unexpectedly, shutting "
        "down executor.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "a worker that is gone behind its timeout, as hydra sees it": (
        _WAIT + "=   EXIT CODE: 134\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "an exception of a program whose ssh to elsewhere failed": (
        "ssh: connect to host git.example.org port 22: Connection timed out\n"
        "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: loss is nan\n",
        "rank-exception",
        "fix-code",
    ),
    "an assertion of C, and a launcher that ends the others": (
        "python: csrc/aio/aio_handle.cpp:159: void aio_handle_t::_stop_threads(): Assertion `0 == _num_pending_ops' "
        "failed.\nKilling subprocess 484\n"
        "subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGABRT: 6>.\n",
        "process-signal",
        "fix-code",
    ),
    "a checkpoint that came short": (
        "Traceback (most recent call last):\n  File 'x.py', line 668, in _save\n"
        "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file data/3: "
        "file write failed\n\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'x.py', line 3\n"
        "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 5811270976 vs 5811270864\n",
        "rank-exception",
        "fix-config",
    ),
    "a checkpoint's errors, told to every rank": (
        "".join(
            f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File 'x.py', line 219\n"
            f"[rank{rank}]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
            f"ranks:dict_keys([1])\n[rank{rank}]: Traceback (most recent call last): (RANK 1)\n"
            f"[rank{rank}]:   File 'y.py', line 300\n[rank{rank}]: OSError: [Errno 28] No space left on device\n"
            for rank in range(3)
        ),
        "rank-exception",
        "fix-config",
    ),
    "a C library that is too old": (
        "ImportError: /lib/libc.so.6: version `GLIBC_2.32' not found (required by /opt/venv/flash_attn_2_cuda.so)\n",
        "rank-exception",
        "fix-config",
    ),
    "an extension for another torch": (
        "ImportError: /opt/venv/transformer_engine_extensions.so: undefined symbol: _ZN2at4_ops5zeros4callEN3c10\n",
        "rank-exception",
        "fix-config",
    ),
    "a library that is not there": (
        "OSError: libcudart.so.12: cannot open shared object file: No such file or directory\n",
        "rank-exception",
        "fix-config",
    ),
    "gloo without a mesh, and a server's words on it": (
        "RuntimeError: Gloo connectFullMesh failed with [/src/gloo/transport/tcp/pair.cc:152] timed out connecting: "
        "SO_ERROR: Connection refused, remote=[127.0.0.1]:38211 (rank=8, size=16, local=[127.0.0.1])\n"
        "ray.exceptions.ActorHandleNotFoundError: x\nRuntimeError: Engine core initialization failed\n",
        "net-socket-connect",
        "network",
    ),
    "XGBoost quotes an error of NCCL's": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\nxgboost.core.XGBoostError: [12:01:01] "
        "updater_gpu_hist.cu:794: Exception in gpu_hist: NCCL failure :unhandled system error device_helpers.cu(67)\n",
        "rank-exception",
        "investigate",
    ),
    "NCCL has no port": (
        "n1:8:9 [0] include/socket.h:333 NCCL WARN Call to bind failed : Address already in use\n"
        "RuntimeError: NCCL error in: ProcessGroupNCCL.cpp:264, unhandled system error\n",
        "net-socket-connect",
        "fix-config",
    ),
    "GPUs whose memory can't be shared": (
        "n1:8:9 [1] /src/hipify/src/transport/p2p.cc:239 NCCL WARN hipIpcGetMemHandle failed : invalid argument\n"
        "n1:8:9 [1] /src/hipify/src/transport/p2p.cc:241 NCCL WARN Cuda failure 'invalid argument'\n",
        "rank-exception",
        "investigate",
    ),
    "a program that is not in PATH": (
        "slurmstepd: error: execve(): torchrun: No such file or directory\n"
        "srun: error: g1301: task 0: Exited with exit code 2\n",
        "slurm-launch",
        "fix-config",
    ),
    "a program that is not on this node": (
        "slurmstepd: error: execve(): /var/spool/slurmd/job7/slurm_script: No such file or directory\n",
        "slurm-launch",
        "investigate",
    ),
    "PMIx can't start": (
        "It looks like pmix_init failed for some reason; your parallel process is\nlikely to abort.\n"
        "[n1:12255] PMIX ERROR: NOT-FOUND in file server/pmix_server.c at line 229\n",
        "slurm-launch",
        "fix-config",
    ),
    "Slurm's words on a step and, after a long grace, on its job": (
        "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2021-03-15T17:50:23 ***\n"
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2021-03-15T18:00:46 DUE TO PREEMPTION ***\n"
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=8, worker_count=16, timeout=0:30:00)\n",
        "preempt-cancel",
        "none",
    ),
    "tasks that left with a code, and no word why": (
        "srun: error: n1: task 0: Exited with exit code 1\nsrun: Terminating job step 2594.1\n"
        "srun: error: n2: task 0: Terminated\n",
        "rank-exception",
        "fix-code",
    ),
    "Composer tells of SIGBUS": (
        "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -7.\nWaiting up to 30 seconds for all training "
        "processes to terminate. Press Ctrl-C to exit immediately.\n",
        "process-signal",
        "fix-config",
    ),
    "Composer tells of SIGSEGV, and of those that it killed": (
        "ERROR:composer.cli.launcher:Global rank 0 (PID 208865) exited with code -11\n"
        "ERROR:composer.cli.launcher:Global rank 1 (PID 208866) exited with code -9\n",
        "process-signal",
        "unknown",
    ),
    "Composer tells of an exit code": (
        "ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.\n",
        "rank-exception",
        "fix-code",
    ),
    "two ranks of one number, and those that lost the root": (
        "n1:8:9 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in\n"
        "n2:8:9 [0] misc/socket.cc:500 NCCL WARN Net : Connection closed by remote peer n1<41000>\n",
        "rendezvous-store",
        "fix-config",
    ),
    "a communicator that was aborted, and no word why": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\nRuntimeError: NCCL communicator was aborted.\n",
        "collective-hang-unattributed",
        "investigate",
    ),
    "half of the ranks say nothing, in lines that may be a part": (
        "world_size=2\n" + _WAIT.replace("[Rank 3]", "[Rank 1]").replace("[E Proc", "[rank1]:[E Proc"),
        "collective-hang-unattributed",
        "investigate",
    ),
    "AMD's runtime gives a queue up": (
        ":0:rocdevice.cpp            :2984: 81270419 us: [pid:9 tid:0x7e10] Callback: Queue 0x7e10 Aborting with error "
        ": HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal "
        "address. code: 0x29\n",
        "gpu-app-fault",
        "fix-code",
    ),
    "AMD's runtime has no resources for a queue": (
        ":0:rocdevice.cpp            :3016: 8127d us:  Callback: Queue 0x7e20 aborting with error : "
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate the necessary resources. Code: 0x1008\n",
        "rank-exception",
        "investigate",
    ),
    "NCCL's own kernels are not for this GPU": (
        "n1:8:9 [2] enqueue.cc:47 NCCL WARN Cuda failure 500 'named symbol not found'\n",
        "version-mismatch",
        "fix-config",
    ),
    "a topology file that NCCL can't use": (
        "n1:8:9 [0] graph/xml.h:79 NCCL WARN Attribute vendor of node cpu not found\n"
        "n1:8:9 [0] NCCL INFO graph/topo.cc:560 -> 3\n",
        "rank-exception",
        "fix-config",
    ),
    "a GPU that /sys does not show": (
        "n1:8:9 [0] graph/xml.cc:332 NCCL WARN Could not find real path of /sys/class/pci_bus/0001:02/../../0001:02\n",
        "rank-exception",
        "fix-config",
    ),
    "NCCL's settings leave no algorithm": (
        "[rank5]: Last error:\n[rank5]: Error : no algorithm/protocol available for function Broadcast with datatype "
        "ncclInt8. NCCL_ALGO was set to NVLS.\n",
        "rank-exception",
        "fix-config",
    ),
    "a name that an old torch does not know": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: host not found: Temporary failure in "
        "name resolution\n",
        "rendezvous-store",
        "fix-config",
    ),
    "a command without a slurm.conf": (
        "srun: error: fetch_config: DNS SRV lookup failed\nsrun: error: _establish_config_source: failed to fetch "
        "config\nsrun: fatal: Could not establish a configuration source\n",
        "slurm-launch",
        "fix-config",
    ),
    "a node that a cluster's own check took": (
        "[2026-07-02T02:15:03.786] update_node: node n7 reason set to: Scheduler health check failed\n",
        "slurm-node-fail",
        "investigate",
    ),
    "a cloud that has no such node": (
        "2026-08-28 16:55:46,889 - [slurm_plugin.resume:_resume] - ERROR - Failed to launch following nodes, setting "
        "nodes to down: (x1) ['gpu-dy-p5-1']\n",
        "slurm-node-fail",
        "investigate",
    ),
    "hydra's table tells SIGBUS as a shell does": (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   EXIT CODE: 135\n",
        "process-signal",
        "fix-config",
    ),
    "an old torch does not reach its store": (
        "Traceback (most recent call last):\n  File 'x.py', line 1\nRuntimeError: No route to host\n",
        "rendezvous-store",
        "fix-config",
    ),
    "Paddle tells of SIGKILL": (
        "LAUNCH ERROR 2026-03-10 00:35:50,216 Container failed !!!\nContainer rank 1 status failed cmd "
        "['python', '-u', 't.py'] code -9 log log/workerlog.1\n",
        "process-signal",
        "fix-config",
    ),
    "Paddle tells of exit codes": (
        "ERROR 2026-07-21 18:25:47,709 launch_utils.py:584] ABORT!!! Out of all 4 trainers, the trainer process with "
        "rank=[0, 2] was aborted. Please check its log.\n",
        "rank-exception",
        "fix-code",
    ),
    "SGLang lost a child": (
        "[2026-07-28 11:07:56] Child process unexpectedly failed with exitcode=139. pid=8\n",
        "process-signal",
        "unknown",
    ),
    "a program tells CUDA's error by a macro": (
        "Failed: Cuda error /src/csrc/all_reduce.cuh:455 'invalid argument'\n",
        "rank-exception",
        "fix-code",
    ),
    "UCX can't make a queue pair": (
        "[1730549338.253029] [n1:2049:0]       rc_iface.c:966  UCX  ERROR failed to create qp: Invalid argument\n",
        "net-ib-setup",
        "fix-config",
    ),
    "Megatron's writer met a file system that is gone": (
        "ERROR: megatron.core.dist_checkpointing.strategies.filesystem_async: Local process 3 encountered an error: "
        "[Errno 5] Input/output error\n",
        "storage-stall",
        "investigate",
    ),
    "torchrun's word in a frame of rich": (
        " WARNING  Sending process 14 closing signal SIGTERM         api.py:699\n"
        " ERROR    failed (exitcode: -9) local_rank: 2 (pid: 22) of  api.py:673\n binary: /opt/bin/python\n",
        "process-signal",
        "fix-config",
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
    "hydra ends the others": "=   RANK 2 PID 30362 RUNNING AT node2\n=   KILLED BY SIGNAL: 9 (Killed)\n",
    "hydra was told to end": (
        "=   EXIT CODE: 15\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)\n"
    ),
    "Open MPI's word on a device that it does not use": (
        "WARNING: There was an error initializing an OpenFabrics device.\n  Local host:   n1\n  Local device: hfi1_0\n"
    ),
    "vLLM's front end lost its engine": (
        "ERROR 01-16 17:16:49 [core_client.py:605] Engine core proc EngineCore_DP0 died unexpectedly, shutting down "
        "client.\n"
    ),
    "an AMD GPU whose ring was reset": "amdgpu 0000:c5:00.0: amdgpu: Ring gfx_0.0.0 reset failed\n",
    "a task that a signal ended, as a shell tells it": "srun: error: n1: task 0: Exited with exit code 143\n",
    "an AMD runtime's list of statuses": "HSA_STATUS_ERROR_EXCEPTION is 0x1016\n",
    "a network device that /sys does not show": (
        "n1:8:9 [0] NCCL INFO Could not find real path of /sys/class/net/eth0/device\n"
    ),
    "Paddle's own SIGTERM": "Container rank 0 status failed cmd ['python', 't.py'] code -15 log log/workerlog.0\n",
    "a server's child that gave up": "Child process unexpectedly failed with exitcode=134. pid=8\n",
    "munge is asked again": (
        'slurmd: debug:  auth/munge: slurm_auth_create: error: Munge encode failed: Failed to access "/run/m": No such '
        "file or directory (retrying ...)\n"
    ),
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


def test_a_rank_without_an_algorithm_is_first_where_all_others_lost_it_and_else_one_of_all(tmp_path: Path) -> None:
    told = "[rank2]: Error : no algorithm/protocol available for function AllGather with datatype ncclInt8.\n"
    lost = "[rank{}]: RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1943.\n"
    others = "".join(lost.format(rank) for rank in (0, 1, 3))
    assert verdict(tmp_path, "world_size=4\n" + told)["culprits"] == []
    found = verdict(tmp_path, "world_size=4\n" + told + others)
    assert ([one["rank"] for one in found["culprits"]], found["action"]) == ([2], "fix-config")


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


def test_a_rank_that_its_own_words_name_is_named_behind_whatever_launcher(tmp_path: Path) -> None:
    text = "i.pretrain/0 [default2]:[rank2]: Traceback (most recent call last):\n" + (
        "i.pretrain/0 [default2]:[rank2]: RuntimeError: Rank 2, node n1, device 2, iteration -1: Unexpected result nan "
        "(message='found NaN in local grad norm for bucket #0 in backward pass')\n"
    )
    found = verdict(tmp_path, text)
    assert (found["class"], [one["rank"] for one in found["culprits"]]) == ("rank-exception", [2])


def test_a_gpus_own_errors_in_a_nodes_kernel_log_name_the_node(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    told = "[13850.912648] amdgpu 0000:1c:00.0: {{1}}{}\n"
    log = tmp_path / "n1" / "dmesg.log"
    log.write_text(told.format("uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!"))
    found = report_of_logs(str(tmp_path))["verdict"]
    assert (found["class"], found["action"]) == ("gpu-hw-ecc", "investigate")
    assert [one["host"] for one in found["culprits"]] == ["n1"]
    log.write_text(told.format("socket: 6, die: 1, 33 new correctable hardware errors detected in xgmi_wafl block"))
    assert report_of_logs(str(tmp_path))["verdict"]["culprits"] == []


def test_a_rank_that_is_told_of_a_gpus_reset_need_not_be_the_one_on_that_gpu(tmp_path: Path) -> None:
    told = "[rank{}]: HW Exception by GPU node-4 (Agent handle: 0x1ebc04e0) reason :GPU Hang\n"
    found = verdict(tmp_path, told.format(1))
    assert (found["class"], found["culprits"]) == ("gpu-hw-lost", [])
    gone = "[rank1]: 1c:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 40GB] (rev ff)\n"
    assert verdict(tmp_path, gone)["culprits"] == []


def of_kernel(folder: Path, node: str, lines: str, job: str = "") -> dict[str, Any]:
    (folder / node).mkdir(exist_ok=True)
    (folder / node / "dmesg.log").write_text(lines)
    if job:
        (folder / "job.log").write_text(job)
    found = report_of_logs(str(folder))["verdict"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("line", "hosts"),
    [("ASIC reset failed with error, -121 for drm dev, 0000:83:00.0", ["n1"]), ("GPU reset begin!", [])],
    ids=["a GPU that stays away", "a GPU that a program may have kept busy"],
)
def test_an_amd_gpu_that_its_driver_resets(line: str, hosts: list[str], tmp_path: Path) -> None:
    found = of_kernel(tmp_path, "n1", f"[22344.456139] amdgpu 0000:83:00.0: amdgpu: {line}\n")
    assert (found["class"], found["action"]) == ("gpu-hw-lost", "investigate")
    assert [one["host"] for one in found["culprits"]] == hosts


@pytest.mark.parametrize(
    "job",
    [
        "srun: error: n1: task 3: Killed\n",
        "n2:8:9 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.5<33092> with error 12, opcode 0, len 0\n",
    ],
    ids=["alone", "beside the words of the other end"],
)
def test_an_adapter_that_its_nodes_kernel_calls_sick_is_a_suspect(job: str, tmp_path: Path) -> None:
    sick = "[198542.853543] mlx5_core 0000:5e:00.0: device's health compromised - reached miss count\n"
    found = of_kernel(tmp_path, "n1", sick, job)
    assert (found["class"], found["action"], found["culprits"]) == ("net-ib-transport", "investigate", [])
    assert [one["host"] for one in found["suspects"]] == ["n1"]


_TABLE = "E {}\n" + "=" * 60 + "\nt.py FAILED\n" + "-" * 60 + "\nFailures:\n{}" + "-" * 60 + "\n"
_ROW = (
    "[{rank}]:\n  time      : 2026-09-07_{at}\n  host      : n1\n  rank      : {rank} (local_rank: {rank})\n"
    "  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n"
)


@pytest.mark.parametrize(
    ("killed_at", "failure_class", "suspects"),
    [("13:03:29", "rank-exception", [1, 3]), ("13:02:58", "process-signal", [0])],
    ids=["after the agent's grace", "at the same time"],
)
def test_whom_an_agent_killed_by_its_table_alone(
    killed_at: str, failure_class: str, suspects: list[int], tmp_path: Path
) -> None:
    ends = [(1, "13:02:58", 1), (3, "13:02:58", 1), (0, killed_at, -9), (2, "13:03:29", -15)]
    rows = "".join(_ROW.format(rank=rank, at=at, code=code, pid=900 + rank) for rank, at, code in ends)
    told = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
    found = verdict(tmp_path, _TABLE.format(told, rows))
    assert (found["class"], found["culprits"]) == (failure_class, [])
    assert [one["rank"] for one in found["suspects"]] == suspects


def test_errors_that_a_checkpoint_gathered_are_those_of_no_rank_that_prints_them(tmp_path: Path) -> None:
    found = verdict(tmp_path, NAMELESS["a checkpoint's errors, told to every rank"][0])
    assert found["suspects"] == []
