"""Whose ranks meet where, who is missing, and which node has another setting than the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.checks.job.environment import CHECKS, worlds
from nccl_slurm.doctor.checks.job.ranks import ranks
from tests.doctor.jobs import NOW, Rows, even, job, launcher, rank, said, words

(CHECK,) = CHECKS


def changed(number: int, size: Any = 4, nodes: Any = 2, **more: str) -> dict[str, Rows]:
    """All alike but for one rank."""
    told = even(size, nodes)
    each = size // nodes
    node = f"n{number // each + 1}"
    told[node] = [one for one in told[node] if one["pid"] != 1000 + number] + [rank(number, size, local=each, **more)]
    return told


def test_ranks_that_agree_pass() -> None:
    (found,) = said(CHECK, job(even(NCCL_DEBUG="WARN")))
    assert (found.status, found.text) == ("PASS", "4 ranks on 2 nodes agree in 1 settings")


def test_launchers_are_no_ranks() -> None:
    assert sorted(one.rank for one in ranks(job(even())).seen if one.rank is not None) == [0, 1, 2, 3]


@pytest.mark.parametrize(("name", "value"), [("MASTER_ADDR", "n2"), ("MASTER_PORT", "29501"), ("WORLD_SIZE", "8")])
def test_a_rank_that_meets_elsewhere_fails(name: str, value: str) -> None:
    found = said(CHECK, job(changed(3, **{name: value})))
    assert words(found) == ["FAIL P0"]
    assert name in found[0].text and value in found[0].text and "rank 3 (n2)" in found[0].text
    assert found[0].nodes == ["n2"]
    assert found[0].values == {"job": "42", "name": name, "host": "n2", "pid": "1003"}
    assert found[0].proofs[0].source == "n2: /proc/1003/environ"


def test_programs_side_by_side_are_no_fault() -> None:
    """Two torchruns of one node each in one job: both worlds are whole."""
    first = [rank(number, 2, MASTER_PORT="29500") for number in range(2)]
    second = [rank(number, 2, MASTER_ADDR="n2", MASTER_PORT="29501") for number in range(2)]
    assert words(said(CHECK, job({"n1": first, "n2": second}))) == ["PASS"]


def test_programs_side_by_side_may_have_other_settings() -> None:
    first = [rank(number, 2, NCCL_ALGO="Ring") for number in range(2)]
    second = [rank(number, 2, MASTER_PORT="29501", NCCL_ALGO="Tree") for number in range(2)]
    assert words(said(CHECK, job({"n1": first, "n2": second}))) == ["PASS"]


def mpi(number: int, step: str, pid: int, **more: str) -> dict[str, Any]:
    """srun's own numbers are all that tells its rank."""
    environment = {"SLURM_PROCID": str(number), "SLURM_STEP_ID": step, "SLURM_NTASKS": "4", **more}
    return {"pid": pid, "parent": 900, "uid": 1000, "environment": environment, "libraries": ["/x/libnccl.so.2"]}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param("0011", ["PASS"], id="two steps, each alike in itself"),
        pytest.param("0000", ["WARN P1"], id="one step"),
        pytest.param("0123", ["WARN P1"], id="one program, started node by node"),
    ],
)
def test_settings_are_compared_within_a_program(steps: str, expected: list[str]) -> None:
    """Ring on n1 and n2, Tree on n3 and n4."""
    numbers = [0, 1, 0, 1] if steps == "0011" else [0, 1, 2, 3]
    told = {
        f"n{at + 1}": [mpi(number, step, 1000 + at, NCCL_ALGO="Ring" if at < 2 else "Tree")]
        for at, (number, step) in enumerate(zip(numbers, steps, strict=True))
    }
    assert words(said(CHECK, job(told))) == expected


def step(number: str, *ranks: int, node: str = "n1", **more: str) -> Rows:
    """Ranks of a world of four in a step of their own."""
    told = {"MASTER_PORT": f"2950{number}", "SLURM_STEP_ID": number, **more}
    return [{**rank(one, 4, **told), "pid": 1000 * (int(number) + 1) + one} for one in ranks]


@pytest.mark.parametrize(
    ("first", "second", "expected", "text"),
    [
        pytest.param(step("0", 0, 1), step("0", 2, 3), ["PASS"], "", id="one program"),
        pytest.param([*step("0", 0, 1, 2, 3), *step("1", 0, 1)], step("1", 2, 3), ["PASS"], "", id="two, both whole"),
        pytest.param(
            [*step("0", 0, 1), *step("1", 0, 1)],
            [*step("0", 2, 3), *step("1", 2)],
            ["FAIL P0"],
            "no process of rank 3 on any node",
            id="one of two lacks a rank, and waits for that one alone",
        ),
        pytest.param(step("0", 0, 1), step("1", 2, 3), ["FAIL P0"], "MASTER_PORT differs", id="halves of one program"),
        pytest.param(
            step("0", 0, 1, 2, 3),
            step("0", 0, MASTER_PORT="29509"),
            ["FAIL P0"],
            "no process of ranks 1-3",
            id="in one step, one whole",
        ),
        pytest.param(step("0", 0, WORLD_SIZE="1") * 3, [], ["PASS"], "", id="programs of one rank each"),
        pytest.param(
            [*step("0", 0, 1), *step("0", 0, MASTER_PORT="29509")],
            step("0", 2),
            ["FAIL P0"],
            "MASTER_PORT differs",
            id="in one step, none whole",
        ),
    ],
)
def test_programs_are_told_apart_by_their_steps(first: Rows, second: Rows, expected: list[str], text: str) -> None:
    found = said(CHECK, job({"n1": first, "n2": second}))
    assert words(found) == expected and (not text or text in found[0].text), [one.text for one in found]


@pytest.mark.parametrize(
    ("zero", "others", "expected"),
    [
        pytest.param("127.0.0.1", "n1", "PASS", id="rank 0 by its loopback"),
        pytest.param("localhost", "n1.cluster.local", "PASS", id="the others by its whole name"),
        pytest.param("::1", "10.0.0.1", "PASS", id="by a number that may be its own"),
        pytest.param("n1", "N1.cluster.local", "PASS", id="two words for one node"),
        pytest.param("n1", "10.0.0.1", "WARN P1", id="a number that may be anybody's"),
        pytest.param("127.0.0.1", "n2", "FAIL P0", id="the others elsewhere"),
        pytest.param("n1", "127.0.0.1", "FAIL P0", id="the others at their own"),
        pytest.param("127.0.0.1", "127.0.0.1", "FAIL P0", id="all at their own"),
    ],
)
def test_rank_0_may_call_its_own_node_by_a_loopback(zero: str, others: str, expected: str) -> None:
    told = {
        "n1": [rank(number, 4, MASTER_ADDR=zero) for number in (0, 1)],
        "n2": [rank(number, 4, MASTER_ADDR=others) for number in (2, 3)],
    }
    assert words(said(CHECK, job(told))) == [expected]


def test_slurms_own_address_of_a_node_is_that_node() -> None:
    told = {"n1": [rank(0, 2, local=1)], "n2": [rank(1, 2, local=1, MASTER_ADDR="10.0.0.1")]}
    seen = job(told)
    seen.fleet.nodes["n1"].slurm.update(NodeAddr="10.0.0.1")  # type: ignore[attr-defined]
    assert words(said(CHECK, seen)) == ["PASS"]


OWN = {"n1": ["10.0.0.1", "10.1.0.5"], "n2": ["10.0.0.2", "10.1.0.6"]}


@pytest.mark.parametrize(
    ("others", "more", "expected"),
    [
        pytest.param("10.1.0.5", {"own": OWN}, "PASS", id="its address of IPoIB"),
        pytest.param("n1-ib0", {"own": OWN, "names": {"n1-ib0": ["10.1.0.5"]}}, "PASS", id="its name of IPoIB"),
        pytest.param("n1-ib0.x.org", {"own": OWN, "names": {"n1-ib0.x.org": ["10.1.0.5"]}}, "PASS", id="with a domain"),
        pytest.param(
            "n1-ib0", {"own": OWN, "names": {"n1-ib0": ["127.0.1.1", "10.1.0.5"]}}, "PASS", id="and a loopback"
        ),
        pytest.param("n1-ib0", {}, "WARN P1", id="a name, and nothing tells whose"),
        pytest.param("n1-ib0", {"own": OWN}, "WARN P1", id="a name that was not resolved"),
        pytest.param(
            "n1-ib0", {"names": {"n1-ib0": ["10.1.0.5"]}}, "WARN P1", id="an address, and nothing tells whose"
        ),
        pytest.param("10.1.0.6", {"own": OWN}, "FAIL P0", id="another node's address"),
        pytest.param("n2-ib0", {"own": OWN, "names": {"n2-ib0": ["10.1.0.6"]}}, "FAIL P0", id="another node's name"),
        pytest.param(
            "head", {"own": OWN, "names": {"head": ["54.9.0.1"]}}, "WARN P1", id="a public address of anybody"
        ),
    ],
)
def test_one_host_may_have_several_words(others: str, more: Any, expected: str) -> None:
    told = {
        "n1": [rank(number, 4) for number in (0, 1)],
        "n2": [rank(number, 4, MASTER_ADDR=others) for number in (2, 3)],
    }
    assert words(said(CHECK, job(told, **more))) == [expected]


def test_helpers_that_look_at_gpus_are_no_ranks() -> None:
    told = even()
    helper = {"pid": 77, "parent": 1, "environment": {"NCCL_DEBUG": "INFO"}, "libraries": ["/x/libnvidia-ml.so.1"]}
    told["n1"].append(helper)
    assert words(said(CHECK, job({**told, "n3": [helper]}, uid=0))) == ["PASS"]


def test_where_no_launcher_numbers_them_nccl_tells_who_they_are() -> None:
    rows = [
        {"pid": n, "parent": 1, "environment": {"NCCL_ALGO": "Ring"}, "libraries": ["/x/libnccl.so.2"]}
        for n in range(3)
    ]
    rows.append({"pid": 9, "parent": 1, "environment": {}, "libraries": ["/x/libcuda.so.1"]})
    assert words(said(CHECK, job({"n1": rows}))) == ["PASS"]


def test_where_a_node_was_not_seen_it_is_a_warning() -> None:
    found = said(CHECK, job(changed(3, MASTER_PORT="1"), silent={"n3": "no answer"}))
    assert words(found) == ["WARN P0", "UNKNOWN"]
    assert found[1].nodes == ["n3"] and "no answer" in found[1].text


def test_a_rank_twice_fails() -> None:
    told = even()
    told["n2"].append({**rank(1, 4), "pid": 5000})
    (found,) = said(CHECK, job(told))
    assert (found.status, found.priority, found.nodes) == ("FAIL", "P0", ["n1", "n2"])
    assert "more than once: 1" in found.text


NCCL = {"libraries": ["/opt/lib/libnccl.so.2"]}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (NCCL, {}, ["PASS"]),  # a tracker's daemon: it left its parent, and has its environment
        (NCCL, {"libraries": ["/x/libcuda.so.1"]}, ["PASS"]),
        (NCCL, NCCL, ["FAIL P0"]),
        ({}, {}, ["FAIL P0"]),  # nothing tells which is the rank
    ],
)
def test_a_helper_that_a_rank_left_beside_it_is_no_second_one(first: Any, second: Any, expected: list[str]) -> None:
    told = even()
    told["n1"] = [{**one, **first} if one["pid"] == 1000 else one for one in told["n1"]]
    told["n1"].append({**rank(0, 4, NCCL_ALGO="Ring" if second != first else ""), "pid": 8888, "parent": 1, **second})
    assert words(said(CHECK, job(told))) == expected


@pytest.mark.parametrize("gone", [0, 3, 5])
def test_a_rank_without_a_process_is_told(gone: int) -> None:
    told = {node: [one for one in rows if one["pid"] != 1000 + gone] for node, rows in even(8).items()}
    (found,) = said(CHECK, job(told))
    assert (found.status, found.priority) == ("FAIL", "P0")
    assert f"no process of rank {gone} on any node" in found.text
    assert "ended, or never started; its exit is not known here" in found.text
    assert "pid" not in found.values  # of another rank's process nothing is to be seen
    assert found.nodes == [f"n{gone // 4 + 1}"]


@pytest.mark.parametrize(
    ("size", "nodes", "dead", "text"),
    [
        (
            16,
            2,
            ["n2"],
            "no process of ranks 8-15 on any node of the job, while the other 8 of 16 are there: ended, or never "
            "started; its exit is not known here; n2 has none",
        ),
        (16, 8, ["n5", "n6", "n7", "n8"], "no process of ranks 8-15 "),
        (16, 8, ["n2", "n3", "n4", "n5", "n6", "n7", "n8"], "no process of ranks 2-15 "),
        (4, 2, ["n1"], "no process of ranks 0-1 "),
    ],
)
def test_the_worlds_size_tells_how_many_are_gone(size: int, nodes: int, dead: list[str], text: str) -> None:
    told = {node: [] if node in dead else rows for node, rows in even(size, nodes).items()}
    (found,) = said(CHECK, job(told))
    assert (found.status, found.priority, found.nodes) == ("FAIL", "P0", dead) and text in found.text


@pytest.mark.parametrize(
    ("environment", "there", "expected"),
    [
        pytest.param({"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "0"}, [0, 1], "FAIL P0", id="a step's"),
        pytest.param({"SLURM_JOB_ID": "42"}, [0, 1], "WARN P1", id="a batch script's, which may have used ssh"),
        pytest.param({"SLURM_JOB_ID": "42", "SLURM_STEP_ID": "4294967291"}, [0, 1], "WARN P1", id="by its own number"),
        pytest.param({"SLURM_JOB_ID": "42"}, [0, 1, 2], "FAIL P0", id="one is gone where others are"),
    ],
)
def test_what_ssh_started_may_be_there(environment: dict[str, str], there: list[int], expected: str) -> None:
    ranks_of = [rank(number, 4, **environment) for number in there]
    told = {"n1": ranks_of[:2], "n2": ranks_of[2:]}
    assert words(said(CHECK, job(told))) == [expected]


@pytest.mark.parametrize(
    ("age", "expected"), [(2.0, "UNKNOWN"), (119.0, "UNKNOWN"), (121.0, "FAIL P0"), (None, "FAIL P0")]
)
@pytest.mark.parametrize("dead", [["n3"], ["n2", "n3"]])
def test_a_world_that_starts_may_not_be_whole_yet(age: float | None, expected: str, dead: list[str]) -> None:
    told = {node: [] if node in dead else rows for node, rows in even(6, 3).items()}
    for row in (one for rows in told.values() for one in rows if age is not None):
        row["start"] = NOW - (600.0 if row["pid"] == 1000 else age or 0.0)
    (found,) = said(CHECK, job(told))
    assert words([found]) == [expected] and found.nodes == dead


@pytest.mark.parametrize("more", [{"silent": {"n3": "down"}}, {"more": 2}])
def test_what_was_not_seen_is_not_gone(more: Any) -> None:
    """Ranks 4 to 7 may be on the node that did not answer, or beyond what a node tells."""
    told = {"n1": even(8)["n1"]}
    assert "FAIL P0" not in words(said(CHECK, job(told, **more)))


@pytest.mark.parametrize(("part", "expected"), [(True, ["PASS"]), (False, ["FAIL P0"])])
def test_ranks_of_nodes_that_were_not_looked_at_are_not_gone(part: bool, expected: list[str]) -> None:
    """A sample of the nodes, this node alone, or a component of a heterogeneous job."""
    told = even(32, 4)
    del told["n2"]
    assert words(said(CHECK, job(told, part=part))) == expected


@pytest.mark.parametrize("part", [True, False])
def test_who_meets_elsewhere_among_those_who_were_looked_at(part: bool) -> None:
    found = said(CHECK, job(changed(3, MASTER_ADDR="n2"), part=part))
    assert words(found) == ["WARN P0" if part else "FAIL P0"]


@pytest.mark.parametrize(
    ("name", "value", "priority"),
    [
        ("NCCL_ALGO", "Ring", "P1"),
        ("NCCL_IB_DISABLE", "1", "P1"),
        ("FI_PROVIDER", "tcp", "P1"),
        ("LD_LIBRARY_PATH", "/old/lib", "P1"),
        ("NCCL_IB_HCA", "mlx5_9", "P2"),
        ("OMP_NUM_THREADS", "1", "P2"),
    ],
)
def test_the_odd_rank_is_named(name: str, value: str, priority: str) -> None:
    (found,) = said(CHECK, job(changed(2, **{name: value})))
    assert (found.status, found.priority, found.nodes) == ("WARN", priority, ["n2"])
    assert found.text == f"{name}: {value} on rank 2 (n2); the others have not set"
    assert {one.line for one in found.proofs} == {f"{name}={value}", f"{name} is not set"}


def test_of_two_halves_nobody_is_odd() -> None:
    told = even(4)
    for row in told["n2"]:
        row["environment"]["NCCL_ALGO"] = "Ring"
    (found,) = said(CHECK, job(told))
    assert (found.status, found.nodes) == ("WARN", [])
    assert "not set on ranks 0-1 (n1)" in found.text and "Ring on ranks 2-3 (n2)" in found.text


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG_FILE",
        "NCCL_HOSTID",
        "TORCHELASTIC_ERROR_FILE",
        "NCCL_SLURM_SPOOL",
        "LOCAL_RANK",
        "CUDA_VISIBLE_DEVICES",
    ],
)
def test_what_differs_by_design_is_left_out(name: str) -> None:
    assert words(said(CHECK, job(changed(2, **{name: "other"})))) == ["PASS"]


def test_a_value_of_each_rank_is_by_design() -> None:
    told = even()
    for row in (one for rows in told.values() for one in rows):
        row["environment"]["UCX_TLS"] = f"x{row['pid']}"
    assert words(said(CHECK, job(told))) == ["PASS"]


def test_a_value_of_each_node_is_by_design() -> None:
    told = even(6, 3)
    for node, rows in told.items():
        for row in rows:
            row["environment"]["NCCL_TOPO_FILE"] = f"/topo/rack-{ord(node[-1])}"
    assert words(said(CHECK, job(told))) == ["PASS"]


def test_a_nodes_own_name_in_a_value_is_no_difference() -> None:
    told = even()
    for node, rows in told.items():
        for row in rows:
            row["environment"]["NCCL_TOPO_FILE"] = f"/topo/{node}.xml"
    assert words(said(CHECK, job(told))) == ["PASS"]


def test_secrets_in_values_are_hidden() -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    (found,) = said(CHECK, job(changed(2, NCCL_CONF_FILE=f"/x/{key}")))
    assert key not in found.text + "".join(one.line for one in found.proofs)


def test_nobody_seen_is_unknown() -> None:
    assert words(said(CHECK, job({"n1": [], "n2": []}))) == ["UNKNOWN"]
    assert words(said(CHECK, job({"n1": "permission denied"}))) == ["UNKNOWN"]


def test_a_node_without_a_rank_is_named_where_ranks_are_missing() -> None:
    told = {"n1": [rank(number, 6, local=2) for number in range(2)], "n2": [rank(number, 6) for number in (2, 3)]}
    (found,) = said(CHECK, job({**told, "n3": []}, uid=0))
    assert (found.status, found.nodes) == ("FAIL", ["n3"]) and "ranks 4-5" in found.text


def test_a_node_on_which_none_is_wanted_is_no_finding() -> None:
    assert words(said(CHECK, job({**even(), "head": []}, uid=0))) == ["PASS"]
    assert words(said(CHECK, job({**even(), "head": []}, uid=1000))) == ["UNKNOWN", "PASS"]


def test_a_node_whose_ranks_are_not_ours_is_told() -> None:
    found = said(CHECK, job({**even(), "n3": "permission denied"}))
    assert words(found) == ["UNKNOWN", "PASS"]
    assert found[0].nodes == ["n3"] and "on 2 nodes" in found[1].text


def test_a_rank_whose_settings_were_cut_is_no_odd_one() -> None:
    """What is not among those that were read may be set."""
    told = even(NCCL_DEBUG="WARN")
    told["n2"] = [
        {**one, "cut": True, "environment": {"RANK": "3"}} if one["pid"] == 1003 else one for one in told["n2"]
    ]
    found = said(CHECK, job(told))
    assert words(found) == ["UNKNOWN", "PASS"] and "more settings" in found[0].text and found[0].nodes == ["n2"]


def test_mpi_ranks_are_ranks() -> None:
    rows = [
        {"pid": 5 + n, "parent": 1, "environment": {"OMPI_COMM_WORLD_RANK": str(n), "NCCL_P2P_LEVEL": "NVL"}}
        for n in range(4)
    ]
    rows[3]["environment"]["NCCL_P2P_LEVEL"] = "SYS"  # type: ignore[index]
    (found,) = said(CHECK, job({"n1": rows}))
    assert "NCCL_P2P_LEVEL: SYS on rank 3 (n1)" in found.text
    assert worlds(ranks(job({"n1": rows})).seen) == {}


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
rows_of_junk = st.lists(
    st.fixed_dictionaries(
        {"pid": st.integers() | junk},
        optional={
            "parent": junk,
            "environment": st.dictionaries(st.sampled_from(["RANK", "WORLD_SIZE", "MASTER_ADDR", "NCCL_X"]), junk)
            | junk,
            "limits": junk,
            "libraries": junk,
            "uid": junk,
        },
    )
    | junk,
    max_size=6,
)


@given(rows_of_junk)
def test_any_answer_of_a_node_is_judged(rows: Any) -> None:
    assert said(CHECK, job({"n1": rows, "n2": [launcher(), rank(0, 2)]}))
