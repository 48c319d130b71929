"""What the machine's own words prove: kernel events, Slurm's node states, out-of-memory kills.

Only facts of trust root count: a job can print ``Xid 79``. Logs given by hand without a job are another matter: there
a file of nothing but kernel lines is the admin's own copy of a kernel log. It is believed as to what happened, never as
to what to do with the node. Such a copy spans weeks and may be of any machine: what it says counts where the job's own
lines have such a time, and don't place all ranks elsewhere.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.clocks import UNMEASURED_S, ZONES_S, Moment
from nccl_slurm.attribute.finding import Finding, action_of, cite
from nccl_slurm.attribute.scene import Scene
from nccl_slurm.model import Culprit, Fact

__all__ = ["HARDWARE", "app_faults", "hardware", "hints", "node_failed", "out_of_memory", "pasted", "printed", "signs"]

#: Classes that blame a machine.
HARDWARE = frozenset({"gpu-hw-ecc", "gpu-hw-lost", "nvlink-fabric"})
#: The least action that a root-trust fact of the class justifies where its Xid row does not say more.
_REBOOT = frozenset({"gpu-hw-ecc", "gpu-hw-lost"})
#: Kernel lines are timed by the node's own clock; hooks and accounting by others.
SLACK_S = 60.0
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
#: Actions by weight: a run with several Xids needs the heaviest.
_WEIGHT = ("none", "unknown", "investigate", "reboot")


def hardware(scene: Scene) -> Finding | None:
    facts = [fact for fact in scene.sorts.where(_is_of_hardware) if _is_hardware(scene, fact)]
    if not facts:
        return None
    sure = [fact for fact in facts if _is_timely(scene, fact)]
    facts = sure if any(fact.role == "cause" for fact in sure) else facts
    by_host: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_host[scene.node(fact.host) or ""].append(fact)
    first = min(facts, key=lambda fact: (fact.time is None, fact.time or 0.0))
    named = [_culprit(scene, host, found) for host, found in sorted(by_host.items())]
    proven = len(by_host) == 1 and any(fact.role == "cause" for fact in sure)
    return Finding(
        rule="machine.hardware",
        failure_class=first.hint or "unknown",
        confidence="proven" if proven else "likely",
        summary=f"The kernel of {', '.join(sorted(by_host)[:8])} reports: {reading.words(first, 160)}",
        facts=cite(facts),
        action=_action(facts),
        time=first.time,
        uncertainty_s=first.uncertainty_s or 0.0,
    ).naming(named, proven=proven)


def hints(scene: Scene) -> Finding | None:
    """Kernel events of the run's nodes that by themselves end no job: worth a look where nothing else was seen."""
    facts = [fact for fact in scene.sorts.where(_is_of_hardware) if _is_believed(scene, fact)]
    if not facts:
        return None
    text = f"Kernel events that need not end a job: {reading.words(facts[0], 160)}"
    return Finding("machine.hints", facts[0].hint or "unknown", "possible", text, facts=cite(facts))


def pasted(scene: Scene) -> Finding | None:
    """Logs without a job: kernel lines in the midst of others, or of no known node. They tell what happened; on which
    machine nobody vouches for, so nobody is named."""
    return _unvouched(scene, "likely") if scene.job is None else None


def printed(scene: Scene) -> Finding | None:
    """The same in what a job printed: where nothing else explains the end it earns a look, and never more."""
    return _unvouched(scene, "possible") if scene.job is not None and not scene.completed else None


def app_faults(scene: Scene) -> Finding | None:
    """What the driver says of a program, in logs that no node vouches for: a fault of the program, by nobody known."""
    said = scene.sorts.where(lambda fact: fact.hint == "gpu-app-fault" and fact.producer in reading.MACHINE_PRODUCERS)
    facts = [f for f in said if f.role == "cause" and f.trust == "job" and _may_be_of_run(scene, f)]
    if not facts:
        return None
    text = f"Kernel lines in the logs about a program on a GPU: {reading.words(facts[0], 160)}"
    return Finding("machine.app-fault", "gpu-app-fault", "possible", text, facts=cite(facts))


def signs(scene: Scene) -> Finding | None:
    """Kernel lines that alone decide nothing, in logs without a job, and there is nothing else to go by."""
    said = scene.sorts.where(_is_of_hardware)
    facts = [
        fact
        for fact in said
        if fact.producer in reading.MACHINE_PRODUCERS and fact.role == "context" and _may_be_of_run(scene, fact)
    ]
    if not facts or scene.job is not None:
        return None
    text = f"Kernel lines that alone decide nothing: {reading.words(facts[0], 160)}"
    return Finding(
        "machine.signs", facts[0].hint or "unknown", "possible", text, facts=cite(facts), action="investigate"
    )


def _unvouched(scene: Scene, confidence: str) -> Finding | None:
    said = [fact for fact in scene.sorts.where(_is_of_hardware) if fact.producer in reading.MACHINE_PRODUCERS]
    facts = [fact for fact in said if fact.role == "cause" and _is_loose(scene, fact)]
    if not facts:
        return None
    text = f"Lines like the kernel's in the logs, of no node that is known: {reading.words(facts[0], 160)}"
    return Finding(
        "machine.unvouched",
        facts[0].hint or "unknown",
        confidence,
        text,
        facts=cite(facts),
        action="investigate",
        time=facts[0].time,
    )


def node_failed(scene: Scene) -> Finding | None:
    """Slurm says that a node failed; for logs without a job, srun's and salloc's word about a node."""
    failed = sorted({node.name for node in scene.evidence.nodes if node.failed_in_run} | _failed_by_accounting(scene))
    state = scene.job.state if scene.job else None
    facts = scene.sorts.of_kind(*reading.NODE_FAILURES)
    if scene.job is None:
        failed = sorted({host for host in (_named_node(fact) for fact in facts) if host})
        facts += scene.sorts.of_kind(*reading.ENDED_BY_NODE_FAILURE)
    if not failed and state != "NODE_FAIL":
        return None if scene.job or not facts else _nameless(facts)
    live = state in (None, "RUNNING", "SUSPENDED", "COMPLETING")
    proven = bool(failed) and (state == "NODE_FAIL" or live) and not (live and _own_causes_elsewhere(scene, failed))
    named = [Culprit("Slurm saw this node fail during the run", host=name, evidence=cite(facts)) for name in failed]
    return Finding(
        rule="machine.node-failed",
        failure_class="slurm-node-fail",
        confidence="proven" if proven else "likely",
        summary=f"Slurm saw {', '.join(failed[:8]) or 'a node'} fail while the job ran.",
        facts=cite(facts),
    ).naming(named, proven=proven)


def out_of_memory(scene: Scene) -> Finding | None:
    """Kernel or cgroup killed a process for memory. The state OUT_OF_MEMORY and the kernel's lines are root's word."""
    said = scene.sorts.where(
        lambda fact: fact.hint == "host-oom" and fact.role == "cause" and fact.producer != "python"
    )
    kills = [fact for fact in said if _inside(scene, fact) and not _is_elsewhere(scene, fact)]
    by_slurm = scene.job is not None and "OUT_OF_MEMORY" in {scene.job.state, *(s.state for s in scene.job.steps)}
    believed = [fact for fact in kills if fact.trust == "root" or by_slurm or scene.job is None]
    if not believed and not by_slurm:
        return None
    sure = [fact for fact in believed if _is_timely(scene, fact)]
    believed = sure or believed
    ranks = _killed_ranks(scene, believed)
    hosts = sorted({host for host in (scene.node(fact.host) for fact in believed) if host})
    why = "killed for host memory"
    named = [scene.culprit(rank, why, cite(believed)) for rank in ranks]
    named = named or [Culprit(why, host=host, evidence=cite(believed)) for host in hosts]
    proven = len(named) == 1 and bool(sure or by_slurm)
    return Finding(
        rule="machine.out-of-memory",
        failure_class="host-oom",
        confidence="proven" if proven else "likely",
        summary=f"A process of the job was killed for host memory{' on ' + hosts[0] if len(hosts) == 1 else ''}.",
        facts=cite(believed),
        time=min((fact.time for fact in believed if fact.time is not None), default=None),
    ).naming(named, proven=proven)


def _is_loose(scene: Scene, fact: Fact) -> bool:
    """Job's words of this run's time, and of none of other runs' nodes."""
    return fact.trust == "job" and not _is_believed(scene, fact) and _may_be_of_run(scene, fact)


def _may_be_of_run(scene: Scene, fact: Fact) -> bool:
    of_others = fact.host is not None and scene.node(fact.host) is None
    return not of_others and _inside(scene, fact)


def _is_of_hardware(fact: Fact) -> bool:
    return fact.hint in HARDWARE


def _is_hardware(scene: Scene, fact: Fact) -> bool:
    return _is_of_hardware(fact) and fact.role in ("cause", "consequence") and _is_believed(scene, fact)


def _is_believed(scene: Scene, fact: Fact) -> bool:
    """Of a node of the run, inside its window, from root or from a kernel log given by hand."""
    if scene.node(fact.host) is None or _is_elsewhere(scene, fact) or not _inside(scene, fact):
        return False
    return fact.trust == "root" or _hand_given_kernel_log(scene, fact)


def _hand_given_kernel_log(scene: Scene, fact: Fact) -> bool:
    """No job, and nothing but machine lines in that file."""
    return scene.job is None and fact.producer in reading.MACHINE_PRODUCERS and fact.file in scene.kernel_logs


def _is_elsewhere(scene: Scene, fact: Fact) -> bool:
    """Logs without a job: of a machine on which none of its ranks ran."""
    return scene.job is None and fact.host is not None and scene.places is not None and fact.host not in scene.places


def _is_timely(scene: Scene, fact: Fact) -> bool:
    """Inside the run's window beyond doubt about zones. A copy of a kernel log beside the job's own words has to have
    a time there: it may be of any day."""
    if scene.job is not None:
        return True
    untimed = fact.time is None or scene.span is None
    if untimed and scene.has_own_words and _hand_given_kernel_log(scene, fact):
        return False
    return _in_span(scene, fact, UNMEASURED_S)


def _in_span(scene: Scene, fact: Fact, slack_s: float) -> bool:
    """Logs without a job: not before the first time of the job's own lines, nor after the last one."""
    if fact.time is None or scene.span is None:
        return True
    slack = slack_s + (fact.uncertainty_s or 0.0)
    return scene.span[0] - slack <= fact.time <= scene.span[1] + slack


def _inside(scene: Scene, fact: Fact) -> bool:
    """Inside the run's window; a line without a clock was cut to the window by who read it."""
    if fact.time is None:
        return True
    if scene.job is None:
        return _in_span(scene, fact, ZONES_S)
    slack = SLACK_S + (fact.uncertainty_s or 0.0)
    time = scene.clocks.corrected(Moment(fact.time, slack, scene.node(fact.host)))
    early = scene.job.start is not None and time < scene.job.start - slack
    late = scene.job.end is not None and time > scene.job.end + slack
    return not early and not late


def _culprit(scene: Scene, host: str, facts: Sequence[Fact]) -> Culprit:
    """The host, with the GPU that the kernel names and the rank that ran on it where that is one."""
    gpus = {gpu for gpu in (_bus(fact.data.get("pci")) for fact in facts) if gpu}
    gpu = gpus.pop() if len(gpus) == 1 else None
    ranks = [r for r, row in scene.table.items() if gpu and _bus(row.gpu) == gpu and scene.host(r) == host]
    return Culprit(
        f"kernel: {reading.words(facts[0], 120)}", ranks[0] if len(ranks) == 1 else None, host, gpu, cite(facts)
    )


def _bus(value: object) -> str | None:
    """``0000:a1:00``: domain, bus, device in lower case without the function, as Xid lines print it."""
    if not isinstance(value, str) or not value:
        return None
    domain, colon, rest = value.lower().split(".", 1)[0].partition(":")
    return f"{domain[-4:]}:{rest}" if colon else value.lower()


def _action(facts: Sequence[Fact]) -> str:
    """Root's word may ask for a reboot; what a hand-given copy says earns a look."""
    root = [fact for fact in facts if fact.trust == "root" and fact.role == "cause"]
    wanted = [_fact_action(fact) for fact in root]
    return max((action for action in wanted if action in _WEIGHT), key=_WEIGHT.index, default="investigate")


def _fact_action(fact: Fact) -> str:
    told = fact.data.get("action")
    if isinstance(told, str) and told:
        return "reboot" if told == "replace" else told
    return "reboot" if fact.hint in _REBOOT else action_of(fact.hint or "")


def _failed_by_accounting(scene: Scene) -> set[str]:
    name = scene.node(scene.job.failed_node) if scene.job else None
    return {name} if name else set()


def _own_causes_elsewhere(scene: Scene, failed: Sequence[str]) -> bool:
    """A rank on another node has a cause of its own: which came first is then open."""
    causes = scene.sorts.where(lambda fact: fact.role == "cause" and fact.trust == "job")
    return any(scene.host(fact.rank) not in failed for fact in causes if fact.rank is not None)


def _named_node(fact: Fact) -> str | None:
    """``Node failure on n7``; a folded list stays unnamed."""
    node = fact.data.get("node")
    return node if isinstance(node, str) and _NODE_NAME.match(node) else None


def _nameless(facts: Sequence[Fact]) -> Finding:
    return Finding(
        "machine.node-failed", "slurm-node-fail", "likely", "Slurm speaks of a node failure.", facts=cite(facts)
    )


def _killed_ranks(scene: Scene, kills: Sequence[Fact]) -> list[int]:
    """Ranks whose process the kernel names; else srun's task; else the one rank that SIGKILL ended on that host."""
    killed_pids = {(scene.node(fact.host), reading.number(fact.data, "pid")) for fact in kills}
    by_pid = [r for r, row in scene.table.items() if row.pid is not None and (scene.host(r), row.pid) in killed_pids]
    if by_pid:
        return by_pid
    if scene.tasks_are_ranks:
        tasks = sorted({task for fact in kills for task in reading.numbers(fact.data.get("tasks"))})
        if tasks:
            return tasks
    hosts = {scene.node(fact.host) for fact in kills if fact.host}
    killed = [rank for rank, code in scene.exits.items() if code in (-9, 137) and rank not in scene.ended_by_agent]
    on_host = [rank for rank in killed if not hosts or scene.host(rank) in hosts]
    return on_host if len(on_host) == 1 else []
