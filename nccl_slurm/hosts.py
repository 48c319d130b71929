"""Lists of hosts: fold for people, expand what Slurm prints (``n[1-3,5]``, ``r[01-02]n[1-2]``).

Names are checked before ClusterShell sees them, and its groups are off: ``@all`` in hostile text must never be looked
up in the controller's group files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from ClusterShell.RangeSet import RangeSet, RangeSetException

from nccl_slurm.report.visible import visible

__all__ = ["HOST", "MAX_HOSTS", "expand", "fold", "fold_numbers"]

#: A host name that may be printed, folded or put into a command.
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
#: Slurm's own limit of nodes is 65,534; a longer list is hostile or damaged.
MAX_HOSTS = 65_536

_HOSTLIST = re.compile(r"[A-Za-z0-9._,\[\]-]+\Z")
_RANGES = re.compile(r"\[([0-9,-]+)\]")
#: ClusterShell takes exponential time in the number of axes; the last axis alone is linear and is what Slurm folds.
_LAST_AXIS = (-1,)


def fold(names: Iterable[str]) -> str:
    """``n[1-3,5]``. Names that are no host names follow unfolded, made visible."""
    known = sorted(set(names))
    hosts = [name for name in known if HOST.match(name)]
    others = [visible(name, 80) for name in known if not HOST.match(name)]
    return ",".join([*_folded(hosts), *others])


def expand(hostlist: str) -> list[str]:
    """The names of a Slurm hostlist, sorted as ClusterShell sorts.

    Raises ValueError where it is none, or longer than `MAX_HOSTS`.
    """
    if not hostlist:
        return []
    if not _HOSTLIST.match(hostlist) or _size(hostlist) > MAX_HOSTS:
        raise ValueError(f"no host list: {visible(hostlist, 80)}")
    try:
        return list(NodeSet(hostlist, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, RangeSetException) as error:
        raise ValueError(f"no host list: {visible(hostlist, 80)}") from error


def fold_numbers(numbers: Iterable[int]) -> str:
    """``0-6,9`` for rank numbers; empty for none."""
    return str(RangeSet.fromlist([str(number) for number in sorted(set(numbers))]))


def _folded(hosts: list[str]) -> list[str]:
    if not hosts:
        return []
    try:
        folded = NodeSet.fromlist(hosts, resolver=RESOLVER_NOGROUP)
        folded.fold_axis = _LAST_AXIS
        return [str(folded)]
    except (NodeSetException, RangeSetException):
        return hosts


def _size(hostlist: str) -> int:
    """Upper bound of the number of names, without making them: ``n[0-999999999]`` must cost nothing."""
    return sum(_token_size(token) for token in re.split(r",(?![^\[]*\])", hostlist))


def _token_size(token: str) -> int:
    size = 1
    for ranges in _RANGES.findall(token):
        size *= sum(_range_size(part) for part in ranges.split(","))
    return size


def _range_size(part: str) -> int:
    low, dash, high = part.partition("-")
    if not low.isdigit() or len(part) > 40 or (dash and not high.isdigit()):
        raise ValueError(f"no range of hosts: {visible(part, 40)}")
    return int(high) - int(low) + 1 if dash else 1
