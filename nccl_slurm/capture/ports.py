"""InfiniBand, RoCE and EFA ports with their counters, from /sys/class/infiniband (EFA devices appear there too)."""

from __future__ import annotations

import os
from typing import Any

from nccl_slurm.model import Gap

__all__ = ["read_ports"]

#: Counters that tell of a port that lost packets or its link. mlx5 and EFA names; each file is one number.
_COUNTERS = frozenset(
    [
        "symbol_error",
        "link_error_recovery",
        "link_downed",
        "port_rcv_errors",
        "port_xmit_discards",
        "port_xmit_wait",
        "excessive_buffer_overrun_errors",
        "local_link_integrity_errors",
        "port_rcv_remote_physical_errors",
        "out_of_sequence",
        "packet_seq_err",
        "rnr_nak_retry_err",
        "local_ack_timeout_err",
        "implied_nak_seq_err",
        "req_cqe_error",
        "req_transport_retries_exceeded",
        "resp_cqe_error",
        "roce_adp_retrans",
        "roce_slow_restart",
        "rx_icrc_encapsulated",
        "np_cnp_sent",
        "rp_cnp_handled",
        "rx_drops",
        "retrans_pkts",
        "retrans_bytes",
        "retrans_timeout_events",
        "impaired_remote_conn_events",
        "unresponsive_remote_events",
    ]
)
_MAX_PORTS = 256


def read_ports(sysroot: str, gaps: list[Gap]) -> list[dict[str, Any]] | None:
    """None, with a gap, where the node has no such devices (or the folder can't be read)."""
    base = sysroot + "/sys/class/infiniband"
    ports: list[dict[str, Any]] = []
    try:
        for device in sorted(os.listdir(base)):
            for port in sorted(os.listdir(os.path.join(base, device, "ports"))):
                ports.append(_port(os.path.join(base, device), device, port))
    except OSError as error:
        gaps.append(Gap("ports", f"{error.filename}: {error.strerror}"))
    return ports[:_MAX_PORTS] if ports else None


def _port(path: str, device: str, port: str) -> dict[str, Any]:
    folder = os.path.join(path, "ports", port)
    counters = {**_counters(folder, "counters"), **_counters(folder, "hw_counters"), **_counters(path, "hw_counters")}
    return {
        "device": device[:100],
        "port": port[:20],
        "driver": _driver(path),
        "state": _named(folder, "state"),
        "phys_state": _named(folder, "phys_state"),
        "rate": _line(os.path.join(folder, "rate")),
        "link_layer": _line(os.path.join(folder, "link_layer")),
        "counters": counters,
    }


def _counters(path: str, group: str) -> dict[str, int]:
    folder = os.path.join(path, group)
    try:
        names = sorted(_COUNTERS.intersection(os.listdir(folder)))
    except OSError:
        return {}
    values = ((name, _line(os.path.join(folder, name))) for name in names)
    return {name: int(value) for name, value in values if value is not None and value.isdigit()}


def _named(folder: str, name: str) -> str | None:
    """``4: ACTIVE`` → ``ACTIVE``."""
    line = _line(os.path.join(folder, name))
    return None if line is None else line.partition(":")[2].strip() or line


def _driver(path: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(path, "device", "driver")))[:100]
    except OSError:
        return None


def _line(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.readline(200).strip()
    except OSError:
        return None
