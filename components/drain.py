"""Resources that do work when `destroy` deletes them: before the cluster is deleted, and after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ResourceProvider, UpdateResult
from pulumi.dynamic import Resource as DynamicResource

# The deletion runs the code in the state. Raise this number when the call of `at_delete` changes, so that deployed
# stacks get the new code.
INTERFACE: Final = 1


class AtDelete(ResourceProvider):
    """Does nothing until the resource is deleted, then does its task (`components.draining`).

    The inputs are names. A token for the cluster is created when it is needed, and is never in the state.
    """

    serialize_as_secret_always = False

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Record the inputs. It creates nothing."""
        return CreateResult(f"{props['task']}-{props['cluster']}", props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Compare the inputs. Another cluster replaces the resource; other changes are recorded for the deletion.

        The state contains this code, pickled. It is not compared, because its bytes differ between checkouts.
        """
        keys = [key for key in sorted({*_olds, *_news}) if not key.startswith("__")]
        changed = [key for key in keys if _olds.get(key) != _news.get(key)]
        replaces = [key for key in changed if key in ("cluster", "region", "vpc")]
        return DiffResult(changes=bool(changed), replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Record the new inputs."""
        return UpdateResult(_news)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Do the task.

        Raises:
            DrainError: Something is left after the time limit. Then nothing that it needs may be deleted.
        """
        from .draining.entry import at_delete

        at_delete(_props)


@dataclass(frozen=True, kw_only=True)
class DrainArgs:
    """The cluster to drain."""

    cluster: str
    region: str
    # Time for evictions and terminations in EC2. In measurements, ten minutes were more than enough.
    timeout_seconds: int = 1800
    """After this time, the deletion fails."""
    pools: list[str] | None = None
    """In an existing cluster with other users, the names of the stack's pools. The drain touches only these and the
    namespace `training`. None if the stack created the cluster.
    """
    torchrun: bool = False
    """Whether the torchrun queues and jobs of all namespaces belong to the stack."""
    profile: str | None = None
    """A profile of ~/.aws/config for the deletion."""


class Drain(DynamicResource, module="drain", name="Drain"):
    """The drain of a cluster. Its deletion removes launchers, jobs, placeholders, pools and nodes.

    It also deletes Services with a load balancer, Ingresses, and dynamically provisioned volumes with their data, in
    all namespaces. It then turns off the cluster's deletion protection. With `pools`, it deletes these objects in the
    namespace `training` only, and leaves the protection.

    Creates nothing. Let it depend on everything that Karpenter needs to terminate nodes: its pods, role and queue,
    the routes, the access entries. Let it also depend on the roles, buckets and volumes that your pods use. Pulumi
    then creates it last and deletes it first.
    """

    def __init__(self, name: str, args: DrainArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        props = _props("drain", args)
        if args.pools is not None:
            props |= {"pools": args.pools, **({"torchrun": True} if args.torchrun else {})}
        super().__init__(AtDelete(), name, props, opts)


@dataclass(frozen=True, kw_only=True)
class ClusterCleanupArgs:
    """The cluster to clean up after."""

    cluster: str
    region: str
    # Network interfaces of terminated instances are free within minutes.
    timeout_seconds: int = 900
    """After this time, the deletion fails."""
    vpc: pulumi.Input[str] | None = None
    """The id of the VPC if the stack created it. The deletion then also removes what GuardDuty created there."""
    late_log_seconds: int = 180
    """How long the deletion waits for late log entries. They create the cluster's log group again, which blocks the
    next `up`.
    """
    profile: str | None = None
    """A profile of ~/.aws/config for the deletion."""


# Deployed stacks have the resource by its old name in their states.
class ClusterCleanup(DynamicResource, module="drain", name="Remains"):
    """The cleanup after a cluster. Its deletion removes leftover network interfaces and security groups.

    Creates nothing. Let it depend on the subnets and security groups, and let the cluster, its node groups and its
    log group depend on it. Pulumi then deletes it after the cluster and before the network.
    """

    def __init__(
        self, name: str, args: ClusterCleanupArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        props = {**_props("remains", args), "lateLogSeconds": args.late_log_seconds}
        super().__init__(AtDelete(), name, props if args.vpc is None else {**props, "vpc": args.vpc}, opts)


def _props(task: str, args: DrainArgs | ClusterCleanupArgs) -> dict[str, Any]:
    return {
        # Without a profile, the deletion uses the environment's credentials.
        **({"profile": args.profile} if args.profile else {}),
        "task": task,
        "interface": INTERFACE,
        "cluster": args.cluster,
        "region": args.region,
        "timeoutSeconds": args.timeout_seconds,
    }
