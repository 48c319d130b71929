"""The path of a failed run against that of the user's last one on the same machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.model import Fact
from tests.collect.test_shared import record as empty_record
from tests.daemon.test_loop import FAILED, Lab
from tests.info.lines import channel


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.store.close()


def facts(way: str) -> list[dict[str, Any]]:
    lines: list[Fact] = [channel(0, 2, way), channel(2, 0, way)]
    return [line.to_json() for line in lines]


def ran(lab: Lab, way: str, *, state: str = "COMPLETED", machines: str = "m", user: str = "alice") -> int:
    """A job on n1 and n2; n2 goes ``way``."""
    job = lab.slurm.submit("n[1-2]", user=user, uid={"alice": 1001, "bob": 1002}[user])
    lab.run(3)
    lab.slurm.end(job, state, **(FAILED if state == "FAILED" else {}))
    for node, path in (("n1", "NET/IB/0/GDRDMA"), ("n2", way)):
        machine = {**empty_record()["machine"], "identity": f"{machines}-{node}"}
        lab.record(job, node, facts=facts(path), machine=machine)
    lab.hint(job)
    lab.run(40)
    return job


def told(lab: Lab, job: int) -> list[str]:
    found = lab.verdict(job)
    assert found is not None
    return [step["text"] for step in found["inferences"] if step["rule"] == "path.earlier"]


def test_another_path_than_in_the_last_good_run_is_told_with_its_id(lab: Lab) -> None:
    first = ran(lab, "NET/IB/0/GDRDMA")
    ran(lab, "NET/Socket/0", state="FAILED")
    job = ran(lab, "NET/Socket/0", state="FAILED")
    way = f"n2: the path between nodes was NET/IB/GDRDMA in job {first} on the same nodes, and is NET/Socket now."
    assert told(lab, job) == [f"{way} A hint, no proof."]


@pytest.mark.parametrize(
    "other",
    [{"machines": "replaced"}, {"user": "bob"}, {"way": "NET/Socket/0"}],
    ids=["other-machines", "other-user", "same-path"],
)
def test_nothing_is_told_of_other_machines_other_users_and_the_same_path(lab: Lab, other: dict[str, str]) -> None:
    ran(lab, **{"way": "NET/IB/0/GDRDMA", **other})
    assert told(lab, ran(lab, "NET/Socket/0", state="FAILED")) == []
