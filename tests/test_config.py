from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.config import Config, flat, load, loads
from nccl_slurm.errors import ConfigError
from nccl_slurm.history.store import Store

SHIPPED = Path(__file__).parents[1] / "etc" / "nccl-slurm.toml"


def test_the_shipped_file_holds_the_defaults() -> None:
    assert dict(flat(load(str(SHIPPED)))) == dict(flat(Config()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[daemon]\nsetle_s = 3", "daemon.setle_s: unknown key; did you mean settle_s?"),
        ("[demon]\n", "demon: unknown key; did you mean daemon?"),
        ("[daemon]\nsettle_s = 'x'", "daemon.settle_s: must be a number"),
        ("[daemon]\nsettle_s = 0", "daemon.settle_s: must be above 0"),
        ("[store]\nretain_days = -1", "store.retain_days: must be 0 or above"),
        ("[store]\nrecords_days = 1", "store.records_days: must be 0 or at least 2"),
        ("[history]\nruns_days = 1", "history.runs_days: must be at least 2"),
        ("[history]\ndaily_days = 13", "history.daily_days: must not be below history.runs_days (13 < 14)"),
        ("[history]\nretain_days = 99", "history.retain_days: must be 0 or not below history.daily_days (99 < 100)"),
        ("[daemon]\nrecord_uids = [true]", "daemon.record_uids: must be a whole number"),
        ("daemon = 1", "daemon: is a section; write [daemon]"),
        ("[scope]\ndefault = 'al'", "scope.default: must be one of"),
        ("[site]\nkind = 'eks'", "site.kind: must be hyperpod, slurm or empty, not 'eks'"),
        ("[site]\nregion = 'us_west'", "site.region: us_west: no AWS region; they look like us-west-2"),
        ("[site]\naws_cluster = 'dev_cluster'", "site.aws_cluster: dev_cluster: no name of a HyperPod cluster"),
        (
            "[site]\naws_cluster = 'arn:aws:sagemaker:us-west-2:123456789012:cluster/abc'\nregion = 'eu-west-1'",
            "site.region: eu-west-1: the ARN is of us-west-2",
        ),
        (
            "[site]\nlogin_nodes = ['login[1-2]']",
            "site.login_nodes: 'login[1-2]' is no host name; write one name an item",
        ),
        ("[site]\ndatabase_hosts = 'db'", "site.database_hosts: must be a list"),
        ("[scope.partitions]\na = 'al'", "scope.partitions.a: must be one of"),
        ("[paths]\nstate = 'here'", "paths.state: must be an absolute path"),
        ("x =", "not valid TOML"),
        ("a = " + "[" * 5000, "not valid TOML"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loads(text, "f.toml")
    assert str(raised.value).startswith("f.toml: ") and words in str(raised.value)


def test_a_state_folder_with_signs_that_urls_use(tmp_path: Path) -> None:
    folder = tmp_path / "a%41b?c#d e"
    folder.mkdir()
    config = loads(f"[paths]\nstate = '{folder}'", "f")
    assert config.store_file == f"{folder}/store.db"
    Store.open(config.store_url).close()
    assert [path.name for path in folder.iterdir()] == ["store.db"]
    assert loads("[store]\nurl = 'mariadb+pymysql://h/x'", "f").store_file is None


def test_a_file_without_end_is_no_configuration() -> None:
    with pytest.raises(ConfigError, match="larger"):
        load("/dev/zero")


def test_scope_of_a_partition() -> None:
    config = loads("[scope]\ndefault = 'none'\n[scope.partitions]\ngpu = 'all'", "f")
    assert (config.scope_of("gpu"), config.scope_of("cpu"), config.scope_of(None)) == ("all", "none", "none")


def test_the_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("pass word\nmore\n")
    assert loads(f"[store]\npassword_file = '{secret}'", "f").store_password() == "pass word"
    assert Config().store_password() is None
    with pytest.raises(ConfigError, match="password_file"):
        loads(f"[store]\npassword_file = '{tmp_path}/none'", "f").store_password()


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert isinstance(loads(text, "f"), Config)
    except ConfigError as error:
        assert "\n" not in str(error) or "\n" in text
