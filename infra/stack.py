"""Create the components of a stack, in order. `deploy` is the entry point.

The order is the order of creation, and `destroy` reverses it. The `after` list of a component has the resources that
must exist before it and are deleted after it.
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
from components.documents.tags import stack_tags
from components.drain import Drain, DrainArgs
from components.fixed_settings import FixedSettings, StartedRun
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
from infra import (
    access,
    changes,
    foundation,
    image_builds,
    revision,
    volumes,
    warnings,
)
from infra.foundation import Foundation
from infra.outputs import outputs
from infra.settings import PROJECT, Settings, Training, trainer_options
from trainyard.k8s import names

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ("launcher", "trainer")


def deploy(settings: Settings) -> dict[str, Any]:
    """Register all resources of the stack. Return its outputs by name."""
    for line in warnings.find_warnings(settings, datetime.now(UTC).date()):
        pulumi.log.warn(line)
    if settings.training_operator:
        start_rendering(settings.sources.training_operator)
    # Set the tags on each resource, not as defaults of the provider, so that nodes and volumes also have them.
    tags = {**settings.tags, **stack_tags(PROJECT, settings.stack)}
    # This resource refuses changes of fixed settings. All others depend on it through their provider.
    record = FixedSettings("settings", changes.fixed_values(settings))
    # Credentials of another account fail here, before anything is created.
    provider = aws.Provider(
        "aws",
        region=settings.region,
        profile=settings.provider.profile,
        allowed_account_ids=[settings.account.id],
        opts=pulumi.ResourceOptions(depends_on=[record]),
    )
    in_aws = pulumi.ResourceOptions(providers=[provider])
    base = foundation.build(settings, tags, in_aws, record)
    bucket = ModelBucket(
        f"{settings.prefix}-models",
        ModelBucketArgs(
            key_arn=base.keys.data_key_arn,
            keep_old_versions_days=settings.storage.keep_old_versions_days,
            keep_job_logs_days=settings.storage.keep_job_logs_days,
            protect=settings.protect_data,
            tags=tags,
        ),
        in_aws,
    )
    lustre = volumes.file_system(settings, base, bucket, tags, in_aws)
    images = _images(settings, base, tags, in_aws)
    kubernetes = k8s.Provider(
        "cluster",
        kubeconfig=base.cluster.kubeconfig,
        opts=pulumi.ResourceOptions(depends_on=[record, *base.cluster.access]),
    )
    in_both = pulumi.ResourceOptions(providers=[provider, kubernetes])
    karpenter = _karpenter(settings, base, tags, in_both)
    groups = Placement("placement", PlacementArgs(pools=settings.pools, tags=tags), in_aws).groups
    pools = Pools(
        "pools",
        PoolsArgs(
            cluster=settings.cluster.name,
            pools=settings.pools,
            subnet_ids=base.network.private_by_zone,
            node_role_name=base.roles.worker.name,
            ami=settings.cluster.ami,
            after=[karpenter.definitions, *base.network.worker_group, *groups],
            tags=tags,
            instance_profile=base.roles.worker_profile_name,
            worker_group_id=base.worker_group_id,
            cluster_group_id=base.cluster_group_id,
            volume_key=settings.cluster.volume_key,
            lustre=lustre is not None,
            lustre_efa=settings.storage.lustre is not None and settings.storage.lustre.efa,
        ),
        in_both,
    )
    operators = _operators(settings, images.uris["trainer"], base.alive, in_both)
    devices = DevicePlugins(
        "devices",
        DevicePluginsArgs(
            pools=settings.pools,
            images={
                GPU: settings.images.device_plugin,
                names.EFA_RESOURCE: settings.images.efa_device_plugin,
                NEURON: settings.images.neuron_device_plugin,
            },
            after=base.alive,
        ),
        in_both,
    )
    trainer = access.trainer_identity(settings, base, bucket, tags, in_aws)
    space = TrainingSpace(
        "training",
        TrainingSpaceArgs(
            trainer_role_arn=trainer.role_arn,
            after=base.alive,
            mpi=settings.mpi,
            lustre=lustre is not None,
            backend=settings.backend,
        ),
        in_both,
    )
    mounts = volumes.volumes(settings, base, lustre, [space.namespace], tags, in_both)
    accounts = access.service_accounts(settings, base, bucket, [*base.alive, space.namespace], tags, in_both)
    warm = WarmNodes(
        "warm-nodes",
        WarmNodesArgs(
            pools=settings.pools,
            image=settings.images.placeholder,
            after=[*space.objects, *pools.objects, *devices.objects],
        ),
        in_both,
    )
    # The test is not one of `others`: if its pod can't be created, the nodes must still be released at the end.
    volumes.proof(settings, mounts, images.uris["trainer"], warm.objects, in_both)
    others: list[pulumi.Resource] = [*mounts.ready, accounts, warm, devices, *groups]
    if settings.debug_pod:
        others.append(
            DebugPod("debug", DebugPodArgs(image=settings.images.debug, after=[space.namespace]), in_both)
        )
    if settings.node_check:
        image, after = images.uris["trainer"], [*space.objects, *mounts.ready]
        node_check = NodeCheckArgs(pools=settings.pools, image=image, mounts=mounts.paths, after=after)
        fabric_check = FabricCheckArgs(pools=settings.pools, image=image, after=after)
        others += [
            NodeCheck("node-check", node_check, in_both),
            FabricCheck("fabric-check", fabric_check, in_both),
        ]
    model_uri = pulumi.Output.concat("s3://", bucket.bucket_name, "/", settings.storage.prefix)
    if settings.queues:
        others.append(
            Torchrun(
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
                    after=[*base.alive, space.namespace],
                    before_jobs=[
                        *(*space.objects, *pools.objects, devices, accounts),
                        *(*trainer.granted, *mounts.ready),
                    ],
                ),
                in_both,
            )
        )
    launcher = None
    if settings.training is not None:
        launcher = LauncherJob(
            "launcher",
            LauncherJobArgs(
                run=_run(settings, settings.training, mounts),
                launcher_image=images.uris["launcher"],
                trainer_image=images.uris["trainer"],
                placeholder_image=settings.images.placeholder,
                model_uri=model_uri,
                checkpoint_uri=checkpoint_uri(settings, settings.training, bucket),
                after=[*space.objects, *pools.objects, *operators, devices, *trainer.granted, bucket],
            ),
            in_both,
        )
        others.append(launcher)
        if launcher.job is not None:
            others.append(_started_run(settings, settings.training, images.uris, launcher.job))
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
        pulumi.ResourceOptions(
            depends_on=[*base.alive, karpenter, pools, *operators, space, kubernetes, bucket, *others]
        ),
    )
    return outputs(
        settings,
        base=base,
        bucket=bucket,
        model_uri=model_uri,
        lustre=lustre,
        images=images,
        trainer=trainer,
        launcher=launcher,
    )


def _operators(
    settings: Settings,
    trainer_image: pulumi.Output[str],
    after: list[pulumi.Resource],
    opts: pulumi.ResourceOptions,
) -> list[pulumi.Resource]:
    """Return the operators of the training jobs that the stack runs, and no others."""
    found: list[pulumi.Resource] = []
    if settings.training_operator:
        found.append(
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
        found.append(
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
    return found


def _started_run(
    settings: Settings, training: Training, uris: dict[str, pulumi.Output[str]], job: k8s.batch.v1.Job
) -> StartedRun:
    """Record the settings and images of the run when its Job exists.

    An image that the stack builds changes with its sources, and with settings such as `images.packageIndex`.
    """
    values = {
        **changes.run_values(settings, training),
        **{f"the {name} image": uris[name] for name in IMAGES},
    }
    return StartedRun(
        f"run-{training.run_id}",
        training.run_id or "",
        job.metadata.apply(lambda metadata: getattr(metadata, "uid", None) or ""),
        values,
        pulumi.ResourceOptions(depends_on=[job]),
    )


def _images(
    settings: Settings, base: Foundation, tags: dict[str, str], opts: pulumi.ResourceOptions
) -> Images:
    given = {"launcher": settings.images.launcher, "trainer": settings.images.trainer}
    return Images(
        "images",
        ImagesArgs(
            prefix=settings.prefix,
            root=ROOT,
            names=IMAGES,
            given={name: uri for name, uri in given.items() if uri is not None},
            arguments={name: image_builds.arguments(settings.images, name) for name in IMAGES},
            targets=image_builds.targets(settings),
            key_arn=base.keys.data_key_arn,
            protect=settings.protect_data,
            tags=tags,
        ),
        opts,
    )


def _karpenter(
    settings: Settings, base: Foundation, tags: dict[str, str], opts: pulumi.ResourceOptions
) -> Karpenter:
    mirror = settings.images.mirror
    return Karpenter(
        "karpenter",
        KarpenterArgs(
            cluster=settings.cluster.name,
            prefix=settings.prefix,
            account=settings.account,
            node_role_arn=base.roles.worker.arn,
            oidc_provider_arn=base.cluster.oidc_provider_arn,
            chart=settings.sources.karpenter_chart,
            crd_chart=settings.sources.karpenter_crd_chart,
            version=settings.sources.karpenter_version,
            replicas=settings.cluster.karpenter_replicas,
            image_repository=mirrored(versions.KARPENTER_IMAGE, mirror) if mirror else None,
            isolated_vpc=settings.network.private,
            node_repair=settings.cluster.node_repair,
            volume_key=settings.cluster.volume_key,
            spot=any(pool.purchase == SPOT for pool in settings.pools),
            after=base.alive,
            tags=tags,
        ),
        opts,
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
    given: dict[str, Any] = {"region": region, "mounts": mounts, "writes": writes, "revision": revision}
    given["secrets"] = training.secret_keys
    own = {each.name: getattr(training, each.name) for each in fields(Run) if each.name not in given}
    return Run(**own, **given)
