"""Text of the test cluster's configuration files. What depends on Slurm's release is decided here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "BACKUP",
    "PARTITIONS",
    "Settings",
    "backup_conf",
    "capture_conf",
    "cgroup_conf",
    "daemon_toml",
    "gres_conf",
    "init_sql",
    "slurm_conf",
    "slurmdbd_conf",
]

#: ``batch`` is the default; jobs in ``high`` preempt (requeue) those in ``batch``; ``quiet`` is for hooks turned off.
PARTITIONS = ("batch", "high", "quiet")
#: Name and address of the second controller, where a cluster has one: on the same machine, in a UTS name space.
BACKUP, BACKUP_ADDRESS = "ctl2", "127.0.22.102"


@dataclass(frozen=True)
class Settings:
    """What the files need to know. ``release`` is (major, minor); ``ports`` has ctld, dbd, sql and each node."""

    scratch: Path
    checkout: Path
    release: tuple[int, int]
    host: str
    nodes: Mapping[str, str]  # name → address
    ports: Mapping[str, int]
    cpus: int = 8
    gpus: int = 0
    hooks: Mapping[str, Path] = field(default_factory=dict)  # Prolog, Epilog, TaskProlog, EpilogSlurmctld that exist
    extra: Sequence[str] = ()  # lines for the end of slurm.conf
    backup: bool = False  # a second slurmctld, and one store in MariaDB for the daemons of both
    plugins: Path | None = None  # of a Slurm that is not the machine's own, whose commands are in scratch/bin


def slurm_conf(of: Settings) -> str:
    lines = [*_daemons(of), *_quick(of), *_hooks(of), *_machines(of), *of.extra]
    return "\n".join(lines) + "\n"


def backup_conf(of: Settings) -> str:
    """For the second slurmctld: of a key that is there twice the later line counts."""
    return slurm_conf(of) + (
        f"SlurmctldPidFile={of.scratch}/run/slurmctld.{BACKUP}.pid\n"
        f"SlurmctldLogFile={of.scratch}/log/slurmctld.{BACKUP}.log\n"
    )


def _controllers(of: Settings) -> list[str]:
    """Both listen on one port: each at its own address alone, which is not Slurm's default."""
    first = f"SlurmctldHost={of.host}(127.0.0.1)"
    if not of.backup:
        return [first]
    second = f"SlurmctldHost={BACKUP}({BACKUP_ADDRESS})"
    return [first, second, "CommunicationParameters=NoCtldInAddrAny", "DebugFlags=NO_CONF_HASH"]


def _daemons(of: Settings) -> list[str]:
    """Private sockets and ports. AccountingStoragePass keeps slurmdbd's clients off the machine's own munge socket."""
    socket = of.scratch / "run" / "munge.socket"
    return [
        "ClusterName=lab",
        *_controllers(of),
        f"SlurmctldPort={of.ports['ctld']}",
        "SlurmUser=slurm",
        "AuthType=auth/munge",
        # How long a requeued job waits is the credential's life time before 24.05 (default 120 s).
        f"AuthInfo=socket={socket},cred_expire=15",
        f"StateSaveLocation={of.scratch}/state",
        f"SlurmdSpoolDir={of.scratch}/slurmd/%n",
        f"SlurmctldPidFile={of.scratch}/run/slurmctld.pid",
        f"SlurmdPidFile={of.scratch}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={of.scratch}/log/slurmctld.log",
        f"SlurmdLogFile={of.scratch}/log/slurmd.%n.log",
        "SlurmctldDebug=verbose",
        "SlurmdDebug=verbose",
        "LogTimeFormat=iso8601_ms",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "SlurmdParameters=config_overrides",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core",
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={of.ports['dbd']}",
        f"AccountingStoragePass={socket}",
        "AccountingStoreFlags=job_comment",
        "MpiDefault=none",
        *([f"PluginDir={of.plugins}"] if of.plugins else []),
    ]


def _quick(of: Settings) -> list[str]:
    """Short intervals, so that a test waits seconds where a site waits minutes."""
    scheduler = ["sched_interval=2", "batch_sched_delay=1", "bf_interval=2"]
    if of.release >= (24, 5):
        scheduler.append("requeue_delay=5")
    return [
        "SlurmctldTimeout=10",
        "SlurmdTimeout=10",
        "MessageTimeout=20",
        "InactiveLimit=0",
        "KillWait=2",
        "MinJobAge=300",
        "ReturnToService=1",
        "PrologFlags=Alloc",
        "PrologEpilogTimeout=30",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        f"SchedulerParameters={','.join(scheduler)}",
    ]


def _hooks(of: Settings) -> list[str]:
    return [f"{key}={path}" for key, path in of.hooks.items()]


def _machines(of: Settings) -> list[str]:
    gres = f" Gres=gpu:{of.gpus}" if of.gpus else ""
    lines = ["GresTypes=gpu"] if of.gpus else []
    for node, address in of.nodes.items():
        where = f"NodeAddr={address} Port={of.ports[node]}"
        lines.append(f"NodeName={node} {where} CPUs={of.cpus} RealMemory=8000{gres} State=UNKNOWN")
    names = ",".join(of.nodes)
    for tier, partition in zip((1, 2, 1), PARTITIONS, strict=True):
        default = "YES" if partition == "batch" else "NO"
        lines.append(
            f"PartitionName={partition} Nodes={names} Default={default} PriorityTier={tier} MaxTime=INFINITE State=UP"
        )
    return lines


def slurmdbd_conf(of: Settings, password: str) -> str:
    socket = of.scratch / "run" / "munge.socket"
    return f"""\
AuthType=auth/munge
AuthInfo=socket={socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={of.ports["dbd"]}
SlurmUser=slurm
DebugLevel=verbose
LogFile={of.scratch}/log/slurmdbd.log
PidFile={of.scratch}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={of.ports["sql"]}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""


def gres_conf(of: Settings) -> str:
    """GPUs that are plain files: Slurm counts and hands them out, no driver is asked."""
    if not of.gpus:
        return ""
    return f"NodeName={','.join(of.nodes)} Name=gpu File={of.scratch}/dev/gpu[0-{of.gpus - 1}]\n"


def cgroup_conf(of: Settings) -> str:
    """From 23.11 slurmd wants a cgroup plugin unless told otherwise; 22.05 rejects the key."""
    return "CgroupPlugin=disabled\n" if of.release >= (23, 11) else ""


def capture_conf(of: Settings, python: str) -> str:
    """Sourced by the hooks of all nodes of the one machine: what differs by node hangs on $SLURMD_NODENAME."""
    scratch, node = of.scratch, "${SLURMD_NODENAME:-controller}"
    here = f'read -r host </proc/sys/kernel/hostname; [ "$host" != {BACKUP} ]'
    own = f"{here} || NCCL_SLURM_EVENTS={scratch}/events.{BACKUP}\n"
    return f"""\
NCCL_SLURM_HOOKS={scratch}/prefix/slurm
NCCL_SLURM_PREFIX={of.checkout}
NCCL_SLURM_PYTHON={python}
NCCL_SLURM_SPOOL={scratch}/spool/{node}
NCCL_SLURM_SHARED={scratch}/shared
NCCL_SLURM_EVENTS={scratch}/events
NCCL_SLURM_SYSROOT={scratch}/sysroot/{node}
NCCL_SLURM_KERNEL_LOG={scratch}/kernel/{node}.log
NCCL_SLURM_IDENTITY=machine-{node}
if [ -r {scratch}/identity/{node} ]; then read -r NCCL_SLURM_IDENTITY <{scratch}/identity/{node} || :; fi
{own if of.backup else ""}"""


def init_sql(password: str) -> str:
    """Run by mariadbd at each start. The second database is for tests of nccl-slurm's own store."""
    user = "'slurm'@'127.0.0.1'"
    return f"""\
CREATE USER IF NOT EXISTS {user} IDENTIFIED BY '{password}';
CREATE DATABASE IF NOT EXISTS slurm_acct;
CREATE DATABASE IF NOT EXISTS nccl_slurm;
GRANT ALL ON slurm_acct.* TO {user};
GRANT ALL ON nccl_slurm.* TO {user};
"""


def daemon_toml(of: Settings, suffix: str = "") -> str:
    """nccl-slurm.toml with a site's defaults, but for paths and for waits that a test can't afford. ``suffix``: of the
    folders on the second controller's own disk."""
    scratch = of.scratch
    url = f"mariadb+pymysql://root@localhost/nccl_slurm?unix_socket={scratch}/run/sql.socket"
    store = f'[store]\nurl = "{url}"\n\n' if of.backup else ""
    commands = f'bin = "{scratch}/bin"\n' if of.plugins else ""
    return f"""\
[paths]
state = "{scratch}/daemon{suffix}"
shared = "{scratch}/shared"
events = "{scratch}/events{suffix}"

{store}[slurm]
conf = "{scratch}/etc/slurm.conf"
{commands}
[daemon]
lease_s = 10
tick_s = 0.2
nodes_poll_s = 1
jobs_poll_s = 1
reconcile_s = 5
settle_s = 5
settle_cap_s = 30
verify_s = 5

[rules]
folder = "{scratch}/etc/rules.d"
"""
