"""Mutations of a JSON (or pickled) tree: bytes alone would hardly ever pass a schema a second time."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

from nccl_slurm.parse import flight_recorder

__all__ = ["mutated"]

_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63) - 1,
    10**40,
    0.5,
    -0.0,
    1e308,
    1e16,
    "",
    "x",
    "0",
    "n1",
    "\x1b]0;x\x07",
    "\ud800",
    "é😀\u202e",
    "x" * 300,
    "a]b[c|'\"\n",
    [],
    {},
    [[[[]]]],
    {"": {}},
)


def mutated(data: bytes, seed: int) -> bytes | None:
    """One to four changes somewhere in the tree; None where ``data`` is none."""
    chance = random.Random(seed)
    try:
        pickled = data[:1] == b"\x80"
        tree = flight_recorder._load(data) if pickled else json.loads(data)
        for _ in range(chance.randint(1, 4)):
            tree = _changed(tree, chance)
        return pickle.dumps(tree, protocol=chance.choice((2, 4, 5))) if pickled else json.dumps(tree).encode()
    except Exception:  # a pickle can fail in any way
        return None


def _changed(tree: Any, chance: random.Random) -> Any:
    """Walks down at random and replaces, removes or doubles what it ends at."""
    if not isinstance(tree, (list, dict)) or not tree or chance.random() < 0.05:
        return chance.choice([*_ODD, tree, [tree], str(tree)[:50]])
    if isinstance(tree, list):
        at = chance.randrange(len(tree))
        piece = [_changed(tree[at], chance)] if chance.random() < 0.8 else chance.choice([[], [tree[at]] * 2])
        return [*tree[:at], *piece, *tree[at + 1 :]]
    key = chance.choice(list(tree))
    change = chance.random()
    if change < 0.9:
        return {**tree, key: _changed(tree[key], chance)}
    if change < 0.95:
        return {name: value for name, value in tree.items() if name != key}
    return {**tree, chance.choice(["", "x", "id", 7]): tree[key]}
