"""Steps behind a failure: what shows that a program went on, and what does not."""

from __future__ import annotations

import pytest

from nccl_slurm.parse.scan import Piece
from nccl_slurm.parse.work import steps_after

COUNTED = {
    "plain": "step {} of 56 loss 2.3",
    "labelled": "[rank3]: step {} loss 2.3",
    "megatron": " iteration       {}/  500000 | consumed samples:         1024 |",
    "trainer": "{{'loss': 2.3, 'learning_rate': 5e-05, 'epoch': 0.{}}}",
    "fairseq": '2026-11-30 11:00:00 | INFO | train_inner | {{"epoch": 1, "update": 0.1, "num_updates": "{}"}}',
    "bar": "  5%|5         | {}/1000 [00:10<03:00,  5.0it/s, loss=2.3]",
    "assigned": "train: global_step={} loss=2.3",
}
NOTHING_DONE = {
    "other numbers": "port {} of 3 opened",
    "falling": "step {falling}",
    "one and the same": "step 7",
}


@pytest.mark.parametrize("name", COUNTED)
def test_rising_counts_are_found(name: str) -> None:
    lines = [COUNTED[name].format(count) for count in (11, 12, 13, 14)]
    raw = ("ValueError: x\n" + "\n".join(lines) + "\n").encode()
    found = steps_after(Piece(1000, raw), 1000)
    assert [step.text for step in found] == lines[-3:]
    assert [raw[step.offset - 1000 :].decode().splitlines()[0] for step in found] == lines[-3:]
    assert [step.newlines for step in found] == [2, 3, 4]


@pytest.mark.parametrize("name", NOTHING_DONE)
def test_other_lines_show_no_work(name: str) -> None:
    raw = "".join(NOTHING_DONE[name].format(count, falling=99 - count) + "\n" for count in (11, 12, 13, 14)).encode()
    assert steps_after(Piece(0, raw), 0) == []


def test_what_came_before_and_two_lines_are_not_enough() -> None:
    raw = b"step 1\nstep 2\nstep 3\nValueError: x\nstep 4\nstep 5\n"
    assert steps_after(Piece(0, raw), raw.index(b"Value")) == []
    assert len(steps_after(Piece(0, raw), 0)) == 3


def test_ranks_are_counted_apart() -> None:
    raw = "".join(f"[rank{count % 2}]: step {count}\n" for count in range(10)).encode()
    found = steps_after(Piece(0, raw), 0)
    assert [step.text for step in found] == [f"[rank{count % 2}]: step {count}" for count in (4, 5, 6, 7, 8, 9)]
