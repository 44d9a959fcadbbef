"""The AWS emulator for all unit tests: one per process, because its changes of moto cannot be taken back."""

from __future__ import annotations

import os
import socketserver
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from local.aws.account import prepare_environment

if TYPE_CHECKING:
    from tests.unit.emulator import Cloud, FakeSupervisor

# A server's shutdown() waits for the end of this period, which is 0.5 s by default: many tests start a server.
socketserver.BaseServer.serve_forever.__defaults__ = (0.01,)
# moto reads these at its first import, which may be that of any test module.
prepare_environment(os.environ)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what calls the emulator: half of these tests' time, and so not for every save."""
    for item in items:
        if "_server" in getattr(item, "fixturenames", ()):
            item.add_marker("emulator")


@pytest.fixture(scope="session")
def _server() -> Iterator[tuple[str, FakeSupervisor]]:
    from tests.unit.emulator import serving  # not for every test directory: it brings boto3 and moto

    with serving() as served:
        yield served


@pytest.fixture
def cloud(_server: tuple[str, FakeSupervisor]) -> Cloud:
    """The emulator with an empty account, and its deployer's key."""
    from tests.unit.emulator import empty_account

    return empty_account(*_server)


@pytest.fixture
def over_http(_server: tuple[str, FakeSupervisor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let boto3 clients call the emulator over HTTP."""
    from botocore.httpsession import URLLib3Session

    from tests.unit.emulator import SEND_OVER_HTTP

    monkeypatch.setattr(URLLib3Session, "send", SEND_OVER_HTTP)


@pytest.fixture
def deployer(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """The same, with an environment in which SDKs find it: endpoint and key."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_STS", "TRAINYARD_LOCAL_CLOUD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", cloud.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", cloud.secret)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    return cloud
