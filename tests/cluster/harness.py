"""A real Slurm on one machine: munge, MariaDB, slurmdbd, slurmctld and four slurmd, all below one scratch folder.

    with Cluster(Path("/var/tmp/x")) as cluster:
        job = cluster.sbatch("#!/bin/sh\\nsrun hostname\\n", "-N2")
        assert cluster.wait_job(job) == "COMPLETED"

Needs root (daemons run as three users, jobs as alice and bob) and Slurm's own packages. Each slurmd has its own host
name (a UTS name space), loopback address, port and spool; what is pretended is the number of CPUs and GPUs alone.
By hand: ``python -m tests.cluster.harness up|down --scratch DIR``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.cluster import machine, releases, scratch, settings
from tests.cluster.client import FINAL, PATH, Client, ClusterError, succeed
from tests.cluster.processes import Processes, free_ports, wait_until
from tests.cluster.settings import BACKUP

__all__ = ["BACKUP", "CHECKOUT", "FINAL", "NODES", "Cluster", "ClusterError", "missing_programs"]

#: Each node has an address of its own on the loopback device, so that it also has a name of its own in reverse.
NODES = {f"n{number}": f"127.0.22.{number}" for number in range(1, 5)}
CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAMS = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "mariadb-admin",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "srun",
    "unshare",
)


def missing_programs() -> list[str]:
    return [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]


class Cluster(Client):
    """One private Slurm. Everything below ``scratch`` is its own; ``stop`` removes all of it but ``log/``.

    ``hooks=False`` runs Slurm without nccl-slurm's hooks. ``gpus`` and ``cpus`` are the numbers of pretended ones a
    node. ``extra`` are lines for slurm.conf. ``release`` (``24.11``): a Slurm that is not the machine's own, see
    `releases`. ``backup``: a second slurmctld on a host `BACKUP`, with its own folders for events and state; daemons
    of nccl-slurm (``on=BACKUP`` for the second) then share a store in MariaDB. Ordinary users must reach the scratch
    folder, and its path must be short: sockets lie in it, and a socket's path has at most 107 bytes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hooks: bool = True,
        gpus: int = 0,
        cpus: int = 8,
        extra: Sequence[str] = (),
        release: str | None = None,
        backup: bool = False,
    ) -> None:
        super().__init__(folder)
        self.nodes = tuple(NODES)
        self.capture_conf = folder / "etc" / "capture.conf"
        self.log = folder / "log"
        self.spool = folder / "spool"
        self.shared = folder / "shared"
        self.events = folder / "events"
        self.sysroot = folder / "sysroot"
        self.sql_socket = folder / "run" / "sql.socket"
        self._hooks, self._gpus, self._cpus, self._extra = hooks, gpus, cpus, tuple(extra)
        self.backup = backup
        self.release, self._root = release, None if release is None else releases.find(release)
        self._processes = Processes(folder)
        self._ports: Mapping[str, int] = {}

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    # Up and down

    def start(self) -> None:
        """From nothing to idle nodes; what a crashed run left in this scratch folder is taken down first."""
        self._check_machine()
        self._check_scratch()
        self.scratch.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.stop()
        scratch.ensure_users()
        scratch.ensure_hosts({**NODES, settings.BACKUP: settings.BACKUP_ADDRESS} if self.backup else NODES)
        scratch.make_folders(self.scratch, self.nodes)
        if self._root:
            self.bin.symlink_to(self._root.bin)
        self._write_files()
        try:
            self._start_daemons()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all processes of this cluster and remove its files; ``log/`` stays. Fine when nothing runs."""
        self._check_scratch()
        self._processes.stop_all()
        scratch.remove_folders(self.scratch)

    def _check_machine(self) -> None:
        if os.geteuid() != 0:
            raise ClusterError("the test cluster needs root")
        if self._root is None and (missing := missing_programs()):
            raise ClusterError(f"not installed: {', '.join(missing)} (docs/testing.md lists the packages)")
        if len(str(self.scratch)) > 80:
            raise ClusterError(f"the scratch folder's path has more than 80 characters: {self.scratch}")

    def _check_scratch(self) -> None:
        """Again once it was made: in /var/tmp anybody may have been faster."""
        if where := scratch.open_to_others(self.scratch):
            remedy = "remove it, or give another scratch folder" if where == self.scratch else "give one elsewhere"
            raise ClusterError(f"{where} is not root's alone, and root would run what is in {self.scratch}: {remedy}")

    def _write_files(self) -> None:
        names = ("ctld", "dbd", "sql", *self.nodes)
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        of = settings.Settings(
            scratch=self.scratch,
            checkout=CHECKOUT,
            release=_release(self.inside(["slurmctld", "-V"])),
            host=_short_host(),
            nodes=NODES,
            ports=self._ports,
            cpus=self._cpus,
            gpus=self._gpus,
            hooks=scratch.install_hooks(self.scratch, CHECKOUT) if self._hooks else {},
            extra=self._extra,
            backup=self.backup,
            plugins=self._root.plugins if self._root else None,
        )
        scratch.write_files(of, _node_python())

    def inside(self, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` with the programs that this cluster's nodes have."""
        return self._root.inside(command) if self._root else list(command)

    def _start_daemons(self) -> None:
        self.start_munged()
        self._install_database()
        self.start_database()
        self.start_slurmdbd()
        self.start_slurmctld()
        if self.backup:
            self.start_slurmctld(on=BACKUP)
        for node in self.nodes:
            self.start_slurmd(node)
        self.wait_idle()

    def start_munged(self) -> None:
        run = self.scratch / "run"
        command = ["munged", "--foreground", "--force", f"--socket={run}/munge.socket", f"--pid-file={run}/munged.pid"]
        command += [f"--key-file={self.scratch}/etc/munge.key", f"--log-file={self.log}/munged.log"]
        self._start("munged", self.inside([*command, f"--seed-file={run}/munged.seed"]))
        self._await("munged", (run / "munge.socket").exists)

    def stop_munged(self) -> None:
        self._processes.stop("munged")

    def _install_database(self) -> None:
        install = [
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={self.scratch}/sql",
            "--user=mysql",
            "--skip-test-db",
            "--auth-root-authentication-method=normal",
        ]
        # A server that starts removes temporary tables in /tmp, those of another one that starts as well.
        env = {**self.env, "TMPDIR": str(self.scratch / "run")}
        succeed(subprocess.run(self.inside(install), env=env, capture_output=True, text=True))

    def start_database(self) -> None:
        """Durability is off: what a test writes dies with the test."""
        command = [
            "mariadbd",
            "--no-defaults",
            f"--datadir={self.scratch}/sql",
            "--user=mysql",
            f"--socket={self.sql_socket}",
            f"--pid-file={self.scratch}/run/sql.pid",
        ]
        command += [
            "--bind-address=127.0.0.1",
            f"--port={self._ports['sql']}",
            f"--init-file={self.scratch}/etc/init.sql",
        ]
        command += [
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-buffer-pool-size=64M",
            "--character-set-server=utf8mb4",
            # slurmdbd warns that it may fail with it. MariaDB 11.6 and later have it on, older ones don't know it.
            "--loose-innodb-snapshot-isolation=OFF",
        ]
        self._start("mariadbd", self.inside(command), TMPDIR=str(self.scratch / "run"))
        ping = self.inside(["mariadb-admin", "--no-defaults", f"--socket={self.sql_socket}", "--user=root", "ping"])
        self._await("mariadbd", lambda: subprocess.run(ping, env=self.env, capture_output=True).returncode == 0)

    def stop_database(self) -> None:
        self._processes.stop("mariadbd")

    def start_slurmdbd(self) -> None:
        self._start("slurmdbd", self.inside(["slurmdbd", "-D"]))
        self._await("slurmdbd", lambda: self.slurm("sacctmgr", "-n", "show", "cluster", check=False).returncode == 0)

    def stop_slurmdbd(self) -> None:
        self._processes.stop("slurmdbd")

    def start_slurmctld(self, on: str = "") -> None:
        command = ["slurmctld", "-D", *(["-f", f"{self.scratch}/etc/slurm.{on}.conf"] if on else [])]
        self._start(_named("slurmctld", on), self.inside(_on_host(on, command)))
        word = f" at {on or _short_host()} is UP"
        self._await(
            _named("slurmctld", on), lambda: word in self.slurm("scontrol", "ping", check=False).stdout, timeout=60.0
        )

    def stop_slurmctld(self, on: str = "", number: int = signal.SIGTERM) -> None:
        self._processes.stop(_named("slurmctld", on), number)

    def restart_slurmctld(self) -> None:
        self.stop_slurmctld()
        self.start_slurmctld()

    def reconfigure(self) -> None:
        """`scontrol` returns when slurmctld has read the new slurm.conf, each slurmd follows in its own time: waits
        for what each says of it, and then for half a second without a word."""
        logs = [self.log / f"slurmd.{node}.log" for node in self.nodes if self.alive(f"slurmd.{node}")]
        before = [path.stat().st_size for path in logs]
        self.slurm("scontrol", "reconfigure")

        def through() -> bool:
            now = time.time()
            stats = [path.stat() for path in logs]
            return all(
                stat.st_size > size and now - stat.st_mtime > 0.5 for stat, size in zip(stats, before, strict=True)
            )

        if not wait_until(through, 60.0):
            raise ClusterError("a slurmd has not read the new slurm.conf in 60 s")

    def start_slurmd(self, node: str, *, booted: bool = False, before: str = "") -> None:
        """``booted``: the machine is just up. ``before`` (of the shell) comes first, in mounts of the node's own. Does
        not wait for the node to register (see `wait_idle`)."""
        slurmd = f"slurmd -D -N {node}{' -b' if booted else ''}"
        apart = ["unshare", "--uts", *(["--mount"] if before else [])]
        script = " && ".join(filter(None, (before, f"hostname {node}", f"exec {slurmd}")))
        self._start(f"slurmd.{node}", self.inside([*apart, "sh", "-c", script]))
        machine.show_slurmd(self.sysroot / node, self._processes.pid(f"slurmd.{node}") or 0)

    def kill_slurmd(self, node: str) -> None:
        """SIGKILL to slurmd alone; the node's job processes live on, as on a real node."""
        self._processes.stop(f"slurmd.{node}", signal.SIGKILL)

    # A node as a machine

    def power_off(self, node: str) -> None:
        """slurmd, the node's jobs, hooks and hook workers end at once, as where a node dies."""
        machine.power_off(self.scratch, node)
        self._processes.stop(f"slurmd.{node}")

    def boot(self, node: str, *, slurmd: bool = True) -> None:
        """After `power_off`: a new boot id, and slurmd, which tells Slurm of the boot. Our boot unit is `node_side`."""
        machine.write_boot(self.sysroot / node)
        if slurmd:
            self.start_slurmd(node, booted=True)

    def reboot(self, node: str, kernel: Sequence[str] = ()) -> None:
        """`power_off` and `boot`; ``kernel`` are the last words of the boot that ends."""
        self.kernel_says(node, *kernel)
        self.power_off(node)
        self.boot(node)

    def kernel_says(self, node: str, *lines: str) -> None:
        """Lines in the node's kernel log, with the time of now."""
        machine.add_kernel_lines(self.scratch / "kernel" / f"{node}.log", node, lines)

    def node_side(self, node: str, verb: str) -> subprocess.CompletedProcess[str]:
        """``nccl-slurm-node VERB`` on the node, as its systemd units run it: ``boot`` or ``sweep``."""
        program = self.scratch / "prefix" / "slurm" / "nccl-slurm-node"
        command = ["env", f"SLURMD_NODENAME={node}", str(program), "--conf", str(self.capture_conf), verb]
        return self.run(self.inside(command), check=False)

    def alive(self, name: str) -> bool:
        """Whether one of our daemons runs: ``slurmctld``, ``slurmdbd``, ``slurmd.n1``, ``nccl-slurm`` …"""
        return self._processes.alive(name)

    def _start(self, name: str, command: Sequence[str], **env: str) -> None:
        if self._processes.alive(name):
            raise ClusterError(f"{name} is running already")
        self._processes.start(name, command, {**self.env, **env})

    def _await(self, name: str, ready: Callable[[], bool], timeout: float = 30.0) -> None:
        if not wait_until(lambda: ready() or not self._processes.alive(name), timeout) or not self._processes.alive(
            name
        ):
            raise ClusterError(f"{name} did not come up; the end of its output:\n{self.tail(name)}")

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a daemon's output and log file."""
        texts = [
            path.read_text(errors="replace")
            for path in (self.log / f"{name}.out", self.log / f"{name}.log")
            if path.exists()
        ]
        return "\n".join("\n".join(text.splitlines()[-lines:]) for text in texts)

    # The daemon of nccl-slurm

    def write_daemon_config(self, text: str) -> None:
        """In place of the one that `start` wrote (`settings.daemon_toml`); read at the daemon's next start."""
        self.daemon_config.write_text(text)

    def start_daemon(
        self,
        *,
        user: str = "root",
        timeout: float = 20.0,
        wait_ready: bool = True,
        on: str = "",
        program: Sequence[str] = (),
    ) -> None:
        """Run ``nccl-slurm daemon`` and wait for its READY=1 (sd_notify(3)). Output: ``log/nccl-slurm.out``.
        ``program`` stands in for the command ``nccl-slurm``."""
        command = [*program] or [str(Path(sys.executable).parent / "nccl-slurm")]
        if user != "root":
            rights = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
            command = [*rights, str(self.job_python()), "-c", "from nccl_slurm.cli.main import main; main()"]
        config = self.daemon_config.with_suffix(f".{on}.toml") if on else self.daemon_config
        command = _on_host(on, [*command, "daemon", "--config", str(config), "--foreground"])
        name = _named("nccl-slurm", on)
        notify = self.scratch / "run" / f"{_named('notify', on)}.socket"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
            ear.bind(str(notify))
            notify.chmod(0o666)
            ear.settimeout(0.1)
            self._start(name, command, NOTIFY_SOCKET=str(notify))
            if wait_ready:
                self._await(name, lambda: _hears(ear, b"READY=1"), timeout)

    def daemon_pid(self, on: str = "") -> int | None:
        return self._processes.pid(_named("nccl-slurm", on))

    def daemon_alive(self, on: str = "") -> bool:
        return self._processes.alive(_named("nccl-slurm", on))

    def stop_daemon(self, number: int = signal.SIGTERM, on: str = "") -> None:
        self._processes.stop(_named("nccl-slurm", on), number)

    def wait_idle(self, timeout: float = 30.0) -> None:
        """Wait until every node is idle. Changes nothing: a drained node has to be resumed first."""
        states: dict[str, str] = {}

        def idle() -> bool:
            states.update(self.node_states())
            return set(states.values()) == {"IDLE"}

        if not wait_until(idle, timeout, every=0.2):
            dead = [f"slurmd.{node}" for node in self.nodes if not self.alive(f"slurmd.{node}")]
            told = f"; not running: {', '.join(dead)}" if dead else ""
            log = self.tail(dead[0] if dead else "slurmctld")
            raise ClusterError(f"not all nodes are idle after {timeout:g} s: {states}{told}\n{log}")

    def heal(self) -> None:
        """Back to four idle nodes whatever a test did: jobs cancelled, daemons started, nodes resumed."""
        for name, start in (("slurmdbd", self.start_slurmdbd), ("slurmctld", self.start_slurmctld)):
            if not self.alive(name):
                start()
        for node in self.nodes:
            if not self.alive(f"slurmd.{node}"):
                self.start_slurmd(node)
        for user in (*scratch.USERS, "root") if self.slurm("squeue", "-h").stdout else ():
            self.slurm("scancel", f"--user={user}")
        if not wait_until(self._resume_all, 60.0, every=0.3):
            self.wait_idle(0.0)  # says what is wrong

    def _resume_all(self) -> bool:
        """Whether all are idle. Slurm may find out later that a node has booted, and set it down after a first look."""
        states = self.node_states()
        for node, state in states.items():
            if state not in ("IDLE", "ALLOCATED", "MIXED", "IDLE+COMPLETING", "COMPLETING"):
                self.slurm("scontrol", "update", f"nodename={node}", "state=resume", check=False)
        return set(states.values()) == {"IDLE"}


def _short_host() -> str:
    return socket.gethostname().partition(".")[0]


def _named(name: str, on: str) -> str:
    return f"{name}.{on}" if on else name


def _on_host(on: str, command: Sequence[str]) -> list[str]:
    """With that host's name; one process, which a signal reaches."""
    return ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', on, *command] if on else list(command)


def _hears(ear: socket.socket, word: bytes) -> bool:
    try:
        return word in ear.recv(4096).splitlines()
    except TimeoutError:
        return False


def _node_python() -> str:
    """The system's Python where there is one: hooks drop to the job's user, who may not reach this environment's."""
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else os.path.realpath(sys.executable)


def _release(command: Sequence[str]) -> tuple[int, int]:
    """``slurm-wlm 22.05.8`` → (22, 5)."""
    told = subprocess.run(command, env={"PATH": PATH}, capture_output=True, text=True).stdout
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None:
        raise ClusterError(f"slurmctld -V says no release: {told!r}")
    return int(found[1]), int(found[2])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.harness", description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("up", "down"))
    parser.add_argument("--scratch", type=Path, required=True, help="folder of the cluster, below 80 characters")
    parser.add_argument("--no-hooks", action="store_true", help="Slurm alone")
    parser.add_argument("--gpus", type=int, default=0, help="pretended GPUs a node")
    parser.add_argument("--release", help="a Slurm that is not the machine's own")
    chosen = parser.parse_args(argv)
    try:
        if chosen.verb == "down":
            Cluster(chosen.scratch.absolute()).stop()
        else:
            _up(chosen)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(chosen: argparse.Namespace) -> None:
    folder, hooks = chosen.scratch.absolute(), not chosen.no_hooks
    cluster = Cluster(folder, hooks=hooks, gpus=chosen.gpus, release=chosen.release)
    began = time.monotonic()
    cluster.start()
    print(f"{len(cluster.nodes)} nodes idle after {time.monotonic() - began:.1f} s. Use it with:")
    print(f"export SLURM_CONF={cluster.conf}")
    if chosen.release:
        print(f"export PATH={cluster.bin}:$PATH")


if __name__ == "__main__":
    raise SystemExit(main())
