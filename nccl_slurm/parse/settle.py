"""Agents' words on failed workers against what the workers said themselves.

An agent sees an exit code. A worker that ended with 1 or SIGABRT because *another* rank was gone says so in its own
lines; then its exit is a consequence too, whatever the agent's table calls it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Iterable, Mapping

from nccl_slurm.model import Fact

__all__ = ["settle"]

_OWN_WORD = ("python", "torch", "gloo", "cuda", "framework")
_ABORTED = -6
_KILLED = -9


def settle(facts: Iterable[Fact], forced: Iterable[tuple[str | None, Any]]) -> list[Fact]:
    """``forced``: (file, pid) of workers that the agent itself killed with SIGKILL."""
    facts = list(facts)
    forced = set(forced)
    ranks = {(one.file, one.data.get("pid")): one.rank for one in facts if one.kind == "elastic.failure"}
    said: dict[int, dict[str, str | None]] = {}
    for fact in facts:
        own = fact.producer in _OWN_WORD or fact.kind == "elastic.error-file"
        if own and fact.rank is not None and fact.role in ("cause", "consequence"):
            said.setdefault(fact.rank, {}).setdefault(fact.role, fact.hint)
    return [_settled(fact, ranks, said, forced) for fact in facts]


def _settled(
    fact: Fact,
    ranks: Mapping[tuple[str | None, Any], int | None],
    said: Mapping[int, Mapping[str, str | None]],
    forced: set[tuple[str | None, Any]],
) -> Fact:
    if fact.kind not in ("elastic.failure", "elastic.failed"):
        return fact
    who = (fact.file, fact.data.get("pid"))
    rank = fact.rank if fact.rank is not None else ranks.get(who)
    fact = replace(fact, rank=rank)
    code = fact.data.get("exitcode")
    if code == _KILLED and who in forced:
        return replace(fact, role="consequence")
    word = {} if rank is None else said.get(rank, {})
    if isinstance(code, int) and (code > 0 or code == _ABORTED) and "consequence" in word and "cause" not in word:
        return replace(fact, role="consequence", hint=word["consequence"])
    return fact
