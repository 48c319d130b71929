"""Nodes beside each other: versions with the odd ones out, bandwidth by peers and past, stragglers, sweeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.doctor import sweep
from nccl_slurm.doctor.check import Finding, judged
from nccl_slurm.doctor.checks.fleet import bandwidth, stragglers, versions
from nccl_slurm.doctor.observation import Fleet, Observation
from tests.doctor.machines import Machine, of

Change = Callable[[Machine], object]


def fleet(
    root: Path,
    keys: Sequence[str],
    kind: str = "infiniband",
    count: int = 4,
    odd: Mapping[str, Change] | None = None,
) -> Fleet:
    """``count`` nodes n1 … of which those in ``odd`` are changed. Like ones are read once."""
    odd = odd or {}
    same = of(kind).look(root / "same", keys, "4711")
    nodes: dict[str, Observation] = {}
    for number in range(1, count + 1):
        name = f"n{number}"
        seen = same
        if name in odd:
            machine = of(kind)
            odd[name](machine)
            seen = machine.look(root / name, keys, "4711")
        nodes[name] = replace(seen, node=name)
    return Fleet(nodes)


def wrong(found: Sequence[Finding]) -> list[tuple[str, str | None, tuple[str, ...], str]]:
    return [(one.status, one.priority, tuple(one.nodes), one.text) for one in found if one.status in ("FAIL", "WARN")]


def version(text: str) -> Change:
    return lambda m: m.files.update(
        {"/proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX Open Kernel Module  {text}  x"}
    )


KEYS = versions.CHECKS[0].sources


def test_all_alike(tmp_path: Path) -> None:
    found = judged(versions.CHECKS[0], fleet(tmp_path, KEYS))
    assert wrong(found) == []
    assert "NVIDIA driver 570.133.20 (open)" in found[0].text and "kernel 6.8.0-1021-aws" in found[0].text


def test_only_nodes_that_tell_something_are_called_alike(tmp_path: Path) -> None:
    seen = fleet(tmp_path, KEYS, count=3)
    dumb = Fleet({**seen.nodes, "n4": Observation("n4", {}, slurm=seen.nodes["n1"].slurm)})
    found = judged(versions.CHECKS[0], dumb)
    assert {("n4" in one.nodes, one.status) for one in found if "driver" in one.text} == {(False, "PASS")}
    assert [tuple(one.nodes) for one in found if one.status == "UNKNOWN"] == [("n4",)]


def test_drivers_of_two_kinds_of_machines_may_differ(tmp_path: Path) -> None:
    odd: dict[str, Change] = {name: version("535.161.08") for name in ("n1", "n2")}
    seen = fleet(tmp_path, KEYS, odd=odd)
    for name in odd:
        seen.nodes[name].found["dmi"]["texts"].update({"/sys/class/dmi/id/product_name": "another"})
    assert not [one for one in wrong(judged(versions.CHECKS[0], seen)) if "driver" in one[3]]


@pytest.mark.parametrize(
    ("change", "priority", "item"),
    [
        pytest.param(version("535.161.08"), "P1", "NVIDIA driver", id="W11: driver"),
        pytest.param(
            lambda m: m.files.update({"/proc/sys/kernel/osrelease": "5.15.0\n"}), "P2", "kernel", id="W11: kernel"
        ),
        (lambda m: m.slurm.update(Version="24.05.1"), "P2", "slurmd"),
        (lambda m: m.every_gpu(name="x").says("enroot", "3.4.1"), None, ""),
        (lambda m: m.every_gpu(power="500.00 W"), "P1", "power limit of GPUs"),
        (lambda m: m.every_gpu(width="8x"), "P1", "PCIe lanes of GPUs"),
        (lambda m: m.every_gpu(width="8x", width_max="8x"), None, ""),
        (lambda m: m.every_gpu(power="350.00 W", power_default="350.00 W"), None, ""),
        (lambda m: m.every_gpu(vbios="96.00.30.00.01"), "P2", "GPU firmware (VBIOS)"),
        (lambda m: m.every_gpu(vbios="96.00.30.00.01", name="NVIDIA H200"), None, ""),
        (lambda m: m.files.update({"/sys/class/net/eth0/mtu": "1500"}), "P1", "MTU"),
        (lambda m: m.files.update({"/sys/class/infiniband/mlx5_2/fw_ver": "28.39.1"}), "P2", "firmware of RDMA cards"),
    ],
)
def test_the_odd_one_out(change: Change, priority: str | None, item: str, tmp_path: Path) -> None:
    found = wrong(judged(versions.CHECKS[0], fleet(tmp_path, KEYS, odd={"n3": change})))
    if priority is None:
        assert found == []
        return
    ((status, weight, nodes, text),) = found
    assert (status, weight, nodes) == ("WARN", priority, ("n3",)) and text.startswith(f"{item}: other than on most")


def test_two_halves_accuse_nobody(tmp_path: Path) -> None:
    other = version("535.161.08")
    ((_, _, nodes, text),) = wrong(judged(versions.CHECKS[0], fleet(tmp_path, KEYS, odd={"n3": other, "n4": other})))
    assert nodes == ("n1", "n2", "n3", "n4") and "2 values, none on most" in text


def test_ranks_with_another_nccl_can_not_run_together(tmp_path: Path) -> None:
    def rank(nccl: str) -> Change:
        return lambda m: m.rank(0, f"/usr/lib/libnccl.so.{nccl}")

    odd = {f"n{number}": rank("2.21.5") for number in (1, 2, 3)} | {"n4": rank("2.18.3")}
    ((status, priority, nodes, text),) = wrong(judged(versions.CHECKS[0], fleet(tmp_path, KEYS, odd=odd)))
    assert (status, priority, nodes) == ("FAIL", "P0", ("n4",)) and "2.21.5" in text


def mapped(*nodes: tuple[str, dict[str, str] | None]) -> Fleet:
    """Nodes n1 … with one rank of one job each: the path of a library, and what the node tells of that file."""
    found: dict[str, Observation] = {}
    for number, (path, file) in enumerate(nodes, start=1):
        row = {"pid": 5, "job": "42", "environment": {"RANK": str(number)}, "libraries": [path]}
        told = {"ranks": {"value": {"ranks": [row], "more": 0, "libraries": {path: file}}}}
        found[f"n{number}"] = Observation(f"n{number}", told, kernel="6.8")
    return Fleet(found)


SAID, LINK = {"real": "libnccl.so.2", "said": "2.21.5"}, {"real": "libnccl.so.2.21.5", "said": ""}
NCCL, OFI = "/opt/nccl/lib/libnccl.so.2", "/opt/amazon/ofi-nccl/lib/libnccl-net.so"


@pytest.mark.parametrize(
    ("nodes", "odd"),
    [
        pytest.param([(NCCL, SAID), (NCCL, SAID), (NCCL, None)], (), id="one file could not be read"),
        pytest.param([(NCCL, SAID), (NCCL, {"real": "libnccl.so.2"})], (), id="one tells no version"),
        pytest.param([(NCCL, SAID), (NCCL, LINK), (NCCL + ".21.5", None)], (), id="by name and by itself"),
        pytest.param([(f"/tmp/{n}/libnccl.so.2", None) for n in "ab"], (), id="each in a folder of its own"),
        pytest.param(
            [("/usr/local/cuda-12.4/lib/libnccl.so.2", None), (NCCL, SAID)], (), id="CUDA's number is none of NCCL"
        ),
        pytest.param([(NCCL, SAID), (NCCL, SAID), (NCCL, {"said": "2.18.3"})], (("FAIL", "P0", ("n3",)),), id="older"),
        pytest.param(
            [(NCCL, SAID), (NCCL, {"said": "2.18.3"}), (NCCL, None)], (("FAIL", "P0", ("n1", "n2")),), id="two of three"
        ),
        pytest.param([(OFI, None)] * 3 + [("/opt/b/libnccl-net.so", None)], (), id="another kind of plugin"),
        pytest.param(
            [(OFI, None)] * 3 + [("/b/aws-ofi-nccl/libnccl-net.so", None)], (("WARN", "P1", ("n4",)),), id="odd plugin"
        ),
        pytest.param([(f"/tmp/n{n}/ofi-nccl/libnccl-net.so", None) for n in (1, 2, 3)], (), id="by the node's name"),
    ],
)
def test_libraries_whose_version_is_not_told(
    nodes: Sequence[tuple[str, dict[str, str] | None]], odd: Sequence[tuple[str, str, tuple[str, ...]]]
) -> None:
    found = judged(versions.CHECKS[0], mapped(*nodes))
    assert [one[:3] for one in wrong(found)] == list(odd)


def test_a_node_that_tells_nothing_is_not_odd(tmp_path: Path) -> None:
    seen = fleet(tmp_path, KEYS)
    nodes = {**seen.nodes, "n9": Observation("n9", {})}
    assert wrong(judged(versions.CHECKS[0], Fleet(nodes))) == []


@pytest.mark.parametrize("count", [0, 1])
def test_one_node_has_nothing_to_be_compared_with(count: int, tmp_path: Path) -> None:
    nodes = dict(list(fleet(tmp_path, KEYS, count=1).nodes.items())[:count])
    assert judged(versions.CHECKS[0], Fleet(nodes))[0].status == "NOT-APPLICABLE"


def test_firmware_is_compared_with_like_machines_alone(tmp_path: Path) -> None:
    big, small = fleet(tmp_path / "a", KEYS, "p5", 2), fleet(tmp_path / "b", KEYS, "infiniband", 2)
    mixed = Fleet({**big.nodes, **{f"m{name}": seen for name, seen in small.nodes.items()}})
    told = {text.partition(":")[0] for _, _, _, text in wrong(judged(versions.CHECKS[0], mixed))}
    assert told == set()


def test_one_job_on_two_kinds_of_machines(tmp_path: Path) -> None:
    def rank(machine: Machine) -> None:
        machine.rank(0, "/usr/lib/libnccl.so.2.21.5")

    one = fleet(tmp_path / "a", KEYS, "p5", 3, {f"n{number}": rank for number in (1, 2, 3)})
    other = fleet(tmp_path / "b", KEYS, "p4d", 1, {"n1": rank})
    mixed = Fleet({**one.nodes, "m1": replace(other.nodes["n1"], node="m1")})
    ((status, priority, nodes, text),) = wrong(judged(versions.CHECKS[0], mixed))
    assert (status, priority, nodes) == ("WARN", "P1", ("m1",)) and text.startswith("machine type")


def test_two_jobs_may_have_two_versions(tmp_path: Path) -> None:
    odd: dict[str, Change] = {
        "n1": lambda m: m.rank(0, "/usr/lib/libnccl.so.2.21.5"),
        "n2": lambda m: m.rank(0, "/usr/lib/libnccl.so.2.18.3"),
    }
    seen = fleet(tmp_path, KEYS, count=2, odd=odd)
    for row in seen.nodes["n2"].found["ranks"]["value"]["ranks"]:
        row["job"] = "4712"
    assert wrong(judged(versions.CHECKS[0], seen)) == []


def ran(*of: tuple[str, str, int, Sequence[str]]) -> Fleet:
    """(node, step, rank, versions of NCCL that it has mapped)."""
    rows: dict[str, list[dict[str, object]]] = {}
    for node, step, number, nccl in of:
        row = {"pid": 100 + number, "job": "42", "environment": {"RANK": str(number), "SLURM_STEP_ID": step}}
        rows.setdefault(node, []).append({**row, "libraries": [f"/opt/libnccl.so.{one}" for one in nccl]})
    told = {node: {"ranks": {"value": {"ranks": each, "more": 0, "libraries": {}}}} for node, each in rows.items()}
    return Fleet({node: Observation(node, each, kernel="6.8") for node, each in told.items()})


OLD, NEW = ("2.18.5",), ("2.21.5",)


@pytest.mark.parametrize(
    ("ranks", "odd", "alike"),
    [
        pytest.param(
            [("n1", "0", 0, OLD), ("n2", "0", 1, OLD), ("n3", "1", 0, NEW), ("n4", "1", 1, NEW)],
            (),
            {("n1", "n2"): "2.18.5", ("n3", "n4"): "2.21.5"},
            id="two steps on nodes of their own",
        ),
        pytest.param(
            [("n1", "0", 0, OLD), ("n2", "0", 1, OLD), ("n1", "1", 0, NEW), ("n2", "1", 1, NEW)],
            (),
            {("n1", "n2"): "2.21.5"},
            id="two steps on the same nodes",
        ),
        pytest.param(
            [("n1", "0", 0, NEW), ("n2", "1", 1, NEW), ("n3", "2", 2, NEW), ("n4", "3", 3, OLD)],
            ("n4",),
            {},
            id="one program, a step for each node",
        ),
        pytest.param(
            [("n1", "0", 0, OLD + NEW), ("n1", "0", 1, NEW), ("n2", "0", 2, NEW), ("n3", "0", 3, NEW)],
            (),
            {("n1", "n2", "n3"): "2.21.5"},
            id="one rank has mapped a second one",
        ),
        pytest.param(
            [("n1", "0", 0, OLD + NEW), ("n2", "0", 1, NEW), ("n3", "0", 2, NEW)],
            (),
            {("n2", "n3"): "2.21.5"},
            id="which of two is used is not told",
        ),
        pytest.param(
            [("n1", "0", 0, OLD), ("n1", "0", 1, NEW), ("n2", "0", 2, NEW), ("n3", "0", 3, NEW)],
            ("n1",),
            {},
            id="ranks of one node have one each",
        ),
    ],
)
def test_libraries_are_compared_within_a_program(
    ranks: Sequence[tuple[str, str, int, Sequence[str]]], odd: tuple[str, ...], alike: Mapping[tuple[str, ...], str]
) -> None:
    found = judged(versions.CHECKS[0], ran(*ranks))
    assert [one[:3] for one in wrong(found)] == ([("FAIL", "P0", odd)] if odd else [])
    same = {tuple(one.nodes): one.text for one in found if one.status == "PASS" and "NCCL of the ranks" in one.text}
    assert same.keys() == alike.keys() and all(alike[nodes] in text for nodes, text in same.items())


# bandwidth


def output(
    busbw: float,
    *hosts: str,
    size: int = 1 << 33,
    average: str = "# Avg bus bandwidth    : 1",
    bad: int = 0,
    board: str = "NVIDIA H100",
) -> str:
    head = "# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n# Collective test starting: all_reduce_perf\n"
    ranks = "".join(
        f"#  Rank {8 * place + gpu} Group  0 Pid {place} on {host} device  {gpu} [0x10] {board}\n"
        for place, host in enumerate(hosts)
        for gpu in range(8)
    )
    line = f" {size} {size // 4} float sum -1 22661 {busbw / 2} {busbw} 0 22658 {busbw / 2} {busbw} 0\n"
    return f"{head}{ranks}{line}# Out of bounds values : {bad} OK\n{average}\n"


def judge(texts: dict[str, str], before: dict[str, str] | None = None) -> list[Finding]:
    return judged(bandwidth.CHECKS[0], Fleet({}, bandwidth=texts, bandwidth_before=before or {}))


def alone(**figures: float) -> dict[str, str]:
    return {f"{name}.txt": output(value, name) for name, value in figures.items()}


@pytest.mark.parametrize(
    ("figure", "status", "priority"),
    [(440.0, "PASS", None), (425.0, "PASS", None), (400.0, "WARN", "P2"), (300.0, "FAIL", "P1")],
)
def test_single_nodes_beside_their_peers(figure: float, status: str, priority: str | None) -> None:
    found = {tuple(one.nodes): one for one in judge(alone(n1=440, n2=441, n3=439, n4=figure))}
    assert (found[("n4",)].status, found[("n4",)].priority) == (status, priority)
    assert {found[(name,)].status for name in ("n1", "n2", "n3")} == {"PASS"}


def test_other_boards_are_no_peers() -> None:
    texts = {**alone(n1=480, n2=481, n3=479), "a1.txt": output(235, "a1", board="NVIDIA A100-SXM4-40GB")}
    found = {tuple(one.nodes): one.status for one in judge(texts)}
    assert found[("a1",)] == "UNKNOWN" and found[("n1",)] == "PASS"


def test_a_second_run_in_one_file_must_end_too() -> None:
    twice = output(480, "n1") + output(90, "n1", average="")
    found = [one for one in judge({**alone(n2=480, n3=480, n4=480), "n1.txt": twice}) if "n1" in one.nodes]
    assert [(one.status, one.priority) for one in found] == [("WARN", "P1"), ("PASS", None)]


def test_each_run_of_a_file_is_judged() -> None:
    """The second one of n2 is slow, and gives wrong results."""
    texts = {
        f"n{number}": output(400.0, f"n{number}")
        + output(40.0 if number == 2 else 395.0, f"n{number}", size=1 << 32, bad=4096 if number == 2 else 0)
        for number in range(1, 6)
    }
    wrong = [(one.status, one.priority, tuple(one.nodes)) for one in judge(texts) if one.status != "PASS"]
    assert wrong == [("FAIL", "P0", ("n2",)), ("FAIL", "P1", ("n2",))]


def test_no_table_of_instance_types_decides() -> None:
    """W39, contradictions: 78 GB/s of a pair of p4d is what its peers have, whatever a page expects."""
    texts = {f"{a}-{b}.txt": output(78.0, a, b) for a, b in (("n1", "n2"), ("n3", "n4"), ("n5", "n6"))}
    assert {one.status for one in judge(texts)} == {"PASS"}


def test_a_slow_pair_of_nodes_that_are_fast_with_others_accuses_neither() -> None:
    texts = {}
    for pairs in sweep.pairs(["n1", "n2", "n3", "n4"]):
        for pair in pairs:
            texts[f"{'-'.join(pair)}.txt"] = output(100.0 if set(pair) == {"n1", "n2"} else 480.0, *pair)
    (found,) = [one for one in judge(texts) if one.status not in ("PASS", "UNKNOWN")]
    assert (found.status, found.priority, sorted(found.nodes)) == ("WARN", "P1", ["n1", "n2"])
    assert "each of its nodes is fast with others" in found.text


def test_the_common_node_of_slow_pairs_is_named() -> None:
    nodes = ["n1", "n2", "n3", "n4"]
    texts = {}
    for pairs in sweep.pairs(nodes):
        for pair in pairs:
            texts["-".join(sorted(pair))] = output(100.0 if "n3" in pair else 440.0, *pair)
    slow = [one for one in judge(texts) if one.status == "FAIL"]
    assert len(slow) == 3 and {tuple(one.nodes) for one in slow} == {("n3",)}


def test_a_pair_is_never_compared_with_a_single_node() -> None:
    texts = {**alone(n1=440, n2=440, n3=440), "pair": output(120.0, "n4", "n5")}
    found = {tuple(one.nodes): one.status for one in judge(texts)}
    assert found[("n4", "n5")] == "UNKNOWN"


def test_own_past_where_there_are_no_peers() -> None:
    before = {f"old{number}": output(440.0, "n1", "n2") for number in range(3)}
    assert [one.status for one in judge({"now": output(440.0, "n1", "n2")}, before)] == ["PASS"]
    (slow,) = judge({"now": output(300.0, "n1", "n2")}, before)
    assert (slow.status, slow.nodes) == ("FAIL", ("n1", "n2")) and "its own past" in slow.text


@pytest.mark.parametrize(
    ("text", "status", "priority"),
    [
        (output(440.0, "n1", average=""), "WARN", "P1"),
        (output(440.0, "n1", bad=3), "FAIL", "P0"),
        ("Segmentation fault", "UNKNOWN", None),
        ("# Avg bus bandwidth    : 3", "UNKNOWN", None),
    ],
)
def test_runs_that_tell_little(text: str, status: str, priority: str | None) -> None:
    found = judge({"x": text})
    assert (status, priority) in {(one.status, one.priority) for one in found}
    assert all(one.status != "PASS" for one in found)


def test_no_output_is_nothing_to_judge() -> None:
    assert [one.status for one in judge({})] == ["NOT-APPLICABLE"]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_every_pair_meets_once(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    rounds = list(sweep.pairs(nodes))
    met = [frozenset(pair) for one in rounds for pair in one]
    assert len(met) == len(set(met)) == count * (count - 1) // 2
    for one in rounds:
        assert len({node for pair in one for node in pair}) == 2 * len(one)
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)


@pytest.mark.parametrize("count", [2, 3, 5, 8, 100])
def test_halving_leaves_no_node_out(count: int) -> None:
    nodes = [f"n{number}" for number in range(count)]
    rounds = list(sweep.halving(nodes))
    assert rounds[0] == [nodes] and len(rounds) <= count.bit_length()
    smallest = {node: len(group) for groups in rounds for group in groups for node in group}
    assert sorted(smallest) == sorted(nodes) and set(smallest.values()) <= {2, 3}


@pytest.mark.parametrize("way", sweep.WAYS)
def test_commands_hold_names_of_hosts_alone(way: str) -> None:
    names = ["n1", "n2", "n3;reboot", "$(id)", "-x"]
    told = list(sweep.lines({name: sweep.Room(4 if name == "n1" else 8) for name in names}, way))
    commands = [line for line in told if not line.startswith("#")]
    assert commands and all(re.fullmatch(r"srun [A-Za-z0-9 =._,\[\]>-]+", line) for line in commands)
    assert all("reboot" not in line and "id" not in line.split("=")[0] for line in commands)
    assert "--gpus-per-node=4" in commands[0]


# stragglers

WORK = {"throttle": (), "clock": "1980 MHz"}


def at_work(**changes: object) -> Change:
    return lambda m: m.rank(0, "/usr/lib/libnccl.so.2").every_gpu(**{**WORK, **changes})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (at_work(), None),
        (at_work(clock="1400 MHz"), "lower clock"),
        (at_work(clock="1950 MHz"), None),
        (lambda m: at_work()(m).gpu(2, throttle=("gpu_idle",)), "idle while those of most nodes work"),  # type: ignore[attr-defined]
        (lambda m: at_work()(m).files.update({"/proc/loadavg": "700.0 1 1 1/9 9\n"}), "more runnable tasks"),  # type: ignore[attr-defined]
    ],
)
def test_stragglers(change: Change, words: str | None, tmp_path: Path) -> None:
    odd: dict[str, Change] = {"n3": change, **{f"n{number}": at_work() for number in (1, 2, 4)}}
    found = judged(stragglers.CHECKS[0], fleet(tmp_path, stragglers.CHECKS[0].sources, odd=odd))
    if words is None:
        assert [one.status for one in found] == ["PASS"]
    else:
        ((_, _, nodes, text),) = wrong(found)
        assert nodes == ("n3",) and words in text


@pytest.mark.parametrize(("busy", "status"), [(4, "PASS"), (3, "WARN")])
def test_a_last_node_with_fewer_ranks_is_no_straggler(busy: int, status: str, tmp_path: Path) -> None:
    def work(ranks: int, busy: int) -> Change:
        def change(m: Machine) -> None:
            m.every_gpu(**WORK)
            for number in range(ranks):
                m.rank(number, "/usr/lib/libnccl.so.2")
            for number in range(busy, 8):
                m.gpu(number, throttle=("gpu_idle",))

        return change

    odd = {"n4": work(4, busy), **{f"n{number}": work(8, 8) for number in (1, 2, 3)}}
    found = judged(stragglers.CHECKS[0], fleet(tmp_path, stragglers.CHECKS[0].sources, odd=odd))
    assert {one.status for one in found} == {status}


def test_a_job_that_does_nothing_has_no_stragglers(tmp_path: Path) -> None:
    odd = {f"n{number}": at_work(throttle=("gpu_idle",)) for number in (1, 2, 3, 4)}
    found = judged(stragglers.CHECKS[0], fleet(tmp_path, stragglers.CHECKS[0].sources, odd=odd))
    assert [one.text for one in found] == ["GPUs of all nodes are idle"]


@pytest.mark.parametrize("busy", [0, 2])
def test_nodes_of_no_job_or_too_few_are_not_compared(busy: int, tmp_path: Path) -> None:
    odd = {f"n{number}": at_work() for number in range(1, busy + 1)}
    found = judged(stragglers.CHECKS[0], fleet(tmp_path, stragglers.CHECKS[0].sources, odd=odd))
    assert [one.status for one in found] == ["NOT-APPLICABLE"]
