"""Opening the store and its transactions: SQLite (WAL) or MariaDB by PyMySQL, one family of errors for both.

One store serves one cluster and one daemon at a time; any number of commands read beside it.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from nccl_slurm import strict_json
from nccl_slurm.errors import StoreBusy, StoreError
from nccl_slurm.history.holding import refuse_under_a_lease
from nccl_slurm.history.schema import MIGRATIONS, Migration, prepare

__all__ = ["CHUNK", "Database", "checked_url", "chunks", "fitting", "packed", "unpacked"]

_Self = TypeVar("_Self", bound="Database")

_SURROGATES = re.compile("[\ud800-\udfff]")

#: Seconds that a statement waits for another process.
_BUSY_S = 10
#: SQLite takes 32,766 values in one statement.
CHUNK = 2000
#: MariaDB ends the connection of a client that stood still so long inside a transaction: one that was frozen there, or
#: whose host died, would keep its locks for eight hours. A comment to any other server.
_ABANDONED = "SET @nccl_slurm = 1 /*M!100300 , SESSION idle_transaction_timeout = 30 */"
#: MariaDB: lock wait timeout, deadlock.
_MARIADB_BUSY = (1205, 1213)
#: MariaDB: unknown database, access denied to it or to the server.
_MARIADB_SETUP = (1044, 1045, 1049, 1698)


class Database:
    """``where`` names the store in messages, without its password. ``writes`` counts this process's transactions."""

    def __init__(self, engine: Engine, where: str, written_file: str | None = None) -> None:
        self._engine = engine
        self.where = where
        self._written_file = written_file  # of SQLite, where this process writes it
        self.writes = 0
        self._fence: Callable[[Connection], None] | None = None  # of a daemon that has the lease (`history.lease`)

    @classmethod
    def open(
        cls: type[_Self],
        url: str,
        *,
        read_only: bool = False,
        password: str | None = None,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> _Self:
        """``sqlite:////path/store.db`` or ``mariadb+pymysql://user@host/name``; ``password`` goes into the URL.

        Makes or migrates the tables, unless ``read_only``. StoreBusy, StoreTooNew, StoreError: one line with a remedy.
        """
        parsed = _parsed(url)
        if password is not None:
            parsed = parsed.set(password=password)
        sqlite = parsed.get_backend_name() == "sqlite"
        where = f"store {parsed.database}" if sqlite else f"store {parsed.render_as_string(hide_password=True)}"
        engine = _sqlite_engine(parsed, where, read_only) if sqlite else _server_engine(parsed, where)
        store = cls(engine, where, _sqlite_path(parsed) if sqlite and not read_only else None)
        try:
            with store._transaction(write=not read_only) as connection:
                if not read_only:
                    refuse_under_a_lease(connection, where, len(migrations) + 1)
                prepare(connection, where, migrations, read_only=read_only)
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        self._engine.dispose()
        if self._written_file is not None:
            _leave_wal(self._written_file)

    def compact(self) -> None:
        """SQLite's file holds what was removed until then. MariaDB purges by itself."""
        if self._written_file is not None:
            try:
                with closing(sqlite3.connect(_uri(self._written_file), uri=True, timeout=_BUSY_S)) as file:
                    file.execute("VACUUM")
            except sqlite3.Error as error:
                raise StoreError(f"{self.where} could not be compacted: {error}; make room and try again") from None

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        """One transaction, whole or not at all; on SQLite a writer takes its lock at the start."""
        try:
            with self._engine.connect().execution_options(write=write) as connection, connection.begin():
                yield connection
        except SQLAlchemyError as error:
            raise _store_error(error, self.where) from None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._transaction(write=False) as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[Connection]:
        with self._transaction(write=True) as connection:
            if self._fence is not None:
                self._fence(connection)
            self.writes += 1
            yield connection


def checked_url(url: str) -> None:
    """StoreError where no store can be at ``url``, or the driver for it is missing. Opens nothing."""
    parsed = _parsed(url)
    if parsed.get_backend_name() == "sqlite":
        _sqlite_path(parsed)
    else:
        _server_engine(parsed, parsed.render_as_string(hide_password=True)).dispose()


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError:
        raise StoreError("store.url is no database URL; give sqlite:////path or mariadb+pymysql://…") from None


def _sqlite_path(url: URL) -> str:
    if not url.database or url.database == ":memory:":
        raise StoreError("store.url names no file; give sqlite:////path/store.db")
    return os.path.abspath(url.database)


def _sqlite_engine(url: URL, where: str, read_only: bool) -> Engine:
    path = _sqlite_path(url)
    _check_files(path, where, read_only)
    database = f"file:{quote(path)}"
    query = {"mode": "ro" if read_only else "rw", "uri": "true"}
    engine = create_engine(URL.create("sqlite", database=database, query=query), connect_args={"timeout": _BUSY_S})
    event.listen(engine, "connect", _sqlite_connected(read_only))
    event.listen(engine, "begin", _sqlite_begun)
    return engine


def _check_files(path: str, where: str, read_only: bool) -> None:
    """The file is made here, for its mode: it holds what only administrators may read."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        raise StoreError(f"{where}: its folder does not exist; make {folder} or set paths.state")
    if os.path.exists(path):
        return
    if read_only:
        raise StoreError(f"{where} does not exist yet; the daemon makes it when it starts")
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o640))
    except OSError as error:
        raise StoreError(f"{where} can't be made: {error.strerror}") from None


def _sqlite_connected(read_only: bool) -> Callable[[sqlite3.Connection, object], None]:
    def connected(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # else the driver begins by itself, and not before changes of tables
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")  # a comment that was written must stay written

    return connected


def _leave_wal(path: str) -> None:
    """WAL asks of a reader that it can make files beside the store; members of a group can't. So a store that nobody
    writes has none. Where a reader or another writer holds it, it stays as it is."""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(_uri(path), uri=True, timeout=0.5)) as file,
    ):
        file.execute("PRAGMA journal_mode=DELETE")


def _uri(path: str) -> str:
    return f"file:{quote(path)}?mode=rw"


def _sqlite_begun(connection: Connection) -> None:
    write = connection.get_execution_options().get("write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _server_engine(url: URL, where: str) -> Engine:
    if url.get_backend_name() not in ("mysql", "mariadb"):
        raise StoreError(f"{where}: {url.get_backend_name()} is not supported; use SQLite or MariaDB")
    try:
        connect = {"connect_timeout": _BUSY_S, "charset": "utf8mb4", "init_command": _ABANDONED}
        engine = create_engine(url, pool_pre_ping=True, pool_recycle=1800, connect_args=connect)
    except (NoSuchModuleError, ImportError):
        raise StoreError(f"{where}: PyMySQL is missing; install nccl-slurm[mariadb]") from None
    return engine


def _store_error(error: SQLAlchemyError, where: str) -> StoreError:
    cause = error.orig if isinstance(error, DBAPIError) else error
    code = cause.args[0] if cause is not None and cause.args and isinstance(cause.args[0], int) else None
    text = " ".join(str(cause).split())[:200]
    if code in _MARIADB_BUSY or "database is locked" in text:
        return StoreBusy(f"{where} is held by another process; try again")
    if code in _MARIADB_SETUP:
        return StoreError(f"{where}: {text}; create the database and grant it to this user")
    if "disk is full" in text:
        return StoreError(f"{where}: no space left on its disk; nothing was stored")
    if "not a database" in text or "malformed" in text:
        return StoreError(f"{where} is damaged or no store; move it away and start the daemon")
    return StoreError(f"{where}: {text}")


def chunks(items: Sequence[str]) -> Iterator[Sequence[str]]:
    """Of `CHUNK`, for one statement each."""
    return (items[at : at + CHUNK] for at in range(0, len(items), CHUNK))


def fitting(table: Table, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that both databases take: no lone surrogates, no text longer than its column."""
    return {name: _fitting(value, getattr(table.c[name].type, "length", None)) for name, value in values.items()}


def _fitting(value: Any, length: int | None) -> Any:
    return _SURROGATES.sub("\ufffd", value)[:length] if isinstance(value, str) else value


def packed(value: Any) -> bytes:
    """JSON, the same bytes for equal values, compressed (a node record of 4 MiB to about a tenth)."""
    return zlib.compress(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii"), 6)


def unpacked(data: bytes) -> Any:
    return json.loads(zlib.decompress(data))


def unpacked_record(data: bytes) -> Any:
    """Of what was read by `strict_json` before it was packed."""
    return strict_json.again(zlib.decompress(data))
