"""The kubeconfig of a cluster that the stack did not make. Pure."""

from __future__ import annotations

import json
from typing import Final

# https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
EXEC_VERSION: Final = "client.authentication.k8s.io/v1beta1"


def kubeconfig(
    *, cluster: str, region: str, endpoint: str, authority: str, profile: str | None = None
) -> str:
    """Return a kubeconfig as JSON. It authenticates with `aws eks get-token` and contains no secret.

    Args:
        cluster: The cluster's name.
        region: Its region.
        endpoint: Its address, with https:// in front.
        authority: The certificate authority in base64, as DescribeCluster has it.
        profile: A profile of ~/.aws/config, None for the environment.
    """
    command = ["--region", region, "eks", "get-token", "--cluster-name", cluster, "--output", "json"]
    login = {
        "apiVersion": EXEC_VERSION,
        "command": "aws",
        "args": command,
        "env": [
            {"name": "KUBERNETES_EXEC_INFO", "value": json.dumps({"apiVersion": EXEC_VERSION})},
            *([{"name": "AWS_PROFILE", "value": profile}] if profile else []),
        ],
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "kubernetes",
                    "cluster": {"server": endpoint, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "aws", "user": {"exec": login}}],
            "contexts": [{"name": "aws", "context": {"cluster": "kubernetes", "user": "aws"}}],
            "current-context": "aws",
        }
    )
