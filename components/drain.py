"""The first thing that `destroy` does: end the work and give back every machine, while that is still possible."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ResourceProvider, UpdateResult
from pulumi.dynamic import Resource as DynamicResource


class DrainProvider(ResourceProvider):
    """Does nothing until the resource is deleted; then it drains the cluster (`components.shared.draining`).

    The inputs are names: a token for the cluster is made when it is needed and is never in the state.
    """

    serialize_as_secret_always = False

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Nothing is made."""
        return CreateResult(f"drain-{props['cluster']}", props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Another cluster is another drain; a new time limit is only noted."""
        keys = ("cluster", "region", "timeoutSeconds")
        changed = [key for key in keys if _olds.get(key) != _news.get(key)]
        replaces = [key for key in changed if key != "timeoutSeconds"]
        return DiffResult(changes=bool(changed), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Only the note changes."""
        return UpdateResult(_news)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Drain the cluster.

        Raises:
            DrainError: machines are left after the time limit; nothing that they need may be deleted then.
        """
        from components.shared.draining import drain

        drain(
            cluster=str(_props["cluster"]),
            region=str(_props["region"]),
            timeout=float(_props["timeoutSeconds"]),
        )


class Drain(DynamicResource, module="drain", name="Drain"):
    """Created last and so deleted first: launchers, trainings, placeholders, pools and machines of one cluster.

    It depends on everything that must be alive for Karpenter to give machines back: its pods, role and queue, the
    routes out, the access entries.
    """

    def __init__(
        self, name: str, cluster: str, region: str, timeout_seconds: int, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__(
            DrainProvider(),
            name,
            {"cluster": cluster, "region": region, "timeoutSeconds": timeout_seconds},
            opts,
        )
