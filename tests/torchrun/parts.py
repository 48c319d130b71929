"""What the ranks concerned do at one step: stop, die, or do something else than the rest."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tests.torchrun.base import ARGS, RANK, Base

__all__ = ["Dies", "Differs", "Stops"]


class Stops(Base):
    def do_sleep(self) -> None:
        time.sleep(3600)

    def do_loader(self) -> None:
        self.batches.stuck = True
        next(iter(self.batches))

    def do_freeze(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_late(self) -> None:
        time.sleep(ARGS.wait + 4)

    def do_leave(self) -> None:
        logging.shutdown()
        sys.exit(0)

    def do_end_of_data(self) -> None:
        self.finish()
        sys.exit(0)

    def before_absent(self) -> None:
        time.sleep(3600)


class Dies(Base):
    def do_quit(self) -> None:
        sys.exit(1)

    def do_quit_7(self) -> None:
        sys.exit(7)

    def do_drop(self) -> None:
        os._exit(3)

    def do_killed(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_segfault(self) -> None:
        import ctypes

        ctypes.string_at(0)

    def do_abort(self) -> None:
        os.abort()

    def do_bus(self) -> None:
        os.kill(os.getpid(), signal.SIGBUS)

    def do_error(self) -> None:
        raise ValueError(f"learning rate is negative at step {self.step}")

    def do_late_error(self) -> None:
        time.sleep(ARGS.wait - 1.5)
        self.do_error()

    def do_error_from_none(self) -> None:
        try:
            os.environ["LEARNING_RATE_OF_NO_JOB"]
        except KeyError:
            raise ValueError("no learning rate") from None

    def do_nan(self) -> None:
        loss = torch.tensor(float("nan"))
        assert not torch.isnan(loss), f"loss is {loss.item()}"

    def do_missing_file(self) -> None:
        Path("/nonexistent/shard-00017.bin").read_bytes()

    def before_config(self) -> None:
        raise KeyError("hidden_size")

    def before_import(self) -> None:
        raise ModuleNotFoundError("No module named 'flash_attn'")

    def do_node(self) -> None:
        """The whole node: agent and workers."""
        agent = os.getppid()
        os.kill(agent, signal.SIGKILL)
        for other in _children(agent) - {os.getpid()}:
            os.kill(other, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    def do_end(self) -> None:
        """What scancel and a time limit send to the agent."""
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(3600)


class Differs(Base):
    def do_shape(self) -> torch.Tensor:
        return torch.ones(32)

    def do_dtype(self) -> torch.Tensor:
        return torch.ones(64, dtype=torch.float64)

    def do_operation(self) -> None:
        self.reduce = self._broadcast

    def _broadcast(self, gradient: torch.Tensor) -> None:
        dist.broadcast(gradient, 0)

    def do_order(self) -> None:
        self.reduce = self._swapped

    def _swapped(self, gradient: torch.Tensor) -> None:
        dist.broadcast(torch.ones(8), 0)
        dist.all_reduce(gradient)

    def do_extra(self) -> None:
        """Of the usual size where each step has a barrier after it, else of another one."""
        dist.all_reduce(torch.ones(64 if ARGS.habit == "then_barrier" else 16))

    def do_receive(self) -> None:
        dist.recv(torch.ones(4), (RANK + 1) % self.world)

    def do_skip_branch(self) -> None:
        self.skip = True


def _children(parent: int) -> set[int]:
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.add(int(stat.parent.name))
    return found
