"""AWS on a port of this machine, for what moto's server does not have: SageMaker's and CloudWatch Logs' JSON protocol
with replies that a test sets. All else is handed on to moto's server, or answered by raw XML.

Every reply is held against botocore's own model of the call before it is sent: what AWS could not say, no test says.
"""

from __future__ import annotations

import json
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import botocore.session
from botocore.validate import ParamValidator

__all__ = ["Call", "Endpoint", "Error", "Raw", "served"]

_TARGETS = {"SageMaker": "sagemaker", "Logs_20140328": "logs"}
_QUERY = {"2016-11-15": "ec2", "2011-06-15": "sts"}


@dataclass(frozen=True)
class Call:
    """``action`` as IAM has it."""

    action: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Error:
    code: str
    message: str = "no"
    status: int = 400


@dataclass(frozen=True)
class Raw:
    """An answer that is none of AWS's: a proxy's page, a cut connection's rest."""

    body: bytes
    status: int = 200


Reply = Mapping[str, Any] | Error | Raw | Callable[[Mapping[str, Any]], "Mapping[str, Any] | Error"]


@dataclass
class Endpoint:
    """``replies``: action → what is said, one after the other, the last one for ever. ``moto``: where the rest goes."""

    moto: str = ""
    url: str = ""
    replies: dict[str, Sequence[Reply]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def says(self, action: str, *replies: Reply) -> None:
        self.replies[action] = replies

    def count(self, action: str) -> int:
        return sum(call.action == action for call in self.calls)

    def answer(self, call: Call) -> Mapping[str, Any] | Error | Raw | None:
        """None: to be handed on."""
        before = self.count(call.action)
        self.calls.append(call)
        told = self.replies.get(call.action)
        if not told:
            return None
        reply = told[min(before, len(told) - 1)]
        reply = reply(call.parameters) if callable(reply) else reply
        if not isinstance(reply, (Error, Raw)):
            _validate(call.action, reply)
        return reply


def _validate(action: str, reply: Mapping[str, Any]) -> None:
    service, operation = action.split(":")
    shape = _model(service).operation_model(operation).output_shape
    report = ParamValidator().validate(dict(reply), shape)
    # required members are left out on purpose in some tests: the service itself has done so
    wrong = [line for line in report.generate_report().splitlines() if not line.startswith("Missing required")]
    assert not wrong, wrong


@cache
def _model(service: str) -> Any:
    return botocore.session.get_session().get_service_model(service)


@contextmanager
def served(moto: str = "") -> Iterator[Endpoint]:
    endpoint = Endpoint(moto)

    class Handler(_Handler):
        here = endpoint

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    here: Endpoint
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        call = _call(self.headers.get("X-Amz-Target"), body)
        try:
            reply = self.here.answer(call)
        except AssertionError as error:
            reply = Error("TestIsWrong", str(error))
        if reply is None:
            self._hand_on(body)
        elif isinstance(reply, Raw):
            self._send(reply.status, reply.body, "text/html")
        elif isinstance(reply, Error):
            self._error(call, reply)
        else:
            self._send(200, json.dumps(reply).encode(), "application/x-amz-json-1.1")

    def _error(self, call: Call, error: Error) -> None:
        if call.action.startswith(("ec2:", "sts:")):
            told = f"<Code>{error.code}</Code><Message>{error.message}</Message>"
            xml = f"<Response><Errors><Error>{told}</Error></Errors><RequestID>1</RequestID></Response>"
            if call.action.startswith("sts:"):
                xml = f"<ErrorResponse><Error>{told}</Error><RequestId>1</RequestId></ErrorResponse>"
            self._send(error.status, xml.encode(), "text/xml")
        else:
            text = json.dumps({"__type": error.code, "message": error.message})
            self._send(error.status, text.encode(), "application/x-amz-json-1.1")

    def _hand_on(self, body: bytes) -> None:
        if not self.here.moto:
            self._send(500, b'{"__type": "TestIsWrong", "message": "no reply set"}', "application/x-amz-json-1.1")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        request = urllib.request.Request(self.here.moto + self.path, body, headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=30) as found:
                self._send(found.status, found.read(), found.headers.get("Content-Type", "text/xml"))
        except urllib.error.HTTPError as error:
            self._send(error.code, error.read(), error.headers.get("Content-Type", "text/xml"))
        except (OSError, HTTPException):  # moto ends the connection where it lacks a call
            self._send(501, b"", "text/xml")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _call(target: str | None, body: bytes) -> Call:
    if target:
        service, _, operation = target.partition(".")
        return Call(f"{_TARGETS[service]}:{operation}", json.loads(body or b"{}"))
    words = {name: values[0] for name, values in parse_qs(body.decode()).items()}
    lists: dict[str, Any] = {}
    for name, value in words.items():
        lists.setdefault(re.sub(r"\.\d+$", "", name), []).append(value)
    return Call(f"{_QUERY[words['Version']]}:{words['Action']}", lists)
