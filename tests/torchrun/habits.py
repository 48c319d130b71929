"""What all ranks do in each step, beside or around the step's own collective."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.torchrun.base import ARGS, RANK, Base

__all__ = ["Habits"]


class Habits(Base):
    def each_slow(self) -> None:
        time.sleep(0.8 if RANK in ARGS.on else 0.0)

    def each_raise(self) -> None:
        if self.step == ARGS.at:
            raise ValueError("batch of 7 can't be split into 2 parts")

    # --- other collectives

    def each_both_orders(self) -> None:
        """Two a step; a rank that has another order keeps it."""
        if self.reduce == self.all_reduce:
            self.reduce = self._two

    def _two(self, gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)
        dist.broadcast(torch.ones(8), 0)

    def each_then_barrier(self) -> None:
        self.reduce = self._and_barrier

    def _and_barrier(self, gradient: torch.Tensor) -> None:
        dist.all_reduce(gradient)
        dist.barrier()

    def each_barrier(self) -> None:
        dist.monitored_barrier(timeout=timedelta(seconds=ARGS.wait))

    def each_barrier_all(self) -> None:
        dist.monitored_barrier(timeout=timedelta(seconds=ARGS.wait), wait_all_ranks=True)

    def each_store(self) -> None:
        """A hand-made barrier: all wait for a word of each rank that it has made its step."""
        store = dist.distributed_c10d._get_default_store()
        if not self.concerned():
            store.set(f"step/{self.step}/{RANK}/ready", "1")
        store.set_timeout(timedelta(seconds=ARGS.wait))
        for rank in range(self.world):
            store.get(f"step/{self.step}/{rank}/ready")

    # --- what a program makes of a failed one

    def each_wrapped(self) -> None:
        self.reduce = self._wrapped

    def _wrapped(self, gradient: torch.Tensor) -> None:
        try:
            dist.all_reduce(gradient)
        except RuntimeError:
            raise RuntimeError(f"gradient exchange of step {self.step} failed") from None

    def each_chained(self) -> None:
        self.reduce = self._chained

    def _chained(self, gradient: torch.Tensor) -> None:
        try:
            dist.all_reduce(gradient)
        except RuntimeError as error:
            raise RuntimeError(f"gradient exchange of step {self.step} failed") from error

    def each_told_later(self) -> None:
        self.reduce = self._told_later

    def _told_later(self, gradient: torch.Tensor) -> None:
        done = True
        try:
            dist.all_reduce(gradient)
        except RuntimeError:
            done = False
        if not done:
            raise RuntimeError(f"gradient exchange of step {self.step} failed")

    def each_swallowed(self) -> None:
        self.reduce = self._swallowed

    def _swallowed(self, gradient: torch.Tensor) -> None:
        try:
            dist.all_reduce(gradient)
        except RuntimeError:
            sys.exit(1)

    # --- other groups

    def groups_pairs(self) -> None:
        half = self.world // 2
        halves = [dist.new_group(list(range(half))), dist.new_group(list(range(half, self.world)))]
        self.pair = halves[RANK // half]

    def each_pairs(self) -> None:
        dist.all_reduce(torch.ones(8), group=self.pair)

    def groups_two(self) -> None:
        self.pair, self.other = dist.new_group(), dist.new_group()

    def each_two(self) -> None:
        for group in (self.other, self.pair) if self.concerned() else (self.pair, self.other):
            dist.all_reduce(torch.ones(8), group=group)

    # --- DDP

    def groups_ddp(self) -> None:
        self.model = torch.nn.parallel.DistributedDataParallel(Branches())

    def each_ddp(self) -> None:
        self.model(torch.ones(4, 8), self.skip).sum().backward()
        self.reduce = self._reduced_by_ddp

    def _reduced_by_ddp(self, gradient: torch.Tensor) -> None:
        """backward() has done it."""


class Branches(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, batch: torch.Tensor, short: bool) -> torch.Tensor:
        batch = self.first(batch)
        return batch if short else self.second(batch)
