"""The queue of comments: what each run's job is to carry, and how far that has come.

queued → written → verified, or given-up. A new text begins again.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from nccl_slurm.history.database import Database, fitting
from nccl_slurm.history.rows import CommentRow
from nccl_slurm.history.runs import of_run
from nccl_slurm.history.schema import comments, runs

__all__ = ["Comments"]

_PENDING = ("queued", "written")
#: Most waits are shorter. MinJobAge may make longer ones.
_PUT_OFF_S = 600.0


class Comments(Database):
    def queue_comment(self, cluster: str, raw_id: int, run: int, text: str, at: float) -> bool:
        """False where the run has this text already, whatever became of it.

        A job has one comment: that of its newest run which has a text. Those of earlier runs give way.
        """
        start = {"text": text, "field": "", "state": "queued", "tries": 0, "next_try": at, "why": ""}
        values = fitting(comments, {"cluster": cluster, "raw_id": raw_id, "run": run, **start})
        this = of_run(comments, cluster, raw_id, run)
        with self._writing() as connection:
            stored = connection.scalar(select(comments.c.text).where(this))
            if stored == values["text"]:
                return False
            if stored is None:
                connection.execute(insert(comments).values(values))
            else:
                connection.execute(update(comments).where(this).values(values))
            _one_a_job(connection, cluster, raw_id)
        return True

    def due_comments(self, now: float, limit: int = 200) -> tuple[CommentRow, ...]:
        """Texts to be written or looked at again, the longest due first."""
        due = (comments.c.state.in_(_PENDING), comments.c.next_try <= now)
        return self._comments(*due, limit=limit)

    def look_at_comments_again(self, now: float) -> None:
        """At those that a clock which was ahead has put off for long; looking too early does no harm."""
        late = (comments.c.state.in_(_PENDING), comments.c.next_try > now + _PUT_OFF_S)
        with self._writing() as connection:
            connection.execute(update(comments).where(*late).values(next_try=now))

    def comment_of(self, cluster: str, raw_id: int, run: int) -> CommentRow | None:
        return next(iter(self._comments(of_run(comments, cluster, raw_id, run), limit=1)), None)

    def comments_given_up(self, limit: int = 100) -> tuple[CommentRow, ...]:
        """For ``status``: texts that are in the store and in the report alone."""
        return self._comments(comments.c.state == "given-up", limit=limit)

    def comment_counts(self) -> dict[str, int]:
        """How many texts are in each state."""
        query = select(comments.c.state, func.count()).group_by(comments.c.state)
        with self._reading() as connection:
            return {state: int(count) for state, count in connection.execute(query)}

    def comment_written(self, row: CommentRow, field: str, verify_at: float) -> None:
        """To be read again at ``verify_at``."""
        self._change(row, state="written", field=field, next_try=verify_at, tries=row.tries + 1, why="")

    def comment_verified(self, row: CommentRow, field: str) -> None:
        self._change(row, state="verified", field=field, why="")

    def comment_waits(self, row: CommentRow, at: float, why: str) -> None:
        """To be looked at again; nothing was tried."""
        self._change(row, next_try=at, why=why)

    def comment_later(self, row: CommentRow, at: float, why: str) -> None:
        self._change(row, next_try=at, tries=row.tries + 1, why=why)

    def comment_given_up(self, row: CommentRow, why: str) -> None:
        self._change(row, state="given-up", why=why)

    def _change(self, row: CommentRow, **values: Any) -> None:
        """Only while the text is the one that ``row`` holds: a newer text has its own way to go."""
        this = (of_run(comments, row.cluster, row.raw_id, row.run), comments.c.text == row.text)
        with self._writing() as connection:
            connection.execute(update(comments).where(*this).values(fitting(comments, values)))

    def _comments(self, *where: ColumnElement[bool], limit: int) -> tuple[CommentRow, ...]:
        same = of_run(runs, comments.c.cluster, comments.c.raw_id, comments.c.run)
        query = select(comments, runs.c.id, runs.c.end).join(runs, same).where(*where)
        order = (comments.c.next_try, comments.c.raw_id, comments.c.run)
        with self._reading() as connection:
            found = connection.execute(query.order_by(*order).limit(limit)).all()
        return tuple(CommentRow(**dict(row._mapping)) for row in found)


def _one_a_job(connection: Connection, cluster: str, raw_id: int) -> None:
    """The newest run is the one that began last: of one that nobody saw while it ran the number may be higher."""
    of_job = (comments.c.cluster == cluster, comments.c.raw_id == raw_id)
    same = of_run(runs, comments.c.cluster, comments.c.raw_id, comments.c.run)
    by_start = (
        select(comments.c.run).outerjoin(runs, same).where(*of_job).order_by(runs.c.start.desc(), comments.c.run.desc())
    )
    newest = connection.scalar(by_start.limit(1))
    earlier = (*of_job, comments.c.run != newest, comments.c.state.in_(_PENDING))
    connection.execute(update(comments).where(*earlier).values(state="given-up", why=f"run {newest} has the comment"))
