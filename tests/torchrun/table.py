"""The kinds of failure, in groups that run side by side.

What is determinable was written down before any verdict was seen. The measure is what the run's own output proves to a
reader who has all of it: who is silent while every other rank of a known number tells that it waited; whose process
ended by itself while all others reacted. Two silent ranks prove nobody, for an agent may end a rank that was about to
tell; a bare exit code 1 may be that of a program that swallowed a time-out; a job of which no line tells the number
of ranks may have had more.
"""

from __future__ import annotations

from tests.torchrun.scenario import Scenario

__all__ = ["ALL", "DEATHS", "HANGS", "MISSED", "RECORDINGS", "STARTS"]

_MISSING, _MISMATCH, _HANG = "collective-missing-rank", "collective-mismatch", "collective-hang-unattributed"
_RAISED, _SIGNALLED, _STORE = "rank-exception", "process-signal", "rendezvous-store"
_OPEN = (_HANG, _MISSING, _MISMATCH)
_NOTHING_SAID = (*_OPEN, _RAISED, "unknown")
_WELL = ("unknown", "benign", "benign-teardown")
_NONE = ("none", "unknown", "investigate")
_LOOK = ("investigate", "fix-code", "unknown")
_SIGNAL = ("unknown", "fix-config", "investigate", "fix-code")
_START = ("fix-config", "investigate", "fix-code")

_SILENT = "all others tell that they waited; this one was ended without a word"
_ALONE = "the only end that is no reaction"
_LEFT = "it finished well, all others lost it"
_VOTE = "all others name it"
_SHORT = "its count is one short, all others wait"
_SIZE = "who received what is told, not who is wrong"
_HIDDEN = "no line tells of a time-out"
_ALIKE = "all fail alike"
_FIRST = "the first attempt tells"
_COUNTED = "agents count attempts apart"
_NOBODY = "nobody is at fault that is seen"
_OUTSIDE = "ended from outside"

# fmt: off
HANGS = (
    Scenario("hang", "sleep", (2,), _MISSING, _SILENT, (2,), True, per_node=4),
    Scenario("hang, 2 nodes, one output", "sleep", (3,), _MISSING, _SILENT, (3,), True, nodes=2, per_node=2,
             output="template", merged=True),
    Scenario("hang, 2 nodes, files", "sleep", (1,), _MISSING, _SILENT, (1,), True, nodes=2, per_node=2,
             output="files", say="first"),
    Scenario("hang, number of ranks untold", "sleep", (1,), _MISSING, "there may be more nodes", (1,), accept=_OPEN,
             actions=_LOOK, output="console", world_told=False),
    Scenario("hang of two ranks on a node", "sleep", (2, 3), _MISSING, "one of two may only have been late to tell",
             (2, 3), accept=_OPEN, actions=_LOOK, nodes=2, per_node=2, fixed=True),
    Scenario("data loader", "loader", (1,), _MISSING, _SILENT, (1,), True, per_node=4, output="files"),
    Scenario("frozen process", "freeze", (2,), _MISSING, _SILENT, (2,), True),
    Scenario("later than the time-out", "late", (0,), _MISSING, _SILENT, (0,), True),
    Scenario("hang in a subgroup", "sleep", (3,), _MISSING, _SILENT, (3,), True, per_node=4, habit="pairs"),
    Scenario("hang, wrapped with its cause", "sleep", (2,), _MISSING, _SILENT, (2,), True, habit="chained"),
    Scenario("hang, wrapped from None", "sleep", (2,), _MISSING, _HIDDEN, (2,), accept=_NOTHING_SAID, actions=_LOOK,
             habit="wrapped"),
    Scenario("hang of one of two, wrapped from None", "sleep", (1,), _MISSING, _HIDDEN, (1,), accept=_NOTHING_SAID,
             actions=_LOOK, habit="wrapped", per_node=2),
    Scenario("hang, told later", "sleep", (2,), _MISSING, _HIDDEN, (2,), accept=_NOTHING_SAID, actions=_LOOK,
             habit="told_later"),
    Scenario("hang, time-out swallowed", "sleep", (0,), _MISSING, _HIDDEN, (0,), accept=_NOTHING_SAID, actions=_LOOK,
             habit="swallowed"),
    Scenario("monitored barrier", "sleep", (2,), _MISSING, "rank 0 names it, the other passed", (2,), True,
             habit="barrier", fixed=True),
    Scenario("monitored barrier, all ranks", "sleep", (1, 3), _MISSING, "rank 0 names both, the other passed", (1, 3),
             True, habit="barrier_all", per_node=4, fixed=True),
    Scenario("p2p without partner", "receive", (1,), _MISMATCH, "all wait, nothing tells for whom", (1,), accept=_OPEN,
             actions=_LOOK, per_node=4),
    Scenario("two groups in another order", "", (1,), _MISMATCH, "all wait, nothing tells where", (1,), accept=_OPEN,
             actions=_LOOK, habit="two"),
    Scenario("hand-made barrier on the store", "", (1,), _MISSING, "all wait for a key that is no rank", (1,),
             accept=(*_OPEN, _STORE), actions=(*_LOOK, "fix-config"), habit="store"),
    Scenario("hang, and another one after the restart", "sleep", (1, 2), _MISSING, _FIRST, (1,), True, restarts=1,
             fresh_store=True, in_turn=True),
    Scenario("hangs in two attempts, 2 nodes", "sleep", (1, 0), _MISSING, _COUNTED, (1,), accept=_OPEN, actions=_LOOK,
             nodes=2, per_node=2, restarts=1, fresh_store=True, in_turn=True, fixed=True),
    Scenario("data end early on one rank", "end_of_data", (1,), _MISSING, _LEFT, (1,), True),
    Scenario("exit 0 early", "leave", (2,), _MISSING, _LEFT, (2,), True, output="files"),
    Scenario("exit 0 early, 2 nodes", "leave", (3,), _MISSING, _LEFT, (3,), True, nodes=2, per_node=2),
    Scenario("straggler", "", (1,), "straggler", "only the program's own lines tell of pace", (1,), accept=_WELL,
             actions=_NONE, habit="slow", ends_well=True),
    Scenario("all well", "", (), "benign", "nobody failed", accept=_WELL, actions=_NONE, ends_well=True),
    Scenario("all well, 2 nodes", "", (), "benign", "nobody failed", accept=_WELL, actions=_NONE, nodes=2, per_node=2,
             dumps=True, ends_well=True),
)

DEATHS = (
    Scenario("SIGKILL", "killed", (2,), _SIGNALLED, _ALONE, (2,), True, accept=("host-oom",), actions=_SIGNAL,
             per_node=4, output="console"),
    Scenario("SIGKILL, 2 nodes of 4", "killed", (6,), _SIGNALLED, _ALONE, (6,), True, accept=("host-oom",),
             actions=_SIGNAL, nodes=2, per_node=4, output="template", merged=True),
    Scenario("SIGSEGV, @record", "segfault", (3,), _SIGNALLED, _ALONE, (3,), True, actions=_SIGNAL, nodes=2,
             per_node=2, record=True),
    Scenario("SIGSEGV", "segfault", (0,), _SIGNALLED, _ALONE, (0,), True, actions=_SIGNAL),
    Scenario("SIGABRT", "abort", (1,), _SIGNALLED, _ALONE, (1,), True, actions=_SIGNAL),
    Scenario("SIGBUS", "bus", (2,), _SIGNALLED, _ALONE, (2,), True, accept=("resource-shm",), actions=_SIGNAL,
             output="files"),
    Scenario("exit 1 without a word", "quit", (1,), _RAISED, "as that of a swallowed error", (1,),
             accept=("net-peer-lost",), actions=_LOOK),
    Scenario("exit 7 by sys.exit", "quit_7", (1,), _RAISED, _ALONE, (1,), True),
    Scenario("os._exit(3), 2 nodes", "drop", (2,), _RAISED, _ALONE, (2,), True, nodes=2, per_node=2),
    Scenario("exception, @record", "error", (1,), _RAISED, _ALONE, (1,), True, per_node=4, record=True),
    Scenario("exception, 2 nodes, one output", "error", (2,), _RAISED, _ALONE, (2,), True, nodes=2, per_node=2,
             merged=True),
    Scenario("exception on one of two", "error", (1,), _RAISED, _ALONE, (1,), True, per_node=2),
    Scenario("exception, its context hidden", "error_from_none", (1,), _RAISED, "what it hides may be a wait", (1,),
             accept=("net-peer-lost",), actions=_LOOK),
    Scenario("exception before the group, @record", "config", (2,), _RAISED, _ALONE, (2,), True, accept=(_STORE,),
             record=True),
    Scenario("exception before the group", "config", (1,), _RAISED, _ALONE, (1,), True, output="console"),
    Scenario("NaN check, 2 nodes", "nan", (0,), _RAISED, _ALONE, (0,), True, nodes=2, per_node=2, output="template",
             record=True),
    Scenario("file not found", "missing_file", (2,), _RAISED, _ALONE, (2,), True, output="files",
             accept=("storage-stall",), actions=("fix-code", "investigate")),
    Scenario("the same import fails on all", "import", (0, 1, 2), _RAISED, _ALIKE, (0, 1, 2)),
    Scenario("the same exception on all", "", (), _RAISED, _ALIKE, (0, 1, 2), habit="raise"),
    Scenario("SIGTERM ignored by a bystander", "error", (1,), _RAISED, _ALONE, (1,), True, deaf=(2,), fixed=True),
    Scenario("node lost", "node", (2,), "net-peer-lost", "no line tells why two ranks went", (2, 3),
             accept=("slurm-node-fail", _SIGNALLED), actions=_LOOK, nodes=2, per_node=2, fixed=True),
    Scenario("agent told to end", "end", (0,), "preempt-cancel", _OUTSIDE, actions=("none",), fixed=True),
    Scenario("both agents told to end", "end", (0, 2), "preempt-cancel", _OUTSIDE, actions=("none",), nodes=2,
             per_node=2, merged=True, fixed=True),
    Scenario("restart that recovers", "error", (2,), _RAISED, _ALONE, (2,), True, accept=("benign",), restarts=1,
             fresh_store=True, only_attempt=0, ends_well=True),
    Scenario("restarts that fail, @record", "error", (2,), _RAISED, _FIRST, (2,), True, restarts=1, record=True),
    Scenario("exceptions in two attempts, 2 nodes", "error", (1, 0), _RAISED, "error.json has times", (1,), True,
             nodes=2, per_node=2, restarts=1, fresh_store=True, in_turn=True, fixed=True, record=True),
    Scenario("exceptions in two attempts, untimed, 2 nodes", "error", (1, 0), _RAISED, _COUNTED, (1,), nodes=2,
             per_node=2, restarts=1, fresh_store=True, in_turn=True, fixed=True, merged=True, output="console"),
    Scenario("SIGKILL, then restarts that can't connect", "killed", (1,), _SIGNALLED, _FIRST, (1,), True,
             accept=("host-oom",), actions=_SIGNAL, restarts=1, only_attempt=0, start_wait=12.0),
    Scenario("DDP, a branch without gradient", "skip_branch", (1,), _RAISED, _ALONE, (1,), True, accept=(_MISMATCH,),
             habit="ddp"),
)

RECORDINGS = (
    Scenario("shape", "shape", (2,), _MISMATCH, _SIZE, (2,)),
    Scenario("shape, DETAIL", "shape", (2,), _MISMATCH, _VOTE, (2,), True, detail=True, per_node=4),
    Scenario("shape, DETAIL, 2 nodes", "shape", (1,), _MISMATCH, _VOTE, (1,), True, detail=True, nodes=2, per_node=2,
             merged=True, output="console"),
    Scenario("dtype", "dtype", (1,), _MISMATCH, _SIZE, (1,)),
    Scenario("dtype, DETAIL", "dtype", (0,), _MISMATCH, _VOTE, (0,), True, detail=True),
    Scenario("operation", "operation", (2,), _MISMATCH, "no line tells operations", (2,), accept=_OPEN, actions=_LOOK,
             per_node=4),
    Scenario("operation, DETAIL", "operation", (3,), _MISMATCH, _VOTE, (3,), True, detail=True, per_node=4),
    Scenario("order, DETAIL", "order", (1,), _MISMATCH, _VOTE, (1,), True, detail=True, habit="both_orders"),
    Scenario("extra collective, DETAIL", "extra", (2,), _MISMATCH, _VOTE, (2,), True, detail=True, output="template"),
    Scenario("dump: hang", "sleep", (2,), _MISSING, _SHORT, (2,), True, dumps=True, per_node=4),
    Scenario("dump: hang, 2 nodes of 4", "sleep", (6,), _MISSING, _SHORT, (6,), True, dumps=True, nodes=2, per_node=4,
             output="console", merged=True),
    Scenario("dump: exception after others waited", "late_error", (1,), _RAISED, _ALONE, (1,), True, dumps=True,
             accept=(_MISSING,)),
    Scenario("dump: order", "order", (1,), _MISMATCH, "all others agree on another operation", (1,), True, dumps=True,
             habit="both_orders", per_node=4),
    Scenario("dump: extra collective", "extra", (2,), _MISMATCH, "all others agree on another operation", (2,), True,
             dumps=True, habit="then_barrier"),
    Scenario("dump: two groups in another order", "", (1,), _MISMATCH, "all others agree on another group", (1,), True,
             dumps=True, habit="two"),
    Scenario("dump: p2p without partner", "receive", (1,), _MISMATCH, "all others agree on a collective", (1,), True,
             accept=(_MISSING,), dumps=True, per_node=4),
    Scenario("dump: hang, wrapped from None", "sleep", (0,), _MISSING, _SHORT, (0,), True, dumps=True,
             habit="wrapped"),
    Scenario("dump: of a run before", "freeze", (2,), _MISSING, _SILENT, (2,), True, dumps=True, at=2,
             earlier=Scenario("", "sleep", (1,), _MISSING, "", dumps=True, at=4)),
)

STARTS = (
    Scenario("absent at the start", "absent", (2,), _MISSING, "all others wait for its key", (2,), True,
             accept=(_STORE,), actions=_START, start_wait=15.0),
    Scenario("no master", "", (), _STORE, _NOBODY, actions=_START, endpoint="closed", nodes=2, per_node=1,
             rendezvous="is_host=0,read_timeout=6"),
    Scenario("name does not resolve", "", (), _STORE, _NOBODY, actions=_START, endpoint="unknown", nodes=2,
             per_node=1, rendezvous="is_host=0,read_timeout=6"),
    Scenario("port taken", "", (), _STORE, _NOBODY, actions=_START, endpoint="taken", per_node=1,
             rendezvous="is_host=1,read_timeout=6"),
    Scenario("node that never joins", "", (), _STORE, _NOBODY, actions=_START, nodes=2, per_node=1, agents=1,
             rendezvous="is_host=1,join_timeout=6"),
)
# fmt: on

ALL = HANGS + DEATHS + RECORDINGS + STARTS

#: Determinable, and known to be missed: dumps are believed where some line says that there was a hang.
MISSED = frozenset({"dump: hang, wrapped from None"})
