"""What a fact means for attribution. The one place here that knows the kinds (rows of ``data/patterns.toml``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from nccl_slurm.excerpt import excerpt
from nccl_slurm.model import Fact

__all__ = [
    "hides_context",
    "is_absurd",
    "is_agent_kill",
    "is_end_of_run",
    "is_failed_transfer",
    "is_last_word",
    "is_of_nccl",
    "is_p2p",
    "is_peer_lost",
    "is_told",
    "is_wait",
    "kind_of",
    "may_be_wait",
    "meets_all",
    "missing_in_store",
    "next_step",
    "number",
    "numbers",
    "passes_on",
    "signalled",
    "speaks_of_a_peer",
    "task_numbers",
    "tells_only_an_exit",
    "told_idle",
    "waited_since",
    "was_sent_from_outside",
    "words",
    "wraps_anything",
]

#: Shorter texts (an operation, a device) stand anywhere in a line.
_TOLD_MIN = 12
#: No GPU has a twentieth of that.
ABSURD_GIB = 4096.0
#: ``{StragglerId(rank=3, node='n1')}``: a named tuple as Python prints it.
_RANK_OF = re.compile(r"\brank=(\d{1,7})\b")
_TRIED = re.compile(r"Tried to allocate (?:more than 1EB|(\d{1,15}(?:\.\d{1,3})?) GiB)")
_TASK_LABEL, _RANK_LABEL = re.compile(r"(\d{1,7}): "), re.compile(r"\[rank(\d{1,8})\]: ?")
#: An exception behind nothing but labels and stamps; C++'s; torch's watchdog's; NCCL's.
_LAST_WORD = re.compile(
    r"\A(?:\[[^\]]{1,60}\]|<\w{1,12}>|\([^)]{1,80}\)|[\d:T,.Z+-]|[a-z][\w-]{0,62}: |\s){0,60}"
    r"(?:[A-Za-z_]\w{0,80}\.){0,8}[A-Z]\w{0,80}(?:Error|Exception): "
    r"|what\(\): |terminated with exception: |NCCL WARN "
)
#: Types that say that something did not come in time: Python's, queue's, filelock's, zmq's, torch's of checkpoints.
_OF_A_WAIT = re.compile(r"Time(?:d)?[Oo]ut|\A(?:Empty|Again|CheckpointException)\Z|Deadline")
_WAITED = re.compile(r"(?i)tim(?:ed|e)[ -]out|wait(?:ed|ing) |heart-?beat|deadline exceeded|not respond|no response")
_OTHER_RANK = re.compile(r"(?i)\b(?:ranks?|workers?|peers?)\b[^\d\n.,;]{0,16}(\d{1,7})\b")
#: A traceback's last line.
EXCEPTION = "python.exception"
#: A rank says that it itself waited in a collective until its timeout.
WAITS = frozenset(
    {
        "torch.watchdog-timeout",
        "torch.watchdog-cut",
        "torch.blocking-wait",
        "torch.dump-signal-local",
        "gloo.timeout",
    }
)
#: Prints for any error that the watchdog saw; only this wording speaks of a timeout.
STATUS, STATUS_TIMEOUT = "torch.pg-status", "Timeout at"
#: A rank was told of another rank's timeout.
TOLD = frozenset({"torch.dump-signal-remote", "torch.dump-observed"})
#: ``OpType=`` of point-to-point operations; COALESCED is what ``batch_isend_irecv`` is printed as.
#: torch's watchdog ends its process: a collective failed or timed out, which of them is told elsewhere.
TAKEN_DOWN = frozenset({"torch.taking-down"})
#: A call met a communicator that torch had aborted for such a reason.
ABORTED = frozenset({"torch.comm-aborted"})
P2P = frozenset({"SEND", "RECV", "COALESCED"})
HEARTBEAT = frozenset({"torch.heartbeat", "torch.terminating-heartbeat"})
#: torchrun's agent ends a worker because another one failed: SIGTERM, then SIGKILL.
AGENT_TERM, AGENT_KILL = frozenset({"elastic.closing", "elastic.closing-told"}), frozenset({"elastic.forced-kill"})
#: A launcher ends what is left of its processes: one of them failed, or it was told to.
STOPS = frozenset({"elastic.closing", "elastic.forced-kill", "framework.deepspeed-kill"})
#: For each attempt the worker that this agent saw first.
FAILED = frozenset({"elastic.failed", "elastic.closed-worker"})
#: A block of an agent's failure table, and the error.json of a worker.
FAILURE, ERROR_FILE = "elastic.failure", "elastic.error-file"
#: A flight recorder dump: counters and last collectives of each group that its rank is in.
DUMPED = "flight-recorder.status"
DETAIL_MISMATCH = frozenset({"torch.mismatch"})
ANALYSER_MISSING = frozenset({"flight-recorder.missing-ranks"})
STORE_WAITS = frozenset({"torch.store-wait"})
BARRIERS, BARRIER_REACHED = frozenset({"torch.barrier-failed"}), frozenset({"torch.barrier-reached"})
#: Horovod's coordinator names who has not submitted what others wait for.
STALLS = frozenset({"framework.horovod-stall"})
NODE_FAILURES = frozenset({"slurm.node-failure"})
#: ``CANCELLED AT ... DUE TO NODE FAILURE``: names the step's first node, not the failed one.
ENDED_BY_NODE_FAILURE = frozenset({"slurm.cancelled-node-failure"})
#: Failures to launch that name the node themselves.
LAUNCH_ON_NODE = frozenset({"slurm.launch-failed"})
END_OF_RUN = frozenset({"slurm.cancelled"})
#: torchrun got a signal; with ``number`` in its data it is the traceback of that, at the very end.
TOLD_TO_END = ("elastic.death-signal",)
#: What task_prolog wrote of one task.
TASK = "slurm.task"
#: How a task ended, by slurmstepd's own word (SPANK plugin).
TASK_ENDED = "slurm.task-ended"
#: The root of a communicator met ranks that do not belong together.
BOOTSTRAP = frozenset({"nccl.bootstrap-root"})
#: srun's word on the exit code of tasks.
TASK_EXITS = frozenset({"slurm.task-exit"})
#: How many ranks a step of several had.
STEP_WORLD = "slurm.step-world"
#: The C++ runtime's word on a process that went through exit() while threads of its ran: how it left, not why.
EXITED_WITH_THREADS = frozenset({"framework.exited-with-threads"})
#: srun begins to end all tasks of a step; a task killed after that is no lead.
STEP_ENDING = frozenset({"slurm.ending", "slurm.task-exit", "slurm.task-oom", "slurm.task-signal", "slurm.cancelled"})
#: The printing node's own adapter failed: no peer can bring that about.
OWN_ADAPTER = frozenset({"nccl.ib-fatal"})
#: A node's kernel on an adapter of its own, which need not be one that the job used.
ADAPTERS = frozenset({"kernel.nic-health"})
#: mpirun's word on a process that a signal ended.
MPI_EXIT = "framework.mpi-exit"
#: The line itself names the rank and a failure of its own.
INTRINSIC = frozenset({"framework.nan", MPI_EXIT})
#: Launchers' words on the end of a process: elastic's and Slurm's are known by their producer.
EXITS = frozenset(
    {
        "framework.composer-exit",
        "framework.composer-signal",
        "framework.deepspeed-failed",
        "framework.deepspeed-signal",
        "framework.lightning-exit",
        "framework.mpi-failed",
        "framework.mpich-signal",
        "framework.paddle-exit",
        "framework.paddle-signal",
        "framework.sglang-child",
        "framework.shell-signal",
        "python.launcher-exit",
        "python.launcher-signal",
    }
)
#: Servers' words on a worker process that is gone: as little, but they come first where a server fails of it.
WORKER_GONE = frozenset({"framework.ray-actor-died", "framework.ray-worker-died", "framework.vllm-worker-died"})
#: Work that was told behind a failure, and how many such lines with rising counts show that it went on.
STEP, STEPS_MIN = "framework.step", 3
#: Lines of torch's watchdog, which only NCCL's process groups have.
WATCHDOG = frozenset(
    {"torch.watchdog-timeout", "torch.pg-status", "torch.async-error", "torch.watchdog-terminated", "torch.taking-down"}
)
#: A transfer of a running collective failed, whoever is to blame.
FAILED_TRANSFERS = frozenset({"nccl.ib-completion", "nccl.ib-flush", "ofi.request", "torch.async-error"})
MACHINE_PRODUCERS = frozenset({"kernel", "gpu"})
#: An admin's tools print CUDA's words too.
TOOLS = MACHINE_PRODUCERS | {"cuda"}
#: Those whose lines name the host that they are about.
TELL_HOSTS = MACHINE_PRODUCERS | {"nccl", "ofi", "elastic", "slurm"}
#: What stands in NCCL's files, whose ranks are those of its largest communicator.
NUMBER_BY_NCCL = MACHINE_PRODUCERS | {"nccl", "ofi", "cuda"}
#: Reports of detectors that time each rank's own work.
PACE = frozenset({"framework.pace", "framework.slow-ranks"})
#: Such a detector ended the run.
STOPPED_FOR_PACE = frozenset({"framework.slow-stop"})
#: Failures to launch that are in what was asked for, or in the container: no node is at fault.
LAUNCH_SETTINGS = frozenset(
    {
        "framework.launch",
        "slurm.launch-setting",
        "slurm.no-configuration",
        "slurm.not-in-path",
        "slurm.pyxis",
        "slurm.request",
        "slurm.spank",
    }
)
#: What a rank did not find was to be made by another one.
OF_A_PEER = frozenset({"nccl.shm-attach"})
#: The line names two ranks that are at fault alike, or whoever started them so, or a GPU that every process on the node
#: has open: its printer is one of them at most.
OF_TWO = frozenset({"cuda.amd-hang", "cuda.gone", "nccl.duplicate-gpu"})
#: An answer of NCCL's RAS client: counts of one moment, which need not be those of the end.
COUNTED = frozenset({"nccl.ras-mismatch"})
#: One rank of the smaller group that RAS lists, and how far it is.
RAS_RANK = frozenset({"nccl.ras-rank"})
#: Our own look at a running job: counts that were seen to rise stood still.
STILL = "live.still"
#: NCCL's own error as torch quotes it, without the line that says what failed.
NCCL_ERRORS = frozenset({"torch.nccl-error"})
#: Where another step than the class's usual one is next: the launch or the place is at fault, not the program.
_NEXT_STEP = {
    "cuda.amd-resources": "investigate",
    "cuda.device-choice": "fix-config",
    "cuda.unknown": "investigate",
    "framework.ray-actor-died": "investigate",
    "framework.ray-worker-died": "investigate",
    "framework.ssh": "fix-config",
    "framework.vllm-worker-died": "investigate",
    "kernel.nic-health": "investigate",
    "nccl.bind": "fix-config",
    "nccl.cuda-alloc": "investigate",
    "nccl.device-missing": "fix-config",
    "nccl.duplicate-gpu": "fix-config",
    "nccl.ib-qp": "investigate",
    "nccl.no-algorithm": "fix-config",
    "nccl.no-files": "fix-config",
    "nccl.p2p-memory": "investigate",
    "nccl.topology": "fix-config",
    "ofi.efa-error": "network",
    "ofi.request": "network",
    "python.assert": "fix-code",
    "python.heap": "fix-code",
    "python.library": "fix-config",
    "python.limit": "fix-config",
    "python.name-service": "fix-config",
    "python.no-space": "fix-config",
}
#: strsignal(3)'s words for signals, as srun, shells and faulthandler print them.
SIGNAL_WORDS = {
    "Killed": 9,
    "Segmentation fault": 11,
    "Aborted": 6,
    "Bus error": 7,
    "Illegal instruction": 4,
    "Floating point exception": 8,
}
#: A shell's status of a process that a signal ended is this plus its number; launchers that tell it so.
_SHELL_SIGNAL = 128
_TOLD_AS_BY_A_SHELL = frozenset({"framework.mpich-signal", "framework.sglang-child"})
#: Words and numbers of signals that others send.
_SENT = frozenset({"Hangup", "Interrupt", "Terminated", "1", "2", "15"})
_SIGNAL_NAMES = {"SIGKILL": 9, "SIGSEGV": 11, "SIGBUS": 7, "SIGILL": 4, "SIGFPE": 8}


def kind_of(fact: Fact) -> str:
    """The form of the line; for torchelastic's error.json the form of the message in it."""
    inner = fact.data.get("kind")
    return inner if fact.kind == ERROR_FILE and isinstance(inner, str) else fact.kind


def may_be_wait(fact: Fact) -> bool:
    """By its kind alone: all facts for which `is_wait` holds, and others."""
    return fact.kind in WAITS or fact.kind in (STATUS, ERROR_FILE)


def is_wait(fact: Fact) -> bool:
    if fact.kind in WAITS:
        return True
    kind = kind_of(fact) if fact.kind == ERROR_FILE else fact.kind
    return kind in WAITS or (kind == STATUS and STATUS_TIMEOUT in fact.text)


def tells_only_an_exit(fact: Fact) -> bool:
    """A launcher's word about an exit status: that someone failed, not why, and not that it was first."""
    if fact.kind in EXITS:
        return True
    return fact.producer in ("elastic", "slurm") and fact.kind != ERROR_FILE


def signalled(fact: Fact) -> int | None:
    """The signal that ended the process, as a negative exit code: from the code, the number or the word told."""
    code = number(fact.data, "exitcode", "signalled")
    if code is not None and code > _SHELL_SIGNAL and fact.kind in _TOLD_AS_BY_A_SHELL:
        return _SHELL_SIGNAL - code
    if code is not None:
        return code if code < 0 else None
    word = str(fact.data.get("signal", "")).strip(" .")
    told = number(fact.data, "number", "signal") or SIGNAL_WORDS.get(word) or _SIGNAL_NAMES.get(word)
    return -told if told else None


def was_sent_from_outside(fact: Fact) -> bool:
    """The line tells of a process that SIGHUP, SIGINT or SIGTERM ended: nobody earns these by itself."""
    word = str(fact.data.get("signal", "")).strip(" .")
    return word in _SENT or number(fact.data, "exitcode") in (-1, -2, -15)


def next_step(fact: Fact) -> str | None:
    """The action for this form of line, where it is not that of its class."""
    return _NEXT_STEP.get(kind_of(fact))


def is_absurd(fact: Fact) -> bool:
    """Out of memory for more than any GPU has: torch prints GiB at most, and past that ``more than 1EB memory``. Sizes
    that ranks exchange are garbage once a communicator was aborted."""
    tried = _TRIED.search(fact.text) if fact.hint == "cuda-oom" else None
    return tried is not None and (tried[1] is None or float(tried[1]) >= ABSURD_GIB)


def is_last_word(fact: Fact) -> bool:
    """In the form in which a process dies of an error, or NCCL, torch's watchdog or the C++ runtime tell what ended it:
    more than words of a fault, which programs print of one that they handled too, and in reports of health."""
    if fact.kind in (ERROR_FILE, MPI_EXIT) or fact.producer == "nccl" or "exception" in fact.data:
        return True
    return _LAST_WORD.search(fact.text) is not None


def is_p2p(fact: Fact) -> bool:
    """A send or receive between two ranks, or a batch of them: counted apart from collectives, and not alike by nature.
    torch's *last enqueued* counts both, in one number."""
    return fact.data.get("op") in P2P


def hides_context(fact: Fact) -> bool:
    """An exception that was raised ``from None``: what it was raised for is not printed."""
    return number(fact.data, "from_none") == 1


def wraps_anything(fact: Fact) -> bool:
    """An exception of a type that programs raise for whatever went wrong below."""
    return fact.data.get("type") in ("RuntimeError", "Exception")


def meets_all(fact: Fact) -> bool:
    """What every rank meets that runs the same program with the same settings: what can't be imported or compiled, and
    collectives for which NCCL's settings leave no algorithm."""
    if fact.kind == "nccl.no-algorithm":
        return True
    return fact.data.get("type") in ("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError")


def passes_on(fact: Fact) -> bool:
    """torch.distributed.checkpoint's exception: each rank of the group raises it for the failures that it lists."""
    return str(fact.data.get("type", "")).rpartition(".")[2] == "CheckpointException"


def speaks_of_a_peer(fact: Fact) -> bool:
    """An exception of a wait that ended, or one that names another rank: whoever raised it may have waited."""
    name = str(fact.data.get("type") or fact.data.get("exception") or "").rpartition(".")[2]
    if _OF_A_WAIT.search(name) or _WAITED.search(fact.text):
        return True
    return any(int(rank) != fact.rank for rank in _OTHER_RANK.findall(fact.text))


def is_told(fact: Fact) -> bool:
    return fact.kind in TOLD


def is_peer_lost(fact: Fact) -> bool:
    return fact.role == "consequence" and fact.hint == "net-peer-lost"


def is_of_nccl(fact: Fact) -> bool:
    return fact.producer in ("nccl", "ofi") or fact.kind in WATCHDOG


def is_failed_transfer(fact: Fact) -> bool:
    return fact.kind in FAILED_TRANSFERS


def is_agent_kill(fact: Fact, *, forced: bool = False) -> bool:
    return fact.kind in (AGENT_KILL if forced else AGENT_TERM | AGENT_KILL)


def is_end_of_run(fact: Fact) -> bool:
    return fact.kind in END_OF_RUN


def missing_in_store(fact: Fact) -> int | None:
    """The rank whose key never came: ``keys: /default_pg/0//cpu//0/3`` waits for rank 3 (measured with gloo)."""
    missing = numbers(fact.data.get("missing")) if fact.kind in STORE_WAITS else ()
    return missing[0] if len(missing) == 1 else None


def told_idle(fact: Fact) -> bool:
    """The rank was told of another rank's timeout and has nothing in flight itself by its own counters."""
    enqueued, completed = number(fact.data, "enqueued"), number(fact.data, "completed")
    told = fact.kind in TOLD and number(fact.data, "told_by") is not None
    return told and enqueued is not None and enqueued == completed


def is_zoned(fact: Fact) -> bool | None:
    """Whether its stamp has its zone (`parse.stamp.Stamp.clock`); None where no line's stamp told its time."""
    clock = fact.data.get("clock")
    return clock == "utc" if isinstance(clock, str) else None


def waited_since(fact: Fact) -> float | None:
    """When the wait began that this fact reports, seconds since 1970."""
    ran = number(fact.data, "ran_ms")
    return None if fact.time is None or ran is None else fact.time - ran / 1000


def words(fact: Fact, limit: int) -> str:
    """The line in one line of text, without the labels that name its task and rank once more."""
    text = " ".join(fact.text.split())
    for known, form in ((number(fact.data, "task"), _TASK_LABEL), (fact.rank, _RANK_LABEL)):
        match = form.match(text)
        if match is not None and int(match[1]) == known:
            text = text[match.end() :]
    return excerpt(text, limit, _told_at(fact, text))


def _told_at(fact: Fact, text: str) -> tuple[int, int] | None:
    """Where the longest of the texts that the line was kept for stands; None: nowhere, or at its start."""
    told = (value for value in fact.data.values() if isinstance(value, str) and len(value) >= _TOLD_MIN)
    longest = max(told, key=len, default="")
    at = text.find(longest) if longest else -1
    return (at, at + len(longest)) if at > 0 else None


def task_numbers(facts: Iterable[Fact]) -> frozenset[int]:
    """Task numbers of the steps that task_prolog saw; a batch script is a task of no step."""
    started = (fact for fact in facts if fact.kind == TASK and str(fact.data.get("step", "")).isdecimal())
    return frozenset(n for fact in started if (n := number(fact.data, "procid")) is not None)


def number(data: Mapping[str, Any], *keys: str) -> int | None:
    """First of ``keys`` that holds an integer."""
    for key in keys:
        value = data.get(key)
        if type(value) is int:  # no bool
            return value
    return None


def numbers(value: Any) -> tuple[int, ...]:
    """Integers of a list, or of a text such as ``1, 2`` or ``0-2,5`` (at most 100,000)."""
    if isinstance(value, (list, tuple)):
        return tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool))
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    return _parsed(value) if isinstance(value, str) else ()


def slow_ranks(fact: Fact, percent: int) -> tuple[int, ...]:
    """Of a report of pace: those named as slow, or the slowest where it needs that much of the fastest one's time."""
    slow, longest, shortest = (number(fact.data, key) for key in ("slowest", "longest_ms", "shortest_ms"))
    if slow is not None and longest is not None and shortest is not None:
        return (slow,) if shortest > 0 and 100 * longest >= percent * shortest else ()
    named = fact.data.get("slow")
    tuples = _RANK_OF.findall(named) if isinstance(named, str) else []
    return tuple(int(rank) for rank in tuples) or numbers(named)


def _parsed(text: str) -> tuple[int, ...]:
    found: list[int] = []
    for part in text.replace("{", "").replace("}", "").split(","):
        low, _, high = (word.strip() for word in part.partition("-"))
        if low.isdecimal() and len(low) < 9 and (not high or (high.isdecimal() and len(high) < 9)):
            found.extend(range(int(low), min(int(high or low), int(low) + 100_000) + 1))
    return tuple(found[:100_000])
