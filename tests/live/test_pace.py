from __future__ import annotations

from nccl_slurm.live.pace import Mark, Pace


def paced(*values: object, every: float = 10.0) -> Pace:
    pace = Pace()
    for number, value in enumerate(values):
        pace.see(number * every, {"a": Mark(value)})
    return pace


def test_since_when_it_is_as_it_is() -> None:
    pace = paced(1, 2, 2, 2)
    assert pace.quiet_s("a", 30.0) == 20.0


def test_a_rhythm_takes_two_changes() -> None:
    """The first change may end a pause that began long before."""
    assert paced(1, 1).with_rhythm(["a"]) == []
    assert paced(1, 2).with_rhythm(["a"]) == []
    assert paced(1, 2, 3).with_rhythm(["a", "unknown"]) == ["a"]
    assert paced(1, 2).longest_s(["a"]) is None


def test_too_long_is_out_of_its_own_rhythm_and_not_below_the_floor() -> None:
    pace = paced(1, 2, 2, 2, 3)
    assert pace.longest_s(["a"]) == 30.0
    assert pace.too_long_s(["a"], 20.0) == 90.0
    assert pace.too_long_s(["a"], 600.0) == 600.0


def test_the_age_of_a_file_tells_more_than_the_time_of_the_look() -> None:
    pace = Pace()
    pace.see(100.0, {"a": Mark(1, 40.0)})
    assert pace.quiet_s("a", 100.0) == 40.0
    pace.see(110.0, {"a": Mark(2, 4.0)})
    assert pace.quiet_s("a", 110.0) == 4.0


def test_a_clock_that_errs_makes_no_negative_pause() -> None:
    pace = Pace()
    pace.see(100.0, {"a": Mark(1, -50.0)})
    pace.see(110.0, {"a": Mark(2, 4000.0)})
    pace.see(120.0, {"a": Mark(3, 0.0)})
    assert pace.longest_s(["a"]) == 20.0 and pace.quiet_s("a", 120.0) == 0.0


def test_what_is_not_seen_stays_and_what_is_forgotten_goes() -> None:
    pace = paced(1, 2, 3)
    pace.see(30.0, {})
    assert pace.quiet_s("a", 30.0) == 10.0
    pace.forget("a")
    assert pace.with_rhythm(["a"]) == []
