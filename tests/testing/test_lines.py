"""The simulator's lines against the table of real ones: the same row takes both and finds the same in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nccl_slurm.parse.finding import find
from nccl_slurm.parse.patterns import Rows
from nccl_slurm.parse.prefix import strip
from nccl_slurm.testing import Scenario, blocks
from nccl_slurm.testing.lines import elastic, kernel, nccl, slurm, torch
from nccl_slurm.testing.place import Place
from tests.parse.test_forms import FORMS

TORCH = ((2, 1), (2, 2), (2, 3), (2, 4), (2, 5), (2, 6), (2, 8), (2, 13))
NCCL = ((2, 18), (2, 20), (2, 21), (2, 23), (2, 26), (2, 27), (2, 29), (2, 30))
AT = 1_725_000_000.25
KNOWN = {form["kind"] for forms in FORMS.values() for form in forms} - {"none"}


def torch_lines() -> Iterator[tuple[str, str, tuple[int, int], str | None]]:
    """Row, name of the test, version, line; None: that version has no such line."""
    for version in TORCH:
        s = Scenario(world=8, torch=version, groups=blocks(8, 4))
        for group in (s.all_ranks, s.groups[1]):
            name = f"{version[0]}.{version[1]}-group{group.guid}"
            text = torch.watchdog(s, group, 5, 41, "ALLREDUCE", 64, 600.03)
            yield "torch.watchdog-timeout", name, version, torch.timeout(s, 5, AT, text)
            yield "torch.pg-status", name, version, torch.status(s, group, 5, AT, 41, (42, 40))
            yield (
                "torch.pg-status",
                f"{name}-error",
                version,
                torch.status(s, group, 5, AT, 41, (42, 40), timed_out=False),
            )
            down = torch.taking_down(s, group, 5, AT, "x")
            yield "torch.taking-down", name, version, down[0]
            yield "torch.watchdog-terminated", name, version, down[2]
            error = torch.async_error(s, group, 5, AT, 41, "ALLREDUCE", 64, "x")
            yield "torch.async-error", name, version, error.split("\n")[0]
        own, others = (torch.told(s, 5, AT, (41, 40), by, dumps=True) for by in (None, 3))
        for row, lines, place in (
            ("torch.dump-first", own, 0),
            ("torch.dump-signal-local", own, 1),
            ("torch.dump-preparing", own, 2),
            ("torch.dump-observed", others, 0),
            ("torch.dump-signal-remote", others, 1),
        ):
            yield row, f"{version[0]}.{version[1]}", version, lines[place] if lines else None
        yield "torch.heartbeat", f"{version[0]}.{version[1]}", version, torch.heartbeat(s, 5, AT)[0]


def other_lines() -> Iterator[tuple[str, str, tuple[int, int], str]]:
    s = Scenario(world=8, per_node=4)
    place = Place(s)
    none = (0, 0)
    yield "torch.not-destroyed", "2.8", (2, 8), torch.not_destroyed(s, 3, AT)
    yield "torch.mismatch", "2.13", none, torch.fingerprints((1, 5, "ALLREDUCE", 64), (2, 5, "ALLGATHER", 64))
    yield (
        "torch.store-wait",
        "2.13",
        none,
        "torch.distributed.DistStoreError: wait timeout after 9ms, keys: /default_pg/0//cpu//0/3",
    )
    yield "gloo.timeout", "recv", none, torch.gloo_timeout(s, sends=False)
    yield "gloo.timeout", "send", none, torch.gloo_timeout(s, sends=True)
    yield "gloo.peer-closed", "closed", none, torch.closed_by_peer("10.0.0.1", 40000)
    yield "gloo.peer-closed", "reset", none, torch.closed_by_peer("10.0.0.1", 40000, reset=True)
    yield "gloo.size-mismatch", "2.13", none, torch.wrong_size(2048, 1024)[1]
    yield "slurm.task-exit", "code", none, slurm.task_ended("n1", 3, 1)
    yield "slurm.task-signal", "11", none, slurm.task_ended("n1", 3, -11)
    yield "slurm.task-terminated", "15", none, slurm.task_ended("n1", 3, -15)
    yield "slurm.ending", "all", none, slurm.aborted()
    yield "slurm.cancelled", "step", none, slurm.cancelled(place, AT)
    yield "slurm.cancelled", "time", none, slurm.cancelled(place, AT, slurm.ENDS["time"], "JOB")
    yield "slurm.node-failure", "all", none, slurm.node_failed(place, "n2", AT)[0]
    yield "slurm.cancelled-node-failure", "all", none, slurm.node_failed(place, "n2", AT)[1]
    yield "slurm.launch-failed", "all", none, slurm.launch_failed(place, "n2", "Job credential expired")
    yield "slurm.oom-kill", "21.08+", none, slurm.oom(place)
    for number in (13, 31, 48, 74, 79, 94, 95, 119, 149):
        yield "kernel.xid", str(number), none, kernel.xid(place, 5, number)
    yield "kernel.oom", "all", none, kernel.oom(place, 5)[1]
    yield "kernel.link-down", "mlx5", none, kernel.link_down("mlx5_0")
    yield "kernel.storage", "Lustre", none, kernel.storage(AT)
    yield "kernel.hung-task", "all", none, kernel.hung_task(812)
    for version in TORCH:
        agent, name = Place(Scenario(world=8, per_node=4, torch=version)), f"{version[0]}.{version[1]}"
        yield "elastic.closing", name, version, elastic.closing(agent, "n1", AT, 812)
        yield "elastic.forced-kill", name, version, elastic.forced(agent, "n1", AT, 812)
        yield "elastic.failed", name, version, elastic.failed(agent, "n1", AT, elastic.Failure(1, -11, AT))
        yield "elastic.death-signal", name, version, elastic.death_signal(agent, "n1", AT)


def nccl_lines() -> Iterator[tuple[str, str, tuple[int, int], str]]:
    for version in NCCL:
        place, name = Place(Scenario(world=8, per_node=4, nccl=version)), f"{version[0]}.{version[1]}"
        warnings = {
            "nccl.ib-completion": nccl.completion(place, 2, "Recv"),
            "nccl.ib-flush": nccl.completion(place, 2, "Recv", 5, 249),
            "nccl.ib-port": nccl.port_error(place, "mlx5_0"),
            "nccl.peer-closed": nccl.closed(place, 2),
            "nccl.peer-lost": nccl.peer_lost(place, 2),
            "nccl.connect-failed": nccl.refused(place, 2),
            "nccl.ib-setup": nccl.modify_qp(place, 5, 2),
            "nccl.memlock": nccl.memlock(place),
            "nccl.shm": nccl.shm_full(place, 5),
            "nccl.version-mismatch": nccl.versions_differ(0, 22705, 3, 21903),
            "ofi.request": nccl.ofi_request(),
            "ofi.setup": nccl.ofi_setup(),
        }
        for row, text in warnings.items():
            yield row, name, version, nccl.warn(place, 5, AT, "x.cc:9", text, "f")[1]
        lines = nccl.init(place, 5, AT)
        for row, line in zip(
            ("nccl.bootstrap", "nccl.devices", "nccl.network", "nccl.init-start", "nccl.channel", "nccl.init-complete"),
            lines,
            strict=True,
        ):
            yield row, name, version, line


CASES: list[tuple[str, str, tuple[int, int], str | None]] = [*torch_lines(), *other_lines(), *nccl_lines()]


@pytest.mark.parametrize(("row", "name", "version", "line"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES])
def test_a_line_is_taken_by_its_row(
    row: str, name: str, version: tuple[int, int], line: str | None, rows: Rows
) -> None:
    if line is None:
        assert row.startswith("torch.") and version < (2, 4)
        return
    found = find(strip(line).text, rows)
    assert found is not None and found.kind == row
    assert row in KNOWN | {"torch.not-destroyed"}  # whose real line is a row's own sample


def data_of(line: str, rows: Rows) -> dict[str, Any]:
    found = find(strip(line).text, rows)
    return {} if found is None else dict(found.data)


@pytest.mark.parametrize("kind", sorted({case[0] for case in CASES if case[3] is not None} & KNOWN))
def test_it_holds_what_a_real_one_holds(kind: str, rows: Rows) -> None:
    """All that a row finds in some real line it finds in a simulated one too."""
    real = [set(data_of(form["line"], rows)) for forms in FORMS.values() for form in forms if form["kind"] == kind]
    simulated = [set(data_of(case[3], rows)) for case in CASES if case[0] == kind and case[3] is not None]
    assert any(one <= mine for one in real for mine in simulated)


def test_prefixes_tell_the_rank_from_2_2_on() -> None:
    for version in TORCH:
        s = Scenario(world=8, torch=version)
        line = torch.timeout(s, 5, AT, torch.watchdog(s, s.all_ranks, 5, 41, "ALLREDUCE", 64, 600.0))
        assert (strip(line).rank == 5) is (version >= (2, 2))
