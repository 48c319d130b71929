"""Configurations as four releases print them, with each kind of site: exactly which lines and links come out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nccl_slurm.install.advice import before, lines
from nccl_slurm.install.layout import Layout
from nccl_slurm.install.site import File
from nccl_slurm.install.slurmconf import SlurmConfig, parse_config, parse_nodes
from nccl_slurm.install.wiring import Found, Link, Wiring, ours_in, plan

OURS = Layout()
HOOKS = OURS.hooks
RELEASES = ("22.05.8", "23.02.7", "24.11.5", "26.05.5")
OLD, NEW = RELEASES[:2], RELEASES[2:]
#: What every site of these tests has right already; a site overrides by key.
RIGHT = {
    "PrologFlags": "Alloc",
    "PrologEpilogTimeout": "60",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,gres/gpu",
    "AccountingStoreFlags": "job_comment",
    "GresTypes": "gpu",
    "SlurmUser": "slurm(64030)",
    "SlurmctldHost[0]": "ctl(10.0.0.1)",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
}
HOOK_KEYS = ("Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld")


def config_text(release: str, site: Mapping[str, str | list[str]]) -> str:
    """22.05 and 23.02 print one line a key and ``(null)`` for none; newer ones number entries and leave none out."""
    several = release in NEW
    found = ["Configuration data as of 2026-11-29T12:00:00", f"SLURM_VERSION           = {release}"]
    for key in dict.fromkeys([*HOOK_KEYS, *RIGHT, *site]):
        value = site.get(key, RIGHT.get(key, []))
        values = [value] if isinstance(value, str) else value
        if several and key in ("Prolog", "Epilog", "EpilogSlurmctld"):
            found += [f"{key}[{index}]               = {one}" for index, one in enumerate(values)]
        else:
            found.append(f"{key:<24}= {values[-1] if values else '(null)'}")
    return "\n".join([*found, "", "Slurmctld(primary) at ctl is UP"])


def wired(release: str, site: Mapping[str, str | list[str]], *files: tuple[str, File], systemd: bool = True) -> Wiring:
    matches: dict[str, tuple[File, ...]] = {}
    for pattern, file in files:
        matches[pattern] = (*matches.get(pattern, ()), file)
    return plan(parse_config(config_text(release, site)), Found(matches, systemd), OURS)


def shown(wiring: Wiring) -> list[str]:
    """Lines with where they go, as the admin reads them."""
    told = lines(wiring, SlurmConfig(), OURS)
    head = next((index for index, line in enumerate(told) if line.startswith("Lines for ")), None)
    return [] if head is None else [line.strip() for line in told[head + 1 : told.index("", head)]]


ALL_THERE: dict[str, str | list[str]] = {
    "Prolog": f"{HOOKS}/prolog.d/*",
    "Epilog": f"{HOOKS}/epilog.d/*",
    "TaskProlog": f"{HOOKS}/task_prolog",
    "EpilogSlurmctld": f"{HOOKS}/epilog_slurmctld",
}


@pytest.mark.parametrize("release", RELEASES)
def test_a_site_without_hooks(release: str) -> None:
    wiring = wired(release, {})
    assert shown(wiring) == [f"{key}={value}" for key, value in ALL_THERE.items()]
    assert not (wiring.links or wiring.capture_conf or wiring.refusals)
    assert wiring.restart == (("slurmctld",) if release in OLD else ())


@pytest.mark.parametrize("release", RELEASES)
def test_a_site_that_has_them_all(release: str) -> None:
    wiring = wired(release, ALL_THERE)
    assert wiring == Wiring(remarks=wiring.remarks)
    told = lines(wiring, SlurmConfig(), OURS)
    assert told[0] == "slurm.conf names all hooks already: nothing to add."
    assert "    restart slurmctld, then scontrol reconfigure: each slurmd keeps the lines until that" in told


@pytest.mark.parametrize("release", OLD)
@pytest.mark.parametrize("key", ["Prolog", "Epilog"])
def test_one_path_and_one_line_alone(release: str, key: str) -> None:
    low = key.lower()
    site = {**ALL_THERE, key: f"/etc/slurm/{low}.sh"}
    wiring = wired(release, site, (f"/etc/slurm/{low}.sh", File(f"/etc/slurm/{low}.sh")))
    assert shown(wiring) == [f"# in place of {key}=/etc/slurm/{low}.sh", f"{key}=/etc/nccl-slurm/{low}.d/*"]
    assert before(wiring, OURS) == [
        "On every node, as root:",
        f"    mkdir -p /etc/nccl-slurm/{low}.d",
        f"    ln -sfn /etc/slurm/{low}.sh /etc/nccl-slurm/{low}.d/50-site",
        f"    ln -sfn {HOOKS}/{low}.d/50-nccl-slurm /etc/nccl-slurm/{low}.d/90-nccl-slurm",
        "",
    ]
    assert wiring.restart == () and wiring.refusals == ()
    assert any("not measured" in remark for remark in wiring.remarks) == (release == "23.02.7")


@pytest.mark.parametrize("release", NEW)
@pytest.mark.parametrize("theirs", [["/etc/slurm/x.sh"], ["/etc/slurm/x.d/*"], ["/a", "/b/*"], ["only-a-name"]])
def test_a_second_line_where_several_run(release: str, theirs: list[str]) -> None:
    wiring = wired(release, {**ALL_THERE, "Epilog": theirs})
    assert shown(wiring) == ["# above your own Epilog=", f"Epilog={HOOKS}/epilog.d/*"]
    assert not (wiring.links or wiring.refusals or wiring.restart)


@pytest.mark.parametrize("release", OLD)
@pytest.mark.parametrize(
    ("names", "ours"),
    [
        (["10-a", "90-b"], "zz-nccl-slurm"),
        (["zz-site"], "zzz-nccl-slurm"),
        (["zzzz"], "zzzz-nccl-slurm"),
        ([], "zz-nccl-slurm"),
    ],
)
def test_a_folder_of_theirs_keeps_its_line(release: str, names: list[str], ours: str) -> None:
    pattern = "/etc/slurm/epilog.d/*"
    files = [(pattern, File(f"/etc/slurm/epilog.d/{name}")) for name in names]
    wiring = wired(release, {**ALL_THERE, "Epilog": pattern}, *files)
    assert wiring.links == (Link(f"/etc/slurm/epilog.d/{ours}", f"{HOOKS}/epilog.d/50-nccl-slurm"),)
    assert not (wiring.lines or wiring.refusals)
    assert sorted([*names, ours])[-1] == ours


@pytest.mark.parametrize("release", RELEASES)
def test_a_folder_in_which_ours_is_linked(release: str) -> None:
    pattern, ours = "/etc/slurm/epilog.d/*", f"{HOOKS}/epilog.d/50-nccl-slurm"
    link = File("/etc/slurm/epilog.d/zz-nccl-slurm", real=ours)
    wiring = wired(release, {**ALL_THERE, "Epilog": pattern}, (pattern, link))
    assert wiring.lines == () and wiring.links == (Link(link.path, ours),)


def test_a_folder_with_a_pattern_that_ours_would_not_match() -> None:
    wiring = wired("22.05.8", {**ALL_THERE, "Prolog": "/etc/slurm/prolog.d/[0-9]*.sh"})
    assert not (wiring.lines or wiring.links)
    assert "would not match" in wiring.refusals[0]


def test_a_script_that_looks_at_its_own_name_gets_a_word() -> None:
    path = "/etc/slurm/prolog.sh"
    wiring = wired("22.05.8", {**ALL_THERE, "Prolog": path}, (path, File(path, own_path=True)))
    assert any(told.startswith(f"{path} looks at its own name") for told in wiring.remarks)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("key", "variable", "ours"),
    [
        ("TaskProlog", "NCCL_SLURM_SITE_TASK_PROLOG", "task_prolog"),
        ("EpilogSlurmctld", "NCCL_SLURM_SITE_EPILOG_SLURMCTLD", "epilog_slurmctld"),
    ],
)
def test_one_path_is_chained(release: str, key: str, variable: str, ours: str) -> None:
    wiring = wired(release, {**ALL_THERE, key: "/etc/slurm/own hook"})
    assert shown(wiring) == [f"# in place of {key}=/etc/slurm/own hook", f"{key}={HOOKS}/{ours}"]
    assert wiring.capture_conf == ((variable, "/etc/slurm/own hook"),)
    assert f"    {variable}='/etc/slurm/own hook'" in before(wiring, OURS)
    assert wiring.restart == () and wiring.refusals == ()


@pytest.mark.parametrize("release", RELEASES)
def test_a_task_prolog_without_a_path_is_refused(release: str) -> None:
    assert "no full path" in wired(release, {**ALL_THERE, "TaskProlog": "task.sh"}).refusals[0]


@pytest.mark.parametrize("release", OLD)
def test_a_prolog_in_the_configless_cache_is_refused(release: str) -> None:
    assert "configless cache" in wired(release, {**ALL_THERE, "Prolog": "prolog.sh"}).refusals[0]


@pytest.mark.parametrize("release", RELEASES)
def test_a_folder_without_a_star_is_refused(release: str) -> None:
    wiring = wired(release, {**ALL_THERE, "Epilog": "/e.d"}, ("/e.d", File("/e.d", kind="folder")))
    assert wiring.refusals == ("Epilog=/e.d is a folder: Slurm can't run it; /e.d/* may be meant",)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("(null)", ["PrologFlags=Alloc"]),
        ("NoHold", ["# in place of PrologFlags=NoHold", "PrologFlags=Alloc,NoHold"]),
        ("Serial", ["# in place of PrologFlags=Serial", "PrologFlags=Alloc,Serial"]),
        ("Alloc,NoHold", []),
        ("Contain", []),
        ("Alloc,Contain", []),
        ("X11", []),
    ],
)
def test_prolog_flags_are_added_to(release: str, flags: str, told: list[str]) -> None:
    wiring = wired(release, {**ALL_THERE, "PrologFlags": flags})
    assert shown(wiring) == told
    assert any("236 ms" in remark for remark in wiring.remarks) == bool(told)
    assert any("one prolog or epilog at a time" in remark for remark in wiring.remarks) == (flags == "Serial")


@pytest.mark.parametrize("release", NEW)
def test_hooks_inside_the_job_need_systemd(release: str) -> None:
    site = {**ALL_THERE, "PrologFlags": "Alloc,Contain,RunInJob"}
    assert wired(release, site, systemd=True).refusals == ()
    assert wired(release, site, systemd=False).refusals[0].startswith("PrologFlags=RunInJob without systemd-run")


@pytest.mark.parametrize(
    ("key", "value", "refused"),
    [
        ("PrologEpilogTimeout", "14", True),
        ("PrologEpilogTimeout", "5 sec", True),
        ("PrologEpilogTimeout", "15", False),
        ("PrologEpilogTimeout", "65534", False),
        ("EpilogTimeout", "10", True),
        ("PrologTimeout", "10", True),
    ],
)
def test_a_limit_shorter_than_the_hooks_own_is_refused(key: str, value: str, refused: bool) -> None:
    wiring = wired("26.05.5", {**ALL_THERE, key: value})
    assert bool(wiring.refusals) == refused
    assert not refused or wiring.refusals[0].startswith(f"{key}={value.split()[0]} is too short")
    assert any("COMPLETING for ever" in remark for remark in wiring.remarks) == (value == "65534")


@pytest.mark.parametrize("release", RELEASES)
def test_accounting_lists_are_added_to(release: str) -> None:
    site = {
        **ALL_THERE,
        "AccountingStorageTRES": "cpu,mem,energy,node,billing,fs/disk,vmem,pages,license/x",
        "AccountingStoreFlags": "job_script",
    }
    wiring = wired(release, site)
    assert shown(wiring) == [
        "# in place of AccountingStorageTRES=license/x",
        "AccountingStorageTRES=license/x,gres/gpu",
        "# in place of AccountingStoreFlags=job_script",
        "AccountingStoreFlags=job_script,job_comment",
    ]
    assert wiring.restart == ("slurmctld",)


def test_without_gpus_in_slurm_none_are_counted() -> None:
    """slurmctld would not know what gres/gpu is."""
    site = {**ALL_THERE, "AccountingStorageTRES": "cpu,mem", "GresTypes": "(null)"}
    assert wired("22.05.8", site).lines == ()


def test_without_slurmdbd_accounting_is_left_alone() -> None:
    site = {**ALL_THERE, "AccountingStorageType": "(null)", "AccountingStoreFlags": "(null)"}
    wiring = wired("22.05.8", site)
    assert wiring.lines == () and wiring.remarks[-1].startswith("no slurmdbd")


@pytest.mark.parametrize(
    ("restart", "told"),
    [
        ((), "Then: scontrol reconfigure"),
        (("slurmctld",), "Then: restart slurmctld (running jobs go on), and scontrol reconfigure"),
    ],
)
def test_which_daemons_have_to_know(restart: tuple[str, ...], told: str) -> None:
    wiring = Wiring(lines=wired("22.05.8", {}).lines, restart=restart)
    assert told in lines(wiring, SlurmConfig(), OURS)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("site", [{}, {"Epilog": "/etc/slurm/epilog.sh"}, {"EpilogSlurmctld": "/etc/slurm/end.sh"}])
def test_the_undo_always_reaches_each_slurmd_before_files_go(release: str, site: dict[str, str]) -> None:
    layout = Layout("/a", "/b", "/c")
    wiring = wired(release, site)
    told = lines(wiring, SlurmConfig(), layout)
    undo = told[next(number for number, line in enumerate(told) if line.startswith("To undo it")) :]
    restart = undo.index("    restart slurmctld, then scontrol reconfigure: each slurmd keeps the lines until that")
    last = "    on every host: ./install.sh --uninstall --prefix /a --hooks /b --conf /c --slurmd-reconfigured"
    assert undo[-1] == last and restart < len(undo) - 1
    replaced = [f"        {line.key}={line.replaces}" for line in wiring.lines if line.replaces]
    assert [line for line in replaced if line not in undo[:restart]] == []
    assert len(replaced) == (0 if not site or ("Epilog" in site and release not in OLD) else 1)


def test_configless_nodes_get_their_lines_from_the_controller() -> None:
    config = parse_config(config_text("24.11.5", {"SlurmctldParameters": "enable_configless,idle_on_node_suspend"}))
    assert lines(wired("24.11.5", {}), config, OURS)[0].startswith(
        "Lines for /etc/slurm/slurm.conf, on the controller alone"
    )


def test_what_a_config_says_besides_hooks() -> None:
    config = parse_config(config_text("26.05.5", {"SlurmctldHost[1]": "backup(10.0.0.2)"}))
    assert (config.release, config.user, config.controllers) == ((26, 5), "slurm", ("ctl", "backup"))
    assert parse_config("") == SlurmConfig()


def test_nodes_as_slurm_lists_them() -> None:
    text = "NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.3 State=IDLE+DRAIN Partitions=a,b Reason=State=IDLE by hand\n\n"
    (node,) = parse_nodes(text + "Slurmctld says hello\n")
    assert (node.name, node.address, node.partitions) == ("n1", "10.0.0.3", ("a", "b"))
    assert node.state != "IDLE"


# ours_in


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_in_force_is_found(release: str) -> None:
    assert len(ours_in(config_text(release, ALL_THERE), OURS)) == 4
    assert ours_in(config_text(release, {"Prolog": "/etc/slurm/prolog.sh"}), OURS) == []


def test_a_slurm_conf_is_read_too() -> None:
    text = f'# Epilog={HOOKS}/epilog.d/*\nepilog = "{HOOKS}/epilog.d/*"  # ours\nTaskEpilog=/opt/nccl-slurm/slurmx/t\n'
    assert ours_in(text, OURS) == [f'epilog = "{HOOKS}/epilog.d/*"  # ours']


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("KillWait=2 Epilog={}/epilog.d/*\n", 1),
        ("Epilog=/a/b TaskProlog={}/task_prolog # and more\n", 1),
        ("Epilog=\\\n{}/epilog.d/*\n", 1),
        ("Epilog \\\n = \\  \n{}/epilog.d/*", 1),
        ("Epilog={}/epilog.d/*\\\n", 1),
        ("# a comment goes no further \\\nEpilog={}/epilog.d/*\n", 1),
        ("EPILOG = '{}/epilog.d/*'\nprolog=\"{}/prolog.d/*\" Epilog=/x\n", 2),
        ("Epilog+={}/epilog.d/*\n", 1),
        ("#Epilog={}/epilog.d/*\nKillWait=2 # Epilog={}/epilog.d/*\n", 0),
        ("SuspendProgram={}/task_prolog MyEpilog={}/epilog.d/*\n", 0),
    ],
)
def test_pairs_and_lines_as_slurm_reads_them(text: str, found: int) -> None:
    assert len(ours_in(text.replace("{}", HOOKS), OURS)) == found


def test_a_link_to_ours_is_found_in_a_folder_of_the_site(tmp_path: Path) -> None:
    layout = Layout(str(tmp_path), str(tmp_path / "slurm"), str(tmp_path / "etc"))
    theirs = tmp_path / "site.d"
    for folder in (theirs, tmp_path / "slurm" / "epilog.d"):
        folder.mkdir(parents=True)
    Path(layout.epilog).write_text("#!/bin/sh\n")
    assert ours_in(f"Epilog={theirs}/*", layout) == []
    (theirs / "zz").symlink_to(layout.epilog)
    assert ours_in(f"Epilog={theirs}/*", layout) == [f"Epilog={theirs}/*"]
    assert ours_in(f"Epilog={layout.conf}/epilog.d/*", layout) != []
