"""Asks Slurm on this host, once each. What it does not answer is kept with its reason, for the checks to say."""

from __future__ import annotations

import glob
import json
import os
import re
import socket
import stat
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

from nccl_slurm.config import Config
from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.checks.scheduler.jobs import QUEUE_FORMAT
from nccl_slurm.doctor.checks.scheduler.observed import Plugin, SlurmObserved
from nccl_slurm.doctor.checks.scheduler.own import KEYS
from nccl_slurm.doctor.observation import Fleet, Observation
from nccl_slurm.errors import NcclSlurmError, SlurmUnreachable
from nccl_slurm.history.reasons import Reasons
from nccl_slurm.install.facts import find_slurm
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.settings import sh_value
from nccl_slurm.install.slurmconf import values
from nccl_slurm.scheduler.cli_client import CliClient, run_command
from nccl_slurm.scheduler.client import Accounted, LiveJob

__all__ = ["WHICH_SLURM", "AskedSlurm"]

#: scontrol tries each controller for a while before it gives up.
_LIMIT_S = 30.0
_MUNGE_S = 10.0
WHICH_SLURM = "`scontrol ping` shows who answers; SLURM_CONF=PATH, or slurm.conf in nccl-slurm.toml, names a cluster"
#: As slurm.conf(5) and Debian's packages have it, and slurmd's copy where slurmctld hands it out.
_CONFS = ("/etc/slurm/slurm.conf", "/opt/slurm/etc/slurm.conf", "/run/slurm/conf/slurm.conf")
_CONF_LIMIT = 1 << 20
_MUNGE_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_QUESTIONS: Mapping[str, Sequence[str]] = {
    "ping": ("scontrol", "ping"),
    "config": ("scontrol", "show", "config"),
    "nodes": ("scontrol", "-o", "-a", "show", "nodes"),
    "queue": ("squeue", "--noheader", "--all", "--local", "-o", QUEUE_FORMAT),
    "partitions": ("scontrol", "-o", "-a", "show", "partitions"),
    "slurmdbd": ("sacctmgr", "-n", "-P", "show", "cluster", "format=cluster,controlhost,controlport"),
}


@dataclass(frozen=True)
class AskedSlurm:
    """``bin_folder``: Slurm's commands, None where this host has none; ``limit_s``: a command."""

    config: Config
    bin_folder: str | None
    limit_s: float = _LIMIT_S
    _kept: dict[str, str | NotObserved] = field(default_factory=dict)

    @classmethod
    def by(cls, config: Config) -> AskedSlurm:
        """slurm.bin where it has scontrol, else PATH and the usual places: no configuration is needed."""
        given = config.slurm.bin if os.access(os.path.join(config.slurm.bin, "scontrol"), os.X_OK) else None
        return cls(config, find_slurm(given))

    @property
    def conf(self) -> str:
        return self.config.slurm.conf or os.environ.get("SLURM_CONF", "")

    @cached_property
    def client(self) -> CliClient:
        """Raises SlurmUnreachable."""
        if self.bin_folder is None:
            raise SlurmUnreachable("no scontrol on this host; run this where Slurm's commands are, or set slurm.bin")
        return CliClient(self.bin_folder, self.conf, self.limit_s)

    @cached_property
    def reasons(self) -> Reasons:
        """Raises ConfigError."""
        from nccl_slurm.cli.rule_files import reasons_of

        return reasons_of(self.config)

    def said(self, key: str) -> str | NotObserved:
        if key not in self._kept:
            self._kept[key] = self._ask(*_QUESTIONS[key])
        return self._kept[key]

    def again(self, key: str) -> str:
        """Asked anew: what it said before is forgotten, whatever comes. Raises SlurmUnreachable."""
        self._kept.pop(key, None)
        return self.said_or_raise(key)

    def said_or_raise(self, key: str) -> str:
        """Raises SlurmUnreachable."""
        told = self.said(key)
        if isinstance(told, NotObserved):
            raise SlurmUnreachable(f"{told}; {WHICH_SLURM}")
        return told

    def jobs(self) -> Sequence[LiveJob]:
        """Raises SlurmError."""
        return self._jobs

    @cached_property
    def _jobs(self) -> Sequence[LiveJob]:
        return self.client.jobs()

    def accounted(self, job_id: str) -> Sequence[Accounted]:
        return self.client.accounting_of(job_id)

    def observed(
        self, now: float, fleet: Fleet, chosen: frozenset[str] = frozenset(), by_look: Mapping[str, str] | None = None
    ) -> SlurmObserved:
        """All questions at the same time: a slurmdbd that hangs costs its own limit alone."""
        with ThreadPoolExecutor(len(_QUESTIONS) + 1) as pool:
            munge = pool.submit(self._munge)
            texts = dict(zip(_QUESTIONS, pool.map(self.said, _QUESTIONS), strict=True))
            texts["munge"] = munge.result()
            texts["own-daemon"] = _own_daemon(self.config)
            conf, texts["slurm.conf"] = self._conf_file
            made = {name: node for name, node in fleet.nodes.items() if "munge" in node.found}
            credentials = dict(zip(made, pool.map(self._unmunged, made.values()), strict=True))
        observed = SlurmObserved(now, texts, fleet, chosen, credentials, by_look=by_look or {})
        here, on_controller = _here(observed)
        return replace(
            observed,
            here=here,
            on_controller=on_controller,
            conf=conf,
            plugins=self.plugins(),
            found_here=_found_here(observed),
            own_hooks=_own_hooks(self.config),
            reasons=self.reasons,
        )

    def plugins(self) -> list[Plugin]:
        """SPANK's, as plugstack.conf of this host names them; none where it can't be read."""
        config = self.said("config")
        found = values(config) if isinstance(config, str) else {}
        folder = (found.get("PluginDir") or ["/usr/lib/slurm"])[0].split(":")[0]
        conf = (found.get("SLURM_CONF") or ["/etc/slurm/slurm.conf"])[0]
        path = (found.get("PlugStackConfig") or [os.path.join(os.path.dirname(conf), "plugstack.conf")])[0]
        return [Plugin(row[0] == "required", os.path.join(folder, row[1])) for row in _plugstack(path)]

    def munge_socket(self) -> list[str]:
        """``-S PATH`` where slurm.conf names a socket (AuthInfo). Without an answer of slurmctld its file is read: with
        another socket than the site's munge would seem to be what is wrong."""
        config = self.said("config")
        told = config if isinstance(config, str) else self._conf_file[1]
        found = re.search(r"^\s*AuthInfo\s*=.*\bsocket=([^\s,]+)", told, re.MULTILINE | re.IGNORECASE)
        return ["-S", found.group(1)] if found else []

    @cached_property
    def _conf_file(self) -> tuple[str, str]:
        """Path and text; both empty where it can't be read (configless: slurmd's copy)."""
        for path in [self.conf] if self.conf else _CONFS:
            with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                return path, file.read(_CONF_LIMIT)
        return "", ""

    def _munge(self) -> str | NotObserved:
        """A credential made and read here; ``munge | unmunge`` as munge(1) has it."""
        if not isinstance(self.said("config"), str) and not self._conf_file[1]:
            return NotObserved(f"neither slurmctld nor a slurm.conf tells which socket munge has here; {WHICH_SLURM}")
        script = "command -v munge >/dev/null || { echo no munge on this host; exit 3; }; "
        script += '{ credential=$(munge -n "$@") && printf %s "$credential" | unmunge "$@"; } 2>&1'
        try:
            answer = run_command(["/bin/sh", "-c", script, "sh", *self.munge_socket()], _MUNGE_ENV, _MUNGE_S)
        except (TimeoutError, OSError):
            return f"STATUS:           no answer within {_MUNGE_S:g} s\n"
        if answer.code == 3:
            return NotObserved("no munge on this host")
        return f"{answer.out}\n{answer.error}"

    def _unmunged(self, node: Observation) -> str:
        """The word of ``unmunge`` here on a credential that the node made; what the node said is only read by it."""
        try:
            credential = node.text("munge").strip()
        except NotObserved as error:
            return str(error)
        script = 'credential=$0; printf %s "$credential" | unmunge "$@" 2>&1'
        argv = ["/bin/sh", "-c", script, credential[:4096], *self.munge_socket()]
        try:
            answer = run_command(argv, _MUNGE_ENV, _MUNGE_S)
        except (TimeoutError, OSError):
            return f"unmunge: no answer within {_MUNGE_S:g} s"
        found = [line.partition(":")[2].strip() for line in answer.out.splitlines() if line.startswith("STATUS:")]
        return found[0] if found else (answer.out.strip().splitlines() or ["unmunge: no answer"])[-1]

    def _ask(self, command: str, *words: str) -> str | NotObserved:
        """scontrol ping ends with 1 where all controllers are down, and lists them all the same."""
        if self.bin_folder is None:
            return NotObserved("no scontrol on this host; run this where Slurm's commands are, or set slurm.bin")
        argv = [os.path.join(self.bin_folder, command), *words]
        name = " ".join([command, *(word for word in words if not word.startswith("-"))][:3])
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
        try:
            answer = run_command(argv, {**env, **({"SLURM_CONF": self.conf} if self.conf else {})}, self.limit_s)
        except TimeoutError:
            return NotObserved(f"{name}: no answer within {self.limit_s:g} s")
        except OSError as error:
            return NotObserved(f"{argv[0]} can't be run: {error.strerror}")
        if answer.code and not (words == ("ping",) and "Slurmctld(" in answer.out):
            said = (answer.error or answer.out).strip().splitlines()
            return NotObserved(f"{name}: {said[-1][:300] if said else 'no message'}")
        return answer.out


def _plugstack(path: str, depth: int = 2) -> Iterator[list[str]]:
    """``required|optional PATH ARGUMENTS``, with the files that it includes (spank(8))."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            rows = [line.partition("#")[0].split() for line in file.read(1 << 16).splitlines()]
    except OSError:
        return
    for row in rows:
        if len(row) > 1 and row[0] in ("required", "optional"):
            yield row
        elif len(row) > 1 and row[0] == "include" and depth:
            for one in sorted(glob.glob(os.path.join(os.path.dirname(path), row[1])))[:64]:
                yield from _plugstack(one, depth - 1)


def _own_daemon(config: Config) -> str | NotObserved:
    """The store's heartbeat, as ``nccl-slurm status --json`` has it."""
    from nccl_slurm.cli.lookup import open_store

    try:
        store = open_store(config)
    except NcclSlurmError as error:
        return NotObserved(str(error))
    try:
        told = {key: store.value(key) for key in ("heartbeat", "stopped")}
        given_up, notes = len(store.comments_given_up()), [note.kind for note in store.notes()]
    except NcclSlurmError as error:
        return NotObserved(str(error))
    finally:
        store.close()
    return json.dumps({**told, "comments_given_up": given_up, "notes": notes})


def _here(observed: SlurmObserved) -> tuple[dict[str, str], bool]:
    """Programs that slurmctld runs, as this host has them."""
    try:
        config, settings = observed.config, observed.settings
    except NotObserved:
        return {}, False
    own = socket.gethostname().partition(".")[0]
    on_controller = own in {host.partition(".")[0] for host in config.controllers}
    programs = [*settings.get("PrologSlurmctld", ()), *config.epilog_slurmctld]
    return {path: _mode(path) for path in programs}, on_controller


def _found_here(observed: SlurmObserved) -> dict[str, list[str]]:
    """Programs around jobs, as this host has them, and what links lead to."""
    try:
        settings = observed.settings
    except NotObserved:
        return {}
    patterns = [value for key in KEYS for value in settings.get(key, ()) if value.startswith("/")]
    found = {pattern: sorted(glob.glob(pattern))[:64] for pattern in patterns}
    return {pattern: [*paths, *map(os.path.realpath, paths)] for pattern, paths in found.items()}


def _own_hooks(config: Config) -> str:
    """Of capture.conf beside nccl-slurm.toml. Empty where there is none, or it tells no folder."""
    folder = os.path.dirname(config.source) if os.path.isfile(config.source) else Layout().conf
    path = Layout(conf=folder).capture_conf
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        told = sh_value(file.read(_CONF_LIMIT), "NCCL_SLURM_HOOKS") or ""
        return told.rstrip("/") if told.startswith("/") else ""
    return ""


def _mode(path: str) -> str:
    try:
        info = os.stat(path)
    except OSError:
        return ""
    return f"{stat.S_IMODE(info.st_mode):o} {info.st_uid}"
