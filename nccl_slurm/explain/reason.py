"""Reasons of nodes → ids of rows in data/reasons.toml."""

from __future__ import annotations

from collections.abc import Iterable

from nccl_slurm.explain.catalogue import reasons

__all__ = ["reason_ids"]


def reason_ids(texts: Iterable[str]) -> dict[str, str]:
    """Texts that no row knows are left out."""
    rows = [row for row in reasons() if row["on"] == "node"]
    found = {text: next((r["id"] for r in rows if any(w in text.lower() for w in r["match"])), None) for text in texts}
    return {text: str(row) for text, row in found.items() if row is not None}
