"""Every loader of hostile or foreign bytes, as a function that may raise the drawn exceptions of errors.py alone.

What a loader accepts is handed on to what reads it: a record that the schema lets through must reach a report.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import BinaryIO
from unittest import mock

from nccl_slurm import config
from nccl_slurm.capture import clock as node_clock
from nccl_slurm.capture import conf, gpu, kernel, spool, worker
from nccl_slurm.collect.shared import validate_record
from nccl_slurm.daemon import batch_script, output
from nccl_slurm.daemon.diagnose import Parts, diagnose
from nccl_slurm.daemon.faults import kernel_faults
from nccl_slurm.daemon.identity import sighting_of
from nccl_slurm.daemon.readings import compared, readings_of
from nccl_slurm.errors import ConfigError, InputError, RecordError, SlurmError, SlurmRefused
from nccl_slurm.history.rows import RecordRow
from nccl_slurm.model import Fact, Job, Parsed
from nccl_slurm.parse import flight_recorder, folder, patterns, redact
from nccl_slurm.parse.folder import Source, read_sources
from nccl_slurm.parse.kernel import kernel_facts
from nccl_slurm.parse.scan import LINE_LIMIT
from nccl_slurm.parse.search import Program, fastest, grep
from nccl_slurm.recommend import policy
from nccl_slurm.recommend.guard import Case
from nccl_slurm.recommend.ladder import advise
from nccl_slurm.recommend.record import faults, pretended
from nccl_slurm.report import load
from nccl_slurm.report.text import render
from nccl_slurm.scheduler import jobtext, jsontext, text
from tests.fuzz import seeds

__all__ = ["TARGETS", "Target"]

NOW = 1_790_000_000.0
#: The blocks are the program that can't be started.
_NO_PROGRAM = Program("/nonexistent/search", ())
#: Of these few of many are read: two that are alike, the last of the end.
_COUNTED = frozenset(row.id for row in patterns.load_rows().rows if row.thin or row.tail)


@dataclass(frozen=True)
class Target:
    """``refuses``: what ``read`` may raise. ``tree``: its bytes are JSON (or a pickle), mutated as a tree too."""

    read: Callable[[bytes], object]
    seeds: Callable[[], Iterable[bytes]]
    refuses: type[Exception] | tuple[type[Exception], ...] = ()
    tree: bool = False

    def __call__(self, data: bytes) -> None:
        """Raises only what must not be raised."""
        try:
            self.read(data)
        except self.refuses:
            return


@cache
def _rows() -> patterns.Rows:
    return patterns.load_rows()


@cache
def _scratch() -> str:
    """One file that is written again for each input of a loader that wants a path."""
    return os.path.join(tempfile.mkdtemp(prefix="fuzz"), "input")


def _file(data: bytes) -> str:
    with open(_scratch(), "wb") as file:
        file.write(data)
    return _scratch()


def _source(name: str, data: bytes, trust: str = "job") -> Source:
    return Source(name, lambda: io.BytesIO(data), len(data), 0.0, "n1", trust)


def _decoded(data: bytes) -> str:
    """As the client decodes what Slurm's commands print."""
    return data.decode("utf-8", "surrogateescape")


def record(data: bytes) -> None:
    found = validate_record(data)
    row = RecordRow("c", 42, 1, found["node"], 1.0, "", False, found)
    job = Job("42", 42, "c", nodes=(found["node"],), state="FAILED", exit="1:0", start=1.0, end=9e8)
    kernel_faults(found)
    known: dict[str, object] = {}
    for reading in readings_of(found, 8):
        _, known = compared(known, reading)
    sighting_of(found)
    rules = policy.default()
    past = pretended(found, "compute", faults(found, rules), 2)
    made = diagnose(Parts(job, [row], [], Parsed(), ["ctl"], machines={past.node: past}, now=9e8), "final")
    advise(Case(past.node, rules, machines={past.node: past}), faults(found, rules))
    _shown(json.dumps(made.report, allow_nan=False).encode())


def report(data: bytes) -> None:
    _shown(data)


def _shown(data: bytes) -> None:
    loaded = load.loads(data)
    for ranks in (False, True):
        render(loaded, color=ranks, ranks=ranks).encode()


def toml(data: bytes) -> None:
    loaded = config.loads(data.decode("utf-8", "replace"), "fuzz.toml")
    assert loaded.store_url and dict(config.flat(loaded))
    loaded.scope_of("gpu")


def capture_conf(data: bytes) -> None:
    """The environment that the sh wrapper hands on, and the file that the prolog left."""
    lines = _decoded(data).split("\n")
    conf.from_environment(dict(line.partition("=")[::2] for line in lines)).under("/x")
    spool._read_known(_file(data), 7)


def dump(data: bytes) -> None:
    flight_recorder.looks_like("nccl_trace_rank_0", data[:4096])
    flight_recorder.read(data)


def dump_in_folder(data: bytes) -> None:
    _as_record(read_sources([_source("nccl_trace_rank_3", data)], _rows(), now=NOW))


def compiled_rows(data: bytes) -> None:
    patterns.load_rows(_file(data)).find("NCCL WARN Timeout waiting")


def site_rows(data: bytes) -> None:
    """A file of rules.d: line patterns and Xids, then the whole decision table."""
    told = data.decode("utf-8", "replace")
    patterns.compile_rows(told)
    policy.load([told])


def slurm_tables(data: bytes) -> None:
    printed = _decoded(data)
    for read in (
        text.read_nodes,
        text.read_version,
        text.read_controllers,
        text.read_switches,
        text.read_database_hosts,
    ):
        read(printed)
    text.read_events(printed, printed)
    text.read_offered_fields(printed)
    text.modified_jobs(printed)
    text.read_config(printed)


def squeue(data: bytes) -> None:
    jobtext.read_live(_decoded(data), seeds.DELIMITER, gpus_tracked=True)


def sacct(data: bytes) -> None:
    jobtext.read_accounting(_decoded(data), seeds.DELIMITER, jobtext.ACCOUNTING_FIELDS, gpus_tracked=False)


def sacct_comments(data: bytes) -> None:
    jobtext.read_comments(_decoded(data), seeds.DELIMITER, range(100))


def slurm_json(data: bytes) -> None:
    """Each reader gets all of it: the one whose key is there reads."""
    refused = 0
    for read in (
        jsontext.read_nodes,
        partial(jsontext.read_live, gpus_tracked=True),
        partial(jsontext.read_accounting, gpus_tracked=False),
    ):
        try:
            read(data)
        except SlurmError:
            refused += 1
    if refused == 3:
        raise SlurmRefused("none could read it")


def kernel_log(data: bytes) -> None:
    printed = data.decode("utf-8", "backslashreplace")
    records = kernel._short_unix(printed) + kernel._journal_records(printed) + kernel._panic_file(_file(data))
    for fact in kernel_facts(records, "n1", _rows()):
        json.dumps(fact.to_json(), allow_nan=False)


def job_log(data: bytes) -> None:
    """The first byte chooses the file's name: names tell ranks and hosts."""
    name = seeds.LOG_NAMES[data[0] % len(seeds.LOG_NAMES)] if data else "job.log"
    trust = "root" if name == "kern.log" else "job"
    _as_record(read_sources([_source(name, data[1:], trust)], _rows(), now=NOW))


def logs(data: bytes) -> None:
    """As a large file: searched by every program, which all tell the same, and read whole, which tells no more.

    Beside what docs/architecture.md says that is lost: lines that are marked for the ends or for files of their own,
    that are one of many, or of which there are more than are kept; and long ones, of which each way shows another part.
    """
    name = seeds.LOG_NAMES[data[0] % 3] if data else "job.log"
    raw = data[1:]
    with open(_file(raw), "rb") as kept, mock.patch.object(folder, "WHOLE", 0):
        first, *others = [_searched(name, kept.name, len(raw), program) for program in _programs()]
    _as_record(first)
    for other in others:
        assert (other.facts, other.ranks) == (first.facts, first.ranks)
    whole = read_sources([_source(name, raw)], _rows(), now=NOW)
    if whole.gaps or max(map(len, raw.split(b"\n"))) > LINE_LIMIT // 16:
        return
    found = {(fact.offset, fact.text) for fact in first.facts}
    missed = [fact for fact in whole.facts if (fact.offset, fact.text) not in found]
    assert not [fact for fact in missed if _is_searched_for(raw, fact)], missed


def _opened(path: str) -> BinaryIO:
    return open(path, "rb")


def _searched(name: str, path: str, size: int, program: Program) -> Parsed:
    source = Source(name, partial(_opened, path), size, 0.0, "n1", "job")
    parsed = read_sources([source], _rows(), now=NOW, program=program)
    assert not [gap for gap in parsed.gaps if gap.source == "search"] or program == _NO_PROGRAM
    return parsed


def _is_searched_for(raw: bytes, fact: Fact) -> bool:
    """A line that holds a literal has to be found wherever it stands; without one its row says where it is read."""
    start = fact.offset or 0
    line = raw[start:].replace(b"\r", b"\n").partition(b"\n")[0]
    return any(literal in line for literal in _rows().literals) and fact.kind not in _COUNTED


@cache
def _programs() -> list[Program]:
    return list(dict.fromkeys(one for one in (_NO_PROGRAM, grep(), fastest()) if one is not None))


def _as_record(parsed: Parsed) -> None:
    """Through the worker's own cleaning and back, as it goes from a node into the daemon."""
    answer = {
        "facts": [fact.to_json() for fact in parsed.facts],
        "ranks": [rank.to_json() for rank in parsed.ranks],
        "gaps": [{"source": gap.source, "why": gap.why} for gap in parsed.gaps],
        "world_size": parsed.world_size,
    }
    output.parsed_from_json(worker._cleaned(json.loads(json.dumps(answer))))


def user_answer(data: bytes) -> None:
    """What the child says that runs with the user's rights: worker and daemon believe nothing but its shape."""
    value = json.loads(data)
    json.dumps(worker._cleaned(value), allow_nan=False)
    output.parsed_from_json(output.of_this_run(output.cleaned(value), 0.0))


def nvidia_smi(data: bytes) -> None:
    printed = data.decode("utf-8", "backslashreplace")
    found = gpu.parse(printed)
    json.dumps([found.gpus, found.driver, found.processes], allow_nan=False)
    gpu.nvlinks(printed)


def clocks(data: bytes) -> None:
    printed = data.decode("utf-8", "backslashreplace")
    json.dumps([node_clock.chrony(printed), node_clock.timedate(printed)], allow_nan=False)


def job_script(data: bytes) -> None:
    variables = {"SLURM_JOB_ID": "42", "SLURM_JOB_NAME": "train", "HOME": "/home/a"}
    for path in batch_script.log_paths(data.decode("utf-8", "replace"), "/w", variables):
        assert path.startswith("/")


def secrets(data: bytes) -> None:
    shown = redact.redacted(data.decode("utf-8", "replace"))
    assert redact.redacted(shown) == shown


TARGETS = {
    "record": Target(record, seeds.records, RecordError, tree=True),
    "config": Target(toml, seeds.configs, ConfigError),
    "report": Target(report, seeds.reports, InputError, tree=True),
    "flight-recorder": Target(dump, seeds.dumps, ValueError, tree=True),
    "flight-recorder-in-folder": Target(dump_in_folder, seeds.dumps, tree=True),
    "capture-conf": Target(capture_conf, seeds.environments),
    "pattern-rows": Target(compiled_rows, seeds.compiled_rows, ConfigError, tree=True),
    "site-rows": Target(site_rows, seeds.site_rows, ConfigError),
    "slurm-tables": Target(slurm_tables, seeds.slurm_tables, SlurmError),
    "slurm-json": Target(slurm_json, seeds.slurm_json, SlurmError, tree=True),
    "squeue": Target(squeue, seeds.squeue, SlurmError),
    "sacct": Target(sacct, seeds.sacct, SlurmError),
    "sacct-comments": Target(sacct_comments, seeds.sacct_comments, SlurmError),
    "kernel-log": Target(kernel_log, seeds.kernel_logs),
    "job-log": Target(job_log, seeds.job_logs),
    "logs": Target(logs, seeds.job_logs),
    "user-answer": Target(user_answer, seeds.user_answers, (ValueError, RecursionError), tree=True),
    "nvidia-smi": Target(nvidia_smi, seeds.nvidia_smi),
    "clock": Target(clocks, seeds.clocks),
    "job-script": Target(job_script, seeds.job_scripts),
    "redact": Target(secrets, seeds.secrets),
}
