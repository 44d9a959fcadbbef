"""The state of EKS: clusters and their parts, as the documents that the API returns."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moto.core.utils import utcnow

from local.aws.account import ACCOUNT_ID
from local.aws.errors import ApiError

Document = dict[str, Any]


def not_found(message: str) -> ApiError:
    """Return a ResourceNotFoundException."""
    return ApiError("ResourceNotFoundException", message)


def in_use(message: str) -> ApiError:
    """Return a ResourceInUseException."""
    return ApiError("ResourceInUseException", message)


def invalid(message: str) -> ApiError:
    """Return an InvalidParameterException."""
    return ApiError("InvalidParameterException", message)


@dataclass
class NodeGroup:
    """A managed node group and the ids of its instances."""

    document: Document
    instance_ids: list[str] = field(default_factory=list)


@dataclass
class AccessEntry:
    """An access entry and its associated policies by ARN."""

    document: Document
    policies: dict[str, Document] = field(default_factory=dict)


@dataclass
class Cluster:
    """A cluster. `jwks` are the keys that sign its service account tokens, from the start of the control plane."""

    document: Document
    region: str
    jwks: Document = field(default_factory=dict)
    node_groups: dict[str, NodeGroup] = field(default_factory=dict)
    entries: dict[str, AccessEntry] = field(default_factory=dict)
    addons: dict[str, Document] = field(default_factory=dict)
    updates: dict[str, Document] = field(default_factory=dict)
    interface_ids: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The cluster's name."""
        return str(self.document["name"])

    @property
    def issuer(self) -> str:
        """URL of its OIDC issuer."""
        return str(self.document["identity"]["oidc"]["issuer"])

    def record_update(self, kind: str) -> Document:
        """Record a finished update, and return its document."""
        update = {
            "id": secrets.token_hex(16),
            "status": "Successful",
            "type": kind,
            "params": [],
            "createdAt": utcnow(),
            "errors": [],
        }
        self.updates[update["id"]] = update
        return update


class Store:
    """All clusters of the account, by region and name."""

    def __init__(self) -> None:
        self.clusters: dict[tuple[str, str], Cluster] = {}
        self.supervisor_socket = Path()

    def cluster(self, region: str, name: str) -> Cluster:
        """Return a cluster.

        Raises:
            ResourceNotFoundException: It does not exist.
        """
        found = self.clusters.get((region, name))
        if found is None:
            raise not_found(f"No cluster found for name: {name}.")
        return found

    def active(self, region: str, name: str) -> Cluster:
        """Return a cluster that accepts changes.

        Raises:
            ResourceNotFoundException: It does not exist.
            InvalidRequestException: It accepts no changes.
        """
        found = self.cluster(region, name)
        if found.document["status"] != "ACTIVE":
            raise ApiError("InvalidRequestException", f"Cluster '{name}' is not in ACTIVE status")
        return found

    def by_name(self, name: str) -> Cluster | None:
        """Return the cluster of this name in any region, for callers that know no region."""
        return next((c for c in self.clusters.values() if c.name == name), None)

    def by_issuer(self, issuer: str) -> Cluster | None:
        """Return the cluster whose tokens have this issuer."""
        return next((c for c in self.clusters.values() if c.issuer == issuer), None)

    def tagged(self, region: str, arn: str) -> Document:
        """Return the document of the resource with this ARN, for its tags.

        Raises:
            NotFoundException: It does not exist.
        """
        for cluster in self.clusters.values():
            if cluster.region != region:
                continue
            documents = [("arn", cluster.document)]
            documents += [("nodegroupArn", g.document) for g in cluster.node_groups.values()]
            documents += [("addonArn", a) for a in cluster.addons.values()]
            documents += [("accessEntryArn", e.document) for e in cluster.entries.values()]
            for key, document in documents:
                if document.get(key) == arn:
                    return document
        raise ApiError("NotFoundException", f"Resource was not found: {arn}")


def arn(region: str, kind: str, *parts: str) -> str:
    """Return the ARN of an EKS resource, such as cluster/<name> or addon/<cluster>/<addon>/<id>."""
    return f"arn:aws:eks:{region}:{ACCOUNT_ID}:{kind}/{'/'.join(parts)}"


store = Store()
