"""Connect to the API of an EKS cluster with a token from AWS credentials. Entry point: `connect`.

`session` is a boto3 session. Nothing is written to a kubeconfig, and no AWS CLI is needed.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from botocore.signers import RequestSigner

from trainyard.k8s.client import Client, RetryPolicy, api_client
from trainyard.k8s.package import Configuration

# EKS accepts a presigned STS call as a token for 15 minutes. The signature itself must be valid for 60 seconds
# (https://github.com/kubernetes-sigs/aws-iam-authenticator, "API Authorization from Outside a Cluster").
TOKEN_PREFIX: Final = "k8s-aws-v1."  # noqa: S105 - not a password
SIGNATURE_SECONDS: Final = 60


def connect(session: Any, name: str, endpoint: str, authority: str, retry: RetryPolicy) -> Client:
    """Return a client of a cluster. It renews its token when the API server no longer accepts it.

    Args:
        session: Has the region of the cluster and the credentials of the caller.
        name: The cluster's name.
        endpoint: The URL of the API server, as EKS describes it.
        authority: The certificate authority in base64, as EKS describes it.
        retry: How long a request is tried.
    """
    settings = Configuration(host=endpoint, ca_cert_data=base64.b64decode(authority).decode())

    def renew() -> None:
        settings.api_key["BearerToken"] = f"Bearer {token(session, name)}"

    renew()
    return Client(api_client(settings), retry, renew_credentials=renew)


def token(session: Any, cluster: str) -> str:
    """Return a token for a cluster: a presigned GetCallerIdentity that is bound to the cluster's name."""
    sts = session.client("sts")
    service, credentials = sts.meta.service_model.service_id, session.get_credentials()
    signer = RequestSigner(service, session.region_name, "sts", "v4", credentials, session.events)
    request = {
        "method": "GET",
        "url": f"{sts.meta.endpoint_url}/?Action=GetCallerIdentity&Version=2011-06-15",
        "body": {},
        "headers": {"x-k8s-aws-id": cluster},
        "context": {},
    }
    url = signer.generate_presigned_url(
        request, region_name=session.region_name, expires_in=SIGNATURE_SECONDS, operation_name=""
    )
    return TOKEN_PREFIX + base64.urlsafe_b64encode(url.encode()).decode().rstrip("=")
