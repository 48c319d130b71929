"""Runs a scenario with the real torchrun: one agent a node, each with a host name of its own, all on loopback.

What it leaves is a folder as a user would hand to ``report --logs``: consoles of the agents, their --log-dir, dumps.
No name in it tells what was done. Nothing outlives a run: whatever has its mark in its environment is killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from tests.lean_torch import ASKED, lean
from tests.torchrun.agent import start
from tests.torchrun.scenario import Scenario

__all__ = ["Run", "missing", "run"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.torchrun.train"
MARK = "NCCL_SLURM_TEST_TORCHRUN"
#: Starts take seconds of CPU a process, and machines that run tests are busy.
LIMIT_S = 150.0
_TEMPLATE = "[${role_name}:${rank}/${local_rank}]: "
#: Of the user's own these would change what is printed or where dumps go.
_NOT_PASSED = ("TORCH", "NCCL", "GLOO", "SLURM", "MASTER_", "PYTEST", "COV_", "RANK", "WORLD_SIZE", "LOGLEVEL")
#: Copied once: runs are started in threads, and pytest changes os.environ at each test under their hands.
_KEPT = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_PASSED)}


@dataclass(frozen=True)
class Run:
    """``exits``: node → exit status of its agent, None where it was still there at the limit."""

    scenario: Scenario
    folder: Path
    exits: dict[str, int | None]
    seconds: float


def missing() -> str | None:
    """Why no scenario can run here."""
    if os.geteuid() != 0:
        return "host names of one's own need root"
    if find_spec("torch") is None:
        return "torch is not there; ./install.sh --test --with-torch brings it"
    return None


def run(scenario: Scenario, folder: Path, *, limit: float = LIMIT_S) -> Run:
    """``folder`` is made here. Takes 5 to 40 s, mostly waiting."""
    folder.mkdir(parents=True)
    (folder / "dumps").mkdir()
    if scenario.earlier is not None:
        before = folder.with_name(folder.name + ".before")
        run(scenario.earlier, before, limit=limit)
        shutil.rmtree(folder / "dumps")
        shutil.move(str(before / "dumps"), folder / "dumps")
    began = time.monotonic()
    with _endpoint(scenario.endpoint) as endpoint:
        exits = _agents(scenario, folder, endpoint, began + limit)
    if not any((folder / "dumps").iterdir()):
        (folder / "dumps").rmdir()
    for path in filter(Path.is_file, folder.rglob("*")):
        assert ASKED.encode() not in path.read_bytes(), path
    return Run(scenario, folder, exits, time.monotonic() - began)


@contextmanager
def _endpoint(kind: str) -> Iterator[str]:
    """``HOST:PORT`` of the rendezvous. ``closed``: nobody listens there; ``taken``: somebody else does."""
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        port = held.getsockname()[1]
        if kind != "taken":
            held.close()
        yield f"{'trainer-head.invalid' if kind == 'unknown' else '127.0.0.1'}:{port}"


def _agents(scenario: Scenario, folder: Path, endpoint: str, end: float) -> dict[str, int | None]:
    mark = uuid.uuid4().hex
    agents: dict[str, ForkServerProcess] = {}
    count = scenario.nodes if scenario.agents is None else scenario.agents
    count = 1 if scenario.endpoint else count
    try:
        for place in range(count):
            node = f"tw{place + 1:02d}"
            agents[node] = _start(scenario, folder, node, place, endpoint, mark)
            time.sleep(0.3)  # the first one is to be the store's host
        return {node: _wait(agent, end) for node, agent in agents.items()}
    finally:
        for agent in agents.values():
            agent.kill()
            agent.join()
        _kill(mark)


def _start(scenario: Scenario, folder: Path, node: str, place: int, endpoint: str, mark: str) -> ForkServerProcess:
    console = folder / ("job.out" if scenario.merged or scenario.nodes == 1 else f"agent.{node}.out")
    words = [*_options(scenario, folder, node, place, endpoint), "-m", PROGRAM, *_arguments(scenario, folder)]
    return start(node, console, ROOT, _environment(scenario, mark), words)


def _options(scenario: Scenario, folder: Path, node: str, place: int, endpoint: str) -> list[str]:
    rendezvous = scenario.rendezvous or f"is_host={int(place == 0)},join_timeout=90"
    options = [
        f"--nnodes={scenario.nodes}",
        f"--nproc-per-node={scenario.per_node}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        "--rdzv-id=4711",
        f"--local-addr=127.0.0.{11 + place}",  # the names resolve nowhere
        f"--rdzv-conf={rendezvous}",
        f"--max-restarts={scenario.restarts}",
        "--shutdown-timeout=4",
    ]
    if scenario.output != "console":
        options += ["--log-dir", str(folder / "logs" / node)]
        options += ["--redirects", "3"] if scenario.output == "files" else ["--tee", "3"]
    return options


def _arguments(scenario: Scenario, folder: Path) -> list[str]:
    words = [f"--at={scenario.at}", f"--wait={scenario.wait}", f"--start-wait={scenario.start_wait}"]
    words += [f"--say={scenario.say}", f"--part={scenario.part}", f"--all={scenario.habit}"]
    words += _numbers("--on", scenario.on) + _numbers("--deaf", scenario.deaf)
    words += ["--in-turn"] if scenario.in_turn else []
    words += ["--record"] if scenario.record else []
    words += [] if scenario.world_told else ["--no-world"]
    words += ["--dumps", str(folder / "dumps")] if scenario.dumps else []
    words += [] if scenario.only_attempt is None else [f"--only-attempt={scenario.only_attempt}"]
    return words


def _numbers(option: str, ranks: Sequence[int]) -> list[str]:
    return [option, *map(str, ranks)] if ranks else []


def _environment(scenario: Scenario, mark: str) -> dict[str, str]:
    own = {MARK: mark, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    if scenario.output == "template":
        own["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = _TEMPLATE
    if scenario.detail:
        own["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
    if scenario.fresh_store:
        own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    # DDP asks torch's compiler for its mode.
    return {**_KEPT, **own} if scenario.habit == "ddp" else lean({**_KEPT, **own})


def _wait(agent: ForkServerProcess, end: float) -> int | None:
    agent.join(max(0.1, end - time.monotonic()))
    return agent.exitcode


def _kill(mark: str) -> None:
    """Workers have sessions of their own and outlive an agent that is killed; they are known by their environment."""
    word = f"{MARK}={mark}".encode()
    while left := [pid for pid in _pids() if word in _read(pid) and pid != os.getpid()]:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int) -> list[bytes]:
    """Empty for a process that is gone or only waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
