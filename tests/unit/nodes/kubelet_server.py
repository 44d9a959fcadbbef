"""The kubelets' server on a port of this machine, and the TLS of its clients."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from local.nodes.kubelet import Kubelet


@contextlib.asynccontextmanager
async def serving(pki: Path, pod: Any) -> AsyncIterator[tuple[Kubelet, int]]:
    """Serve one pod, whatever its name is, and yield the server and its port."""
    pods: Any = SimpleNamespace(find=lambda *_: pod)
    kubelet = Kubelet(pods, pki, pki / "ours")
    port = await kubelet.start()
    try:
        yield kubelet, port
    finally:
        await kubelet.stop()


def client_tls(pki: Path, client: str | None = "ours/kubelet-client") -> ssl.SSLContext:
    """Return the TLS of a client with one of the certificates in `pki`, by default the API server's, or with none."""
    tls = ssl.create_default_context(cafile=str(pki / "ours" / "ca.crt"))
    if client is not None:
        tls.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    return tls
