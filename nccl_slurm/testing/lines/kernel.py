"""Records of a node's kernel log, without their prefix."""

from __future__ import annotations

from nccl_slurm.testing.place import Place

__all__ = ["hung_task", "link_down", "oom", "storage", "xid"]

#: Xid → the driver's words behind the number.
_XID = {
    13: "pid={pid}, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
    31: "pid={pid}, name=python3, Ch 00000003, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 faulted @ 0x7f_10000000. "
    "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    48: "pid={pid}, name=python3, DBE (double bit error) ECC Error. Physical Address: 0x00000123. UNCORRECTABLE",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, "
    "0x0)",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid={pid}, name=python3, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid={pid}, name=python3, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
    119: "pid={pid}, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP! Expected function 76 "
    "(GSP_RM_CONTROL) (0x20800a4c 0x0).",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}


def xid(place: Place, rank: int, number: int) -> str:
    text = _XID[number].format(pid=place.pid(rank))
    return f"NVRM: Xid (PCI:{place.bus(rank)}): {number}, {text}"


def oom(place: Place, rank: int) -> list[str]:
    pid, job = place.pid(rank), place.scenario.job_id
    group = f"/slurm/uid_1000/job_{job}/step_0"
    return [
        f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg={group},"
        f"task_memcg={group}/task_0,task=python3,pid={pid},uid=1000",
        f"Memory cgroup out of memory: Killed process {pid} (python3) total-vm:91234567kB, anon-rss:81234567kB, "
        "file-rss:123456kB, shmem-rss:2048kB, UID:1000 pgtables:163840kB oom_score_adj:0",
    ]


def link_down(device: str) -> str:
    return f"mlx5_core 0000:ab:00.0 {device}: Port: 1 Link DOWN"


def storage(at: float) -> str:
    return (
        f"Lustre: 10110:0:(client.c:2116:ptlrpc_expire_one_request()) @@@ Request sent has timed out for slow reply: "
        f"[sent {at - 100:.0f}/real {at - 100:.0f}]"
    )


def hung_task(pid: int) -> str:
    return f"INFO: task python3:{pid} blocked for more than 120 seconds."
