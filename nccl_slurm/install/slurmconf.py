"""What ``scontrol show config`` and ``scontrol -o show node`` print, read into what the wiring needs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Mapping

__all__ = ["Node", "SlurmConfig", "parse_config", "parse_nodes", "values"]

_NONE = ("", "(null)", "none", "N/A")
#: 22.05 prints 65534 where no limit is set.
_UNLIMITED = (65534, 65535)
_TIMEOUTS = ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")


@dataclass(frozen=True)
class SlurmConfig:
    """Paths are as slurm.conf has them, in its order. ``timeouts`` holds those that are set, in seconds.

    ``release`` is (major, minor); (0, 0) where the text names none. ``configless``: nodes get it from slurmctld.
    """

    release: tuple[int, int] = (0, 0)
    path: str = "/etc/slurm/slurm.conf"
    user: str = "root"
    prolog: tuple[str, ...] = ()
    epilog: tuple[str, ...] = ()
    task_prolog: tuple[str, ...] = ()
    epilog_slurmctld: tuple[str, ...] = ()
    prolog_flags: tuple[str, ...] = ()
    timeouts: tuple[tuple[str, int], ...] = ()
    proctrack: str = ""
    accounting: str = ""
    store_flags: tuple[str, ...] = ()
    tres: tuple[str, ...] = ()
    gres_types: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    configless: bool = False


@dataclass(frozen=True)
class Node:
    """``state`` as Slurm writes it: ``IDLE``, ``MIXED+DRAIN``, ``DOWN*`` …"""

    name: str
    address: str
    state: str
    partitions: tuple[str, ...]


def parse_config(text: str) -> SlurmConfig:
    """Text of ``scontrol show config``, of any release since 22.05. A key that is not there has its default."""
    found = values(text)

    def words(key: str) -> tuple[str, ...]:
        return tuple(word for one in found.get(key, ()) for word in one.split(",") if word)

    def first(key: str, default: str) -> str:
        return (found.get(key) or [default])[0]

    return SlurmConfig(
        release=_release(first("SLURM_VERSION", "")),
        path=first("SLURM_CONF", SlurmConfig.path),
        user=re.sub(r"\(\d+\)$", "", first("SlurmUser", SlurmConfig.user)),
        prolog=tuple(found.get("Prolog", ())),
        epilog=tuple(found.get("Epilog", ())),
        task_prolog=tuple(found.get("TaskProlog", ())),
        epilog_slurmctld=tuple(found.get("EpilogSlurmctld", ())),
        prolog_flags=words("PrologFlags"),
        timeouts=tuple(_timeouts(found)),
        proctrack=first("ProctrackType", ""),
        accounting=first("AccountingStorageType", ""),
        store_flags=words("AccountingStoreFlags"),
        tres=words("AccountingStorageTRES"),
        gres_types=words("GresTypes"),
        controllers=tuple(one.partition("(")[0] for one in found.get("SlurmctldHost", ())),
        configless="enable_configless" in words("SlurmctldParameters"),
    )


def parse_nodes(text: str) -> list[Node]:
    """Lines of ``scontrol -o show node``."""
    fields = (dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", line)) for line in text.splitlines())
    return [_node(of) for of in fields if of.get("NodeName")]


def _node(of: Mapping[str, str]) -> Node:
    partitions = tuple(name for name in of.get("Partitions", "").split(",") if name)
    return Node(of["NodeName"], of.get("NodeAddr") or of["NodeName"], of.get("State", ""), partitions)


def values(text: str) -> dict[str, list[str]]:
    """Key → values. ``Epilog = x`` (22.05), and ``Epilog[0] = x``, ``Epilog[1] = y`` (24.11, 26.05), in their order."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if sign and value.strip() not in _NONE:
            found.setdefault(re.sub(r"\[\d+\]$", "", key.strip()), []).append(value.strip())
    return found


def _release(version: str) -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (0, 0)


def _timeouts(values: Mapping[str, list[str]]) -> list[tuple[str, int]]:
    found = ((key, _seconds(one)) for key in _TIMEOUTS for one in values.get(key, ()))
    return [(key, seconds) for key, seconds in found if seconds is not None]


def _seconds(value: str) -> int | None:
    number = re.match(r"\d+", value)
    return int(number.group()) if number and int(number.group()) not in _UNLIMITED else None
