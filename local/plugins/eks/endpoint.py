"""Requests of the component to the cluster's endpoint: its health, and its certificate."""

from __future__ import annotations

import base64
import hashlib
import ssl
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

HEALTHY_SECONDS = 300.0


def thumbprint(endpoint: str) -> str:
    """Return the SHA-1 of the certificate that the endpoint serves, as 40 hex digits.

    The official component takes it from the issuer's host, `oidc.eks.<region>.amazonaws.com`, which the local cloud
    neither runs nor may call. The endpoint of the local cluster replaces it. Since 2023, AWS itself ignores the value
    for issuers of EKS.

    Raises:
        OSError: The endpoint does not answer.
    """
    parts = urlsplit(endpoint)
    certificate = ssl.get_server_certificate((str(parts.hostname), parts.port or 443), timeout=10)
    return hashlib.sha1(ssl.PEM_cert_to_DER_cert(certificate), usedforsecurity=False).hexdigest()


def wait_healthy(endpoint: str, authority: str, seconds: float = HEALTHY_SECONDS) -> None:
    """Wait until `<endpoint>/healthz` gives any answer, as the official component does.

    Raises:
        TimeoutError: It gave none within `seconds`. The message has the last result.
    """
    trust = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    direct = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trust)
    )
    deadline = time.monotonic() + seconds
    while True:
        try:
            direct.open(f"{endpoint}/healthz", timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            # A server that requires a login is running.
            if error.code in (401, 403):
                return
            last = str(error)
        except OSError as error:
            last = str(error)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{endpoint}/healthz has not answered well within {seconds:.0f} s: {last}")
        time.sleep(0.3)
