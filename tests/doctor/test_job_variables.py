"""Names that nothing reads, values that harm, settings that contradict one another; and the tables behind them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nccl_slurm.doctor.checks.job import environment
from nccl_slurm.doctor.checks.job.variables import CHECKS
from nccl_slurm.doctor.variables import WHEN, Value, conflicts, names, near, unread, values
from nccl_slurm.errors import ConfigError
from tests.doctor.jobs import EFA, INFINIBAND, NO_FABRIC, ROCE, even, job, rank, said, words

NAMES, VALUES = CHECKS
(ENVIRONMENT,) = environment.CHECKS
ADAPTERS: dict[str, Any] = {"efa": EFA, "infiniband": INFINIBAND, "adapters": EFA}
#: A value that each row's pattern takes.
EXAMPLE = {
    "master-is-loopback": "127.0.0.1",
    "socket-on-loopback": "lo",
    "socket-on-bridge": "docker0",
    "gloo-exclude-list": "^lo,docker",
    "p2p-local": "LOC",
    "net-sockets": "Socket",
    "plugin-off": "none",
    "provider-no-efa": "tcp",
    "provider-excludes-efa": "^efa",
    "device-rdma-off": "0",
    "gdr-off": "LOC",
    "nvls-off": "0",
    "errors-unhandled": "0",
    "errors-unhandled-old-name": "0",
    "monitor-off": "0",
    "ras-off": "0",
    "recorder-off": "0",
    "recorder-off-old-name": "0",
    "ib-waits-for-ever": "32",
    "debug-trace": "TRACE",
    "debug-info": "INFO",
    "debug-per-collective": "INIT,COLL",
    "debug-one-file": "/logs/nccl.log",
    "distributed-debug": "DETAIL",
    "libfabric-debug": "debug",
    "algo-pinned": "Ring",
    "proto-ll128": "LL128",
    "proto-pinned": "Simple",
    "buffers-pinned": "8388608",
}
#: One that it does not take, where any other word is taken; unset, where all are.
GOOD = {
    "provider-no-efa": "efa",
    "debug-one-file": "/logs/%h.%p",
    "proto-pinned": "",
    "algo-pinned": "",
    "buffers-pinned": "",
    "fork-safe": "",
}


def of(name: str, value: str, **more: Any) -> list[str]:
    return [one.text for one in said(VALUES, job(even(**{name: value}), **more)) if one.status in ("WARN", "FAIL")]


# names


@pytest.mark.parametrize(
    ("name", "priority", "hint"),
    [
        ("NCCL_TIMEOUT", "P2", "timeout= of init_process_group"),
        ("NCCL_PXN_LEVEL", "P2", "NCCL_P2P_PXN_LEVEL"),
        ("NCCL_MIN_CHANNELS", "P2", "NCCL_MIN_NCHANNELS"),
        ("NCCL_SOCKET_IFNAM", "P1", "NCCL_SOCKET_IFNAME is"),
        ("NCCL_IB_GID_INDX", "P1", "NCCL_IB_GID_INDEX is"),
        ("FI_EFA_USE_DEVICE_RMDA", "P1", "FI_EFA_USE_DEVICE_RDMA is"),
        ("TORCH_NCCL_BLOCKING_WAITS", "P1", "TORCH_NCCL_BLOCKING_WAIT is"),
        ("OFI_NCCL_PROTOCOLS", "P1", "OFI_NCCL_PROTOCOL is"),
        ("NCCL_QUX_FROBNICATE", "P2", "no variable that NCCL"),
    ],
)
def test_a_name_that_nothing_reads(name: str, priority: str, hint: str) -> None:
    (found,) = said(NAMES, job(even(**{name: "1"})))
    assert (found.status, found.priority, found.values["name"]) == ("WARN", priority, name)
    assert found.text.startswith(name) and hint in found.text and "ranks 0-3 (n[1-2])" in found.text


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_DEBUG",
        "NCCL_SOCKET_IFNAME",
        "NCCL_P2P_PXN_LEVEL",
        "NCCL_NVLS_ENABLE",
        "NCCL_RAS_ADDR",
        "NCCL_CROSS_NIC",
        "NCCL_NET_PLUGIN",
        "NCCL_BLOCKING_WAIT",
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_SLURM_SPOOL",
        "NCCL_FASTRAK_CTRL_DEV",
        "FI_PROVIDER",
        "FI_LOG_LEVEL",
        "FI_EFA_FORK_SAFE",
        "FI_EFA_USE_HUGE_PAGE",
        "FI_CXI_RX_MATCH_MODE",
        "FI_OFI_RXM_RX_SIZE",
        "FI_MR_CACHE_MONITOR",
        "OFI_NCCL_PROTOCOL",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        "TORCH_FR_BUFFER_SIZE",
        "TORCH_HOME",
        "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS",
    ],
)
def test_a_name_that_something_reads(name: str) -> None:
    assert words(said(NAMES, job(even(**{name: "1"})))) == ["PASS"]


def test_no_rank_is_unknown() -> None:
    for check in CHECKS:
        assert words(said(check, job({"n1": "permission denied"}))) == ["UNKNOWN"]


def test_nothing_that_is_named_instead_is_itself_unread() -> None:
    for one in unread().values():
        meant = [word for word in one.instead.replace(",", " ").split() if names().is_judged(word)]
        assert all(names().is_read(word) for word in meant), one.name


def test_tables_speak_of_names_that_are_read() -> None:
    told = {one.name for one in values()} | {name for one in conflicts() for name in one.names}
    assert [name for name in told if names().is_judged(name) and not names().is_read(name)] == []
    assert not told & set(unread())


def test_rows_have_ids_of_their_own() -> None:
    ids = [*(one.id for one in values()), *(one.id for one in conflicts())]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("NCCL_SOCKET_IFNAM", "NCCL_SOCKET_IFNAME"),
        ("NCCL_NSOCK_PERTHREAD", "NCCL_NSOCKS_PERTHREAD"),
        ("NCCL_ABC", None),
    ],
)
def test_the_nearest_name(name: str, expected: str | None) -> None:
    assert near(name) == expected


# values


OUR_FILE = "/var/spool/nccl-slurm/42.1790000000/user/nccl.%h.%p.log"


@pytest.mark.parametrize(
    ("listed", "more", "says"),
    [
        pytest.param(
            "NCCL_DEBUG,NCCL_DEBUG_FILE", {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": OUR_FILE}, False, id="ours"
        ),
        pytest.param("NCCL_DEBUG,@coll", {"NCCL_DEBUG": "INFO"}, False, id="by the user's --nccl-capture"),
        pytest.param("TORCH_FR_BUFFER_SIZE", {"NCCL_DEBUG": "INFO"}, True, id="his own, and other ones are ours"),
        pytest.param("", {"NCCL_DEBUG": "INFO"}, True, id="his own"),
        pytest.param("NCCL_DEBUG", {"NCCL_DEBUG": "TRACE"}, True, id="set by his script, later"),
        pytest.param("NCCL_DEBUG_FILE", {"NCCL_DEBUG_FILE": "/logs/nccl.log"}, True, id="a file of his own, later"),
        pytest.param("TORCH_FR_BUFFER_SIZE", {"TORCH_FR_BUFFER_SIZE": "0"}, True, id="no record, later"),
        pytest.param(
            "TORCH_FR_BUFFER_SIZE,TORCH_NCCL_TRACE_BUFFER_SIZE",
            {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"},
            False,
            id="both spellings of one",
        ),
    ],
)
def test_what_our_hooks_set_accuses_nobody(listed: str, more: dict[str, str], says: bool) -> None:
    """As slurm/task_prolog lists it in NCCL_SLURM_SET."""
    observed = job(even(NCCL_SLURM_SET=listed, **more))
    assert {one.status for check in CHECKS for one in said(check, observed)} == ({"PASS", "WARN"} if says else {"PASS"})


@pytest.mark.parametrize(("listed", "says"), [("NCCL_DEBUG", False), ("", True)])
def test_that_our_hooks_did_not_set_it_everywhere_is_no_difference(listed: str, says: bool) -> None:
    told = even()
    for row in told["n2"]:
        row["environment"].update(NCCL_DEBUG="INFO", NCCL_SLURM_SET=listed)
    found = [one for one in said(ENVIRONMENT, job(told)) if one.status == "WARN"]
    assert bool(found) == says


@pytest.mark.parametrize("row", values(), ids=lambda row: row.id)
def test_each_value_is_found_and_only_where_it_harms(row: Value) -> None:
    value = EXAMPLE.get(row.id, "1")
    adapters = ADAPTERS.get(row.when, {})
    found = said(VALUES, job(even(**{row.name: value}), adapters=adapters))
    mine = [one for one in found if row.says in one.text]
    assert [(one.status, one.priority) for one in mine] == [(row.status, row.priority)]
    assert mine[0].values["name"] == row.name and mine[0].proofs[0].line == f"{row.name}={value}"
    assert row.says not in " ".join(of(row.name, GOOD.get(row.id, "other"), adapters=adapters))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "^lo,docker,veth"),
        ("NCCL_SOCKET_IFNAME", "=ens5"),
        ("NCCL_SOCKET_IFNAME", "lo0x"),
        ("GLOO_SOCKET_IFNAME", "ens5"),
        ("MASTER_ADDR", "n1"),
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_NET", "AWS Libfabric"),
        ("FI_PROVIDER", "efa"),
        ("FI_PROVIDER", "efa;ofi_rxm"),
        ("FI_PROVIDER", "^tcp"),
        ("NCCL_NET_GDR_LEVEL", "PHB"),
        ("NCCL_DEBUG", "WARN"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET,ENV"),
        ("NCCL_DEBUG_SUBSYS", "^COLL"),
        ("NCCL_DEBUG_FILE", "/logs/%h.%p"),
        ("NCCL_DEBUG_FILE", "/dev/stderr"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_PROTO", "^LL128"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"),
        ("FI_EFA_USE_HUGE_PAGE", "0"),
    ],
)
def test_good_values_are_no_finding(name: str, value: str) -> None:
    found = of(name, value, adapters={**EFA, **INFINIBAND})
    assert [one for one in found if "protocols are limited" not in one] == []


@pytest.mark.parametrize(
    ("name", "value", "adapters", "says"),
    [
        ("FI_PROVIDER", "tcp", EFA, True),
        ("FI_PROVIDER", "tcp", INFINIBAND, False),
        ("FI_PROVIDER", "tcp", {}, False),
        ("FI_PROVIDER", "tcp", None, False),
        ("NCCL_IB_DISABLE", "1", INFINIBAND, True),
        ("NCCL_IB_DISABLE", "1", ROCE, True),
        *(("NCCL_IB_DISABLE", "1", adapters, False) for adapters in NO_FABRIC.values()),
        ("NCCL_IB_DISABLE", "1", EFA, False),
        ("NCCL_NET", "Socket", {}, False),
        ("NCCL_NET", "Socket", INFINIBAND, True),
        ("NCCL_NET_PLUGIN", "none", INFINIBAND, False),
    ],
)
def test_a_way_that_is_off_counts_where_the_node_has_it(name: str, value: str, adapters: Any, says: bool) -> None:
    assert bool(of(name, value, adapters=adapters)) is says


@pytest.mark.parametrize(
    ("name", "value", "adapters", "dmi", "expected"),
    [
        ("NCCL_IB_DISABLE", "1", {}, False, ["UNKNOWN"]),  # as `node.ib-ports` says of such a node
        ("NCCL_IB_DISABLE", "1", None, False, ["UNKNOWN"]),
        ("NCCL_NET", "Socket", None, True, ["UNKNOWN"]),
        ("NCCL_NET", "Socket", {}, False, ["UNKNOWN"]),
        ("NCCL_NET", "Socket", {}, True, ["PASS"]),  # a machine without adapters
        ("NCCL_NET", "IB", {}, False, ["PASS"]),
        ("NCCL_IB_DISABLE", "0", None, False, ["PASS"]),
        ("NCCL_IB_DISABLE", "1", INFINIBAND, False, ["FAIL P1"]),
    ],
)
def test_where_adapters_can_not_be_seen_harm_is_not_known(
    name: str, value: str, adapters: Any, dmi: bool, expected: list[str]
) -> None:
    observed = job(even(**{name: value}), adapters=adapters)
    for node in observed.fleet.nodes.values() if dmi else ():
        cast("dict[str, Any]", node.found)["dmi"] = {"texts": {"/sys/devices/virtual/dmi/id/sys_vendor": "Dell"}}
    found = said(VALUES, observed)
    assert words(found) == expected
    assert all(f"{name}={value}" in one.text for one in found if one.status != "PASS")


def test_loopback_is_right_on_one_node() -> None:
    told = even(2, 1, MASTER_ADDR="localhost", NCCL_SOCKET_IFNAME="lo")
    assert words(said(VALUES, job(told))) == ["PASS"]
    assert len(of("MASTER_ADDR", "localhost")) == 1


@pytest.mark.parametrize(
    ("zero", "others", "nodes"),
    [("127.0.0.1", "n1", []), ("localhost", "localhost", ["n2"]), ("n1", "127.0.0.1", ["n2"])],
)
def test_loopback_is_right_beside_rank_0(zero: str, others: str, nodes: list[str]) -> None:
    """It listens at all addresses of its node."""
    told = {
        "n1": [rank(number, 4, MASTER_ADDR=zero) for number in (0, 1)],
        "n2": [rank(number, 4, MASTER_ADDR=others) for number in (2, 3)],
    }
    found = [one for one in said(VALUES, job(told)) if one.status == "FAIL"]
    assert [one.nodes for one in found] == ([nodes] if nodes else [])


def test_several_programs_of_one_node_each_may_meet_at_localhost() -> None:
    each = {node: even(2, 1, MASTER_ADDR="localhost")["n1"] for node in ("n1", "n2")}
    assert words(said(VALUES, job(each))) == ["PASS"]


def test_one_file_for_one_rank_a_node_is_fine() -> None:
    assert words(said(VALUES, job(even(2, 2, NCCL_DEBUG_FILE="/logs/nccl.log")))) == ["PASS"]


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ({"NCCL_P2P_DISABLE": "0"}, {"NCCL_P2P_LEVEL": "NVL"}, True),
        ({"NCCL_MIN_NCHANNELS": "16"}, {"NCCL_MAX_NCHANNELS": "8"}, True),
        ({"NCCL_MIN_NCHANNELS": "8"}, {"NCCL_MAX_NCHANNELS": "8"}, False),
        ({"NCCL_MIN_NCHANNELS": "x"}, {"NCCL_MAX_NCHANNELS": "8"}, False),
        ({"NCCL_MIN_CTAS": "32"}, {"NCCL_MAX_CTAS": "4"}, True),
        ({"NCCL_SOCKET_NTHREADS": "8"}, {"NCCL_NSOCKS_PERTHREAD": "8"}, False),
        ({"NCCL_SOCKET_NTHREADS": "16"}, {"NCCL_NSOCKS_PERTHREAD": "8"}, True),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "0"}, True),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, False),  # as our capture sets them
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {"NCCL_ASYNC_ERROR_HANDLING": "0"}, True),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, {"NCCL_ASYNC_ERROR_HANDLING": "1"}, False),
        ({"TORCH_FR_BUFFER_SIZE": "2000"}, {}, False),
    ],
)
def test_two_that_do_not_go_together(first: dict[str, str], second: dict[str, str], says: bool) -> None:
    found = said(VALUES, job(even(**first, **second)))
    clash = [one for one in found if one.status == "WARN" and all(f"{name}=" in one.text for name in (*first, *second))]
    assert bool(clash) is says


def test_all_ranks_of_one_value_are_one_finding() -> None:
    (found,) = said(VALUES, job(even(16, 4, NCCL_P2P_DISABLE="1")))
    assert "ranks 0-15 (n[1-4])" in found.text and len(found.proofs) == 6
    assert found.nodes == ["n1", "n2", "n3", "n4"]


@pytest.mark.parametrize(
    "wrong", [{"when": "never"}, {"status": "PASS"}, {"priority": "P9"}, {"source": ""}, {"more": 1}]
)
def test_a_wrong_row_is_refused(wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from nccl_slurm.doctor import variables

    good = {"id": "x", "name": "N", "match": "1", "status": "WARN", "priority": "P1", "says": "s", "instead": "i"}
    monkeypatch.setattr(variables, "packaged", lambda name: {"value": [{**good, "source": "s", **wrong}]})
    with pytest.raises(ConfigError):
        values.__wrapped__()


def test_conditions_are_all_used() -> None:
    assert {one.when for one in values()} == set(WHEN)


@given(st.dictionaries(st.sampled_from(sorted(names().known)), st.text(max_size=40), max_size=6))
def test_any_environment_is_judged(environment: dict[str, str]) -> None:
    told = even(2, 1)
    told["n1"][1]["environment"].update(environment)
    for check in CHECKS:
        assert said(check, job(told, adapters=EFA))
