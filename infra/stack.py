"""Create the components of a stack, in order. `deploy` is the entry point.

The order is the order of creation. `destroy` deletes a resource before those it depends on, and resources without a
dependency between them in parallel. The `after` list of a component has the resources that must exist before it and
are deleted after it.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from components.debug_pod import DebugPod, DebugPodArgs
from components.device_plugins import DevicePlugins, DevicePluginsArgs
from components.documents import checkpoints, versions
from components.documents.images import mirrored
from components.documents.launch import Run
from components.documents.pool import GPU, NEURON, SPOT
from components.drain import Drain, DrainArgs
from components.fixed_settings import FixedSettings, StartedRun
from components.identity import Identity
from components.karpenter import Karpenter, KarpenterArgs
from components.launcher_job import LauncherJob, LauncherJobArgs
from components.node_check import FabricCheck, FabricCheckArgs, NodeCheck, NodeCheckArgs
from components.operators import (
    KubeflowTrainer,
    KubeflowTrainerArgs,
    Operators,
    OperatorsArgs,
    start_rendering,
)
from components.pools import Placement, PlacementArgs, Pools, PoolsArgs
from components.registry import Images, ImagesArgs
from components.storage import ModelBucket, ModelBucketArgs
from components.torchrun import Torchrun, TorchrunArgs
from components.training import TrainingSpace, TrainingSpaceArgs
from components.warm_nodes import WarmNodes, WarmNodesArgs
from infra import access, changes, image_builds, revision, volumes, warnings
from infra.foundation import Foundation, build_foundation
from infra.outputs import outputs
from infra.settings import Settings, Training, trainer_options
from trainyard.k8s import names

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("launcher", "trainer")


def deploy(settings: Settings) -> dict[str, Any]:
    """Register all resources of the stack. Return its outputs by name."""
    for line in warnings.find_warnings(settings, datetime.now(UTC).date()):
        pulumi.log.warn(line)
    if settings.training_operator:
        start_rendering(settings.sources.training_operator)
    # This resource refuses changes of fixed settings. All others depend on it through their provider.
    record = FixedSettings("settings", changes.fixed_values(settings))
    provider = _aws_provider(settings, record)
    in_aws = pulumi.ResourceOptions(providers=[provider])
    foundation = build_foundation(settings, in_aws, record)
    alive = foundation.alive
    bucket = _bucket(settings, foundation, in_aws)
    lustre = volumes.file_system(settings, foundation, bucket, in_aws)
    images = _images(settings, foundation, in_aws)
    kubernetes = _kubernetes_provider(foundation, record)
    in_both = pulumi.ResourceOptions(providers=[provider, kubernetes])
    karpenter = _karpenter(settings, foundation, in_both)
    placement = _placement(settings, in_aws)
    pools = _pools(settings, foundation, karpenter, placement, in_both)
    operators = _operators(settings, images.uris["trainer"], alive, in_both)
    devices = _device_plugins(settings, alive, in_both)
    trainer = access.trainer_identity(settings, foundation, bucket, in_aws)
    training_namespace = _training_namespace(settings, trainer, alive, in_both)
    namespace = training_namespace.namespace
    mounts = volumes.volumes(settings, foundation, lustre, namespace, in_both)
    accounts = access.service_accounts(settings, foundation, bucket, [*alive, namespace], in_both)
    pod_dependencies = [*training_namespace.objects, *pools.objects, devices, *trainer.granted]
    warm_nodes = _warm_nodes(
        settings, [*training_namespace.objects, *pools.objects, *devices.objects], in_both
    )
    volumes.proof(settings, mounts, images.uris["trainer"], warm_nodes.objects, in_both)
    debug_pod = _debug_pod(settings, namespace, in_both)
    checks = _node_checks(settings, images, mounts, training_namespace.objects, in_both)
    model_uri = pulumi.Output.concat("s3://", bucket.bucket_name, "/", settings.storage.prefix)
    torchrun = _torchrun(
        settings,
        bucket,
        images,
        model_uri,
        mounts,
        after=[*alive, namespace],
        before_jobs=[*pod_dependencies, accounts, *mounts.ready],
        opts=in_both,
    )
    launcher = _launcher(
        settings,
        bucket,
        images,
        model_uri,
        mounts,
        after=[*pod_dependencies, *operators, bucket],
        opts=in_both,
    )
    started_run = _started_run(settings, images, launcher)
    # The drain does not depend on the mount test. If its pod can't be created, `destroy` must still release the nodes.
    # It depends on the trainer's permissions: without queues and `training.runId`, users start runs from the manifest.
    optional = (debug_pod, torchrun, launcher, started_run)
    deleted_after_drain = [
        *(*mounts.ready, *trainer.granted, accounts, warm_nodes, devices, *placement.groups, *checks),
        *(each for each in optional if each is not None),
    ]
    _drain(
        settings,
        [*alive, karpenter, pools, *operators, training_namespace, kubernetes, bucket, *deleted_after_drain],
    )
    return outputs(
        settings,
        foundation=foundation,
        bucket=bucket,
        model_uri=model_uri,
        lustre=lustre,
        images=images,
        trainer=trainer,
        launcher=launcher,
    )


def _aws_provider(settings: Settings, record: FixedSettings) -> aws.Provider:
    """Create the provider. Credentials of another account fail here, before anything is created."""
    return aws.Provider(
        "aws",
        region=settings.region,
        profile=settings.provider.profile,
        allowed_account_ids=[settings.account.id],
        opts=pulumi.ResourceOptions(depends_on=[record]),
    )


def _bucket(settings: Settings, foundation: Foundation, opts: pulumi.ResourceOptions) -> ModelBucket:
    return ModelBucket(
        f"{settings.prefix}-models",
        ModelBucketArgs(
            key_arn=foundation.keys.data_key_arn,
            keep_old_versions_days=settings.storage.keep_old_versions_days,
            keep_job_logs_days=settings.storage.keep_job_logs_days,
            protect=settings.protect_data,
            tags=settings.resource_tags,
        ),
        opts,
    )


def _images(settings: Settings, foundation: Foundation, opts: pulumi.ResourceOptions) -> Images:
    existing = {"launcher": settings.images.launcher, "trainer": settings.images.trainer}
    return Images(
        "images",
        ImagesArgs(
            prefix=settings.prefix,
            root=ROOT,
            names=IMAGES,
            existing={name: uri for name, uri in existing.items() if uri is not None},
            arguments={name: image_builds.arguments(settings.images, name) for name in IMAGES},
            targets=image_builds.targets(settings),
            key_arn=foundation.keys.data_key_arn,
            protect=settings.protect_data,
            tags=settings.resource_tags,
        ),
        opts,
    )


def _kubernetes_provider(foundation: Foundation, record: FixedSettings) -> k8s.Provider:
    return k8s.Provider(
        "cluster",
        kubeconfig=foundation.cluster.kubeconfig,
        opts=pulumi.ResourceOptions(depends_on=[record, *foundation.cluster.access]),
    )


def _karpenter(settings: Settings, foundation: Foundation, opts: pulumi.ResourceOptions) -> Karpenter:
    mirror = settings.images.mirror
    return Karpenter(
        "karpenter",
        KarpenterArgs(
            cluster=settings.cluster.name,
            prefix=settings.prefix,
            account=settings.account,
            node_role_arn=foundation.roles.worker.arn,
            oidc_provider_arn=foundation.cluster.oidc_provider_arn,
            chart=settings.sources.karpenter_chart,
            crd_chart=settings.sources.karpenter_crd_chart,
            version=settings.sources.karpenter_version,
            replicas=settings.cluster.karpenter_replicas,
            image_repository=mirrored(versions.KARPENTER_IMAGE, mirror) if mirror else None,
            isolated_vpc=settings.network.private,
            node_repair=settings.cluster.node_repair,
            volume_key=settings.cluster.volume_key,
            spot=any(pool.purchase == SPOT for pool in settings.pools),
            after=foundation.alive,
            tags=settings.resource_tags,
        ),
        opts,
    )


def _placement(settings: Settings, opts: pulumi.ResourceOptions) -> Placement:
    return Placement("placement", PlacementArgs(pools=settings.pools, tags=settings.resource_tags), opts)


def _pools(
    settings: Settings,
    foundation: Foundation,
    karpenter: Karpenter,
    placement: Placement,
    opts: pulumi.ResourceOptions,
) -> Pools:
    lustre = settings.storage.lustre
    return Pools(
        "pools",
        PoolsArgs(
            cluster=settings.cluster.name,
            pools=settings.pools,
            subnet_ids=foundation.network.private_by_zone,
            node_role_name=foundation.roles.worker.name,
            ami=settings.cluster.ami,
            after=[karpenter.definitions, *foundation.network.worker_security_group, *placement.groups],
            tags=settings.resource_tags,
            instance_profile=foundation.roles.worker_profile_name,
            worker_security_group_id=foundation.worker_security_group_id,
            cluster_security_group_id=foundation.cluster_security_group_id,
            volume_key=settings.cluster.volume_key,
            lustre=lustre is not None,
            lustre_efa=lustre is not None and lustre.efa,
        ),
        opts,
    )


def _operators(
    settings: Settings,
    trainer_image: pulumi.Output[str],
    after: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """Return the operators of the training jobs that the stack runs, and no others."""
    operators: list[pulumi.Resource] = []
    if settings.training_operator:
        operators.append(
            Operators(
                "operators",
                OperatorsArgs(
                    manifests=settings.sources.training_operator,
                    image=settings.images.training_operator,
                    lookup_image=trainer_image,
                    kubectl_image=settings.images.kubectl_delivery if settings.mpi else None,
                    pytorch_jobs=settings.backend == names.BACKEND_PYTORCHJOB,
                    after=after,
                ),
                opts,
            )
        )
    if settings.kubeflow_trainer:
        operators.append(
            KubeflowTrainer(
                "kubeflow-trainer",
                KubeflowTrainerArgs(
                    manifests=settings.sources.kubeflow_trainer,
                    image=settings.images.kubeflow_trainer,
                    jobset_manifests=settings.sources.jobset,
                    jobset_image=settings.images.jobset,
                    after=after,
                ),
                opts,
            )
        )
    return operators


def _device_plugins(
    settings: Settings, after: list[pulumi.Resource], opts: pulumi.ResourceOptions
) -> DevicePlugins:
    return DevicePlugins(
        "devices",
        DevicePluginsArgs(
            pools=settings.pools,
            images={
                GPU: settings.images.device_plugin,
                names.EFA_RESOURCE: settings.images.efa_device_plugin,
                NEURON: settings.images.neuron_device_plugin,
            },
            after=after,
        ),
        opts,
    )


def _training_namespace(
    settings: Settings, trainer: Identity, after: list[pulumi.Resource], opts: pulumi.ResourceOptions
) -> TrainingSpace:
    return TrainingSpace(
        "training",
        TrainingSpaceArgs(
            trainer_role_arn=trainer.role_arn,
            after=after,
            mpi=settings.mpi,
            lustre=settings.storage.lustre is not None,
            backend=settings.backend,
        ),
        opts,
    )


def _warm_nodes(settings: Settings, after: list[pulumi.Resource], opts: pulumi.ResourceOptions) -> WarmNodes:
    return WarmNodes(
        "warm-nodes",
        WarmNodesArgs(pools=settings.pools, image=settings.images.placeholder, after=after),
        opts,
    )


def _debug_pod(
    settings: Settings, namespace: pulumi.Resource, opts: pulumi.ResourceOptions
) -> DebugPod | None:
    if not settings.debug_pod:
        return None
    return DebugPod("debug", DebugPodArgs(image=settings.images.debug, after=[namespace]), opts)


def _node_checks(
    settings: Settings,
    images: Images,
    mounts: volumes.Volumes,
    namespace: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    if not settings.node_check:
        return []
    image, after = images.uris["trainer"], [*namespace, *mounts.ready]
    node_check = NodeCheckArgs(pools=settings.pools, image=image, mounts=mounts.paths, after=after)
    fabric_check = FabricCheckArgs(pools=settings.pools, image=image, after=after)
    return [NodeCheck("node-check", node_check, opts), FabricCheck("fabric-check", fabric_check, opts)]


def _torchrun(
    settings: Settings,
    bucket: ModelBucket,
    images: Images,
    model_uri: pulumi.Output[str],
    mounts: volumes.Volumes,
    *,
    after: list[pulumi.Resource],
    before_jobs: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> Torchrun | None:
    if not settings.queues:
        return None
    return Torchrun(
        "torchrun",
        TorchrunArgs(
            queues=settings.queues,
            launcher_image=images.uris["launcher"],
            trainer_image=images.uris["trainer"],
            bucket_name=bucket.bucket_name,
            model_uri=model_uri,
            region=settings.region,
            mounts=mounts.paths,
            writes=mounts.writes,
            after=after,
            before_jobs=before_jobs,
        ),
        opts,
    )


def _launcher(
    settings: Settings,
    bucket: ModelBucket,
    images: Images,
    model_uri: pulumi.Output[str],
    mounts: volumes.Volumes,
    *,
    after: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> LauncherJob | None:
    if settings.training is None:
        return None
    return LauncherJob(
        "launcher",
        LauncherJobArgs(
            run=_run(settings, settings.training, mounts),
            launcher_image=images.uris["launcher"],
            trainer_image=images.uris["trainer"],
            placeholder_image=settings.images.placeholder,
            model_uri=model_uri,
            checkpoint_uri=checkpoint_uri(settings, settings.training, bucket),
            after=after,
        ),
        opts,
    )


def _started_run(settings: Settings, images: Images, launcher: LauncherJob | None) -> StartedRun | None:
    """Record the settings and images of the run when its Job exists.

    An image that the stack builds changes with its sources, and with settings such as `images.packageIndex`.
    """
    training = settings.training
    if training is None or launcher is None or launcher.job is None:
        return None
    values = {
        **changes.run_values(settings, training),
        **{f"the {name} image": images.uris[name] for name in IMAGES},
    }
    return StartedRun(
        f"run-{training.run_id}",
        training.run_id or "",
        launcher.job.metadata.apply(lambda metadata: getattr(metadata, "uid", None) or ""),
        values,
        pulumi.ResourceOptions(depends_on=[launcher.job]),
    )


def _drain(settings: Settings, needed: list[pulumi.Resource]) -> None:
    Drain(
        "drain",
        DrainArgs(
            cluster=settings.cluster.name,
            region=settings.region,
            # An existing cluster may also have pools of others.
            pools=[pool.name for pool in settings.pools] if settings.cluster.existing else None,
            torchrun=bool(settings.queues),
            profile=settings.provider.profile,
        ),
        pulumi.ResourceOptions(depends_on=needed),
    )


def checkpoint_uri(settings: Settings, training: Training, bucket: ModelBucket) -> pulumi.Output[str | None]:
    """Return the URI of the checkpoints. `infra.settings.rules` checks that their file system exists."""
    shared = volumes.shared_directory(settings)
    return bucket.bucket_name.apply(lambda name: checkpoints.uri(training.checkpoints, name, shared))


def _run(settings: Settings, training: Training, mounts: volumes.Volumes) -> Run:
    """Return the run with the arguments, mounts and revision that the stack adds."""
    built = settings.images.trainer is None
    first = trainer_options.of_the_stack(volumes.shared_directory(settings), built=built)
    return run_of(
        training.model_copy(update={"args": (*first, *training.args)}),
        settings.region,
        mounts.paths,
        mounts.writes,
        # An image from the settings has its own revision.
        revision.revision(ROOT) if built else None,
    )


def run_of(
    training: Training,
    region: str,
    mounts: dict[str, str],
    writes: tuple[str, ...] = (),
    revision: str | None = None,
) -> Run:
    """Return the run of the settings.

    Args:
        mounts: The claims of shared volumes, with their directories in workers.
        writes: The directories there that all workers may write to.
        revision: The trainer's revision, which workers get in their environment.
    """
    added: dict[str, Any] = {"region": region, "mounts": mounts, "writes": writes, "revision": revision}
    added["secrets"] = training.secret_keys
    own = {each.name: getattr(training, each.name) for each in fields(Run) if each.name not in added}
    return Run(**own, **added)
