"""Read, merge and write kubeconfig files: one per user of a control plane, and one with a context per cluster."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from local.cluster.pki import Pair
from local.home import write_atomically
from trainyard.stack_files import dump

Document = dict[str, Any]


def document(cluster: str, server: str, authority: bytes, user: Pair) -> Document:
    """Return a kubeconfig with one cluster, one user and one context, all with the cluster's name."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": cluster, "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}
        ],
        "users": [
            {
                "name": cluster,
                "user": {
                    "client-certificate-data": _base64(user.certificate),
                    "client-key-data": _base64(user.key),
                },
            }
        ],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
        "current-context": cluster,
    }


def read(path: Path) -> Document:
    """Return the content of a kubeconfig, {} if the file is missing or not a mapping."""
    try:
        content = yaml.safe_load(path.read_text())
    except (FileNotFoundError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def current_context(path: Path) -> str:
    """Return the current context of a kubeconfig, "" if the file or the context is missing."""
    return str(read(path).get("current-context") or "")


def merge(documents: Mapping[str, Document], before: Document | None = None) -> Document:
    """Merge the documents of all clusters, oldest first.

    The user's changes of contexts in `before` stay, such as a namespace, or another context of a present cluster. So
    does the current context. A new cluster becomes the current context only if there was no current context. If the
    cluster of the current context is gone, no other replaces it, so that no command reaches the wrong cluster.
    """
    merged: Document = {"apiVersion": "v1", "kind": "Config"}
    for part in ("clusters", "users", "contexts"):
        merged[part] = [entry for each in documents.values() for entry in each[part]]
    before = before or {}
    known = {each["name"]: each for each in before.get("contexts") or [] if _belongs_to(each, documents)}
    names = [each["name"] for each in merged["contexts"]]
    merged["contexts"] = [known.pop(name, each) for name, each in zip(names, merged["contexts"], strict=True)]
    merged["contexts"] += known.values()
    current, newest = before.get("current-context") or "", next(reversed(names), "")
    present = {each["name"] for each in merged["contexts"]}
    merged["current-context"] = current if current in present else "" if current else newest
    return merged


def _belongs_to(entry: Any, documents: Mapping[str, Document]) -> bool:
    """Return whether this is a context whose cluster and user are present."""
    context = entry.get("context") if isinstance(entry, dict) and entry.get("name") else None
    names = list(documents)
    return isinstance(context, dict) and context.get("cluster") in names and context.get("user") in names


def token_webhook(url: str) -> Document:
    """Return the API server's kubeconfig for the webhook that checks tokens of other issuers: those of EKS."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "aws", "cluster": {"server": url}}],
        "users": [{"name": "api-server"}],
        "contexts": [{"name": "aws", "context": {"cluster": "aws", "user": "api-server"}}],
        "current-context": "aws",
    }


def write(path: Path, content: Document) -> None:
    """Write a kubeconfig in one step, readable by its owner only. Names such as `1e3` are quoted, as kubectl needs."""
    write_atomically(path, dump(content), mode=0o600)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
