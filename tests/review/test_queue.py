"""One active recommendation a machine: opened, seen again, superseded, withdrawn, expired."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.history.rows import ACTIVE, RecommendationRow
from nccl_slurm.model import Recommendation
from nccl_slurm.review.queue import ACTIONS_ON_MACHINES, Source, due, given_up, renew

NOW = 1_000.0
DAY = 86400.0


def asked(action: str = "reboot", node: str | None = "n1", why: str = "Xid 79", **more: Any) -> Recommendation:
    return Recommendation(node, action, f"ladder.{action}", 2, why, ("f1",), ("scontrol show node n1",), **more)


def source(raw_id: int = 42, run: int = 1, identity: str = "i-1") -> Source:
    return Source("c", raw_id, run, str(raw_id), "gpu-hw-lost", {"n1": identity})


def row(action: str = "reboot", state: str = "open", raw_id: int = 42, **more: Any) -> RecommendationRow:
    ((made, _),) = renew([], [asked(action)], source(raw_id), now=NOW - 500, expire_s=DAY)
    return replace(made, **{"state": state, "number": 7, **more})


def words(
    known: list[RecommendationRow], wanted: list[Recommendation], origin: Source, **more: Any
) -> list[tuple[str, str]]:
    changes = renew(known, wanted, origin, now=NOW, expire_s=DAY, **more)
    return [(word, after.action) for after, word in changes]


def test_a_first_one_is_opened_for_the_machine_and_not_for_the_name() -> None:
    ((opened, word),) = renew([], [asked()], source(), now=NOW, expire_s=DAY)
    assert (word, opened.identity, opened.node, opened.state) == ("opened", "i-1", "n1", "open")
    assert (opened.opened, opened.expires, opened.number) == (NOW, NOW + DAY, None)
    assert (opened.job, opened.evidence, opened.failure_class) == ("42", ("f1",), "gpu-hw-lost")


@pytest.mark.parametrize(
    ("known", "wanted", "origin", "expected"),
    [
        ([], [asked("fix-code", None)], source(), []),  # for the owner
        ([], [asked("network")], source(), []),  # of no machine
        ([row()], [asked()], source(), []),  # judged again, the same: nothing happens
        ([row()], [asked(why="Xid 79, twice")], source(), [("seen again", "reboot")]),
        ([row()], [asked()], source(43), [("seen again", "reboot")]),  # the next job, the same fault
        ([row(state="snoozed")], [asked("replace")], source(43), [("superseded", "reboot"), ("opened", "replace")]),
        ([row("investigate")], [asked("reboot")], source(43), [("superseded", "investigate"), ("opened", "reboot")]),
        ([row("replace")], [asked("investigate")], source(43), []),  # another job asks for less
        (
            [row("replace")],
            [asked("reboot")],
            source(),
            [("superseded", "replace"), ("opened", "reboot")],
        ),  # this one does
        ([row()], [], source(), [("withdrawn", "reboot")]),  # the late record told otherwise
        ([row()], [], source(43), []),  # another job's good end withdraws nothing
        ([row(state="declined")], [asked()], source(), []),  # a person has spoken on this run
        ([row(state="declined")], [asked("replace")], source(), [("opened", "replace")]),  # not on that
        ([row(state="declined")], [asked()], source(43), [("opened", "reboot")]),  # a new job is new evidence
        ([row(state="expired")], [asked()], source(), []),
        ([row(state="withdrawn")], [asked()], source(), [("opened", "reboot")]),
        (
            [row(identity="i-0")],
            [asked()],
            source(),
            [("opened", "reboot"), ("withdrawn", "reboot")],
        ),  # another machine
    ],
)
def test_what_becomes_of_it(
    known: list[RecommendationRow], wanted: list[Recommendation], origin: Source, expected: list[tuple[str, str]]
) -> None:
    assert words(known, wanted, origin) == expected


@pytest.mark.parametrize("state", ["open", "snoozed", "accepted"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [("ladder.in-progress", []), ("ladder.wait", []), ("ladder.moved", [("withdrawn", "reboot")])],
)
def test_while_recovery_is_in_progress_nothing_changes(state: str, rule: str, expected: list[tuple[str, str]]) -> None:
    nothing = replace(asked("none"), rule=rule)
    assert words([row(state=state)], [nothing], source()) == expected


@pytest.mark.parametrize(
    ("known", "wanted", "origin", "expected"),
    [
        (row(), [], source(), ["i-1"]),
        (row("replace"), [asked("reboot")], source(), ["i-1"]),
        (row("reboot"), [asked("replace")], source(), []),
        (row(), [asked(why="more")], source(), []),
        (row("investigate"), [asked("reboot")], source(43), []),
        (row(), [], source(43), []),
    ],
)
def test_what_another_run_may_still_ask_for(
    known: RecommendationRow, wanted: list[Recommendation], origin: Source, expected: list[str]
) -> None:
    assert given_up(renew([known], wanted, origin, now=NOW, expire_s=DAY), origin) == expected


def test_who_snoozed_for_long_has_as_long_to_decide_as_at_first() -> None:
    ((after, _),) = due([row(state="snoozed", until=NOW, opened=NOW - 30 * DAY, expires=NOW - 16 * DAY)], NOW, DAY)
    assert (after.state, after.expires) == ("open", NOW + 14 * DAY)
    assert due([after], NOW + 60, DAY) == []


def test_seen_again_keeps_number_and_a_persons_decision() -> None:
    before = row(state="snoozed", until=NOW + 50, by="alice", decided=NOW - 10, note="on the way")
    ((after, _),) = renew([before], [asked()], source(43), now=NOW, expire_s=DAY)
    kept = ("number", "opened", "state", "until", "by", "decided", "note")
    assert [getattr(after, name) for name in kept] == [getattr(before, name) for name in kept]
    assert (after.raw_id, after.expires) == (43, NOW + DAY)


def test_an_accepted_one_that_was_carried_out_is_done_and_the_next_is_a_new_one() -> None:
    accepted = row(state="accepted", by="alice", decided=NOW - 10)
    assert words([accepted], [asked()], source(43)) == [("seen again", "reboot")]
    done = words([accepted], [asked()], source(43), carried_out=lambda one: True)
    assert done == [("done", "reboot"), ("opened", "reboot")]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (row(expires=NOW), "expired"),
        (row(expires=NOW + 1), None),
        (row(state="snoozed", until=NOW), "open"),
        (row(state="snoozed", until=NOW + 1, expires=NOW), None),  # who snoozed it wants to be asked again
        (row(state="accepted", decided=NOW - 10, expires=NOW), None),
        (row(state="accepted", decided=NOW - DAY + 1, expires=NOW - 1), None),
        (row(state="accepted", decided=NOW - DAY, expires=NOW + DAY), "expired"),  # other runs renewed it since
        (row(state="declined", expires=NOW), None),
    ],
)
def test_what_time_changes(known: RecommendationRow, expected: str | None) -> None:
    assert [after.state for after, _ in due([known], NOW, DAY)] == ([expected] if expected else [])


runs = st.lists(st.tuples(st.integers(1, 4), st.lists(st.sampled_from(ACTIONS_ON_MACHINES), max_size=1)), max_size=12)


@given(runs)
def test_never_two_active_of_one_machine(said: list[tuple[int, list[str]]]) -> None:
    """Whatever runs say, in whatever order, judged again or not; and nothing twice."""
    stored: dict[int, RecommendationRow] = {}
    for at, (raw_id, actions) in enumerate(said):
        wanted = [asked(action) for action in actions]
        for _ in range(2):
            known = [one for one in stored.values() if one.state in ACTIVE or one.raw_id == raw_id]
            changes = renew(known, wanted, source(raw_id), now=NOW + at, expire_s=DAY)
            for after, _ in changes:
                number = after.number or len(stored) + 1
                stored[number] = replace(after, number=number)
        assert changes == []
        assert sum(one.state in ACTIVE for one in stored.values()) <= 1
