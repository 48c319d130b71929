"""Entry of install.sh's part for clusters: ``python3 -I -S .../install/main.py --node | --controller | --uninstall``.

Exit status: 0 done, or nothing to do; 1 failed or refused, with what was done so far; 2 usage.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Sequence

if __package__ in (None, ""):  # -I leaves the script's own place out of the search path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from nccl_slurm.errors import InputError, InstallError
from nccl_slurm.install import apply, facts, patterns, places, plan, room, source, spank
from nccl_slurm.install.apply import Applied
from nccl_slurm.install.entry import Entry
from nccl_slurm.install.facts import Facts
from nccl_slurm.install.lock import alone
from nccl_slurm.install.mounts import network_file_system, read_table
from nccl_slurm.install.options import Options, parse
from nccl_slurm.install.outline import NO_SHARED, outline
from nccl_slurm.install.plan import Plan
from nccl_slurm.install.processes import daemons
from nccl_slurm.install.venv import Venv

__all__ = ["main"]

_ETC = (
    "capture.conf",
    "nccl-slurm.toml",
    "completion/nccl-slurm.bash",
    "logrotate/nccl-slurm",
    "man/nccl-slurm.1",
    "man/nccl-slurm.toml.5",
    "systemd/nccl-slurm.service",
    "systemd/nccl-slurm-boot.service",
    "systemd/nccl-slurm-node.service",
    "systemd/nccl-slurm-node.timer",
)


def main(arguments: Sequence[str]) -> int:
    if "--check" in arguments:
        from nccl_slurm.install import check

        return check.run([word for word in arguments if word != "--check"])
    try:
        options = parse(arguments)
        if os.geteuid() != 0 and not options.dry_run:
            raise InputError(f"--{options.mode} needs root; --dry-run shows what it would do")
        return _run(options)
    except InputError as error:
        return _complain(str(error), 2)


def _run(options: Options) -> int:
    """Raises InputError, before anything was touched."""
    applied = Applied(options.dry_run, _say, "" if options.verbose else options.layout.code)
    try:
        with nullcontext() if options.dry_run else alone(options.layout):
            unheeded = _perform(options, applied)
    except (InstallError, OSError) as error:
        if applied.touched and not options.dry_run:
            _say(f"stopped after {len(applied.touched)} changes; run it again when the cause is gone")
        return _complain(_in_words(error), 1)
    _summarize(options, applied)
    for line in unheeded:
        _complain(line, 1)
    return 1 if unheeded else 0


def _perform(options: Options, applied: Applied) -> list[str]:
    """What was asked for and could not be done, one line each."""
    if options.mode == "uninstall":
        from nccl_slurm.install.uninstall import uninstall

        uninstall(options, applied)
        return []
    places.check(options.layout, read_table())
    known = facts.gather(options)
    check_shared_was_asked(options, known)
    if options.mode == "node":
        return _node(options, known, applied)
    _controller(options, known, applied)
    return []


def check_shared_was_asked(options: Options, known: Facts) -> None:
    """A host's first installation says where records go; an image (--root) may get its settings later. Raises
    InstallError."""
    first = known.capture_conf is None and not options.layout.root
    if first and not (options.dry_run or options.no_shared or plan.places(options, known).shared):
        raise InstallError(
            f"nothing was changed: without --shared SHARED {NO_SHARED.partition(';')[0]}; give it, or --no-shared "
            "where nodes and controller have no file system in common (docs/ssh.md)"
        )


def _node(options: Options, known: Facts, applied: Applied) -> list[str]:
    shared = plan.places(options, known).shared
    rows = patterns.for_node(options, known, shared)
    wanted = plan.node(options, known, _source(applied), rows)
    _install("node", options, known, wanted, {}, applied)
    _start("node", options, applied)
    if not shared:
        applied.say(f"no SHARED: {NO_SHARED}")
    if rows is None and known.python.version < (3, 11):
        missing = f"{known.python.path} can't read the pattern rows, and none are compiled"
        remedy = (
            f"put what `nccl-slurm rules compile` prints into {options.layout.patterns_json}, or run this again once"
        )
        return [f"{missing}: {remedy} --controller has left them in SHARED"]
    return []


def _controller(options: Options, known: Facts, applied: Applied) -> None:
    layout = options.layout
    wanted = plan.controller(options, known, _source(applied))
    venv = Venv(layout, known.python, options.wheels, options.extras)
    rows = _places_of_rows(options, known, wanted)
    _install("controller", options, known, wanted, {layout.venv: "tree", **dict.fromkeys(rows, "file")}, applied)
    if not venv.is_current():
        applied.note("make", "Python environment, by pip, in", layout.venv)
        if not options.dry_run:
            venv.make()
    _compile_patterns(options, rows, venv, applied)
    _start("controller", options, applied)


def _install(role: str, options: Options, known: Facts, wanted: Plan, extra: dict[str, str], applied: Applied) -> None:
    layout = options.layout
    if wanted.unheeded:
        raise InstallError("\n  ".join(["nothing was changed:", *wanted.unheeded]))
    places.check_spool(wanted.at.spool, layout.on_disk(wanted.at.spool), read_table())
    places.check_events(wanted.at.events, layout.on_disk(wanted.at.events))
    if wanted.at.shared:
        owners = (0, known.ship_user.uid) if known.ship_user else (0,)
        places.check_shared(wanted.at.shared, layout.on_disk(wanted.at.shared), owners)
    wrong = room.obstacles(plan.with_parents(wanted.entries), layout)
    if wrong:
        raise InstallError("\n  ".join(["nothing was changed:", *wrong]))
    if role == "controller" and wanted.at.shared and not network_file_system(wanted.at.shared, read_table()):
        applied.say(f"{wanted.at.shared} is on this host's own disk: right only where the nodes mount it from here")
    if options.dry_run:
        for line in outline(role, options, known, wanted):
            applied.say(line)
    before = apply.record(role, wanted.entries, extra, layout, applied)
    apply.apply_entries(wanted.entries, layout, applied)
    stay = {*extra, *(entry.path for entry in wanted.entries), f"{wanted.at.shared}/{patterns.SHARED_NAME}"}
    stay.update(path for path in before if spank.is_plugin(path, layout))
    apply.drop_stale(role, before, stay, layout, applied)  # rows in SHARED stay: nodes read them


def _places_of_rows(options: Options, known: Facts, wanted: Plan) -> list[str]:
    """Compiled for nodes whose Python is older than 3.11. Where root is squashed it can't leave them in SHARED."""
    found = [options.layout.patterns_json]
    return found if known.ship_user or not wanted.at.shared else [*found, f"{wanted.at.shared}/{patterns.SHARED_NAME}"]


def _compile_patterns(options: Options, paths: list[str], venv: Venv, applied: Applied) -> None:
    layout = options.layout
    if options.dry_run:
        for path in paths:
            applied.say(f"compile: pattern rows to {path}")
        return
    rows = patterns.compiled_by(venv, layout.on_disk(layout.daemon_conf))
    apply.apply_entries([Entry(path, "file", 0o644, content=rows) for path in paths], layout, applied)


def _start(role: str, options: Options, applied: Applied) -> None:
    if options.start and apply.systemd_runs():
        apply.call_units(role, applied)
    elif options.start:
        applied.say(f"systemd does not run here: the units {'would be' if options.dry_run else 'are'} in place only")
        if role == "controller":
            _start_by_hand(options, applied)


def _start_by_hand(options: Options, applied: Applied) -> None:
    running = daemons(options.layout.on_disk(options.layout.venv))
    if not running:
        applied.say(f"to start the daemon: {options.layout.command} daemon")
    elif applied.touched:
        pids = ", ".join(map(str, running))
        applied.say(f"the daemon (pid {pids}) still runs what was here before: kill it (SIGTERM) and start it anew")


def _source(applied: Applied) -> plan.Source:
    etc = {name: source.read(f"etc/{name}") for name in _ETC}
    plugins, why = spank.plugins()
    if why:
        applied.say(f"no SPANK plugin is built: {why} (it is optional: docs/spank.md)")
    return plan.Source(source.package_files(), source.hook_files(), etc, plugins)


def _summarize(options: Options, applied: Applied) -> None:
    count = len(applied.touched)
    if options.dry_run:
        _say(f"dry run: {count} changes, nothing touched")
    elif count == 0:
        _say("nothing changed: all is as wanted" if options.mode != "uninstall" else "nothing to remove")
    else:
        _say(f"done: {count} changes")
    if options.mode == "controller":
        conf = f" --slurm-conf {options.slurm_conf}" if options.slurm_conf else ""
        _say(f"next: ./install.sh --check{options.layout.as_options()}{conf}")


def _in_words(error: Exception) -> str:
    if isinstance(error, PermissionError) and os.geteuid() != 0:
        return f"{error.filename}: {error.strerror}; run it as root, --dry-run too"
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _say(line: str) -> None:
    print(f"install.sh: {line}", flush=True)


def _complain(line: str, status: int) -> int:
    print(f"install.sh: {line}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
