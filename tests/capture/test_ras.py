"""NCCL's RAS thread, stood in for by a real TCP server that speaks its client's protocol as NCCL's sources have it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from nccl_slurm.capture import ras

ANSWER = b"NCCL version 2.28.3 compiled with CUDA 12.6\n\nJob summary\n===========\n"
Talk = Callable[[socketserver.StreamRequestHandler], None]


def rightly(talk: socketserver.StreamRequestHandler, answer: bytes = ANSWER) -> None:
    assert talk.rfile.readline() == b"CLIENT PROTOCOL 2\n"
    talk.wfile.write(b"SERVER PROTOCOL 2\n")
    assert talk.rfile.readline().startswith(b"TIMEOUT ")
    talk.wfile.write(b"OK\n")
    assert talk.rfile.readline() == b"VERBOSE STATUS\n"
    talk.wfile.write(answer)


@contextmanager
def server(talk: Talk) -> Iterator[str]:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            talk(self)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # the client went away

    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()


def test_the_whole_answer_comes() -> None:
    with server(rightly) as where:
        assert ras.status(where, 20.0) == ANSWER


@pytest.mark.parametrize(
    "talk",
    [
        lambda talk: talk.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n"),
        lambda talk: talk.wfile.write(b"x" * 100_000),
        lambda talk: None,
    ],
    ids=["ssh", "no line", "closes"],
)
def test_what_is_no_ras_is_refused(talk: Talk) -> None:
    with server(talk) as where, pytest.raises((ValueError, ConnectionError)):
        ras.status(where, 20.0)


def test_an_endless_answer_is_cut_off() -> None:
    def endless(talk: socketserver.StreamRequestHandler) -> None:
        rightly(talk)
        while True:
            talk.wfile.write(b"x" * 65536)

    with server(endless) as where, pytest.raises(ValueError, match="more than"):
        ras.status(where, 60.0)


def test_one_that_never_answers_costs_its_limit_alone() -> None:
    done = threading.Event()

    def never(talk: socketserver.StreamRequestHandler) -> None:
        done.wait(60)

    with server(never) as where:
        with pytest.raises(OSError, match=r"time"):
            ras.status(where, 0.3)
        done.set()


@pytest.mark.parametrize(
    ("text", "found"), [("n1:28028", ("n1", 28028)), ("[::1]:1", ("::1", 1)), ("10.0.0.1:65535", ("10.0.0.1", 65535))]
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert ras.address(text) == found


@pytest.mark.parametrize("text", ["", "n1", "n1:", ":28028", "n1:0", "n1:65536", "n1:x", "n1:1٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="write HOST:PORT"):
        ras.address(text)
