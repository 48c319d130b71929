"""A program that Slurm runs: which names of a pattern are meant, and who may run the file. Pure."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

__all__ = ["ANY", "ROOT", "Program", "matches", "program"]

ROOT = 0
#: Whoever runs a job; not root, and no owner of the site's programs.
ANY = -1


@dataclass(frozen=True)
class Program:
    """``mode`` as stat(2) has it, with the kind of file; ``owner`` -1: not told."""

    mode: int
    owner: int = -1

    @property
    def is_folder(self) -> bool:
        return self.mode & 0o170000 == 0o040000

    def runs_for(self, user: int) -> bool | None:
        """Root needs an x of anybody's. A script has to be read too, by the shell that it names. None: groups of the
        user, or whether it is a script, decide."""
        mode = self.mode
        if not mode & 0o111 or user == ROOT:
            return bool(mode & 0o111)
        if user == self.owner:
            return bool(mode & 0o100)
        if mode & 0o005 == 0o005:
            return True
        return None if mode & 0o011 else False


def program(stat: str) -> Program | None:
    """``octal-mode uid …``, as the reader of nodes tells it."""
    words = stat.split(" ")
    if not words[0] or set(words[0]) - set("01234567"):
        return None
    owner = int(words[1]) if len(words) > 1 and words[1].isdigit() else -1
    return Program(int(words[0], 8), owner)


def matches(path: str, pattern: str) -> bool:
    """As glob(3): a sign stands for nothing with a slash in it, in any part of the path."""
    parts, wanted = path.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))
