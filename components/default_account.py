"""The service account that a namespace has by itself."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s


def without_token(
    namespace: str, parent: pulumi.Resource, after: pulumi.Resource
) -> k8s.core.v1.ServiceAccount:
    """The account `default` of the namespace that `after` makes, without a token for the pods that name no other.

    A controller of the cluster may have made it already: server-side apply takes it over. It goes with its namespace;
    deleted alone it would be made again at once, with a token.
    """
    return k8s.core.v1.ServiceAccount(
        f"{namespace}-default",
        metadata={"name": "default", "namespace": namespace},
        automount_service_account_token=False,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[after], retain_on_delete=True),
    )
