"""Tables and their versions. A change of a table needs a new version and a migration: a test compares with files.

SQLite and MariaDB both: names are compared byte by byte (MariaDB's default would take ``N1`` for ``n1``), Text and
LargeBinary have a length (MariaDB's shortest BLOB ends at 64 KiB), times are DOUBLE (its FLOAT loses seconds).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    inspect,
    select,
    update,
)

from nccl_slurm.errors import StoreError, StoreTooNew

__all__ = [
    "MIGRATIONS",
    "Migration",
    "audit",
    "comments",
    "generations",
    "hints",
    "lease",
    "machine_events",
    "machines",
    "meta",
    "metadata",
    "node_events",
    "node_records",
    "notes",
    "outputs",
    "paths",
    "prepare",
    "quiet",
    "recommendations",
    "reports",
    "run_nodes",
    "runs",
    "standbys",
    "version_of",
]

Migration = Callable[[Connection], None]

_LONG = 2**24 - 1

metadata = MetaData()


_CREATED = {"engine": "InnoDB", "charset": "utf8mb4", "collate": "utf8mb4_bin"}
#: SQLAlchemy reads the prefix of the URL's own dialect: mysql+pymysql or mariadb+pymysql.
_OPTIONS: dict[str, Any] = {
    f"{dialect}_{name}": value for dialect in ("mysql", "mariadb") for name, value in _CREATED.items()
}


def _table(name: str, *parts: Column[object] | UniqueConstraint | Index, **options: Any) -> Table:
    return Table(name, metadata, *parts, **_OPTIONS, **options)


def _run_key() -> list[Column[object]]:
    return [
        Column("cluster", String(64), primary_key=True),
        Column("raw_id", BigInteger, primary_key=True, autoincrement=False),
        Column("run", Integer, primary_key=True, autoincrement=False),
    ]


meta = _table("meta", Column("name", String(40), primary_key=True), Column("value", BigInteger, nullable=False))

runs = _table(
    "runs",
    *_run_key(),
    Column("id", String(64), nullable=False),
    Column("user", String(255)),
    Column("uid", BigInteger),
    Column("name", Text(_LONG)),
    Column("partition", String(255)),
    Column("state", String(40)),
    Column("exit", String(40)),
    Column("derived_exit", String(40)),
    Column("nodes", Text(_LONG), nullable=False),
    Column("submit", Double),
    Column("start", Double),
    Column("end", Double),
    Column("gpus", Integer),
    Column("failed_node", String(255)),
    Column("cancelled_by", String(40)),
    Column("steps", Text(_LONG), nullable=False),
    Column("status", String(20), nullable=False),
    Column("disposition", String(20)),
    Column("stdout", Text(_LONG)),
    Column("stderr", Text(_LONG)),
    Column("workdir", Text(_LONG)),
    Column("log_paths", Text(_LONG), nullable=False),
    Column("comment", Text(_LONG)),
    Column("live_reason", String(255)),
    Index("runs_id", "id"),
    Index("runs_status", "status"),
    Index("runs_start", "start"),
    Index("runs_user", "user"),
)

#: The nodes of ``runs.nodes``, to find a node's runs.
run_nodes = _table(
    "run_nodes", *_run_key(), Column("node", String(255), primary_key=True), Index("run_nodes_node", "node")
)

node_records = _table(
    "node_records",
    *_run_key(),
    Column("node", String(255), primary_key=True),
    Column("sha256", String(64), primary_key=True),
    Column("received", Double, nullable=False),
    Column("written", Double, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("record", LargeBinary(_LONG), nullable=False),
    Index("node_records_node", "node"),
)

node_events = _table(
    "node_events",
    Column("number", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("node", String(255), nullable=False),
    Column("time", Double, nullable=False),
    Column("state", String(255), nullable=False),
    Column("reason", Text(_LONG)),
    Column("reason_by", String(255)),
    Column("source", String(40), nullable=False),
    Column("identity", String(255)),
    UniqueConstraint("digest", name="node_events_digest"),
    Index("node_events_node_time", "node", "time"),
)

reports = _table(
    "reports",
    *_run_key(),
    Column("revision", Integer, primary_key=True, autoincrement=False),
    Column("at", Double, nullable=False),
    Column("report", LargeBinary(_LONG), nullable=False),
)

#: The job's own output as it was read last: kept, since users remove logs and a late record asks for them again.
outputs = _table("outputs", *_run_key(), Column("output", LargeBinary(_LONG), nullable=False))

#: Ways that a run's data took. ``machines``: sha256 of the sorted identities of all its machines.
paths = _table(
    "paths",
    *_run_key(),
    Column("machines", String(64), nullable=False),
    Column("paths", LargeBinary(_LONG), nullable=False),
    Index("paths_machines", "machines"),
)

#: Runs whose user did not want their lines read, by the word of a node's record: known without unpacking any.
quiet = _table("quiet", *_run_key())

comments = _table(
    "comments",
    *_run_key(),
    Column("text", Text(_LONG), nullable=False),
    Column("field", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("tries", Integer, nullable=False),
    Column("next_try", Double, nullable=False),
    Column("why", Text(_LONG), nullable=False),
    Index("comments_state_next_try", "state", "next_try"),
)

notes = _table(
    "notes",
    Column("number", Integer, primary_key=True),
    Column("kind", String(40), nullable=False),
    Column("text", String(500), nullable=False),
    Column("at", Double, nullable=False),
    Column("count", Integer, nullable=False),
    Index("notes_kind_at", "kind", "at"),
)

#: ``commands`` and ``evidence`` are JSON lists.
recommendations = _table(
    "recommendations",
    Column("number", Integer, primary_key=True),
    Column("identity", String(255), nullable=False),
    Column("node", String(255), nullable=False),
    Column("action", String(20), nullable=False),
    Column("rule", String(100), nullable=False),
    Column("step", Integer, nullable=False),
    Column("why", Text(_LONG), nullable=False),
    Column("evidence", Text(_LONG), nullable=False),
    Column("commands", Text(_LONG), nullable=False),
    Column("failure_class", String(60), nullable=False),
    Column("cluster", String(64), nullable=False),
    Column("raw_id", BigInteger, nullable=False),
    Column("run", Integer, nullable=False),
    Column("job", String(64), nullable=False),
    Column("opened", Double, nullable=False),
    Column("changed", Double, nullable=False),
    Column("expires", Double, nullable=False),
    Column("state", String(20), nullable=False),
    Column("until", Double),
    Column("by", String(255)),
    Column("decided", Double),
    Column("note", Text(_LONG), nullable=False),
    Index("recommendations_identity", "identity"),
    Index("recommendations_node", "node"),
    Index("recommendations_state", "state"),
)

#: Nothing here changes or removes a row of it; SQLite refuses both (`_append_only`).
audit = _table(
    "audit",
    Column("number", Integer, primary_key=True),
    Column("at", Double, nullable=False),
    Column("who", String(255), nullable=False),
    Column("uid", BigInteger),
    Column("sudo_user", String(255)),
    Column("host", String(255), nullable=False),
    Column("what", String(40), nullable=False),
    Column("recommendation", Integer),
    Column("node", String(255), nullable=False),
    Column("text", Text(_LONG), nullable=False),
    Index("audit_at", "at"),
)


def _add_review(connection: Connection) -> None:
    metadata.create_all(connection, tables=[recommendations, audit], checkfirst=True)
    if "node_records_node" not in {str(index["name"]) for index in inspect(connection).get_indexes(node_records.name)}:
        next(index for index in node_records.indexes if index.name == "node_records_node").create(connection)
    _append_only(connection)


def _append_only(connection: Connection) -> None:
    """MariaDB wants a right for triggers that a store's user has not always got."""
    if connection.dialect.name != "sqlite":
        return
    for change in ("UPDATE", "DELETE"):
        connection.exec_driver_sql(
            f"CREATE TRIGGER IF NOT EXISTS audit_no_{change.lower()} BEFORE {change} ON audit "
            "BEGIN SELECT RAISE(ABORT, 'audit is append-only'); END"
        )


def _add_paths_and_quiet(connection: Connection) -> None:
    """Runs of the old version that still settle: what their records say is lost on `quiet`, so it is looked up once."""
    paths.create(connection, checkfirst=True)
    quiet.create(connection, checkfirst=True)
    key = (node_records.c.cluster, node_records.c.raw_id, node_records.c.run)
    same = [one == other for one, other in zip(key, (runs.c.cluster, runs.c.raw_id, runs.c.run), strict=True)]
    query = select(*key, node_records.c.record).join(runs, and_(*same)).where(runs.c.status != "final")
    found = {(*row[:3],) for row in connection.execute(query) if b"NCCL_SLURM_CAPTURE=off" in zlib.decompress(row[3])}
    known = {(*row,) for row in connection.execute(select(quiet))}
    for cluster, raw_id, run in found - known:
        connection.execute(quiet.insert().values(cluster=cluster, raw_id=raw_id, run=run))


#: One row a machine. ``seen`` is when its newest node record was written; ``readings`` are that record's, of its GPUs.
#: ``shared``: two live nodes claimed this identity, so it tells no machine any more.
machines = _table(
    "machines",
    Column("number", Integer, primary_key=True),
    Column("identity", String(255), nullable=False),
    Column("source", String(20), nullable=False),
    Column("shared", Boolean, nullable=False),
    Column("role", String(20), nullable=False),
    Column("boot_id", String(64)),
    Column("boot_time", Double),
    Column("slurmd_start", Double),
    Column("seen", Double),
    Column("readings", Text(_LONG)),
    UniqueConstraint("identity", name="machines_identity"),
)

#: Which machine had which node name from when to when; ``until`` is null for the one that has it now.
generations = _table(
    "generations",
    Column("node", String(255), primary_key=True),
    Column("since", Double, primary_key=True),
    Column("until", Double),
    Column("machine", Integer, nullable=False),
    Index("generations_machine", "machine"),
)

#: Tens of millions of rows, read a machine at a time: the key is the order on the disk, in both databases. ``key`` is a
#: part of a digest of what makes an event the same one. States are not here: `node_events` holds them by node name.
machine_events = _table(
    "machine_events",
    Column("machine", Integer, primary_key=True, autoincrement=False),
    Column("time", Double, primary_key=True),
    Column("key", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(20), nullable=False),
    Column("name", String(100), nullable=False),
    Column("source", String(20), nullable=False),
    Column("text", Text(_LONG)),
    Column("class", String(40)),
    Column("uncertainty", Double),
    Column("data", Text(_LONG)),
    sqlite_with_rowid=False,
)


def _add_machines(connection: Connection) -> None:
    metadata.create_all(connection, tables=[machines, generations, machine_events], checkfirst=True)


#: One row: which daemon works on this store (`history.lease`). Times are by the database's own clock.
lease = _table(
    "lease",
    Column("name", String(40), primary_key=True),
    Column("token", String(64), nullable=False),
    Column("host", String(255), nullable=False),
    Column("pid", BigInteger, nullable=False),
    Column("place", String(64), nullable=False),
    Column("since", Double, nullable=False),
    Column("until", Double, nullable=False),
)

standbys = _table(
    "standbys",
    Column("host", String(255), primary_key=True),
    Column("pid", BigInteger, nullable=False),
    Column("seen", Double, nullable=False),
    Column("reaches_slurm", Boolean, nullable=False),
)

#: Jobs whose end a stand-by was told of, for the daemon that works.
hints = _table("hints", Column("raw_id", BigInteger, primary_key=True, autoincrement=False))


def _add_lease(connection: Connection) -> None:
    metadata.create_all(connection, tables=[lease, standbys, hints], checkfirst=True)


#: ``MIGRATIONS[n]`` makes version n + 2 out of version n + 1. MariaDB commits each change of a table by itself, so a
#: step that died half-way runs again: each must bear that.
MIGRATIONS: tuple[Migration, ...] = (_add_review, _add_paths_and_quiet, _add_machines, _add_lease)


def version_of(connection: Connection) -> int:
    """0 for an empty database."""
    if not inspect(connection).has_table(meta.name):
        return 0
    return connection.scalar(select(meta.c.value).where(meta.c.name == "schema_version")) or 0


def prepare(connection: Connection, where: str, migrations: Sequence[Migration], *, read_only: bool) -> None:
    """Bring the database to the version that this code knows, all in the caller's transaction."""
    known = len(migrations) + 1
    found = version_of(connection)
    if found > known:
        raise StoreTooNew(
            f"{where} was written by a newer nccl-slurm (schema {found}, this one knows {known}); "
            "upgrade nccl-slurm on this host"
        )
    if found < known and read_only:
        old = "is empty" if found == 0 else f"has schema {found}, this nccl-slurm needs {known}"
        raise StoreError(f"{where} {old}; start the daemon of this version once")
    if found == 0:
        metadata.create_all(connection)
        _append_only(connection)
        connection.execute(meta.insert().values(name="schema_version", value=known))
    elif found < known:
        for migrate in migrations[found - 1 :]:
            migrate(connection)
        connection.execute(update(meta).where(meta.c.name == "schema_version").values(value=known))
