"""Rules for the EKS cluster: who reaches it, who may use it, what it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from infra.versions import KUBERNETES_SUPPORTED
from trainyard.policies.model import Resource, Rules, Stack
from trainyard.policies.network import LOG_GROUP
from trainyard.policies.security_groups import anywhere

RULES: Final = Rules()

CLUSTER: Final = "aws:eks/cluster:Cluster"
CONFIG_MAP: Final = "kubernetes:core/v1:ConfigMap"
BUCKET: Final = "aws:s3/bucket:Bucket"
LOG_TYPES: Final = ("api", "audit", "authenticator", "controllerManager", "scheduler")


@RULES.rule("cluster-endpoint-private", "CIS EKS 5.4.1", "CIS EKS 5.4.2", types=[CLUSTER])
def cluster_endpoint_private(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The API server is reached from inside the VPC."""
    if not resource.at("vpcConfig", "endpointPrivateAccess", default=False):
        yield "vpcConfig.endpointPrivateAccess is not true; it must be"


@RULES.rule(
    "cluster-endpoint-public",
    *("CKV_AWS_38", "CKV_AWS_39", "AVD-AWS-0040", "AVD-AWS-0041", "CIS EKS 5.4.1"),
    types=[CLUSTER],
)
def cluster_endpoint_public(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The API server is on the internet only for ranges that are given."""
    # EKS itself takes true and everywhere where nothing is said.
    if not resource.at("vpcConfig", "endpointPublicAccess", default=True):
        return
    ranges = resource.known("vpcConfig", "publicAccessCidrs", default=[])
    if not ranges:
        yield "vpcConfig.endpointPublicAccess is on without publicAccessCidrs; it must be false, or the ranges given"
    for block in ranges:
        if anywhere(str(block)):
            yield f"vpcConfig.publicAccessCidrs has {block}; it must name the ranges that deploy"


@RULES.rule("cluster-logs", "CKV_AWS_37", "AVD-AWS-0038", "CIS EKS 2.1.1", types=[CLUSTER])
def cluster_logs(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The control plane writes all five kinds of logs."""
    missing = sorted(set(LOG_TYPES) - set(resource.known("enabledClusterLogTypes", default=[])))
    if missing:
        yield f"enabledClusterLogTypes lacks {', '.join(missing)}; it must have all of {', '.join(LOG_TYPES)}"


@RULES.rule("cluster-log-group-ours", "CIS EKS 2.1.2", types=[CLUSTER], whole_stack=True)
def cluster_log_group_ours(resource: Resource, stack: Stack) -> Iterator[str]:
    """The log group of the control plane is a resource of ours; EKS would make one without a key and an end."""
    wanted = f"/aws/eks/{resource.at('name', default='')}/cluster"
    if wanted not in [group.at("name") for group in stack.of(LOG_GROUP)]:
        yield f"no LogGroup is named {wanted}; there must be one, made before the cluster"


@RULES.rule("cluster-secrets-encrypted", "CKV_AWS_58", "AVD-AWS-0039", "CIS EKS 5.3.1", types=[CLUSTER])
def cluster_secrets_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Kubernetes secrets are encrypted with a key of ours."""
    if "secrets" not in resource.known("encryptionConfig", "resources", default=[]):
        yield "encryptionConfig.resources lacks secrets; it must have it"
    if not resource.has("encryptionConfig", "provider", "keyArn"):
        yield "encryptionConfig.provider.keyArn is missing; it must name a KMS key"


@RULES.rule("cluster-version-supported", "CKV_AWS_339", types=[CLUSTER])
def cluster_version_supported(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The Kubernetes version is one that EKS supports."""
    version = resource.at("version")
    if version not in KUBERNETES_SUPPORTED:
        yield f"version is {version or 'missing'}; it must be one of {', '.join(KUBERNETES_SUPPORTED)}"


@RULES.rule("cluster-access-by-entries", "CIS EKS 4.1.1", "CIS EKS 5.5.1", types=[CLUSTER, CONFIG_MAP])
def cluster_access_by_entries(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Access entries alone decide who may use the cluster."""
    if resource.type == CLUSTER:
        mode = resource.at("accessConfig", "authenticationMode")
        if mode != "API":
            yield f"accessConfig.authenticationMode is {mode or 'missing'}; it must be API"
    elif resource.at("metadata", "name") == "aws-auth":
        yield "metadata.name is aws-auth, which grants access beside the access entries; it must not exist"


@RULES.rule("cluster-creator-no-admin", "CIS EKS 4.1.1", "CIS EKS 4.1.7", types=[CLUSTER])
def cluster_creator_no_admin(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Whoever creates the cluster gets no rights in it for that."""
    # EKS takes true where nothing is said.
    if resource.at("accessConfig", "bootstrapClusterCreatorAdminPermissions", default=True):
        yield "accessConfig.bootstrapClusterCreatorAdminPermissions is not false; it must be"


@RULES.rule("cluster-deletion-protected", types=[CLUSTER], whole_stack=True)
def cluster_deletion_protected(resource: Resource, stack: Stack) -> Iterator[str]:
    """A stack whose data is protected has a cluster that is protected, too."""
    kept = [bucket.name for bucket in stack.of(BUCKET) if not bucket.at("forceDestroy", default=False)]
    if kept and not resource.at("deletionProtection", default=False):
        yield f"deletionProtection is not true though bucket {kept[0]} is kept; it must be"
