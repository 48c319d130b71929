"""The files in which evidence stands, opened with the rights of who owns them.

A job's output is its user's: root opens it in a child that has that user's rights, and only regular files of that user,
no links (`capture.userfiles`). What lies on nodes is not fetched: the report has its lines.
"""

from __future__ import annotations

import base64
import json
import os
import pwd
from collections.abc import Mapping, Sequence
from functools import partial

from nccl_slurm.bundle.extract import FILE_MAX, Span, read_spans, shown, spans_of
from nccl_slurm.bundle.part import Part, safe, text_part
from nccl_slurm.capture import rights
from nccl_slurm.capture.child import answer_of
from nccl_slurm.capture.userfiles import find
from nccl_slurm.model import Gap
from nccl_slurm.parse.folder import walk

__all__ = ["of_job", "of_logs"]

_LIMIT_S = 60.0
_ANSWER_MAX = 64 << 20
_Pieces = Sequence[tuple[Span, bytes]]


def of_logs(report: Mapping[str, object], path: str) -> tuple[list[Part], list[Gap]]:
    """From the folder or file that ``--logs`` named, as this user."""
    wanted = spans_of(report)
    sources = {source.name: source for source in walk(path)[0] if source.name in wanted}
    found: dict[str, _Pieces] = {}
    gaps: list[Gap] = []
    for name, spans in wanted.items():
        try:
            with sources[name].open() as file:
                found[name] = read_spans(file, spans)
        except KeyError:
            gaps.append(Gap(name, "is not there any more"))
        except OSError as error:
            gaps.append(Gap(name, error.strerror or str(error) or "can't be read"))
    return _parts(found), gaps


def of_job(report: Mapping[str, object], user: str | None) -> tuple[list[Part], list[Gap]]:
    """Absolute paths are the job's output. All others lie on nodes, and are gaps here."""
    wanted = spans_of(report)
    here = {name: spans for name, spans in wanted.items() if name.startswith("/")}
    gaps = [Gap(name, "lies on its node; report.json has its lines") for name in wanted if name not in here]
    if not here:
        return [], gaps
    try:
        owner = pwd.getpwnam(user or "")
    except KeyError:
        return [], [*gaps, Gap("job output", f"its user {user or 'is not told and'} is not known on this host")]
    work = partial(_as_user, owner.pw_uid, owner.pw_gid, owner.pw_name, here)
    answer = answer_of(work, limit_s=_LIMIT_S, limit_bytes=_ANSWER_MAX)
    if answer.why is not None or answer.cut:
        return [], [*gaps, Gap("job output", answer.why or "too large")]
    found, more = _unpacked(answer.text)
    return _parts(found), [*gaps, *more]


def _as_user(uid: int, gid: int, user: str, wanted: Mapping[str, Sequence[Span]]) -> str:
    rights.become(uid, gid, user)
    found: dict[str, list[list[object]]] = {}
    gaps: list[Gap] = []
    for name, spans in wanted.items():
        for one in find(name, uid, gaps):
            try:
                with one.open() as file:
                    pieces = read_spans(file, spans)
            except OSError as error:
                gaps.append(Gap(name, error.strerror or str(error) or "can't be read"))
                continue
            found[name] = [[span.start, base64.b64encode(data).decode()] for span, data in pieces]
    return json.dumps({"found": found, "gaps": [[gap.source, gap.why] for gap in gaps]})


def _unpacked(text: str) -> tuple[dict[str, _Pieces], list[Gap]]:
    tree = json.loads(text)
    found: dict[str, _Pieces] = {}
    for name, pieces in tree["found"].items():
        data = [(start, base64.b64decode(each)) for start, each in pieces]
        found[name] = [(Span(start, start + len(each)), each) for start, each in data]
    return found, [Gap(source, why) for source, why in tree["gaps"]]


def _parts(found: Mapping[str, _Pieces]) -> list[Part]:
    parts = []
    for number, (name, pieces) in enumerate(sorted(found.items()), start=1):
        base = os.path.basename(name) or "log"
        path = f"logs/{number:03d}-{safe(base, number)}.txt"
        text = shown(name, pieces)[: 2 * FILE_MAX]
        parts.append(text_part(path, text, "lines around the evidence in one file of the job", 2))
    return parts
