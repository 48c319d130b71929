"""Processes in place of `pyslurm_child`, each with one way to go wrong: ``python bad_child.py VERSION HOW``."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time


def answer(value: object) -> None:
    print(json.dumps(value) if isinstance(value, dict) else value, flush=True)


def crash() -> None:
    """As libslurm does at the old API's node events: no core file, a real SIGSEGV."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signal.SIGSEGV)


def main(version: str, how: str) -> None:
    if how == "no-config":
        print("libslurm: fatal: Unable to process configuration file", file=sys.stderr)
        sys.exit(1)
    if how == "silent":
        time.sleep(600)
    answer({"pyslurm": version})
    for _ in sys.stdin:
        if how == "exit":
            sys.exit(1)
        if how == "crash":
            crash()
        if how == "hang":
            time.sleep(600)
        answer(
            {
                "garbage": "\x1b[31m{not json",
                "list": "[1]",
                "half": '{"rows": [{"name"',
                "empty": {},
                "odd-rows": {"rows": [{"name": "n1"}]},
                "no-rows": {"rows": 5},
                "two": '{"rows": []}\n{"rows": []}',
                "failed": {"failed": "AttributeError: no such thing"},
                "away": {"errno": 1800, "text": "Unable to contact slurm controller (connect failure)"},
                "no": {"errno": 2017, "text": "Invalid job id specified"},
            }[how]
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
