"""The volumes that pods can mount: disks, and the shared file system if the settings have one."""

from __future__ import annotations

from dataclasses import dataclass, field

import pulumi

from components.csi import Csi, CsiArgs
from components.documents.lustre import directory
from components.lustre import (
    ExistingFileSystem,
    Lustre,
    LustreArgs,
    LustreProof,
    LustreProofArgs,
    LustreVolume,
    LustreVolumeArgs,
    NewFileSystem,
    S3Link,
)
from components.storage import ModelBucket
from components.warm_nodes import warm_pod_affinity
from infra.foundation import Foundation
from infra.settings import Lustre as LustreSettings
from infra.settings import LustreLink, Settings
from trainyard.k8s import names


@dataclass(frozen=True, kw_only=True)
class Volumes:
    """The volumes of training pods.

    Attributes:
        ready: The resources that must exist before the first pod with a volume, and until the last one is gone.
        paths: The mount path of each claim.
        writes: The directories that training pods write to.
    """

    ready: list[pulumi.Resource] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)
    writes: tuple[str, ...] = ()


def shared_directory(settings: Settings) -> str | None:
    """Return the directory of the shared file system that training pods write to; None without a file system."""
    lustre = settings.storage.lustre
    if lustre is None:
        return None
    return directory(lustre.mount_path, settings.stack, existing=lustre.existing is not None)


def file_system(
    settings: Settings,
    foundation: Foundation,
    bucket: ModelBucket,
    opts: pulumi.ResourceOptions,
) -> Lustre | None:
    """Create the file system. It depends only on the network, so that it is created in parallel with the cluster."""
    spec = settings.storage.lustre
    if spec is None:
        return None
    existing = ExistingFileSystem(**dict(spec.existing)) if spec.existing else None
    return Lustre(
        f"{settings.prefix}-lustre",
        LustreArgs(
            file_system=existing or _new(spec, foundation, bucket),
            protect=settings.protect_data,
            tags=settings.resource_tags,
        ),
        opts,
    )


def _new(spec: LustreSettings, foundation: Foundation, bucket: ModelBucket) -> NewFileSystem:
    return NewFileSystem(
        vpc_id=foundation.network.vpc_id,
        subnet_id=foundation.network.private_by_zone[spec.zone],
        client_groups={"workers": foundation.network.worker_security_group_id},
        key_arn=foundation.keys.data_key_arn,
        deployment=spec.deployment_type,
        capacity_gib=spec.capacity_gib,
        throughput=spec.throughput,
        storage=spec.storage_type,
        drive_cache=spec.drive_cache,
        metadata_iops=spec.metadata_iops,
        compression=spec.compression,
        backup_days=spec.backup_days,
        efa=spec.efa,
        link=_link(spec.s3, foundation, bucket) if spec.s3 else None,
    )


def _link(link: LustreLink, foundation: Foundation, bucket: ModelBucket) -> S3Link:
    return S3Link(
        bucket=link.bucket or bucket.bucket_name,
        prefix=link.prefix.rstrip("/"),
        path=link.path,
        key_arn=None if link.bucket else foundation.keys.data_key_arn,
    )


def volumes(
    settings: Settings,
    foundation: Foundation,
    lustre: Lustre | None,
    namespace: pulumi.Resource,
    opts: pulumi.ResourceOptions,
) -> Volumes:
    """Create the CSI drivers, the default StorageClass, and the claim of the file system in the training namespace.

    The drivers and other add-ons of an existing cluster belong to its owner.
    """
    ready: list[pulumi.Resource] = []
    if foundation.cluster.kubernetes_version is not None:
        drivers = Csi(
            "csi",
            CsiArgs(
                cluster=settings.cluster.name,
                kubernetes_version=foundation.cluster.kubernetes_version,
                account=settings.account,
                key_arn=foundation.keys.data_key_arn,
                oidc_provider_arn=foundation.cluster.oidc_provider_arn,
                lustre=lustre is not None,
                addon_versions=settings.cluster.addon_versions,
                after=foundation.alive,
                tags=settings.resource_tags,
            ),
            opts,
        )
        ready += drivers.ready
    paths: dict[str, str] = {}
    spec = settings.storage.lustre
    if lustre is not None and spec is not None:
        volume = LustreVolume(
            "lustre",
            LustreVolumeArgs(
                file_system_id=lustre.file_system_id,
                dns_name=lustre.dns_name,
                mount_name=lustre.mount_name,
                capacity_gib=spec.capacity_gib,
                namespace=names.TRAINING_NAMESPACE,
                mount_path=spec.mount_path,
                after=[*foundation.alive, *ready, *lustre.ready, namespace],
            ),
            opts,
        )
        ready += [*lustre.ready, *volume.ready]
        paths[volume.claim_name] = volume.mount_path
    shared = shared_directory(settings)
    return Volumes(ready=ready, paths=paths, writes=(shared,) if shared else ())


def proof(
    settings: Settings,
    mounted: Volumes,
    image: pulumi.Input[str],
    after: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> None:
    """Test the mount on a warm node. Without warm nodes there is no test, because it must not launch a node.

    `after` are the resources that keep the nodes.
    """
    warm_pools = [pool for pool in settings.pools if pool.warm_nodes]
    if not warm_pools:
        return
    for (claim, path), writes in zip(mounted.paths.items(), mounted.writes, strict=True):
        LustreProof(
            f"{claim}-proof",
            LustreProofArgs(
                image=image,
                claim=claim,
                mount_path=path,
                writes=writes,
                placement=warm_pod_affinity(warm_pools[0]),
                after=[*mounted.ready, *after],
            ),
            opts,
        )
