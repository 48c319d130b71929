"""Programs that Slurm runs around jobs: one that is missing or can't be run drains nodes or fails tasks.

What happens was seen on 22.05, 24.11 and 26.05: a Prolog or Epilog that is missing, is not executable, or whose pattern
matches nothing drains the node at the next job; a TaskProlog fails the tasks; slurmctld's own requeue and hold jobs.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

from nccl_slurm.doctor.check import BY_LOOK, Finding, NotObserved, Priority, Proof, Status
from nccl_slurm.doctor.checks.scheduler.observed import SlurmObserved
from nccl_slurm.doctor.checks.scheduler.own import wired
from nccl_slurm.doctor.checks.scheduler.program import ANY, ROOT, Program, matches, program
from nccl_slurm.doctor.checks.scheduler.shape import SlurmCheck
from nccl_slurm.doctor.observation import Files, Observation
from nccl_slurm.install.slurmconf import SlurmConfig
from nccl_slurm.install.wiring import is_glob

__all__ = ["CHECKS"]

HOOKS, FLAGS, OWN = (f"scheduler.{name}" for name in ("hooks", "prolog-flags", "own-hooks"))


def _hooks(seen: SlurmObserved) -> Iterator[Finding]:
    """Of each node that was looked at, and of this host where it is a controller. SPANK plugins that are required are
    programs of that kind too: one that is missing ends every task (seen on 22.05, 24.11 and 26.05)."""
    config = seen.config
    named = [("Prolog", each) for each in config.prolog] + [("Epilog", each) for each in config.epilog]
    named += [("TaskProlog", each) for each in config.task_prolog]
    named += [("SPANK", one.path) for one in seen.plugins if one.required]
    patterns = {one.values["path"]: one for one in _patterns(seen)}
    wanted = [(key, path) for key, path in named if path.startswith("/") and not (key in _ONE_PATH and is_glob(path))]
    if not wanted and not seen.here and not patterns:
        yield Finding(HOOKS, "NOT-APPLICABLE", "slurm.conf names no program that runs around jobs")
        return
    yield from patterns.values()
    yield from _of_controller(seen, patterns)
    for name, node in seen.fleet.nodes.items() if wanted else ():
        yield from _of_node(name, node, wanted, seen.by_look.get(name, ""))
    if wanted and not seen.fleet.nodes:
        yield Finding(HOOKS, "UNKNOWN", seen.unseen("programs on nodes"))


def _patterns(seen: SlurmObserved) -> Iterator[Finding]:
    """Slurm expands patterns of Prolog and Epilog alone (seen on 22.05, 24.11 and 26.05)."""
    for key, (status, priority, effect) in _ONE_PATH.items():
        for path in filter(is_glob, seen.settings.get(key, ())):
            text = f"{key}: {path} is a pattern, and Slurm takes one path there: {effect}"
            proof = Proof("scontrol show config", f"{key} = {path}")
            yield Finding(HOOKS, status, text, priority, proofs=[proof], values={"path": path})


#: What came of it was seen of all but PrologSlurmctld.
_ONE_PATH: Mapping[str, tuple[Status, Priority, str]] = {
    "TaskProlog": ("FAIL", "P0", "every task fails"),
    "EpilogSlurmctld": ("FAIL", "P1", "slurmctld does not start with it (24.11, 26.05), or never runs it (22.05)"),
    "PrologSlurmctld": ("WARN", "P2", "it may never run, or slurmctld not start"),
}


def _of_node(name: str, node: Observation, wanted: Sequence[tuple[str, str]], ending: str) -> Iterator[Finding]:
    """``ending``: as in `SlurmObserved.by_look`."""
    try:
        files = node.present("hooks")
    except NotObserved as error:
        yield Finding(HOOKS, "UNKNOWN", str(error), nodes=(name,))
        return
    bad = [(key, *fault) for key, path in wanted for fault in _faults(key, path, files)]
    unsure = [
        path for key, pattern in wanted for path, one in _programs(key, pattern, files) if _runs(key, one) is None
    ]
    hidden = {path: why for path, why in files.unread.items() if _is_hidden(why)}
    for key, path, text, line in bad:
        proof, (effect, more) = Proof(f"stat {path}", line), _came_of(key, ending)
        values = {"path": _plain(path), **more}
        yield Finding(HOOKS, "FAIL", f"{text}; {effect}", "P0", (name,), proofs=[proof], values=values)
    if hidden or files.more:
        told = "; ".join(f"{path}: {why}" for path, why in sorted(hidden.items())[:4]) or "there are too many of them"
        yield Finding(HOOKS, "UNKNOWN", f"not all programs can be seen by {node.user}: {told}", nodes=(name,))
    elif unsure:
        text = f"whether all users may run it can't be told by its mode: {', '.join(unsure[:4])}"
        yield Finding(HOOKS, "UNKNOWN", text, nodes=(name,))
    elif not bad:
        yield Finding(HOOKS, "PASS", "all programs that slurm.conf names are there and can be run", nodes=(name,))


def _plain(path: str) -> str:
    """For commands: of a pattern the folder that it begins with."""
    parts = path.split("/")
    return path if not is_glob(path) else "/".join(parts[: next(i for i, part in enumerate(parts) if is_glob(part))])


_EFFECT = {
    "Prolog": "the next job there drains the node",
    "Epilog": "the end of the next job there drains the node",
    "TaskProlog": "tasks that start there fail",
    "SPANK": "it is required in plugstack.conf, so every task that starts there fails",
}


#: Where it was this look's own job that found out.
_CAME_OF = {
    ("Prolog", "prolog-error"): "this look's own job there drained the node",
    ("Epilog", "epilog-error"): "the end of this look's own job there drained the node",
}


def _came_of(key: str, ending: str) -> tuple[str, Mapping[str, str]]:
    """What comes of it, or came, and values for commands."""
    came = _CAME_OF.get((key, ending))
    return (_EFFECT[key], {}) if came is None else (came, BY_LOOK)


def _faults(key: str, pattern: str, files: Files) -> Iterator[tuple[str, str, str]]:
    """(path, text, proof)."""
    seen = any(matches(path, pattern) for path, _ in files.items())
    unread = {path: why for path, why in files.unread.items() if path == pattern or matches(path, pattern)}
    if not seen and not unread:
        yield pattern, f"{key}: {pattern}: no such file", "No such file or directory"
    for path, why in unread.items():
        if not _is_hidden(why):
            yield path, f"{key}: {path} can't be read ({why})", why
    for path, one in _programs(key, pattern, files):
        if one.is_folder:
            yield path, f"{key}: {path} is a folder", f"mode {one.mode:o}"
        elif _runs(key, one) is False:
            whom = "by its owner alone" if one.mode & 0o111 else "by nobody"
            yield path, f"{key}: {path} can be executed {whom}, and runs as {_AS[key]}", f"mode {one.mode & 0o7777:o}"


def _programs(key: str, pattern: str, files: Files) -> Iterator[tuple[str, Program]]:
    """A library of SPANK's needs no x."""
    for path, text in files.items() if key != "SPANK" else ():
        one = program(text) if matches(path, pattern) else None
        if one is not None:
            yield path, one


_AS = {"Prolog": "root", "Epilog": "root", "TaskProlog": "the job's user"}


def _runs(key: str, one: Program) -> bool | None:
    return one.runs_for(ANY if key == "TaskProlog" else ROOT)


def _is_hidden(why: str) -> bool:
    """Of a folder that this user may not look into nothing is known."""
    return "permission" in why.lower() or "not permitted" in why.lower()


def _of_controller(seen: SlurmObserved, patterns: Container[str]) -> Iterator[Finding]:
    """slurmctld's own programs run on controllers, as SlurmUser: another host has no word on them."""
    found = re.search(r"\(([0-9]+)\)", seen.setting("SlurmUser")) if seen.here else None
    user = int(found[1]) if found else ROOT
    for path, told in seen.here.items() if seen.on_controller else ():
        one, text = program(told), f"slurmctld runs {path}, which is not "
        values = {"path": path, "own_path": path}
        if path in patterns:
            continue
        if one is None:
            proof = Proof(f"stat {path}", "No such file or directory")
            yield Finding(HOOKS, "FAIL", text + "on this controller", "P1", proofs=[proof], values=values)
        elif one.runs_for(user) is False:
            proof = Proof(f"stat {path}", f"mode {one.mode:o}, owner {one.owner}")
            text += "executable" if not one.mode & 0o111 else f"executable for {seen.setting('SlurmUser')}"
            yield Finding(HOOKS, "FAIL", text, "P1", proofs=[proof], values=values)


def _flags(seen: SlurmObserved) -> Iterator[Finding]:
    config = seen.config
    found = list(_flag_faults(config))
    for text, line in found:
        yield Finding(FLAGS, "WARN", text, "P2", proofs=[Proof("scontrol show config", line)])
    if not (config.prolog or config.epilog):
        yield Finding(FLAGS, "NOT-APPLICABLE", "slurm.conf names no Prolog or Epilog")
    elif not found:
        yield Finding(FLAGS, "PASS", "Prolog runs when a job gets its nodes, and prologs and epilogs have a time limit")


def _flag_faults(config: SlurmConfig) -> Iterator[tuple[str, str]]:
    shown = ",".join(config.prolog_flags) or "(null)"
    if config.prolog and not {"Alloc", "Contain", "X11", "RunInJob"} & set(config.prolog_flags):
        yield (
            "PrologFlags lacks Alloc: Prolog runs at a node's first step, not on all nodes at the job's start",
            f"PrologFlags = {shown}",
        )
    if "Serial" in config.prolog_flags:
        yield (
            "PrologFlags has Serial: prologs and epilogs of one node wait for each other",
            f"PrologFlags = {shown}",
        )
    limits = dict(config.timeouts)
    for key, entries in (("Prolog", config.prolog), ("Epilog", config.epilog)):
        if entries and not {f"{key}Timeout", "PrologEpilogTimeout"} & set(limits):
            yield f"{key} has no time limit: one that hangs keeps its node for ever", "PrologEpilogTimeout = 65534"


def _own(seen: SlurmObserved) -> Iterator[Finding]:
    """Where one of ours is named, all four are to be."""
    named = wired(seen)
    missing = [key for key, there in named.items() if not there]
    if len(missing) == len(named):
        yield Finding(OWN, "NOT-APPLICABLE", "slurm.conf names no program of nccl-slurm")
        return
    for key in missing:
        proof = Proof("scontrol show config", f"{key} = {_shown(seen.settings, key)}")
        yield Finding(OWN, "WARN", f"nccl-slurm is wired in part: {key} does not run it", "P2", proofs=[proof])
    if not missing:
        yield Finding(OWN, "PASS", "slurm.conf runs nccl-slurm's hooks")


def _shown(settings: Mapping[str, Iterable[str]], key: str) -> str:
    return ", ".join(settings.get(key, ())) or "(null)"


CHECKS = (
    SlurmCheck(
        HOOKS,
        "Prolog, Epilog, TaskProlog and slurmctld's programs are there and can be run",
        _hooks,
        sources=("hooks",),
        explains=("scheduler.node-state",),
    ),
    SlurmCheck(FLAGS, "PrologFlags and time limits of prologs and epilogs", _flags),
    SlurmCheck(OWN, "nccl-slurm's hooks are wired", _own, sources=("hooks",)),
)
