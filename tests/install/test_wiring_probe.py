"""The probe on a real tree, as root and in dash, and what its answer proves; each fault is made for real."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nccl_slurm.install.captureconf import known_keys, unmeant
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.proof import Wanted, doubts, patterns, unproven
from nccl_slurm.install.reach import Probe, Reached, Slurm, ask_here, by_ssh, ssh_command
from nccl_slurm.install.reach import _groups as groups
from nccl_slurm.install.site import Answer, File, read_answers
from nccl_slurm.install.slurmconf import Node, SlurmConfig
from nccl_slurm.install.wiring import Link, Wiring

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An installation that ordinary users reach: pytest's own folders are closed to them."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    folder = Path("/var/tmp") / f"nccl-slurm-probe-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "slurm", folder / "hooks")
    shutil.copytree(ROOT / "nccl_slurm", folder / "nccl_slurm", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("etc", "spool", "events", "site.d", "shared"):
        (folder / name).mkdir()
    for name in ("tmp", "new"):
        (folder / "shared" / name).mkdir(mode=0o700)
    os.chown(folder / "events", NOBODY, NOBODY)
    for path in [folder, *folder.rglob("*")]:
        if path.stat().st_uid == 0 and path.parent.name != "shared":
            path.chmod(path.stat().st_mode & ~0o022 | 0o444 | (0o111 if path.is_dir() else 0))
    for path in [folder, *(folder / "hooks").rglob("*"), *(folder / "nccl_slurm").rglob("*")]:
        os.chown(path, 0, 0)
    (folder / "etc" / "capture.conf").write_text(conf_of(folder))
    yield folder
    shutil.rmtree(folder)


def conf_of(place: Path, **more: str) -> str:
    values = {"PREFIX": place, "HOOKS": place / "hooks", "SPOOL": place / "spool", "EVENTS": place / "events", **more}
    return "".join(f"NCCL_SLURM_{key}={value}\n" for key, value in values.items())


def layout_of(place: Path) -> Layout:
    return Layout(str(place), str(place / "hooks"), str(place / "etc"))


def asked(place: Path, config: SlurmConfig, role: str = "node") -> Answer:
    of = layout_of(place)
    probe = Probe(of.capture_conf, of.hooks, "nobody", patterns(of, config, [f"{place}/joint.d"]))
    if role == "controller":
        return ask_here(probe)
    command = ["/bin/sh", *probe.arguments("node")]
    done = subprocess.run(
        command, input=probe.script(), capture_output=True, text=True, env={"SLURMD_NODENAME": "n1", "PATH": "/bin"}
    )
    return read_answers("a banner\n" + done.stdout, probe.nonce)["n1"]


def faults(
    place: Path, config: SlurmConfig | None = None, wiring: Wiring | None = None, role: str = "node"
) -> list[str]:
    of, config = layout_of(place), config or SlurmConfig(user="nobody")
    wanted = Wanted(of, config, wiring or Wiring(), {}, known_keys(of))
    return unproven(asked(place, config, role), wanted, controller=role == "controller")


def test_a_whole_installation_is_proven(place: Path) -> None:
    assert faults(place) == []
    assert faults(place, role="controller") == []
    assert list((place / "spool").iterdir()) == []


def remove(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


def change(name: str, mode: int) -> Callable[[Path], None]:
    return lambda place: (place / name).chmod(mode)


def give(name: str, uid: int = NOBODY) -> Callable[[Path], None]:
    return lambda place: os.chown(place / name, uid, uid)


def configure(**more: str) -> Callable[[Path], None]:
    return lambda place: void((place / "etc" / "capture.conf").write_text(conf_of(place, **more)))


def replace(name: str, text: str) -> Callable[[Path], None]:
    return lambda place: void((place / name).write_text(text))


def void(_: object) -> None:
    return None


def nothing(_: Path) -> None:
    """An earlier one makes this fault too."""


#: Faults that don't hide one another, made together: what makes them, and what is said of each.
FAULTS: dict[str, list[tuple[Callable[[Path], None], str]]] = {
    "absent": [
        (remove("hooks/task_prolog"), "/hooks/task_prolog is missing"),
        (remove("hooks/prolog.d/50-nccl-slurm"), "/hooks/prolog.d/50-nccl-slurm is missing"),
        (change("hooks/epilog.d/50-nccl-slurm", 0o644), "50-nccl-slurm is not executable"),
        (remove("hooks/nccl-slurm-node"), "nccl-slurm-node is missing"),
        (
            configure(
                HOOKS="/nonexistent",
                SPOOOL="/x",
                RETAIN_HOURS="many",
                SPOOL="/nonexistent/spool",
                PYTHON="/nonexistent/python3",
                SITE_TASK_PROLOG="/nonexistent/t",
                SHARED="/nonexistent",
            ),
            "NCCL_SLURM_HOOKS is /nonexistent",
        ),
        (nothing, "nobody reads NCCL_SLURM_SPOOOL; NCCL_SLURM_SPOOL may be meant"),
        (nothing, "NCCL_SLURM_RETAIN_HOURS=many: give a number"),
        (nothing, "/nonexistent/spool: the spool can't be written"),
        (nothing, "/nonexistent/python3 can't run the code"),
        (nothing, "/nonexistent/t is missing"),
        (nothing, "/nonexistent: uid 0 can't write tmp and new"),
        (replace("hooks/epilog.d/README", ""), "/epilog.d/README lies in our folder and can't be run: Slurm drains"),
        (
            lambda place: (place / "hooks/prolog.d/x").symlink_to("/nonexistent"),
            "/prolog.d/x lies in our folder and can't",
        ),
        (lambda place: (place / "hooks/prolog.d/more").mkdir(), "/prolog.d/more lies in our folder and can't be run"),
    ],
    "of a user": [
        (give("hooks/task_prolog"), "/hooks/task_prolog: somebody besides root can change"),
        (give("hooks/epilog.d"), "/hooks/epilog.d/50-nccl-slurm: somebody besides root can change"),
        (change("hooks/prolog.d", 0o777), "/hooks/prolog.d/50-nccl-slurm: somebody besides root can change"),
        (give("nccl_slurm/capture/main.py"), "main.py: somebody besides root can change"),
        (give("etc/capture.conf"), "capture.conf: somebody besides root can change"),
        (replace("hooks/prolog.d/50-nccl-slurm", "#!/bin/sh\nexit 3\n"), "prolog does not end with 0"),
        (replace("hooks/prolog.d/more", "#!/bin/sh\n"), "prolog.d/more lies in our folder and can't be run"),
        (give("hooks/prolog.d/more"), "/prolog.d/more: somebody besides root can change"),
    ],
    "closed": [
        (change("hooks", 0o700), "an ordinary user can't run it"),
        (change("etc/capture.conf", 0o600), "an ordinary user can't read it"),
    ],
    "no capture.conf": [(remove("etc/capture.conf"), "capture.conf is missing")],
    "no sh": [(replace("etc/capture.conf", "if\n"), "an ordinary user can't read it, or it is no sh")],
    "no code": [(configure(PREFIX="/nonexistent"), "can't run the code in /nonexistent")],
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_named_with_its_path(place: Path, name: str) -> None:
    for make, _ in FAULTS[name]:
        make(place)
    told = faults(place)
    assert [wanted for _, wanted in FAULTS[name] if not any(wanted in fault for fault in told)] == [], told


def test_a_fault_of_the_controller(place: Path) -> None:
    give("events", 0)(place)
    change("events", 0o755)(place)
    change("hooks/epilog_slurmctld", 0o700)(place)
    told = faults(place, role="controller")
    assert any("nobody can't run it" in fault for fault in told)
    assert any("nobody can't write there" in fault for fault in told)


def test_the_shared_folder_is_written_as_the_shipping_user(place: Path) -> None:
    shared = str(place / "shared")
    configure(SHARED=shared)(place)
    assert faults(place) == []
    configure(SHARED=shared, SHIP_UID=str(NOBODY))(place)
    assert faults(place) == [f"{shared}: uid {NOBODY} can't write tmp and new there"]
    for name in ("tmp", "new"):
        give(f"shared/{name}")(place)
    assert faults(place) == []
    change("shared/new", 0o755)(place)
    assert [fault.partition(" (")[0] for fault in faults(place)] == [
        f"{shared}: tmp and new have to be {NOBODY}'s, mode 0700"
    ]
    assert list((place / "shared" / "tmp").iterdir()) == []


def test_a_task_prolog_that_would_start_itself(place: Path) -> None:
    configure(SITE_TASK_PROLOG=f"{place}/hooks/task_prolog")(place)
    assert any("would start itself for ever" in fault for fault in faults(place))


def test_scripts_of_the_site(place: Path) -> None:
    pattern = f"{place}/site.d/*"
    config = SlurmConfig(user="nobody", epilog=(pattern,), task_prolog=("/nonexistent/task",))
    assert faults(place, config) == [
        f"{pattern}, which slurm.conf names, is missing",
        "/nonexistent/task is missing",
    ]
    for name, mode in (("10-good", 0o755), ("20-good~", 0o755), ("30-not", 0o644)):
        (place / "site.d" / name).write_text('#!/bin/sh\n. "$(dirname "$0")/lib"\n')
        (place / "site.d" / name).chmod(mode)
    answer = asked(place, config)
    assert [(one.path[-7:], one.runs, one.own_path) for one in answer.matches(pattern)] == [
        ("10-good", True, True),
        ("0-good~", True, True),
        ("/30-not", False, True),
    ]
    assert f"{place}/site.d/30-not can't be run: Slurm drains the node" in faults(place, config)
    wanted = Wanted(layout_of(place), config, Wiring(), {}, frozenset())
    assert f"{place}/site.d/20-good~ looks like a backup: Slurm runs it too" in doubts(answer, wanted)


def test_another_file_in_our_own_folder(place: Path) -> None:
    shutil.copy(place / "hooks/epilog.d/50-nccl-slurm", place / "hooks/epilog.d/50-nccl-slurm~")
    of = layout_of(place)
    told = doubts(asked(place, SlurmConfig()), Wanted(of, SlurmConfig(), Wiring(), {}, frozenset()))
    assert f"{of.epilog}~ lies in our folder: Slurm runs it too" in told


def test_links_and_values_that_come_before_the_lines(place: Path) -> None:
    of, theirs = layout_of(place), place / "site.d" / "own"
    wiring = Wiring(
        links=(Link(f"{place}/joint.d/50-site", str(theirs)), Link(f"{place}/joint.d/90-nccl-slurm", of.epilog)),
        capture_conf=(("NCCL_SLURM_SITE_TASK_PROLOG", str(theirs)),),
    )
    config = SlurmConfig(user="nobody", epilog=(str(theirs),))
    theirs.write_text("#!/bin/sh\n")
    theirs.chmod(0o755)
    assert faults(place, config, wiring) == [
        f"{place}/joint.d/50-site is no link to {theirs} yet",
        f"{place}/joint.d/90-nccl-slurm is no link to {of.epilog} yet",
        f"{of.capture_conf}: NCCL_SLURM_SITE_TASK_PROLOG is not {theirs} yet",
    ]
    (place / "joint.d").mkdir()
    for link in wiring.links:
        Path(link.path).symlink_to(link.target)
    configure(SITE_TASK_PROLOG=str(theirs))(place)
    assert faults(place, config, wiring) == []
    (place / "joint.d" / "README").touch(0o644)
    stuck = f"{place}/joint.d/README lies in our folder and can't be run: Slurm drains the node"
    assert faults(place, config, wiring) == [stuck]
    (place / "joint.d").chmod(0o777)
    assert f"{place}/joint.d/90-nccl-slurm: somebody besides root can change {place}/joint.d" in faults(
        place, config, wiring
    )


def test_a_file_that_differs_from_the_others(place: Path) -> None:
    of = layout_of(place)
    wanted = Wanted(of, SlurmConfig(), Wiring(), {of.task_prolog: "0" * 64}, known_keys(of))
    told = unproven(asked(place, SlurmConfig()), wanted, controller=False)
    assert told == [f"{of.task_prolog} differs from the one on most hosts"]


def test_a_hostile_name_stays_one_value(place: Path) -> None:
    (place / "site.d" / "x\nfake\tend\x1b[2J").write_text("")
    pattern = f"{place}/site.d/*"
    (one,) = asked(place, SlurmConfig(epilog=(pattern,))).matches(pattern)
    assert one.path == f"{place}/site.d/x?fake?end?[2J" and not one.runs


def test_the_configuration_of_a_user_is_not_run_as_root(place: Path) -> None:
    replace("etc/capture.conf", f"id -u >{place}/shared/who\n: >{place}/spool/who\n")(place)
    give("etc/capture.conf")(place)
    faults(place)
    assert not (place / "shared" / "who").exists() and not (place / "spool" / "who").exists()


# Answers


def test_an_answer_that_was_cut_proves_nothing() -> None:
    answer = read_answers("N\tn1\tbegin\tnode\nN\tn1\tspool\tyes\t/s\text4\n", "N")["n1"]
    wanted = Wanted(Layout(), SlurmConfig(), Wiring(), {}, frozenset())
    assert unproven(answer, wanted, controller=False) == ["gave no whole answer (it stopped after 'spool')"]


@pytest.mark.parametrize(
    ("version", "patterns", "told"),
    [
        ("3.11", "", None),
        ("3.9", "/opt/rows.json", None),
        ("3.9", "", "NCCL_SLURM_PATTERNS has to name compiled rows"),
        ("3.9", "/elsewhere.json", "NCCL_SLURM_PATTERNS has to name compiled rows"),
        ("3.6", "/opt/rows.json", "3.8 or newer is needed"),
        ("No module named 'nccl_slurm'", "/opt/rows.json", "No module named 'nccl_slurm'"),
    ],
)
def test_pythons_of_nodes(version: str, patterns: str, told: str | None) -> None:
    answer = Answer("n1", complete=True, conf={"NCCL_SLURM_PATTERNS": patterns})
    answer.files["/opt/rows.json"] = (File("/opt/rows.json", executable=False),)
    answer.said["python"] = ("/usr/bin/python3", "/opt/nccl-slurm", version)
    found = unproven(answer, Wanted(Layout(), SlurmConfig(), Wiring(), {}, frozenset()), controller=False)
    mine = [fault for fault in found if fault.startswith("/usr/bin/python3")]
    assert mine == [] if told is None else told in mine[0]


def test_lines_of_somebody_else_are_no_answer() -> None:
    assert read_answers("n1\tend\nOTHER\tn1\tend\nN\tn1\n\n", "N") == {}


def test_a_network_file_system_below_the_hooks_is_named() -> None:
    of = Layout()
    files: dict[str, tuple[File, ...]] = {of.task_prolog: (File(of.task_prolog, filesystem="nfs4"),)}
    answer = Answer("n1", files=files, complete=True)
    told = unproven(answer, Wanted(of, SlurmConfig(), Wiring(), {}, frozenset()), controller=False)
    assert f"{of.task_prolog} is on a network file system (nfs4): when that hangs, nodes drain" in told


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("NCCL_SLURM_FR_DUMP", "yes", "give one of on, off"),
        ("NCCL_SLURM_NCCL_DEBUG", "ATTN", "give one of VERSION"),
        ("NCCL_SLURM_SPOOL", "spool", "give a full path"),
        ("NCCL_SLURM_SHIP_UID", "slurm", "give a number"),
        ("NCCL_SLURM_PREFIXX", "/x", "NCCL_SLURM_PREFIX may be meant"),
        ("NCCL_SLURM_QQQQQQQ", "", "nobody reads NCCL_SLURM_QQQQQQQ"),
    ],
)
def test_values_that_can_not_be_meant(key: str, value: str, told: str) -> None:
    known = {"NCCL_SLURM_FR_DUMP", "NCCL_SLURM_NCCL_DEBUG", "NCCL_SLURM_SPOOL", "NCCL_SLURM_SHIP_UID"}
    (one,) = unmeant({key: value}, known | {"NCCL_SLURM_PREFIX"})
    assert told in one


def test_every_key_of_the_shipped_file_is_read_by_somebody() -> None:
    text = (ROOT / "etc" / "capture.conf").read_text()
    keys = {line.lstrip("#").partition("=")[0] for line in text.splitlines() if line.startswith("#NCCL_SLURM_")}
    assert keys <= known_keys(Layout(str(ROOT), str(ROOT / "slurm")))


# Which nodes are asked, and how


def test_only_free_nodes_get_a_job() -> None:
    states = ["IDLE", "MIXED", "IDLE+CLOUD", "IDLE+COMPLETING", "IDLE*", "DOWN", "IDLE+DRAIN", "ALLOCATED", "IDLE~"]
    nodes = [Node(f"n{index}", "", state, ("closed", "open")) for index, state in enumerate(states)]
    reached = Reached()
    found = groups([*nodes, Node("lone", "", "IDLE", ("closed",))], ["other", "open"], reached)
    assert found == {"open": ["n0", "n1", "n2", "n3"]}
    assert reached.silent["n6"] == "is IDLE+DRAIN"
    assert set(reached.silent) == {"n4", "n5", "n6", "n7", "n8", "lone"}


def test_an_srun_inside_a_job_is_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_ACCOUNT", "ops")
    environment = Slurm("/usr/bin", "/etc/slurm/slurm.conf").environment()
    assert "SLURM_JOB_ID" not in environment and environment["SLURM_ACCOUNT"] == "ops"


def test_by_ssh_each_node_answers_for_itself(place: Path) -> None:
    """The command is the real one but for ssh itself: the remote words go through a shell, as sshd does it."""
    of = layout_of(place)
    probe = Probe(of.capture_conf, of.hooks, "nobody", [of.prolog_glob, "/it's/*"])

    def here(probe: Probe, node: Node) -> list[str]:
        *_, remote = ssh_command(probe, node)
        return ["/bin/sh", "-c", remote] if node.name != "n2" else ["/bin/sh", "-c", "echo no route >&2; exit 255"]

    reached = by_ssh(probe, [Node(name, name, "ALLOCATED", ()) for name in ("n1", "n2")], here)
    assert reached.answers["n1"].complete and len(reached.answers["n1"].matches(of.prolog_glob)) == 1
    assert reached.silent == {"n2": "ssh: no route"}
