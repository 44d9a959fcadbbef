"""The parts of a kubeconfig that this plugin needs: one server, its certificate authority, one user.

https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/ and, for credential plugins,
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from local.plugins.provider import ProviderError

# The time limit of a credential plugin, and how long before expiry its token is renewed, in seconds.
_EXEC_SECONDS = 60
_RENEW_BEFORE = timedelta(seconds=30)


@dataclass(frozen=True)
class Connection:
    """The API server and the user of the current context, and the whole kubeconfig."""

    server: str
    namespace: str
    authority: str | None
    user: Mapping[str, Any]
    document: Mapping[str, Any] = field(repr=False)


def load(text: str) -> Connection:
    """Read the content of a kubeconfig.

    Raises:
        ProviderError: It is no kubeconfig, refers to an entry that it lacks, or has a server on another host.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProviderError(f"kubeconfig: is no YAML: {error}") from error
    if not isinstance(document, dict):
        raise ProviderError("kubeconfig: is no object; it must be the content of a kubeconfig, not a path")
    context = _named(document, "contexts", "context", document.get("current-context") or "")
    server = _named(document, "clusters", "cluster", str(context.get("cluster", "")))
    user = _named(document, "users", "user", context["user"]) if context.get("user") else {}
    url = str(server.get("server", ""))
    refuse_foreign(url)
    authority = _content(server, "certificate-authority")
    return Connection(
        server=url.rstrip("/"),
        namespace=str(context.get("namespace") or "default"),
        authority=authority.decode() if authority else None,
        user=user,
        document=document,
    )


def refuse_foreign(url: str) -> None:
    """Raise ProviderError unless the host is a loopback address. The local cloud uses no other cluster."""
    host = urlsplit(url).hostname or ""
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ProviderError(
            f"kubeconfig: the API server {url!r} is not on this machine; the local cloud's kubernetes plugin talks "
            "to loopback addresses only"
        )


def client_certificate(user: Mapping[str, Any]) -> tuple[bytes, bytes] | None:
    """Return certificate and key in PEM, or None."""
    certificate = _content(user, "client-certificate")
    key = _content(user, "client-key")
    return (certificate, key) if certificate and key else None


class Token:
    """The bearer token of a user: fixed, or from a credential plugin (kept until it expires)."""

    def __init__(self, user: Mapping[str, Any]) -> None:
        self._user = user
        self._lock = threading.Lock()
        self._value: str | None = None
        self._expires: datetime | None = None

    def get(self) -> str | None:
        """Return the current token.

        Raises:
            ProviderError: The credential plugin failed.
        """
        if "exec" not in self._user:
            return self._user.get("token")
        with self._lock:
            if self._value is None or (self._expires and datetime.now(UTC) >= self._expires - _RENEW_BEFORE):
                self._value, self._expires = _run_plugin(self._user["exec"])
            return self._value

    def forget(self) -> bool:
        """Drop a token that the server refused. Return whether another one is available."""
        with self._lock:
            self._value = None
        return "exec" in self._user


def _run_plugin(settings: Mapping[str, Any]) -> tuple[str, datetime | None]:
    version = settings.get("apiVersion", "client.authentication.k8s.io/v1")
    command = [str(settings["command"]), *map(str, settings.get("args") or [])]
    exec_info = json.dumps({"apiVersion": version, "kind": "ExecCredential", "spec": {"interactive": False}})
    extra = {str(entry["name"]): str(entry["value"]) for entry in settings.get("env") or []}
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **extra, "KUBERNETES_EXEC_INFO": exec_info},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_EXEC_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProviderError(f"kubeconfig: the credential plugin `{shown}` did not run: {error}") from error
    if done.returncode:
        raise ProviderError(f"kubeconfig: `{shown}` exited with {done.returncode}: {done.stderr.strip()}")
    try:
        status = json.loads(done.stdout)["status"]
        token = str(status["token"])
    except (ValueError, KeyError, TypeError) as error:
        raise ProviderError(f"kubeconfig: `{shown}` printed no ExecCredential with a token") from error
    expires = status.get("expirationTimestamp")
    return token, datetime.fromisoformat(expires.replace("Z", "+00:00")) if expires else None


def _named(document: Mapping[str, Any], listed: str, inner: str, name: str) -> dict[str, Any]:
    for entry in document.get(listed) or []:
        if entry.get("name") == name:
            found: dict[str, Any] = entry.get(inner) or {}
            return found
    known = ", ".join(str(entry.get("name")) for entry in document.get(listed) or []) or "none"
    raise ProviderError(f"kubeconfig: has no {inner} {name!r} under {listed} (there: {known})")


def _content(settings: Mapping[str, Any], key: str) -> bytes | None:
    data = settings.get(f"{key}-data")
    if data:
        return base64.b64decode(data)
    path = settings.get(key)
    return Path(path).read_bytes() if path else None
