"""Whose clock ran out, and what changes that one and no other.

NCCL_TIMEOUT, which much advice names, is read by nothing. One setting at a time, and only of the layer that spoke;
where a rank is proven to have stopped, no timeout is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.finding import cite
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.info import timeout
from nccl_slurm.info.timeout import Layer, Timeout
from nccl_slurm.model import Fact, Inference, Verdict

__all__ = ["advice"]

_RENDEZVOUS = frozenset({"elastic.rendezvous-timeout"})
_CLIENT = "torch.client-timeout"
_STORE = frozenset({"torch.store-wait", "torch.workers-wait", _CLIENT})
_NO_FAILURE = ("preempt-cancel", "benign", "benign-teardown")
_CITED = 4

#: Layer → lines that say that its clock ran out. In this order: a layer below ends the wait of those above, and a
#: heartbeat may be lost while a group is torn down.
_FIRED: tuple[tuple[Layer, Callable[[Scene], list[Fact]]], ...] = (
    (timeout.RETRIES, lambda scene: [fact for fact in scene.sorts.of_kind(timeout.GAVE_UP) if timeout.gave_up(fact)]),
    (timeout.RENDEZVOUS, lambda scene: scene.sorts.of_kind(*_RENDEZVOUS)),
    (timeout.STORE, lambda scene: [fact for fact in scene.sorts.of_kind(*_STORE) if _store_waited(fact)]),
    (timeout.BARRIER, lambda scene: scene.sorts.of_kind(*reading.BARRIERS)),
    (timeout.GROUP, lambda scene: scene.wait_lines),
    (timeout.HEARTBEAT, lambda scene: scene.sorts.of_kind(*reading.HEARTBEAT)),
)
_WHEN = {
    timeout.RETRIES: "Look at the link first; more retries (each step of the exponent doubles them) only bridge short "
    "losses of the path.",
    timeout.RENDEZVOUS: "Raise it only where nodes are known to start late; else find out which one did not come.",
    timeout.STORE: "Raise it only where ranks are known to start late; else find out which one did not come.",
    timeout.BARRIER: "Raise it only where a rank is known to be late.",
    timeout.GROUP: "Raise it only where a rank is known to be late (saving, loading, compiling); for a rank that never "
    "comes it only costs more.",
    timeout.HEARTBEAT: "It watches torch's own watchdog thread, not the network: find what blocks that process (GIL, a "
    "CUDA call) first.",
}


def advice(scene: Scene, verdict: Verdict) -> Iterator[Inference]:
    clocks = timeout.telling(scene.sorts.having(timeout.KEY, wanted=lambda fact: fact.kind in timeout.KINDS))
    found = timeout.found(clocks)
    settings = timeout.of_settings(clocks)
    yield from _retries(settings)
    yield from _hidden(found)
    yield from _unread(settings)
    layer, facts = _fired(scene)
    if layer is not None and verdict.failure_class not in _NO_FAILURE:
        yield _one(layer, facts, found, verdict)
    elif layer is None and scene.ending.was and any("TIME LIMIT" in fact.text.upper() for fact in scene.ending.facts):
        text = "Slurm's time limit (sbatch --time) ended the run, no clock of NCCL or torch."
        yield Inference(text, "timeout.slurm", cite(scene.ending.facts)[:_CITED])


def _fired(scene: Scene) -> tuple[Layer | None, list[Fact]]:
    """The lowest layer whose clock ran out, and the lines that say so."""
    told = ((layer, lines(scene)) for layer, lines in _FIRED)
    return next(((layer, facts) for layer, facts in told if facts), (None, []))


def _store_waited(fact: Fact) -> bool:
    """A client's error is no time-out where it tells none."""
    return fact.kind != _CLIENT or "timeout_ms" in fact.data


def _one(layer: Layer, facts: Sequence[Fact], found: Sequence[Timeout], verdict: Verdict) -> Inference:
    values = [f"{one.seconds:g} s" for one in found if one.layer == layer]
    after = f" after {' and '.join(values[:3])}" if values else ""
    if verdict.culprits:
        text = (
            f"The clock of the {layer.name} ran out{after}; a longer one would only have made the others wait longer."
        )
        return Inference(text, "timeout.leave", cite(facts)[:_CITED])
    text = f"The clock that ran out{after} is that of the {layer.name}, set by {layer.setting}. {_WHEN[layer]}"
    return Inference(f"{text} Change one setting at a time.", "timeout.layer", cite(facts)[:_CITED])


def _retries(facts: Sequence[Fact]) -> Iterator[Inference]:
    for one in timeout.retries(facts)[:_CITED]:
        text = f"A queue pair gives up by its own clock: {one.formula}."
        yield Inference(text, "timeout.retries", cite(one.facts)[:_CITED])


def _hidden(found: Sequence[Timeout]) -> Iterator[Inference]:
    """The transport would speak last: the process group ends the wait before NCCL can name the path."""
    below = [one for one in found if one.layer == timeout.RETRIES]
    above = [one for one in found if one.layer == timeout.GROUP]
    if below and above and below[-1].seconds > above[0].seconds:
        text = (
            f"A queue pair may retry for {below[-1].seconds:.3g} s, longer than the process group waits "
            f"({above[0].seconds:g} s): a broken path then shows as a collective's timeout."
        )
        yield Inference(text, "timeout.hidden", cite([*below[-1].facts[:2], *above[0].facts[:2]]))


def _unread(clocks: Sequence[Fact]) -> Iterator[Inference]:
    for name, facts in timeout.unread(clocks).items():
        text = f"{name} is set, and neither NCCL nor torch reads it: the limit is {timeout.GROUP.setting}."
        yield Inference(text, "timeout.unread", cite(facts)[:_CITED])
