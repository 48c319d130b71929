"""A ring all-reduce over TCP, standard library alone: one process a rank, started by srun.

One rank can stop taking part (``--mode hang``), die (``kill``) or raise (``raise``). The others then really wait,
really run into their socket's time-out, say so and exit 1. Ranks find one another by files in a shared folder.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path

FORMAT = struct.Struct("!d")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=("good", "hang", "kill", "raise"), default="good")
    parser.add_argument("--rank", type=int, default=1, help="rank that fails")
    parser.add_argument("--at", type=int, default=3, help="step at which it fails")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds of a step's own work")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds that a rank waits for another one")
    parser.add_argument("--meet", type=Path, required=True, help="folder in which the ranks leave their addresses")
    return parser.parse_args()


class Recorder:
    """Counts collectives and keeps the count in a file, in the form of torch's flight recorder (JSON, schema 2.10).

    nccl-slurm's task_prolog names the file's place; without it nothing is written.
    """

    def __init__(self, rank: int, size: int) -> None:
        place = os.environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
        self._path = Path(f"{place}{rank}") if place else None
        self._config = {"name": "0", "desc": "default_pg", "ranks": str(list(range(size)))}
        self._entries: list[dict[str, object]] = []
        self._done = 0

    def entered(self) -> None:
        number = len(self._entries) + 1
        entry = {"pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": number, "is_p2p": False}
        entry |= {"profiling_name": "plain:all_reduce", "input_sizes": [[1]], "state": "started", "retired": False}
        self._entries.append({**entry, "time_created_ns": time.time_ns()})
        self._write()

    def left(self) -> None:
        self._entries[self._done].update(state="completed", retired=True)
        self._done += 1
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        status = dict(zip(names, (len(self._entries), len(self._entries), self._done), strict=True))
        dump = {
            "version": "2.10",
            "pg_config": {"0": self._config},
            "pg_status": {"0": status},
            "entries": self._entries,
        }
        unfinished = self._path.with_name(f".{self._path.name}")
        unfinished.write_text(json.dumps(dump))
        unfinished.rename(self._path)


class Ring:
    """Rank r sends to r + 1 and receives from r - 1."""

    def __init__(self, rank: int, size: int, meet: Path, timeout: float) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self.previous = (rank - 1) % size
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(timeout)
            self._publish(meet, server.getsockname()[1])
            address = ("127.0.0.1", self._port(meet, (rank + 1) % size))
            self._next, self._next_name = socket.create_connection(address, timeout), "[{}]:{}".format(*address)
            self._previous, address = server.accept()
            self._previous_name = "[{}]:{}".format(*address)
        self._previous.settimeout(timeout)

    def _publish(self, meet: Path, port: int) -> None:
        meet.mkdir(exist_ok=True)
        unfinished = meet / f".{self.rank}"
        unfinished.write_text(str(port))
        unfinished.rename(meet / str(self.rank))

    def _port(self, meet: Path, rank: int) -> int:
        end = time.monotonic() + self.timeout
        while not (meet / str(rank)).exists():
            if time.monotonic() > end:
                raise TimeoutError(f"Timed out waiting {self.timeout * 1000:.0f}ms for rank {rank} to join the ring")
            time.sleep(0.05)
        return int((meet / str(rank)).read_text())

    def all_reduce(self, value: float) -> float:
        """The sum over all ranks: every value goes once around the ring."""
        total = passing = value
        for _ in range(self.size - 1):
            self._send(passing)
            passing = self._receive()
            total += passing
        return total

    def _send(self, value: float) -> None:
        try:
            self._next.sendall(FORMAT.pack(value))
        except ConnectionError as error:
            raise ConnectionError(f"Write error {self._next_name}: {error.strerror}") from None

    def _receive(self) -> float:
        data = b""
        while len(data) < FORMAT.size:
            try:
                more = self._previous.recv(FORMAT.size - len(data))
            except ConnectionResetError as error:
                raise ConnectionError(f"Read error {self._previous_name}: {error.strerror}") from None
            except TimeoutError:
                wait = f"Timed out waiting {self.timeout * 1000:.0f}ms for recv operation to complete"
                raise TimeoutError(f"{wait} (from rank {self.previous})") from None
            if not more:
                raise ConnectionError(f"Connection closed by peer {self._previous_name} (rank {self.previous})")
            data += more
        return float(FORMAT.unpack(data)[0])


def fail(mode: str, step: int) -> None:
    if mode == "raise":
        raise ValueError(f"loss is nan at step {step}")
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang":
        time.sleep(3600)


def say(rank: int, text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime())}Z [rank {rank}] {text}\n", end="", flush=True)


def train(rank: int, size: int, args: argparse.Namespace) -> None:
    ring, recorder = Ring(rank, size, args.meet, args.timeout), Recorder(rank, size)
    for step in range(args.steps):
        time.sleep(args.pause)
        if rank == args.rank and step == args.at:
            fail(args.mode, step)
        recorder.entered()
        total = ring.all_reduce(float(rank))
        recorder.left()
        assert total == size * (size - 1) / 2
        say(rank, f"step {step} of {args.steps}")


def main() -> int:
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    try:
        train(rank, size, arguments())
    except (OSError, ValueError):
        # As torch prints it: every line says whose it is.
        lines = traceback.format_exc().splitlines()
        sys.stderr.write("".join(f"[rank{rank}]: {line}\n" for line in lines))
        sys.stderr.flush()
        time.sleep(1.0)  # with open sockets: the others run into their own time-outs, whoever is a little early
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
