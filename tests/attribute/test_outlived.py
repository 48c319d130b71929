"""Errors that their rank outlived: it went on, others did with it, or the run was ended hours later. They are nobody's
failure, whatever their words; the same words as the last ones of a process are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attribute.texts import ended, verdict, waited

HANDLED = (
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "data.py", line 4, in get\n'
    "[rank0]: ValueError: sample 77 is corrupt, skipped\n"
)
STAMPED = "2026-11-30 08:00:00,000 [rank0]: ValueError: sample 77 is corrupt, skipped\n"
STEPS = "".join(f"[rank0]: step {step} loss 2.0\n" for step in range(11, 40))
OF_ALL = STEPS.replace("[rank0]: ", "")
BARS = "".join(f"[rank0]: Epoch 0:  12%|#2  | {step}/1000 [00:12<01:00,  9.9it/s]\r" for step in range(11, 40)) + "\n"
LAST_BAR = "[rank0]: Epoch 0:  12%|#2  | 39/1000 [00:12<01:00,  9.9it/s]\n"
LIMIT = "slurmstepd: error: *** STEP 42.0 ON n1 CANCELLED AT 2026-11-30T12:00:00 DUE TO TIME LIMIT ***\n"
OTHER = "[rank2]: Traceback (most recent call last):\n[rank2]: KeyError: 'x'\n"
ECC = "[rank0]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n"
OOM = "[rank0]: WARNING: CUDA out of memory. Tried to allocate 1.20 GiB; retrying with batch size 4\n"
NAN = (
    "2026-11-30 08:00:00 [rank0]: ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 0 at iteration "
    "#3 invocation #2 (message='found NaN in loss')\n"
)
NO_GPU = "[rank0]: failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\n"
HEALTH = "[rank0]: gpu health: volatile uncorrectable ECC errors: 0\n"

TERMED = ended(-15, -15, -15, -15)
WAITS = waited(1) + waited(2) + waited(3)

#: name → what the ranks and their launcher wrote, the class, who is named.
LOGS: dict[str, tuple[str, str, list[int]]] = {
    "steps, then the time limit": (HANDLED + STEPS + LIMIT, "preempt-cancel", []),
    "steps of nobody in particular": (HANDLED + OF_ALL + LIMIT, "preempt-cancel", []),
    "small steps of nobody until the others wait": (HANDLED + OF_ALL + WAITS, "rank-exception", [0]),
    "a progress bar goes on": (HANDLED + BARS + LIMIT, "preempt-cancel", []),
    "a stamp hours before the time limit": (STAMPED + LIMIT, "preempt-cancel", []),
    "nobody reacted until all were ended": (HANDLED + TERMED, "rank-exception", []),
    "steps, then another rank raises": (HANDLED + STEPS + OTHER + ended(-15, -15, 1, -15), "rank-exception", [2]),
    "steps, then another rank is killed": (HANDLED + STEPS + ended(-15, -15, -11, -15), "process-signal", [2]),
    "steps, then its own end": (HANDLED + STEPS + HANDLED + ended(1, -15, -15, -15), "rank-exception", [0]),
    "held back until its process ended": (HANDLED + STEPS + ended(1, -15, -15, -15), "rank-exception", [0]),
    "a bar that its end prints once more": (HANDLED + LAST_BAR + WAITS, "rank-exception", [0]),
    "last words, others wait": (HANDLED + WAITS, "rank-exception", [0]),
    "hours before all others wait": (STAMPED + WAITS, "collective-missing-rank", []),
    "memory, and steps": (OOM + STEPS, "unknown", []),
    "memory, and the time limit": (OOM + STEPS + LIMIT, "preempt-cancel", []),
    "memory, then others end": (OOM + TERMED, "cuda-oom", []),
    "memory, told by its process's end": (OOM + ended(1, -15, -15, -15), "cuda-oom", [0]),
    "a broken GPU, last words": (ECC + LIMIT, "gpu-hw-ecc", [0]),
    "a broken GPU, and steps": (ECC + STEPS + LIMIT, "preempt-cancel", []),
    "no such thing: none": (HEALTH + LIMIT, "preempt-cancel", []),
    "no such thing: none, others wait": (HEALTH + waited(0) + WAITS, "collective-hang-unattributed", []),
    "a GPU hidden on purpose": (NO_GPU + waited(0) + WAITS, "collective-hang-unattributed", []),
    "one bad number hours before": (NAN + waited(0) + WAITS, "collective-hang-unattributed", []),
}


@pytest.mark.parametrize("name", LOGS)
def test_an_error_that_its_rank_outlived_is_no_failure(tmp_path: Path, name: str) -> None:
    text, failure_class, named = LOGS[name]
    found = verdict(tmp_path, text)
    assert (found["class"], [one["rank"] for one in found["culprits"]]) == (failure_class, named)
