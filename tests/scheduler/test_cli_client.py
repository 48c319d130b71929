"""The client's command lines, its errors and its limits, against a runner that answers from a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from nccl_slurm.errors import SlurmRefused, SlurmUnreachable
from nccl_slurm.scheduler import jobtext
from nccl_slurm.scheduler.cli_client import Answer, CliClient, run_command
from nccl_slurm.scheduler.client import SchedulerClient

CONFIG = (
    "ClusterName = lab\nAccountingStorageTRES = cpu,gres/gpu\nAccountingStorageType = accounting_storage/slurmdbd\n"
)
Rule = Callable[[Sequence[str]], Answer]


class Slurm:
    """Answers by the command's name; keeps what was run."""

    def __init__(self, **rules: Rule | Answer | BaseException) -> None:
        self.rules = rules
        self.ran: list[list[str]] = []
        self.env: dict[str, str] = {}

    def __call__(self, argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Answer:
        self.ran.append(list(argv))
        self.env = dict(env)
        rule = self.rules[argv[0].rsplit("/", 1)[1]]
        if isinstance(rule, BaseException):
            raise rule
        return rule if isinstance(rule, Answer) else rule(argv)


def client(**rules: Rule | Answer | BaseException) -> tuple[CliClient, Slurm]:
    slurm = Slurm(**rules)
    return CliClient("/opt/slurm/bin", "/opt/slurm/etc/slurm.conf", 5, run=slurm), slurm


def ok(out: str) -> Answer:
    return Answer(0, out, "")


def test_it_is_a_scheduler_client_with_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    made, slurm = client(scontrol=ok("slurm-wlm 22.05.8\n"))
    as_protocol: SchedulerClient = made
    assert as_protocol.version() == (22, 5)
    assert made.lower_cases_text()
    assert slurm.ran == [["/opt/slurm/bin/scontrol", "--version"]]
    assert slurm.env == {
        "PATH": "/usr/bin:/bin",
        "LC_ALL": "C",
        "TZ": "UTC",
        "SLURM_TIME_FORMAT": "%s",
        "SLURM_CONF": "/opt/slurm/etc/slurm.conf",
    }


def squeue(argv: Sequence[str]) -> Answer:
    """Prints one job, every field with the suffix that was asked for."""
    fields = [field.split(":", 1) for field in argv[-1].split(",")]
    values = {"JobID": "7", "JobArrayID": "7", "State": "RUNNING", "Comment": "a\nb"}
    return ok("".join(values.get(name, "") + suffix for name, suffix in fields) + "\n")


def test_each_call_has_its_own_delimiter() -> None:
    made, slurm = client(squeue=squeue, scontrol=ok(CONFIG))
    for _ in range(2):
        (job,) = made.jobs()
        assert (job.raw_id, job.comment) == (7, "a\nb")
    formats = [argv[-1] for argv in slurm.ran if argv[0].endswith("squeue")]
    assert len(set(formats)) == 2
    for suffix in (text.split(",")[0].removeprefix("JobID:") for text in formats):
        assert len(suffix) > 20
        assert not suffix[0].isdigit()
        assert suffix[0] not in "+- ."


def sacct(argv: Sequence[str]) -> Answer:
    if "--helpformat" in argv:
        return ok("  ".join(field for field in jobtext.ACCOUNTING_FIELDS if field != "FailedNode"))
    delimiter = argv[argv.index("--delimiter") + 1]
    fields = argv[argv.index("--format") + 1].split(",")
    assert "FailedNode" not in fields
    row = {"State": "FAILED", "End": "5", "Partition": "main"}
    rows = [{"JobIDRaw": str(number), "JobID": str(number), **row} for number in (1, 2, 3)]
    return ok("".join("".join(row.get(field, "") + delimiter for field in fields) + "\n" for row in rows))


def test_accounting_asks_only_for_the_fields_there_are_and_keeps_only_the_jobs_asked_for() -> None:
    made, slurm = client(sacct=sacct, scontrol=ok(CONFIG))
    assert [job.raw_id for job in made.accounting([3, 1])] == [1, 3]
    assert [job.raw_id for job in made.accounting(since=5.0, until=2_000_000.5)] == [1, 2, 3]
    assert made.accounting() == ()
    asked = [argv for argv in slurm.ran if "--duplicates" in argv]
    assert asked[0][-2:] == ["-j", "1,3"]
    assert asked[1][-4:] == ["-S", "uts1000000", "-E", "uts2000001"]
    assert set(made.comments([2, 9])) == {2}


@pytest.mark.parametrize("printed", ["", "\n", "Felder  gibt  es  keine\n"])
def test_a_sacct_that_offers_no_field_is_refused(printed: str) -> None:
    made, _ = client(sacct=ok(printed), scontrol=ok(CONFIG))
    with pytest.raises(SlurmRefused, match="sacct --helpformat names no field"):
        made.accounting([1])


def test_long_lists_are_asked_for_in_several_calls() -> None:
    made, slurm = client(sacct=sacct, scontrol=ok(CONFIG))
    made.comments(range(1, 1202))
    assert len(slurm.ran) == 3


def test_one_call_writes_one_text_to_many_records() -> None:
    printed = " Modified jobs...\n  1 submitted at 2026-11-29T16:03:38\n  9 submitted at 2026-11-29T16:03:38\n"
    made, slurm = client(sacctmgr=ok(printed))
    text = "x; where jobid=5 set comment=evil"
    assert made.write_accounted_comment(["1", "2_2", "43+1"], text, "admincomment") == {1, 9}
    assert slurm.ran[0][1:] == ["-i", "modify", "job", "where", "jobid=1,2_2,43+1", "set", f"admincomment={text}"]


@pytest.mark.parametrize(
    "said",
    [
        Answer(1, " Nothing modified\n", "sacctmgr: accounting_storage/slurmdbd: Request didn't affect anything"),
        Answer(1, "", "sacctmgr: error: Request didn't affect anything or your user doesn't have privilege"),
        Answer(1, " Modified jobs...\n  Nothing modified\n", "Data has not changed since time specified"),
    ],
)
def test_a_record_that_slurmdbd_does_not_know_yet_is_no_error(said: Answer) -> None:
    made, _ = client(sacctmgr=said)
    assert made.write_accounted_comment(["99"], "x") == frozenset()


def test_without_ids_nothing_is_run() -> None:
    """sacctmgr without a job id would change all jobs of the cluster."""
    made, slurm = client(sacctmgr=ok(""), sacct=sacct, scontrol=ok(CONFIG))
    assert made.write_accounted_comment([], "x") == frozenset()
    assert made.comments([]) == {}
    assert slurm.ran == []


@pytest.mark.parametrize("job_id", ["", " 1", "1,2", "1 set", "1_[1-3]", "-1", "1\n", "1_2_3", "٣", "all"])
def test_only_ids_reach_a_command(job_id: str) -> None:
    made, slurm = client(sacctmgr=ok(""), scontrol=ok(""))
    for write in (
        lambda: made.write_accounted_comment(["1", job_id], "x"),
        lambda: made.write_live_comment(job_id, "x"),
        lambda: made.batch_script(job_id),
    ):
        with pytest.raises(SlurmRefused, match="is no job id"):
            write()
    assert slurm.ran == []


def test_a_comment_on_an_ended_job_is_refused_in_one_line() -> None:
    made, slurm = client(scontrol=Answer(1, "", "\x1b[31mJob has already finished for job 1\n"))
    with pytest.raises(SlurmRefused) as caught:
        made.write_live_comment("1", "x y")
    assert str(caught.value) == "scontrol update jobid=1: ?[31mJob has already finished for job 1"
    assert slurm.ran[0][1:] == ["update", "jobid=1", "comment=x y"]


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sacct: error: Problem talking to the database: Connection refused",
        "sacctmgr: error: Sending PersistInit msg: Connection refused",
        "squeue: error: If munged is up, restart with --num-threads=10\nsqueue: error: Munge encode failed: x",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
    ],
)
def test_a_daemon_that_is_away(said: str) -> None:
    made, _ = client(scontrol=Answer(1, "", said), squeue=Answer(1, "", said), sacctmgr=Answer(1, "", said))
    for ask in (
        made.jobs,
        made.nodes,
        made.settings,
        lambda: made.node_events(0),
        lambda: made.write_accounted_comment(["1"], "x"),
        lambda: made.batch_script("1"),
    ):
        with pytest.raises(SlurmUnreachable):
            ask()


def test_no_accounting_is_a_refusal() -> None:
    said = "You are not running a supported accounting_storage plugin\nOnly 'accounting_storage/slurmdbd' is supported."
    made, _ = client(sacctmgr=Answer(1, "", said))
    with pytest.raises(SlurmRefused, match="Only 'accounting_storage/slurmdbd' is supported"):
        made.write_accounted_comment(["1"], "x")


def test_a_command_that_hangs_or_is_not_there() -> None:
    made, _ = client(squeue=TimeoutError())
    with pytest.raises(SlurmUnreachable, match="squeue did not answer within 5 s"):
        made.jobs()
    missing = CliClient("/nonexistent")
    with pytest.raises(SlurmUnreachable, match=r"/nonexistent/scontrol can't be run: .*set slurm.bin"):
        missing.nodes()


def test_ping_of_a_dead_controller_still_tells_the_hosts() -> None:
    made, _ = client(scontrol=Answer(1, "Slurmctld(primary) at vm is DOWN\n", ""))
    (found,) = made.controllers()
    assert (found.host, found.role, found.up) == ("vm", "primary", False)
    made, _ = client(scontrol=Answer(1, "", "scontrol: error: something\n"))
    with pytest.raises(SlurmRefused, match="scontrol ping: scontrol: error: something"):
        made.controllers()


def test_no_topology_is_no_error() -> None:
    made, _ = client(scontrol=Answer(1, "\n", "scontrol: error: No topology information available\n"))
    assert made.switches() == {}
    made, _ = client(scontrol=Answer(1, "", "scontrol: error: something\n"))
    with pytest.raises(SlurmRefused, match="scontrol show topology: scontrol: error: something"):
        made.switches()


def test_batch_scripts() -> None:
    made, _ = client(scontrol=ok("#!/bin/sh\n"))
    assert made.batch_script("1_2") == "#!/bin/sh\n"
    made, _ = client(scontrol=Answer(0, "", "job script retrieval failed: Invalid job id specified"))
    assert made.batch_script("1") is None


def test_commands_really_run_without_a_shell_and_within_their_time(tmp_path: Path) -> None:
    code = (
        "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1])); print(sorted(os.environ), file=sys.stderr)"
    )
    answer = run_command([sys.executable, "-I", "-c", code, "$HOME; \udcff é"], {"LC_ALL": "C.UTF-8"}, 30)
    assert (answer.code, answer.out) == (0, "$HOME; \udcff é")
    assert "HOME'" not in answer.error
    with pytest.raises(TimeoutError):
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], {}, 0.2)
    made = CliClient("/usr/bin")
    with pytest.raises(SlurmRefused, match="no command line can carry"):
        made.write_live_comment("1", "a\0b")
