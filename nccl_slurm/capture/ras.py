"""A question to NCCL's RAS thread: one process of a job listens on each node (``NCCL_RAS_ADDR``, from NCCL 2.24 on).

It asks all other processes of its job itself, so one node's answer is the job's. Client's words as in NCCL
src/ras/client.cc (read). What answers there is the job, or anything else that listens: the text is of trust ``job``.
"""

from __future__ import annotations

import socket
import time

__all__ = ["DEFAULT", "MAX_BYTES", "address", "status"]

DEFAULT = "localhost:28028"
MAX_BYTES = 4 << 20
#: The version that NCCL 2.24 to 2.28 speak; a server of another one answers all the same.
_HELLO, _GREETING = b"CLIENT PROTOCOL 2\n", b"SERVER PROTOCOL "
#: Of `limit_s` this much is left for the answer's way back.
_MARGIN_S = 2.0


def address(text: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[ADDRESS]:PORT``. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"{text!r} is no address; write HOST:PORT")
    return host.strip("[]"), int(port)


def status(where: str, limit_s: float) -> bytes:
    """The text of ``VERBOSE STATUS``. Raises OSError (TimeoutError where it takes longer), ValueError."""
    end = time.monotonic() + limit_s
    with socket.create_connection(address(where), timeout=limit_s) as server:
        _say(server, _HELLO, _GREETING, end)
        _say(server, b"TIMEOUT %d\n" % max(1, int(limit_s - _MARGIN_S)), b"OK", end)
        server.sendall(b"VERBOSE STATUS\n")
        return _rest(server, end)


def _say(server: socket.socket, words: bytes, wanted: bytes, end: float) -> None:
    server.sendall(words)
    line = b""
    while not line.endswith(b"\n"):
        part = _receive(server, 1, end)
        if not part or len(line) > 200:
            raise ValueError("what listens there is no RAS of NCCL")
        line += part
    if not line.upper().startswith(wanted):
        raise ValueError("what listens there is no RAS of NCCL")


def _rest(server: socket.socket, end: float) -> bytes:
    data = b""
    while len(data) < MAX_BYTES:
        part = _receive(server, 1 << 16, end)
        if not part:
            return data
        data += part
    raise ValueError(f"more than {MAX_BYTES} bytes")


def _receive(server: socket.socket, size: int, end: float) -> bytes:
    left = end - time.monotonic()
    if left <= 0:
        raise socket.timeout("no whole answer in time")
    server.settimeout(left)
    return server.recv(size)
