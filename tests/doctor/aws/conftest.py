from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from tests.doctor.aws.endpoint import Endpoint, served


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """moto's own server, on a port of its own."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    threaded = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    threaded.start()
    host, port = threaded.get_host_and_port()
    yield f"http://{host}:{port}"
    threaded.stop()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """All services, with replies that the test sets."""
    with served() as here:
        use(monkeypatch, here.url)
        yield here


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch, moto_url: str) -> Iterator[Endpoint]:
    """The same, with moto behind it for what no reply is set for."""
    with served(moto_url) as here:
        use(monkeypatch, here.url)
        yield here


def use(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
