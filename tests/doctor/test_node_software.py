"""Libraries of the ranks, NCCL's RAS, limits, shared memory, disks, clock: each both ways."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doctor import machines
from tests.doctor.machines import Machine, findings, limits_text, of, worst

Change = Callable[[Machine], object]
NCCL = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5"
OTHER = "/opt/conda/lib/libnccl.so.2.18.3"
PLUGIN = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net-ofi.so"
FABRIC = "/opt/amazon/efa/lib/libfabric.so.1.27.0"


def ranks(*libraries: str, number: int = 8) -> Change:
    def change(machine: Machine) -> None:
        for rank in range(number):
            machine.rank(rank, *libraries)

    return change


def talking(*libraries: str, **environment: str) -> Change:
    """A rank of two nodes that listens for its peers."""

    def change(machine: Machine) -> None:
        world = {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", **environment}
        machine.rank(0, *libraries, environment=world)
        machine.links["/proc/5000/fd/9"] = "socket:[77]"
        listens = " 0: 00000000:9C40 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1\n"
        machine.files["/proc/5000/net/tcp"] = "head\n" + listens

    return change


def other_job(machine: Machine, library: str) -> None:
    maps = f"7f00-7f01 r-xp 0000 00:00 1  {library}\n"
    machine.process(6000, job="4712", environ="RANK=0\0SLURM_JOB_ID=4712\0", maps=maps)


def installed(machine: Machine) -> None:
    machine.files[PLUGIN] = ""


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("p5", [ranks(NCCL, PLUGIN, FABRIC)], "PASS"),
        ("p5", [ranks(NCCL, "/opt/aws-ofi-nccl/lib/libnccl-net.so.0.0.0")], "PASS"),
        pytest.param("p5", [talking(NCCL), installed], "FAIL P0", id="W32: on disk and not in the ranks"),
        pytest.param("p5", [ranks(NCCL), installed], "UNKNOWN", id="import torch, and no communicator yet"),
        ("p5", [talking(NCCL, SLURM_JOB_NUM_NODES="1")], "NOT-APPLICABLE"),
        ("p5", [talking(NCCL, WORLD_SIZE="1", LOCAL_WORLD_SIZE="1")], "NOT-APPLICABLE"),
        ("p5", [talking(NCCL, WORLD_SIZE="8")], "NOT-APPLICABLE"),
        ("p5", [ranks(NCCL, PLUGIN, number=7), lambda m: m.rank(7, NCCL)], "FAIL P0"),
        ("p5", [installed], "PASS"),
        ("p5", [], "WARN P2"),
        ("infiniband", [ranks(NCCL)], "NOT-APPLICABLE"),
    ],
)
def test_plugin(kind: str, changes: list[Change], expected: str, tmp_path: Path) -> None:
    machine = of(kind)
    for change in changes:
        change(machine)
    assert worst(findings(machine, "node.ofi-plugin", tmp_path, job="4711")) == expected


@pytest.mark.parametrize(
    ("kind", "changes", "expected"),
    [
        ("p5", [], "PASS"),
        ("p5", [lambda m: m.says("fi_info", machines.fi_info(32, direct=False))], "PASS"),
        pytest.param(
            "p5", [lambda m: m.says("fi_info", machines.fi_info(16))], "WARN P1", id="W16: 48 lines of 16 cards"
        ),
        ("p5", [lambda m: m.says("fi_info", "fi_getinfo: -61 (No data available)", 61)], "FAIL P0"),
        ("p5", [lambda m: m.commands.pop("fi_info")], "UNKNOWN"),
        ("p5", [lambda m: m.commands.pop("fi_info"), ranks(NCCL, FABRIC)], "PASS"),
        ("p5", [ranks(NCCL, FABRIC), lambda m: m.rank(3, NCCL, "/lib/libfabric.so.1.19.0")], "FAIL P0"),
        (
            "p5",
            [lambda m: m.files.update({"/opt/amazon/efa_installed_packages": "# EFA installer version: 1.15.1\n"})],
            "WARN P2",
        ),
        ("infiniband", [], "NOT-APPLICABLE"),
    ],
)
def test_libfabric(kind: str, changes: list[Change], expected: str, tmp_path: Path) -> None:
    machine = of(kind)
    for change in changes:
        change(machine)
    assert worst(findings(machine, "node.libfabric", tmp_path, job="4711")) == expected


@pytest.mark.parametrize(
    ("changes", "expected", "words"),
    [
        ([ranks(NCCL)], "PASS", "NCCL 2.21.5 in 8 ranks"),
        ([ranks(NCCL), lambda m: m.rank(3, OTHER)], "FAIL P0", "different versions of NCCL"),
        ([ranks(NCCL, OTHER)], "WARN P1", "two NCCL libraries"),
        ([ranks(NCCL), lambda m: m.rank(3, NCCL, OTHER)], "WARN P1", "which of them they use is not told"),
        (
            [ranks(NCCL), lambda m: m.rank(3, OTHER, environment={"SLURM_STEP_ID": "1"})],
            "PASS",
            "NCCL 2.21.5 in 7 ranks",
        ),
        ([ranks(NCCL), lambda m: m.rank(3, OTHER, environment={"MASTER_PORT": "29501"})], "PASS", "2.21.5 in 7 ranks"),
        ([ranks(NCCL), lambda m: other_job(m, OTHER)], "PASS", "NCCL 2.18.3 in 1 ranks"),
        ([ranks(NCCL), lambda m: m.rank(3, NCCL, "/tmp/libnccl.so.2.21.5")], "WARN P1", "two NCCL libraries"),
        ([ranks(NCCL + " (deleted)")], "WARN P2", "replaced under running ranks"),
        (
            [
                ranks(NCCL),
                lambda m: m.files.update({"/proc/driver/nvidia/version": "NVRM version: NVIDIA x  515.65.01  x\n"}),
            ],
            "WARN P1",
            "wants driver 525",
        ),
        ([], "NOT-APPLICABLE", "no rank runs"),
        ([lambda m: m.rank(0, "/lib/libcudart.so.12")], "NOT-APPLICABLE", "no rank here has NCCL"),
    ],
)
def test_nccl(changes: list[Change], expected: str, words: str, tmp_path: Path) -> None:
    machine = of("p5")
    for change in changes:
        change(machine)
    found = findings(machine, "node.nccl-library", tmp_path, job=None if "2.18.3" in words else "4711")
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(
    ("paths", "expected", "words"),
    [
        (("/opt/a/libnccl.so.2", "/opt/a/libnccl.so.2"), "PASS", "one file of NCCL, which tells no version"),
        (("/opt/a/libnccl.so.2", "/opt/b/libnccl.so.2"), "UNKNOWN", "several files of NCCL"),
        (("/opt/a/libnccl.so.2", "/opt/b/libnccl.so.2.21.5"), "UNKNOWN", "several files of NCCL"),
        (("/usr/local/cuda-12.4/libnccl.so.2", "/b/libnccl.so.2.21.5"), "UNKNOWN", "several files of NCCL"),
        (("/opt/a/libnccl.so.2.18.3", "/opt/b/libnccl.so.2.21.5"), "FAIL P0", "different versions"),
    ],
)
def test_files_that_tell_no_version_are_no_other_version(
    paths: tuple[str, str], expected: str, words: str, tmp_path: Path
) -> None:
    machine = of("p5").rank(0, paths[0]).rank(1, paths[1])
    found = findings(machine, "node.nccl-library", tmp_path, job="4711")
    assert worst(found) == expected and words in found[0].text


def test_what_a_library_says_of_itself_goes_before_its_name(tmp_path: Path) -> None:
    machine = of("p5").rank(0, "/opt/a/libnccl.so.2").rank(1, "/opt/b/libnccl.so.2")
    for pid, version in ((5000, "2.21.5"), (5001, "2.22.3")):
        folder = "a" if pid == 5000 else "b"
        machine.files[f"/proc/{pid}/root/opt/{folder}/libnccl.so.2"] = f"ELF NCCL version {version}+cuda12.4 END"
    found = findings(machine, "node.nccl-library", tmp_path, job="4711")
    assert worst(found) == "FAIL P0" and "2.22.3" in " ".join(proof.line for proof in found[0].proofs)


#: In the form of NCCL 2.24's text.
ANSWER = """Job summary
  Nodes  Processes         GPUs  Processes     GPUs
  (total)   per node   per process   (total)  (total)
        2          8             1        16       16

#0-0 (fa93daea854b060b) MISMATCH
  Communicator ranks have different AllReduce operation counts
  15 ranks have launched up to operation 640
  1 rank has launched up to operation 639
  Rank 12 has launched up to operation 639 -- GPU 4 managed by process 3230 on node 10.0.0.9
2 job processes are considered dead (unreachable via the RAS network)
"""


@pytest.fixture
def heard() -> list[str]:
    """Who connected to `ras_port`."""
    return []


@pytest.fixture
def ras_port(heard: list[str]) -> Iterator[int]:
    """Somebody who greets as NCCL's RAS does, and answers ``VERBOSE STATUS`` with `ANSWER`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_serve, args=(server, heard), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.close()


def _serve(server: socket.socket, heard: list[str]) -> None:
    while True:
        try:
            client, address = server.accept()
        except OSError:
            return
        heard.append(address[0])
        with client:
            client.recv(200)
            client.sendall(b"SERVER PROTOCOL 2\n")
            if client.recv(200).startswith(b"TIMEOUT"):
                client.sendall(b"OK\n")
                client.recv(200)
                client.sendall(ANSWER.encode())


def test_ras(ras_port: int, tmp_path: Path) -> None:
    machine = of("p5").rank(0, NCCL, environment={"NCCL_RAS_ADDR": f"127.0.0.1:{ras_port}"})
    assert worst(findings(machine, "node.ras", tmp_path, job="4711")) == "PASS"


def test_what_ras_complains_of(ras_port: int, tmp_path: Path) -> None:
    machine = of("p5").rank(0, NCCL, environment={"NCCL_RAS_ADDR": f"127.0.0.1:{ras_port}"})
    found = findings(machine, "node.ras", tmp_path, job="4711", options={"ras": {"status": True}})
    assert {(one.status, one.priority, one.text) for one in found} == {
        ("WARN", "P1", "NCCL's RAS tells of processes that give no data or are considered dead"),
        ("WARN", "P2", "NCCL's RAS tells of ranks at different operations"),
    }


@pytest.mark.parametrize("job", ["4711", None])
def test_each_job_is_asked_at_its_own_ras(job: str | None, ras_port: int, heard: list[str], tmp_path: Path) -> None:
    """Job 99 chose an address: nobody asks there for job 4711, and what is said there is said of job 99."""
    machine = of("p5").rank(0, NCCL, environment={"NCCL_RAS_ADDR": "127.0.0.1:1"})
    environ = f"RANK=0\0NCCL_RAS_ADDR=127.0.0.1:{ras_port}\0"
    machine.process(800, job="99", environ=environ, maps=f"7f00-7f01 r-xp 0000 00:00 1  {NCCL}\n")
    found = findings(machine, "node.ras", tmp_path, job=job, options={"ras": {"status": True}})
    assert len(heard) == (job is None)
    told = {(one.status, one.values.get("job")) for one in found}
    assert told == ({("UNKNOWN", None)} if job else {("UNKNOWN", None), ("WARN", "99")})


@pytest.mark.parametrize(
    ("listens", "expected"), [(True, "PASS"), (False, "UNKNOWN")], ids=["a rank of the job", "somebody else"]
)
def test_what_listens_there_must_be_a_rank(
    listens: bool, expected: str, ras_port: int, heard: list[str], tmp_path: Path
) -> None:
    machine = of("p5").rank(0, NCCL, environment={"NCCL_RAS_ADDR": f"127.0.0.1:{ras_port}"})
    machine.links["/proc/5000/fd/9"] = "socket:[77]"
    port = ras_port if listens else ras_port - 1
    row = f" 0: 0100007F:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 77 1\n"
    machine.files["/proc/5000/net/tcp"] = "head\n" + row
    assert worst(findings(machine, "node.ras", tmp_path, job="4711")) == expected
    assert bool(heard) == listens


@pytest.mark.parametrize("address", ["nonsense", "203.0.113.7:28028", "[2001:db8::7]:80", "localhost:99999", ":28028"])
def test_no_other_host_is_asked(address: str, tmp_path: Path) -> None:
    machine = of("p5").rank(0, NCCL, environment={"NCCL_RAS_ADDR": address})
    (found,) = findings(machine, "node.ras", tmp_path, job="4711")
    assert found.status == "UNKNOWN" and "Error" not in found.text
    assert "is no " in found.text


def test_no_ras_where_a_rank_runs_is_not_observed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    machine = of("p5").rank(0, NCCL, environment={"NCCL_RAS_ADDR": f"127.0.0.1:{port}"})
    assert worst(findings(machine, "node.ras", tmp_path, job="4711")) == "UNKNOWN"


# limits


@pytest.mark.parametrize(
    ("name", "limits", "expected"),
    [
        ("node.memlock", {"memlock": "unlimited"}, "PASS"),
        ("node.memlock", {"memlock": str(8 << 30)}, "PASS"),
        ("node.memlock", {"memlock": str(1 << 30)}, "WARN P1"),
        ("node.memlock", {"memlock": "65536"}, "FAIL P0"),
        ("node.memlock", {"memlock": "0"}, "FAIL P0"),
        ("node.memlock", {"memlock": "junk"}, "UNKNOWN"),
        ("node.stack", {"stack": "8388608"}, "PASS"),
        ("node.stack", {"stack": "unlimited"}, "WARN P2"),
        ("node.stack", {"stack": "1048576"}, "FAIL P1"),
        ("node.nofile", {"nofile": "1048576"}, "PASS"),
        ("node.nofile", {"nofile": "8192"}, "WARN P2"),
        ("node.nofile", {"nofile": "1024"}, "WARN P2"),  # Slurm's default hands on the shell's; NCCL raises it
        ("node.nofile", {"nofile": "1024", "hard": "4096"}, "WARN P2"),
        ("node.nofile", {"nofile": "1024", "hard": "2048"}, "FAIL P1"),
        ("node.nofile", {"nofile": "1024", "hard": "1024"}, "FAIL P1"),
    ],
)
@pytest.mark.parametrize("whose", ["rank", "slurmd"])
def test_limits(name: str, limits: dict[str, str], whose: str, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    if whose == "rank":
        machine.rank(0, NCCL).rank(1, NCCL, **limits)  # type: ignore[arg-type]
    else:
        machine.process(77, "slurmd", limits=limits_text(**limits))
    found = findings(machine, name, tmp_path, job="4711")
    if whose == "rank" and expected == "UNKNOWN":
        expected = "PASS"  # the other rank's can be read
    if whose == "slurmd" and limits.get("stack") == "unlimited":
        expected = "PASS"  # what ranks get may differ
    assert worst(found) == expected


@pytest.mark.parametrize("job", ["4711", None])
@pytest.mark.parametrize("name", ["node.memlock", "node.stack", "node.nofile", "node.shm", "node.dns"])
def test_ranks_that_cannot_be_looked_at_are_not_those_of_slurmd(name: str, job: str | None, tmp_path: Path) -> None:
    machine = of("p5").process(77, "slurmd", limits=limits_text()).process(9000, "python", job="4711")
    assert worst(findings(machine, name, tmp_path, job=job)) == "UNKNOWN"


def test_root_may_lock_all_memory(tmp_path: Path) -> None:
    machine = of("p5").rank(0, NCCL, memlock="65536")
    machine.owner = 0
    assert worst(findings(machine, "node.memlock", tmp_path, job="4711")) == "PASS"


def test_limits_are_those_of_ranks_and_of_no_shell(tmp_path: Path) -> None:
    """W32: slurmd may have other limits than the ranks, and a shell tells of neither."""
    machine = of("p5").process(77, "slurmd", limits=limits_text(memlock="65536"))
    machine.process(78, "bash", limits=limits_text(memlock="0")).rank(0, NCCL)
    assert worst(findings(machine, "node.memlock", tmp_path, job="4711")) == "PASS"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: None, "PASS"),
        (lambda m: m.room("/dev/shm", 0.0625), "FAIL P0"),
        (lambda m: m.room("/dev/shm", 2.0), "WARN P1"),
        (lambda m: m.room("/dev/shm", 100.0, used=0.85), "WARN P1"),
        (lambda m: m.files.update({"/proc/self/mounts": "/dev/sda1 /dev/shm ext4 rw 0 0\n"}), "WARN P1"),
        (lambda m: m.rooms.pop("/dev/shm"), "UNKNOWN"),
        pytest.param(
            lambda m: m.rank(0, NCCL).room("/dev/shm in the container", 0.0625), "FAIL P0", id="W32: a container's own"
        ),
        pytest.param(lambda m: m.rank(0, NCCL), "UNKNOWN", id="a rank's own that can't be read"),
    ],
)
def test_shm(change: Change, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    change(machine)
    assert worst(findings(machine, "node.shm", tmp_path, job="4711")) == expected


@pytest.mark.parametrize(
    ("age_s", "held", "uid", "expected"),
    [
        (3600, False, 0, "WARN P2"),
        pytest.param(3600, True, 0, "PASS", id="W31: a running job's"),
        pytest.param(10, False, 0, "PASS", id="in the making"),
    ],
)
def test_stale_shm(age_s: int, held: bool, uid: int, expected: str, tmp_path: Path) -> None:
    machine = of("p5")
    machine.files["/dev/shm/nccl-AbCdEf"] = "x"
    if held:
        machine.process(900, "python", job="4711", maps="7f00-7f01 rw-s 0 00:1 9  /dev/shm/nccl-AbCdEf\n")
    machine.times["/dev/shm/nccl-AbCdEf"] = machines.BOOT + 36000.0 - age_s
    assert worst(findings(machine, "node.stale-shm", tmp_path, uid=uid)) == expected


NO_KERNEL = "/proc/2/"  # hidepid, or a PID namespace of one's own: kthreadd is not seen


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("node.gpu-processes", "PASS", "UNKNOWN"),
        ("node.stale-shm", "WARN P2", "UNKNOWN"),
        ("node.nccl-library", "NOT-APPLICABLE", "UNKNOWN"),
        ("node.ras", "NOT-APPLICABLE", "UNKNOWN"),
        ("node.dns", "NOT-APPLICABLE", "UNKNOWN"),
        ("node.shm", "PASS", "UNKNOWN"),
    ],
)
def test_hidden_processes_are_not_none(name: str, before: str, after: str, uid: int, tmp_path: Path) -> None:
    machine = of("p5")
    machine.files["/dev/shm/nccl-AbCdEf"] = "x"
    machine.times["/dev/shm/nccl-AbCdEf"] = machines.BOOT
    assert worst(findings(machine, name, tmp_path / "all", uid=uid)) == before
    assert worst(findings(machine.without(NO_KERNEL), name, tmp_path / "own", uid=uid)) == after


def test_below_a_slurmd_that_is_seen_all_ranks_are(tmp_path: Path) -> None:
    machine = of("p5").without(NO_KERNEL).process(77, "slurmd", limits=limits_text())
    assert worst(findings(machine, "node.nccl-library", tmp_path)) == "NOT-APPLICABLE"


@pytest.mark.parametrize(
    ("kind", "total", "free", "environment", "expected"),
    [
        ("p5", 5128, 5000, {}, "PASS"),
        ("p5", 5128, 0, {}, "WARN P2"),
        ("p5", 0, 0, {}, "WARN P2"),
        ("p5", 0, 0, {"FI_EFA_USE_HUGE_PAGE": "0"}, "PASS"),
        ("infiniband", 0, 0, {}, "NOT-APPLICABLE"),
    ],
)
def test_huge_pages(
    kind: str, total: int, free: int, environment: dict[str, str], expected: str, tmp_path: Path
) -> None:
    machine = of(kind).rank(0, NCCL, environment=environment)
    machine.files["/proc/meminfo"] = f"MemTotal: 1 kB\nHugePages_Total: {total}\nHugePages_Free: {free}\n"
    assert worst(findings(machine, "node.huge-pages", tmp_path, job="4711")) == expected


# system


VAR = "/dev/sda1 /var ext4 rw 0 0"
SNAPSHOT = "/dev/sda2 / btrfs ro,relatime,subvol=/@/.snapshots/1/snapshot 0 0"


def mounted(*rows: str) -> Change:
    """The root is full, /var has room."""

    def change(machine: Machine) -> None:
        machine.files["/proc/self/mounts"] = "".join(row + "\n" for row in rows)
        full = 0.1 if SNAPSHOT in rows else 1.0
        machine.room("/", 2.0, used=full, inodes_used=full).room("/var", 50.0)

    return change


def nvme(words: str) -> Change:
    def change(machine: Machine) -> None:
        machine.files["/proc/self/mounts"] += f"/dev/nvme1n1 /opt/dlami/nvme {words} 0 0\n"
        machine.room("/opt/dlami/nvme", 27000.0)

    return change


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        (lambda m: None, "PASS", "1 local file systems have room"),
        (lambda m: m.room("/", 100.0, used=0.85), "WARN P2", "/ fills up"),
        (lambda m: m.room("/", 100.0, used=0.92), "FAIL P1", "/ is nearly full"),
        (lambda m: m.room("/", 100.0, used=0.97), "FAIL P0", "/ is full"),
        (lambda m: m.room("/var", 50.0, used=0.97), "FAIL P1", "/var is full"),
        (lambda m: m.room("/opt/sagemaker", 50.0, used=0.91), "FAIL P1", "/opt/sagemaker"),
        (lambda m: m.room("/", 100.0, inodes_used=0.95), "FAIL P1", "inodes"),
        (lambda m: m.room("/opt/dlami/nvme", 27000.0, used=0.85), "PASS", "2 local file systems have room"),
        (lambda m: m.room("/opt/dlami/nvme", 27000.0, used=0.92), "WARN P2", "/opt/dlami/nvme is nearly full"),
        (lambda m: m.room("/opt/dlami/nvme", 27000.0, used=1.0), "FAIL P1", "/opt/dlami/nvme is full"),
        (lambda m: m.room("/opt/dlami/nvme", 27000.0, inodes_used=0.95), "FAIL P1", "/opt/dlami/nvme has hardly any"),
        (lambda m: m.room("/dev/shm", 100.0, used=1.0), "PASS", "1 local file systems have room"),
        (nvme("ext4 ro,relatime"), "FAIL P1", "/opt/dlami/nvme is read-only"),
        (nvme("ext4 rw,relatime"), "PASS", "2 local file systems have room"),
        (nvme("squashfs ro"), "PASS", "1 local file systems have room"),
        (lambda m: m.files.update({"/proc/self/mounts": "/dev/root / ext4 ro,relatime 0 0\n"}), "FAIL P0", "read-only"),
        (mounted(SNAPSHOT, "/dev/sda2 /var btrfs rw,relatime 0 0"), "PASS", "2 local file systems have room"),
        (mounted(SNAPSHOT, "/dev/sda2 /var btrfs ro,relatime 0 0"), "FAIL P0", "/ is read-only"),
        (mounted(SNAPSHOT, "/dev/sdb1 /scratch ext4 rw,relatime 0 0"), "FAIL P0", "/ is read-only"),
        (lambda m: m.rooms.clear(), "UNKNOWN", "no local file system"),
        (mounted("/dev/loop0 / squashfs ro 0 0", VAR), "PASS", "1 local file systems have room"),
        (mounted("/dev/loop0 / erofs ro,relatime 0 0", VAR), "PASS", "1 local file systems have room"),
        (mounted("10.0.0.1:/images/node / nfs4 ro,vers=4.2 0 0", VAR), "PASS", "1 local file systems have room"),
        (mounted("/dev/loop0 / squashfs ro 0 0", "/dev/sda1 /var ext4 ro 0 0"), "FAIL P0", "/var is read-only"),
        (mounted("overlay / overlay rw 0 0"), "FAIL P0", "/ is full"),
    ],
)
def test_disk(change: Change, expected: str, words: str, tmp_path: Path) -> None:
    machine = of("p5")
    change(machine)
    found = findings(machine, "node.disk", tmp_path)
    assert worst(found) == expected
    assert any(words in one.text for one in found), [one.text for one in found]


@pytest.mark.parametrize(
    ("kind", "hyperpod", "mounted", "expected"),
    [
        ("p5", True, True, "PASS"),
        ("p5", True, False, "WARN P1"),
        ("p5", False, False, "NOT-APPLICABLE"),
        ("infiniband", True, False, "NOT-APPLICABLE"),
    ],
)
def test_nvme(kind: str, hyperpod: bool, mounted: bool, expected: str, tmp_path: Path) -> None:
    machine = of(kind)
    if hyperpod:
        machine.files["/opt/sagemaker_cluster/.keep"] = ""
    if mounted:
        machine.files["/proc/self/mounts"] += "/dev/mapper/vg-lv /opt/dlami/nvme ext4 rw 0 0\n"
    assert worst(findings(machine, "node.nvme-mount", tmp_path)) == expected


@pytest.mark.parametrize(
    ("chronyc", "timedatectl", "offset_s", "expected"),
    [
        (machines.chrony(0.00001), None, None, "PASS"),
        (machines.chrony(0.00001, "Not synchronised"), None, None, "WARN P1"),
        (machines.chrony(-3.0), None, None, "FAIL P1"),
        (machines.chrony(0.3), None, None, "WARN P2"),
        (None, "Timezone=UTC\nNTP=yes\nNTPSynchronized=yes\nTimeUSec=x", None, "PASS"),
        (None, "NTPSynchronized=no", None, "WARN P1"),
        (machines.chrony(0.000012), None, 5.0, "WARN P2"),  # this host's is off
        (machines.chrony(0.000012), None, 0.3, "WARN P2"),
        (machines.chrony(-3.0), None, -3.0, "FAIL P1"),
        (machines.chrony(0.00001, "Not synchronised"), None, 5.0, "FAIL P1"),
        (None, "NTPSynchronized=yes", 5.0, "WARN P2"),
        (None, "NTPSynchronized=no", 5.0, "FAIL P1"),
        (None, None, 5.0, "WARN P1"),
        (None, None, 0.3, "WARN P2"),
        (None, None, 0.001, "PASS"),
        pytest.param(None, None, None, "UNKNOWN", id="W27: nobody tells"),
    ],
)
def test_clock(
    chronyc: str | None, timedatectl: str | None, offset_s: float | None, expected: str, tmp_path: Path
) -> None:
    machine = of("p5")
    del machine.commands["chronyc"]
    if chronyc is not None:
        machine.says("chronyc", chronyc)
    if timedatectl is not None:
        machine.says("timedatectl", timedatectl)
    assert worst(findings(machine, "node.clock", tmp_path, offset_s=offset_s)) == expected


@pytest.mark.parametrize(("offset_s", "expected"), [(None, "UNKNOWN"), (0.001, "PASS"), (5.0, "WARN P2")])
def test_a_clock_kept_by_ptp(offset_s: float | None, expected: str, tmp_path: Path) -> None:
    """phc2sys does not tell the kernel so."""
    machine = of("p5").process(80, "phc2sys").says("timedatectl", "NTPSynchronized=no")
    del machine.commands["chronyc"]
    assert worst(findings(machine, "node.clock", tmp_path, offset_s=offset_s)) == expected
