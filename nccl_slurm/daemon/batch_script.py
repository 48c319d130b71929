"""Where a batch script says that its steps write: ``srun --output``, torchrun's ``--log-dir``.

The script is text of the user; it is read, never run. A path that depends on a variable that only the job knew is left
out (the report has the job's own stdout in any case).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping

__all__ = ["log_paths"]

_LOG_OPTION = re.compile(r"--log[-_]dir")
_OUTPUT_OPTIONS = {"-o": "--output", "-e": "--error", "--output": "--output", "--error": "--error"}
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_MAX_SCRIPT = 256 * 1024
_MAX_PATHS = 50


def log_paths(script: str, workdir: str, variables: Mapping[str, str]) -> list[str]:
    """Absolute paths, each once; ``*`` stands for what differs by rank or node (srun's %t, %n, %N, %s).

    ``variables`` are those known outside of the job (SLURM_JOB_ID, SLURM_JOB_NAME, HOME …).
    """
    found: dict[str, None] = {}
    for words in _commands(script[:_MAX_SCRIPT]):
        for raw in _options(words):
            path = _resolved(raw, workdir, variables)
            if path:
                found[path] = None
    return list(found)[:_MAX_PATHS]


def _commands(script: str) -> Iterator[list[str]]:
    for line in script.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith("#"):
            continue
        try:
            yield shlex.split(line, comments=True)
        except ValueError:
            yield line.split()


def _options(words: list[str]) -> Iterator[str]:
    of_srun = any(os.path.basename(word) == "srun" for word in words)
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        is_log = bool(_LOG_OPTION.fullmatch(name))
        if not is_log and not (of_srun and name in _OUTPUT_OPTIONS):
            continue
        if equals:
            yield value
        elif number + 1 < len(words):
            yield words[number + 1]


def _resolved(raw: str, workdir: str, variables: Mapping[str, str]) -> str | None:
    text = _VARIABLE.sub(lambda m: variables.get(m[1] or m[2], "\0"), raw)
    for code, name in (("j", "SLURM_JOB_ID"), ("J", "SLURM_JOB_ID"), ("x", "SLURM_JOB_NAME"), ("u", "USER")):
        text = text.replace(f"%{code}", variables.get(name, "\0"))
    text = text.replace("%A", variables.get("SLURM_ARRAY_JOB_ID", "\0")).replace(
        "%a", variables.get("SLURM_ARRAY_TASK_ID", "\0")
    )
    text = re.sub(r"%[0-9]*[tnNs]", "*", text)
    if not text or set("\0$`%~") & set(text) or text == "none":
        return None
    path = os.path.normpath(os.path.join(workdir, text))
    return path if path.startswith("/") and path not in ("/", "/dev/null") else None
