from __future__ import annotations

import pytest

from tests.hooks.site import EPILOG, PROLOG, SHELLS, Site, mode, variables

PROLOG_HOOK, HOOK = "prolog.d/50-nccl-slurm", "epilog.d/50-nccl-slurm"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_closes_the_run_of_its_prolog(site: Site, shell: tuple[str, ...]) -> None:
    site.run(PROLOG_HOOK, PROLOG)
    done = site.run(HOOK, EPILOG, shell=shell)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    run = site.only_run()
    assert (run / "closed").read_text() == "epilog\n"
    assert mode(run / "closed") == 0o644 and mode(run / "root" / "epilog.env") == 0o600
    assert variables(run, "epilog.env")["SLURM_JOB_EXIT_CODE2"] == "9:0"
    assert "time" not in variables(run, "epilog.env"), "the file's own time is it"
    assert (site.spool / "queue" / f"finish.{run.name}").exists()
    assert site.worker_log(2)[1] == f"--conf {site.conf} --queued finish {run}"


def test_makes_a_run_where_no_prolog_ran(site: Site) -> None:
    site.run(HOOK, EPILOG)
    run = site.only_run()
    assert run.name.startswith("42.") and mode(run) == 0o711 and mode(run / "root") == 0o700
    assert not (run / "user").exists() and not (run / "root" / "prolog.env").exists()
    assert (run / "closed").exists() and site.worker_log()[0].endswith(f"finish {run}")


def _make_run(site: Site, name: str, *files: str) -> None:
    (site.spool / name / "root").mkdir(parents=True)
    for file in files:
        (site.spool / name / file).touch()


def test_takes_the_newest_run_that_had_no_epilog(site: Site) -> None:
    _make_run(site, "42.1700000100", "closed", "root/epilog.env")
    _make_run(site, "42.1700000300")
    _make_run(site, "42.1700000200")
    _make_run(site, "421.1700000400")
    site.run(HOOK, EPILOG)
    assert [run.name for run in site.runs() if (run / "root" / "epilog.env").exists()] == [
        "42.1700000100",
        "42.1700000300",
    ]
    assert not (site.spool / "421.1700000400" / "closed").exists()


def test_a_late_epilog_belongs_to_the_run_that_a_reboot_closed(site: Site) -> None:
    _make_run(site, "42.1700000100")
    (site.spool / "42.1700000100" / "closed").write_text("boot\n")
    site.run(HOOK, EPILOG)
    assert (site.only_run() / "closed").read_text() == "boot\n"
    assert (site.only_run() / "root" / "epilog.env").exists()


def test_nothing_where_the_partition_is_off(site: Site) -> None:
    site.configure(PARTITIONS_OFF="gpu")
    assert site.run(HOOK, EPILOG).returncode == 0
    assert not site.spool.exists()
