"""The clocks that end a wait, each of its own layer, with the value found in the logs and where.

From the bottom: a queue pair's retries (InfiniBand, RoCE), the store and rendezvous, torch's heartbeat monitor, the
process group, Slurm. Each has another setting, and raising the wrong one changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from nccl_slurm.info.setting import KINDS as OF_SETTINGS
from nccl_slurm.info.setting import settings
from nccl_slurm.info.version import TOLD_BY, versions
from nccl_slurm.model import Fact

__all__ = [
    "GAVE_UP",
    "KEY",
    "KINDS",
    "LAYERS",
    "Layer",
    "Retries",
    "Timeout",
    "found",
    "gave_up",
    "of_settings",
    "retries",
    "telling",
    "unread",
]


@dataclass(frozen=True)
class Layer:
    """``setting`` is what changes it; ``default`` holds where nothing was set, in words with its versions."""

    name: str
    setting: str
    default: str


RETRIES = Layer(
    "InfiniBand retries",
    "NCCL_IB_TIMEOUT",
    "30 s by NCCL's documents (7.5 s from 2.14 to 2.22, 0.5 s before)",
)
STORE = Layer(
    "store",
    "timeout= of init_process_group or TCPStore (torchrun's own: read_timeout in --rdzv-conf)",
    "that of init_process_group (300 s for a TCPStore of one's own, 60 s for torchrun's)",
)
RENDEZVOUS = Layer("rendezvous", "join_timeout in torchrun's --rdzv-conf", "600 s")
BARRIER = Layer("monitored barrier", "timeout= of monitored_barrier", "that of its process group")
HEARTBEAT = Layer("heartbeat", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "480 s (600 s from torch 2.2 to 2.4)")
DUMP = Layer("flight recorder dump", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "15 s (60 s in older torch)")
GROUP = Layer("collective", "timeout= of init_process_group", "600 s for NCCL (1800 s before torch 2.2, and for gloo)")
STEP_END = Layer("end of a step", "Slurm's KillWait", "30 s; srun waits twice that and 2 s")
FIRST_EXIT = Layer("first exit of a task", "srun --wait", "Slurm's WaitTime, and without it no limit")

#: From the bottom up. ``collective`` is the process group's.
LAYERS = (RETRIES, STORE, RENDEZVOUS, BARRIER, HEARTBEAT, DUMP, GROUP, FIRST_EXIT, STEP_END)

_OF_KIND = {
    "torch.store-wait": STORE,
    "torch.client-timeout": STORE,
    "torch.workers-wait": STORE,
    "torch.barrier-failed": BARRIER,
    "torch.heartbeat": HEARTBEAT,
    "torch.dump-wait": DUMP,
    "slurm.ending": STEP_END,
    "slurm.first-exit": FIRST_EXIT,
}
#: Variable → its layer and how many of its unit make a second.
_OF_SETTING = {
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": (HEARTBEAT, 1),
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": (DUMP, 1000),
    "TORCH_FR_WAIT_TIMEOUT_DUMP_MILSEC": (DUMP, 1000),
}
#: Set in many scripts and read by nobody: in no source of NCCL 2.9 to 2.32, nor of torch, whose limit is ``timeout=``.
_UNREAD = frozenset({"NCCL_TIMEOUT"})

_NAMES = _UNREAD | {*_OF_SETTING, "NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"}
GAVE_UP = "nccl.ib-completion"
#: NCCL's version gives its default.
_KINDS = frozenset({*_OF_KIND, *TOLD_BY, "torch.environment", GAVE_UP})
_OF_SETTINGS = OF_SETTINGS | TOLD_BY | {GAVE_UP}
#: Kinds of lines that may bear on a clock, and the key of data that marks those of other kinds.
KINDS, KEY = _KINDS | OF_SETTINGS, "timeout_ms"

#: InfiniBand's local ACK timeout: 4.096 µs × 2^n (specification, volume 1, 12.7.34).
_TICK_S = 4.096e-6
_RETRY_COUNT = 7
_SECONDS_MAX = 1e12


@dataclass(frozen=True)
class Timeout:
    """``facts``: the lines that say so."""

    layer: Layer
    seconds: float
    facts: Sequence[Fact]


@dataclass(frozen=True)
class Retries:
    """How long a queue pair tries before it reports status 12.

    ``seconds`` counts as NCCL's documents do: ``count`` waits. The wait for the first attempt comes on top, and an
    adapter may wait longer than asked. None: for ever.
    """

    exponent: int
    count: int
    seconds: float | None
    facts: Sequence[Fact]

    @property
    def formula(self) -> str:
        if self.seconds is None:
            return f"NCCL_IB_TIMEOUT={self.exponent} is no limit at all"
        first = self.seconds + _period(self.exponent)
        product = f"4.096 µs × 2^{self.exponent} × {self.count} retries = {self.seconds:.3g} s"
        return f"{product} ({first:.3g} s with the first attempt)"


def telling(facts: Iterable[Fact]) -> list[Fact]:
    """The lines that bear on a clock: a run of 16,384 ranks has a hundred times as many that don't."""
    return [fact for fact in facts if fact.kind in _KINDS or KEY in fact.data or fact.data.get("name") in _NAMES]


def of_settings(facts: Iterable[Fact]) -> list[Fact]:
    """Those of which a setting is read, or what it is without one: most others repeat a process group's timeout."""
    return [fact for fact in facts if fact.kind in _OF_SETTINGS]


def found(clocks: Sequence[Fact]) -> list[Timeout]:
    """Layer by layer from the bottom, each value once. ``clocks``: of `telling`."""
    lines: dict[tuple[Layer, float], list[Fact]] = {}
    for layer, seconds, fact in _values(clocks):
        if 0 <= seconds < _SECONDS_MAX:
            lines.setdefault((layer, seconds), []).append(fact)
    ordered = sorted(lines.items(), key=lambda item: (LAYERS.index(item[0][0]), item[0][1]))
    return [Timeout(layer, seconds, words) for (layer, seconds), words in ordered]


def retries(facts: Sequence[Fact]) -> list[Retries]:
    """One for each value found; by NCCL's default where only the version is known and a queue pair gave up."""
    facts = of_settings(facts)
    exponents, counts = _numbers(facts, "NCCL_IB_TIMEOUT"), _numbers(facts, "NCCL_IB_RETRY_CNT")
    if not exponents and not counts and not any(gave_up(fact) for fact in facts):
        return []
    version = _default_exponent(facts)
    if not exponents and version is not None:
        exponents = {version[0]: [version[1]]}
    count, count_lines = next(iter(counts.items()), (_RETRY_COUNT, []))
    if len(counts) > 1:
        return []
    return [_retries(exponent, count, [*lines, *count_lines]) for exponent, lines in sorted(exponents.items())]


def unread(facts: Iterable[Fact]) -> dict[str, list[Fact]]:
    """Variables that the job sets and nothing reads → where."""
    lines: dict[str, list[Fact]] = {}
    for name, _, fact in settings(facts):
        if name in _UNREAD:
            lines.setdefault(name, []).append(fact)
    return lines


def gave_up(fact: Fact) -> bool:
    """Status 12: transport retry counter exceeded."""
    return fact.kind == GAVE_UP and fact.data.get("status") == 12


def _values(facts: Sequence[Fact]) -> Iterator[tuple[Layer, float, Fact]]:
    for fact in facts:
        layer = _OF_KIND.get(fact.kind)
        if type(milliseconds := fact.data.get(KEY)) is int:  # nearly all of them
            yield layer or GROUP, milliseconds / 1000, fact
            continue
        if layer is None and KEY not in fact.data:
            continue
        milliseconds = _real(fact, KEY, "ms")
        if milliseconds is not None:
            yield layer or GROUP, milliseconds / 1000, fact
        elif layer and (seconds := _real(fact, "seconds", "wait")) is not None:
            yield layer, seconds, fact
    few = of_settings(facts)
    for name, value, fact in settings(few):
        if name in _OF_SETTING and value.isdecimal():
            layer, unit = _OF_SETTING[name]
            yield layer, int(value[:18]) / unit, fact
    for one in retries(few):
        for fact in one.facts:
            if one.seconds is not None:
                yield RETRIES, one.seconds, fact


def _real(fact: Fact, *keys: str) -> float | None:
    for key in keys:
        value = fact.data.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def _numbers(facts: Iterable[Fact], wanted: str) -> dict[int, list[Fact]]:
    lines: dict[int, list[Fact]] = {}
    for name, value, fact in settings(facts):
        if name == wanted and value.isdecimal() and len(value) < 4:
            lines.setdefault(int(value), []).append(fact)
    return lines


def _default_exponent(facts: Iterable[Fact]) -> tuple[int, Fact] | None:
    """NCCL's default by its version: 14, from 2.14 on 18, from 2.23 on 20. None where no version tells, or two do."""
    told = {version: fact for component, version, fact in versions(facts) if component == "nccl"}
    defaults = {exponent: fact for version, fact in told.items() if (exponent := _exponent_of(version)) is not None}
    return next(iter(defaults.items())) if len(defaults) == 1 else None


def _exponent_of(version: str) -> int | None:
    numbers = version.split(".")[:2]
    if len(numbers) < 2 or not all(number.isdecimal() and len(number) < 5 for number in numbers):
        return None
    release = (int(numbers[0]), int(numbers[1]))
    return 20 if release >= (2, 23) else 18 if release >= (2, 14) else 14


def _retries(exponent: int, count: int, facts: Sequence[Fact]) -> Retries:
    """NCCL's documents: 0 and from 32 on is infinite."""
    endless = not 0 < exponent < 32
    return Retries(exponent, count, None if endless else _period(exponent) * count, facts)


def _period(exponent: int) -> float:
    return float(_TICK_S * 2**exponent)
