"""Checks of GPUs, each both ways, on machines that stand in. ``W…``: row of docs/guide/coverage.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.doctor.check import judged
from tests.doctor import machines
from tests.doctor.machines import Gpu, Machine, check, findings, of, worst

Change = Callable[[Machine], object]


def dead(machine: Machine) -> Machine:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    return machine.says("nvidia-smi", words, 9)


def lost(machine: Machine) -> Machine:
    words = "Unable to determine the device handle for GPU3: 0000:13:1C.0: GPU is lost.  Reboot the system"
    return machine.says("nvidia-smi", words, 255)


def fell_off(machine: Machine) -> Machine:
    del machine.gpus[7]
    return machine.without(f"/sys/bus/pci/devices/{machines.bus(7)}")


def not_answering(machine: Machine) -> Machine:
    del machine.gpus[7]
    machine.links.pop(f"/sys/bus/pci/devices/{machines.bus(7)}.0/driver")
    return machine


EIGHT = tuple(f"0000:{number:02x}:00.0" for number in range(0x10, 0x18))


def of_another_maker(
    vendor: str, kind: str, device: str, gres: str, slots: Sequence[str] = EIGHT
) -> Callable[[Machine], Machine]:
    """Accelerators that are no NVIDIA GPUs, and none of those."""

    def change(machine: Machine) -> Machine:
        machine.gpus.clear()
        machine.without("/proc/driver/nvidia", *(f"/sys/bus/pci/devices/{machines.bus(n)}" for n in range(8)))
        for slot in (f"/sys/bus/pci/devices/{one}" for one in slots):
            machine.files.update({f"{slot}/vendor": vendor, f"{slot}/class": kind, f"{slot}/device": device})
        machine.slurm["Gres"] = gres
        return machine

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (of_another_maker("0x1002", "0x120000", "0x74a1", "gpu:mi300x:8"), "NOT-APPLICABLE"),
        (of_another_maker("0x1002", "0x120000", "0x74a1", "gpu:8"), "NOT-APPLICABLE"),
        (of_another_maker("0x1002", "0x038000", "0x7388", "gpu:8(S:0-1)"), "NOT-APPLICABLE"),
        (of_another_maker("0x1da3", "0x120000", "0x1060", "gpu:gaudi3:8"), "NOT-APPLICABLE"),
        (of_another_maker("0x8086", "0x038000", "0x0bd5", "gpu:8"), "NOT-APPLICABLE"),
        pytest.param(of_another_maker("", "", "", "gpu:mi250:8", ()), "NOT-APPLICABLE", id="Slurm tells the maker"),
        pytest.param(of_another_maker("", "", "", "gpu:8", ()), "FAIL P0", id="nothing tells another maker"),
        pytest.param(of_another_maker("", "", "", "gpu:h100:8", ()), "FAIL P0", id="NVIDIA's, and gone"),
        pytest.param(of_another_maker("0x1002", "0x030000", "0x515e", "gpu:8"), "FAIL P0", id="a console is none"),
        pytest.param(
            of_another_maker("0x8086", "0x038000", "0x4c8b", "gpu:8", ("0000:00:02.0",)), "FAIL P0", id="built in"
        ),
    ],
)
def test_gpus_of_another_maker_are_not_missed(change: Change, expected: str, tmp_path: Path) -> None:
    machine = of("infiniband")
    change(machine)
    assert worst(findings(machine, "node.gpu-count", tmp_path)) == expected


def test_no_check_of_nvidia_applies_to_another_makers(tmp_path: Path) -> None:
    names = ["xid", "ecc", "remapped-rows", "clocks", "power-cap", "gpu-processes", "fabric-manager", "nvlink", "dcgm"]
    for name in [*names, "p2p-topology", "acs", "iommu", "peermem"]:
        machine = of_another_maker("0x1002", "0x120000", "0x74a1", "gpu:mi300x:8")(of("infiniband"))
        assert worst(findings(machine, f"node.{name}", tmp_path / name)) == "NOT-APPLICABLE", name


LOST = ("GPU is lost", "[GPU is lost]", "GPU requires reset", "[GPU requires reset]")
FAILED = ("[Unknown Error]", "Unknown Error", "ERR!")


@pytest.mark.parametrize("name", ["node.gpu-count", "node.xid"])
@pytest.mark.parametrize(
    ("word", "expected"), [*((word, "FAIL P0") for word in LOST), *((word, "UNKNOWN") for word in FAILED)]
)
def test_a_gpu_that_is_listed_and_can_not_be_read(name: str, word: str, expected: str, tmp_path: Path) -> None:
    found = findings(of("p5").mute(3, word), name, tmp_path)
    assert worst(found) == expected
    assert any("GPU 3 (0000:13:1c)" in one.text and word in one.text for one in found), [one.text for one in found]


def test_one_value_that_can_not_be_read_is_no_silent_gpu(tmp_path: Path) -> None:
    assert worst(findings(of("p5").gpu(3, power="[Unknown Error]"), "node.gpu-count", tmp_path)) == "PASS"


def parts(gres: str) -> Callable[[Machine], Machine]:
    """GPUs that are split, with a GRES whose type does not say so."""

    def change(machine: Machine) -> Machine:
        machine.slurm["Gres"] = gres
        return machine.every_gpu(mig="Enabled")

    return change


def process(
    pid: int, comm: str, *, job: str = "", gpu: bool = True, device: str = "nvidia-uvm", **files: str
) -> Change:
    def change(machine: Machine) -> None:
        machine.process(pid, comm, job=job, **files)
        if gpu:
            machine.links[f"/proc/{pid}/fd/7"] = f"/dev/{device}"

    return change


def all_gone(machine: Machine) -> Machine:
    """Of a machine of which neither Slurm nor the table knows: only its driver is still loaded."""
    machine.slurm.clear()
    machine.gpus.clear()
    machine.without(*(f"/sys/bus/pci/devices/{machines.bus(number)}" for number in range(8)))
    machine.without("/proc/driver/nvidia/gpus")
    return machine.says("nvidia-smi", "No devices were found", 6)


@pytest.mark.parametrize("name", ["node.ecc", "node.clocks", "node.p2p-topology", "node.nvlink", "node.xid"])
def test_a_driver_without_gpus_is_no_machine_without_gpus(name: str, tmp_path: Path) -> None:
    assert worst(findings(all_gone(of("infiniband")), name, tmp_path)) in ("UNKNOWN", "PASS")


@pytest.mark.parametrize(
    ("words", "rc", "expected"),
    [
        ("No devices were found", 6, "UNKNOWN"),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "UNKNOWN"),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9, "FAIL P0"),
    ],
)
def test_a_job_without_gpus_sees_none(words: str, rc: int, expected: str, tmp_path: Path) -> None:
    machine = of("p5").says("nvidia-smi", words, rc)
    assert worst(findings(machine, "node.gpu-count", tmp_path / "outside")) == "FAIL P0"
    found = judged(
        check("node.gpu-count"),
        replace(machine.look(tmp_path / "inside", check("node.gpu-count").sources), job="4711"),
        ["n1"],
    )
    assert worst(found) == expected


@pytest.mark.parametrize(("mig", "expected"), [("Enabled", "UNKNOWN"), ("Disabled", "FAIL P0")])
def test_parts_of_a_gpu_are_no_gpus(mig: str, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    del machine.gpus[1:]
    machine.every_gpu(mig=mig)
    assert worst(findings(machine, "node.gpu-count", tmp_path, gpus=["0", "1", "2"])) == expected


@pytest.mark.parametrize(
    ("kind", "change", "expected", "words"),
    [
        ("p5", lambda m: None, "PASS", "8 GPUs answer"),
        ("p5", fell_off, "FAIL P0", "7 of 8 GPUs"),
        pytest.param("p5", not_answering, "FAIL P0", "7 of 8 GPUs (p5.48xlarge) answer", id="W17: seven of eight"),
        pytest.param("p5", dead, "FAIL P0", "the GPU driver does not answer", id="W17: a dead driver is no CPU node"),
        ("p5", lost, "FAIL P0", "GPU is lost"),
        ("p5", lambda m: m.says("nvidia-smi", "No devices were found"), "FAIL P0", "does not answer"),
        ("p5", lambda m: m.says("nvidia-smi", machines.smi_xml([])), "FAIL P0", "0 of 8 GPUs"),
        ("infiniband", not_answering, "FAIL P0", "7 of 8 GPUs (Gres=gpu:h100:8(S:0-1)) answer"),
        ("infiniband", lambda m: m.slurm.update(Gres="gpu:h100:4"), "WARN P2", "8 GPUs, and Slurm counts on 4"),
        ("infiniband", lambda m: m.slurm.update(Gres="gpu:4,gpu:a:4"), "PASS", "8 GPUs answer"),
        ("infiniband", lambda m: m.slurm.update(Gres="gpu:1g.10gb:56"), "UNKNOWN", "8 GPUs answer; how many"),
        ("p5", lambda m: m.slurm.update(Gres="gpu:a100_3g.20gb:16,gpu:h100:4"), "PASS", "8 GPUs answer"),
        ("infiniband", lambda m: m.slurm.update(Gres="(null)"), "UNKNOWN", "8 GPUs answer; how many"),
        ("infiniband", parts("gpu:56"), "UNKNOWN", "8 GPUs answer; how many"),
        ("infiniband", parts("gpu:a100:16"), "UNKNOWN", "8 GPUs answer; how many"),
        ("infiniband", parts("gpu:4"), "UNKNOWN", "8 GPUs answer; how many"),
        ("p5", parts("gpu:56"), "PASS", "8 GPUs answer"),
        ("p5", lambda m: fell_off(parts("gpu:56")(m)), "FAIL P0", "7 of 8 GPUs (p5.48xlarge) are on the PCI bus"),
        ("infiniband", lambda m: m.slurm.update(Gres="gpu:56"), "FAIL P0", "8 of 56 GPUs (Gres=gpu:56)"),
        ("infiniband", lambda m: dead(parts("gpu:56")(m)), "FAIL P0", "the GPU driver does not answer"),
        ("infiniband", lambda m: dead(parts("gpu:56")(m)), "FAIL P0", "gone, or split (MIG) into parts"),
        ("p5", lambda m: dead(parts("gpu:56")(m)), "FAIL P0", "gone, or split (MIG) into parts"),
        ("p5", lambda m: dead(fell_off(m)), "FAIL P0", "7 of 8 GPUs (p5.48xlarge) are on the PCI bus"),
        (
            "infiniband",
            lambda m: dead(fell_off(m)),
            "FAIL P0",
            "7 of 8 GPUs (Gres=gpu:h100:8(S:0-1)) are on the PCI bus",
        ),
        ("plain", lambda m: None, "NOT-APPLICABLE", "no NVIDIA GPU"),
        ("p5", lambda m: m.says("nvidia-smi", "<nvidia_smi_log><gpu>"), "UNKNOWN", "can't be read"),
        ("p5", lambda m: m.commands.update({"nvidia-smi": "yes '<nvidia_smi_log>'"}), "UNKNOWN", "are read of it"),
        ("p5", lambda m: m.says("nvidia-smi", ""), "UNKNOWN", "can't be read"),
        ("infiniband", all_gone, "FAIL P0", "No devices were found"),
    ],
)
def test_count(kind: str, change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    found = findings(machine, "node.gpu-count", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(
    ("gpus", "listed", "expected"),
    [(["0", "1", "2", "3"], 4, "PASS"), (["0", "1", "2", "3"], 3, "FAIL P0"), ([], 0, "UNKNOWN"), (None, 4, "FAIL P0")],
)
def test_inside_a_job_only_its_own_gpus_are_listed(
    gpus: list[str] | None, listed: int, expected: str, tmp_path: Path
) -> None:
    machine = of("p5")
    del machine.gpus[listed:]
    assert worst(findings(machine, "node.gpu-count", tmp_path, gpus=gpus)) == expected


@pytest.mark.parametrize(
    ("gres", "expected"), [("gpu:32", "UNKNOWN"), ("gpu:h100:32", "FAIL P0"), ("gpu:8", "PASS"), ("gpu:h100:8", "PASS")]
)
def test_what_a_job_does_not_see_may_be_split(gres: str, expected: str, tmp_path: Path) -> None:
    """Four whole GPUs are the job's; what the other four are it is not told."""
    machine = of("infiniband")
    machine.slurm["Gres"] = gres
    del machine.gpus[4:]
    assert worst(findings(machine, "node.gpu-count", tmp_path, gpus=["0", "1", "2", "3"])) == expected


def test_a_process_that_hangs_in_the_driver(tmp_path: Path) -> None:
    machine = of("p5").process(900, "python", state="D", wchan="nv_wait")
    machine.links["/proc/900/fd/3"] = "/dev/nvidia3"
    found = findings(machine, "node.gpu-count", tmp_path)
    assert [one.text for one in found if one.status == "FAIL"] == [
        "1 processes hang in the GPU driver and can't be ended"
    ]
    assert "not asked: python (pid 900) is stuck" in found[-1].text


def test_no_nvidia_smi_says_nothing_of_the_gpus(tmp_path: Path) -> None:
    machine = of("p5")
    machine.gpus.clear()
    assert worst(findings(machine, "node.gpu-count", tmp_path)) == "UNKNOWN"


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ({}, "PASS", "8 GPUs without uncorrected ECC errors"),
        ({"volatile": "2"}, "FAIL P0", "GPU 3 (0000:13:1c): 2 uncorrected"),
        pytest.param({"aggregate": "5"}, "PASS", "5 in the boards' lives", id="W24: a board's history is no fault"),
        ({"sram_exceeded": "Yes"}, "FAIL P0", "SRAM"),
        ({"ecc": "Disabled"}, "WARN P2", "ECC is off"),
        ({"volatile": "N/A"}, "UNKNOWN", "tells no ECC errors"),
        ({"volatile": "[Unknown Error]"}, "UNKNOWN", "tells no ECC errors"),
        ({"volatile": "[Unknown Error]", "sram": "0"}, "UNKNOWN", "can't read all of its ECC errors"),
        ({"volatile": "0", "sram": "ERR!"}, "UNKNOWN", "can't read all of its ECC errors"),
        ({"volatile": "[Unknown Error]", "sram": "2"}, "FAIL P0", "2 uncorrected"),
        ({"volatile": "N/A", "sram": "0"}, "PASS", "8 GPUs without uncorrected ECC errors"),
        ({"sram_exceeded": "[Unknown Error]"}, "UNKNOWN", "can't read all of its ECC errors"),
    ],
)
def test_ecc(changes: dict[str, str], expected: str, words: str, tmp_path: Path) -> None:
    found = findings(of("p5").gpu(3, **changes), "node.ecc", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found)


@pytest.mark.parametrize(
    ("changes", "final"),
    [
        ({"volatile": "2"}, False),
        ({"volatile": "2", "sram_exceeded": "Yes"}, True),
        ({"volatile": "2", "failure": "Yes"}, True),
    ],
)
def test_a_board_that_no_reset_heals(changes: dict[str, str], final: bool, tmp_path: Path) -> None:
    found = [one for one in findings(of("p5").gpu(3, **changes), "node.ecc", tmp_path) if one.status == "FAIL"]
    assert found and {one.values.get("action") == "replace" for one in found} == {final}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "PASS"),
        *(pytest.param({"pending": word}, "FAIL P1", id=f"W18: pending {word}") for word in ("Yes", "yes", "1")),
        *(pytest.param({"failure": word}, "FAIL P0", id=f"W18: failure {word}") for word in ("Yes", "1")),
        *(pytest.param({"pending": word, "failure": word}, "PASS", id=f"W18: {word}") for word in ("No", "0")),
        *(({"pending": word, "failure": word}, "UNKNOWN") for word in ("N/A", "[Not Supported]", "ERR!")),
        ({"retired": "Yes"}, "FAIL P1"),
        ({"pending": "N/A", "failure": "N/A", "retired": "No"}, "PASS"),
        ({"failure": "N/A"}, "UNKNOWN"),
        ({"pending": "N/A"}, "UNKNOWN"),
        ({"channel_repair": "Yes"}, "FAIL P1"),
        ({"tpc_repair": "Yes"}, "FAIL P1"),
        ({"channel_repair": "N/A", "tpc_repair": "N/A"}, "PASS"),
        ({"pending": "N/A", "failure": "N/A", "retired": "No", "tpc_repair": "Yes"}, "FAIL P1"),
    ],
)
def test_remapped_rows(changes: dict[str, str], expected: str, tmp_path: Path) -> None:
    found = findings(of("p5").gpu(3, **changes), "node.remapped-rows", tmp_path)
    assert worst(found) == expected


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("throttle", "temperature", "expected"),
    [
        (("gpu_idle",), "35 C", "PASS"),
        ((), "70 C", "PASS"),
        (("hw_slowdown",), "60 C", "FAIL P1"),
        (("hw_thermal_slowdown", "hw_slowdown"), "91 C", "FAIL P1"),
        (("hw_power_brake_slowdown",), "50 C", "FAIL P1"),
        (("sw_thermal_slowdown",), "86 C", "WARN P1"),
        ((), "88 C", "WARN P2"),
        ((), "N/A", "PASS"),
    ],
)
def test_clocks(throttle: tuple[str, ...], temperature: str, expected: str, old: bool, tmp_path: Path) -> None:
    machine = of("p5").every_gpu(old=old).gpu(3, throttle=throttle, temperature=temperature)
    assert worst(findings(machine, "node.clocks", tmp_path)) == expected


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
    ("power", "expected"), [("700.00 W", "PASS"), ("500.00 W", "WARN P1"), ("699.00 W", "PASS"), ("N/A", "UNKNOWN")]
)
def test_power_cap(power: str, expected: str, old: bool, tmp_path: Path) -> None:
    machine = of("p5").every_gpu(old=old).gpu(3, power=power)
    assert worst(findings(machine, "node.power-cap", tmp_path)) == expected


def test_a_limit_of_all_gpus_is_somebodys_choice(tmp_path: Path) -> None:
    assert worst(findings(of("p5").every_gpu(power="500.00 W"), "node.power-cap", tmp_path)) == "WARN P2"


@pytest.mark.parametrize("gpus", [["0"], None])
def test_a_limit_of_one_gpu_has_none_beside_it(gpus: list[str] | None, tmp_path: Path) -> None:
    machine = of("p5").every_gpu(power="500.00 W")
    del machine.gpus[1:]
    (found,) = findings(machine, "node.power-cap", tmp_path, gpus=gpus)
    assert (found.priority, found.text) == ("P2", "the power limit of the one GPU here is lowered: 500 of 700 W")


def test_of_lowered_limits_the_lowest_is_odd(tmp_path: Path) -> None:
    found = findings(of("p5").every_gpu(power="500.00 W").gpu(3, power="400.00 W"), "node.power-cap", tmp_path)
    assert [(one.priority, one.values.get("gpu")) for one in found] == [("P1", "0000:13:1c"), ("P2", None)]
    assert "of others here 500 W" in found[0].text and "limits of 7 GPUs are lowered" in found[1].text


@pytest.mark.parametrize("words", ["N/A", "<none/>"])
def test_reasons_that_one_gpu_does_not_tell(words: str, tmp_path: Path) -> None:
    machine = of("p5")
    text = machines.smi_xml(machine.gpus).replace("Not Active", words, 5).replace(">Active<", f">{words}<", 1)
    machine.says("nvidia-smi", text)
    assert worst(findings(machine, "node.clocks", tmp_path)) == "UNKNOWN"


def test_limits_that_no_gpu_tells(tmp_path: Path) -> None:
    machine = of("p5").every_gpu(power="N/A", power_default="[N/A]")
    assert worst(findings(machine, "node.power-cap", tmp_path)) == "UNKNOWN"


@pytest.mark.parametrize(
    ("state", "change", "uid", "expected"),
    [
        ("ALLOCATED", process(900, "python", job="4711"), 0, "PASS"),
        ("ALLOCATED", process(900, "python"), 0, "FAIL P1"),
        ("ALLOCATED", process(900, "python", gpu=False), 0, "PASS"),
        ("IDLE", process(900, "python", job="4711"), 0, "FAIL P1"),
        ("IDLE", process(900, "nv-hostengine"), 0, "PASS"),
        ("IDLE", process(900, "nvidia-persiste"), 0, "PASS"),
        ("MIXED+PLANNED", process(900, "python", job="4711"), 0, "PASS"),
        ("ALLOCATED", process(900, "telegraf", device="nvidiactl"), 0, "PASS"),
        ("IDLE", process(900, "amazon-cloudwat", device="nvidia0"), 0, "PASS"),
        ("ALLOCATED", process(900, "own", cgroup="0::/system.slice/own-agent.service"), 0, "PASS"),
        ("ALLOCATED", process(900, "python", cgroup="0::/user.slice/user-1000.slice/session-4.scope"), 0, "FAIL P1"),
        ("ALLOCATED", process(900, "python", cgroup="0::/system.slice/docker-0ab1.scope"), 0, "UNKNOWN"),
        ("ALLOCATED", process(900, "python", cgroup="0::/"), 0, "UNKNOWN"),
        ("ALLOCATED", process(900, "python", environ="SLURM_JOB_ID=4711\0"), 0, "UNKNOWN"),
        ("IDLE", process(900, "python", environ="SLURM_JOB_ID=4711\0"), 0, "FAIL P1"),
    ],
)
def test_processes(state: str, change: Change, uid: int, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    machine.slurm["State"] = state
    change(machine)
    assert worst(findings(machine, "node.gpu-processes", tmp_path, uid=uid)) == expected


@pytest.mark.parametrize(("age_s", "expected"), [(3600.0, "FAIL P1"), (20.0, "PASS")])
def test_young_processes_are_let_be(age_s: float, expected: str, tmp_path: Path) -> None:
    """A prolog's health check, or a job that began after Slurm was asked."""
    machine = of("p5").process(900, "python")
    machine.links["/proc/900/fd/7"] = "/dev/nvidia-uvm"
    begun = machines.BOOT + 500 / 100
    assert worst(findings(machine, "node.gpu-processes", tmp_path, at=begun + age_s)) == expected


SOMEBODY = "<process_info><pid>900</pid><type>C</type><process_name>python</process_name></process_info>"


@pytest.mark.parametrize(("processes", "expected"), [(SOMEBODY, "UNKNOWN"), ("", "PASS")])
def test_processes_of_others_are_not_seen_by_a_user(processes: str, expected: str, tmp_path: Path) -> None:
    """But nvidia-smi tells whether there are any."""
    machine = of("p5").gpu(0, processes=processes).process(900, "python")
    assert worst(findings(machine, "node.gpu-processes", tmp_path, uid=1000)) == expected


@pytest.mark.parametrize("name", ["node.ecc", "node.remapped-rows", "node.clocks", "node.power-cap"])
@pytest.mark.parametrize("change", [dead, lost])
def test_a_driver_that_does_not_answer_passes_nothing(name: str, change: Change, tmp_path: Path) -> None:
    machine = of("p5")
    change(machine)
    assert worst(findings(machine, name, tmp_path)) == "UNKNOWN"


def test_what_a_gpu_is_told_as_is_in_the_proof(tmp_path: Path) -> None:
    (found,) = [one for one in findings(of("p5").gpu(0, volatile="7"), "node.ecc", tmp_path) if one.status == "FAIL"]
    assert found.nodes == ["n1"] and found.values == {"node": "n1", "gpu": "0000:10:1c"}
    assert found.proofs[0].source == "nvidia-smi -q -x" and "7 uncorrected" in found.proofs[0].line


def test_gpu_names_are_of_the_tree() -> None:
    assert Gpu(machines.bus(3)).xml().count(machines.bus(3)) == 2
