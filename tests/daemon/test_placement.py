from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.daemon.placement import place, place_live, survives

OURS = "[nccl-slurm: rank 3 n2 stalled first (rank-exception); report 42]"


@pytest.mark.parametrize(
    ("comment", "admin", "lower_cases", "field", "text"),
    [
        ("", "", False, "comment", OURS),
        ("", "", True, "comment", OURS.lower()),
        ("my run 7", "", True, "comment", f"my run 7 {OURS.lower()}"),
        ("My run", "", False, "comment", f"My run {OURS}"),
        ("My run", "", True, "admincomment", OURS.lower()),
        ('User\'s Own "Tag" KEEP', "", False, "admincomment", OURS),
        ("it's", "[nccl-slurm: old; report 42]", False, "admincomment", OURS),
        ("it's", "ticket 12", False, None, ""),
        ("a [nccl-slurm: old; report 42] b", "", False, "comment", f"a {OURS} b"),
        ("a [NCCL-SLURM: old; report 42]", "", False, "comment", f"a {OURS}"),
        ("a [nccl-slurm: old; report 42 --run 3]", "", False, "comment", f"a {OURS}"),
        ("[nccl-slurm: x; report 41]", "", False, "comment", f"[nccl-slurm: x; report 41] {OURS}"),
        ("[nccl-slurm: x; report 42_1]", "", False, "comment", f"[nccl-slurm: x; report 42_1] {OURS}"),
        (
            "[nccl-slurm: x; report 142] [nccl-slurm: x; report 42]",
            "",
            False,
            "comment",
            f"[nccl-slurm: x; report 142] {OURS}",
        ),
        ("[nccl-slurm: It's; report 41]", "", False, "admincomment", OURS),
        ("[nccl-slurm: my own note]", "", False, "comment", f"[nccl-slurm: my own note] {OURS}"),
        ("  mine", "", False, "comment", f"  mine {OURS}"),
        ("漢", "", False, "admincomment", OURS),
        ("x" * 65500, "", False, None, ""),
    ],
)
def test_after_the_end(comment: str, admin: str, lower_cases: bool, field: str | None, text: str) -> None:
    placed = place(OURS, comment, admin, lower_cases=lower_cases)
    assert (placed.field, placed.text) == (field, text)


def test_written_twice_is_written_once() -> None:
    once = place(OURS, "mine", "", lower_cases=False)
    again = place(OURS, once.text, "", lower_cases=False)
    assert again.present and again.text == once.text


@pytest.mark.parametrize(("user_bytes", "fits"), [(900, True), (1000, False)])
def test_live_comment_keeps_to_scontrols_limit(user_bytes: int, fits: bool) -> None:
    placed = place_live(OURS, "U's " + "x" * (user_bytes - 4))
    assert (placed.field == "comment") is fits
    assert not fits or placed.text.startswith("U's ")


@given(st.text(max_size=300), st.text(max_size=50), st.booleans())
def test_users_text_is_never_lost(comment: str, admin: str, lower_cases: bool) -> None:
    placed = place(OURS, comment, admin, lower_cases=lower_cases)
    if placed.field == "comment" and "[nccl-slurm:" not in comment.lower():
        assert placed.text.startswith(comment) and survives(comment, OURS, lower_cases=lower_cases)
