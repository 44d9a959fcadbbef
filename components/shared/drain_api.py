"""The drain's connection to a real cluster: an EKS token made at run time, and EC2 by the cluster's exact tags."""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import boto3
import urllib3
from botocore.exceptions import ClientError
from botocore.signers import RequestSigner

from components.shared.contract import LABEL_NODEPOOL
from components.shared.draining import CLUSTER_TAG, NOT_FOUND, Api, Kind, selector

# EKS takes a presigned STS call as a token, for 15 minutes; the signature itself is to last 60 seconds
# (https://github.com/kubernetes-sigs/aws-iam-authenticator, "API Authorization from Outside a Cluster").
TOKEN_PREFIX: Final = "k8s-aws-v1."  # noqa: S105 - not a password
SIGNATURE_SECONDS: Final = 60
BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
REQUEST_TIMEOUT_SECONDS: Final = 30


class ClusterGone(Exception):
    """EKS does not know the cluster, or its API server went away with it."""


class ApiError(Exception):
    """The API server refused a request; which one, and how."""


def connect(cluster: str, region: str) -> Api:
    """Connect to a cluster as the identity that runs the destroy.

    Raises:
        ClusterGone: there is no such cluster.
    """
    session = boto3.Session(region_name=region)
    try:
        description = session.client("eks").describe_cluster(name=cluster)["cluster"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ResourceNotFoundException":
            raise ClusterGone(cluster) from error
        raise
    if description["status"] == "DELETING":
        raise ClusterGone(cluster)
    return _Live(session, cluster, description)


def token(session: Any, cluster: str) -> str:
    """A token for a cluster: a presigned GetCallerIdentity that is bound to the cluster's name."""
    client = session.client("sts")
    signer = RequestSigner(
        client.meta.service_model.service_id,
        session.region_name,
        "sts",
        "v4",
        session.get_credentials(),
        session.events,
    )
    request = {
        "method": "GET",
        "url": f"{client.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(
        request, region_name=session.region_name, expires_in=SIGNATURE_SECONDS, operation_name=""
    )
    return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")


class _Live(Api):
    def __init__(self, session: Any, cluster: str, description: dict[str, Any]) -> None:
        self._session = session
        self._cluster = cluster
        self._ec2 = session.client("ec2")
        self._directory = tempfile.TemporaryDirectory(prefix="trainyard-drain-")
        authority = Path(self._directory.name) / "ca.crt"
        authority.write_bytes(base64.b64decode(description["certificateAuthority"]["data"]))
        self._endpoint = description["endpoint"]
        self._http = urllib3.PoolManager(
            ca_certs=str(authority), timeout=REQUEST_TIMEOUT_SECONDS, retries=urllib3.Retry(3, redirect=False)
        )
        self._token = token(session, cluster)

    def _call(
        self, method: str, path: str, query: dict[str, Any], body: Any = None, content: str = ""
    ) -> Any:
        """One request; a token that has run out is renewed once. None where there is no such thing.

        Raises:
            ApiError: the API server refused.
        """
        url = f"{self._endpoint}{path}" + (f"?{urlencode(query)}" if query else "")
        payload = None if body is None else json.dumps(body).encode()
        for attempt in range(2):
            headers = {
                "Accept": "application/json",
                "Content-Type": content or "application/json",
                "Authorization": f"Bearer {self._token}",
            }
            answer = self._http.request(method, url, body=payload, headers=headers)
            if answer.status == UNAUTHORIZED and attempt == 0:
                self._token = token(self._session, self._cluster)
                continue
            if answer.status == NOT_FOUND:
                return None
            if answer.status >= BAD_REQUEST:
                raise ApiError(f"{method} {path}: {answer.status} {answer.reason}")
            return json.loads(answer.data)
        return None

    def names(self, kind: Kind) -> list[str]:
        labels = selector(kind)
        query = {"labelSelector": labels} if labels else {}
        answer = self._call("GET", _path(kind), query) or {"items": []}
        return [item["metadata"]["name"] for item in answer["items"]]

    def delete(self, kind: Kind, name: str) -> None:
        self._call("DELETE", f"{_path(kind)}/{name}", {"propagationPolicy": "Foreground"})

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        self._call(
            "PATCH",
            f"{_path(kind)}/{name}",
            {},
            {"metadata": {"finalizers": None}},
            "application/merge-patch+json",
        )

    def machines(self) -> list[str]:
        pages = self._ec2.get_paginator("describe_instances").paginate(
            Filters=[
                {"Name": f"tag:{CLUSTER_TAG}", "Values": [self._cluster]},
                {"Name": "tag-key", "Values": [LABEL_NODEPOOL]},
                {
                    "Name": "instance-state-name",
                    "Values": ["pending", "running", "shutting-down", "stopping", "stopped"],
                },
            ]
        )
        return [
            instance["InstanceId"]
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]

    def terminate(self, instances: list[str]) -> None:
        self._ec2.terminate_instances(InstanceIds=instances)


def _path(kind: Kind) -> str:
    base = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    scope = f"/namespaces/{kind.namespace}" if kind.namespace else ""
    return f"{base}{scope}/{kind.plural}"
