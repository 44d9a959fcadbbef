"""Create the network, the roles, the keys and the cluster. `build_foundation` is the entry point."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi

from components.cluster import BaseCluster, Cluster, ClusterArgs, ExistingCluster, ExistingClusterArgs
from components.documents import iam
from components.documents.vpc import private_endpoints
from components.drain import ClusterCleanup, ClusterCleanupArgs
from components.encryption import Encryption, EncryptionArgs
from components.identity import NodeRoles, NodeRolesArgs
from components.network import (
    BaseNetwork,
    ExistingNetwork,
    ExistingNetworkArgs,
    FlowLogSettings,
    Network,
    NetworkArgs,
)
from infra.settings import Settings

# The minimum and the maximum of KMS (https://docs.aws.amazon.com/kms/latest/developerguide/deleting-keys.html).
KEY_DELETION_DAYS = {False: 7, True: 30}


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """Handles of the resources that all workloads need.

    Attributes:
        alive: The resources that must exist as long as anything runs in the cluster.
        worker_security_group_id: The workers' existing security group; None if it is found by its tags.
        cluster_security_group_id: The security group that EKS created for an existing cluster; None if it is found by
            its tags.
    """

    network: BaseNetwork
    roles: NodeRoles
    keys: Encryption
    cluster: BaseCluster
    alive: list[pulumi.Resource]
    worker_security_group_id: str | None
    cluster_security_group_id: str | None


def build_foundation(settings: Settings, opts: pulumi.ResourceOptions, record: pulumi.Resource) -> Foundation:
    """Create the resources that the settings don't name. All of them depend on `record`, which checks the settings."""
    name, existing, prefix = settings.cluster.name, settings.cluster.existing, settings.prefix
    roles = NodeRoles(
        "node-roles",
        NodeRolesArgs(
            prefix=prefix,
            account=settings.account,
            system=existing is None,
            # Without a route to IAM, Karpenter can't create an instance profile.
            instance_profile=settings.network.private,
            # The VPC CNI of an existing cluster may have no role of its own.
            cni=existing is not None,
            tags=settings.resource_tags,
        ),
        opts,
    )
    keys = Encryption(
        prefix,
        EncryptionArgs(
            cluster=name,
            account=settings.account,
            deletion_window_days=KEY_DELETION_DAYS[settings.protect_data],
            protect=settings.protect_data,
            log_groups=_log_groups(settings),
            tags=settings.resource_tags,
        ),
        opts,
    )
    network = _network(settings, keys, opts)
    cluster: BaseCluster
    if existing is None:
        cluster = _new_cluster(settings, network, roles, keys, opts, record)
    else:
        cluster = ExistingCluster(
            name,
            ExistingClusterArgs(
                name=name,
                region=settings.region,
                endpoint=existing.endpoint,
                certificate_authority=existing.certificate_authority,
                oidc_provider_arn=existing.oidc_provider_arn,
                security_group_id=existing.security_group_id,
                worker_role_arn=roles.worker.arn,
                profile=settings.provider.profile,
                tags=settings.resource_tags,
            ),
            opts,
        )
    existing_vpc = settings.network.existing
    return Foundation(
        network=network,
        roles=roles,
        keys=keys,
        cluster=cluster,
        alive=[*network.egress, *roles.attachments, *cluster.access, *cluster.ready],
        worker_security_group_id=existing_vpc.worker_security_group_id if existing_vpc else None,
        cluster_security_group_id=existing.security_group_id if existing else None,
    )


def _log_groups(settings: Settings) -> tuple[str, ...]:
    """Return the names of the log groups that the stack creates. One key encrypts all of them."""
    name = settings.cluster.name
    control_plane = () if settings.cluster.existing else (iam.control_plane_group(name),)
    return (*control_plane, *((iam.flow_logs_group(name),) if settings.network.flow_logs else ()))


def _network(settings: Settings, keys: Encryption, opts: pulumi.ResourceOptions) -> BaseNetwork:
    spec, existing = settings.network, settings.network.existing
    logs = None
    if spec.flow_logs and keys.logs_key_arn is not None:
        logs = FlowLogSettings(key_arn=keys.logs_key_arn, retention_days=spec.flow_log_retention_days)
    if existing is not None:
        return ExistingNetwork(
            settings.prefix,
            ExistingNetworkArgs(
                account=settings.account,
                cluster=settings.cluster.name,
                vpc_id=existing.vpc_id,
                private_subnet_ids=existing.private_subnet_ids,
                public_subnet_ids=existing.public_subnet_ids,
                worker_security_group_id=existing.worker_security_group_id,
                cidr=spec.cidr,
                interface_endpoints=spec.interface_endpoints,
                flow_logs=logs,
                tags=settings.resource_tags,
            ),
            opts,
        )
    services = spec.interface_endpoints
    if spec.private:
        services = private_endpoints(file_system=settings.storage.lustre is not None, more=services)
    return Network(
        settings.prefix,
        NetworkArgs(
            account=settings.account,
            cluster=settings.cluster.name,
            # Only an existing VPC can have no range here (`infra.settings.network`).
            cidr=spec.cidr or "",
            zones=spec.zones,
            nat_per_zone=spec.nat_per_zone,
            private=spec.private,
            interface_endpoints=services,
            flow_logs=logs,
            tags=settings.resource_tags,
        ),
        opts,
    )


def _new_cluster(
    settings: Settings,
    network: BaseNetwork,
    roles: NodeRoles,
    keys: Encryption,
    opts: pulumi.ResourceOptions,
    record: pulumi.Resource,
) -> Cluster:
    spec = settings.cluster
    cleanup = ClusterCleanup(
        "remains",
        ClusterCleanupArgs(
            cluster=spec.name,
            region=settings.region,
            vpc=None if settings.network.existing else network.vpc_id,
            late_log_seconds=spec.late_log_seconds,
            profile=settings.provider.profile,
        ),
        pulumi.ResourceOptions(depends_on=[record, *network.deleted_after_cluster]),
    )
    # A deployment from inside the VPC needs a separate rule, because it does not come from a node.
    inside = settings.network.cidr if spec.deploy_from == "vpc" else None
    return Cluster(
        spec.name,
        ClusterArgs(
            name=spec.name,
            version=spec.version,
            account=settings.account,
            vpc_id=network.vpc_id,
            private_subnet_ids=network.private_subnet_ids,
            public_subnet_ids=network.public_subnet_ids,
            public_access_cidrs=spec.public_access_cidrs,
            private_access_cidrs=(inside,) if inside else (),
            administrators=spec.administrators,
            secrets_key_arn=keys.secrets_key_arn,
            logs_key_arn=keys.logs_key_arn,
            system_role=roles.system,
            worker_role=roles.worker,
            system_instance_type=spec.system_nodes.instance_type,
            system_count=spec.system_nodes.count,
            addon_versions=spec.addon_versions,
            volume_key=spec.volume_key,
            log_retention_days=spec.log_retention_days,
            deletion_protection=settings.protect_data,
            # The leftovers of nodes and control plane are deleted after both and before the subnets.
            control_plane_dependencies=[cleanup],
            node_dependencies=[*network.egress, *roles.attachments],
            profile=settings.provider.profile,
            tags=settings.resource_tags,
        ),
        opts,
    )
