"""The kernel's own words in the window: Xids by the class of their code, OOM kills, panics, lockups, machine checks.

A user chooses names that the kernel quotes, so lines are read by `parse.kernel`, which believes only records that begin
with a driver's own form. What each is worth is in data/xid.toml and data/faults.toml, as in the recommendations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nccl_slurm.clock import rfc3339
from nccl_slurm.doctor.check import Finding, NotObserved, Priority, Proof
from nccl_slurm.doctor.checks.node import machine
from nccl_slurm.doctor.checks.node.gpu import gpus_or_none
from nccl_slurm.doctor.checks.node.look import Look, NodeCheck
from nccl_slurm.doctor.table import table
from nccl_slurm.model import Fact
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.recommend.fault import of_fact
from nccl_slurm.recommend.judgement import IMEX_DOMAIN, REBOOTS, RECOVERIES, Judgement, judge
from nccl_slurm.recommend.policy import default

__all__ = ["CHECKS"]

#: A job's first lines and the kernel's clock may differ by so much.
_SLACK_S = 60.0
#: What a job left behind on a node ends after it: its processes are killed, its GPUs are reset.
_AFTER_S = 300.0
_GPU = ("kernel.xid", "kernel.sxid", "kernel.sxid-nonfatal", "kernel.gpu-lost", "kernel.gpu-init", "kernel.inforom")
_OOM = ("kernel.oom", "kernel.oom-cgroup")
#: Beside what the decision table says: a kernel in such a state runs no job.
_BROKEN = ("kernel.panic", "kernel.lockup")
_SYSTEM = (
    *_BROKEN,
    "kernel.hung-task",
    "kernel.machine-check",
    "kernel.storage",
    "kernel.link-down",
    "kernel.nic-health",
)
_HEAVY = ("reboot", "replace")
_TIMES = 40
#: ``gpu_recovery_action`` (nvidia-smi): None, GPU Reset, Node Reboot, Drain P2P, Drain and Reset, GPU Unavailable.
_ASKED = re.compile(r"reset|reboot|drain|unavailable|reload|recover")
_ASKS_NOTHING = ("none", "n/a", "[n/a]", "", "not supported", "[not supported]", "no action")
#: Errors that the hardware put right by itself: words of AER, of the firmware (GHES), of machine checks and of EDAC.
_CORRECTED = re.compile(
    r"corrected error|correctable error|severity[=:] ?correct|type: ?corrected|corrected by h/w|no action req"
    r"|\b\d+ CE\b|\|CE\|",
    re.IGNORECASE,
)
_UNCORRECTED = re.compile(r"uncorrect|fatal|\b\d+ UE\b|\|UE\||\|UC\||deferred error", re.IGNORECASE)
#: What the kernel says beside the decoded lines, or in their place where a daemon takes them (mce_notify_irq).
_LOGGED = re.compile(r"machine check events? logged", re.IGNORECASE)
#: The bank's status word, of which bit 61 says that the error was not corrected (Intel SDM 3B, MCi_STATUS; AMD's too).
_BANK = re.compile(r"Machine Check(?: Exception)?: [0-9a-f]{1,16} Bank [0-9]{1,3}: ([0-9a-f]{16})\b", re.IGNORECASE)
_UC = 1 << 61
#: Lines of one error follow one another.
_SAME_S = 2.0
_DAY_S = 86400.0


def _xids(look: Look) -> Iterator[Finding]:
    if machine.has_gpus(look.seen) is False:
        yield look.not_applicable("this machine has no NVIDIA GPU")
        return
    facts = _facts(look, _GPU)
    asked = [*_recovery(look), *_verdicts(look, [fact for fact in facts if fact.data.get("recovery") is not None])]
    yield from asked
    told: dict[tuple[str, Priority], list[Judgement]] = {}
    for one in judge((of_fact(fact) for fact in facts), default()):
        priority = _weight(one)
        if priority is not None:
            told.setdefault((_what(one), priority), []).append(one)
    for (what, priority), group in sorted(told.items(), key=lambda item: (item[0][1], item[1][0].fault.time or 0.0)):
        yield _of_gpu(look, what, priority, group)
    lost = _lost(look)
    if not told and not lost and not any(one.status in ("FAIL", "WARN") for one in asked):
        quiet = len(facts)
        more = f"; {quiet} lines that ask for nothing" if quiet else ""
        yield look.passed(f"no Xid that asks for a step {machine.window(look.seen)[1]}{more}")
    yield from lost


def _weight(one: Judgement) -> Priority | None:
    """By the step that the decision table asks for. None: it follows another line, or NVIDIA says to ignore it."""
    if one.action in _HEAVY:
        return "P0"
    if one.action in ("none", "unknown"):
        return None
    return "P1" if one.hardware else "P2"


def _what(one: Judgement) -> str:
    fault = one.fault
    if fault.code is None:
        return fault.name.removeprefix("kernel.")
    known = default().xids.get(fault.code)
    return f"Xid {fault.code}" + (f" ({known.mnemonic})" if known and known.mnemonic else "")


def _of_gpu(look: Look, what: str, priority: Priority, group: Sequence[Judgement]) -> Finding:
    first = group[0]
    where = sorted({one.fault.gpu or "?" for one in group})
    proofs = [Proof("kernel log", one.fault.text) for one in group[:_TIMES]]
    since = min((one.fault.time for one in group if one.fault.time is not None), default=None)
    values = {"gpu": where[0], "xid": str(first.fault.code or ""), "action": first.action}
    if priority == "P0":
        return look.fail(priority, f"{what}: a fault of the hardware", *proofs, since=since, values=values)
    meant = "a program's fault, unless it comes back on this GPU" if first.action == "fix-code" else "worth a look"
    return look.warn(priority, f"{what}: {meant}", *proofs, since=since, values=values)


def _recovery(look: Look) -> Iterator[Finding]:
    """The driver's own verdict of now: one word from driver 565 on, two flags in those before."""
    for gpu in gpus_or_none(look) or ():
        word = (gpu.recovery or "none").strip().lower()
        proof = machine.smi_proof(f"{gpu.bus} gpu_recovery_action: {gpu.recovery}")
        if gpu.lost:
            proof = machine.smi_proof(f"{gpu.bus}: {gpu.lost}")
            yield look.fail("P0", f"{gpu.label}: the driver says: {gpu.lost}", proof, gpu=gpu.bus or "")
        elif _ASKED.search(word):
            yield look.fail("P0", f"{gpu.label}: the driver asks for: {gpu.recovery}", proof, gpu=gpu.bus or "")
        elif gpu.resets:
            words = " and ".join(name.replace("_", " ") for name in gpu.resets)
            proofs = [machine.smi_proof(f"{gpu.bus} gpu_reset_status/{name}: Yes") for name in gpu.resets]
            yield look.fail("P0", f"{gpu.label}: the driver says: {words}", *proofs, gpu=gpu.bus or "")
        elif word not in _ASKS_NOTHING:
            yield look.unknown(f"{gpu.label}: the driver's word on a recovery is not known: {gpu.recovery}", proof)


def _verdicts(look: Look, facts: Sequence[Fact]) -> Iterator[Finding]:
    """The driver's verdicts that the kernel logged (Xid 154), GPU by GPU: they stand until it takes them back. What
    nvidia-smi tells now is judged by `_recovery`, and more than that where it tells nothing."""
    now = {gpu.bus: gpu for gpu in gpus_or_none(look) or ()}
    by_gpu: dict[str, list[Fact]] = {}
    for fact in facts:
        by_gpu.setdefault(of_fact(fact).pci or "?", []).append(fact)
    for bus, told in by_gpu.items():
        asked = [fact for fact in told if fact.data["recovery"]]
        gpu = now.get(bus)
        if asked and not (gpu is not None and (gpu.resets or _ASKED.search((gpu.recovery or "").lower()))):
            back = not told[-1].data["recovery"]
            silent = gpu is not None and (gpu.recovery or "").lower() == "none"
            yield _verdict(look, bus, asked[-1], back=back, silent=silent)


def _verdict(look: Look, bus: str, fact: Fact, *, back: bool, silent: bool) -> Finding:
    """``back``: the log takes it back, by a reset of which nobody tells whether it mended the GPU. ``silent``:
    nvidia-smi asks for nothing now, as it does after the driver was loaded anew. The log is of one boot: where a reboot
    was asked for, none came."""
    number, word = fact.data["recovery"], fact.data.get("recovery_text")
    proof, values = Proof("kernel log", fact.text), {"gpu": bus, "xid": "154"}
    text = f"GPU {bus}: the driver asked for: {word} (Xid 154)"
    if (back or silent) and number not in REBOOTS:
        text = f"{text}, and does not any more: whether a reset mended it is not told"
        return look.warn("P2" if back else "P1", text, proof, since=fact.time, values=values)
    if back:
        text = f"{text}, and took it back without a reboot"
        return look.warn("P1", text, proof, since=fact.time, values=values)
    if number == IMEX_DOMAIN:
        return look.warn("P1", f"{text}: of its IMEX domain", proof, since=fact.time, values=values)
    if number not in RECOVERIES:
        return look.warn("P1", f"{text}, which is not known", proof, since=fact.time, values=values)
    return look.fail("P0", text, proof, since=fact.time, values=values)


def _oom(look: Look) -> Iterator[Finding]:
    """A matter of the job, and not of the node: it wanted more memory than it had."""
    facts = _facts(look, _OOM)
    kills = [fact for fact in facts if fact.kind == "kernel.oom"] or facts
    if kills:
        names = sorted({str(fact.data.get("name", "?"))[:40] for fact in kills})
        proofs = [Proof("kernel log", fact.text) for fact in kills]
        text = f"the kernel ended programs for want of memory: {', '.join(names[:4])}"
        yield look.warn("P1", text, *proofs, since=kills[0].time, times=str(len(kills)))
    elif not _lost(look):
        yield look.passed(f"no program was ended for want of memory {machine.window(look.seen)[1]}")
    yield from _lost(look)


def _system(look: Look) -> Iterator[Finding]:
    facts = [fact for fact in _facts(look, _SYSTEM) if not _is_of_the_start(look, fact)]
    judged = zip(facts, judge((of_fact(fact) for fact in facts), default()), strict=True)
    groups: dict[tuple[str, str, Priority | None], list[Fact]] = {}
    mended = _mended(facts)
    often: Priority = "P1" if _grows([fact for fact in facts if id(fact) in mended]) else "P2"
    for fact, one in judged:
        if id(fact) in mended:
            groups.setdefault((_MENDED, one.action, often), []).append(fact)
            continue
        broken = fact.kind in _BROKEN or one.action in _HEAVY
        weight: Priority | None = "P0" if broken else None if one.action in ("none", "unknown") else "P1"
        groups.setdefault((fact.kind, one.action, weight), []).append(fact)
    wrong = {key: group for key, group in groups.items() if key[2] is not None}
    for (kind, action, weight), group in wrong.items():
        proofs = [Proof("kernel log", fact.text) for fact in group]
        text, since = f"{_WORDS[kind]} in the kernel log", group[0].time
        text += ", again and again" if (kind, weight) == (_MENDED, "P1") else ""
        if weight == "P0":
            yield look.fail("P0", text, *proofs, since=since, action=action, times=str(len(group)))
        else:
            yield look.warn(weight or "P1", text, *proofs, since=since, action=action, times=str(len(group)))
    if not wrong and not _lost(look):
        yield look.passed(f"no panic, lockup, hung task, machine check or lost link {machine.window(look.seen)[1]}")
    yield from _lost(look)


def _mended(facts: Sequence[Fact]) -> set[int]:
    """``id`` of lines that tell of corrected errors. A line that tells no severity goes with those beside it; that
    machine checks were logged, alone, is said of those that the kernel went on after."""
    checks = [fact for fact in facts if fact.kind == "kernel.machine-check"]
    told = [(fact.time or 0.0, _is_uncorrected(fact.text), bool(_LOGGED.search(fact.text))) for fact in checks]
    heavy = [at for at, uncorrected, _ in told if uncorrected]
    light = [at for at, uncorrected, _ in told if uncorrected is False]
    untold = [at for at, uncorrected, logged in told if uncorrected is None and not logged]
    found: set[int] = set()
    for fact, (at, uncorrected, logged) in zip(checks, told, strict=True):
        beside = _near(at, light) and not _near(at, heavy)
        alone = logged and not _near(at, heavy) and not _near(at, untold)
        if uncorrected is False or (uncorrected is None and (beside or alone)):
            found.add(id(fact))
    return found


def _is_uncorrected(text: str) -> bool | None:
    """By its words, or by the status of a machine check's bank; None: it tells neither."""
    bank = _BANK.search(text)
    if bank:
        return bool(int(bank.group(1), 16) & _UC)
    return True if _UNCORRECTED.search(text) else False if _CORRECTED.search(text) else None


def _near(at: float, times: Iterable[float]) -> bool:
    return any(abs(at - other) <= _SAME_S for other in times)


def _grows(facts: Iterable[Fact]) -> bool:
    """Whether so many corrected errors, each with its lines, were within one day."""
    starts: list[float] = []
    for at in sorted(fact.time or 0.0 for fact in facts):
        if not starts or at - starts[-1] > _SAME_S:
            starts.append(at)
    most = int(table()["corrected-per-day"])
    return any(last - first <= _DAY_S for first, last in zip(starts, starts[most - 1 :], strict=False))


def _is_of_the_start(look: Look, fact: Fact) -> bool:
    """Links go down and up while drivers load, and unused ones stay down."""
    boot = look.seen.boot_time
    return (
        fact.kind == "kernel.link-down" and fact.time is not None and fact.time < boot + default().limit("fresh-boot-s")
    )


_MENDED = "corrected"
_WORDS = {
    _MENDED: "errors that the hardware corrected by itself",
    "kernel.panic": "a panic or a fault of the kernel itself",
    "kernel.lockup": "CPUs that hang",
    "kernel.hung-task": "tasks that wait for minutes (disk, network file system, or a GPU driver)",
    "kernel.machine-check": "hardware errors",
    "kernel.storage": "errors of storage",
    "kernel.link-down": "network links that went down",
    "kernel.nic-health": "a network card that reports itself sick",
}


def _log(look: Look) -> Mapping[str, Any]:
    told = machine.reader(look.seen, "kernel")
    if not isinstance(told.get("lines"), list):
        raise NotObserved("kernel: the node's answer is none")
    return told


def _facts(look: Look, kinds: Sequence[str]) -> list[Fact]:
    """Of these kinds and inside the window, in order of time."""
    records = [
        (float(line[0]), str(line[1]))
        for line in _log(look)["lines"]
        if isinstance(line, list) and len(line) == 2 and isinstance(line[0], (int, float))
    ]
    start = machine.window(look.seen)[0] - _SLACK_S
    end = float("inf") if look.seen.until is None else look.seen.until + _AFTER_S
    inside = ((at, text) for at, text in records if start <= at <= end)
    found = kernel_facts(inside, look.seen.node, machine.pattern_rows())
    return [fact for fact in found if fact.kind in kinds]


def _lost(look: Look) -> list[Finding]:
    """Lines that are gone or were not read may have been the ones that matter."""
    return [*_before_the_boot(look), *_lost_since(look)]


def _before_the_boot(look: Look) -> list[Finding]:
    """Only this boot's log is read: of a longer window it tells a part."""
    start, boot = machine.window(look.seen)[0], look.seen.boot_time
    if start >= boot - _SLACK_S:
        return []
    proof = Proof("kernel log", f"begins at {rfc3339(boot)}")
    return [look.unknown("the kernel's log begins with this boot: what was before is not known", proof)]


def _lost_since(look: Look) -> list[Finding]:
    told = _log(look)
    start, first = machine.window(look.seen)[0], told.get("first")
    if told.get("part"):
        return [look.unknown(f"the kernel log was read in part: {str(told['part'])[:300]}")]
    if isinstance(first, (int, float)) and first > max(start, float(told.get("boot") or 0.0)) + 5 * _SLACK_S:
        return [look.unknown("older lines of the kernel log are overwritten, or too many: what they said is not known")]
    kept = next((line[0] for line in told["lines"] if isinstance(line, list) and line), None)
    if told.get("cut") and not (isinstance(kept, (int, float)) and kept < start - _SLACK_S):
        return [look.unknown("there are more kernel lines of drivers than are read: the oldest are left out")]
    return []


CHECKS: Iterable[NodeCheck] = (
    NodeCheck(
        "node.xid",
        "No Xid that asks for a step",
        ("kernel", *machine.GPU_SOURCES),
        _xids,
        explains=("node.gpu-count", "node.nvlink", "node.p2p-topology", "node.dcgm", "node.ecc"),
    ),
    NodeCheck("node.oom", "No program ended for want of memory", ("kernel",), _oom),
    NodeCheck("node.kernel", "The kernel is well", ("kernel",), _system),
)
