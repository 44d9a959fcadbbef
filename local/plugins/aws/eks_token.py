"""EKS bearer tokens, and the command `aws eks get-token` that the official kubeconfig calls.

A token is `k8s-aws-v1.` and a presigned STS GetCallerIdentity URL in unpadded base64url. The URL's signed headers
include `x-k8s-aws-id: <cluster>`
(https://github.com/kubernetes-sigs/aws-iam-authenticator#api-authorization-from-outside-a-cluster).
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

PREFIX = "k8s-aws-v1."
# STS accepts the URL for 15 minutes, whatever expiry it has. Clients renew it a minute earlier.
LIFETIME = datetime.timedelta(minutes=14)


class UsageError(Exception):
    """This stand-in does not support the command line, or the environment is not that of the local cloud."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}. This stand-in of the AWS CLI serves only `aws eks get-token`")


def bearer_token(cluster: str, region: str) -> str:
    """Return a token for `cluster`, signed with the environment's access key for its STS endpoint."""
    # Use only botocore's signer: its session would load service models, which takes longer than everything else.
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    endpoint = os.environ.get("AWS_ENDPOINT_URL_STS") or os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        raise UsageError("AWS_ENDPOINT_URL is not set: use the environment of `python -m local env`")
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    if not key or not secret:
        raise UsageError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set: use `python -m local env`")
    request = AWSRequest(
        method="GET",
        url=f"{endpoint.rstrip('/')}/?Action=GetCallerIdentity&Version=2011-06-15",
        headers={"x-k8s-aws-id": cluster},
    )
    credentials = Credentials(key, secret, os.environ.get("AWS_SESSION_TOKEN"))
    SigV4QueryAuth(credentials, "sts", region, expires=60).add_auth(request)
    encoded = base64.urlsafe_b64encode(str(request.url).encode()).decode().rstrip("=")
    return PREFIX + encoded


def exec_credential(cluster: str, region: str, now: datetime.datetime) -> dict[str, object]:
    """Return the answer to a Kubernetes client (client.authentication.k8s.io, in its requested version)."""
    asked = os.environ.get("KUBERNETES_EXEC_INFO", "")
    try:
        version = json.loads(asked)["apiVersion"] if asked else "client.authentication.k8s.io/v1beta1"
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"KUBERNETES_EXEC_INFO is no ExecCredential: {asked[:80]!r}") from error
    return {
        "kind": "ExecCredential",
        "apiVersion": version,
        "spec": {},
        "status": {
            "expirationTimestamp": (now + LIFETIME).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "token": bearer_token(cluster, region),
        },
    }


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return `cluster_name` and `region` of a command line.

    Raises:
        UsageError: It is any other command.
    """
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    parser = _Parser(prog="aws", allow_abbrev=False)
    parser.add_argument("service", choices=("eks",))
    parser.add_argument("operation", choices=("get-token",))
    parser.add_argument("--cluster-name", required=True)
    parser.add_argument("--region", default=region, required=not region)
    parser.add_argument("--output", choices=("json",), default="json")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Print the credential. For any other command, print one line on stderr and return 2."""
    try:
        asked = parse(arguments)
        made = exec_credential(asked.cluster_name, asked.region, datetime.datetime.now(datetime.UTC))
    except UsageError as error:
        print(f"aws: {error}", file=sys.stderr)
        return 2
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
