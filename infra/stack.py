"""The composition root: which components a stack has, in which order, with which handles.

The order is that of creation; `destroy` runs it backwards. What may not be gone before something else is named in
that other thing's `after` list.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from components.cluster import Cluster, ClusterArgs
from components.device_plugins import DevicePlugins, DevicePluginsArgs
from components.drain import Drain
from components.encryption import Encryption, EncryptionArgs
from components.identity import Identity, IdentityArgs
from components.karpenter import Karpenter, KarpenterArgs
from components.launcher_job import LauncherJob, LauncherJobArgs
from components.network import Network, NetworkArgs
from components.node_roles import NodeRoles, NodeRolesArgs
from components.operators import Operators, OperatorsArgs
from components.pools import Pools, PoolsArgs
from components.registry import Images, ImagesArgs
from components.shared import contract as c
from components.shared import iam
from components.shared.efa import EFA_RESOURCE
from components.shared.launch import Run
from components.shared.pool import GPU, NEURON
from components.shared.tags import stack_tags
from components.storage import ModelBucket, ModelBucketArgs
from components.training import TrainingSpace, TrainingSpaceArgs
from infra import eks_registry, versions
from infra.model import Settings
from infra.settings import PROJECT

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("launcher", "trainer")
# Evictions, terminations and EC2's own time for them; ten minutes were ample where it was measured.
DRAIN_TIMEOUT_SECONDS = 1800
# The shortest and the longest time that AWS offers (https://docs.aws.amazon.com/kms/latest/developerguide/deleting-keys.html).
KEY_DELETION_DAYS = {False: 7, True: 30}


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """What is there before anything runs in the cluster."""

    network: Network
    roles: NodeRoles
    keys: Encryption
    cluster: Cluster


def deploy(settings: Settings) -> dict[str, Any]:
    """Register every resource of the stack; returns the stack's outputs by name."""
    tags = stack_tags(PROJECT, settings.stack)
    provider = aws.Provider("aws", region=settings.region)
    in_aws = pulumi.ResourceOptions(providers=[provider])
    base = _foundation(settings, tags, in_aws)
    bucket = ModelBucket(
        f"{settings.cluster.name}-models",
        ModelBucketArgs(
            key_arn=base.keys.data_key_arn,
            keep_old_versions_days=settings.storage.keep_old_versions_days,
            protect=settings.protect_data,
            tags=tags,
        ),
        in_aws,
    )
    images = Images(
        "images",
        ImagesArgs(
            cluster=settings.cluster.name,
            root=ROOT,
            names=IMAGES,
            given={
                name: uri
                for name, uri in (
                    ("launcher", settings.images.launcher),
                    ("trainer", settings.images.trainer),
                )
                if uri is not None
            },
            key_arn=base.keys.data_key_arn,
            force_delete=not settings.protect_data,
            tags=tags,
        ),
        in_aws,
    )
    kubernetes = k8s.Provider(
        "cluster",
        kubeconfig=base.cluster.kubeconfig,
        opts=pulumi.ResourceOptions(depends_on=base.cluster.access),
    )
    in_both = pulumi.ResourceOptions(providers=[provider, kubernetes])
    alive = [*base.network.egress, *base.roles.attachments, *base.cluster.access, *base.cluster.ready]
    karpenter = Karpenter(
        "karpenter",
        KarpenterArgs(
            cluster=settings.cluster.name,
            region=settings.region,
            node_role_arn=base.roles.worker.arn,
            oidc_provider_arn=base.cluster.oidc_provider_arn,
            oidc_issuer=base.cluster.oidc_issuer,
            chart=settings.sources.karpenter_chart,
            crd_chart=settings.sources.karpenter_crd_chart,
            version=settings.sources.karpenter_version,
            replicas=settings.cluster.karpenter_replicas,
            after=alive,
            tags=tags,
        ),
        in_both,
    )
    pools = Pools(
        "pools",
        PoolsArgs(
            cluster=settings.cluster.name,
            pools=settings.pools,
            subnet_ids=base.network.private_by_zone,
            node_role_name=base.roles.worker.name,
            ami=settings.cluster.ami,
            after=[karpenter.controller, *base.network.worker_group],
            tags=tags,
        ),
        in_both,
    )
    operators = Operators(
        "operators",
        OperatorsArgs(
            manifests=settings.sources.training_operator,
            image=settings.images.training_operator,
            lookup_image=images.uris["trainer"],
            after=alive,
        ),
        in_both,
    )
    devices = DevicePlugins(
        "devices",
        DevicePluginsArgs(
            pools=settings.pools,
            images={
                GPU: settings.images.device_plugin,
                EFA_RESOURCE: eks_registry.efa_plugin(settings.region),
                NEURON: versions.NEURON_PLUGIN_IMAGE,
            },
            after=alive,
        ),
        in_both,
    )
    trainer = _trainer_identity(settings, base, bucket, tags, in_aws)
    space = TrainingSpace(
        "training", TrainingSpaceArgs(trainer_role_arn=trainer.role_arn, after=alive), in_both
    )
    model_uri = pulumi.Output.concat("s3://", bucket.bucket_name, "/", settings.storage.prefix)
    launcher = LauncherJob(
        "launcher",
        LauncherJobArgs(
            run=_run(settings),
            launcher_image=images.uris["launcher"],
            trainer_image=images.uris["trainer"],
            placeholder_image=settings.images.placeholder,
            model_uri=model_uri,
            after=[*space.objects, *pools.objects, operators, devices, *trainer.granted, bucket],
        ),
        in_both,
    )
    Drain(
        "drain",
        settings.cluster.name,
        settings.region,
        DRAIN_TIMEOUT_SECONDS,
        pulumi.ResourceOptions(
            depends_on=[*alive, karpenter, pools, operators, devices, space, launcher, kubernetes, bucket]
        ),
    )
    return {
        "clusterName": settings.cluster.name,
        "region": settings.region,
        "kubeconfigCommand": (
            f"aws eks update-kubeconfig --name {settings.cluster.name} --region {settings.region}"
        ),
        "modelBucket": bucket.bucket_name,
        "modelUri": model_uri,
        "trainingNamespace": c.TRAINING_NAMESPACE,
        "runId": settings.training.run_id,
        "launcherJobName": launcher.job_name,
        "launcherManifest": launcher.manifest,
        "repositoryUrls": images.repository_urls,
    }


def _foundation(settings: Settings, tags: dict[str, str], opts: pulumi.ResourceOptions) -> Foundation:
    cluster = settings.cluster
    partition = _partition(settings.region)
    network = Network(
        cluster.name,
        NetworkArgs(
            region=settings.region,
            cluster=cluster.name,
            cidr=settings.network.cidr,
            zones=settings.network.zones,
            nat_per_zone=settings.network.nat_per_zone,
            tags=tags,
        ),
        opts,
    )
    roles = NodeRoles("node-roles", NodeRolesArgs(cluster=cluster.name, partition=partition, tags=tags), opts)
    keys = Encryption(
        cluster.name,
        EncryptionArgs(
            cluster=cluster.name,
            region=settings.region,
            principal_arn=roles.system.arn,
            deletion_window_days=KEY_DELETION_DAYS[settings.protect_data],
            protect=settings.protect_data,
            tags=tags,
        ),
        opts,
    )
    eks = Cluster(
        cluster.name,
        ClusterArgs(
            name=cluster.name,
            version=cluster.version,
            partition=partition,
            vpc_id=network.vpc_id,
            private_subnet_ids=network.private_subnet_ids,
            public_subnet_ids=network.public_subnet_ids,
            public_access_cidrs=cluster.public_access_cidrs,
            administrators=cluster.administrators,
            secrets_key_arn=keys.secrets_key_arn,
            system_role=roles.system,
            worker_role=roles.worker,
            system_instance_type=cluster.system_instance_type,
            system_count=cluster.system_count,
            addon_versions=cluster.addon_versions,
            log_retention_days=cluster.log_retention_days,
            deletion_protection=settings.protect_data,
            after=[*network.egress, *roles.attachments],
            tags=tags,
        ),
        opts,
    )
    return Foundation(network=network, roles=roles, keys=keys, cluster=eks)


def _trainer_identity(
    settings: Settings,
    base: Foundation,
    bucket: ModelBucket,
    tags: dict[str, str],
    opts: pulumi.ResourceOptions,
) -> Identity:
    policy = pulumi.Output.json_dumps(
        pulumi.Output.all(bucket=bucket.bucket_arn, key=base.keys.data_key_arn).apply(
            lambda known: iam.model_writer(
                bucket_arn=known["bucket"], prefix=settings.storage.prefix, key_arn=known["key"]
            )
        )
    )
    return Identity(
        f"{settings.cluster.name}-trainer",
        IdentityArgs(
            namespace=c.TRAINING_NAMESPACE,
            service_account=c.TRAINER_SERVICE_ACCOUNT,
            oidc_provider_arn=base.cluster.oidc_provider_arn,
            oidc_issuer=base.cluster.oidc_issuer,
            policies={"models": policy},
            tags=tags,
        ),
        opts,
    )


def _run(settings: Settings) -> Run:
    training = settings.training
    return Run(
        pool=training.pool,
        run_id=training.run_id,
        min_nodes=training.min_nodes,
        max_nodes=training.max_nodes,
        device=training.device,
        processes_per_node=training.processes_per_node,
        capacity_deadline_seconds=training.capacity_deadline_seconds,
        hold_seconds=training.hold_seconds,
        active_deadline_seconds=training.active_deadline_seconds,
        data=training.data,
        args=training.args,
        env=training.env,
        cpu=training.cpu,
        memory=training.memory,
        shared_memory=training.shared_memory,
        region=settings.region,
    )


def _partition(region: str) -> str:
    """The partition that a region belongs to."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"
