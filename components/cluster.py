"""An EKS cluster with access entries, add-ons and system nodes, or an existing one; `addon` for other add-ons."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import pulumi
import pulumi_aws as aws
import pulumi_eks as eks

from trainyard.k8s import names

from . import encryption
from .documents import versions
from .documents.account import Account
from .documents.eks import AGENT, SYSTEM_NODE_TYPE, VALUES, VOLUME_GIB, cni_values, kubeconfig
from .documents.iam import control_plane_group, issuer_of
from .documents.karpenter_iam import CNI_POLICY, CNI_SERVICE_ACCOUNT
from .documents.tags import named
from .documents.vpc import HTTPS
from .identity import Identity, IdentityArgs

LOG_TYPES: Final = ("api", "audit", "authenticator", "controllerManager", "scheduler")
ADMIN_POLICY: Final = "cluster-access-policy/AmazonEKSClusterAdminPolicy"
# Nodes need the CNI and kube-proxy to become ready, and the others need a node to become active. A Kubernetes update
# has the same order: control plane, these two, system nodes, others. kube-proxy may be newer than the kubelet, but not
# than the API server
# (https://kubernetes.io/releases/version-skew-policy/#kube-proxy).
CNI: Final = "vpc-cni"
ADDONS_AFTER_NODES: Final = ("coredns", AGENT)
# Pods that must not run on Karpenter's nodes run on nodes with this label.
SYSTEM_LABELS: Final = {names.LABEL_ROLE: names.ROLE_SYSTEM}


class BaseCluster(pulumi.ComponentResource):
    """An EKS cluster: `Cluster` or `ExistingCluster`."""

    kubeconfig: pulumi.Output[str]
    """The kubeconfig as JSON, without a secret."""
    oidc_provider_arn: pulumi.Output[str]
    """The OIDC provider of the cluster in IAM, for roles of service accounts."""
    oidc_issuer: pulumi.Output[str]
    """Its issuer, without https://."""
    access: list[pulumi.Resource]
    """The resources that give access to the cluster. Delete them after everything in the cluster."""
    ready: list[pulumi.Resource]
    """The resources that workloads need: the node group and the add-ons; empty for an existing cluster."""
    cluster_security_group_id: pulumi.Output[str]
    """The security group that EKS created for the cluster."""
    kubernetes_version: pulumi.Output[str] | None = None
    """The version of the control plane; None for an existing cluster."""


@dataclass(frozen=True, kw_only=True)
class ClusterArgs:
    """An EKS cluster to create."""

    name: str
    """The cluster's name."""
    account: Account
    vpc_id: pulumi.Input[str]
    private_subnet_ids: list[pulumi.Output[str]]
    """The subnets of the control plane and of the system nodes, in at least two zones."""
    public_subnet_ids: list[pulumi.Output[str]]
    """Public subnets for load balancers; may be empty."""
    administrators: tuple[str, ...]
    """The ARNs of the users and roles that administer the cluster, including the deploying one."""
    secrets_key_arn: pulumi.Input[str]
    """The key that encrypts Kubernetes secrets."""
    system_role: aws.iam.Role
    """The role of the system nodes."""
    worker_role: aws.iam.Role
    """The role of Karpenter's nodes, which may join the cluster."""
    tags: dict[str, str]

    # Control plane
    version: str = versions.KUBERNETES
    """The Kubernetes version, such as 1.35."""
    public_access_cidrs: tuple[str, ...] = ()
    """The address ranges that reach the API server from the internet. Empty: only the VPC reaches it."""
    private_access_cidrs: tuple[str, ...] = ()
    """The address ranges in the VPC that reach the API server. Nodes always reach it."""
    profile: str | None = None
    """A profile of ~/.aws/config in the kubeconfig."""
    logs_key_arn: pulumi.Input[str] | None = None
    """The key that encrypts the log group `documents.iam.control_plane_group`. CloudWatch Logs must be allowed to use
    it: `logs_key_arn` of an `Encryption` whose `log_groups` contain this group.
    """
    log_retention_days: int = 365
    """The retention of the control plane's logs."""
    deletion_protection: bool = True
    """Whether EKS refuses to delete the cluster. `Drain` turns this off during `destroy`. Use the option `protect` of
    `ResourceOptions` to stop `pulumi destroy`.
    """

    # System nodes and add-ons
    system_instance_type: str = SYSTEM_NODE_TYPE
    """The instance type of the system nodes."""
    system_count: int = 2
    """The number of system nodes."""
    volume_key: str | None = None
    """The ARN of the key of the system nodes' disks; None for the account's default key for EBS."""
    addon_versions: Mapping[str, str] = field(default_factory=dict)
    """Pinned versions, by add-on."""

    # Order of deletion
    control_plane_dependencies: list[pulumi.Resource] = field(default_factory=list)
    """Resources that must exist until the control plane and its log group are gone. The cluster waits for them, so
    they should be quick.
    """
    node_dependencies: list[pulumi.Resource] = field(default_factory=list)
    """Resources that must exist until the last system node is gone, such as routes."""


class Cluster(BaseCluster):
    """An EKS cluster with its add-ons and system nodes.

    Creates:

    - the control plane (`pulumi_eks.Cluster`) with standard support and an OIDC provider. All its logs go to a log
      group, encrypted with `logs_key_arn`. Kubernetes secrets are encrypted with `secrets_key_arn`. Only access
      entries give access, and the creator gets no permissions;
    - an access entry with cluster administration for each administrator, and one for Karpenter's nodes;
    - the system nodes (`pulumi_eks.ManagedNodeGroup`) in the private subnets, with encrypted disks. As on the
      workers, pods can't use the node's IAM role;
    - the add-ons vpc-cni and kube-proxy, and after the nodes coredns and eks-node-monitoring-agent. Volumes also need
      the component `Csi`.

    `access` includes the administrators' entries, so that the user who destroys the stack keeps access until nothing is
    left in the cluster.
    """

    def __init__(self, name: str, args: ClusterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:cluster:Cluster", name, None, opts)
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        logs = aws.cloudwatch.LogGroup(
            f"{name}-control-plane",
            name=control_plane_group(args.name),
            retention_in_days=args.log_retention_days,
            kms_key_id=args.logs_key_arn,
            tags=args.tags,
            # Deleted after the cluster, and before the search for late entries, which would create the group again.
            opts=pulumi.ResourceOptions(parent=self, depends_on=args.control_plane_dependencies),
        )
        self.eks = self._control_plane(name, logs)
        """The cluster (`pulumi_eks.Cluster`)."""
        self.kubeconfig = self.eks.kubeconfig_json
        self.oidc_provider_arn = self.eks.oidc_provider_arn
        self.oidc_issuer = self.eks.oidc_issuer
        self.cluster_security_group_id = self.eks.cluster_security_group_id
        # The versions of the add-ons must be read after the control plane was updated.
        self.kubernetes_version = self.cluster_security_group_id.apply(lambda _: args.version)
        self.access = [*self._access(name), *self._private_access(name)]
        cni = self._cni_identity()
        create_addon = partial(
            addon,
            prefix=name,
            cluster=args.name,
            kubernetes_version=self.kubernetes_version,
            pinned=args.addon_versions,
            tags=args.tags,
        )
        before = [
            create_addon(name="kube-proxy", opts=pulumi.ResourceOptions(parent=self, depends_on=[self.eks])),
            create_addon(
                name=CNI,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[self.eks, *cni.granted]),
                service_account_role_arn=cni.role_arn,
                configuration_values=cni_values(args.tags),
            ),
        ]
        template = self._system_template(name)
        self.nodes = eks.ManagedNodeGroup(
            f"{name}-system",
            cluster=self.eks,
            node_role=args.system_role,
            instance_types=[args.system_instance_type],
            scaling_config={
                "desired_size": args.system_count,
                "min_size": args.system_count,
                "max_size": args.system_count + 1,
            },
            subnet_ids=args.private_subnet_ids,
            labels=dict(SYSTEM_LABELS),
            launch_template={"id": template.id, "version": template.latest_version.apply(str)},
            operating_system=eks.OperatingSystem.AL2023,
            tags=args.tags,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=[*args.node_dependencies, *before, *self._grants()]
            ),
        )
        """The node group of the system nodes."""
        after_nodes = pulumi.ResourceOptions(parent=self, depends_on=[self.nodes])
        after = [create_addon(name=each, opts=after_nodes) for each in ADDONS_AFTER_NODES]
        self.ready = [self.nodes, *before, *after]
        self.register_outputs(
            {
                "name": args.name,
                "oidcProviderArn": self.oidc_provider_arn,
                "oidcIssuer": self.oidc_issuer,
            }
        )

    def _control_plane(self, name: str, logs: aws.cloudwatch.LogGroup) -> eks.Cluster:
        args = self._args
        return eks.Cluster(
            name,
            name=args.name,
            version=args.version,
            authentication_mode=eks.AuthenticationMode.API,
            vpc_id=args.vpc_id,
            private_subnet_ids=args.private_subnet_ids,
            public_subnet_ids=args.public_subnet_ids or None,
            endpoint_private_access=True,
            endpoint_public_access=bool(args.public_access_cidrs),
            public_access_cidrs=list(args.public_access_cidrs) or None,
            node_associate_public_ip_address=False,
            skip_default_node_group=True,
            # The default groups of pulumi-eks are open to everywhere. Nodes and control plane share EKS's group.
            skip_default_security_groups=True,
            create_oidc_provider=True,
            upgrade_policy=aws.eks.ClusterUpgradePolicyArgs(support_type="STANDARD"),
            enabled_cluster_log_types=list(LOG_TYPES),
            encryption_config_key_arn=args.secrets_key_arn,
            deletion_protection=args.deletion_protection,
            # This component creates the add-ons. pulumi-eks reads their versions from the account, and would create
            # CoreDNS before there is a node for it (pulumi/pulumi-eks#1525).
            use_default_vpc_cni=True,
            kube_proxy_addon_options=eks.KubeProxyAddonOptionsArgs(enabled=False),
            coredns_addon_options=eks.CoreDnsAddonOptionsArgs(enabled=False),
            provider_credential_opts=(
                eks.KubeconfigOptionsArgs(profile_name=args.profile) if args.profile else None
            ),
            tags=args.tags,
            # It does not depend on the routes: the control plane needs none, and takes longer than all of them.
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[logs, *args.control_plane_dependencies],
                transforms=[without_creator_permissions, with_provider_tags(args.tags)],
            ),
        )

    def _cni_identity(self) -> Identity:
        """Create the IAM role of the VPC CNI, so that nodes themselves can't change network interfaces."""
        args = self._args
        return Identity(
            f"{args.name}-vpc-cni",
            IdentityArgs(
                namespace="kube-system",
                service_account=CNI_SERVICE_ACCOUNT,
                oidc_provider_arn=self.oidc_provider_arn,
                policies={},
                managed_policy_arns={CNI_POLICY: args.account.managed_policy(CNI_POLICY)},
                tags=args.tags,
            ),
            self._child,
        )

    def _system_template(self, name: str) -> aws.ec2.LaunchTemplate:
        tags = named(self._args.tags, f"{name}-system")
        return aws.ec2.LaunchTemplate(
            f"{name}-system",
            block_device_mappings=[
                {
                    "device_name": "/dev/xvda",
                    "ebs": {
                        "volume_size": VOLUME_GIB,
                        "volume_type": "gp3",
                        "encrypted": "true",
                        "kms_key_id": self._args.volume_key,
                        "delete_on_termination": "true",
                    },
                }
            ],
            # EKS's default hop limit is two, with which pods reach the metadata service.
            metadata_options={
                "http_endpoint": "enabled",
                "http_tokens": "required",
                "http_put_response_hop_limit": 1,
            },
            tag_specifications=[
                {"resource_type": kind, "tags": tags} for kind in ("instance", "volume", "network-interface")
            ],
            tags=tags,
            opts=self._child,
        )

    def _grants(self) -> list[pulumi.Resource]:
        key = self._args.volume_key
        if key is None:
            return []
        # This role launches the instances of managed node groups.
        role = encryption.service_role(key, encryption.AUTO_SCALING)
        return [encryption.grant(f"{self._args.name}-system-disks", key, role, self._child)]

    def _access(self, name: str) -> list[pulumi.Resource]:
        args = self._args
        after_cluster = pulumi.ResourceOptions(parent=self, depends_on=[self.eks])
        result: list[pulumi.Resource] = []
        for who, arn in short_names(args.administrators).items():
            entry = aws.eks.AccessEntry(
                f"{name}-{who}",
                cluster_name=args.name,
                principal_arn=arn,
                type="STANDARD",
                tags=args.tags,
                opts=after_cluster,
            )
            association = aws.eks.AccessPolicyAssociation(
                f"{name}-{who}",
                cluster_name=args.name,
                principal_arn=entry.principal_arn,
                policy_arn=f"arn:{args.account.partition}:eks::aws:{ADMIN_POLICY}",
                access_scope={"type": "cluster"},
                opts=pulumi.ResourceOptions(parent=self, depends_on=[entry]),
            )
            result += [entry, association]
        return [*result, _worker_access(name, args, args.worker_role.arn, after_cluster)]

    def _private_access(self, name: str) -> list[pulumi.Resource]:
        """Create the rules for the private endpoint: EKS's security group only admits nodes.

        https://docs.aws.amazon.com/eks/latest/userguide/cluster-endpoint.html
        """
        return [
            aws.vpc.SecurityGroupIngressRule(
                f"{name}-api-from-{cidr.replace('/', '-')}",
                security_group_id=self.cluster_security_group_id,
                cidr_ipv4=cidr,
                ip_protocol="tcp",
                from_port=HTTPS,
                to_port=HTTPS,
                description="The Kubernetes API, for those who deploy from here",
                tags=named(self._args.tags, f"{name}-api-from-{cidr.replace('/', '-')}"),
                opts=self._child,
            )
            for cidr in self._args.private_access_cidrs
        ]


def addon(
    *,
    name: str,
    prefix: str,
    cluster: str,
    kubernetes_version: pulumi.Input[str],
    pinned: Mapping[str, str],
    tags: dict[str, str],
    opts: pulumi.ResourceOptions,
    **further: Any,
) -> aws.eks.Addon:
    """Register an EKS add-on with its pinned version, or EKS's default for the Kubernetes version.

    The inputs always contain a version. Otherwise the add-on keeps its first version, because EKS does not update
    add-ons with the control plane (https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html, step 4).

    Args:
        name: The name of the add-on.
        prefix: The prefix of the resource's name.
        cluster: The cluster's name.
        kubernetes_version: The Kubernetes version, an output that resolves after the control plane was updated to it.
        pinned: The pinned versions, by add-on.
        tags: The tags of the add-on.
        opts: The options of the resource.
        further: Other arguments of `aws.eks.Addon`.
    """
    version: pulumi.Input[str] | None = pinned.get(name)
    if version is None:
        version = aws.eks.get_addon_version_output(
            addon_name=name,
            kubernetes_version=kubernetes_version,
            most_recent=False,
            opts=pulumi.InvokeOutputOptions(parent=opts.parent),
        ).version
    return aws.eks.Addon(
        f"{prefix}-{name}",
        cluster_name=cluster,
        addon_name=name,
        addon_version=version,
        configuration_values=further.pop("configuration_values", VALUES.get(name)),
        resolve_conflicts_on_create="OVERWRITE",
        resolve_conflicts_on_update="OVERWRITE",
        tags=tags,
        opts=opts,
        **further,
    )


@dataclass(frozen=True, kw_only=True)
class ExistingClusterArgs:
    """An existing cluster: the values of DescribeCluster, and its OIDC provider in IAM."""

    name: str
    """The cluster's name."""
    region: str
    endpoint: str
    """The address of the API server."""
    certificate_authority: str
    """The certificate authority of the API server, in base64."""
    oidc_provider_arn: str
    security_group_id: str
    """The security group that EKS created for the cluster."""
    worker_role_arn: pulumi.Input[str]
    """The role of Karpenter's nodes, which may join the cluster."""
    tags: dict[str, str]
    profile: str | None = None
    """A profile of ~/.aws/config in the kubeconfig."""


class ExistingCluster(BaseCluster):
    """An existing EKS cluster.

    Creates an access entry, with which Karpenter's nodes can join the cluster.

    The owner of the cluster manages its system nodes, its add-ons and the permissions of the deploying user. Its
    authentication mode must support access entries.
    """

    def __init__(
        self, name: str, args: ExistingClusterArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:cluster:ExistingCluster", name, None, opts)
        self.kubeconfig = pulumi.Output.from_input(
            kubeconfig(
                cluster=args.name,
                region=args.region,
                endpoint=args.endpoint,
                authority=args.certificate_authority,
                profile=args.profile,
            )
        )
        self.oidc_provider_arn = pulumi.Output.from_input(args.oidc_provider_arn)
        self.oidc_issuer = pulumi.Output.from_input(issuer_of(args.oidc_provider_arn))
        self.cluster_security_group_id = pulumi.Output.from_input(args.security_group_id)
        self.access = [_worker_access(name, args, args.worker_role_arn, pulumi.ResourceOptions(parent=self))]
        self.ready = []
        self.register_outputs(
            {"name": args.name, "oidcProviderArn": self.oidc_provider_arn, "oidcIssuer": self.oidc_issuer}
        )


def _worker_access(
    name: str,
    args: ClusterArgs | ExistingClusterArgs,
    role_arn: pulumi.Input[str],
    opts: pulumi.ResourceOptions,
) -> aws.eks.AccessEntry:
    """Let Karpenter's nodes join the cluster."""
    return aws.eks.AccessEntry(
        f"{name}-workers",
        cluster_name=args.name,
        principal_arn=role_arn,
        type="EC2_LINUX",
        tags=args.tags,
        opts=opts,
    )


def short_names(principals: tuple[str, ...]) -> dict[str, str]:
    """Return the ARN of each principal, by a name for its resources: kind and path, such as role-platform.

    If an earlier principal has the same name (the same role of another account, or role/a/b beside role/a-b), the
    account or a digest of the ARN is appended. The earlier one keeps its name, so that a principal that is added at
    the end does not replace the access of another one.
    """
    by_name: dict[str, str] = {}
    for arn in principals:
        account, path = arn.split(":", 5)[4:]
        plain = path.replace("/", "-")
        digest = hashlib.sha256(arn.encode()).hexdigest()[:8]
        names = (plain, f"{plain}-{account}", f"{plain}-{digest}")
        by_name[next(name for name in names if name not in by_name)] = arn
    return by_name


def without_creator_permissions(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
    """Transform the control plane so that the creator of the cluster gets no permissions in it.

    pulumi-eks always grants them if an authentication mode is set (pulumi/pulumi-eks#2373).
    """
    if args.type_ != "aws:eks/cluster:Cluster":
        return None
    props: dict[str, Any] = dict(args.props)
    access = props.get("accessConfig") or {}
    props["accessConfig"] = {**access, "bootstrapClusterCreatorAdminPermissions": False}
    return pulumi.ResourceTransformResult(props=props, opts=args.opts)


def with_provider_tags(tags: dict[str, str]) -> pulumi.ResourceTransform:
    """Transform the control plane so that its OIDC provider in IAM gets the stack's tags.

    pulumi-eks sets none (seen with 4.4), and without them a search for leftovers could not find it.
    """

    def transform(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
        if args.type_ != "aws:iam/openIdConnectProvider:OpenIdConnectProvider":
            return None
        return pulumi.ResourceTransformResult(props={**args.props, "tags": dict(tags)}, opts=args.opts)

    return transform
