"""What must hold when all is over, told from Slurm's accounting, the store's tables and the shared folder alone.

Nothing of the daemon's own code is asked: the store is read by SQL, our bracket is known by a pattern of its own.
"""

from __future__ import annotations

import json
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql
import pymysql.cursors

from tests.cluster.harness import Cluster
from tests.cluster.processes import wait_until

__all__ = ["Findings", "Run", "check", "has_comment", "runs_of_slurm", "wait_settled"]

OURS = re.compile(r"\[nccl-slurm: [^\[\]]*; report (?P<job>[0-9_+]+)(?: --run (?P<run>[0-9]+))?\]", re.IGNORECASE)
FIELDS = ("jobidraw", "jobid", "state", "start", "end", "nodelist", "exitcode", "derivedexitcode", "partition")
TEXTS = ("comment", "admincomment")
#: What stands in place of a live verdict that the run's end did not bear out.
WITHDRAWN = "no failure seen"
#: A second by which slurmctld's and slurmdbd's stamps of one start may differ.
SAME_S = 2.0


@dataclass(frozen=True)
class Run:
    """One record of accounting of a job that had nodes; ``newest`` of its job is the one that carries the comment."""

    raw_id: int
    id: str
    state: str
    start: float
    end: float | None
    nodes: int
    failed: bool
    comment: str
    admin_comment: str
    newest: bool


@dataclass
class Findings:
    """``broken``: one line each. ``counts`` is what was counted on the way, in order."""

    counts: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def need(self, holds: bool, what: str) -> None:
        if not holds:
            self.broken.append(what)

    def line(self) -> str:
        counted = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        return f"{counted}, {len(self.broken)} broken"


def runs_of_slurm(cluster: Cluster) -> list[Run]:
    rows = [row for row in _sacct(cluster) if row["partition"]]
    last = {row["jobidraw"]: number for number, row in enumerate(rows)}
    return [
        _run(row, number == last[row["jobidraw"]])
        for number, row in enumerate(rows)
        if row["start"].isdigit() and row["nodelist"] not in ("", "None assigned")
    ]


def has_comment(cluster: Cluster, job: str) -> bool:
    """In Comment or in AdminComment."""
    return any(OURS.search(text) for row in cluster.sacct(job, "comment,admincomment") for text in row.values())


def _sacct(cluster: Cluster) -> list[dict[str, str]]:
    names = (*FIELDS, *TEXTS)
    command = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-D", "-X", "-a", "-n", "-P", "--delimiter=\x1f"]
    told = cluster.run([*command, "-S", "uts1000000", "-o", ",".join(names)], timeout=120).stdout
    return [dict(zip(names, line.split("\x1f"), strict=True)) for line in told.splitlines()]


def _run(row: Mapping[str, str], newest: bool) -> Run:
    state = row["state"].partition(" ")[0]
    return Run(
        raw_id=int(row["jobidraw"]),
        id=row["jobid"],
        state=state,
        start=float(row["start"]),
        end=float(row["end"]) if row["end"].isdigit() else None,
        nodes=len(_hosts(row["nodelist"])),
        failed=state not in ("COMPLETED", "REQUEUED", "RUNNING") or row["derivedexitcode"] not in ("0:0", ""),
        comment=row["comment"],
        admin_comment=row["admincomment"],
        newest=newest,
    )


def _hosts(text: str) -> list[str]:
    """``n[1-2,4]`` → 3 names; this cluster has one prefix."""
    inner = re.fullmatch(r"n\[(.*)\]", text)
    if inner is None:
        return text.split(",")
    spans = [part.partition("-") for part in inner[1].split(",")]
    return [f"n{number}" for low, _, high in spans for number in range(int(low), int(high or low) + 1)]


class Stored:
    """The store's tables, read beside the daemon: SQLite, or MariaDB where there are two controllers."""

    def __init__(self, cluster: Cluster) -> None:
        self.path = cluster.scratch / "daemon" / "store.db"
        self._socket = str(cluster.sql_socket) if cluster.backup else None

    def rows(self, query: str) -> Sequence[Any]:
        if self._socket is not None:
            return self._of_mariadb(self._socket, query)
        connection = sqlite3.connect(f"file:{self.path}?mode=ro", uri=True, timeout=20)
        connection.row_factory = sqlite3.Row
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()

    @staticmethod
    def _of_mariadb(socket: str, query: str) -> Sequence[Any]:
        connection = pymysql.connect(
            unix_socket=socket, user="root", database="nccl_slurm", cursorclass=pymysql.cursors.DictCursor
        )
        try:
            with connection.cursor() as cursor:
                cursor.execute(query)
                return list(cursor.fetchall())
        finally:
            connection.close()

    def runs(self) -> Sequence[Any]:
        return self.rows("select raw_id, run, id, start, status, disposition, state from runs")

    def comments(self) -> Sequence[Any]:
        return self.rows("select raw_id, run, state, text, why from comments")

    def newest_reports(self) -> dict[tuple[int, int], Any]:
        found = self.rows("select raw_id, run, report from reports order by revision")
        return {(row["raw_id"], row["run"]): json.loads(zlib.decompress(row["report"])) for row in found}


def wait_settled(
    cluster: Cluster, timeout_s: float, *, waiting: Sequence[str] = ("queued",), every: float = 1.0
) -> bool:
    """Until each run of accounting is final in the store, each report published, and no comment is in one of the
    ``waiting`` states. What could not be published when it was made is tried again once a minute (docs/daemon.md)."""
    return wait_until(lambda: _settled(cluster, waiting), timeout_s, every=every)


def _settled(cluster: Cluster, waiting: Sequence[str]) -> bool:
    try:
        stored, expected = Stored(cluster), runs_of_slurm(cluster)
        final = {(row["raw_id"], row["run"]) for row in stored.runs() if row["status"] == "final"}
        due: list[Any] = [row for row in stored.comments() if row["state"] in waiting]
        due += [key for key, report in stored.newest_reports().items() if _published(cluster, report) != report]
    except (sqlite3.Error, pymysql.Error):
        return False
    left = list((cluster.shared / "new").iterdir())
    return len(final) >= len(expected) and all(run.end is not None for run in expected) and not due and not left


def check(cluster: Cluster, comments: Mapping[str, str], *, lacking: Collection[str] = ()) -> Findings:
    """``comments`` as `Stream` keeps them; ``lacking``: jobs of which no node record may ever come."""
    found, stored = Findings(), Stored(cluster)
    runs = runs_of_slurm(cluster)
    keys = dict(_matched(found, runs, stored.runs()))
    _check_verdicts(found, keys, stored)
    _check_comments(found, cluster, keys, comments, stored)
    _check_records(found, keys, stored, lacking)
    _check_folders(found, cluster)
    _check_published(found, cluster, keys, stored)
    return found


def _matched(found: Findings, runs: Sequence[Run], rows: Sequence[Any]) -> Iterator[tuple[Run, int]]:
    """Each run of Slurm with the number that the store gave it; what is left over on either side is a fault."""
    left = list(rows)
    for run in runs:
        same = [row for row in left if row["raw_id"] == run.raw_id and abs((row["start"] or 0) - run.start) <= SAME_S]
        found.need(len(same) == 1, f"job {run.id} {run.state} at {run.start:.0f}: {len(same)} runs in the store")
        if same:
            left.remove(same[0])
            found.need(same[0]["status"] == "final", f"job {run.id} run {same[0]['run']} is {same[0]['status']}")
            yield run, same[0]["run"]
    for row in left:
        found.need(False, f"job {row['id']} run {row['run']} {row['state']} {row['start']}: no such run in Slurm")


def _check_verdicts(found: Findings, keys: Mapping[Run, int], stored: Stored) -> None:
    reports = stored.newest_reports()
    known = {(run.raw_id, number) for run, number in keys.items()}
    found.need(set(reports) <= known, f"reports of no run: {sorted(set(reports) - known)}")
    for run, number in keys.items():
        report = reports.get((run.raw_id, number))
        status = report["status"] if report else "missing"
        found.need(status == "final", f"job {run.id} run {number}: report {status}")
        for text, count in Counter(_facts(report)).items():
            found.need(count == 1, f"job {run.id} run {number}: a fact {count} times: {text}")
    failed = [run for run in keys if run.failed]
    found.counts |= {"jobs": len({run.raw_id for run in keys}), "runs": len(keys), "failed runs": len(failed)}
    found.counts["verdicts of failed runs"] = sum((run.raw_id, keys[run]) in reports for run in failed)


def _facts(report: Any) -> Iterator[str]:
    for fact in report["facts"] if report else ():
        if fact["line"] is not None or fact["offset"] is not None:
            yield json.dumps({key: value for key, value in fact.items() if key != "id"}, sort_keys=True)


def _check_comments(
    found: Findings, cluster: Cluster, keys: Mapping[Run, int], comments: Mapping[str, str], stored: Stored
) -> None:
    queued = Counter((row["raw_id"], row["run"]) for row in stored.comments())
    withdrawn = {(row["raw_id"], row["run"]) for row in stored.comments() if WITHDRAWN in row["text"]}
    written = 0
    for run, number in keys.items():
        texts = queued[run.raw_id, number]
        taken_back = not run.failed and texts == 1 and (run.raw_id, number) in withdrawn
        # What the requeue itself ended counts as a failed step where accounting tells of the step in time.
        requeued = run.state == "REQUEUED" and texts <= 1
        found.need(
            texts == int(run.failed) or taken_back or requeued,
            f"job {run.id} run {number} {run.state}: {texts} texts for its comment",
        )
        if run.newest:
            brackets = [*OURS.finditer(run.comment), *OURS.finditer(run.admin_comment)]
            written += len(brackets)
            wanted = 1 if run.failed or (run.raw_id, number) in withdrawn else 0
            earlier = any(b["run"] for b in brackets)  # a line on an earlier run, which the waiting job took along
            found.need(len(brackets) == wanted or earlier, f"job {run.id}: {len(brackets)} of our lines, not {wanted}")
            found.need(all(b["job"] == run.id for b in brackets), f"job {run.id}: the line of another: {run.comment}")
    found.counts["comments"] = written
    untouched = 0
    for row in _sacct(cluster):
        users = comments.get(row["jobid"].partition("_")[0])
        if users is None or not row["partition"]:
            continue
        left = OURS.sub("", row["comment"])
        intact = left == users or (left != row["comment"] and left in (f"{users} ", f" {users}"))
        found.need(intact, f"job {row['jobid']}: the user wrote {users!r}, now {row['comment']!r}")
        untouched += intact
    found.counts["users' comments intact"] = untouched


def _check_records(found: Findings, keys: Mapping[Run, int], stored: Stored, lacking: Collection[str]) -> None:
    counted = Counter((row["raw_id"], row["run"], row["node"]) for row in stored.rows("select * from node_records"))
    for key, count in counted.items():
        found.need(count == 1, f"{count} records of job {key[0]} run {key[1]} on {key[2]}")
    found.counts["node records"] = counted.total()
    for run, number in keys.items():
        came = sum(key[:2] == (run.raw_id, number) for key in counted)
        enough = came == run.nodes or run.id.partition("_")[0] in lacking
        found.need(enough, f"job {run.id} run {number}: {came} node records of {run.nodes}")


def _check_folders(found: Findings, cluster: Cluster) -> None:
    for part in ("shared/new", "shared/quarantine", "events/new", "events.ctl2/new"):
        left = sorted(path.name for path in (cluster.scratch / part).iterdir())
        found.need(not left, f"left in {part}: {left[:5]}")


def _check_published(found: Findings, cluster: Cluster, keys: Mapping[Run, int], stored: Stored) -> None:
    reports, same = stored.newest_reports(), 0
    for run, number in keys.items():
        report = reports.get((run.raw_id, number))
        published = _published(cluster, report)
        equal = report is not None and published == report
        found.need(equal, f"job {run.id} run {number}: published is {'no' if published is None else 'another'} report")
        same += equal
    parts = [path.name for path in (cluster.shared / "reports").iterdir() if path.name.startswith(".")]
    found.need(not parts, f"half-written reports: {parts[:5]}")
    found.counts["reports published"] = same


def _published(cluster: Cluster, report: Any) -> Any:
    """The copy of this report's run in the shared folder; None where there is none."""
    if report is None:
        return None
    path = cluster.shared / "reports" / f"{report['job']['id']}.run{report['job']['run']}.json"
    return json.loads(path.read_text()) if path.exists() else None
