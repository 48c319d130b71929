"""The text of a script: it compiles, it tells what it is, and nothing that a log says becomes program text."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nccl_slurm.repro.plan import Plan
from nccl_slurm.repro.scene import BEFORE_THE_GROUP, CODE, WITH_A_COLLECTIVE, scene
from nccl_slurm.repro.script import Wish, write
from tests.repro.plans import PLANS, SUM, report, seen


def script(plan: Plan, of: dict[str, Any] | None = None, **options: Any) -> str:
    subject = options.pop("subject", "job 42")
    return write(of or report(), plan, subject, Wish(**options))


def header(text: str) -> str:
    """The comment on top, as one line of words."""
    lines = text.split("\nfrom __future__")[0].splitlines()
    assert all(line.startswith("#") or not line for line in lines)
    return " ".join(" ".join(line.lstrip("# ") for line in lines).split())


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize("nproc", [2, 4])
@pytest.mark.parametrize("name", PLANS)
def test_every_kind_is_a_whole_program_of_python_3_8(name: str, nproc: int, barrier: bool) -> None:
    text = script(PLANS[name], nproc=nproc, barrier=barrier)
    tree = ast.parse(text, feature_version=(3, 8))
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)].count("scene") == 1
    assert max(map(len, text.splitlines())) <= 220
    assert ("dist.monitored_barrier(" in text) == (
        name == "absent, monitored barrier" or (barrier and PLANS[name].kind in WITH_A_COLLECTIVE)
    )


@pytest.mark.parametrize("name", PLANS)
def test_what_a_rank_says_of_itself_is_not_what_is_looked_for(name: str) -> None:
    """Else a script would find its own words and always be content."""
    own = ["rank 0: what was expected was not seen", "starting 2 ranks; this takes up to 20 s and torch's start"]
    for nproc in (2, 4):
        patterns = [text for texts in scene(PLANS[name], nproc, barrier=False).expected.values() for text in texts]
        assert patterns and not [text for text in patterns if any(re.search(text, line) for line in own)]


@pytest.mark.parametrize("name", PLANS)
def test_somebody_is_left_who_sees_it(name: str) -> None:
    for nproc in (2, 3, 64):
        made = scene(PLANS[name], nproc, barrier=False)
        assert 0 <= made.odd < nproc
        assert set(made.expected) <= set(range(nproc)) - made.idle


HOSTILE = [
    "\nimport os; os.abort()\n",
    "\r\nimport os\r",
    "'''\"\"\"\nx = 1",
    "\\\nx = 1",
    "\x0cx = 1\x0b\x1c\x1d\x1e\x85\u2028\u2029y = 1",
    "\x00\x1b[2J\u202e",
    "-*- coding: utf-7 -*- +AAo-import os",
    "# coding: latin-1",
    "{0} {x!r} %s %(x)s $x",
    "WorkNCCL(SeqNum=1, OpType=ALLREDUCE);import os, NumelIn=1)",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_its_comment(text: str) -> None:
    plain = script(replace(PLANS["absent"], seen=seen("0")))
    hostile = script(replace(PLANS["absent"], seen=seen(text)), report(text, text, text), subject=f"logs {text}")
    assert ast.dump(ast.parse(hostile)) == ast.dump(ast.parse(plain))
    assert hostile.isascii() and set(re.findall(r"[^ -~]", hostile)) == {"\n"}
    assert hostile.splitlines()[:2] == ["#!/usr/bin/env python3", "# -*- coding: utf-8 -*-"]


@settings(max_examples=50)
@given(st.text(max_size=80), st.text(max_size=400))
def test_an_exception_of_the_job_is_a_string_and_no_more(name: str, message: str) -> None:
    text = script(replace(PLANS["raise"], error=(name, message)))
    tree = ast.parse(text)
    raised = [node for node in ast.walk(tree) if isinstance(node, ast.Raise)]
    assert len(raised) == 1 and isinstance(raised[0].exc, ast.Call)
    assert isinstance(raised[0].exc.func, ast.Name) and isinstance(raised[0].exc.args[0], ast.Constant)
    assert raised[0].exc.func.id in ("RuntimeError", name)


def test_secrets_are_redacted() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"
    text = script(
        replace(PLANS["raise"], seen=seen("0")), report(f"token {secret}", secret, secret), subject=f"logs {secret}"
    )
    assert secret not in text


def test_the_header_tells_what_was_found_where_and_how_to_run_it() -> None:
    told = header(script(replace(PLANS["absent"], rank=7, seen=seen("12"), unsure=("why it went",)), nproc=4))
    for words in (
        "of job 42, written by nccl-slurm",
        "verdict collective-missing-rank (likely): what happened",
        "found all_reduce of [64, 64] float32, collective 7 of process group 12",
        "quoted job.log:7: a line",
        "shows rank 3 never enters the collective; the others enter all_reduce of [64, 64] float32 and wait for it",
        "run python THIS_FILE 4 processes on this machine",
        "torchrun --nproc-per-node 4 THIS_FILE",
        "expected RuntimeError: [Rank 0]: Ranks 3 failed to pass monitoredBarrier in ... ms",
        "not told why it went",
        "4 processes on one machine stand for the job's ranks",
        "rank 7: its part is played by rank 3; --nproc 8 gives it its number",
        "the group of all processes stands for the job's group",
        "time: 20 s in place of the job's time-out",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (Plan("absent", call=replace(SUM, shape=(466119168,))), {}, "[466119168] became [58264896]"),
        (Plan("absent", call=replace(SUM, shape=None)), {}, "sizes: [4] float32 stands for what is not told"),
        (PLANS["op"], {}, "of two ranks nothing tells which one is wrong; --nproc 3 or more"),
        (PLANS["op"], {"barrier": True}, "all ranks come there, so it passes"),
        (PLANS["port"], {"barrier": True}, "the monitored barrier: left out"),
        (PLANS["absent"], {"backend": "gloo"}, "gloo takes its place"),
        (PLANS["absent"], {"backend": "nccl"}, "this was tested with gloo"),
        (PLANS["exit"], {}, "rank 1 ends with status 3"),
    ],
)
def test_the_header_tells_what_is_not_shown(plan: Plan, options: dict[str, Any], words: str) -> None:
    assert words in header(script(plan, **options))


@pytest.mark.parametrize("backend", ["auto", "gloo", "nccl"])
def test_the_backend(backend: str) -> None:
    assert f"\nBACKEND = {backend!r}\n" in script(PLANS["absent"], backend=backend)


def test_sides_that_scaling_makes_equal_are_kept_apart() -> None:
    made = scene(PLANS["shape, uneven parts"], 4, barrier=False)
    assert [call.shape for call in made.called] == [(4, 5), (8, 5)]


def test_each_operation_has_its_line() -> None:
    for op, line in CODE.items():
        text = script(Plan("absent", call=replace(SUM, op=op)))
        assert f"    {line}\n" in text


def test_these_plans_are_all_kinds() -> None:
    assert {plan.kind for plan in PLANS.values()} == BEFORE_THE_GROUP | WITH_A_COLLECTIVE | {"p2p", "ddp"}


def test_without_torch_it_says_so_and_not_that_the_failure_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "repro.py"
    path.write_text(script(next(iter(PLANS.values()))))
    launched = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {name: value for name, value in os.environ.items() if name not in launched}
    ended = subprocess.run(
        [sys.executable, "-I", "-S", str(path)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2 and "reproduced" not in ended.stdout
    assert ended.stdout.startswith("not run: ") and "has no torch; install it there (pip install torch)" in ended.stdout
