"""The kubeconfig of the official component: every call authenticates with `aws eks get-token`."""

from __future__ import annotations

from typing import Any


def kubeconfig(
    cluster: str, endpoint: str, authority: str, region: str, profile: str | None = None
) -> dict[str, Any]:
    """Return a kubeconfig. `authority` is the certificate authority in base64, `profile` one of ~/.aws/config."""
    version = "client.authentication.k8s.io/v1beta1"
    return {
        "apiVersion": "v1",
        "clusters": [
            {"cluster": {"server": endpoint, "certificate-authority-data": authority}, "name": "kubernetes"}
        ],
        "contexts": [{"context": {"cluster": "kubernetes", "user": "aws"}, "name": "aws"}],
        "current-context": "aws",
        "kind": "Config",
        "users": [
            {
                "name": "aws",
                "user": {
                    "exec": {
                        "apiVersion": version,
                        "command": "aws",
                        "args": [
                            "--region",
                            region,
                            "eks",
                            "get-token",
                            "--cluster-name",
                            cluster,
                            "--output",
                            "json",
                        ],
                        "env": [
                            {"name": "KUBERNETES_EXEC_INFO", "value": f'{{"apiVersion": "{version}"}}'},
                            *([{"name": "AWS_PROFILE", "value": profile}] if profile else []),
                        ],
                    }
                },
            }
        ],
    }
