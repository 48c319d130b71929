"""A training loop on gloo, started by torchrun, in which some ranks do one thing wrong.

It prints what training programs print and nothing of what it was told to do: no rank's part stands in a message or in
a source line that a traceback shows. Parts and habits are looked up by name: ``before_NAME`` and ``do_NAME`` of the
ranks concerned, ``groups_NAME`` and ``each_NAME`` of all.
"""

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from tests.torchrun.base import ARGS, ATTEMPT, CONCERNED, RANK, log
from tests.torchrun.habits import Habits
from tests.torchrun.parts import Dies, Differs, Stops


class Job(Stops, Dies, Differs, Habits):
    """What one rank does."""

    def run(self) -> None:
        if CONCERNED:
            self.play(ARGS.part, "before_")
        self.start()
        batches = iter(self.batches)
        for self.step in range(ARGS.steps):
            gradient = next(batches)
            time.sleep(0.1)
            if self.concerned():
                other = self.play(ARGS.part, "do_")
                gradient = gradient if other is None else other
            self.play(ARGS.habit, "each_")
            self.reduce(gradient)
            self.done()
        self.finish()

    def play(self, name: str, when: str) -> torch.Tensor | None:
        """Does part ``name`` if it has one for this moment; what it returns takes the place of the gradient."""
        part = getattr(self, when + name, None) if name else None
        return part() if part else None

    def start(self) -> None:
        """The collectives' own time-out begins to hold when all are there: starts on a busy machine take long."""
        dist.init_process_group("gloo", timeout=timedelta(seconds=ARGS.start_wait))
        if RANK == 0 and not ARGS.no_world:
            log.info("world size: %d, attempt %d", dist.get_world_size(), ATTEMPT)
        self.play(ARGS.habit, "groups_")
        dist.all_reduce(torch.ones(1))
        for group in (None, self.pair, self.other):
            if group is None or dist.get_rank(group) >= 0:
                dist.distributed_c10d._set_pg_timeout(timedelta(seconds=ARGS.wait), group)
        if self.recorder:
            self.recorder.last = time.monotonic()
            self.recorder.start()

    def done(self) -> None:
        if self.recorder:
            self.recorder.last = time.monotonic()
        if ARGS.say == "all" or (ARGS.say == "first" and RANK == 0):
            log.info("rank %d: step %d of %d", RANK, self.step, ARGS.steps)


if __name__ == "__main__":
    main = record(Job.run) if ARGS.record else Job.run
    main(Job())
