"""Entry of the node side, run as a script by the hooks' wrapper: ``python3 -I -S .../capture/main.py VERB``.

Verbs: ``before RUN``, ``finish RUN``, ``boot``, ``sweep``, and
``read-user --uid UID --gid GID [--user NAME] [--host HOST] PATH...``, which prints one JSON object.
Exit status: 0 done; 1 not done, with one line on standard error and in syslog; 2 usage.
"""

from __future__ import annotations

import argparse
import os
import sys
import syslog
from typing import Sequence

if __package__ in (None, ""):  # -I leaves the script's own place out of the search path
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from nccl_slurm.capture import spool, sweep, worker
from nccl_slurm.capture.conf import Conf, from_environment
from nccl_slurm.errors import ConfigError, NcclSlurmError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(arguments)
    try:
        problems = _perform(chosen, from_environment())
    except (NcclSlurmError, OSError) as error:
        problems = [str(error)]
    except Exception as error:  # nobody reads a traceback of a detached process; syslog gets one line
        problems = [f"{type(error).__name__}: {error} ({_place(error)})"]
    for problem in problems:
        _say(f"{chosen.verb}: {problem}")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nccl-slurm-node", description="Node side of nccl-slurm.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, help_text in (("before", "take the first snapshot"), ("finish", "write and ship the record")):
        verbs.add_parser(verb, help=help_text).add_argument("run", metavar="RUN")
    verbs.add_parser("boot", help="close runs of earlier boots")
    verbs.add_parser("sweep", help="ship late records, remove old runs")
    reader = verbs.add_parser("read-user", help="read a user's files as that user")
    reader.add_argument("--uid", type=int, required=True)
    reader.add_argument("--gid", type=int, required=True)
    reader.add_argument("--user")
    reader.add_argument("--host")
    reader.add_argument("paths", nargs="+", metavar="PATH")
    return parser


def _perform(chosen: argparse.Namespace, conf: Conf) -> list[str]:
    """What could not be done, one line each."""
    if chosen.verb == "read-user":
        _read_user(chosen, conf)
        return []
    if chosen.verb == "sweep":
        return sweep.sweep(conf)
    if chosen.verb == "boot":
        return sweep.close_orphans(conf)
    run = spool.open_run(conf.spool, chosen.run)
    if chosen.verb == "before":
        worker.before(conf, run)
        return []
    why = worker.finish(conf, run)
    return [] if why is None else [why]


def _read_user(chosen: argparse.Namespace, conf: Conf) -> None:
    from nccl_slurm.capture import userread

    request = userread.Request(chosen.uid, chosen.gid, chosen.user, chosen.host, chosen.paths)
    try:
        answer = userread.read(conf, request)
    except ConfigError as error:
        answer = userread.nothing_read(str(error))
    print(userread.printed(answer))


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


if __name__ == "__main__":
    sys.exit(main())
