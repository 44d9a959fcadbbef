"""Find the API server in the kubeconfig of a provider, and connect to it. Entry points: `load()`, `connect()`."""

from __future__ import annotations

import ipaddress
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from local.plugins.provider import ProviderError
from trainyard.k8s import kubeconfig
from trainyard.k8s.client import ApiUnavailable, Client, RetryPolicy


@dataclass(frozen=True)
class Connection:
    """The API server and the namespace. `document` is the kubeconfig with the chosen context as current one."""

    server: str
    namespace: str
    document: Mapping[str, Any] = field(repr=False)


def load(text: str | None, context: str | None = None, cluster: str | None = None) -> Connection:
    """Read a kubeconfig from its content or its file; None means `$KUBECONFIG` or `~/.kube/config`.

    Raises:
        ProviderError: It is not readable, refers to an entry that it lacks, or has a server on another host.
    """
    document, place = _document(text)
    chosen = context or document.get("current-context") or ""
    settings = _named(document, "contexts", "context", chosen, place)
    server_name = cluster or str(settings.get("cluster", ""))
    server = _named(document, "clusters", "cluster", server_name, place)
    if settings.get("user"):
        _named(document, "users", "user", settings["user"], place)
    url = str(server.get("server", ""))
    refuse_foreign(url)
    return Connection(
        server=url.rstrip("/"),
        namespace=str(settings.get("namespace") or "default"),
        document=_with_context(document, settings, server_name, chosen),
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


def connect(connection: Connection, retry: RetryPolicy) -> Client:
    """Return a client with the credentials of the user, which a credential plugin may give.

    Raises:
        ProviderError: The kubeconfig is wrong, or the credential plugin failed.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(connection.document, file)
        file.flush()
        try:
            return kubeconfig.connect(file.name, None, retry)[0]
        except ApiUnavailable as error:
            raise ProviderError(f"kubeconfig: {error}") from error


def _document(text: str | None) -> tuple[dict[str, Any], str]:
    place = "the kubeconfig given"
    if text is None or not text.strip():
        path = os.environ.get("KUBECONFIG", "").split(os.pathsep)[0] or str(Path.home() / ".kube" / "config")
        text = path
    if "\n" not in text and not text.lstrip().startswith("{"):
        place = text
        try:
            text = Path(text).expanduser().read_text()
        except OSError as error:
            raise ProviderError(f"kubeconfig: {place} can't be read: {error.strerror}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ProviderError(f"kubeconfig: {place} is neither YAML nor JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProviderError(f"kubeconfig: {place} holds no object")
    return document, place


def _named(document: Mapping[str, Any], listed: str, inner: str, name: str, place: str) -> dict[str, Any]:
    for entry in document.get(listed) or []:
        if entry.get("name") == name:
            found: dict[str, Any] = entry.get(inner) or {}
            return found
    known = ", ".join(str(entry.get("name")) for entry in document.get(listed) or []) or "none"
    raise ProviderError(f"kubeconfig: {place} has no {inner} {name!r} under {listed} (there: {known})")


def _with_context(
    document: Mapping[str, Any], settings: Mapping[str, Any], cluster: str, name: str
) -> dict[str, Any]:
    others = [entry for entry in document.get("contexts") or [] if entry.get("name") != name]
    chosen = {"name": name, "context": {**settings, "cluster": cluster}}
    return {**document, "contexts": [*others, chosen], "current-context": name}
