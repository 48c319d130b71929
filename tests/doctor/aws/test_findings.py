"""Lines of CloudWatch of any form: they are read, or they are none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.aws.findings import DETECTION, read_detection, read_result
from tests.doctor.aws.world import instance

STREAM = f"SagemakerHealthMonitoringAgent/workers/{instance(1)}"


@pytest.mark.parametrize(
    ("stream", "message", "expected"),
    [
        (STREAM, "x", instance(1)),
        (f"a/{instance(2)}/{instance(1)}", "x", instance(1)),
        ("DeepHealthCheckResults/abc", f"on {instance(3)}, and {instance(4)}", instance(3)),
        ("DeepHealthCheckResults/i-0123abcd", "x", "i-0123abcd"),
        ("DeepHealthCheckResults/i-0123abcdz", "x", None),
        ("DeepHealthCheckResults/abc", "x", None),
        (None, "x", None),
    ],
)
def test_whose_line_it_is(stream: str | None, message: str, expected: str | None) -> None:
    assert read_result({"logStreamName": stream, "message": message}).instance == expected


@pytest.mark.parametrize(
    ("message", "bad", "unclear"),
    [
        ("Encountered FaultyInstance", True, False),
        ('{"level":"info","msg":"done","faultyInstances":["i-0123abcd"]}', True, False),
        ('{"level":"info","msg":"deep health check passed","faultyInstances":[]}', False, False),
        ('{"level":"info","msg":"x","faultyInstances": [ ], "FaultyInstanceCount": 0}', False, False),
        ('{"level":"info","msg":"x","FaultyInstanceCount": 2}', True, False),
        ("no faulty instance was found", False, False),
        ("0 health check failed", False, False),
        ("10 health check failed", True, False),
        ("health check failed on this node", True, False),
        ('{"level":"WARN","msg":"DCGM failed: GPU 3 memory"}', True, False),
        ("NCCL test: 0 failed", False, False),
        ("EFA tests failed: 0", False, False),
        ("DCGM level 4: failed tests: []", False, False),
        ("DCGM level 4: failed tests: [memory]", True, False),
        ("DCGM: failed_count: 0", False, False),
        ("DCGM failed GPUs: 0, 3", True, False),
        ("DCGM failed: GPU 0 memory", True, False),
        ("Bandwidth has less than threshold", True, False),
        ("NCCL bandwidth less than threshold 300 GB/s: fail", True, False),
        ("EFA loopback latency less than threshold 25us: pass", False, False),
        ("Retrying NCCL test: previous attempt failed; attempt 2 passed", False, False),
        ("Retrying NCCL test: previous attempt failed; attempt 2 failed", True, False),
        ("DCGM level 3 failed: memory=pass, diagnostic=fail", True, False),
        ("NCCL test failed; attempt 2 passed; EFA test failed", True, False),
        ("NCCL test failed on GPU 3, GPU 4 passed", True, False),
        ('{"level":"error","msg":"retrying S3 upload of the log"}', False, True),
        ('{"level":"info","msg":"started"}', False, False),
    ],
)
def test_what_a_deep_check_calls_faulty(message: str, bad: bool, unclear: bool) -> None:
    told = read_result({"message": message})
    assert (told.bad, told.unclear) == (bad, unclear)


def test_a_line_that_only_has_the_word_is_told_as_it_is() -> None:
    told = read_detection({"logStreamName": STREAM, "message": f"{DETECTION}: words", "timestamp": 1500})
    assert told is not None and (told.reason, told.text, told.time) == (None, f"{DETECTION}: words", 1.5)
    assert read_detection({"message": "other"}) is None


_LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
_KEY = st.sampled_from(["details", "details: ", "message", "reason", "level", "msg", DETECTION, ""])
_TREE = st.recursive(_LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEY, inner, max_size=4))


@given(_TREE, st.dictionaries(st.sampled_from(["logStreamName", "timestamp", "message"]), _LEAF))
def test_lines_of_any_form(tree: Any, event: dict[str, Any]) -> None:
    for message in (
        json.dumps(tree),
        json.dumps({DETECTION: tree, "details": tree}),
        DETECTION + json.dumps(tree)[:20],
    ):
        for told in (event, {**event, "message": message}):
            read_detection(told)
            read_result(told)
