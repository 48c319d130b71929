"""Makes docs/guide/coverage.md: what others check and where they are blind → our check → its test.

``python -m tests.doctor.coverage`` writes it; with ``--check`` it only says whether it is as it should be. It fails
where a row has neither a check of ours nor a reason, where a check or a test that is named is not there, and where a
check has no test.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from nccl_slurm.doctor import registry
from nccl_slurm.doctor.check import AREAS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DOCUMENT", "Row", "loaded", "made", "problems"]

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".toml")
DOCUMENT = ROOT / "docs" / "guide" / "coverage.md"
_SHOWN = 4
_HEAD = """\
# Coverage

Made by `python -m tests.doctor.coverage` of `tests/doctor/coverage.toml`, and compared by the tests: a row without an
answer, a check without a test, or a test that is not there fails.

Rows are what AWS's public HyperPod troubleshooting skills check on a cluster (awslabs/agent-plugins, sagemaker-ai, read
at commit ef84ee3c), 53 weaknesses that were found in them, and what they disagree in. What is
Kubernetes' alone is said to be not covered.
"""


@dataclass(frozen=True)
class Row:
    id: str
    part: str
    what: str
    checks: Sequence[str] = ()
    by: str = ""
    not_covered: str = ""
    tests: Sequence[str] = field(default_factory=tuple)


@cache
def loaded() -> tuple[Sequence[Row], Mapping[str, Sequence[str]]]:
    """Rows, and the tests of each check."""
    told: dict[str, Any] = tomllib.loads(TABLE.read_text("utf-8"))
    return [Row(**row) for row in told["row"]], {one["id"]: one["tests"] for one in told["check"]}


def registered() -> set[str]:
    return {check.id for check in registry.checks(*AREAS)}


def problems() -> list[str]:
    rows, of_check = loaded()
    known = registered()
    return [
        *_of_rows(rows, known, of_check),
        *(f"{check}: no test is named for it" for check in sorted(known - set(of_check))),
        *(f"{check}: is no check" for check in sorted(set(of_check) - known)),
        *_of_tests(
            {test for row in rows for test in row.tests} | {one for tests in of_check.values() for one in tests}
        ),
        *(f"{row.id}: stands twice" for place, row in enumerate(rows) if row.id in {one.id for one in rows[:place]}),
        *_holes(rows),
    ]


def _of_rows(rows: Sequence[Row], known: set[str], of_check: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for row in rows:
        if bool(row.not_covered) == bool(row.checks or row.by):
            yield f"{row.id}: has no answer, or two"
        yield from (f"{row.id}: {check} is no check" for check in row.checks if check not in known)
        if not row.not_covered and not tests_of(row, of_check):
            yield f"{row.id}: has no test"


def _of_tests(named: set[str]) -> Iterator[str]:
    for test in sorted(named):
        file, _, name = test.partition("::")
        if name not in _tests_in(file):
            yield f"{test}: is not there"


@cache
def _tests_in(file: str) -> frozenset[str]:
    path = ROOT / file
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text("utf-8"))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(node.name for node in found if node.name.startswith("test_"))


def _holes(rows: Sequence[Row]) -> Iterator[str]:
    """Numbered rows are all there: 34 looks at a node, 53 weaknesses, 14 contradictions."""
    ids = {row.id for row in rows}
    series = (("8.", 34), ("W", 53), ("C", 14))
    wanted = [f"{word}{number}" for word, last in series for number in range(1, last + 1)]
    yield from (f"{name}: the row is missing" for name in wanted if name not in ids)


def tests_of(row: Row, of_check: Mapping[str, Sequence[str]]) -> list[str]:
    """The row's own, then those of its checks."""
    return list(dict.fromkeys([*row.tests, *(test for check in row.checks for test in of_check.get(check, ()))]))


def made() -> str:
    rows, of_check = loaded()
    parts = dict.fromkeys(row.part for row in rows)
    chapters = [_chapter(part, [row for row in rows if row.part == part], of_check) for part in parts]
    answered = sum(not row.not_covered for row in rows)
    counts = f"{len(rows)} rows: {answered} answered, {len(rows) - answered} not covered, with the reason.\n"
    return "\n".join([_HEAD, counts, *chapters, _beyond(rows, of_check)])


def _chapter(part: str, rows: Sequence[Row], of_check: Mapping[str, Sequence[str]]) -> str:
    lines = [f"## {part[0].upper()}{part[1:]}", "", "| row | what | ours | test |", "|---|---|---|---|"]
    return "\n".join([*lines, *(_line(row, of_check) for row in rows), ""])


def _line(row: Row, of_check: Mapping[str, Sequence[str]]) -> str:
    ours = "; ".join(filter(None, [", ".join(f"`{check}`" for check in row.checks), row.by]))
    tests = tests_of(row, of_check)
    shown = [f"`{test.removeprefix('tests/')}`" for test in tests[:_SHOWN]]
    more = [f"and {len(tests) - _SHOWN} more"] if len(tests) > _SHOWN else []
    return f"| {row.id} | {row.what} | {ours or f'not covered: {row.not_covered}'} | {'<br>'.join([*shown, *more])} |"


def _beyond(rows: Sequence[Row], of_check: Mapping[str, Sequence[str]]) -> str:
    named = {check for row in rows for check in row.checks}
    lines = ["## Beyond", "", "Checks that none of these rows asks for.", "", "| check | test |", "|---|---|"]
    more = sorted(set(of_check) - named)
    return "\n".join(
        [*lines, *(f"| `{check}` | `{of_check[check][0].removeprefix('tests/')}` |" for check in more), ""]
    )


def main(arguments: Sequence[str]) -> int:
    found = problems()
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    if "--check" not in arguments:
        DOCUMENT.write_text(made(), "utf-8")
    elif not DOCUMENT.is_file() or DOCUMENT.read_text("utf-8") != made():
        sys.stderr.write(f"{DOCUMENT}: is not as the table says; run python -m tests.doctor.coverage\n")
        return 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
