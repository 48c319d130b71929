"""``nccl-slurm daemon``: the loop on the controller."""

from __future__ import annotations

import grp
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import filelock

from nccl_slurm import config
from nccl_slurm.cli.options import config_option
from nccl_slurm.clock import SystemClock
from nccl_slurm.config import Config
from nccl_slurm.daemon.loop import Daemon
from nccl_slurm.daemon.notify import Notifier
from nccl_slurm.daemon.output import OutputReader
from nccl_slurm.errors import ConfigError, InputError, SlurmUnreachable, StoreBusy
from nccl_slurm.history.store import Store
from nccl_slurm.parse.patterns import compile_rows
from nccl_slurm.recommend.policy import Policy
from nccl_slurm.scheduler.cli_client import CliClient
from nccl_slurm.scheduler.client import Settings

__all__ = ["alone", "command"]

_log = logging.getLogger(__name__)


@click.command()
@click.option("--foreground", is_flag=True, help="Stay attached and log to standard error (as under systemd).")
@click.option("--once", is_flag=True, help="Do each duty once and end.")
@config_option
def command(foreground: bool, once: bool, config_path: str | None) -> None:
    """Join node records with Slurm; write comments and reports.

    One at a time: a second one ends with status 1. SIGTERM ends it after its round of duties.
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
    clock, client = SystemClock(), CliClient(loaded.slurm.bin, loaded.slurm.conf, loaded.slurm.timeout_s)
    stopping = _stop_on_signal()
    store = Store.open(loaded.store_url, password=loaded.store_password())
    try:
        _let_admins_in(loaded, state)
        settings = _first_word(client.settings, clock, once, stopping)
        reader = OutputReader(_compiled_patterns(loaded, state), loaded.daemon.output_limit_s)
        daemon = Daemon(loaded, client, store, clock, reader, settings, Notifier(), _policy(loaded))
        _log.info("watching cluster %s", settings.cluster)
        try:
            daemon.tick() if once else daemon.run(stopping)
        finally:
            daemon.close()
    finally:
        store.close()


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


def _policy(loaded: Config) -> Policy:
    """The decision table with the site's rows. Raises ConfigError."""
    from nccl_slurm.cli.rules import policy_of

    return policy_of(loaded)


def _compiled_patterns(loaded: Config, state: Path) -> str:
    """Pattern rows of the package and of the site, as the one JSON that readers of any Python can load."""
    from nccl_slurm.cli.rules import pattern_texts

    packaged, site = pattern_texts(loaded)
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
