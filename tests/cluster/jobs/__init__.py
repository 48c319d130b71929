"""Batch scripts of real multi-rank jobs. `train.py` needs torch, `plain.py` the standard library alone.

Both programs are copied into the cluster's scratch folder, because ordinary users may not reach the checkout.
"""

from __future__ import annotations

import shlex
from pathlib import Path

__all__ = ["FOLDER", "plain", "torchrun"]

FOLDER = Path(__file__).parent

TORCHRUN = """\
#!/bin/sh
port=$({python} -c 'import socket; free = socket.create_server(("", 0)); print(free.getsockname()[1])')
export OMP_NUM_THREADS=1
{before}
srun --kill-on-bad-exit=0 {inside} {python} -m torch.distributed.run \\
    --nnodes="$SLURM_NNODES" --nproc-per-node={per_node} \\
    --rdzv-backend=c10d --rdzv-endpoint="$SLURMD_NODENAME:$port" --rdzv-id="$SLURM_JOB_ID" {options} \\
    {program} {arguments}
"""

PLAIN = """\
#!/bin/sh
{before}
srun {options} {python} {program} --meet "ring.$SLURM_JOB_ID" {arguments}
"""


def torchrun(
    python: Path,
    programs: Path,
    *arguments: str,
    per_node: int = 2,
    options: str = "",
    before: str = "",
    inside: str = "",
) -> str:
    """One agent a node (submit with ``--ntasks-per-node=1``); ``arguments`` are train.py's, ``options`` torchrun's.
    ``inside``: a program that runs what follows it."""
    return TORCHRUN.format(
        python=python,
        program=programs / "train.py",
        arguments=shlex.join(arguments),
        per_node=per_node,
        options=options,
        before=before,
        inside=inside,
    )


def plain(python: Path, programs: Path, *arguments: str, options: str = "--wait=3", before: str = "") -> str:
    """One task a rank (submit with ``--ntasks``); ``arguments`` are plain.py's, ``options`` srun's.

    A rank that hangs never ends by itself: ``--wait=3`` makes srun end it 3 s after the first rank that gave up.
    """
    return PLAIN.format(
        python=python, program=programs / "plain.py", arguments=shlex.join(arguments), options=options, before=before
    )
