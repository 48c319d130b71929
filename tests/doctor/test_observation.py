"""A node's answer is believed in its shape alone; what was not observed never looks like something."""

from __future__ import annotations

import base64
import json
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.gather import MARK
from nccl_slurm.doctor.judge import observation_of
from nccl_slurm.doctor.observation import Fleet, JobObserved, Observation, unpacked
from nccl_slurm.doctor.reach import Answer

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.sampled_from(["why", "texts", "unread", "cut", "more", "rc", "out", "err", "value"])


def packed(told: Any) -> bytes:
    return MARK.encode() + base64.b64encode(zlib.compress(json.dumps(told).encode())) + b"\n"


def test_words_of_a_login_shell_are_passed_over() -> None:
    seen = unpacked(b"Welcome!\n" + packed({"found": {}, "uid": 5, "gpus": ["0"]}) + b"bye\n", "n1", "ssh")
    assert (seen.node, seen.uid, seen.gpus) == ("n1", 5, ["0"])


@pytest.mark.parametrize(
    "data", [b"", b"sh: python3: not found\n", MARK.encode() + b"!!!\n", packed([]), packed({"why": "too large"})]
)
def test_no_answer(data: bytes) -> None:
    with pytest.raises(NotObserved):
        unpacked(data, "n1", "ssh")


@given(st.dictionaries(st.sampled_from(["k", "found", "gpus", "uid", "boot_time"]), JSON))
def test_any_answer(told: dict[str, Any]) -> None:
    with suppress(NotObserved):
        unpacked(packed(told), "n1", "ssh")


@given(JSON | st.dictionaries(PARTS, JSON, max_size=6))
def test_any_source(told: Any) -> None:
    """Nothing but NotObserved leaves it, and a part that is there has the promised type."""
    seen = Observation("n1", {"k": told})
    for ask, kind in ((seen.text, str), (seen.files, dict), (seen.present, dict), (seen.command, tuple)):
        with suppress(NotObserved):
            assert isinstance(ask("k"), kind)


def test_why_not() -> None:
    seen = Observation("n1", {"k": {"why": "no answer within 3 s"}})
    for ask in (seen.text, seen.files, seen.present, seen.command, seen.reader):
        with pytest.raises(NotObserved, match="no answer within 3 s"):
            ask("k")


@pytest.mark.parametrize(
    ("owner", "who", "rights"),
    [
        ("", "this user may read", "look as root"),
        (
            "alice",
            "alice (by the job's step) may read",
            "read as alice, by the job's step; SSH as root sees more (--ssh)",
        ),
    ],
)
def test_a_step_reads_as_the_jobs_owner_whoever_looks(owner: str, who: str, rights: str) -> None:
    """To root *look as root* is no help: Slurm lets the owner alone make a step."""
    seen = Observation("n1", {"kernel": {"why": "no kernel line that this user may read"}}, owner=owner)
    with pytest.raises(NotObserved) as caught:
        seen.reader("kernel")
    assert str(caught.value).endswith(who) and seen.more_rights == rights


@pytest.mark.parametrize(("way", "owner"), [("job-step", "alice"), ("job", ""), ("ssh", "")])
def test_only_what_a_step_read_was_read_by_the_owner(way: str, owner: str) -> None:
    assert observation_of(Answer("n1", way, packed({"found": {}})), None, {}, "alice").owner == owner


def test_files_that_may_not_be_read() -> None:
    seen = Observation("n1", {"k": {"texts": {}, "unread": {"/x": "Permission denied"}}})
    with pytest.raises(NotObserved, match="/x: Permission denied"):
        seen.files("k")


def test_ranks_of_a_job() -> None:
    good = Observation("n1", {"ranks": {"value": {"ranks": [{"pid": 1}]}}})
    bad = Observation("n2", {"ranks": {"why": "no answer"}})
    assert JobObserved("42", 42, Fleet({"n1": good, "n2": bad})).ranks() == {"n1": [{"pid": 1}]}
    with pytest.raises(NotObserved, match="no answer"):
        JobObserved("42", 42, Fleet({"n2": bad})).ranks()
    with pytest.raises(NotObserved):
        JobObserved("42", 42, Fleet({})).ranks()


@pytest.mark.parametrize(
    "told",
    [
        {"rc": 0, "out": "a", "err": "", "cut": True},
        {"texts": {"/x": "a"}, "cut": ["/x"]},
        {"texts": {"/x": "a"}, "more": True},
    ],
)
def test_a_part_is_not_the_whole(told: dict[str, Any]) -> None:
    """But for a check that says that a part is enough for it."""
    seen = Observation("n1", {"k": told})
    with pytest.raises(NotObserved, match="read of it"):
        seen.text("k")
    assert seen.text("k", part=True) == "a"
    assert Observation("n1", {"k": {**told, "cut": [] if "texts" in told else False, "more": False}}).text("k") == "a"
