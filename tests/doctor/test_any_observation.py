"""A node may answer anything: no check raises, and none of what it makes up is a pass of what was not read."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nccl_slurm.doctor.check import judged
from nccl_slurm.doctor.observation import Fleet, Observation
from nccl_slurm.doctor.registry import checks
from nccl_slurm.doctor.sources import SOURCES, Command, Files

CHECKS = list(checks("node", "fleet"))
WORDS = st.sampled_from(
    [
        "",
        "0",
        "1",
        "-1",
        "8",
        "Yes",
        "gpu",
        "nan",
        "9" * 30,
        "²",
        "Max locked memory  unlimited  unlimited  bytes",
        "\x00",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-9, 1 << 70) | st.floats(allow_nan=True) | WORDS
NAMES = (
    "ranks libraries environment limits unreadable processes files table room lines first boot value pid comm job gpu "
    "path holders mtime size free available inodes inodes_free shm listens status greeting why addresses seconds "
    "/dev/shm / RANK MASTER_PORT LD_LIBRARY_PATH 0"
)
KEYS = st.sampled_from(NAMES.split())
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=6
)
PATHS = st.sampled_from(
    [
        "/sys/class/infiniband/mlx5_0/ports/1/state",
        "/sys/class/infiniband/rdmap0s6/device/driver",
        "/sys/bus/pci/devices/0000:a1:00.0/vendor",
        "/sys/bus/pci/devices/0000:a1:00.0/current_link_width",
        "/sys/class/net/eth0/mtu",
        "/sys/devices/virtual/dmi/id/product_name",
        "/sys/devices/system/node/node0/meminfo",
        "x",
    ]
)


def answer(key: str) -> st.SearchStrategy[dict[str, Any]]:
    source = SOURCES[key]
    if isinstance(source, Files):
        texts = st.dictionaries(PATHS, st.text(max_size=30) | WORDS | JSON, max_size=4)
        return st.fixed_dictionaries({"texts": texts | JSON, "cut": JSON, "unread": JSON, "more": JSON})
    if isinstance(source, Command):
        return st.fixed_dictionaries(
            {"rc": st.sampled_from([0, 1, 255, None]), "out": WORDS, "err": WORDS, "cut": JSON}
        )
    return st.fixed_dictionaries({"value": JSON})


def observation(data: st.DataObject, keys: Any) -> Observation:
    found = {key: data.draw(answer(key)) for key in keys}
    slurm = data.draw(st.dictionaries(st.sampled_from(["Gres", "State", "Version"]), WORDS, max_size=3))
    return Observation("n1", found, slurm=slurm, at=1.79e9, boot_time=1.78e9, uid=1000)


@pytest.mark.parametrize("one", [one for one in CHECKS if one.area == "node"], ids=lambda one: one.id)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_of_a_node(one: Any, data: st.DataObject) -> None:
    judged(one, observation(data, one.sources))


@pytest.mark.parametrize("one", [one for one in CHECKS if one.area == "fleet"], ids=lambda one: one.id)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_of_a_fleet(one: Any, data: st.DataObject) -> None:
    nodes = {name: observation(data, one.sources) for name in ("n1", "n2")}
    judged(one, Fleet(nodes, bandwidth={"a": data.draw(st.text(max_size=50))}))


@pytest.mark.parametrize("one", [one for one in CHECKS if one.area == "node"], ids=lambda one: one.id)
def test_no_answer_is_no_pass(one: Any) -> None:
    seen = Observation("n1", {key: {"why": "the node was silent"} for key in SOURCES})
    assert {finding.status for finding in judged(one, seen)} == {"UNKNOWN"}
