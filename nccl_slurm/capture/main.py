"""Entry of the node side, run as a script by the hooks' wrapper: ``python3 -I -S .../capture/main.py VERB``.

Verbs: ``before RUN``, ``finish RUN``, ``boot``, ``sweep``, ``work`` (all runs in the queue: the wrapper's),
``serve [list [JOBID] | get NAME [OFFSET SHA256] | snapshot | doctor [JOBID]]`` (see `serve`), and
``read-user --uid UID --gid GID [--user NAME] [--host HOST] [--only-files] PATH...``, which prints one JSON object a
line: one, and one more after each PATH that is empty, for the paths behind it. ``live --job ID [--node NAME] [--ras
HOST:PORT --ras-on NODE] [--uid UID --gid GID --user NAME] [PATH...]`` prints what a running job's ranks left until now.
Exit status: 0 done; 1 not done, with one line on standard error and in syslog; 2 usage.
"""

from __future__ import annotations

import os
import sys
import syslog
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Callable, Sequence

if TYPE_CHECKING:
    import argparse

if __package__ in (None, ""):  # -I leaves the script's own place out of the search path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from nccl_slurm.capture import dispatch, patterns, spool, sweep, userread, worker
from nccl_slurm.capture.conf import Conf, from_environment
from nccl_slurm.capture.queue import Entry
from nccl_slurm.errors import ConfigError, NcclSlurmError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["work"]:  # every other start of Python on a node; argparse would be a tenth of what it costs
        return _told("work", lambda: _work(from_environment()))
    chosen = _parser().parse_args(given)
    return _told(chosen.verb, lambda: _perform(chosen, from_environment()))


def _told(verb: str, perform: Callable[[], list[str]]) -> int:
    """The exit status, after one line for each problem."""
    try:
        problems = perform()
    except (NcclSlurmError, OSError) as error:
        problems = [str(error)]
    except Exception as error:  # nobody reads a traceback of a detached process; syslog gets one line
        problems = [f"{type(error).__name__}: {error} ({_place(error)})"]
    for problem in problems:
        _say(f"{verb}: {problem}")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(prog="nccl-slurm-node", description="Node side of nccl-slurm.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, help_text in (("before", "take the first snapshot"), ("finish", "write and ship the record")):
        verbs.add_parser(verb, help=help_text).add_argument("run", metavar="RUN")
    verbs.add_parser("boot", help="close runs of earlier boots")
    verbs.add_parser("sweep", help="ship late records, remove old runs")
    verbs.add_parser("work", help="see to the queue")  # told apart before
    verbs.add_parser("serve", help="answer one question of who comes by SSH").add_argument("words", nargs="*")
    reader = verbs.add_parser("read-user", help="read a user's files as that user")
    reader.add_argument("--uid", type=int, required=True)
    reader.add_argument("--gid", type=int, required=True)
    reader.add_argument("--user")
    reader.add_argument("--host")
    reader.add_argument("--only-files", action="store_true")
    reader.add_argument("paths", nargs="+", metavar="PATH")
    _live_options(verbs.add_parser("live", help="read what a running job's ranks left here until now"))
    return parser


def _live_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", type=int, required=True)
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0])
    parser.add_argument("--ras", default="")
    parser.add_argument("--ras-on", default="")
    parser.add_argument("--uid", type=int)
    parser.add_argument("--gid", type=int)
    parser.add_argument("--user")
    parser.add_argument("paths", nargs="*", metavar="PATH")


def _perform(chosen: argparse.Namespace, conf: Conf) -> list[str]:
    """What could not be done, one line each."""
    if chosen.verb == "read-user":
        _read_user(chosen, conf)
        return []
    if chosen.verb == "live":
        _live(chosen, conf)
        return []
    if chosen.verb == "serve":
        from nccl_slurm.capture import serve  # as `live`: no load for the worker, whose start every job pays

        serve.answer(conf, serve.asked(chosen.words, os.environ), sys.stdout.buffer)
        return []
    if chosen.verb == "sweep":
        return sweep.sweep(conf)
    if chosen.verb == "boot":
        return sweep.close_orphans(conf)
    return _one(conf, chosen.verb, chosen.run)


def _one(conf: Conf, verb: str, path: str) -> list[str]:
    run = spool.open_run(conf.spool, path)
    if verb == "before":
        worker.before(conf, run)
        return []
    why = worker.finish(conf, run)
    return [] if why is None else [why]


def _work(conf: Conf) -> list[str]:
    with suppress(ConfigError):  # each run tells of it
        patterns.rows(conf)

    def work(entry: Entry) -> int:
        return _told(entry.verb, lambda: _one(conf, entry.verb, os.path.join(conf.spool, entry.run)))

    dispatch.attend(conf, work)
    return []


def _read_user(chosen: argparse.Namespace, conf: Conf) -> None:
    request = userread.Request(chosen.uid, chosen.gid, chosen.user, chosen.host, chosen.paths)
    groups = [list(paths) for there, paths in groupby(chosen.paths, bool) if there]
    for line in userread.answers(conf, request, groups, only_files=chosen.only_files):
        print(line, flush=True)  # of a reader that is ended at its limit the lines until then count


def _live(chosen: argparse.Namespace, conf: Conf) -> None:
    from nccl_slurm.capture import live

    address = chosen.ras if chosen.ras_on in ("", chosen.node) else ""
    who = (chosen.uid, chosen.gid, chosen.user)
    for line in live.lines(conf, live.Question(chosen.job, chosen.node, address, *who, chosen.paths)):
        print(line)
    sys.stdout.flush()


def _place(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "?" if trace is None else f"{os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"


def _say(line: str) -> None:
    shown = "".join(char if char.isprintable() else "?" for char in line)[:500]
    print(f"nccl-slurm-node: {shown}", file=sys.stderr)
    syslog.openlog("nccl-slurm-node")
    syslog.syslog(syslog.LOG_WARNING, shown)
    syslog.closelog()  # a forked child closes all descriptors, this one behind the C library's back


if __name__ == "__main__":
    sys.exit(main())
