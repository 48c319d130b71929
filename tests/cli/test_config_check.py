"""``config check``: each thing that a site gets wrong, with key and remedy, status 2; and a site that is right."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from nccl_slurm.cli.main import main
from nccl_slurm.config import load
from nccl_slurm.config_check import COMMANDS, Finding, findings
from nccl_slurm.install.captureconf import KEYS
from nccl_slurm.install.settings import sh_keys

SLURM = """#!/bin/sh
echo 'PartitionName=gpu AllowGroups=ALL'
echo 'PartitionName=debug AllowGroups=ALL'
"""


class Site:
    """A folder with all that nccl-slurm.toml names, everything right."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for part in ("state", "shared", "rules.d", "events", "bin"):
            (folder / part).mkdir(mode=0o755)
        (folder / "events").chmod(0o700)
        for part in ("tmp", "new", "quarantine", "reports"):
            (folder / "shared" / part).mkdir(mode=0o711 if part == "reports" else 0o700)
        for name in COMMANDS:
            (folder / "bin" / name).write_text(SLURM)
            (folder / "bin" / name).chmod(0o755)
        self.capture_conf(f"NCCL_SLURM_SHARED={folder}/shared\nexport NCCL_SLURM_EVENTS='{folder}/events'  # x\n")
        self.toml()

    def capture_conf(self, text: str) -> None:
        (self.folder / "capture.conf").write_text(text)

    def toml(self, **sections: str) -> None:
        at = self.folder
        paths = f'state = "{at}/state"\nshared = "{at}/shared"\nevents = "{at}/events"\n'
        whole = {
            "paths": paths,
            "slurm": f'bin = "{at}/bin"\n',
            "rules": f'folder = "{at}/rules.d"\n',
            "scope.partitions": 'gpu = "all"\n',
            "daemon": f"record_uids = [{os.geteuid()}]\n",
        }
        for name, text in sections.items():
            name = name.replace("_", ".")
            whole[name] = whole.get(name, "") + text + "\n"
        (at / "site.toml").write_text("".join(f"[{name}]\n{text}" for name, text in whole.items()))

    def found(self) -> list[Finding]:
        return list(findings(load(str(self.folder / "site.toml"))))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_site_that_is_right(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.found() == []
    main(["config", "check", "--config", str(site.folder / "site.toml")])
    assert capsys.readouterr().out == f"{site.folder}/site.toml: good\n"


def remove(*parts: str) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        path = site.folder.joinpath(*parts)
        path.rmdir() if path.is_dir() else path.unlink()

    return change


def mode(number: int, *parts: str) -> Callable[[Site], None]:
    return lambda site: site.folder.joinpath(*parts).chmod(number)


def toml(**sections: str) -> Callable[[Site], None]:
    return lambda site: site.toml(**sections)


def write(name: str, text: str, number: int = 0o600) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        (site.folder / name).write_text(text.replace("SITE", str(site.folder)))
        (site.folder / name).chmod(number)

    return change


def password(number: int) -> Callable[[Site], None]:
    def change(site: Site) -> None:
        write("password", "x", number)(site)
        site.toml(store=f'password_file = "{site.folder}/password"')

    return change


CONTROLLERS = SLURM + "echo 'Slurmctld(primary) at a is UP'\necho 'Slurmctld(backup) at b is DOWN'\n"
OURS = "NCCL_SLURM_SHARED=SITE/shared\nNCCL_SLURM_EVENTS=SITE/events\n"
ERRORS: list[tuple[Callable[[Site], None], str]] = [
    (toml(store='url = "nonsense"'), "store.url: store.url is no database URL; give"),
    (toml(store='url = "sqlite://"'), "store.url: store.url names no file; give"),
    (toml(store='url = "postgresql://h/x"'), "postgresql is not supported; use SQLite or MariaDB"),
    (toml(store='url = "mysql+mysqldb://h/x"'), "PyMySQL is missing; install"),
    (
        write("bin/scontrol", CONTROLLERS, 0o755),
        "store.url: SQLite is a file of one host, and slurmctld may run on a, b:",
    ),
    (toml(store='password_file = "/nonexistent/p"'), "store.password_file: /nonexistent/p: No such file"),
    (password(0o644), "others can read it, or it is no file; chmod 0600"),
    (toml(daemon="settle_s = 900.5"), "daemon.settle_s: is longer than daemon.settle_cap_s (900.5 > 900)"),
    (remove("bin", "sacctmgr"), "has no sacctmgr; set it to the folder of scontrol"),
    (toml(slurm='conf = "/nonexistent/slurm.conf"'), "slurm.conf: /nonexistent/slurm.conf: missing or not readable"),
    (remove("shared", "new"), "shared/new: No such file or directory; make it (0700)"),
    (mode(0o777, "shared", "new"), "shared/new: no folder of mode 0700 (0777); chmod 0700"),
    (mode(0o700, "shared", "reports"), "shared/reports: no folder of mode 0711 (0700); chmod 0711"),
    (remove("events"), "paths.events: "),
    (mode(0o722, "events"), "no folder of mode 0700 (0722)"),
    (toml(access='admin_group = "no-such-group"'), "access.admin_group: no group 'no-such-group' here; make it"),
    (write("rules.d/x.toml", "[[row]]\nid = 'x'\n"), "rules.d/x.toml: pattern row 'x'"),
    (write("capture.conf", "NCCL_SLURM_EVENTS=SITE/events\n"), "but NCCL_SLURM_SHARED in"),
    (write("capture.conf", OURS + "NCCL_SLURM_EVENTS=/elsewhere\n"), "but NCCL_SLURM_EVENTS in"),
    (write("capture.conf", OURS + "NCCL_SLURM_SHIP_UID=77\n"), "daemon.record_uids: lacks 77"),
    (write("capture.conf", OURS + "NCCL_SLURM_SPOOOL=/x\n"), "nobody reads NCCL_SLURM_SPOOOL; NCCL_SLURM_SPOOL may be"),
    (write("capture.conf", OURS + "NCCL_SLURM_QQQQQQQ=1\n"), "nobody reads NCCL_SLURM_QQQQQQQ; leave it out"),
    (write("capture.conf", OURS + "NCCL_SLURM_FR_DUMP=yes\n"), "NCCL_SLURM_FR_DUMP=yes: give one of on, off"),
    (write("capture.conf", OURS + "NCCL_SLURM_RETAIN_HOURS=3d\n"), "NCCL_SLURM_RETAIN_HOURS=3d: give a number"),
    (write("capture.conf", OURS + "NCCL_SLURM_WORKER_LIMIT_S=0\n"), "ends the worker at once; give a number above 0"),
    (write("capture.conf", OURS + "NCCL_SLURM_SPOOL=spool\n"), "NCCL_SLURM_SPOOL=spool: give a full path"),
    (write("capture.conf", OURS + "if true; then\n"), "capture.conf: sh can't read it: "),
    (toml(scope_partitions='gqu = "none"'), "scope.partitions.gqu: Slurm has no such partition; it has debug, gpu"),
]


@pytest.mark.parametrize(("change", "said"), ERRORS, ids=[said[:40] for _, said in ERRORS])
def test_what_is_wrong_is_said_and_is_an_error(
    site: Site, change: Callable[[Site], None], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(site)
    with pytest.raises(SystemExit) as left:
        main(["config", "check", "--config", str(site.folder / "site.toml")])
    printed = capsys.readouterr()
    assert left.value.code == 2
    assert [line for line in printed.out.splitlines() if said in line and line.startswith("error: ")]
    assert "1 error; see the lines above" in printed.err


def test_nothing_of_capture_conf_is_run(site: Site) -> None:
    """It may be anybody's, and the one who checks root."""
    made = site.folder / "made"
    write("capture.conf", f"{OURS}touch {made}\nNCCL_SLURM_PYTHON=$(touch {made}; echo python3)\n")(site)
    assert site.found() == [] and not made.exists()


def test_every_key_of_the_shipped_file_is_known() -> None:
    shipped = (Path(__file__).parents[2] / "etc" / "capture.conf").read_text()
    assert sh_keys(shipped) == KEYS


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a folder away")
def test_a_folder_of_somebody_else(site: Site) -> None:
    os.chown(site.folder / "shared" / "new", 65534, -1)
    (found,) = site.found()
    assert found.text.startswith(f"paths.shared: {site.folder}/shared/new: belongs to uid 65534; chown it to root")


def login_node(site: Site) -> None:
    for part in ("state", "events"):
        (site.folder / part).rmdir()
    (site.folder / "capture.conf").unlink()


def slurm_away(site: Site) -> None:
    (site.folder / "bin" / "scontrol").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")


WARNINGS: list[tuple[Callable[[Site], None], list[str]]] = [
    (login_node, ["paths.events: ", "capture.conf: "]),
    (slurm_away, ["scope.partitions: not compared with Slurm's: "]),
    (write("capture.conf", OURS + "NCCL_SLURM_SHARED=$HOME/x\n"), []),
]


@pytest.mark.parametrize(("change", "said"), WARNINGS)
def test_what_can_not_be_seen_from_here_is_a_warning(
    site: Site, change: Callable[[Site], None], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    change(site)
    main(["config", "check", "--config", str(site.folder / "site.toml")])
    *lines, last = capsys.readouterr().out.splitlines()
    assert last.endswith(": good")
    assert len(lines) == len(said)
    for line, words in zip(lines, said, strict=True):
        assert line.startswith(f"warning: {site.folder}/site.toml: {words}")


def test_what_fetching_by_ssh_needs(site: Site) -> None:
    pytest.importorskip("paramiko", reason="not installed: paramiko (the extra ssh)")
    key, hosts = site.folder / "key", site.folder / "known_hosts"
    site.toml(ssh=f'user = "fetcher"\nkey_file = "{key}"\nknown_hosts = "{hosts}"')
    told = [found.text for found in site.found()]
    assert any(f"ssh.key_file: {key}: No such file or directory; make one: ssh-keygen" in text for text in told)
    assert any("ssh.user: set, but" in text and "NCCL_SLURM_OUTBOX_GROUP" in text for text in told)
    key.touch(mode=0o600)
    assert any(f"ssh.known_hosts: {hosts}: missing" in found.text for found in site.found())
    hosts.touch()
    site.capture_conf(
        f"NCCL_SLURM_SHARED={site.folder}/shared\nNCCL_SLURM_EVENTS={site.folder}/events\nNCCL_SLURM_OUTBOX_GROUP=root\n"
    )
    assert [found.text for found in site.found()] == []
