"""Options and facts → what shall be where, in the order in which it is put there: code and configuration before hooks.

Pure. What is there already, and so what has to be done, is for `entry.changes`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Iterable, Mapping

from nccl_slurm.install import settings, units
from nccl_slurm.install.entry import Entry
from nccl_slurm.install.facts import Facts
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.options import Options

__all__ = ["SPOOL", "Places", "Plan", "Source", "controller", "node", "places", "with_parents"]

SPOOL = "/var/spool/nccl-slurm"
_CONF_LINE = re.compile(rb"(?m)^NCCL_SLURM_CONF=.*$")


@dataclass(frozen=True)
class Places:
    spool: str
    shared: str
    events: str


@dataclass(frozen=True)
class Plan:
    """``unheeded``: what is asked for and a configuration file that stays says otherwise, one line each."""

    entries: tuple[Entry, ...]
    at: Places
    unheeded: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """Texts of the checkout by their relative path. ``spank``: built plugins by their name."""

    package: Mapping[str, bytes]
    hooks: Mapping[str, bytes]
    etc: Mapping[str, bytes]
    spank: Mapping[str, bytes] = field(default_factory=dict)


def node(options: Options, facts: Facts, source: Source, patterns: bytes | None) -> Plan:
    """``patterns``: compiled rows, where this node's Python needs them and they were to be had."""
    layout, values = options.layout, _capture_values(options, facts)
    at = places(options, facts)
    entries = [
        *_code(layout, source),
        *_compiled(layout, patterns),
        *_capture_conf(layout, source, facts, values),
        *_folder(at.spool, 0o711, "data"),
        *_hooks(layout, source),
        *_spank(layout, source),
        *(_unit(layout, name, units.node_unit(_text(source, f"systemd/{name}"), layout)) for name in _NODE_UNITS),
        _file(f"{layout.tmpfiles}/nccl-slurm-node.conf", units.temporary_files("node", at.spool, at.events, "")),
        Entry(layout.node_command, "link", content=layout.node_program.encode()),
    ]
    return Plan(with_parents(entries), at, tuple(_unheeded_sh(layout, facts, values)))


_NODE_UNITS = ("nccl-slurm-boot.service", "nccl-slurm-node.service", "nccl-slurm-node.timer")


def controller(options: Options, facts: Facts, source: Source) -> Plan:
    layout, values, daemon = options.layout, _capture_values(options, facts), _daemon_values(options, facts)
    at = places(options, facts)
    slurm, ship = facts.slurm_user, facts.ship_user
    assert slurm is not None
    owner = (ship.uid, ship.gid) if ship else (0, 0)
    unit = units.daemon_unit(_text(source, "systemd/nccl-slurm.service"), layout, at.shared, at.events)
    entries = [
        *_code(layout, source),
        *_capture_conf(layout, source, facts, values),
        *_daemon_conf(layout, source, facts, daemon),
        *_folder(layout.rules_folder, 0o755, "data"),
        *_folder(layout.state, 0o750, "data"),
        *_folder(at.spool, 0o711, "data"),
        *(
            e
            for part in ("", "new", "tmp")
            for e in _folder(os.path.join(at.events, part).rstrip("/"), 0o700, "data", (slurm.uid, slurm.gid))
        ),
        *_shared(at.shared, owner),
        *_hooks(layout, source),
        *_spank(layout, source),
        _unit(layout, "nccl-slurm.service", unit),
        _file(
            f"{layout.tmpfiles}/nccl-slurm-controller.conf",
            units.temporary_files("controller", at.spool, at.events, slurm.name),
        ),
        _file(layout.logrotate, units.log_rotation(_text(source, "logrotate/nccl-slurm"), layout)),
        _file(f"{layout.man}/man1/nccl-slurm.1", _text(source, "man/nccl-slurm.1")),
        _file(f"{layout.man}/man5/nccl-slurm.toml.5", _text(source, "man/nccl-slurm.toml.5")),
        _file(layout.completion, _text(source, "completion/nccl-slurm.bash")),
        _command(layout),
    ]
    unheeded = [*_unheeded_sh(layout, facts, values), *_unheeded_toml(options, facts, source, daemon)]
    return Plan(with_parents(entries), at, tuple(unheeded))


# Parts


def _code(layout: Layout, source: Source) -> list[Entry]:
    """One tree; each of its files is an entry, so that an upgrade replaces what differs and drops what is stale."""
    files = [Entry(os.path.join(layout.prefix, name), "file", 0o644, content=c) for name, c in source.package.items()]
    return [*_folder(layout.prefix, 0o755, "folder"), *_folder(layout.code, 0o755, "tree"), *files]


def _compiled(layout: Layout, patterns: bytes | None) -> list[Entry]:
    return [] if patterns is None else [Entry(layout.patterns_json, "file", 0o644, content=patterns)]


def _hooks(layout: Layout, source: Source) -> list[Entry]:
    """What they start and read is there by now. nccl-slurm-node is first: the others start it."""
    line = f"NCCL_SLURM_CONF={layout.capture_conf}".encode()
    names = sorted(source.hooks, key=lambda name: name != "nccl-slurm-node")
    return [
        Entry(os.path.join(layout.hooks, name), "file", content=_CONF_LINE.sub(lambda _: line, source.hooks[name]))
        for name in names
    ]


def _spank(layout: Layout, source: Source) -> list[Entry]:
    return [Entry(os.path.join(layout.spank, name), "file", 0o644, content=c) for name, c in source.spank.items()]


def _capture_conf(layout: Layout, source: Source, facts: Facts, values: Mapping[str, str]) -> list[Entry]:
    text = settings.fill_sh(_text(source, "capture.conf"), values)
    old = facts.capture_conf
    differs = old is not None and settings.sh_keys(old) != settings.sh_keys(text)
    return _conf(layout.capture_conf, text, differs)


def _daemon_conf(layout: Layout, source: Source, facts: Facts, values: Mapping[str, str]) -> list[Entry]:
    text = settings.fill_toml(_text(source, "nccl-slurm.toml"), values)
    old = facts.daemon_conf
    differs = old is not None and not settings.toml_keys(text) <= settings.toml_keys(old)
    return _conf(layout.daemon_conf, text, differs)


def _conf(path: str, text: str, differs: bool) -> list[Entry]:
    """The file that is there stays; where the shipped one has other keys it is laid beside it."""
    entries = [Entry(path, "file", 0o644, content=text.encode(), keep=True, belongs="conf")]
    return [*entries, _file(path + ".new", text)] if differs else entries


def _command(layout: Layout) -> Entry:
    """A link, or where the configuration lies elsewhere a script that names it."""
    program = f"{layout.venv}/bin/nccl-slurm"
    if layout.conf == Layout.conf:
        return Entry(layout.command, "link", content=program.encode())
    named = f': "${{NCCL_SLURM_CONFIG:={layout.daemon_conf}}}"\nexport NCCL_SLURM_CONFIG'
    return Entry(layout.command, "file", content=f'#!/bin/sh\n{named}\nexec {program} "$@"\n'.encode())


def _shared(shared: str, owner: tuple[int, int]) -> list[Entry]:
    """Of the hand-over; empty where there is no shared folder."""
    if not shared:
        return []
    parts = {"tmp": 0o700, "new": 0o700, "quarantine": 0o700, "reports": 0o711}
    return [
        Entry(shared, "folder", 0o755, *owner, keep=True, belongs="data"),
        *(e for part, mode in parts.items() for e in _folder(f"{shared}/{part}", mode, "data", owner)),
    ]


def _folder(path: str, mode: int, belongs: str, owner: tuple[int, int] = (0, 0)) -> list[Entry]:
    return [Entry(path, "folder", mode, *owner, belongs=belongs)]


def _file(path: str, text: str) -> Entry:
    return Entry(path, "file", 0o644, content=text.encode())


def _unit(layout: Layout, name: str, text: str) -> Entry:
    return _file(f"{layout.units}/{name}", text)


def _text(source: Source, name: str) -> str:
    return source.etc[name].decode()


def with_parents(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Each missing folder above comes before what is in it; one that is there keeps its owner and mode."""
    known: dict[str, Entry] = {}
    for entry in entries:
        for parent in _parents(entry.path):
            known.setdefault(parent, Entry(parent, "folder", keep=True, belongs="folder"))
        if not (known.get(entry.path) and entry.kind == "folder" and entry.belongs == "folder"):
            known[entry.path] = entry
    return tuple(known.values())


def _parents(path: str) -> list[str]:
    found = []
    while os.path.dirname(path) not in ("/", path):
        path = os.path.dirname(path)
        found.append(path)
    return found[::-1]


# Settings


def places(options: Options, facts: Facts) -> Places:
    """As asked, else as capture.conf has them, else the defaults; ``shared`` may be empty."""
    spool = options.spool or _in_force(facts, "NCCL_SLURM_SPOOL") or SPOOL
    shared = options.shared or _in_force(facts, "NCCL_SLURM_SHARED")
    return Places(spool, shared, _in_force(facts, "NCCL_SLURM_EVENTS") or f"{spool}/events")


def _in_force(facts: Facts, key: str) -> str:
    """Empty where it is not set, or where only a shell could tell."""
    value = settings.sh_value(facts.capture_conf or "", key)
    return value if value and os.path.isabs(value) else ""


def _capture_values(options: Options, facts: Facts) -> dict[str, str]:
    layout, old = options.layout, facts.python.version < (3, 11)
    at = places(options, facts)
    return {
        "NCCL_SLURM_PREFIX": layout.prefix,
        "NCCL_SLURM_HOOKS": layout.hooks,
        "NCCL_SLURM_PYTHON": facts.python.path,
        "NCCL_SLURM_SPOOL": at.spool,
        "NCCL_SLURM_SHARED": at.shared,
        "NCCL_SLURM_SHIP_UID": str(facts.ship_user.uid) if facts.ship_user else "",
        "NCCL_SLURM_PATTERNS": layout.patterns_json if old or options.patterns else "",
        "NCCL_SLURM_EVENTS": at.events,
    }


def _daemon_values(options: Options, facts: Facts) -> dict[str, str]:
    layout = options.layout
    at = places(options, facts)
    owners = [0, facts.ship_user.uid] if facts.ship_user else [0]
    return {
        "paths.state": _quoted(layout.state),
        "paths.shared": _quoted(at.shared),
        "paths.events": _quoted(at.events),
        "slurm.bin": _quoted(facts.slurm_bin or "/usr/bin"),
        "slurm.conf": _quoted(options.slurm_conf or ""),
        "daemon.record_uids": str(owners),
        "rules.folder": _quoted(layout.rules_folder),
    }


def _quoted(text: str) -> str:
    return f'"{text}"'


#: Defaults of the hooks, for keys that a capture.conf does not set.
_DEFAULTS = {"NCCL_SLURM_PREFIX": Layout().prefix, "NCCL_SLURM_HOOKS": Layout().hooks, "NCCL_SLURM_SPOOL": SPOOL}


def _unheeded_sh(layout: Layout, facts: Facts, values: Mapping[str, str]) -> list[str]:
    """An interpreter that differs is no contradiction: the one in force may be as good."""
    text = facts.capture_conf
    if text is None:
        return []
    found = []
    for key in (
        "NCCL_SLURM_PREFIX",
        "NCCL_SLURM_HOOKS",
        "NCCL_SLURM_SPOOL",
        "NCCL_SLURM_SHARED",
        "NCCL_SLURM_SHIP_UID",
    ):
        now = settings.sh_value(text, key)
        if now != settings.UNTOLD and (now or _DEFAULTS.get(key, "")) != values[key] and values[key]:
            found.append(f"{layout.capture_conf} stays as it is: set {key}={values[key]} there yourself")
    return found


def _unheeded_toml(options: Options, facts: Facts, source: Source, values: Mapping[str, str]) -> list[str]:
    """Slurm's places only where they were asked for: what the file says may be as good as what was found here."""
    text, shipped = facts.daemon_conf, _text(source, "nccl-slurm.toml")
    if text is None:
        return []
    asked = {"paths.shared": True, "paths.events": True}
    asked.update({"slurm.bin": bool(options.slurm_bin), "slurm.conf": bool(options.slurm_conf)})
    now = {name: settings.toml_value(text, name) or settings.toml_value(shipped, name) or "" for name in values}
    wrong = [name for name, is_asked in asked.items() if is_asked and _path_in(now[name]) != _path_in(values[name])]
    wrong = [name for name in wrong if values[name] != '""']
    wrong += (
        [] if _numbers(values["daemon.record_uids"]) <= _numbers(now["daemon.record_uids"]) else ["daemon.record_uids"]
    )
    return [
        f"{options.layout.daemon_conf} stays as it is: set {name} = {values[name]} there yourself" for name in wrong
    ]


def _path_in(toml: str) -> str:
    return toml.strip("\"'").rstrip("/")


def _numbers(toml: str) -> set[str]:
    return set(re.findall(r"\d+", toml))
