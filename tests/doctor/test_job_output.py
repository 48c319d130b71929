"""What the job's output says, and which way its data took, from real lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nccl_slurm.doctor.checks.job import output, transport
from tests.doctor.jobs import EFA, INFINIBAND, NO_FABRIC, ROCE, UNPLUGGED, even, job, said, words

(OUTPUT,) = output.CHECKS
(TRANSPORT,) = transport.CHECKS
CHANNEL = "{host}:{pid}:1 [0] NCCL INFO Channel 00/0 : {a}[0] -> {b}[0] [send] via NET/{net}"
USING = "{host}:{pid}:1 [0] NCCL INFO Using network {net}"
CALM = "step 1 loss 3.2\nstep 2 loss 3.1\n"
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB"
MISSED = (
    "[rank{rank}]:[E1130 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out."
)


def written(folder: Path, text: str) -> Path:
    (folder / "slurm-42.out").write_text(text)
    return folder


def of_output(folder: Path, text: str) -> Any:
    return said(OUTPUT, job(even(), output=written(folder, text)))


# output


def test_calm_output_passes(tmp_path: Path) -> None:
    (found,) = of_output(tmp_path, CALM)
    assert found.status == "PASS" and "no line of a failure" in found.text


@pytest.mark.parametrize(
    "line",
    [
        "n1:1:1 [0] NCCL INFO NET/Plugin: Successfully loaded external network plugin libnccl-net.so",
        "CUDA_VISIBLE_DEVICES=0,1,2,3",
        "n1:1:1 [0] NCCL INFO socketStartConnect: Connect to 10.0.0.2<40> returned Connection refused, retrying (1/34)",
        "env FOO=OOMKilled",
    ],
)
def test_what_looks_bad_and_is_not_passes(line: str, tmp_path: Path) -> None:
    assert words(of_output(tmp_path, f"{CALM}{line}\n")) == ["PASS"]


def test_a_failure_is_told_with_its_line(tmp_path: Path) -> None:
    (found,) = of_output(tmp_path, f"{CALM}{OOM}\n")
    assert (found.status, found.priority) == ("FAIL", "P0")
    assert found.text.startswith("cuda-oom (") and found.values == {"job": "42", "class": "cuda-oom"}
    assert found.proofs[0].source.endswith("slurm-42.out:3") and "CUDA out of memory" in found.proofs[0].line


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.", "rendezvous-store"),
        ("The client socket has timed out after 60000ms while trying to connect to (n1, 29500).", "rendezvous-store"),
        (
            "The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
            "rendezvous-store",
        ),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous-store"),
        ("n1:1:2 [0] a.cc:1 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available", "net-efa-ofi"),
        (
            "n1:1:2 [0] a.cc:1 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "resource-memlock",
        ),
        ("n1:1:2 [0] a.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-abcdef to 9637892 bytes", "resource-shm"),
        (
            "n1:1:2 [0] a.cc:1 NCCL WARN Mismatched NCCL version detected : rank 0 version 22005 rank 1 version 21805",
            "version-mismatch",
        ),
        ("n1:1:2 [0] a.cc:1 NCCL WARN Bootstrap : no socket interface found", "net-socket-connect"),
        (
            "n1:1:2 [0] a.cc:1 NCCL WARN socketStartConnect: Connect to 10.0.0.2<40> failed : Connection refused",
            "net-socket-connect",
        ),
        ("n1:1:2 [0] a.cc:1 NCCL WARN Cuda failure 'unspecified launch failure'", "gpu-app-fault"),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "version-mismatch"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.",
            "host-oom",
        ),
        (MISSED.format(rank=3), "collective-hang-unattributed"),
    ],
)
def test_lines_that_real_software_prints(line: str, expected: str, tmp_path: Path) -> None:
    """In the place of patterns of others that nothing prints."""
    (found,) = of_output(tmp_path, f"{CALM}{line}\n")
    assert (found.status, found.values["class"]) == ("FAIL", expected)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "DistBackendError: NCCL error in: ../a.cpp:93, unhandled system error, NCCL version 2.21.5",
            "P1",
        ),
        ("n1:1:2 [0] transport.cc:10 NCCL WARN Could not enable P2P between dev 0(=1a000) and dev 1(=1b000)", "P2"),
        ("n1:1:2 [0] shmutils.cc:1 NCCL WARN unlink shared memory /dev/shm/nccl-x failed", "P2"),
    ],
)
def test_what_decides_nothing_is_not_passed(line: str, expected: str, tmp_path: Path) -> None:
    (found,) = of_output(tmp_path, f"{CALM}{line}\n")
    assert (found.status, found.priority) == ("WARN", expected)
    assert found.proofs[0].source.endswith(":3")


def test_in_a_job_that_runs_it_is_a_warning(tmp_path: Path) -> None:
    """It may have been caught."""
    (found,) = said(OUTPUT, job(even(), output=written(tmp_path, f"{CALM}{OOM}\n"), state="RUNNING"))
    assert (found.status, found.priority, found.nodes) == ("WARN", "P1", [])
    assert "CUDA out of memory" in found.proofs[0].line


def test_who_waited_is_not_accused(tmp_path: Path) -> None:
    text = "".join(MISSED.format(rank=rank) + "\n" for rank in (0, 1, 3))
    (found,) = of_output(tmp_path, text)
    assert found.status == "FAIL" and found.nodes == []
    assert found.values["class"].startswith("collective-")


def test_a_hardware_word_in_a_jobs_output_proves_nothing(tmp_path: Path) -> None:
    (found,) = of_output(tmp_path, "NVRM: Xid (PCI:0000:a1:00): 79, GPU has fallen off the bus.\n")
    assert found.nodes == []


@pytest.mark.parametrize("text", ["", None])
def test_no_output_is_unknown(text: str | None, tmp_path: Path) -> None:
    if text is None:
        assert words(said(OUTPUT, job(even()))) == ["UNKNOWN"]
    else:
        (found,) = of_output(tmp_path, text)
        assert found.status == "UNKNOWN" and "says nothing" in found.text


def test_secrets_are_hidden(tmp_path: Path) -> None:
    key = "AKIA" + "ABCDEFGHIJKLMNOP"
    (found,) = of_output(tmp_path, f"{OOM} key {key}\n")
    assert found.proofs and key not in str(found)


# transport


def channels(net: str, using: str, *hosts: str) -> str:
    lines = [USING.format(host=host, pid=10 + at, net=using) for at, host in enumerate(hosts)]
    lines += [
        CHANNEL.format(host=host, pid=10 + at, a=at, b=(at + 1) % len(hosts), net=net) for at, host in enumerate(hosts)
    ]
    return "\n".join(lines) + "\n"


def of_transport(folder: Path, text: str, **more: Any) -> Any:
    return said(TRANSPORT, job(even(), output=written(folder, text), **more))


@pytest.mark.parametrize(
    ("net", "using", "adapters", "expected"),
    [
        ("IB/0/GDRDMA", "IB", INFINIBAND, ["PASS"]),
        ("AWS Libfabric/0/GDRDMA", "AWS Libfabric", EFA, ["PASS"]),
        ("Libfabric/0/GDRDMA", "Libfabric", EFA, ["PASS"]),
        ("Socket/0", "Socket", {}, ["PASS"]),
        ("Socket/0", "Socket", EFA, ["FAIL P1"]),
        ("Socket/0", "Socket", INFINIBAND, ["FAIL P1"]),
        ("Socket/0", "Socket", None, ["UNKNOWN"]),
        ("Socket/0", "Socket", ROCE, ["FAIL P1"]),
        ("Socket/0", "Socket", {**INFINIBAND, "mlx5_9": "mlx5_core 25"}, ["FAIL P1"]),
        ("Socket/0", "Socket", UNPLUGGED, ["PASS"]),
        *(("Socket/0", "Socket", adapters, ["UNKNOWN"]) for adapters in NO_FABRIC.values()),
        ("IB/0", "IB", INFINIBAND, ["WARN P1"]),
    ],
)
def test_the_way_against_the_adapters(net: str, using: str, adapters: Any, expected: list[str], tmp_path: Path) -> None:
    assert words(of_transport(tmp_path, channels(net, using, "n1", "n2"), adapters=adapters)) == expected


def test_sockets_are_told_with_host_and_adapter(tmp_path: Path) -> None:
    (found,) = of_transport(tmp_path, channels("Socket/0", "Socket", "n1", "n2"), adapters=EFA)
    assert found.text == "n[1-2] sent through TCP sockets although the nodes have EFA adapters"
    assert found.nodes == ["n1", "n2"] and "Using network Socket" in found.proofs[0].line


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("p4d.24xlarge", "p4d.24xlarge"), ["WARN P1"]),
        (("g5.48xlarge", "p4d.24xlarge"), ["WARN P1"]),
        (("g5.48xlarge", "g5.48xlarge"), ["PASS"]),
        (("", ""), ["WARN P1"]),
    ],
)
def test_no_gpudirect_is_told_where_the_type_has_it(
    types: tuple[str, str], expected: list[str], tmp_path: Path
) -> None:
    text = channels("AWS Libfabric/0", "AWS Libfabric", "n1", "n2")
    seen = job(even(), output=written(tmp_path, text), adapters=EFA)
    for node, kind in zip(seen.fleet.nodes.values(), types, strict=True):
        texts = {"/sys/class/dmi/id/sys_vendor": "Amazon EC2", "/sys/class/dmi/id/product_name": kind}
        node.found["dmi"] = {"texts": texts, "cut": [], "unread": {}, "more": False}  # type: ignore[index]
    assert words(said(TRANSPORT, seen)) == expected


def test_the_odd_node_is_named(tmp_path: Path) -> None:
    good = channels("IB/0/GDRDMA", "IB", "n1", "n3", "n4")
    bad = USING.format(host="n2", pid=99, net="Socket") + "\n"
    told = {**even(), "n3": even()["n1"], "n4": even()["n1"]}
    found = said(TRANSPORT, job(told, output=written(tmp_path, good + bad), adapters=INFINIBAND))
    assert words(found) == ["FAIL P1", "WARN P1"]
    assert [one.nodes for one in found] == [["n2"], ["n2"]]


def test_a_host_that_is_not_of_the_job_is_never_named(tmp_path: Path) -> None:
    found = of_transport(tmp_path, channels("Socket/0", "Socket", "elsewhere", "n9"), adapters=EFA)
    assert all(not set(one.nodes) - {"n1", "n2"} for one in found)


def test_without_a_word_of_nccl_it_is_unknown_and_says_how_to_get_one(tmp_path: Path) -> None:
    (found,) = of_transport(tmp_path, CALM, adapters=EFA)
    assert found.status == "UNKNOWN" and "NCCL_DEBUG=INFO" in found.text


def test_ways_inside_a_node_alone_say_nothing_of_the_network(tmp_path: Path) -> None:
    line = "n1:10:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    assert words(of_transport(tmp_path, line, adapters=EFA)) == ["UNKNOWN"]
