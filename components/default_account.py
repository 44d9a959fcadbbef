"""The service account that a namespace has by itself."""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s


def without_token(
    namespace: str, parent: pulumi.Resource, after: pulumi.Resource
) -> k8s.core.v1.ServiceAccountPatch:
    """The account `default` of the namespace that `after` makes, without a token for the pods that name no other.

    A patch, because a controller of the cluster makes the account, a moment before or after.
    """
    return k8s.core.v1.ServiceAccountPatch(
        f"{namespace}-default",
        metadata={"name": "default", "namespace": namespace},
        automount_service_account_token=False,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[after]),
    )
