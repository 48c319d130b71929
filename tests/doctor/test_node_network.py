"""EFA cards, InfiniBand ports, counters, MTU, names, firewall: each both ways."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_slurm.doctor.check import judged
from nccl_slurm.doctor.observation import Observation
from nccl_slurm.doctor.table import table
from tests.doctor.machines import Machine, check, findings, of, uevent, worst

Change = Callable[[Machine], object]
RDMA = "/sys/class/infiniband"


def only(count: int) -> Change:
    """So many of the EFA cards are left."""

    def change(machine: Machine) -> None:
        for number in range(count, 64):
            machine.without(f"{RDMA}/rdmap{16 + number}s0/")

    return change


def launched_without(machine: Machine) -> None:
    """No EFA interface was asked for: nothing of it is on the bus."""
    only(0)(machine)
    machine.without(*(f"/sys/bus/pci/devices/0000:{0x60 + number:02x}:00.0" for number in range(64)))
    machine.without("/dev/infiniband")


def state(device: str, word: str, port: str = "1") -> Change:
    return lambda m: m.files.update({f"{RDMA}/{device}/ports/{port}/state": word + "\n"})


@pytest.mark.parametrize(
    ("kind", "change", "expected", "words"),
    [
        *(
            pytest.param(kind, lambda m: None, "PASS", "all active", id=f"{kind} whole")
            for kind in ("p4d", "p5", "g5", "trn1")
        ),
        pytest.param("p5en", only(16), "PASS", "16 EFA cards", id="W15: p5en has 16 and not 32"),
        pytest.param("p6-b300", lambda m: None, "PASS", "16 EFA cards", id="W15: p6-b300 has 16 and not 17"),
        pytest.param("p5", only(0), "FAIL P0", "none of the 32 EFA cards of p5.48xlarge", id="W15: none on a p5"),
        pytest.param("p5", only(16), "FAIL P1", "16 of the 32 EFA cards", id="W16: half of the cards"),
        pytest.param("p5", only(31), "FAIL P1", "31 of the 32 EFA cards", id="W16: one card"),
        ("p4d", only(3), "FAIL P1", "3 of the 4"),
        ("trn1", only(4), "FAIL P1", "4 of the 8 EFA cards of trn1.32xlarge"),
        ("trn1", launched_without, "FAIL P0", "none of the 8 EFA cards"),
        ("p4d", launched_without, "FAIL P0", "none of the 4 EFA cards"),
        ("g5", launched_without, "WARN P2", "no EFA card is attached to this g5.48xlarge"),
        ("g5", only(0), "FAIL P0", "none of the 1 EFA cards"),
        ("p5", state("rdmap20s0", "1: DOWN"), "FAIL P1", "1 EFA cards are not active"),
        ("p5", lambda m: m.without("/dev/infiniband/uverbs7"), "FAIL P1", "no device file"),
        ("g5", state("rdmap16s0", "1: DOWN"), "FAIL P0", "1 EFA cards are not active"),
        ("p5", lambda m: unread("rdmap", "ports/1/")(m), "UNKNOWN", "states of 32 of 32 EFA cards"),
        ("p5", lambda m: unread("rdmap", "ports/1/state")(m), "UNKNOWN", "states of 32 of 32 EFA cards"),
        ("p5", lambda m: unread("rdmap20s0", "ports/1/state")(m), "UNKNOWN", "states of 1 of 32 EFA cards"),
        ("infiniband", lambda m: None, "NOT-APPLICABLE", "no EFA card"),
        ("plain", lambda m: None, "NOT-APPLICABLE", "no EFA card"),
        (
            "p5",
            lambda m: m.files.update({"/sys/devices/virtual/dmi/id/product_name": "p9.48xlarge\n"}),
            "UNKNOWN",
            "32 EFA cards; how many belong",
        ),
    ],
)
def test_efa_cards(kind: str, change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    found = findings(machine, "node.efa-cards", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


def test_fi_info_is_no_count_of_cards(tmp_path: Path) -> None:
    """W16: its 48 lines for 16 cards do not hide the other 16."""
    machine = of("p5")
    only(16)(machine)
    assert worst(findings(machine, "node.efa-cards", tmp_path)) == "FAIL P1"


def test_without_its_module_the_proof_says_so(tmp_path: Path) -> None:
    machine = of("p5").without(f"{RDMA}/rdmap")
    machine.files["/proc/modules"] = "nvidia 1 0 - Live 0x0\n"
    (found,) = findings(machine, "node.efa-cards", tmp_path)
    lines = [proof.line for proof in found.proofs]
    assert "efa is not loaded" in lines and "32 EFA functions" in lines


def test_every_type_has_its_source() -> None:
    assert {name: row.efa for name, row in table().instances.items() if name.startswith(("p4d.", "p5", "p6"))} == {
        "p4d.24xlarge": 4,
        "p5.4xlarge": 1,
        "p5.48xlarge": 32,
        "p5e.48xlarge": 32,
        "p5en.48xlarge": 16,
        "p6-b200.48xlarge": 8,
        "p6-b300.48xlarge": 16,
        "p6e-gb200.36xlarge": None,
    }


def unread(device: str, file: str) -> Change:
    """Files of a card that can't be read are as good as not there; its folder is."""

    def change(machine: Machine) -> None:
        for path in [path for path in machine.files if path.startswith(f"{RDMA}/{device}") and file in path]:
            del machine.files[path]

    return change


def undriven(machine: Machine) -> None:
    machine.without("/sys/class/infiniband")
    for number in range(8):
        machine.without(f"/sys/bus/pci/devices/0000:{0x60 + number:02x}:00.0/driver")


def lost(count: int) -> Change:
    """So many cards keep their driver and are no RDMA device."""
    return lambda m: m.without(*(f"{RDMA}/mlx5_{number}" for number in range(count)))


def virtual(machine: Machine) -> None:
    """A virtual function without a use, and a card that is passed on."""
    for slot, device, driver in (("0000:70:00.1", "0x101e", ""), ("0000:71:00.0", "0x1021", "vfio-pci")):
        base = f"/sys/bus/pci/devices/{slot}"
        machine.files.update({f"{base}/vendor": "0x15b3", f"{base}/class": "0x020700", f"{base}/device": device})
        if driver:
            machine.links[f"{base}/driver"] = f"../../../bus/pci/drivers/{driver}"


@pytest.mark.parametrize("check", ["node.net-counters", "node.peermem", "node.memlock"])
def test_cards_without_a_driver_are_cards(check: str, tmp_path: Path) -> None:
    machine = of("infiniband")
    undriven(machine)
    assert worst(findings(machine, check, tmp_path)) == "UNKNOWN"


def rate(device: str, words: str) -> Change:
    return lambda m: m.files.update({f"{RDMA}/{device}/ports/1/rate": words + "\n"})


def all_down(machine: Machine) -> None:
    for number in range(8):
        state(f"mlx5_{number}", "1: DOWN")(machine)


def roce(machine: Machine) -> None:
    machine.files["/sys/bus/pci/devices/0000:63:00.0/class"] = "0x020000\n"
    machine.files[f"{RDMA}/mlx5_3/ports/1/link_layer"] = "Ethernet\n"
    state("mlx5_3", "1: DOWN")(machine)


def physical(device: str, word: str, port: str = "1") -> Change:
    """A port that is DOWN, and why."""

    def change(machine: Machine) -> None:
        base = f"{RDMA}/{device}/ports/{port}"
        machine.files.update({f"{base}/state": "1: DOWN\n", f"{base}/phys_state": word + "\n"})
        machine.files.update({f"{base}/link_layer": "InfiniBand\n", f"{base}/rate": "10 Gb/sec (4X SDR)\n"})

    return change


def more_cards(count: int, words: str, device: str = "0x101b", layer: str = "InfiniBand") -> Change:
    """Of another model, as storage has."""

    def change(machine: Machine) -> None:
        for number in range(8, 8 + count):
            base = f"{RDMA}/mlx5_{number}"
            machine.links[f"{base}/device/driver"] = "../../../bus/pci/drivers/mlx5_core"
            machine.files[f"{base}/device/uevent"] = uevent(f"0000:{0x60 + number:02x}:00.0", "0x15b3", device)
            told = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": words, "link_layer": layer}
            machine.files.update({f"{base}/ports/1/{name}": text + "\n" for name, text in told.items()})

    return change


def each(*changes: Change) -> Change:
    return lambda machine: [change(machine) for change in changes]


def untold_models(machine: Machine) -> None:
    for path in [path for path in machine.files if path.endswith("device/uevent")]:
        del machine.files[path]


def second_function(machine: Machine) -> None:
    """Two ports of one card are two functions of one slot; the second has no cable."""
    machine.files[f"{RDMA}/mlx5_3/device/uevent"] = uevent("0000:62:00.1", "0x15b3", "0x1021")


def guest(machine: Machine) -> None:
    for path in [path for path in machine.files if path.endswith("/device") and machine.files[path] == "0x1021\n"]:
        machine.files[path] = "0x101e\n"


def switched_off(machine: Machine) -> None:
    for number in range(8):
        physical(f"mlx5_{number}", "3: Disabled")(machine)


administration = more_cards(1, "25 Gb/sec (1X EDR)", "0x101d", "Ethernet")


def polling(*numbers: int) -> Change:
    return lambda machine: [physical(f"mlx5_{number}", "2: Polling")(machine) for number in numbers]


def bare_function(device: str, kind: str = "0x020000", driver: str = "") -> Change:
    """One more of Mellanox's, of Ethernet as a rule, that is no RDMA device."""

    def change(machine: Machine) -> None:
        base = "/sys/bus/pci/devices/0000:90:00.1"
        machine.files.update({f"{base}/vendor": "0x15b3", f"{base}/class": kind, f"{base}/device": device})
        if driver:
            machine.links[f"{base}/driver"] = f"../../../bus/pci/drivers/{driver}"

    return change


HDR, NDR = "200 Gb/sec (4X HDR)", "400 Gb/sec (4X NDR)"


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("infiniband", lambda m: None, "PASS"),
        ("infiniband", more_cards(2, HDR), "PASS"),
        ("infiniband", more_cards(2, HDR, device="0x1021"), "WARN P2"),
        ("infiniband", each(more_cards(2, HDR), rate("mlx5_3", HDR)), "WARN P1"),
        ("infiniband", each(rate("mlx5_3", HDR), rate("mlx5_4", HDR)), "WARN P2"),
        ("infiniband", each(rate("mlx5_3", "100 Gb/sec (1X NDR)"), rate("mlx5_4", "100 Gb/sec (1X NDR)")), "WARN P1"),
        ("infiniband", each(more_cards(2, HDR), untold_models), "WARN P2"),
        ("infiniband", more_cards(3, "25 Gb/sec (1X EDR)", layer="Ethernet"), "PASS"),
        ("infiniband", physical("mlx5_3", "3: Disabled"), "WARN P2"),
        ("infiniband", physical("mlx5_3", "2: Polling"), "FAIL P1"),
        ("infiniband", physical("mlx5_3", "2: Polling", port="2"), "WARN P2"),
        ("infiniband", each(physical("mlx5_3", "2: Polling"), second_function), "WARN P2"),
        ("infiniband", each(physical("mlx5_3", "6: LinkErrorRecovery"), second_function), "FAIL P1"),
        ("infiniband", each(physical("mlx5_2", "3: Disabled"), physical("mlx5_3", "2: Polling")), "FAIL P1"),
        ("infiniband", state("mlx5_3", "1: DOWN"), "FAIL P1"),
        ("infiniband", state("mlx5_3", "2: INIT"), "FAIL P1"),
        ("infiniband", state("mlx5_3", "5: ACTIVE_DEFER"), "PASS"),
        ("infiniband", all_down, "FAIL P0"),
        ("infiniband", roce, "WARN P2"),
        ("infiniband", rate("mlx5_3", "200 Gb/sec (4X HDR)"), "WARN P1"),
        ("infiniband", undriven, "FAIL P0"),
        ("infiniband", lost(4), "FAIL P1"),
        ("infiniband", lost(1), "FAIL P1"),
        ("infiniband", virtual, "PASS"),
        pytest.param("infiniband", each(undriven, guest), "FAIL P0", id="a guest's cards are virtual functions"),
        pytest.param("infiniband", each(undriven, guest, administration), "FAIL P0", id="and one for its network"),
        pytest.param("infiniband", guest, "PASS", id="a guest's cards with their driver"),
        pytest.param("infiniband", each(switched_off, administration), "FAIL P0", id="all but administration's"),
        pytest.param("infiniband", each(switched_off, more_cards(2, HDR)), "FAIL P0", id="all but storage's"),
        pytest.param("infiniband", each(more_cards(2, HDR), polling(8, 9)), "WARN P2", id="others without a cable"),
        pytest.param("infiniband", each(more_cards(2, NDR, "0x1021"), polling(8, 9)), "WARN P2", id="one for each GPU"),
        pytest.param(
            "infiniband", each(more_cards(2, NDR, "0x1021"), polling(3, 8, 9)), "FAIL P1", id="fewer than GPUs"
        ),
        pytest.param("infiniband", bare_function("0xa2dc"), "PASS", id="a function without a use"),
        pytest.param("infiniband", bare_function("0x1021"), "WARN P2", id="one of the cards' own model"),
        pytest.param("infiniband", bare_function("0x1021", "0x020700"), "FAIL P1", id="InfiniBand without a driver"),
        pytest.param(
            "infiniband", bare_function("0x1021", "0x020700", "uio_pci_generic"), "PASS", id="handed on to a program"
        ),
        ("infiniband", unread("mlx5_", "ports/1/"), "UNKNOWN"),
        ("infiniband", unread("mlx5_", "ports/1/state"), "UNKNOWN"),
        ("infiniband", unread("mlx5_3", "ports/1/state"), "UNKNOWN"),
        ("p5", lambda m: None, "NOT-APPLICABLE"),
        ("plain", lambda m: None, "NOT-APPLICABLE"),
    ],
)
def test_ports(kind: str, change: Change, expected: str, tmp_path: Path) -> None:
    machine = of(kind)
    change(machine)
    assert worst(findings(machine, "node.ib-ports", tmp_path)) == expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        (f"{RDMA}/rdmap20s0/ports/1/hw_counters/rx_drops", "0", "PASS"),
        pytest.param(f"{RDMA}/rdmap20s0/ports/1/hw_counters/rx_drops", "20", "PASS", id="W8: 20 in 10 h"),
        (f"{RDMA}/rdmap20s0/ports/1/hw_counters/rx_drops", "5000", "WARN P2"),
        (f"{RDMA}/rdmap20s0/ports/1/hw_counters/rx_bytes", "99999999", "PASS"),
        (f"{RDMA}/rdmap20s0/ports/1/hw_counters/retrans_timeout_events", "9999", "WARN P1"),
        (f"{RDMA}/rdmap20s0/hw_counters/unresponsive_remote_events", "9999", "WARN P2"),
        (f"{RDMA}/rdmap20s0/ports/1/hw_counters/out_of_sequence", "999999", "PASS"),  # adaptive routing
        ("/sys/class/net/eth0/statistics/rx_errors", "9999", "WARN P1"),
        ("/sys/class/net/eth0/statistics/rx_dropped", "999999", "PASS"),
        ("/sys/class/net/lo/statistics/rx_errors", "999999", "PASS"),
    ],
)
def test_counters(path: str, value: str, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    machine.files[path] = value + "\n"
    found = findings(machine, "node.net-counters", tmp_path)
    assert worst(found) == expected
    if expected != "PASS":
        assert [proof.source for one in found for proof in one.proofs] == [path]


def test_counters_of_cards_that_tell_none(tmp_path: Path) -> None:
    """Those of interfaces alone don't make a pass."""
    machine = of("p5")
    for path in [path for path in machine.files if "/hw_counters/" in path or "/counters/" in path]:
        del machine.files[path]
    assert worst(findings(machine, "node.net-counters", tmp_path)) == "UNKNOWN"


@pytest.mark.parametrize(
    ("kind", "mtu", "expected"),
    [("p5", "9001", "PASS"), ("p5", "1500", "WARN P2"), ("infiniband", "1500", "PASS"), ("p5", "junk", "UNKNOWN")],
)
def test_mtu(kind: str, mtu: str, expected: str, tmp_path: Path) -> None:
    machine = of(kind)
    machine.files.update({f"/sys/class/net/{name}/mtu": mtu for name in ("eth0", "eth1")})
    machine.files["/sys/class/net/docker0/mtu"] = "1500"
    assert worst(findings(machine, "node.mtu", tmp_path)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [("localhost", "PASS"), ("127.0.0.1", "PASS"), ("n1..cluster", "FAIL P0"), (None, "NOT-APPLICABLE")],
)
def test_names(name: str | None, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    if name is not None:
        machine.rank(0, environment={"MASTER_ADDR": name})
    assert worst(findings(machine, "node.dns", tmp_path, job="4711")) == expected


def claim(name: str, **more: str) -> str:
    """An environment that names MASTER_ADDR."""
    return "".join(f"{key}={value}\0" for key, value in {"MASTER_ADDR": name, **more}.items())


BAD = "no..such"  # no resolver has to be asked to refuse it


@pytest.mark.parametrize(
    ("process", "job", "expected"),
    [
        ({"environ": claim(BAD)}, None, "NOT-APPLICABLE"),  # a login shell
        ({"environ": claim(BAD, SLURM_JOB_ID="4711")}, "4711", "PASS"),  # a stale export, beside ranks of the job
        ({"environ": claim(BAD, SLURM_JOB_ID="4711", RANK="0"), "uid": "7"}, "4711", "PASS"),  # another user's claim
        ({"environ": claim(BAD, RANK="0"), "job": "99"}, "4711", "PASS"),  # another job's rank
        ({"environ": claim(BAD, RANK="0"), "job": "99"}, None, "WARN P2"),  # whatever a job goes by
        ({"environ": claim(BAD, RANK="0"), "job": "4711"}, "4711", "FAIL P0"),
    ],
)
def test_names_are_those_of_ranks(process: dict[str, str], job: str | None, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    if job is not None:
        machine.rank(0, environment={"MASTER_ADDR": "localhost"})
    whose = {key: value for key, value in process.items() if key == "job"}
    machine.process(900, "bash", **whose, environ=process["environ"])
    if "uid" in process:
        (tmp_path / "root/proc/900").mkdir(parents=True)
        try:
            os.chown(tmp_path / "root/proc/900", int(process["uid"]), -1)
        except PermissionError:
            pytest.skip("as root alone")
    assert worst(findings(machine, "node.dns", tmp_path, job=job)) == expected


def test_a_resolver_that_is_away_is_the_nodes_own_fault() -> None:
    row = {"why": "Temporary failure in name resolution", "code": -3, "jobs": ["99"]}
    told = {"names": {"value": {"names": {"n7": row}, "more": 0, "asked": None}}}
    (found,) = judged(check("node.dns"), Observation("n1", told), ["n1"])
    assert (found.status, found.priority, found.values["job"]) == ("FAIL", "P0", "99")
    row["code"] = -2  # such a name is not known
    (found,) = judged(check("node.dns"), Observation("n1", told), ["n1"])
    assert (found.status, found.priority) == ("WARN", "P2")


def test_no_job_pushes_out_the_names_of_another(tmp_path: Path) -> None:
    machine = of("p5").rank(0, environment={"MASTER_ADDR": "localhost"})
    for number in range(40):
        machine.process(900 + number, job="99", environ=claim(f"127.0.0.{number + 1}", RANK=str(number)))
    found = findings(machine, "node.dns", tmp_path)
    assert "localhost resolves" in [one.text for one in found]
    assert "ranks here go by 25 more names than are resolved" in [one.text for one in found]


NFT = """table inet filter {{
\tchain input {{
\t\ttype filter hook input priority filter; policy {policy};
\t\tiif "lo" accept
\t\t{rule}
\t}}
\tchain forward {{
\t\ttype filter hook forward priority filter; policy drop;
\t}}
}}"""
FIREWALLD = """table inet firewalld {{
\tchain filter_INPUT {{
\t\ttype filter hook input priority filter + 10; policy accept;
\t\tct state {{ established, related }} accept
\t\tct status dnat accept
\t\tiifname "lo" accept
\t\tjump filter_INPUT_ZONES
\t\tct state invalid drop
\t\treject with icmpx admin-prohibited
\t}}
\tchain filter_INPUT_ZONES {{
\t\tiifname "eth0" goto filter_IN_zone
\t}}
\tchain filter_IN_zone {{
\t\t{zone}
\t}}
}}"""
SAVED = (
    "*nat\n:INPUT DROP [0:0]\nCOMMIT\n"
    "*filter\n:INPUT {policy} [0:0]\n:FORWARD DROP [0:0]\n:OUTPUT ACCEPT [0:0]\n{rule}\nCOMMIT\n"
)


@pytest.mark.parametrize(
    ("nft", "saved", "expected"),
    [
        ("", None, "PASS"),
        pytest.param(NFT.format(policy="accept", rule="ct state invalid drop"), None, "PASS", id="W31: a usual rule"),
        (NFT.format(policy="drop", rule=""), None, "WARN P1"),
        (NFT.format(policy="accept", rule="tcp dport 29500 drop"), None, "WARN P1"),
        (NFT.format(policy="accept", rule="tcp dport 29000-29600 reject"), None, "WARN P1"),
        (NFT.format(policy="accept", rule="tcp dport { 22, 111 } drop"), None, "PASS"),
        (NFT.format(policy="accept", rule="ip saddr 203.0.113.0/24 drop"), None, "PASS"),
        (NFT.format(policy="accept", rule="tcp flags fin,syn / fin,syn drop"), None, "PASS"),
        (NFT.format(policy="accept", rule="udp dport 29500 drop"), None, "PASS"),
        (NFT.format(policy="accept", rule="reject with icmpx admin-prohibited"), None, "WARN P1"),
        (None, SAVED.format(policy="ACCEPT", rule=""), "PASS"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -s 10.0.0.0/8 -j ACCEPT"), "UNKNOWN"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -s 203.0.113.0/24 -j ACCEPT"), "WARN P1"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -p tcp --dport 22 -j ACCEPT"), "WARN P1"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -p tcp --dport 29500 -j ACCEPT"), "WARN P1"),  # NCCL's own
        (None, SAVED.format(policy="DROP", rule="-A INPUT -p tcp -m tcp --dport 1024:65535 -j ACCEPT"), "PASS"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -i lo -j ACCEPT"), "WARN P1"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -i eth0 -j ACCEPT"), "UNKNOWN"),
        (None, SAVED.format(policy="DROP", rule='-A INPUT -m comment --comment "a -j b" -j ACCEPT'), "PASS"),
        (None, SAVED.format(policy="DROP", rule="-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT"), "WARN P1"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -j CLUSTER\n-A CLUSTER -j DROP"), "WARN P1"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -j CLUSTER\n-A CLUSTER -j RETURN\n-A X -j DROP"), "PASS"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -j A\n-A A -j ACCEPT\n-A INPUT -j DROP"), "PASS"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -j A\n-A A -j B\n-A B -j A\n-A A -j DROP"), "WARN P1"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT ! -s 10.0.0.0/8 -j DROP"), "UNKNOWN"),
        (NFT.format(policy="drop", rule="ip saddr 10.0.0.0/8 accept"), None, "UNKNOWN"),
        (NFT.format(policy="drop", rule="ip saddr @peers counter packets 1 bytes 2 accept"), None, "UNKNOWN"),
        (NFT.format(policy="drop", rule='counter packets 1 bytes 2 accept comment "drop all"'), None, "PASS"),
        (NFT.format(policy="drop", rule="tcp dport { 22, 1024-65535 } accept"), None, "PASS"),
        (NFT.format(policy="drop", rule="ct state vmap { established : accept, invalid : drop }"), None, "WARN P1"),
        (NFT.format(policy="drop", rule="ct state established,related accept"), None, "WARN P1"),
        (NFT.format(policy="drop", rule="").replace("table inet", "table ip6"), None, "PASS"),
        (FIREWALLD.format(zone="accept"), None, "UNKNOWN"),
        (FIREWALLD.format(zone="tcp dport 22 accept"), None, "WARN P1"),
        (NFT.format(policy="accept", rule="ip saddr 203.0.113.1 drop\n" * 90000), None, "UNKNOWN"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -p tcp -m tcp --dport 22 -j REJECT"), "PASS"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -j DROP"), "WARN P1"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -j REJECT --reject-with icmp-host-prohibited"), "WARN P1"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -p tcp --tcp-flags ALL NONE -j DROP"), "PASS"),
        (None, SAVED.format(policy="ACCEPT", rule="-A INPUT -p icmp -j DROP"), "PASS"),
        pytest.param(
            None,
            SAVED.format(policy="ACCEPT", rule="-A INPUT -i docker0 -j DROP"),
            "PASS",
            id="W31: an interface's rule",
        ),
        *(
            (None, SAVED.format(policy=policy, rule=f"-A INPUT {rule}"), expected)
            for policy, rule, expected in (
                ("DROP", "-m set --match-set cluster src -j ACCEPT", "UNKNOWN"),
                ("DROP", "-m set --match-set cluster src,dst -m tcp -p tcp -j ACCEPT", "UNKNOWN"),
                ("ACCEPT", "-m set --match-set banned src -j DROP", "PASS"),
                ("ACCEPT", "-m set ! --match-set cluster src -j DROP", "PASS"),
                ("DROP", "-p tcp --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT", "PASS"),
                ("ACCEPT", "-p tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", "WARN P1"),
                ("ACCEPT", "-p tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", "PASS"),
                ("ACCEPT", "-p tcp --syn -j DROP", "WARN P1"),
                ("ACCEPT", "-p tcp -m recent --rcheck --name ssh --rsource -j DROP", "PASS"),
                ("ACCEPT", "-s ! 10.0.0.0/8 -j DROP", "UNKNOWN"),
                ("ACCEPT", "-j NFQUEUE --queue-num 0", "UNKNOWN"),
                ("ACCEPT", "-j LOG --log-prefix drop", "PASS"),
                ("ACCEPT", "", "PASS"),
            )
        ),
        *(
            (NFT.format(policy="accept", rule=f"tcp dport {rule}"), None, expected)
            for rule, expected in (
                ('29400-65535 counter packets 0 bytes 0 xt target "REJECT"', "UNKNOWN"),
                ('22 counter packets 0 bytes 0 xt target "REJECT"', "PASS"),
                ('29400-65535 counter packets 0 bytes 0 xt target "LOG"', "PASS"),
                ("29400-65535 counter packets 0 bytes 0 # reject-with icmp-port-unreachable", "UNKNOWN"),
                ("29400-65535 counter packets 0 bytes 0 # LOG level warning", "PASS"),
                ("29400-65535 counter packets 0 bytes 0 queue flags bypass to 0", "UNKNOWN"),
                ("29400-65535 counter packets 0 bytes 0", "PASS"),
            )
        ),
        *(
            (NFT.format(policy="drop", rule=f"{rule} counter packets 0 bytes 0 accept"), None, "UNKNOWN")
            for rule in ('xt match "set"', "# match-set cluster src")
        ),
        pytest.param(None, None, "UNKNOWN", id="W27: not read is not open"),
    ],
)
def test_firewall(nft: str | None, saved: str | None, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    machine.commands["nft"] = "echo Operation not permitted >&2; exit 1"
    if nft is not None:
        machine.says("nft", nft)
    if saved is not None:
        machine.says("iptables-save", saved)
    assert worst(findings(machine, "node.firewall", tmp_path)) == expected


@pytest.mark.parametrize(
    ("legacy", "expected"),
    [
        (None, "UNKNOWN"),
        (SAVED.format(policy="ACCEPT", rule="-A INPUT -p tcp --dport 22 -j DROP"), "PASS"),
        (SAVED.format(policy="DROP", rule=""), "WARN P1"),
    ],
)
def test_rules_of_the_other_iptables(legacy: str | None, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    warning = "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them"
    machine.commands["iptables-save"] = f"echo '{warning}' >&2"
    if legacy is not None:
        machine.says("iptables-legacy-save", legacy)
    assert worst(findings(machine, "node.firewall", tmp_path)) == expected


def test_rules_that_are_cut_are_not_walked(tmp_path: Path) -> None:
    """What lets traffic in may stand in the rest."""
    machine = of("p5").says("nft", NFT.format(policy="drop", rule="tcp dport 22 accept\n" * 120000 + "accept"))
    machine.says("iptables-save", SAVED.format(policy="ACCEPT", rule=""))
    assert worst(findings(machine, "node.firewall", tmp_path)) == "UNKNOWN"


@pytest.mark.parametrize(
    ("policy", "rule", "expected"),
    [
        ("drop", "ip saddr 10.0.0.0/8 accept", "PASS"),
        ("drop", "ip saddr 192.168.0.0/16 accept", "UNKNOWN"),
        ("accept", "ip saddr 10.0.0.0/8 drop", "WARN P1"),
        ("accept", "ip saddr != 10.0.0.0/8 drop", "PASS"),
        ("accept", "ip saddr 172.17.0.0/16 drop", "PASS"),
    ],
)
def test_a_firewall_that_goes_by_address(policy: str, rule: str, expected: str, tmp_path: Path) -> None:
    """The node's own address is in the network of its peers."""
    machine = of("p5").says("nft", NFT.format(policy=policy, rule=rule))
    machine.slurm["NodeAddr"] = "10.0.0.7"
    assert worst(findings(machine, "node.firewall", tmp_path)) == expected


def test_the_ports_in_use_are_those_of_the_ranks(tmp_path: Path) -> None:
    machine = of("p5").rank(0, "/opt/libnccl.so.2", environment={"MASTER_PORT": "12345"})
    machine.says("nft", NFT.format(policy="accept", rule="tcp dport 12345 drop"))
    assert worst(findings(machine, "node.firewall", tmp_path, job="4711")) == "WARN P1"
    machine.says("nft", NFT.format(policy="accept", rule="tcp dport 29500 drop"))
    assert worst(findings(machine, "node.firewall", tmp_path / "again", job="4711")) == "PASS"
