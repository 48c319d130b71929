"""Records fetched from real sshds: right and wrong keys, hosts that are unknown, that hang, transfers that are cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from nccl_slurm.capture import outbox
from nccl_slurm.collect.fetch import Landing, Visit, visit
from nccl_slurm.collect.shared import Inbox
from nccl_slurm.collect.ssh import Target, Visitor
from nccl_slurm.config import Ssh
from nccl_slurm.errors import ConfigError, RemoteError
from tests.cluster.processes import wait_until
from tests.cluster.scratch import ensure_users
from tests.collect.sshd import Proxy, Sshd, keys, running, skip_reason
from tests.collect.test_shared import record

pytest.importorskip("paramiko", reason="not installed: paramiko (the extra ssh)")
pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))

PACKAGE = Path(__file__).resolve().parents[2] / "nccl_slurm"
#: The system's, which all users can run.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
HERE = "127.0.23.1"


class Site:
    """One sshd that stands for nodes; the spool of each has the name of its address."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.folder = folder
        self.key = keys(folder / "key")
        for part in ("__init__.py", "clock.py", "errors.py", "model.py", "capture", "parse"):  # where users reach it
            source, target = PACKAGE / part, folder / "code" / "nccl_slurm" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)
        self.answer = (
            f"exec env NCCL_SLURM_SPOOL={folder}/spool/$3 {PYTHON} -I -S {folder}/code/nccl_slurm/capture/main.py"
        )
        self.serve = folder / "serve"
        self.serves(f"{self.answer} serve")
        self.landing = Landing(str(folder / "fetched"))
        self.landing.prepare()
        self.sshd: Sshd | None = None

    def serves(self, line: str) -> None:
        """The forced command: ``$3`` is the address that was connected to."""
        self.serve.write_text(f"#!/bin/sh\nset -- $SSH_CONNECTION\n{line}\n")
        self.serve.chmod(0o755)

    def offers(self, name: str, content: str | None = None, address: str = HERE, gid: int = 0) -> bytes:
        job, _, rest = name.partition(".")
        node = rest.partition(".")[2].removesuffix(".json")
        path = self.folder / "spool" / address / "outbox" / name
        path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        path.write_text(content if content is not None else json.dumps(record(job_id=int(job), node=node)))
        for one, mode in ((path.parent, 0o750), (path, 0o640)):
            os.chown(one, 0, gid)
            one.chmod(mode)
        return path.read_bytes()

    def up(self, *addresses: str, settings: str = "") -> Sshd:
        self.sshd = Sshd(
            self.folder / "sshd", addresses or [HERE], self.key, str(self.serve), *filter(None, [settings])
        )
        self.sshd.start()
        return self.sshd

    def ssh(self, **changes: object) -> Ssh:
        """Settings with which all is right: n1 is known."""
        assert self.sshd is not None
        known = self.folder / "known_hosts"
        if not known.exists():
            known.write_text(self.sshd.known("n1"))
        right = Ssh(user="root", key_file=str(self.folder / "key"), known_hosts=str(known), port=self.sshd.port)
        return replace(right, connect_s=60.0, visit_s=120.0, **changes)  # type: ignore[arg-type]

    def visitor(self, **changes: object) -> Visitor:
        return Visitor(self.ssh(**changes), str(self.folder / "learned"))

    def visit(self, wanted: set[int] | None = None, **changes: object) -> Visit:
        return visit(self.visitor(**changes), self.landing, Target("n1", HERE), wanted)

    def landed(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (self.folder / "fetched" / "new").iterdir()}

    def parts(self) -> list[Path]:
        return list((self.folder / "fetched" / "tmp").iterdir())


@pytest.fixture
def site() -> Iterator[Site]:
    """Not below pytest's own folder, which is closed to other users."""
    with tempfile.TemporaryDirectory(prefix="nccl-slurm-site-") as folder:
        made = Site(Path(folder))
        yield made
        if made.sshd is not None:
            made.sshd.stop()


def test_the_records_of_the_wanted_jobs_come_and_are_what_the_intake_takes(site: Site) -> None:
    data = site.offers("42.1796000000.n1.json")
    site.offers("7.1796000000.n1.json")
    site.up()
    done = site.visit({42, 43})
    assert done == Visit("n1", 1, (("42.1796000000.n1.json", len(data)),))
    assert site.landed() == {"42.1796000000.n1.json": data} and site.parts() == []
    incoming = Inbox(str(site.folder / "fetched"), [os.geteuid()]).read("42.1796000000.n1.json")
    assert (incoming.record["job_id"], incoming.folder_time) == (42, 1796000000)
    assert (site.folder / "fetched" / "new" / incoming.name).stat().st_mode & 0o777 == 0o600


def test_a_known_record_is_not_sent_again_and_nothing_wanted_is_no_fault(site: Site) -> None:
    data = site.offers("42.1.n1.json")
    site.up()
    known = [("42.1.n1.json", len(data))]
    assert visit(site.visitor(), site.landing, Target("n1", HERE), {42}, known) == Visit("n1", 1)
    assert site.visit({8}) == Visit("n1") and site.landed() == {}


def test_a_node_offers_in_its_own_name_alone(site: Site) -> None:
    site.offers("42.1.n2.json")
    site.offers("42.1.n1.json")
    site.up()
    assert [name for name, _ in site.visit().fetched] == ["42.1.n1.json"]


def test_a_user_of_the_group_needs_no_root(site: Site) -> None:
    ensure_users()
    site.offers("42.1.n1.json", gid=7001)
    site.folder.joinpath("spool").chmod(0o711)
    site.up(settings="UsePAM yes")  # its password is locked, which sshd alone takes for a locked account
    done = site.visit({42}, user="alice")
    assert (done.why, len(site.landed())) == (None, 1), site.sshd and site.sshd.said()
    done = site.visit({42}, user="bob")
    assert done.why and "Permission denied; set NCCL_SLURM_OUTBOX_GROUP" in done.why


def test_a_wrong_key_is_told(site: Site) -> None:
    site.up()
    keys(site.folder / "other")
    done = site.visit(key_file=str(site.folder / "other"))
    assert done.why and "root is not let in" in done.why and "authorized_keys" in done.why


def test_an_unknown_host_is_refused_and_named(site: Site) -> None:
    site.offers("42.1.n1.json")
    site.up()
    (site.folder / "known_hosts").write_text("")
    done = site.visit()
    assert done.why and "is not in" in done.why and "SHA256:" in done.why and site.landed() == {}


def test_a_key_is_found_among_hashed_and_broken_lines(site: Site) -> None:
    site.offers("42.1.n1.json")
    sshd = site.up()
    hosts = site.folder / "known_hosts"
    hosts.write_text(sshd.known("n1"))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(hosts)], check=True, capture_output=True)
    assert hosts.read_text().startswith("|1|")
    mine = f"[n1]:{sshd.port}"
    broken = f"|1|x|y ssh-ed25519 AAAA\n@revoked * ssh-ed25519 AAAA\n{mine} ssh-ed25519 %%\n{mine} x\n#\n\n"
    hosts.write_text(broken + hosts.read_text())
    assert site.visit().why is None
    hosts.write_text(broken + sshd.known("n2"))
    done = site.visit()
    assert done.why and "is not in" in done.why


def test_a_host_key_that_changed_is_refused_even_where_first_ones_are_believed(site: Site) -> None:
    site.offers("42.1.n1.json")
    sshd = site.up()
    other = keys(site.folder / "other_host")
    (site.folder / "known_hosts").write_text(f"[n1]:{sshd.port} {other}\n")
    for host_keys in ("known", "first-use"):
        done = site.visit(host_keys=host_keys)
        assert done.why and "not the known one" in done.why
        assert f"ssh-keygen -R '[n1]:{sshd.port}' -f {site.folder}/known_hosts" in done.why
    assert site.landed() == {}


def test_a_first_key_is_kept_and_held_against_the_next(site: Site) -> None:
    site.offers("42.1.n1.json")
    sshd = site.up()
    (site.folder / "known_hosts").write_text("")
    assert site.visit(host_keys="first-use").why is None
    learned = site.folder / "learned"
    assert learned.read_text().startswith(f"[n1]:{sshd.port} ssh-ed25519 ")
    learned.write_text(f"[n1]:{sshd.port} {keys(site.folder / 'other_host')}\n")
    done = site.visit(host_keys="first-use")
    assert done.why and f"-f {learned})" in done.why


@pytest.mark.parametrize("greeting", [b"", b"SSH-2.0-nobody\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_host_that_accepts_and_hangs_costs_its_time_alone(site: Site, greeting: bytes) -> None:
    site.up()
    silent = Proxy(HERE, None, greeting=greeting)
    site.ssh()
    (site.folder / "known_hosts").write_text("")
    done = visit(
        Visitor(replace(site.ssh(), port=silent.port, connect_s=1.0), str(site.folder / "learned")),
        site.landing,
        Target("n1", HERE),
        None,
    )
    silent.close()
    assert done.why is not None and done.fetched == ()


def test_nobody_listens(site: Site) -> None:
    sshd = site.up()
    sshd.stop()
    done = site.visit()
    assert done.why and done.offered == 0 and done.why.startswith("n1: ")  # somebody else may have the port by now


def test_a_command_that_hangs_ends_with_the_visit(site: Site) -> None:
    site.serves("exec cat >/dev/null")
    site.up()
    ssh = replace(site.ssh(), visit_s=1.0)
    done = visit(Visitor(ssh, str(site.folder / "learned")), site.landing, Target("n1", HERE), None)
    assert done.why == "n1: no answer in time (ssh.visit_s)"


def test_closing_ends_a_visit_that_hangs(site: Site) -> None:
    site.serves(f"touch {site.folder}/asked; exec cat >/dev/null")
    site.up()
    visitor, done = site.visitor(), []
    thread = threading.Thread(target=lambda: done.append(visit(visitor, site.landing, Target("n1", HERE), None)))
    thread.start()
    assert wait_until((site.folder / "asked").exists, 60.0)
    visitor.close()
    thread.join(60.0)
    assert done and done[0].why is not None
    with pytest.raises(RemoteError, match="this is the end"), visitor.session(Target("n1", HERE)):
        pass


def test_a_transfer_that_was_cut_goes_on_where_it_was(site: Site) -> None:
    data = site.offers("42.1.n1.json", "x" * 3_000_000)
    sshd = site.up()
    site.ssh()
    cut = Proxy(HERE, sshd.port, limit=1_500_000)
    (site.folder / "known_hosts").write_text(f"[n1]:{cut.port} {sshd.host_key}\n")
    visitor = Visitor(replace(site.ssh(), port=cut.port), str(site.folder / "learned"))
    done = visit(visitor, site.landing, Target("n1", HERE), {42})
    cut.close()
    assert done.why is not None and (done.offered, done.fetched) == (1, ()) and site.landed() == {}
    (part,) = site.parts()
    had = part.stat().st_size
    assert 0 < had < 1_500_000
    whole = Proxy(HERE, sshd.port)
    (site.folder / "known_hosts").write_text(f"[n1]:{whole.port} {sshd.host_key}\n")
    visitor = Visitor(replace(site.ssh(), port=whole.port), str(site.folder / "learned"))
    done = visit(visitor, site.landing, Target("n1", HERE), {42})
    whole.close()
    assert done.why is None and site.landed() == {"42.1.n1.json": data} and site.parts() == []
    assert whole.passed < len(data)


def test_a_record_that_is_another_by_now_begins_anew(site: Site) -> None:
    data = site.offers("42.1.n1.json", "new record")
    site.up()
    part = site.folder / "fetched" / "tmp" / ("42.1.n1.json." + "0" * 64)
    part.write_text("x" * 100)
    assert site.visit({42}).why is None
    assert site.landed() == {"42.1.n1.json": data}


HOSTILE = {
    "no header": "cat /etc/hostname",
    "a size beyond the limit": f"echo nccl-slurm-record/1 0 4194305 {'0' * 64}",
    "from the middle": f"echo nccl-slurm-record/1 5 10 {'0' * 64}",
    "more than announced": f"echo nccl-slurm-record/1 0 3 {'0' * 64}; echo too much",
    "less than announced": f"echo nccl-slurm-record/1 0 30 {'0' * 64}; echo few",
    "another content": f"printf 'nccl-slurm-record/1 0 3 {'0' * 64}\\nabc'",
    "a failure": "echo no >&2; exit 3",
    "no end": "cat /dev/zero",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_node_that_sends_something_else(site: Site, what: str) -> None:
    listing = "echo 42.1.n1.json 3; echo ../../etc/x 3; echo 42.1.n1.json 99999999; echo 42.1.n1.json/../x 3"
    site.serves(f'case $SSH_ORIGINAL_COMMAND in *" list") {listing} ;; *) {HOSTILE[what]} ;; esac')
    site.up()
    done = site.visit()
    assert done.why is not None and done.fetched == () and site.landed() == {}
    assert sum(part.stat().st_size for part in site.parts()) <= 4 << 20


def test_a_list_without_end_is_cut_off(site: Site) -> None:
    site.serves("yes 42.1.n1.json 3")
    site.up()
    done = site.visit()
    assert done.why and "longer than 2 MiB" in done.why


def test_sixty_four_nodes_and_some_that_hang(site: Site) -> None:
    addresses = [f"127.0.23.{number}" for number in range(1, 65)]
    for number, address in enumerate(addresses, 1):
        site.offers(f"42.1.n{number}.json", address=address)
    site.serves(f'[ "${{3##*.}}" -gt 60 ] && exec cat >/dev/null\n{site.answer} serve')
    sshd = site.up(*addresses)
    (site.folder / "known_hosts").write_text(sshd.known(*(f"n{number}" for number in range(1, 65))))
    quick, slow = site.visitor(), Visitor(replace(site.ssh(), visit_s=15.0), str(site.folder / "learned"))
    targets = [(slow if number > 60 else quick, Target(f"n{number}", a)) for number, a in enumerate(addresses, 1)]
    with ThreadPoolExecutor(32) as pool:
        done = list(pool.map(lambda one: visit(one[0], site.landing, one[1], {42}), targets))
    assert [one.why for one in done[:60]] == [None] * 60
    assert [one.why for one in done[60:] if "no answer in time" not in (one.why or "")] == []
    assert len(site.landed()) == 60


def test_what_every_visit_needs_is_told_at_once(site: Site) -> None:
    site.up()
    site.visitor().check()
    for changes, word in (
        ({"key_file": "/nonexistent"}, "ssh-keygen"),
        ({"known_hosts": "/nonexistent"}, "ssh-keyscan"),
    ):
        with pytest.raises(ConfigError, match=word):
            site.visitor(**changes).check()
    (site.folder / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 0600"):
        site.visitor().check()
    assert outbox.NAME.match("42.1.n1.json")
    with running(Sshd(site.folder / "another", ["127.0.23.2"], site.key)) as another:
        assert another.port != site.sshd.port  # type: ignore[union-attr]
