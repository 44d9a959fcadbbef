"""The outputs of a stack. `outputs` returns what `pulumi stack output` prints and other programs read.

None of them is a secret. A value that the stack does not have is null.
"""

from __future__ import annotations

import shlex
from typing import Any

import pulumi

from components.identity import Identity
from components.launcher_job import LauncherJob
from components.lustre import Lustre
from components.registry import Images
from components.storage import ModelBucket
from infra import access
from infra.foundation import Foundation
from infra.settings import Settings
from trainyard.k8s import names


def outputs(
    settings: Settings,
    *,
    foundation: Foundation,
    bucket: ModelBucket,
    model_uri: pulumi.Output[str],
    lustre: Lustre | None,
    images: Images,
    trainer: Identity,
    launcher: LauncherJob | None,
) -> dict[str, Any]:
    """Return the stack's outputs by name."""
    return {
        "region": settings.region,
        "vpcId": foundation.network.vpc_id,
        "privateSubnetIdsByZone": foundation.network.private_by_zone,
        "publicSubnetIds": foundation.network.public_subnet_ids,
        "workerSecurityGroupId": foundation.network.worker_security_group_id,
        "clusterName": settings.cluster.name,
        "clusterSecurityGroupId": foundation.cluster.cluster_security_group_id,
        "oidcProviderArn": foundation.cluster.oidc_provider_arn,
        "oidcIssuer": foundation.cluster.oidc_issuer,
        "kubeconfigCommand": _kubeconfig_command(settings),
        "workerRoleArn": foundation.roles.worker.arn,
        "trainerRoleArn": trainer.role_arn,
        "dataKeyArn": foundation.keys.data_key_arn,
        "secretsKeyArn": foundation.keys.secrets_key_arn,
        "modelBucket": bucket.bucket_name,
        "modelUri": model_uri,
        "lustreFileSystemId": lustre.file_system_id if lustre else None,
        "pools": [pool.name for pool in settings.pools],
        "queues": [f"{queue.namespace}/{queue.name}" for queue in settings.queues],
        "trainingNamespace": names.TRAINING_NAMESPACE,
        "submitterPolicies": access.submitter_policies(settings, foundation, bucket) or None,
        "repositoryUrls": images.repository_urls,
        "launcherImage": images.uris["launcher"],
        "trainerImage": images.uris["trainer"],
        "runId": settings.training.run_id if settings.training else None,
        "launcherJobName": launcher.job_name if launcher else None,
        "launcherManifest": launcher.manifest if launcher else None,
    }


def _kubeconfig_command(settings: Settings) -> str:
    command = f"aws eks update-kubeconfig --name {settings.cluster.name} --region {settings.region}"
    profile = settings.provider.profile
    return f"{command} --profile {shlex.quote(profile)}" if profile else command
