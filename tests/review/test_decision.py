from __future__ import annotations

import os

import pytest

from nccl_slurm.errors import InputError
from nccl_slurm.review.decision import Person, accept, decline, line, person, snooze
from tests.review.test_queue import NOW, row

ALICE = Person("root", 0, "alice", "ctl")


def test_each_decision_says_who_when_and_why() -> None:
    accepted = accept(row(), ALICE, "cable reseated", NOW)
    assert (accepted.state, accepted.by, accepted.decided, accepted.note) == (
        "accepted",
        "root (sudo: alice)",
        NOW,
        "cable reseated",
    )
    assert decline(row(), ALICE, "", NOW).state == "declined"
    later = snooze(row(), ALICE, "", NOW, 7200.0)
    assert (later.state, later.until) == ("snoozed", NOW + 7200)
    told = line(accepted, ALICE, NOW)
    assert (told.who, told.uid, told.sudo_user, told.what, told.recommendation, told.text) == (
        "root",
        0,
        "alice",
        "accepted",
        7,
        "cable reseated",
    )


@pytest.mark.parametrize("state", ["accepted", "declined", "superseded", "withdrawn", "expired", "done"])
def test_what_is_closed_stays_so(state: str) -> None:
    with pytest.raises(InputError, match=f"recommendation 7 is {state}"):
        accept(row(state=state), ALICE, "", NOW)


def test_a_snooze_has_an_end() -> None:
    with pytest.raises(InputError, match="90d is the most"):
        snooze(row(), ALICE, "", NOW, 91 * 86400.0)


def test_sudos_word_counts_for_root_and_the_daemons_user_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1234567)
    assert person({"SUDO_USER": "bob"}) == Person("1234567", 1234567, None, person({}).host)
    assert person({"SUDO_USER": "bob"}, daemon_uid=64030).sudo_user is None
    assert person({"SUDO_USER": "bob"}, daemon_uid=1234567).shown == "1234567 (sudo: bob)"
    assert person({}, daemon_uid=1234567).shown == "1234567"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert person({"SUDO_USER": "bob"}).shown == "root (sudo: bob)"
