from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.daemon.batch_script import log_paths

KNOWN = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "train", "HOME": "/home/a"}


@pytest.mark.parametrize(
    ("script", "paths"),
    [
        ("srun torchrun --log-dir logs/$SLURM_JOB_ID train.py", ["/w/logs/42"]),
        ("torchrun --log_dir=${HOME}/l train.py", ["/home/a/l"]),
        ("srun -o out-%j-%t.txt --error /e/%x.err python t.py", ["/w/out-42-*.txt", "/e/train.err"]),
        ("srun \\\n  --output=%N/rank%3t.log python t.py", ["/w/*/rank*.log"]),
        ("python t.py -o result.txt", []),
        ("torchrun --log-dir $MYDIR t.py", []),
        ("# srun --output=x true\nsrun -o none true", []),
        ("torchrun --log-dir", []),
        ("srun -o 'a b/x.log' true; echo \"open", ["/w/'a"]),  # an unbalanced quote: words are split at blanks
    ],
)
def test_paths(script: str, paths: list[str]) -> None:
    assert log_paths(script, "/w", KNOWN) == paths


@given(st.text(max_size=400))
def test_any_text_is_survived(text: str) -> None:
    assert all(path.startswith("/") for path in log_paths("srun -o " + text, "/w", KNOWN))
