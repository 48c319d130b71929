"""Facts by sort: the same facts, in the same order, as if all had been looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.attribute import reading
from nccl_slurm.attribute.sorts import Sorts
from nccl_slurm.info.version import tells_version
from nccl_slurm.model import Fact

KINDS = (
    "torch.watchdog-timeout",
    "torch.pg-status",
    "elastic.error-file",
    "elastic.closing",
    "nccl.version",
    "nccl.ib-completion",
    "kernel.xid",
    "slurm.cancelled",
)
#: What rules ask of a sort, or ask of a fact and never of what differs within its sort.
ASKED = (
    reading.may_be_wait,
    reading.is_told,
    reading.is_peer_lost,
    reading.is_of_nccl,
    reading.is_failed_transfer,
    reading.is_agent_kill,
    reading.is_end_of_run,
    tells_version,
)

facts_of_a_run = st.lists(
    st.builds(
        Fact,
        kind=st.sampled_from(KINDS),
        text=st.sampled_from(("Timeout at", "another line")),
        producer=st.sampled_from(("torch", "elastic", "nccl", "kernel")),
        role=st.sampled_from(("cause", "consequence", "context")),
        trust=st.sampled_from(("root", "job")),
        hint=st.sampled_from((None, "net-peer-lost", "gpu-hw-lost")),
        rank=st.sampled_from((None, 0, 3)),
        data=st.dictionaries(st.sampled_from(("task", "attempt", "timeout_ms", "seq")), st.integers(0, 3)),
    ),
    max_size=20,
)


@pytest.mark.parametrize("wanted", ASKED)
@given(facts=facts_of_a_run)
def test_a_sort_is_asked_once(wanted: Callable[[Fact], bool], facts: list[Fact]) -> None:
    sorts = Sorts(facts)
    assert sorts.where(wanted) == [fact for fact in facts if wanted(fact)]
    assert sorts.any(wanted) == any(map(wanted, facts))


@given(facts=facts_of_a_run)
def test_facts_by_kind_and_by_key(facts: list[Fact]) -> None:
    sorts = Sorts(facts)
    assert sorts.of_kind("kernel.xid", "nccl.version") == [f for f in facts if f.kind in ("kernel.xid", "nccl.version")]
    assert sorts.having("task", "attempt") == [f for f in facts if "task" in f.data or "attempt" in f.data]
    both = sorts.having("timeout_ms", wanted=reading.is_told)
    assert both == [fact for fact in facts if "timeout_ms" in fact.data or reading.is_told(fact)]


@given(facts=facts_of_a_run)
def test_the_same_facts_with_other_ranks(facts: list[Fact]) -> None:
    others = [replace(fact, rank=7) for fact in facts]
    assert Sorts(facts).of(others).where(reading.is_peer_lost) == Sorts(others).where(reading.is_peer_lost)
    assert Sorts(facts).where(reading.may_be_wait) == [fact for fact in facts if reading.may_be_wait(fact)]


def test_a_line_that_waited_is_of_a_kind_that_may() -> None:
    status = Fact("torch.pg-status", "Timeout at collective 3", "torch", "consequence", "job")
    quoted = Fact("elastic.error-file", "x", "elastic", "consequence", "job", data={"kind": "gloo.timeout"})
    waits = [status, quoted, Fact("gloo.timeout", "x", "gloo", "consequence", "job")]
    assert all(reading.is_wait(fact) and reading.may_be_wait(fact) for fact in waits)
    assert not reading.is_wait(replace(status, text="another error"))
