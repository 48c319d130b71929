from __future__ import annotations

import pytest

from tests.hooks.site import SHELLS, Site, mode

HOOK = "epilog_slurmctld"
ENDED = {
    "SLURM_JOB_ID": "42",
    "SLURM_JOB_RESTART_COUNT": "1",
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_USER": "a\nSLURM_JOB_ID=1",
}


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_drops_one_event(site: Site, shell: tuple[str, ...]) -> None:
    done = site.run(HOOK, ENDED, shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (event,) = (site.folder / "events" / "new").iterdir()
    assert event.name == "42.1" and mode(event) == 0o600 and event.stat().st_size == 0


def test_a_second_run_leaves_one_event(site: Site) -> None:
    for _ in range(2):
        assert site.run(HOOK, ENDED).returncode == 0
    assert [path.name for path in (site.folder / "events" / "new").iterdir()] == ["42.1"]


@pytest.mark.parametrize("count", ["", "x", "../1"])
def test_a_strange_restart_count_is_zero(site: Site, count: str) -> None:
    site.run(HOOK, {**ENDED, "SLURM_JOB_RESTART_COUNT": count})
    assert [path.name for path in (site.folder / "events" / "new").iterdir()] == ["42.0"]


@pytest.mark.parametrize("text", ["echo theirs", "exit 3", "kill -9 $$"])
def test_the_sites_script_runs_first_and_its_status_stays(site: Site, text: str) -> None:
    site.configure(SITE_EPILOG_SLURMCTLD=str(site.script("theirs", f"echo ran >>{site.folder}/order; {text}")))
    done = site.run(HOOK, ENDED)
    assert done.returncode == {"exit 3": 3, "kill -9 $$": 137}.get(text, 0)
    assert (site.folder / "order").read_text() == "ran\n"
    assert (site.folder / "events" / "new" / "42.1").exists()


def test_a_missing_site_script_still_drops_the_event(site: Site) -> None:
    site.configure(SITE_EPILOG_SLURMCTLD="/nonexistent")
    assert site.run(HOOK, ENDED).returncode == 127
    assert (site.folder / "events" / "new" / "42.1").exists()
