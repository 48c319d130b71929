"""``nccl-slurm nodes --lemons`` and ``--exclude``: which nodes lose more runs than their peers, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nccl_slurm.clock import rfc3339
from nccl_slurm.config import Config
from nccl_slurm.daemon.exclusions import ASKED
from nccl_slurm.daemon.health import REMOVED
from nccl_slurm.errors import ConfigError
from nccl_slurm.history.lemons import Suspicion, excluded, suspicions
from nccl_slurm.history.machine import Machine
from nccl_slurm.history.signals import Signal, signals
from nccl_slurm.history.thresholds import DAY, SIGNALS, Thresholds, load_thresholds
from nccl_slurm.hosts import HOST, fold
from nccl_slurm.report.visible import visible

__all__ = ["exclude_reasons", "exclude_view", "lemons_text", "lemons_view", "thresholds_of"]

_NOBODY = "no node is flagged: none loses more runs than nodes like it"
_UNSEEN = "no run with a verdict is stored yet, so nothing can be said of any node"
#: Names too wide for a column, on two lines.
_HEADS = {
    "excl_jobid_count": "excl_jobid\n_count",
    "multi_node_node_fails": "multi_node\n_node_fails",
    "single_node_node_fails": "single_node\n_node_fails",
    "single_node_node_failure_rate": "single_node\n_node_failure_rate",
}
_SIGNALS_TOLD = (
    "A star: the signal has reached its threshold. Signals flag nobody; a dash is not observed, and no sign of health."
)


def thresholds_of(config: Config) -> Thresholds:
    """The package's rows and the site's. Raises ConfigError with the file that is wrong."""
    texts = []
    for path in sorted(Path(config.rules.folder).glob("*.toml")):
        try:
            texts.append(path.read_text(encoding="utf-8"))
            load_thresholds(texts[-1:])
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}; make it readable UTF-8") from None
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}; mend the row, or move the file away") from None
    return load_thresholds(texts)


def lemons_view(store: Any, now: float, thresholds: Thresholds) -> dict[str, Any]:
    """The object that ``--json`` prints: the nodes, the most suspicious first."""
    told: dict[str, dict[str, Any]] = {}

    def looked_at() -> Iterator[Machine]:
        for machine in _machines(store, now, thresholds):
            told[machine.identity] = _node(machine, now, thresholds, store.value(ASKED))
            yield machine

    found = suspicions(looked_at(), now, thresholds)
    for one in found:
        told[one.identity] |= {**asdict(one), "action": one.action}
    order = [*(one.identity for one in found), *sorted(told.keys() - {one.identity for one in found})]
    return {"at": rfc3339(now), "fdr": thresholds["blame.fdr"], "nodes": [told[identity] for identity in order]}


def exclude_view(store: Any, now: float, thresholds: Thresholds) -> dict[str, Any]:
    """``exclude``: a host list, empty where nobody is flagged. ``left_out``: flagged, but the list is full."""
    found = suspicions(_machines(store, now, thresholds), now, thresholds)
    gone = {edge.node for edge in store.last_node_events([one.node for one in found]) if edge.state == REMOVED}
    # sbatch takes no list with a node in it that Slurm has no more
    there = [one for one in found if HOST.match(one.node) and one.node not in gone]
    chosen, more = excluded(there, thresholds)
    until = rfc3339(now + thresholds["exclude.days"] * DAY)
    return {
        "exclude": fold(one.node for one in chosen),
        "until": until,
        "nodes": [{"node": one.node, "reason": _reason(one), "until": until} for one in chosen],
        "left_out": [{"node": one.node, "reason": _reason(one)} for one in more],
    }


def lemons_text(view: Mapping[str, Any]) -> str:
    from tabulate import tabulate

    if not any(node["hours"] is not None for node in view["nodes"]):
        return _UNSEEN
    heads = (
        "node",
        "hours",
        "lost",
        "expected",
        "chance",
        "q",
        "action",
        *(_HEADS.get(name, name) for name in SIGNALS),
    )
    rows = [_cells(node) for node in view["nodes"]]
    flags = [node["node"] for node in view["nodes"] if node["action"] == "investigate"]
    told = f"to be looked at: {fold(flags)}; `nccl-slurm nodes NODE` shows the runs" if flags else _NOBODY
    table = tabulate(rows, headers=heads, tablefmt="plain", disable_numparse=True)
    return f"{table}\n\n{_SIGNALS_TOLD}\n{_meanings()}\n{told}"


def _meanings() -> str:
    """What each signal is; a site's rows may change its number and its window, not that."""
    rows = load_thresholds()
    return "\n".join(f"  {name}: {rows.signal(name).means}" for name in SIGNALS)


def exclude_reasons(view: Mapping[str, Any]) -> Iterator[str]:
    """Lines for people, beside the list."""
    if not view["nodes"]:
        yield f"{_NOBODY}; nothing to exclude"
    for one in view["nodes"]:
        yield f"{one['node']}: {one['reason']}; until {one['until']}, then make the list again"
    for one in view["left_out"]:
        yield f"{one['node']}: flagged too, not in the list (exclude.share, exclude.nodes): {one['reason']}"


def _machines(store: Any, now: float, thresholds: Thresholds) -> Iterator[Machine]:
    """With all that a look at ``now`` may go back to: a period and the one before."""
    windows = [thresholds.signal(name).window_d or 0.0 for name in SIGNALS]
    found: Iterator[Machine] = store.machines(since=now - max(2 * thresholds["blame.period_d"], *windows) * DAY)
    return found


def _node(machine: Machine, now: float, thresholds: Thresholds, excluded_since: float | None) -> dict[str, Any]:
    """Nulls until `suspicions` tells more: of a machine that no stored run had nothing was observed."""
    return {
        "node": machine.node,
        "identity": machine.identity,
        **dict.fromkeys(("hours", "evidence", "expected", "chance", "q", "flagged")),
        "action": "none",
        "signals": [asdict(one) for one in signals(machine, now, thresholds, excluded_since=excluded_since)],
    }


def _reason(one: Suspicion) -> str:
    return f"{one.evidence:.3g} runs lost, {one.expected:.2g} expected of nodes like it (q {one.q:.2g})"


def _cells(node: Mapping[str, Any]) -> list[str]:
    numbers = [_number(node[key], form) for key, form in _FORMS.items()]
    return [visible(node["node"]), *numbers, node["action"], *(_signal(Signal(**one)) for one in node["signals"])]


_FORMS = {"hours": ".0f", "evidence": ".3g", "expected": ".2g", "chance": ".2g", "q": ".2g"}


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _signal(signal: Signal) -> str:
    return _number(signal.value, ".3g") + ("*" if signal.raised else "")
