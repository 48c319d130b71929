"""Log text made safe to look at: what a terminal would act on is shown as an escape instead.

Anything that a job printed may hold escape sequences (ECMA-48), bidirectional controls that reorder what is read
(Unicode TR 36, "Trojan Source") or zero-width characters that hide text. Letters of all scripts stay as they are.
"""

from __future__ import annotations

import unicodedata

__all__ = ["ascii_only", "visible"]

#: Unicode categories that never reach a terminal: control, format (bidi, zero width), surrogate, private use,
#: unassigned, line and paragraph separator, spaces that are not the space.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"})


def visible(text: str, limit: int | None = None) -> str:
    """``text`` on one line, hidden characters as ``\\x1b`` or ``\\u202e``, cut to ``limit`` characters."""
    shown = text if text.isascii() and text.isprintable() else "".join(map(_shown, text))
    if limit is not None and len(shown) > limit:
        return shown[: max(0, limit - 3)] + "..."
    return shown


def ascii_only(text: str) -> str:
    """As `visible`, and every character outside ASCII as an escape too: fit for a job comment."""
    return visible(text).encode("ascii", "backslashreplace").decode("ascii")


def _shown(character: str) -> str:
    if character == " " or unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    if code < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
