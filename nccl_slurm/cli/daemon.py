"""``nccl-slurm daemon``: the loop on the controller."""

from __future__ import annotations

import grp
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
import filelock

from nccl_slurm import config
from nccl_slurm.cli.options import config_option
from nccl_slurm.clock import SystemClock
from nccl_slurm.config import Config
from nccl_slurm.daemon.intake import Hints
from nccl_slurm.daemon.lease import Lease, claim_of
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.daemon.notify import Notifier
from nccl_slurm.daemon.output import OutputReader
from nccl_slurm.daemon.standby import StandBy
from nccl_slurm.errors import ConfigError, InputError, SlurmUnreachable, StoreBusy, StoreError
from nccl_slurm.history.reasons import Reasons
from nccl_slurm.history.store import Store
from nccl_slurm.parse.patterns import compile_rows
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.scheduler.cli_client import CliClient
from nccl_slurm.scheduler.client import SchedulerClient, Settings
from nccl_slurm.scheduler.pyslurm_client import PyslurmClient, is_installed

__all__ = ["alone", "command", "lease_of", "refused", "sole"]

_log = logging.getLogger(__name__)


@click.command()
@click.option("--foreground", is_flag=True, help="Stay attached and log to standard error (as under systemd).")
@click.option("--once", is_flag=True, help="Do each duty once and end.")
@config_option
def command(foreground: bool, once: bool, config_path: str | None) -> None:
    """Join node records with Slurm; write comments and reports.

    One at a time: a second one on this host ends with status 1; on another host with the same store (MariaDB) it
    stands by. SIGTERM ends it after its round of duties.
    """
    loaded = config.load(config_path)
    state = _state_folder(loaded)
    background = not (foreground or once)
    if background:
        with alone(state):
            pass  # said here, where somebody reads it; below it goes to the log
        click.echo(f"nccl-slurm: goes on in the background, log {state / 'daemon.log'}", err=True)
        _detach(state / "daemon.log")
    _log_to_stderr(stamped=background)
    with alone(state):
        _serve(loaded, state, once)


def _log_to_stderr(*, stamped: bool) -> None:
    """The journal and a terminal know the time; a file does not."""
    handler, form = logging.StreamHandler(sys.stderr), "%(levelname)s %(name)s: %(message)s"
    formatter = logging.Formatter(f"%(asctime)s.%(msecs)03dZ {form}" if stamped else form, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """One writer of the store. Made anew at each use: a lock is not good for the child of a fork."""
    lock = filelock.FileLock(state / "daemon.lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StoreBusy(f"{lock.lock_file}: another nccl-slurm daemon holds it; stop that one first") from None
    try:
        yield
    finally:
        lock.release()


def _serve(loaded: Config, state: Path, once: bool) -> None:
    clock, client = SystemClock(), _client(loaded.slurm)
    stopping = _stop_on_signal()
    store = Store.open(loaded.store_url, password=loaded.store_password())
    try:
        store.reasons = _reasons(loaded)
        _let_admins_in(loaded, state)
        settings = _first_word(lambda: _settings(loaded, client), clock, once, stopping)
        reader = OutputReader(_compiled_patterns(loaded, state), loaded.daemon.output_limit_s)
        notifier, lease = Notifier(), lease_of(loaded, store)

        def work() -> None:
            made = Daemon(loaded, client, store, clock, reader, settings, notifier, _policy(loaded), lease=lease)
            _log.info("watching cluster %s", settings.cluster)
            try:
                made.tick() if once else made.run(stopping)
            finally:
                made.close()

        if lease is None:
            work()
        elif once:
            with sole(store, lease):
                work()
        else:
            hints = Hints(loaded.paths.events)
            standby = StandBy(lease, store, client, hints, clock, notifier, loaded.daemon.tick_s)
            _in_turn(standby, lease, work, stopping)
    finally:
        client.close()
        store.close()


def _in_turn(standby: StandBy, lease: Lease, work: Callable[[], None], stopping: Callable[[], bool]) -> None:
    """Waits for the lease, works, and waits again where it was lost, or the store was away at the start: by a daemon
    made anew, which remembers nothing."""
    while standby.wait(stopping):
        try:
            with lease.kept():
                work()
        except StoreError as error:
            _log.warning("%s; standing by", error)


def _settings(loaded: Config, client: SchedulerClient) -> Settings:
    """Raises ConfigError where the store can't serve this Slurm."""
    settings = client.settings()
    if (why := refused(loaded, [one.host for one in client.controllers()])) is not None:
        raise ConfigError(f"{loaded.source}: {why}")
    return settings


def refused(loaded: Config, controllers: Sequence[str]) -> str | None:
    """Why this store can't be used with these hosts of slurmctld."""
    if loaded.store_file is None or len(controllers) < 2:
        return None
    return (
        f"store.url: SQLite is a file of one host, and slurmctld may run on {', '.join(controllers)}: after a "
        "fail-over the daemon there would begin with an empty store; give the URL of a MariaDB that all of them reach"
    )


def lease_of(loaded: Config, store: Store) -> Lease | None:
    """None for SQLite: the lock in the state folder is enough, as nobody else can open the file."""
    if loaded.store_file is not None:
        return None
    return Lease(store, claim_of(loaded.paths.state), loaded.daemon.lease_s)


@contextmanager
def sole(store: Store, lease: Lease | None) -> Iterator[None]:
    """The lease for a short work, not waited for. Raises StoreBusy."""
    if lease is None:
        yield
        return
    if (holder := lease.take()) is not None:
        raise StoreBusy(
            f"{store.where}: the nccl-slurm daemon on {holder.host} (pid {holder.pid}) works on it; "
            "stop the daemons on all hosts first"
        )
    with lease.kept():
        yield


def _client(slurm: config.Slurm) -> CliClient:
    kind = PyslurmClient if slurm.client == "auto" and is_installed() else CliClient
    return kind(slurm.bin, slurm.conf, slurm.timeout_s)


def _first_word(ask: Callable[[], Settings], clock: SystemClock, once: bool, stopping: Callable[[], bool]) -> Settings:
    """Slurm may come up after us: wait for it, but not with --once."""
    while True:
        try:
            return ask()
        except SlurmUnreachable as error:
            if once or stopping():
                raise
            _log.warning("%s; trying again in 5 s", error)
            clock.sleep(5.0)


def _state_folder(loaded: Config) -> Path:
    state = Path(loaded.paths.state)
    try:
        state.mkdir(mode=0o750, parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{state}: {error.strerror}; create it for the daemon's user, or set paths.state") from None
    if not os.access(state, os.W_OK):
        raise InputError(f"{state}: not writable for this user; run the daemon as root or SlurmUser")
    return state


def _let_admins_in(loaded: Config, state: Path) -> None:
    """Members of access.admin_group may read the store: folder (0750) and SQLite's files (0640) go to that group."""
    group, file = loaded.access.admin_group, loaded.store_file
    if not group:
        return
    try:
        gid = grp.getgrnam(group).gr_gid
        for path in (str(state), *(file + end for end in ("", "-wal", "-shm") if file)):
            if os.path.exists(path):
                os.chown(path, -1, gid)
    except KeyError:
        raise ConfigError(
            f"{loaded.source}: access.admin_group: no group {group!r} here; make it, or empty the key"
        ) from None
    except OSError as error:
        why = f"{error.strerror}; run the daemon as root or as a member, or empty the key"
        raise ConfigError(f"{loaded.source}: access.admin_group: {group!r} can't be let in: {why}") from None


def _reasons(loaded: Config) -> Reasons:
    from nccl_slurm.cli.rule_files import reasons_of

    return reasons_of(loaded)


def _policy(loaded: Config) -> Policy:
    """The decision table with the site's rows. Raises ConfigError."""
    from nccl_slurm.cli.rules import policy_of

    return policy_of(loaded)


def _compiled_patterns(loaded: Config, state: Path) -> str:
    """Pattern rows of the package and of the site, as the one JSON that readers of any Python can load."""
    from nccl_slurm.cli.rule_files import rule_files
    from nccl_slurm.cli.rules import pattern_texts

    packaged, site = pattern_texts(loaded)
    used = f"{len(site)} of {loaded.rules.folder} and the package's" if site else "the package's alone"
    _log.info("rules: %s (%s)", used, ", ".join(file.name for file in rule_files(loaded)) or "no file of the site")
    path = state / "patterns.json"
    path.write_text(compile_rows(packaged, site), encoding="utf-8")
    path.chmod(0o644)
    return str(path)


def _stop_on_signal() -> Callable[[], bool]:
    seen: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: seen.append(received))
    return lambda: bool(seen)


def _detach(log: Path) -> None:
    """The classic two forks; the log file takes the place of standard error."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
