"""Asking Slurm here: what is printed, what is not, and the words around it that say where to look."""

from __future__ import annotations

from pathlib import Path

import pytest

from nccl_slurm.config import Config, loads
from nccl_slurm.doctor.check import NotObserved
from nccl_slurm.doctor.checks.scheduler.observed import Plugin
from nccl_slurm.doctor.observation import Fleet
from nccl_slurm.doctor.read.scontrol import node_fields, partition_fields
from nccl_slurm.doctor.slurm import AskedSlurm
from nccl_slurm.errors import SlurmUnreachable
from tests.doctor.slurm_stand_in import StandIn


@pytest.fixture
def slurm(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "bin", {"n1": "IDLE"})


def asked(slurm: StandIn) -> AskedSlurm:
    return AskedSlurm(Config(), str(slurm.folder))


def test_all_questions(slurm: StandIn) -> None:
    (slurm.folder / "slurmdbd").unlink()
    seen = asked(slurm).observed(0.0, Fleet({}))
    assert [node.name for node in seen.nodes] == ["n1"] and seen.setting("ClusterName") == "lab"
    with pytest.raises(NotObserved, match="sacctmgr show cluster"):
        seen.said("slurmdbd")


def test_no_slurm_here() -> None:
    nothing = AskedSlurm(Config(), None)
    assert isinstance(nothing.said("ping"), NotObserved)
    with pytest.raises(SlurmUnreachable, match=r"set slurm\.bin"):
        nothing.jobs()


def test_all_controllers_down_is_an_answer(slurm: StandIn) -> None:
    (slurm.folder / "scontrol").write_text("#!/bin/sh\necho 'Slurmctld(primary) at c1 is DOWN'\nexit 1\n")
    assert asked(slurm).said("ping") == "Slurmctld(primary) at c1 is DOWN\n"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("AuthInfo = (null)", []),
        ("AuthInfo = socket=/x/munge.socket,ttl=60", ["-S", "/x/munge.socket"]),
        ("AuthInfo = cred_expire=60,socket=/y", ["-S", "/y"]),
    ],
)
def test_the_socket_of_munge(slurm: StandIn, line: str, words: list[str]) -> None:
    slurm.says("config", f"{(slurm.folder / 'config').read_text()}{line}\n")
    assert asked(slurm).munge_socket() == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ClusterName=lab\n", []),
        ("# AuthInfo=socket=/z\nAuthType=auth/munge\nauthinfo=socket=/x\n", ["-S", "/x"]),
    ],
)
def test_the_socket_of_munge_is_read_from_slurm_conf_where_slurmctld_is_away(
    slurm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: list[str]
) -> None:
    (slurm.folder / "config").unlink()
    (tmp_path / "slurm.conf").write_text(text)
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    assert asked(slurm).munge_socket() == words
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none.conf"))
    assert asked(slurm).munge_socket() == []
    assert "SLURM_CONF" in str(asked(slurm)._munge())  # another socket's silence is no fault


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("echo MUNGE:AwQ:", "STATUS: Success (0) of MUNGE:AwQ:"),
        (
            "echo 'munge: Error: Failed to access /run/munge/munge.socket.2' >&2; exit 6",
            "munge: Error: Failed to access",
        ),
        ("exit 6", ""),
    ],
)
def test_munge_that_makes_none_says_why(
    made: str, said: str, slurm: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that nothing came to be read."""
    for name, script in {"munge": made, "unmunge": 'echo "STATUS: Success (0) of $(cat)"'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr("nccl_slurm.doctor.slurm._MUNGE_ENV", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    told = asked(slurm)._munge()
    assert isinstance(told, str) and told.strip().startswith(said)
    assert bool(told.strip()) == bool(said)


def test_plugins(slurm: StandIn, tmp_path: Path) -> None:
    stack = tmp_path / "plugstack.conf"
    (tmp_path / "more.d").mkdir()
    stack.write_text("required /x/a.so arg\n# required /x/no.so\noptional b.so\ninclude more.d/*.conf\nrubbish\n")
    (tmp_path / "more.d" / "1.conf").write_text(f"required c.so\ninclude {stack}\n")
    slurm.says("config", f"PluginDir = /usr/lib/slurm\nPlugStackConfig = {stack}\n")
    found = asked(slurm).plugins()
    assert found[:3] == [
        Plugin(True, "/x/a.so"),
        Plugin(False, "/usr/lib/slurm/b.so"),
        Plugin(True, "/usr/lib/slurm/c.so"),
    ]
    assert len(found) < 20  # a file that includes itself has an end
    slurm.says("config", "PlugStackConfig = /no/such\n")
    assert asked(slurm).plugins() == []


def test_our_hooks_are_looked_for_where_slurm_conf_and_capture_conf_name_them(slurm: StandIn, tmp_path: Path) -> None:
    hooks, site, conf = tmp_path / "hooks", tmp_path / "site", tmp_path / "etc"
    for folder in (hooks / "prolog.d", site, conf):
        folder.mkdir(parents=True)
    (hooks / "prolog.d" / "50-nccl-slurm").touch()
    (site / "zz").symlink_to(hooks / "prolog.d" / "50-nccl-slurm")
    (conf / "nccl-slurm.toml").touch()
    (conf / "capture.conf").write_text(f"#NCCL_SLURM_HOOKS=/opt/x\nNCCL_SLURM_HOOKS={hooks}\n")
    slurm.says("config", f"{(slurm.folder / 'config').read_text()}Prolog = {site}/*\n")
    seen = AskedSlurm(loads("", str(conf / "nccl-slurm.toml")), str(slurm.folder)).observed(0.0, Fleet({}))
    assert seen.own_hooks == str(hooks)
    assert seen.found_here == {f"{site}/*": [f"{site}/zz", f"{hooks}/prolog.d/50-nccl-slurm"]}


def test_fields_of_nodes_end_where_administrators_write() -> None:
    text = (
        "NodeName=n1 Arch=x86_64 Gres=gpu:8 OS=Linux State=DOWN 5.15 #1 SMP RealMemory=1000 State=IDLE Partitions=a,b "
        "Reason=x State=DOWN Gres=gpu:0 [root@1]\nNodeName=n2 State=DOWN Comment=Gres=gpu:9\n"
    )
    fields = node_fields(text)
    assert (fields["n1"]["State"], fields["n1"]["Gres"], fields["n1"]["RealMemory"]) == ("IDLE", "gpu:8", "1000")
    assert "Gres" not in fields["n2"] and node_fields("rubbish") == {}
    assert partition_fields("PartitionName=a State=UP\nrubbish\n")["a"]["State"] == "UP"
