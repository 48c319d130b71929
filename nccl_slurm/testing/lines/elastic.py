"""torchrun's agent: what one prints per node, and a worker's error.json."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from typing import NamedTuple

from nccl_slurm.testing.lines import stamp
from nccl_slurm.testing.place import Place

__all__ = [
    "Failure",
    "closing",
    "death_signal",
    "error_file",
    "failed",
    "forced",
    "no_error_file",
    "signalled",
    "table",
]

_API = "torch.distributed.elastic.multiprocessing.api"
_RUN = ("sys.exit(main())", "return f(*args, **kwargs)", "run(args)", "elastic_launch(", "raise ChildFailedError(")


class Failure(NamedTuple):
    """A worker that ended with another status than 0, as its agent saw it. ``text``: of its error.json."""

    rank: int
    code: int
    time: float
    text: str | None = None


def _line(place: Place, host: str, at: float, level: str, where: str, line: int, text: str) -> str:
    if place.scenario.torch < (2, 3):
        word = {"W": "WARNING", "E": "ERROR", "I": "INFO"}[level]
        module = f"torch.distributed.elastic.{where.replace('/', '.')}"
        return f"[{stamp.old_agent(at)}] {module}: [{word}] {text}"
    return f"{level}{stamp.agent(at)} {place.agent_pid(host)} torch/distributed/elastic/{where}.py:{line}] {text}"


def closing(place: Place, host: str, at: float, pid: int) -> str:
    text = f"Sending process {pid} closing signal SIGTERM"
    return _line(place, host, at, "W", "multiprocessing/api", 1028, text)


def forced(place: Place, host: str, at: float, pid: int) -> str:
    new = "via Signals.SIGTERM, forcefully exiting via Signals.SIGKILL" if place.scenario.torch >= (2, 6) else ""
    text = f"Unable to shutdown process {pid} {new or 'via 15, forcefully exiting via 9'}"
    return _line(place, host, at, "W", "multiprocessing/api", 1047, text)


def failed(place: Place, host: str, at: float, first: Failure) -> str:
    rank = first.rank
    text = (
        f"failed (exitcode: {first.code}) local_rank: {place.scenario.local(rank)} (pid: {place.pid(rank)}) of binary: "
        "/opt/venv/bin/python3"
    )
    return _line(place, host, at, "E", "multiprocessing/api", 1002, text)


def no_error_file(place: Place, host: str, at: float, rank: int) -> str:
    """A tuple that is printed unformatted."""
    what = "local_rank %s FAILED with no error file. Decorate your entrypoint fn with @record for traceback info."
    text = f"('{what} See: https://pytorch.org/docs/stable/elastic/errors.html', {place.scenario.local(rank)})"
    return _line(place, host, at, "I", "multiprocessing/errors/__init__", 371, text)


def death_signal(place: Place, host: str, at: float) -> str:
    return _line(place, host, at, "W", "agent/server/api", 753, "Received 15 death signal, shutting down workers")


def signalled(place: Place, host: str) -> list[str]:
    """The agent's own traceback after SIGTERM."""
    last = f"{_API}.SignalException: Process {place.agent_pid(host)} got signal: 15"
    return ["Traceback (most recent call last):", *_calls(_RUN[:3]), last]


def table(place: Place, host: str, failures: Sequence[Failure]) -> list[str]:
    """``failures``: in the agent's order. The root cause has the smallest whole second; a tie goes to the first."""
    root = min(failures, key=lambda one: int(one.time))
    others = [one for one in failures if one is not root]
    border, rule = "=" * 60, "-" * 60
    listed = [line for one in others for line in _block(place, host, one, failures.index(one))]
    return [
        "Traceback (most recent call last):",
        *_calls(_RUN),
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        border,
        "train.py FAILED",
        rule,
        "Failures:",
        *(listed or ["  <NO_OTHER_FAILURES>"]),
        rule,
        "Root Cause (first observed failure):",
        *_block(place, host, root, failures.index(root)),
        border,
    ]


def _calls(calls: Sequence[str]) -> list[str]:
    lines = []
    for number, call in enumerate(calls):
        path = (
            "/opt/venv/bin/torchrun"
            if number == 0
            else "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py"
        )
        lines += [f'  File "{path}", line {8 + 90 * number}, in {"main" if number else "<module>"}', f"    {call}"]
    return lines


def _block(place: Place, host: str, one: Failure, number: int) -> list[str]:
    pid, local = place.pid(one.rank), place.scenario.local(one.rank)
    if one.text is not None:
        reason = one.text.replace("\n", "\n  ")
        file = _error_path(place, host, one.rank)
    elif one.code < 0:
        reason, file = f"Signal {-one.code} ({signal.Signals(-one.code).name}) received by PID {pid}", "<N/A>"
    else:
        reason = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
        file = "<N/A>"
    return [
        f"[{number}]:",
        f"  time      : {stamp.dashed(one.time)}",
        f"  host      : {host}",
        f"  rank      : {one.rank} (local_rank: {local})",
        f"  exitcode  : {one.code} (pid: {pid}){_signal(place, one.code)}",
        f"  error_file: {file}",
        *f"  traceback : {reason}".splitlines(),
    ]


def _signal(place: Place, code: int) -> str:
    """Newer versions name it; seen with 2.13."""
    if place.scenario.torch < (2, 9):
        return ""
    return f"  ({signal.Signals(-code).name})" if code < 0 else " "


def copied(place: Place, host: str, at: float, rank: int) -> str:
    """Of a worker with an error.json, where the agent itself has no place for it; seen with 2.13."""
    file = _error_path(place, host, rank)
    text = f"no error file defined for parent, to copy child error file ({file})"
    return _line(place, host, at, "E", "multiprocessing/errors/error_handler", 145, text)


def _error_path(place: Place, host: str, rank: int) -> str:
    return f"{place.elastic_folder(host)}/attempt_{place.attempt}/{place.scenario.local(rank)}/error.json"


def error_file(text: str, calls: str, at: float) -> bytes:
    """Whole seconds, as text; no rank, host or pid."""
    extra = {"py_callstack": calls, "timestamp": str(int(at))}
    return json.dumps({"message": {"message": text, "extraInfo": extra}}).encode()
