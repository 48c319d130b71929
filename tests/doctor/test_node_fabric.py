"""NVLink, NVSwitch, paths between GPUs, DCGM: each both ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.doctor import machines
from tests.doctor.machines import Machine, findings, of, worst

Change = Callable[[Machine], object]
STATUS, ERRORS = "nvlink --status", "nvlink -e"


def smi(only: str, text: Callable[[Machine], str]) -> Change:
    """nvidia-smi says this for these arguments, and for others what it said."""

    def change(machine: Machine) -> None:
        machine.commands.setdefault("nvidia-smi", machines._smi_commands(machine)["nvidia-smi"])
        machine.says("nvidia-smi", text(machine), only=only)

    return change


def off(links: dict[int, tuple[int, ...]]) -> Change:
    return smi(STATUS, lambda m: machines.nvlink_status(m.gpus, m.kind.links, links))


def counts(bad: dict[tuple[int, int, str], int]) -> Change:
    return smi(ERRORS, lambda m: machines.nvlink_errors(m.gpus, m.kind.links, bad))


def matrix(pair: str = "NV18", odd: Mapping[tuple[int, int], str] | None = None, gpus: int = 8) -> Change:
    return smi("topo -m", lambda m: machines.topology(gpus, pair, odd))


def apart(*gpus: int) -> Change:
    """These have no NVLink to any other."""
    return matrix(odd={(a, b): "SYS" for a in range(8) for b in range(a + 1, 8) if a in gpus or b in gpus})


def both(*changes: Change) -> Change:
    return lambda m: [change(m) for change in changes]


EVERY = {number: tuple(range(18)) for number in range(8)}


def slots(machine: Machine) -> object:
    """Boards of the same chip that may be bridged or not."""
    return machine.every_gpu(name="NVIDIA H100 NVL")


def unregistered(machine: Machine) -> object:
    return machine.every_gpu(fabric=("N/A", "N/A"))


def all_inactive(machine: Machine) -> str:
    words = "NVML: Unable to retrieve NVLink information as all links are inActive"
    return "\n".join(f"GPU {n}: {gpu.name} (UUID: GPU-{n})\n{words}" for n, gpu in enumerate(machine.gpus))


#: NVLink 5: a link's counters as nvidia-smi of driver 570 and later prints them.
GB200 = """GPU 0: NVIDIA B200 (UUID: GPU-0)
\t Link 0: Tx packets: 12345
\t Link 0: Rx Errors: {rx}
\t Link 0: Local link integrity Errors: 0
\t Link 0: Total link recovery events: {events}
\t Link 0: Link recovery failed events: {failed}
\t Link 0: Effective Errors: 0
\t Link 0: FEC Errors - 0: 17941761
\t Link 0: PLR Xmit Blocks: 1234567890"""


def bridged(up: Mapping[int, int]) -> Change:
    """Boards with bridges for twelve links, some with other numbers of links that are up."""
    return off({gpu: tuple(range(up.get(gpu, 12), 18)) for gpu in range(8)})


def worded(word: str) -> Change:
    """Of one link of GPU 2."""
    return smi(STATUS, lambda m: machines.nvlink_status(m.gpus, 18, {2: (7,)}).replace("<inactive>", word))


def every_word(machine: Machine, word: str) -> str:
    return machines.nvlink_status(machine.gpus, 18).replace("26.562 GB/s", word)


@pytest.mark.parametrize(
    ("kind", "change", "expected", "words"),
    [
        ("p5", lambda m: None, "PASS", "18 NVLinks of each GPU are up"),
        ("p4d", lambda m: None, "PASS", "12 NVLinks"),
        ("p5", off({3: (7, 9)}), "FAIL P0", "GPU 3: 16 of 18 NVLinks are up"),
        ("infiniband", off({3: (7,)}), "FAIL P0", "GPU 3: 17 of 18"),
        ("infiniband", off({3: tuple(range(18))}), "FAIL P0", "GPU 3: 0 of 18"),
        ("infiniband", both(slots, off({3: tuple(range(18))})), "WARN P1", "GPU 3: 0 of 18"),
        ("infiniband", both(slots, bridged({2: 8, 3: 8})), "WARN P1", "GPU 2: 8 of 12"),
        ("infiniband", both(slots, bridged({2: 11, 3: 11})), "FAIL P0", "GPU 2: 11 of 12"),
        ("infiniband", bridged({2: 8, 3: 8}), "FAIL P0", "GPU 2: 8 of 12"),
        ("p5", worded("Inactive"), "FAIL P0", "GPU 2: 17 of 18"),
        ("p5", worded("Off"), "FAIL P0", "GPU 2: 17 of 18"),
        ("p5", worded("Unknown Error"), "UNKNOWN", "GPU 2: whether all its NVLinks are up"),
        ("infiniband", worded("<N/A>"), "UNKNOWN", "GPU 2: whether all its NVLinks are up"),
        (
            "infiniband",
            smi(STATUS, lambda m: every_word(m, "<N/A>")),
            "UNKNOWN",
            "GPU 7: whether all its NVLinks are up",
        ),
        (
            "p5",
            smi(STATUS, lambda m: every_word(m, "[Unknown Error]")),
            "UNKNOWN",
            "GPU 7: whether all its NVLinks are up",
        ),
        ("p3dn", lambda m: None, "PASS", "6 NVLinks of each GPU are up"),
        ("gb200", lambda m: None, "PASS", "18 NVLinks of each GPU are up"),
        ("p5", off({n: tuple(range(18)) for n in range(8)}), "FAIL P0", "0 of 18"),
        ("infiniband", off(EVERY), "FAIL P0", "no NVLink of 8 GPUs is up"),
        ("infiniband", smi(STATUS, all_inactive), "FAIL P0", "no NVLink of 8 GPUs is up"),
        ("infiniband", both(unregistered, off(EVERY)), "FAIL P0", "no NVLink of 8 GPUs is up"),
        ("infiniband", both(slots, unregistered, matrix(pair="PHB"), off(EVERY)), "UNKNOWN", "no NVLink is up"),
        (
            "infiniband",
            both(slots, unregistered, matrix(pair="PHB"), smi(STATUS, all_inactive)),
            "UNKNOWN",
            "is not known",
        ),
        (
            "infiniband",
            both(slots, unregistered, matrix(odd={(0, 1): "NV4"}, pair="PHB"), off(EVERY)),
            "FAIL P0",
            "8 GPUs",
        ),
        (
            "infiniband",
            both(lambda m: m.gpus.__delitem__(slice(1, 8)), smi(STATUS, all_inactive)),
            "UNKNOWN",
            "no NVLink",
        ),
        ("infiniband", both(lambda m: m.every_gpu(mig="Enabled"), off(EVERY)), "NOT-APPLICABLE", "split (MIG)"),
        ("p5", both(lambda m: m.every_gpu(mig="Enabled"), off(EVERY)), "NOT-APPLICABLE", "split (MIG)"),
        ("g5", lambda m: None, "NOT-APPLICABLE", "no NVLink"),
        ("p5", counts({(2, 5, "Recovery"): 1}), "WARN P1", "GPU 2"),
        ("p5", counts({(2, 5, "Replay"): 65535}), "WARN P1", "GPU 2"),
        pytest.param("p5", counts({(2, 5, "CRC"): 3}), "PASS", "are up", id="W14: a few CRC errors are normal"),
        ("p5", smi(ERRORS, lambda m: "not supported"), "UNKNOWN", "no counters"),
        ("p6", smi(ERRORS, lambda m: GB200.format(rx=0, events=0, failed=0)), "PASS", "are up"),
        ("p6", smi(ERRORS, lambda m: GB200.format(rx=0, events=4, failed=0)), "PASS", "are up"),
        ("p6", smi(ERRORS, lambda m: GB200.format(rx=5000, events=0, failed=0)), "WARN P1", "GPU 0"),
        ("p6", smi(ERRORS, lambda m: GB200.format(rx=0, events=0, failed=1)), "WARN P1", "GPU 0"),
        ("p5", smi(STATUS, lambda m: ""), "UNKNOWN", "no GPU in its answer"),
        ("plain", lambda m: None, "NOT-APPLICABLE", "no NVIDIA GPU"),
    ],
)
def test_nvlink(kind: str, change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    found = findings(machine, "node.nvlink", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


def test_a_gpu_that_is_split_has_no_links(tmp_path: Path) -> None:
    machine = of("p5").gpu(3, mig="Enabled")
    off({3: tuple(range(18))})(machine)
    assert worst(findings(machine, "node.nvlink", tmp_path)) == "PASS"


STARTING = "echo LoadState=loaded; echo ActiveState=activating; echo SubState=start"


def test_links_of_fewer_gpus_than_there_are(tmp_path: Path) -> None:
    machine = of("p5")
    smi("nvlink --status", lambda m: machines.nvlink_status(m.gpus[:7], 18))(machine)
    assert worst(findings(machine, "node.nvlink", tmp_path)) == "UNKNOWN"


def test_links_that_are_all_off_where_the_paths_tell_of_them(tmp_path: Path) -> None:
    machine = of("infiniband")
    smi("nvlink --status", lambda m: machines.nvlink_status(m.gpus, 0))(machine)
    assert worst(findings(machine, "node.nvlink", tmp_path)) == "UNKNOWN"


def switches(machine: Machine) -> None:
    """NVSwitches on this machine's own bus."""
    base = "/sys/bus/pci/devices/0000:07:00.0"
    machine.files.update({f"{base}/vendor": "0x10de\n", f"{base}/class": "0x068000\n"})


def failed(machine: Machine) -> object:
    return machine.gpu(2, fabric=("Completed", "Insufficient Resources"))


@pytest.mark.parametrize(
    ("health", "expected", "words"),
    [
        ({}, "PASS", "nvidia-fabricmanager runs"),
        (
            {"bandwidth": "Full", "route_unhealthy": "False", "incorrect_configuration": "None", "summary": "Healthy"},
            "PASS",
            "nvidia-fabricmanager runs",
        ),
        (
            {"bandwidth": "Degraded"},
            "WARN P1",
            "GPU 2 (0000:12:1c): its way into the NVLink fabric: bandwidth: Degraded",
        ),
        ({"route_unhealthy": "True", "bandwidth": "Degraded"}, "FAIL P0", "route unhealthy: True"),
        ({"route_recovery_in_progress": "True"}, "UNKNOWN", "look again in a minute"),
        ({"incorrect_configuration": "No Partition"}, "FAIL P1", "incorrect configuration: No Partition"),
        ({"summary": "Unhealthy"}, "FAIL P0", "summary: Unhealthy"),
        ({"summary": "Unhealthy", "bandwidth": "Degraded"}, "WARN P1", "bandwidth: Degraded"),
        ({"summary": "Limited Capacity"}, "WARN P1", "summary: Limited Capacity"),
        ({"bandwidth": "Purple"}, "UNKNOWN", "is not known"),
    ],
)
def test_ways_into_the_fabric(health: dict[str, str], expected: str, words: str, tmp_path: Path) -> None:
    found = findings(of("p5").gpu(2, health=health), "node.fabric-manager", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


INACTIVE = "echo LoadState=loaded; echo ActiveState=failed; echo SubState=failed"
ABSENT = "echo LoadState=not-found; echo ActiveState=inactive"


@pytest.mark.parametrize(
    ("kind", "change", "expected", "words"),
    [
        ("p5", lambda m: None, "PASS", "nvidia-fabricmanager runs"),
        pytest.param(
            "p5", lambda m: m.commands.update(systemctl=INACTIVE), "FAIL P1", "does not run", id="W14: stopped"
        ),
        ("p4d", lambda m: m.commands.update(systemctl=INACTIVE), "FAIL P0", "can't start CUDA"),
        ("p5", both(unregistered, lambda m: m.commands.update(systemctl=INACTIVE)), "FAIL P0", "can't start CUDA"),
        ("p4d", lambda m: m.commands.update(systemctl=ABSENT), "FAIL P0", "not installed"),
        ("p5", lambda m: m.commands.update(systemctl=ABSENT), "WARN P2", "may run in a container"),
        ("infiniband", lambda m: m.commands.update(systemctl=ABSENT), "PASS", "all GPUs are registered"),
        (
            "infiniband",
            both(switches, lambda m: m.commands.update(systemctl=ABSENT)),
            "WARN P2",
            "may run in a container",
        ),
        ("infiniband", lambda m: m.commands.update(systemctl=INACTIVE), "WARN P2", "outside of this machine"),
        ("infiniband", both(switches, lambda m: m.commands.update(systemctl=INACTIVE)), "FAIL P1", "does not run"),
        (
            "infiniband",
            both(switches, unregistered, lambda m: m.commands.update(systemctl=ABSENT)),
            "FAIL P0",
            "can't start CUDA",
        ),
        ("infiniband", both(failed, lambda m: m.commands.update(systemctl=ABSENT)), "FAIL P0", "can't start CUDA"),
        ("gb200", lambda m: m.commands.update(systemctl=ABSENT), "PASS", "stand outside of the node"),
        ("gb200", lambda m: m.commands.update(systemctl=INACTIVE), "PASS", "stand outside of the node"),
        ("gb200", both(failed, lambda m: m.commands.update(systemctl=ABSENT)), "FAIL P0", "not registered"),
        ("p3dn", lambda m: m.commands.update(systemctl=ABSENT), "NOT-APPLICABLE", "no NVSwitch"),
        ("p5", lambda m: m.commands.update(systemctl="echo no bus >&2; exit 1"), "UNKNOWN", "status 1"),
        (
            "p5",
            lambda m: m.says("nv-fabricmanager", "Fabric Manager version is : 550.54.15"),
            "FAIL P1",
            "of another version than the driver",
        ),
        (
            "p4d",
            lambda m: m.says("nv-fabricmanager", "Fabric Manager version is : 550.54.15"),
            "FAIL P0",
            "of another version than the driver",
        ),
        ("p5", lambda m: m.gpu(2, fabric=("In Progress", "N/A")), "UNKNOWN", "under way"),
        ("p5", lambda m: m.gpu(2, fabric=("Unknown Error", "N/A")), "UNKNOWN", "is not known"),
        ("p5", lambda m: m.gpu(2, fabric=("N/A", "N/A")), "UNKNOWN", "is not told of GPU 2"),
        ("p5", lambda m: m.gpu(2, fabric=("Completed", "Failure")), "FAIL P0", "GPU 2 (0000:12:1c): not registered"),
        ("p5", lambda m: m.commands.update(systemctl=STARTING), "UNKNOWN", "starts just now"),
        ("p5", lambda m: m.gpu(2, fabric=("Completed", "Insufficient Resources")), "FAIL P0", "Insufficient Resources"),
        ("g5", lambda m: None, "NOT-APPLICABLE", "no NVSwitch"),
        ("plain", lambda m: None, "NOT-APPLICABLE", "no NVSwitch"),
    ],
)
def test_fabric_manager(kind: str, change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    found = findings(machine, "node.fabric-manager", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(
    ("kind", "change", "expected", "words"),
    [
        ("p5", lambda m: None, "PASS", "(NV18)"),
        ("p4d", lambda m: None, "PASS", "(NV12)"),
        ("p5", matrix(odd={(0, 3): "SYS"}), "FAIL P0", "1 of 28 pairs of GPUs are not joined by NVLink"),
        ("p5", matrix(odd={(0, 3): "NV16"}), "WARN P1", "another number of NVLinks"),
        ("p5", matrix(pair="PHB"), "FAIL P0", "28 of 28"),
        ("infiniband", matrix(odd={(1, 2): "PXB"}), "FAIL P0", "1 of 28"),
        ("infiniband", both(slots, matrix(odd={(1, 2): "PXB"})), "WARN P1", "some may have no bridge"),
        ("gb200", lambda m: None, "PASS", "(NV18)"),
        ("p3dn", lambda m: None, "PASS", "all NVLinks of each GPU go to its peers"),
        (
            "p3dn",
            matrix("SYS", {**machines.cube(), (0, 3): "NV1"}),
            "FAIL P0",
            "GPU0, GPU3: NVLinks to peers are fewer",
        ),
        ("p3dn", matrix("SYS", {**machines.cube(), (0, 1): "SYS"}), "FAIL P0", "GPU0, GPU1"),
        ("p3dn", matrix("PHB"), "FAIL P0", "fewer than 6"),
        (
            "p3dn",
            smi(
                "topo -p2p n", lambda m: machines.p2p(8, "NS", {**dict.fromkeys(machines.cube(), "OK"), (0, 3): "GNS"})
            ),
            "FAIL P0",
            "no P2P by NVLink for 1 of 28",
        ),
        ("infiniband", matrix("SYS", machines.cube()), "PASS", "12 by SYS"),
        ("infiniband", matrix("SYS", dict.fromkeys(machines.cube(), "NV1")), "PASS", "16 by NV1"),
        ("p5", both(lambda m: m.every_gpu(mig="Enabled"), matrix("SYS")), "NOT-APPLICABLE", "split (MIG)"),
        ("infiniband", both(lambda m: m.every_gpu(mig="Enabled"), matrix("SYS")), "NOT-APPLICABLE", "split (MIG)"),
        ("p5", both(lambda m: m.gpu(3, mig="Enabled"), apart(3)), "PASS", "all pairs of GPUs are joined"),
        ("p5", both(lambda m: m.gpu(3, mig="Enabled"), apart(3, 4)), "FAIL P0", "6 of 21 pairs"),
        ("infiniband", both(lambda m: m.gpu(3, mig="Enabled"), apart(3)), "PASS", "all pairs of GPUs are joined"),
        ("g5", lambda m: None, "PASS", "28 by PHB"),
        (
            "p5",
            smi("topo -p2p n", lambda m: machines.p2p(8, "OK", {(2, 4): "NS"})),
            "FAIL P0",
            "no P2P by NVLink for 1",
        ),
        ("p5", smi("topo -p2p n", lambda m: machines.p2p(8, "OK", {(2, 4): "U"})), "UNKNOWN", "27 of 28 pairs"),
        ("p5", smi("topo -p2p n", lambda m: machines.p2p(8, "OK", {(2, 4): "NEW"})), "UNKNOWN", "27 of 28 pairs"),
        ("p5", smi("topo -p2p n", lambda m: "no matrix"), "UNKNOWN", "0 of 28 pairs"),
        ("p5", smi("topo -m", lambda m: machines.topology(2, "NV18")), "UNKNOWN", "1 of 28 pairs"),
        ("g5", smi("topo -m", lambda m: machines.topology(8, "PHB", {(0, 1): "NEW"})), "UNKNOWN", "27 of 28 pairs"),
        ("g5", smi("topo -p2p n", lambda m: machines.p2p(8, "CNS")), "PASS", "28 by PHB"),
        ("p5", smi("topo -m", lambda m: "Failed to initialize NVML"), "UNKNOWN", "no matrix"),
        ("plain", lambda m: None, "NOT-APPLICABLE", "no NVIDIA GPU"),
    ],
)
def test_topology(kind: str, change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    found = findings(machine, "node.p2p-topology", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(
    ("gpus", "gres", "expected"),
    [(["0"] * 5, "gpu:8", "UNKNOWN"), (None, "gpu:8", "FAIL P0"), (["0"] * 5, "gpu:5", "FAIL P0")],
)
def test_a_part_of_a_machine_may_lack_the_peers(
    gpus: list[str] | None, gres: str, expected: str, tmp_path: Path
) -> None:
    machine = of("infiniband")
    machine.slurm["Gres"] = gres
    del machine.gpus[5:]
    matrix(gpus=5, odd={(n, 4): "SYS" for n in range(4)})(machine)
    assert worst(findings(machine, "node.p2p-topology", tmp_path, gpus=gpus)) == expected


def test_of_a_mesh_a_part_has_fewer_links(tmp_path: Path) -> None:
    machine = of("p3dn")
    del machine.gpus[4:]
    matrix("SYS", machines.cube(), gpus=4)(machine)
    smi("topo -p2p n", lambda m: machines.p2p(4, "NS", dict.fromkeys(machines.cube(), "OK")))(machine)
    assert worst(findings(machine, "node.p2p-topology", tmp_path, gpus=["0", "1", "2", "3"])) == "PASS"


def health(overall: str, **systems: str) -> str:
    """As ``dcgmi health --check -j`` of DCGM 4."""
    errors = {
        name.replace("_", " "): {"overflow": [f"words on {name}"], "value": word} for name, word in systems.items()
    }
    gpu = (
        {"GPU": {"children": {"3": {"children": {"Errors": {"children": errors}}, "value": overall}}}} if errors else {}
    )
    return json.dumps({"body": {"Overall Health": {"value": overall}, **gpu}, "header": ["Health Monitor Report"]})


BOX = """+---------------------------+--------------------------------------------------+
| Health Monitor Report                                                        |
+===========================+==================================================+
| Overall Health            | {word:<49}|
+---------------------------+--------------------------------------------------+"""


@pytest.mark.parametrize(
    ("text", "rc", "expected"),
    [
        (health("Healthy"), 0, "PASS"),
        pytest.param(health("Warning", PCIe_system="Warning"), 0, "WARN P1", id="W19: Warning"),
        pytest.param(health("Failure", Memory_system="Failure"), 0, "FAIL P0", id="W19: Failure"),
        (health("Failure", Memory_system="Failure", Thermal_system="Warning"), 0, "FAIL P0"),
        (health("Failure"), 0, "FAIL P0"),
        (BOX.format(word="Healthy"), 0, "PASS"),
        (BOX.format(word="Warning"), 0, "WARN P1"),
        pytest.param("Error: Health watches not enabled. Please enable watches. ", 1, "UNKNOWN", id="W19: no watches"),
        ("Error: unable to establish a connection to the specified host: localhost", 1, "UNKNOWN"),
        ("{}", 0, "UNKNOWN"),
    ],
)
def test_dcgm(text: str, rc: int, expected: str, tmp_path: Path) -> None:
    assert worst(findings(of("p5").says("dcgmi", text, rc), "node.dcgm", tmp_path)) == expected


def test_no_dcgm_is_nothing_to_judge(tmp_path: Path) -> None:
    assert worst(findings(of("p5"), "node.dcgm", tmp_path)) == "NOT-APPLICABLE"


@pytest.mark.parametrize(
    ("stamp", "expected"),
    [
        ("2026-09-22 01:00:00.123 ", "WARN P1"),
        pytest.param("2026-07-01 01:00:00.123 ", "PASS", id="W8: of another month"),
    ],
)
def test_a_log_of_diagnostics(stamp: str, expected: str, tmp_path: Path) -> None:
    machine = of("p5").says("dcgmi", health("Healthy"))
    machine.files["/var/log/nvidia-dcgm/nvvs.log"] = f"{stamp}ERROR [1:1] row remapping is pending on GPU 3\n"
    assert worst(findings(machine, "node.dcgm", tmp_path)) == expected
