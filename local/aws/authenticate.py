"""EKS tokens: the answer to a Kubernetes TokenReview, from IAM and the cluster's access entries.

A token is `k8s-aws-v1.` and a presigned URL of STS GetCallerIdentity. The URL signs the cluster's name as
`x-k8s-aws-id` (https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster).
"""

from __future__ import annotations

import base64
import binascii
import hmac
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from local.aws import identity
from local.aws.eks import access
from local.aws.eks.store import store

PREFIX = "k8s-aws-v1."
CLUSTER_HEADER = "x-k8s-aws-id"
# EKS accepts a token for 15 minutes. It ignores X-Amz-Expires.
TOKEN_SECONDS = 900


class BadToken(Exception):
    """A token is refused; the message is the reason."""


def review(cluster_name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Answer a TokenReview (authentication.k8s.io/v1) for a cluster. For a refused token, the answer has the error."""
    spec = request.get("spec")
    token = spec.get("token") if isinstance(spec, dict) else None
    try:
        user = _user(cluster_name, token if isinstance(token, str) else "")
        status = {"authenticated": True, "user": user}
    except BadToken as error:
        status = {"authenticated": False, "error": str(error)}
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}


def _user(cluster_name: str, token: str) -> dict[str, Any]:
    cluster = store.by_name(cluster_name)
    if cluster is None:
        raise BadToken(f"no cluster {cluster_name}")
    who = caller(cluster_name, token)
    entry = cluster.entries.get(who.principal_arn)
    if entry is None:
        raise BadToken(f"{who.principal_arn} has no access entry in cluster {cluster_name}")
    session = who.arn.rsplit("/", 1)[-1] if who.role is not None else ""
    name, groups = access.kubernetes_identity(entry, session)
    extra = {"arn": [who.arn], "canonicalArn": [who.principal_arn], "accessKeyId": [who.access_key_id]}
    return {"username": name, "uid": who.user_id, "groups": groups, "extra": extra}


def caller(cluster_name: str, token: str) -> identity.Identity:
    """Return the identity that signed a token for this cluster.

    Raises:
        BadToken: The token is refused.
    """
    if not token.startswith(PREFIX):
        raise BadToken(f"not an EKS token: it does not begin with {PREFIX}")
    text = token.removeprefix(PREFIX)
    try:
        url = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise BadToken("the token is not base64") from None
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if query.get("Action") != "GetCallerIdentity":
        raise BadToken("the token's URL is not sts:GetCallerIdentity")
    signed = query.get("X-Amz-SignedHeaders", "").split(";")
    if CLUSTER_HEADER not in signed or "host" not in signed:
        raise BadToken(f"the token's URL does not sign host and {CLUSTER_HEADER}")
    try:
        at = datetime.strptime(query.get("X-Amz-Date", ""), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        raise BadToken("the token's URL has no X-Amz-Date") from None
    age = (datetime.now(UTC) - at).total_seconds()
    if not -300 <= age <= TOKEN_SECONDS:
        raise BadToken(f"the token is {age:.0f} s old; it counts for {TOKEN_SECONDS} s")
    try:
        who = identity.find(query.get("X-Amz-Credential", "").split("/", 1)[0])
    except identity.UnknownKey as error:
        raise BadToken(f"the access key {error} is not one of this local cloud's") from None
    if not hmac.compare_digest(_signature(url, query, who, cluster_name), query.get("X-Amz-Signature", "")):
        raise BadToken("the token's signature does not match its access key and cluster")
    return who


def _signature(url: str, query: dict[str, str], who: identity.Identity, cluster_name: str) -> str:
    """Return the signature that the URL must have, by botocore's canonical form."""
    _, _, region, service, _ = query["X-Amz-Credential"].split("/")
    bare = url.replace(f"&X-Amz-Signature={query.get('X-Amz-Signature', '')}", "")
    request = AWSRequest("GET", bare, headers={"host": urlsplit(url).netloc, CLUSTER_HEADER: cluster_name})
    request.context["timestamp"] = query["X-Amz-Date"]
    signer = SigV4QueryAuth(Credentials(who.access_key_id, who.secret_access_key), service, region)
    canonical = signer.canonical_request(request)
    return str(signer.signature(signer.string_to_sign(request, canonical), request))
