"""Removing what a job's user made: of any depth, with any number of names."""

from __future__ import annotations

import os

from nccl_slurm.capture import command

__all__ = ["remove"]


def remove(path: str, limit_s: float) -> list[str]:
    """A run's folder, or its ``user/``. Returns why it was not removed.

    rm works by descriptor, follows no link and bears any depth. The user's folder is taken from its user first, so that
    no process of that user can fill it while it goes.
    """
    user = path if os.path.basename(path) == "user" else os.path.join(path, "user")
    try:
        if os.path.isdir(user) and os.geteuid() == 0:
            os.chown(user, 0, 0)
    except OSError as error:
        return [f"{path}: not removed: {error}"]
    answer = command.run(["rm", "-rf", "--one-file-system", "--", path], limit_s=limit_s)
    return [] if answer.why is None else [f"{path}: not removed: {answer.why[:300]}"]
