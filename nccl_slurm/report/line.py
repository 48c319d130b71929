"""The one line for a job's comment.

Slurm's commands don't carry quotes through, ``sacct -P`` separates columns by ``|``, and the brackets are how the line
is found again and rewritten in place. So: ASCII, none of these inside, 256 bytes at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nccl_slurm.hosts import HOST
from nccl_slurm.report.visible import ascii_only
from nccl_slurm.report.words import detail, ending, happened, hosts_of, ranks_of

__all__ = ["COMMENT_MAX", "comment"]

#: Bytes, brackets included.
COMMENT_MAX = 256

_JOB_ID = re.compile(r"\d{1,10}(?:[_+]\d{1,10})?\Z")
_FORBIDDEN = re.compile("['\"`|\\[\\]\\\\\\n\\r]")
_RANKS_MAX = 40
_HOST_SHORT = 60


def comment(report: Mapping[str, Any], *, run: int | None = None) -> str | None:
    """``[nccl-slurm: ...; report 4711]``, or None where nothing was judged or the job has no usable id.

    ``run`` is given for a run that is not the job's newest: ``report 4711 --run 1``.
    """
    where = _where(report["job"], run)
    if report["verdict"] is None or where is None:
        return None
    action = _action(report)
    for parts in ([_what(report, 255), action, where], [_what(report, _HOST_SHORT), where]):
        parts = [*_live(report), *parts]
        line = f"[nccl-slurm: {'; '.join(_clean(part) for part in parts if part)}]"
        if len(line) <= COMMENT_MAX:
            return line
    return f"[nccl-slurm: {'; '.join([*_live(report), report['verdict']['class'], where])}]"


def _live(report: Mapping[str, Any]) -> list[str]:
    """The job still runs: its end may show something else."""
    return ["live"] if report.get("status") == "live" else []


def _where(job: Mapping[str, Any], run: int | None) -> str | None:
    candidates = (str(job["id"] or ""), str(job["raw_id"] or ""))
    number = next((text for text in candidates if _JOB_ID.match(text)), None)
    if number is None:
        return None
    return f"report {number}" if run is None else f"report {number} --run {run:d}"


def _what(report: Mapping[str, Any], host_max: int) -> str:
    verdict = report["verdict"]
    if verdict["culprits"]:
        return f"{_who(verdict['culprits'], host_max)} {happened(verdict['class'])} ({detail(report)})"
    ended = ending(report["job"]["state"])
    if verdict["class"] == "preempt-cancel" and ended:
        return f"{ended}, nobody proven"
    if verdict["class"] in ("benign", "benign-teardown"):
        return f"no failure seen ({verdict['class']})"
    return f"{verdict['class']}, nobody proven"


def _who(culprits: list[Mapping[str, Any]], host_max: int) -> str:
    ranks, hosts = ranks_of(culprits), hosts_of(culprits)
    if len(ranks) > _RANKS_MAX:
        ranks = f"{len({culprit['rank'] for culprit in culprits})} ranks"
    names = _cut(hosts[0], host_max) if len(hosts) == 1 else f"on {len(hosts)} nodes" if hosts else ""
    if not ranks and len(hosts) > 1:
        names = f"{_cut(hosts[0], host_max)} and {len(hosts) - 1} more nodes"
    return " ".join(part for part in (ranks, names) if part) or "someone"


def _action(report: Mapping[str, Any]) -> str:
    """The first recommendation, which is what history and guards left; a node only where a culprit is proven."""
    for item in report["recommendations"]:
        target = item["target"]
        if item["action"] in ("none", "unknown"):
            continue
        if target and report["verdict"]["culprits"] and HOST.match(target):
            return f"{item['action']} {target}"
        if not target:
            return str(item["action"])
    return ""


def _cut(name: str, limit: int) -> str:
    """A long name keeps its first label: sites tell nodes apart by it."""
    label = name if len(name) <= limit else name.split(".", 1)[0]
    return label if len(label) <= limit else label[: limit - 2] + ".."


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("_", ascii_only(text))
