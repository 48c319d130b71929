"""Jobs as squeue and sacct print them; the values are those of 22.05 unless said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.errors import SlurmError
from nccl_slurm.model import Job, Step, alike
from nccl_slurm.scheduler import jobtext
from nccl_slurm.scheduler.client import LiveJob

D = "~0123456789abcdef~"
LIVE = {
    "JobID": "10",
    "JobArrayID": "10_5",
    "ArrayJobID": "10",
    "ArrayTaskID": "5",
    "HetJobID": "N/A",
    "HetJobOffset": "N/A",
    "Name": "rq",
    "State": "RUNNING",
    "Reason": "None",
    "Partition": "main",
    "UserID": "65534",
    "UserName": "alice",
    "NodeList": "n[1-2]",
    "BatchHost": "n1",
    "BatchFlag": "1",
    "SubmitTime": "1795968218",
    "StartTime": "1795968260",
    "EndTime": "1795999999",
    "RestartCnt": "0",
    "exit_code": "0",
    "DerivedEC": "0",
    "tres-alloc": "cpu=1,node=1,billing=1,gres/gpu=4",
    "WorkDir": "/home/alice",
    "STDOUT": "/home/alice/slurm-10.out",
    "STDERR": "/home/alice/slurm-10.out",
    "Comment": "(null)",
}


def squeue(**fields: str) -> str:
    row = {**LIVE, **{name.replace("tres_alloc", "tres-alloc"): value for name, value in fields.items()}}
    return "".join(row[name] + D for name in jobtext.LIVE_FIELDS) + "\n"


def live(**fields: str) -> LiveJob:
    (job,) = jobtext.read_live(squeue(**fields), D, gpus_tracked=True)
    return job


SINGLE = {"JobArrayID": "10", "ArrayTaskID": "N/A"}


def test_an_array_task() -> None:
    job = live()
    assert (job.raw_id, job.id, job.array_job_id, job.array_task_id) == (10, "10_5", 10, 5)
    assert (job.het_job_id, job.nodes, job.gpus, job.uid, job.comment) == (None, ("n1", "n2"), 4, 65534, "")
    assert (job.submit, job.start, job.end) == (1795968218.0, 1795968260.0, None)


def test_a_component_of_a_het_job() -> None:
    job = live(JobID="21", JobArrayID="20+1", ArrayJobID="21", ArrayTaskID="N/A", HetJobID="20", HetJobOffset="1")
    assert (job.raw_id, job.id, job.het_job_id, job.het_offset, job.array_job_id) == (21, "20+1", 20, 1, None)


def test_an_ended_job() -> None:
    job = live(State="FAILED", exit_code="768", DerivedEC="256", EndTime="1795968300")
    assert (job.exit, job.derived_exit, job.end) == ("3:0", "1:0", 1795968300.0)


def test_hostile_text_stays_in_its_field() -> None:
    name = "na me JobState=FAILED\n99~NodeList=evil"
    comment = f"x NodeList=evil\n{squeue(JobID='99').replace(D, '~')}|a|b"
    first, second = jobtext.read_live(squeue(Name=name, Comment=comment) + squeue(JobID="11"), D, gpus_tracked=True)
    assert (first.name, first.comment, first.node_list, second.raw_id) == (name, comment, "n[1-2]", 11)


def test_paths_where_the_user_named_none() -> None:
    assert live().stdout == "/home/alice/slurm-10_5.out"  # before 24 squeue prints slurm-10.out for a task
    assert live(**SINGLE).stdout == "/home/alice/slurm-10.out"
    assert live(STDOUT="/home/alice/slurm-%A_%a.out", STDERR="").stderr == "/home/alice/slurm-10_5.out"  # 24
    assert live(**SINGLE, STDERR="N/A").stderr == "/home/alice/slurm-10.out"


def test_no_batch_script_no_paths() -> None:
    job = live(BatchFlag="0")
    assert (job.batch, job.stdout, job.stderr) == (False, None, None)


def test_patterns_as_slurmstepd_replaces_them() -> None:
    job = live(STDOUT="/w/a%x_%A_%a_%j_%u_%N_%t_%n_%%_%5j_%s_%99j.out", STDERR="err-%J", WorkDir="/w")
    assert job.stdout == "/w/arq_10_5_10_alice_n1_0_0_%_00010_batch_0000000010.out"
    assert job.stderr == "/w/err-10"


def test_patterns_that_are_none() -> None:
    assert live(STDOUT="/w/100%q-%").stdout == "/w/100%q-%"
    assert live(STDOUT="/w/a\\%j\\\\b").stdout == "/w/a%j\\b"
    assert live(**SINGLE, STDOUT="/w/%a").stdout == "/w/4294967294"
    assert live(STDOUT="/w/o ut|x\n%j").stdout == "/w/o ut|x\n10"


SACCT = {
    "JobIDRaw": "1",
    "JobID": "1",
    "DBIndex": "7",
    "Cluster": "lab",
    "State": "FAILED",
    "ExitCode": "3:0",
    "DerivedExitCode": "1:0",
    "Submit": "1795968218",
    "Start": "1795968218",
    "End": "1795968300",
    "NodeList": "n[1-2]",
    "User": "alice",
    "UID": "1000",
    "Partition": "main",
    "AllocTRES": "billing=2,cpu=2,gres/gpu=4,node=2",
    "FailedNode": "",
    "Restarts": "0",
    "Reason": "None",
    "JobName": "my job|x",
}
OLD = tuple(field for field in jobtext.ACCOUNTING_FIELDS if field not in ("FailedNode", "Restarts"))


def sacct(fields: tuple[str, ...] = jobtext.ACCOUNTING_FIELDS, **values: str) -> str:
    return "".join({**SACCT, **values}[name] + D for name in fields) + "\n"


def step(identity: str, **values: str) -> str:
    empty = {"User": "", "UID": "", "DerivedExitCode": "", "Partition": ""}
    return sacct(jobtext.ACCOUNTING_FIELDS, **{**empty, "JobIDRaw": identity, "JobID": identity, **values})


def test_a_record_number_of_later_releases() -> None:
    """24.11 and 26.05 number records by an id of 64 bits, 22.05 by counting."""
    (job,) = jobtext.read_accounting(
        sacct(DBIndex="16295862543852638208"), D, jobtext.ACCOUNTING_FIELDS, gpus_tracked=True
    )
    assert job.record == 16295862543852638208


def test_a_job_with_its_steps() -> None:
    printed = (
        sacct()
        + step("1.batch", JobName="batch", ExitCode="3:0", NodeList="n1")
        + step("1.0", JobName="evil\n2", State="CANCELLED by 0", ExitCode="0:15")
        + sacct(JobIDRaw="8", JobID="2_1")
        + step("9.0")
    )
    first, second = jobtext.read_accounting(printed, D, jobtext.ACCOUNTING_FIELDS, gpus_tracked=True)
    assert (first.raw_id, first.record, first.exit, first.derived_exit, first.gpus) == (1, 7, "3:0", "1:0", 4)
    assert (first.name, first.reason, first.failed_node, first.restarts) == ("my job|x", None, None, 0)
    assert first.steps == (
        Step("1.batch", "batch", "FAILED", 3, 0, ("n1",), 1795968218.0, 1795968300.0),
        Step("1.0", "evil\n2", "CANCELLED", 0, 15, ("n1", "n2"), 1795968218.0, 1795968300.0),
    )
    assert (second.id, second.steps) == ("2_1", ())
    assert alike(Job, first, run=2).run == 2
    assert alike(Job, first, run=2).steps == first.steps


def test_runs_of_a_requeued_job() -> None:
    printed = (
        sacct(State="NODE_FAIL", FailedNode="n2")
        + step("1.batch", ExitCode="0:15")
        + sacct(State="PENDING", Start="Unknown", End="Unknown", NodeList="None assigned", Restarts="1", AllocTRES="")
    )
    first, second = jobtext.read_accounting(printed, D, jobtext.ACCOUNTING_FIELDS, gpus_tracked=True)
    assert (first.state, first.failed_node, first.final, len(first.steps)) == ("NODE_FAIL", "n2", True, 1)
    assert (second.state, second.final, second.nodes, second.gpus, second.start) == ("PENDING", False, (), None, None)


def test_the_fields_of_22() -> None:
    (job,) = jobtext.read_accounting(sacct(OLD, State="CANCELLED by 7001"), D, OLD, gpus_tracked=True)
    assert (job.state, job.cancelled_by, job.failed_node, job.restarts) == ("CANCELLED", "7001", None, None)


def test_records_that_slurmdbd_made_up_are_left_out() -> None:
    """As seen on 22.05 in the first seconds of a job; its steps go with it."""
    made_up = {"JobName": "allocation", "Partition": "", "UID": "0", "User": "root", "State": "COMPLETED"}
    printed = (
        sacct()
        + step("1.batch")
        + sacct(jobtext.ACCOUNTING_FIELDS, **made_up, NodeList="n1")
        + step("1.0")
        + step("1.1")
    )
    (job,) = jobtext.read_accounting(printed, D, jobtext.ACCOUNTING_FIELDS, gpus_tracked=True)
    assert (job.name, job.uid, len(job.steps)) == ("my job|x", 1000, 1)


def test_an_end_that_is_still_queued_is_not_final() -> None:
    (job,) = jobtext.read_accounting(
        sacct(State="RUNNING", End="Unknown"), D, jobtext.ACCOUNTING_FIELDS, gpus_tracked=True
    )
    assert not job.final


def comments(*rows: tuple[str, ...]) -> str:
    return "".join("".join(field + D for field in row) + "\n" for row in rows)


def test_comments() -> None:
    user = 'User\'s Own "Tag" KEEP\n1|2|FAILED'
    printed = comments(
        ("1", "1", "FAILED", "5", "9", "n[1-2]", "main", user, ""),
        ("2", "1_2", "RUNNING", "5", "Unknown", "n1", "main", "", "adm"),
        ("3", "1_3", "RUNNING", "5", "Unknown", "n1", "main", "", ""),
        ("4", "4", "COMPLETED", "5", "9", "n1", "", "", ""),
        ("5", "5", "CANCELLED by 0", "5", "9", "None assigned", "main", "", ""),
    )
    found = jobtext.read_comments(printed, D, [1, 2, 4, 5])
    assert {raw_id: state.ran for raw_id, state in found.items()} == {1: True, 2: True, 5: False}
    assert (found[1].comment, found[1].final, found[2].admin_comment, found[2].final) == (user, True, "adm", False)


@given(st.lists(st.text(), min_size=len(jobtext.LIVE_FIELDS), max_size=len(jobtext.LIVE_FIELDS)))
def test_any_values_of_squeue(values: list[str]) -> None:
    printed = "".join(value + D for value in values) + "\n"
    for number in ("7", values[0]):
        jobs = jobtext.read_live(number + D + printed.split(D, 1)[1], D, gpus_tracked=False)
        assert len(jobs) <= 1


@given(st.lists(st.text(), max_size=60), st.sampled_from([jobtext.ACCOUNTING_FIELDS, OLD]))
def test_any_values_of_sacct(values: list[str], fields: tuple[str, ...]) -> None:
    printed = "".join(value + D for value in values)
    try:
        found = jobtext.read_accounting(printed, D, fields, gpus_tracked=False)
        jobtext.read_comments(printed, D, [1])
    except SlurmError:
        return
    assert isinstance(found, tuple)


@given(st.text())
def test_any_pattern(pattern: str) -> None:
    assert isinstance(jobtext.stdio_path(pattern, live()), str)
