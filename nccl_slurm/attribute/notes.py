"""What the lines tell beside the verdict: inits that stopped midway, other paths, versions and settings, clocks.

Hints about settings: they name nobody as a culprit, and nothing here changes a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from nccl_slurm.attribute import advice, pace
from nccl_slurm.attribute.finding import cite
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.hosts import fold, fold_numbers
from nccl_slurm.info import communicator as inits
from nccl_slurm.info import path as paths
from nccl_slurm.info import setting
from nccl_slurm.info.communicator import COMPLETE, START, Communicator, communicators
from nccl_slurm.info.difference import differences
from nccl_slurm.info.path import changes, odd_paths, pair, path
from nccl_slurm.info.setting import READ_BY_NCCL
from nccl_slurm.info.split import Split
from nccl_slurm.info.teller import told
from nccl_slurm.info.version import tells_version
from nccl_slurm.model import Fact, Inference, Verdict

__all__ = ["notes"]

#: Notes of one kind; a cluster without a common image differs in everything.
EACH_MAX = 6
#: Less than this orders nothing that `first_failure.MARGIN_S` would not leave open.
CLOCK_OFF_S = 1.0
_VALUES_MAX = 4
#: Characters of a path in a traceback.
_PLACE_MAX = 200
_VALUE_SHOWN = 60
_HINT = "A hint, no proof."


def notes(scene: Scene, verdict: Verdict) -> tuple[Inference, ...]:
    """In the order of a start: inits, paths, versions and settings; then the clocks. Never raises."""
    ways = _placed(scene, lambda fact: fact.kind in inits.KINDS | paths.KINDS)
    values = _placed(scene, lambda fact: fact.kind in setting.KINDS or tells_version(fact))
    return (
        *_inits(scene, ways),
        *_paths(scene, ways),
        *_earlier(scene, ways),
        *_differences(scene, values),
        *(pace.notes(scene) if verdict.failure_class != "straggler" else ()),
        *_places(scene),
        *advice.advice(scene, verdict),
        *_clocks(scene),
    )


def _placed(scene: Scene, wanted: Callable[[Fact], bool]) -> list[Fact]:
    """Of such sorts, with hosts as the run's nodes are called; a host outside the run tells nothing about it."""
    facts = scene.sorts.where(wanted)
    nodes = {host: scene.node(host) for host in {fact.host for fact in facts}}
    return [fact if nodes[fact.host] == fact.host else replace(fact, host=nodes[fact.host]) for fact in facts]


def _places(scene: Scene) -> Iterator[Inference]:
    """Where in the program tracebacks end: lines of code that were printed, as facts carry them."""
    found: dict[tuple[str, str], list[Fact]] = {}
    for fact in scene.sorts.having("raised_at"):
        if fact.rank is not None:
            found.setdefault((str(fact.data["raised_at"]), str(fact.data.get("raised_in", ""))), []).append(fact)
    for (at, call), facts in list(found.items())[:EACH_MAX]:
        ranks = {fact.rank for fact in facts if fact.rank is not None}
        who = f"The traceback of {told(ranks)} ends" if len(ranks) == 1 else f"Tracebacks of {told(ranks)} end"
        inside = f", inside torch.distributed's {call}" if call.isidentifier() else ""
        yield Inference(f"{who} at {at[:_PLACE_MAX]}{inside}.", "place.told", _cited(facts))


def _inits(scene: Scene, lines: Sequence[Fact]) -> Iterator[Inference]:
    """Nothing is said where lines of inits were left out: what is absent may have been among them."""
    if not (_whole(scene, START) and _whole(scene, COMPLETE)):
        return
    open_ones = [one for one in communicators(lines) if one.stopped]
    for one in open_ones[:EACH_MAX]:
        facts = [one.began[rank] for rank in one.stopped]
        yield Inference(_init(scene, one), "init.stopped", _cited(facts))
    if len(open_ones) > EACH_MAX:
        facts = [fact for one in open_ones[EACH_MAX:] for fact in one.began.values()]
        text = f"{len(open_ones) - EACH_MAX} more communicators were begun and not finished."
        yield Inference(text, "init.stopped", _cited(facts))


def _init(scene: Scene, one: Communicator) -> str:
    where = _hosts(scene)
    began = told((one.who(rank) for rank in one.stopped), where)
    ended = f"finished on {len(one.ended)}" if one.ended else "finished on none"
    text = f"Communicator {one.name} of {one.size} ranks: init began on {len(one.began)}, {ended}; open on {began}"
    unseen = one.unseen
    which = f"its rank{'s' if len(unseen) > 1 else ''} {fold_numbers(unseen)}"
    return f"{text}; no Init line of {which}." if unseen else f"{text}."


def _paths(scene: Scene, lines: Sequence[Fact]) -> Iterator[Inference]:
    for odd in odd_paths(lines, whole=_whole(scene, "nccl.channel"))[:EACH_MAX]:
        inside = f" in communicator {odd.communicators[0]}" if odd.communicators else ""
        inside += f" and {len(odd.communicators) - 1} more" if len(odd.communicators) > 1 else ""
        way = path(odd.facts[0])
        line = f" First: {pair(odd.facts[0])} via {way}." if way else ""
        text = f"Nodes differ in {odd.what}{inside}: {_values(scene, odd.split)}.{line} {_HINT}"
        yield Inference(text, "path.differs", _cited(odd.facts))


def _earlier(scene: Scene, lines: Sequence[Fact]) -> Iterator[Inference]:
    """Only root knows that the machines are the same, so this comes with a job alone."""
    before = scene.evidence.earlier
    for one in changes(before.ways, lines)[:EACH_MAX] if before else ():
        job = f"job {before.job}{f' run {before.run}' if before.run > 1 else ''}" if before else ""
        was, now = (" + ".join(values[:_VALUES_MAX])[: 2 * _VALUE_SHOWN] for values in (one.before, one.now))
        text = f"{fold(one.hosts)}: {one.what} was {was} in {job} on the same nodes, and is {now} now."
        yield Inference(f"{text} {_HINT}", "path.earlier", _cited(one.facts))


def _differences(scene: Scene, lines: Sequence[Fact]) -> Iterator[Inference]:
    found = differences(lines, whole=_whole(scene, READ_BY_NCCL))
    for one in found[:EACH_MAX]:
        kind = "The version of " if one.kind == "version" else ""
        text = f"{kind}{one.name} differs: {_values(scene, one.split)}. {_HINT}"
        yield Inference(text, f"{one.kind}.differs", _cited(one.facts))
    if len(found) > EACH_MAX:
        names = ", ".join(one.name[:_VALUE_SHOWN] for one in found[EACH_MAX : EACH_MAX + 8])
        text = f"{len(found) - EACH_MAX} more versions or settings differ: {names}."
        yield Inference(text, "setting.differs", _cited([fact for one in found[EACH_MAX:] for fact in one.facts[:1]]))


def _clocks(scene: Scene) -> Iterator[Inference]:
    """Nodes whose clock was off by more than its measuring may be."""
    off = [
        (node, offset, error)
        for node in scene.evidence.nodes
        if (offset := node.clock_offset_s) is not None
        and (error := node.clock_error_s) is not None
        and abs(offset) - error > CLOCK_OFF_S
    ]
    for node, offset, error in sorted(off, key=lambda one: -abs(one[1]))[:EACH_MAX]:
        way = "ahead of" if offset > 0 else "behind"
        text = f"{node.name}'s clock was {abs(offset):.0f} s {way} the controller's, give or take {error:.1f} s"
        yield Inference(f"{text}: its times are compared with that taken off, and printed as they were.", "clock.off")


def _values(scene: Scene, split: Split) -> str:
    """``22 on ranks 0-6, 18 on rank 7 (n2) (odd: rank 7 (n2))``."""
    where = _hosts(scene)
    shown = list(split.values.items())[:_VALUES_MAX]
    parts = [f"{value[:_VALUE_SHOWN] or 'empty'} on {told(who, where)}" for value, who in shown]
    more = f", {len(split.values) - _VALUES_MAX} more values" if len(split.values) > _VALUES_MAX else ""
    odd = f" (odd: {told(split.odd, where)})" if split.odd else ""
    return ", ".join(parts) + more + odd


def _hosts(scene: Scene) -> dict[int, str]:
    return {rank: row.host for rank, row in scene.table.items() if row.host}


def _whole(scene: Scene, kind: str) -> bool:
    """No gap says that lines of this kind were left out (on a node: ``n1: nccl.env``)."""
    return not any(gap.source == kind or gap.source.endswith(f": {kind}") for gap in scene.evidence.gaps)


def _cited(facts: Sequence[Fact]) -> tuple[str, ...]:
    """The strange ones and one or two of the usual: they stand first and last."""
    return cite([*facts[:6], *facts[6:][-2:]])
