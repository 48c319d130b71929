"""``collect`` and ``probe``: what is asked of whom, what is printed, how they end. Nodes are a real sshd."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from nccl_slurm.cli.main import EXIT_STATUS, cli
from nccl_slurm.errors import NcclSlurmError
from nccl_slurm.history.rows import RunRow
from nccl_slurm.history.store import Store
from tests.collect.sshd import skip_reason
from tests.collect.test_fetch import HERE, Site
from tests.collect.test_shared import record

pytest.importorskip("paramiko", reason="not installed: paramiko (the extra ssh)")
pytestmark = pytest.mark.skipif(skip_reason() is not None, reason=str(skip_reason()))


class Lab:
    """A site whose node n1 is at an address that a pretended scontrol tells, and the store of a daemon."""

    def __init__(self, site: Site) -> None:
        self.site, self.state = site, site.folder / "state"
        (self.state).mkdir()
        programs = site.folder / "bin"
        programs.mkdir()
        scontrol = programs / "scontrol"
        scontrol.write_text(f"#!/bin/sh\necho 'NodeName=n1 State=IDLE NodeAddr={HERE} NodeHostName=n1'\n")
        scontrol.chmod(0o755)
        self.printed = ""
        self.config = site.folder / "nccl-slurm.toml"

    def writes_config(self, **changes: object) -> None:
        ssh = {key: getattr(self.site.ssh(), key) for key in ("user", "key_file", "known_hosts", "port")}
        lines = [f"{key} = {json.dumps(value)}" for key, value in {**ssh, "connect_s": 60.0, **changes}.items()]
        slurm = f'[slurm]\nbin = "{self.site.folder}/bin"\n'
        self.config.write_text(f'[paths]\nstate = "{self.state}"\n{slurm}[ssh]\n' + "\n".join(lines) + "\n")

    def ran(self, job: int, nodes: tuple[str, ...], end: float | None = 1_000_100.0) -> Store:
        store = Store.open(f"sqlite:///{self.state}/store.db")
        status = "settling" if end else "live"
        store.upsert_run(RunRow("c", job, 1, str(job), nodes=nodes, status=status, start=1_000_000.0, end=end))
        return store

    def call(self, *words: str) -> tuple[int, str]:
        """Exit status, and what was printed; or what an error says."""
        try:
            done = CliRunner().invoke(cli, [*words, "--config", str(self.config)], standalone_mode=False)
            self.printed = done.stdout
            if done.exception is not None:
                raise done.exception
            return 0, done.output
        except NcclSlurmError as error:
            return next(status for kind, status in EXIT_STATUS if isinstance(error, kind)), str(error)

    def landed(self) -> list[str]:
        return sorted(path.name for path in (self.state / "fetched" / "new").iterdir())


@pytest.fixture
def lab() -> Iterator[Lab]:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="nccl-slurm-site-") as folder:
        site = Site(Path(folder))
        site.up()
        made = Lab(site)
        made.writes_config()
        yield made
        assert site.sshd is not None
        site.sshd.stop()


def test_the_missing_records_of_a_job(lab: Lab) -> None:
    lab.site.offers("42.1000000.n1.json")
    lab.site.offers("7.1000000.n1.json")
    store = lab.ran(42, ("n1",))
    status, said = lab.call("collect", "42")
    assert (status, lab.landed()) == (0, ["42.1000000.n1.json"]), said
    assert said.startswith("n1: fetched 42.1000000.n1.json, ") and "the daemon takes them in" in said
    store.add_record("c", 42, 1, record(cluster="c"), received=1.0)
    store.close()
    assert lab.call("collect", "42") == (0, "no record is missing\n")
    assert lab.call("collect", "42", "--json") == (0, "[]\n")


def test_all_that_a_node_offers_and_a_node_that_is_not_there(lab: Lab) -> None:
    lab.site.offers("7.1000000.n1.json")
    status, said = lab.call("collect", "n1")
    assert (status, lab.landed()) == (0, ["7.1000000.n1.json"]), said
    status, said = lab.call("collect", "n1,nowhere.invalid", "--json")
    assert (status, said) == (1, "1 of 2 nodes could not be visited to the end; see the lines above")
    told = json.loads(lab.printed)
    assert [one["why"] is None for one in told] == [True, False]
    assert told[1]["why"].startswith("nowhere.invalid: ")


def test_what_can_not_be_asked(lab: Lab) -> None:
    status, said = lab.call("collect", "42")
    assert status == 1 and "no store on this host" in said
    lab.ran(42, ("n1",), end=None).close()
    assert "nccl-slurm probe NODE" in lab.call("collect", "42")[1]
    assert lab.call("collect", "43") == (1, "job 43 is unknown here; give NODES to fetch all that they hold")
    lab.writes_config(user="")
    for words in (("collect", "n1"), ("probe", "n1")):
        status, said = lab.call(*words)
        assert status == 2 and "ssh.user is empty" in said
    lab.writes_config(key_file="/nonexistent")
    assert lab.call("collect", "n1")[0] == 2


def test_a_probe_tells_what_was_seen_and_what_not(lab: Lab) -> None:
    (lab.site.folder / "spool" / HERE).mkdir(parents=True)
    status, said = lab.call("probe", "n1")
    assert status == 0 and "n1: machine " in said and "disks: path /" in said and "not observed: gpus: " in said
    status, said = lab.call("probe", "n1", "--json")
    told = json.loads(said)
    assert told["node"] == "n1" and told["snapshot"]["load"] and {"machine", "gaps"} <= set(told)


@pytest.mark.parametrize("answer", ["", "{}", "[]", '{"node": 1, "machine": {}, "snapshot": [], "gaps": []}', "nan"])
def test_a_probe_of_a_node_that_answers_nonsense(lab: Lab, answer: str) -> None:
    lab.site.serves(f"cat <<'X'\n{answer}\nX")
    status, said = lab.call("probe", "n1")
    assert status == 1 and said.startswith("n1: its answer is no snapshot")
