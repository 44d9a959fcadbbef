"""The kubelets' server: logs for the API server alone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import pytest

from local.nodes.logs import Clock
from tests.unit.nodes.kubelet_server import client_tls, serving

LOGS = "/containerLogs/training/one/main"


def get(pki: Path, client: str | None) -> tuple[int, str]:
    """The answer to a request for logs from a client with one of the certificates in `pki`, or with none."""
    log = Clock(pki / "0.log")
    log.path.write_text("step=1\n")
    container = SimpleNamespace(name="main", clock=log, running=asyncio.Event(), simulated=False)

    async def ask() -> tuple[int, str]:
        async with (
            serving(pki, SimpleNamespace(every=[container])) as (_, port),
            aiohttp.ClientSession() as session,
            session.get(f"https://127.0.0.1:{port}{LOGS}", ssl=client_tls(pki, client)) as answer,
        ):
            return answer.status, await answer.text()

    return asyncio.run(ask())


def test_kubelet_with_the_api_servers_certificate_sends_logs(pki: Path) -> None:
    assert get(pki, "ours/kubelet-client") == (200, "step=1\n")


def test_kubelet_with_another_cluster_certificate_is_forbidden(pki: Path) -> None:
    status, body = get(pki, "ours/scheduler")
    assert status == 403
    assert "user 'system:kube-scheduler'" in json.loads(body)["message"]


@pytest.mark.parametrize("client", [None, "others/kubelet-client"])
def test_kubelet_without_cluster_certificate_refuses(pki: Path, client: str | None) -> None:
    with pytest.raises(aiohttp.ClientError):
        get(pki, client)
