"""The daemon forgets by the hour what is older than the site keeps, published copies too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.config import StoreSection
from nccl_slurm.daemon import retention
from tests.daemon.test_loop import Lab, end_badly

DAY = 86400.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


def keep(lab: Lab, retain_days: int, records_days: int) -> None:
    lab.config = replace(lab.config, store=StoreSection(retain_days=retain_days, records_days=records_days))
    lab.restart()


def judged(lab: Lab) -> int:
    """A job that failed and is told, with one record of two nodes."""
    job = end_badly(lab)
    lab.record(job, "n1")
    lab.run(70)
    assert lab.store.run("c", job, 1).status == "final"  # type: ignore[union-attr]
    return job


def published(lab: Lab) -> set[str]:
    return {path.name for path in (lab.shared / "reports").iterdir()}


def test_documents_go_first_and_then_the_run_and_its_copies(lab: Lab) -> None:
    keep(lab, retain_days=90, records_days=30)
    job = judged(lab)
    assert published(lab) == {f"{job}.json", f"{job}.run1.json"}
    lab.days(31)
    lab.run(1)
    assert lab.store.records("c", job, 1) == ()
    assert lab.store.report("c", job, 1) is not None
    assert published(lab) == {f"{job}.json", f"{job}.run1.json"}
    lab.days(60)
    lab.run(1)
    assert lab.store.run("c", job, 1) is None
    assert published(lab) == set()


def test_zero_keeps_all(lab: Lab) -> None:
    keep(lab, retain_days=0, records_days=0)
    job = judged(lab)
    lab.clock.sleep(9999 * DAY)
    lab.run(1)
    assert len(lab.store.records("c", job, 1)) == 1
    assert published(lab) == {f"{job}.json", f"{job}.run1.json"}


def test_a_record_that_comes_after_its_kin_went_changes_no_verdict(lab: Lab) -> None:
    keep(lab, retain_days=90, records_days=30)
    job = judged(lab)
    before = lab.store.report("c", job, 1)
    lab.days(31)
    lab.record(job, "n2")
    lab.run(120)
    assert lab.store.report("c", job, 1) == before
    assert "too late" in lab.store.notes("quarantine")[0].text


def test_while_the_shared_folder_is_away_runs_stay(lab: Lab) -> None:
    keep(lab, retain_days=30, records_days=30)
    job = judged(lab)
    shutil.move(lab.shared / "reports", lab.shared / "away")
    lab.days(31)
    lab.run(1)
    assert lab.store.run("c", job, 1) is not None
    assert "old reports stay" in lab.store.notes("retention")[0].text
    shutil.move(lab.shared / "away", lab.shared / "reports")
    lab.clock.sleep(3600)
    lab.run(1)
    assert (lab.store.run("c", job, 1), published(lab)) == (None, set())


def test_a_store_of_years_is_forgotten_in_batches(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(lab, retain_days=30, records_days=30)
    monkeypatch.setattr(retention, "BATCH", 2)
    jobs = [judged(lab) for _ in range(5)]
    lab.days(40)
    lab.run(1)
    assert [lab.store.run("c", job, 1) for job in jobs] == [None] * 5
