"""One configuration: nccl-slurm.toml on the controller and the login nodes. (Nodes read capture.conf, see capture/.)

Every key has a default, every unknown key is an error that names the nearest known one. Durations are seconds unless
the key says otherwise.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints
from urllib.parse import quote, unquote

from nccl_slurm.errors import ConfigError
from nccl_slurm.recommend.cluster import wrong

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DEFAULT_PATH", "SCOPES", "Config", "flat", "load", "loads"]

DEFAULT_PATH = "/etc/nccl-slurm/nccl-slurm.toml"
_ACCOUNT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,254}")
_PROGRAM = re.compile(r"/[A-Za-z0-9._/+-]{1,250}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_MAX_CHARACTERS, _MAX_DOTS = 1 << 20, 100
#: Which ended runs are diagnosed (see docs/jobs.md): those with GPUs or NCCL/torch evidence, all, or none.
SCOPES = ("gpu-or-evidence", "all", "none")
#: It is renewed four times in its term, by a process that may be slow.
LEASE_MIN_S = 4.0
#: What commands are printed for (see docs/recommendation.md); empty: as the nodes' records tell.
SITE_KINDS = ("", "hyperpod", "slurm")
#: Who is asked about Slurm (see docs/pyslurm.md).
CLIENTS = ("auto", "commands")
#: What a node's SSH host key is checked against (see docs/ssh.md).
HOST_KEYS = ("known", "first-use")


@dataclass(frozen=True)
class Paths:
    state: str = "/var/lib/nccl-slurm"  # store, lock; local disk
    shared: str = ""  # folder on the cluster's file system: node records, published reports
    events: str = "/var/spool/nccl-slurm/events"  # EpilogSlurmctld drops here; local disk of the controller


@dataclass(frozen=True)
class StoreSection:
    url: str = ""  # SQLAlchemy URL; empty: SQLite in paths.state
    password_file: str = ""  # first line is the database password, so that this file may be readable by all
    retain_days: int = 730  # runs, reports, comments, notes; 0 keeps all
    records_days: int = 30  # node records and read job output, the bulk; 0 keeps them as long as the run


@dataclass(frozen=True)
class History:
    retain_days: int = 730  # events of machines, states of nodes; 0 keeps all
    runs_days: int = 14  # runs that went well one by one, so long; then counted by the day and size
    daily_days: int = 100  # and after so long by months of 30 days


@dataclass(frozen=True)
class Slurm:
    bin: str = "/usr/bin"
    conf: str = ""  # SLURM_CONF; empty: Slurm's own default
    timeout_s: float = 20.0
    client: str = "auto"  # pyslurm where it is installed and fits; "commands": never


@dataclass(frozen=True)
class Daemon:
    tick_s: float = 0.5
    nodes_poll_s: float = 30.0
    jobs_poll_s: float = 10.0
    reconcile_s: float = 30.0
    look_back_h: float = 24.0
    settle_s: float = 60.0  # wait for a node's record after the node left COMPLETING
    settle_cap_s: float = 900.0  # and never longer than this after the job's end
    verify_s: float = 60.0  # read a written comment again after
    record_uids: list[int] = field(default_factory=lambda: [0])  # owners whose node records are believed
    output_limit_s: float = 120.0  # reading the job's own output, as its user
    lease_s: float = 20.0  # of daemons on several hosts: one that is silent so long is replaced


@dataclass(frozen=True)
class Ssh:
    user: str = ""  # account on the nodes; empty: nothing is fetched
    key_file: str = "/etc/nccl-slurm/id_ed25519"  # its private key, without a passphrase
    known_hosts: str = "/etc/ssh/ssh_known_hosts"  # host keys of the nodes
    host_keys: str = "known"  # "first-use": a node without a key there is believed once, and its key kept
    port: int = 22
    command: str = "/opt/nccl-slurm/slurm/nccl-slurm-node"  # on the nodes
    connect_s: float = 10.0  # for each of: TCP, banner and key exchange, authentication
    visit_s: float = 60.0  # for all that is asked of a node at one visit
    at_once: int = 32  # nodes
    wait_s: float = 5.0  # after a run's end; a shared folder may bring the record until then
    late_h: float = 24.0  # so long after its end a record that is missing is asked for


@dataclass(frozen=True)
class Scope:
    default: str = "gpu-or-evidence"
    partitions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Comment:
    enabled: bool = True


@dataclass(frozen=True)
class Live:
    silent_s: int = 0  # a running job that shows nothing for so long gets a live verdict; 0: none does
    look_s: float = 60.0  # between two looks of the daemon at the output of each running job
    reader: str = "/opt/nccl-slurm/slurm/nccl-slurm-node"  # nccl-slurm-node on the nodes, for `nccl-slurm watch`
    limit_s: float = 30.0  # for the reader on a node


@dataclass(frozen=True)
class Access:
    admin_group: str = ""  # members may read the store, as root and SlurmUser do


@dataclass(frozen=True)
class Review:
    expire_days: float = 14.0  # a recommendation that nobody decided by then is no longer believed


@dataclass(frozen=True)
class Rules:
    folder: str = "/etc/nccl-slurm/rules.d"


@dataclass(frozen=True)
class Site:
    kind: str = ""  # "hyperpod", "slurm"; empty: as a node's own HyperPod files tell
    aws_cluster: str = ""  # HyperPod's name of the cluster, or its ARN, for the printed command
    region: str = ""  # AWS region, for the same
    login_nodes: list[str] = field(default_factory=list)  # nodes of Slurm where users log in
    database_hosts: list[str] = field(default_factory=list)  # of slurmdbd and its database, where Slurm does not tell


@dataclass(frozen=True)
class Config:
    paths: Paths = field(default_factory=Paths)
    store: StoreSection = field(default_factory=StoreSection)
    history: History = field(default_factory=History)
    slurm: Slurm = field(default_factory=Slurm)
    daemon: Daemon = field(default_factory=Daemon)
    ssh: Ssh = field(default_factory=Ssh)
    scope: Scope = field(default_factory=Scope)
    comment: Comment = field(default_factory=Comment)
    live: Live = field(default_factory=Live)
    access: Access = field(default_factory=Access)
    review: Review = field(default_factory=Review)
    rules: Rules = field(default_factory=Rules)
    site: Site = field(default_factory=Site)
    source: str = field(default="built-in defaults", metadata={"internal": True})

    @property
    def store_url(self) -> str:
        """A URL is percent-decoded, and ``?`` begins its options: a folder's name may hold both."""
        return self.store.url or f"sqlite:///{quote(self.paths.state)}/store.db"

    @property
    def store_file(self) -> str | None:
        """Of a SQLite store; None for a server."""
        if not self.store_url.startswith("sqlite"):
            return None
        return unquote(self.store_url.partition("///")[2].partition("?")[0])

    def store_password(self) -> str | None:
        """The first line of store.password_file. Raises ConfigError."""
        if not self.store.password_file:
            return None
        try:
            lines = Path(self.store.password_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{self.source}: store.password_file: {error}; only the daemon's user may read it"
            ) from None
        return lines[0].strip() if lines else ""

    def scope_of(self, partition: str | None) -> str:
        return self.scope.partitions.get(partition or "", self.scope.default)


def load(path: str | None = None) -> Config:
    """The file at ``path``, ``$NCCL_SLURM_CONFIG`` or the default place; built-in defaults where the last is absent.

    Raises ConfigError with file, key and remedy.
    """
    named = path or os.environ.get("NCCL_SLURM_CONFIG")
    where = named or DEFAULT_PATH
    try:
        with open(where, encoding="utf-8") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except FileNotFoundError:
        if named:
            raise ConfigError(f"{where}: no such file; give --config the path of nccl-slurm.toml") from None
        return Config()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}; make it readable for the user that runs nccl-slurm") from None
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"{where}: larger than a configuration can be; give the path of nccl-slurm.toml")
    return loads(text, where)


def loads(text: str, source: str) -> Config:
    # tomllib takes time with the square of the dots in a key
    if any(line.partition("=")[0].count(".") > _MAX_DOTS for line in text.splitlines()):
        raise ConfigError(f"{source}: not valid TOML: a key with more than {_MAX_DOTS} dots")
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{source}: not valid TOML: {error}") from None
    config: Config = _section(Config, tree, source, "")
    _check_values(config, source)
    return config


def flat(config: Config) -> Iterator[tuple[str, Any]]:
    """``("daemon.settle_s", 60.0)`` … in the order of the file."""
    for section in fields(config):
        value = getattr(config, section.name)
        if is_dataclass(value):
            for key in fields(value):
                yield f"{section.name}.{key.name}", getattr(value, key.name)


def _section(kind: type[Any], tree: Mapping[str, Any], source: str, prefix: str) -> Any:
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind) if not f.metadata.get("internal")}
    values: dict[str, Any] = {}
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"{source}: {prefix}{key}: unknown key{_nearest(key, list(known))}")
        values[key] = _value(hints[key], value, source, f"{prefix}{key}")
    if kind is Config:
        values["source"] = source
    return kind(**values)


def _nearest(key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; known here: {', '.join(sorted(known))}"


def _value(hint: Any, value: Any, source: str, key: str) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: {key}: is a section; write [{key}]")
        return _section(hint, value, source, f"{key}.")
    origin = get_origin(hint)
    if origin is dict:
        return {
            name: _value(get_args(hint)[1], item, source, f"{key}.{name}")
            for name, item in _of(value, dict, source, key).items()
        }
    if origin is list:
        return [_value(get_args(hint)[0], item, source, key) for item in _of(value, list, source, key)]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _of(value, hint, source, key)


def _of(value: Any, kind: type[Any], source: str, key: str) -> Any:
    words = {
        str: "text in quotes",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        dict: "a table",
        list: "a list",
    }
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{source}: {key}: must be {words[kind]}, not {value!r}")
    return value


def _check_values(config: Config, source: str) -> None:
    for key, value in flat(config):
        if isinstance(value, float) and not 0 < value < 1e9:
            raise ConfigError(f"{source}: {key}: must be above 0, not {value}")
        if type(value) is int and value < 0:
            raise ConfigError(f"{source}: {key}: must be 0 or above, not {value}")
    _check_retention(config, source)
    _check_history(config, source)
    if config.daemon.lease_s < LEASE_MIN_S:
        raise ConfigError(f"{source}: daemon.lease_s: must be at least {LEASE_MIN_S:g}, not {config.daemon.lease_s:g}")
    for key, scope in [
        ("scope.default", config.scope.default),
        *((f"scope.partitions.{p}", s) for p, s in config.scope.partitions.items()),
    ]:
        if scope not in SCOPES:
            raise ConfigError(f"{source}: {key}: must be one of {', '.join(SCOPES)}, not {scope!r}")
    for key, names in (("login_nodes", config.site.login_nodes), ("database_hosts", config.site.database_hosts)):
        for name in names:
            if not _HOST.fullmatch(name):
                raise ConfigError(f"{source}: site.{key}: {name!r} is no host name; write one name an item")
    if why := wrong(config.site.aws_cluster, config.site.region, ("site.aws_cluster:", "site.region:")):
        raise ConfigError(f"{source}: {why}")
    if config.site.kind not in SITE_KINDS:
        raise ConfigError(f"{source}: site.kind: must be hyperpod, slurm or empty, not {config.site.kind!r}")
    if config.slurm.client not in CLIENTS:
        raise ConfigError(f"{source}: slurm.client: must be auto or commands, not {config.slurm.client!r}")
    _check_ssh(config, source)
    for key in ("state", "events"):
        if not os.path.isabs(getattr(config.paths, key)):
            raise ConfigError(f"{source}: paths.{key}: must be an absolute path")
    if not os.path.isabs(config.live.reader):
        raise ConfigError(f"{source}: live.reader: must be an absolute path")
    if config.paths.shared and not os.path.isabs(config.paths.shared):
        raise ConfigError(f"{source}: paths.shared: must be an absolute path, or empty")


def _check_ssh(config: Config, source: str) -> None:
    ssh = config.ssh
    if ssh.host_keys not in HOST_KEYS:
        raise ConfigError(f"{source}: ssh.host_keys: must be one of {', '.join(HOST_KEYS)}, not {ssh.host_keys!r}")
    if ssh.user and not _ACCOUNT.fullmatch(ssh.user):
        raise ConfigError(f"{source}: ssh.user: must be the name of an account, not {ssh.user!r}")
    if not 0 < ssh.port < 65536:
        raise ConfigError(f"{source}: ssh.port: must be 1 to 65535, not {ssh.port}")
    if not 0 < ssh.at_once <= 256:
        raise ConfigError(f"{source}: ssh.at_once: must be 1 to 256, not {ssh.at_once}")
    for key in ("key_file", "known_hosts"):
        if not os.path.isabs(getattr(ssh, key)):
            raise ConfigError(f"{source}: ssh.{key}: must be an absolute path")
    if not _PROGRAM.fullmatch(ssh.command):
        raise ConfigError(f"{source}: ssh.command: must be an absolute path of letters, digits and . _ / + -")


def _check_history(config: Config, source: str) -> None:
    """A late record changes the outcome of a run; one that is counted can't be found any more."""
    kept, least = config.history, config.daemon.look_back_h / 24 + 1
    if kept.runs_days < least:
        why = f"must be at least {least:g}, a day more than daemon.look_back_h, not {kept.runs_days}"
        raise ConfigError(f"{source}: history.runs_days: {why}")
    if kept.daily_days < kept.runs_days:
        why = f"must not be below history.runs_days ({kept.daily_days} < {kept.runs_days})"
        raise ConfigError(f"{source}: history.daily_days: {why}")
    if 0 < kept.retain_days < kept.daily_days:
        why = f"must be 0 or not below history.daily_days ({kept.retain_days} < {kept.daily_days})"
        raise ConfigError(f"{source}: history.retain_days: {why}")


def _check_retention(config: Config, source: str) -> None:
    """What is forgotten must not be found again in accounting, and judged and told a second time."""
    least = config.daemon.look_back_h / 24 + 1
    for key in ("retain_days", "records_days"):
        days = getattr(config.store, key)
        if 0 < days < least:
            why = f"must be 0 or at least {least:g}, a day more than daemon.look_back_h, not {days}"
            raise ConfigError(f"{source}: store.{key}: {why}")
