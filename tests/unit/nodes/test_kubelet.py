"""The kubelets' server: logs for who has a certificate of the cluster, and for nobody else."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from local.nodes.kubelet import Kubelet
from local.nodes.logs import Clock

pytestmark = pytest.mark.unit

LOGS = "/containerLogs/training/one/main"


def get(pki: Path, client: str | None) -> str:
    """The logs as a client gets them that has the certificate of a cluster, or none."""
    log = Clock(pki / "0.log")
    log.path.write_text("step=1\n")
    container = SimpleNamespace(name="main", clock=log, running=asyncio.Event(), simulated=False)
    pods: Any = SimpleNamespace(find=lambda *_: SimpleNamespace(every=[container]))
    tls = ssl.create_default_context(cafile=str(pki / "ours" / "ca.crt"))
    if client is not None:
        tls.load_cert_chain(pki / client / "kubelet-client.crt", pki / client / "kubelet-client.key")

    async def ask() -> str:
        kubelet = Kubelet(pods, pki, pki / "ours")
        port = await kubelet.start()
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"https://127.0.0.1:{port}{LOGS}", ssl=tls) as answer,
            ):
                return await answer.text()
        finally:
            await kubelet.stop()

    return asyncio.run(ask())


def test_kubelet_with_the_api_servers_certificate_sends_logs(pki: Path) -> None:
    assert get(pki, "ours") == "step=1\n"


@pytest.mark.parametrize("client", [None, "others"])
def test_kubelet_without_cluster_certificate_refuses(pki: Path, client: str | None) -> None:
    with pytest.raises(aiohttp.ClientError):
        get(pki, client)
