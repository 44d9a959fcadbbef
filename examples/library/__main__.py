"""An EKS cluster with one Karpenter pool of GPU nodes, and a bucket with a role for pods beside it."""

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s
from pulumi import ResourceOptions

from trainyard.components.cluster import Cluster, ClusterArgs
from trainyard.components.device_plugins import DevicePlugins, DevicePluginsArgs
from trainyard.components.documents import iam
from trainyard.components.documents.account import Account
from trainyard.components.documents.instance_types import find_instance_type, make_pool
from trainyard.components.documents.tags import stack_tags
from trainyard.components.drain import ClusterCleanup, ClusterCleanupArgs, Drain, DrainArgs
from trainyard.components.encryption import Encryption, EncryptionArgs
from trainyard.components.identity import (
    BucketAccess,
    NodeRoles,
    NodeRolesArgs,
    ServiceAccounts,
    ServiceAccountsArgs,
)
from trainyard.components.karpenter import Karpenter, KarpenterArgs
from trainyard.components.network import Network, NetworkArgs
from trainyard.components.pools import Pools, PoolsArgs

config = pulumi.Config()
region = pulumi.Config("aws").require("region")
administrators = tuple(config.require_object("administrators"))
account = Account(id=iam.account_of(administrators[0]), region=region)
protect = config.get_bool("protect") is not False
# Arguments for copies of Karpenter's charts, such as {chart, crd_chart, version}.
charts = config.get_object("karpenterCharts") or {}
name = f"platform-{pulumi.get_stack()}"
tags = {"team": "ml", **stack_tags(pulumi.get_project(), pulumi.get_stack())}
pool = make_pool(find_instance_type("g5.2xlarge"), name="gpu", zone=f"{region}b", max_nodes=4)

# Credentials of another account than the administrators' fail before anything is created.
provider = aws.Provider("aws", region=region, allowed_account_ids=[account.id])
in_aws = ResourceOptions(providers=[provider])
roles = NodeRoles("node-roles", NodeRolesArgs(prefix=name, account=account, tags=tags), in_aws)
keys = Encryption(
    name,
    EncryptionArgs(
        cluster=name,
        account=account,
        log_groups=(iam.control_plane_group(name),),
        protect=protect,
        tags=tags,
    ),
    in_aws,
)
zones = (f"{region}a", f"{region}b")
vpc = NetworkArgs(account=account, cluster=name, cidr="10.64.0.0/16", zones=zones, tags=tags)
network = Network(name, vpc, in_aws)
# `destroy` deletes it after the cluster and before the network: it removes network interfaces that nodes left behind.
cleanup = ClusterCleanup(
    "remains",
    ClusterCleanupArgs(cluster=name, region=region, vpc=network.vpc_id),
    ResourceOptions(depends_on=network.deleted_after_cluster),
)
before_nodes = [*network.egress, *roles.attachments]
cluster = Cluster(
    name,
    ClusterArgs(
        name=name,
        account=account,
        vpc_id=network.vpc_id,
        private_subnet_ids=network.private_subnet_ids,
        public_subnet_ids=network.public_subnet_ids,
        public_access_cidrs=tuple(config.require_object("publicAccessCidrs")),
        administrators=administrators,
        deletion_protection=protect,
        secrets_key_arn=keys.secrets_key_arn,
        logs_key_arn=keys.logs_key_arn,
        system_role=roles.system,
        worker_role=roles.worker,
        control_plane_dependencies=[cleanup],
        node_dependencies=before_nodes,
        tags=tags,
    ),
    in_aws,
)
kubernetes = k8s.Provider(
    "cluster", kubeconfig=cluster.kubeconfig, opts=ResourceOptions(depends_on=cluster.access)
)
in_both = ResourceOptions(providers=[provider, kubernetes])
# What must exist as long as anything runs in the cluster.
alive = [*before_nodes, *cluster.access, *cluster.ready]
karpenter = Karpenter(
    "karpenter",
    KarpenterArgs(
        cluster=name,
        prefix=name,
        account=account,
        node_role_arn=roles.worker.arn,
        oidc_provider_arn=cluster.oidc_provider_arn,
        after=alive,
        tags=tags,
        **charts,
    ),
    in_both,
)
pools = Pools(
    "pools",
    PoolsArgs(
        cluster=name,
        pools=(pool,),
        subnet_ids=network.private_by_zone,
        node_role_name=roles.worker.name,
        after=[karpenter.definitions, *network.worker_security_group],
        tags=tags,
    ),
    in_both,
)
devices = DevicePlugins("devices", DevicePluginsArgs(pools=(pool,), after=alive), in_both)

# Resources of your own beside the components: a bucket, and a role with which pods of one service account read it.
in_account = ResourceOptions(provider=provider)
datasets = aws.s3.Bucket("datasets", force_destroy=not protect, tags=tags, opts=in_account)
tls_only = pulumi.Output.json_dumps(datasets.arn.apply(iam.bucket_tls_only))
datasets_policy = aws.s3.BucketPolicy("datasets", bucket=datasets.id, policy=tls_only, opts=in_account)
reader = BucketAccess(name="dataset-reader", namespace="default", bucket_arn=datasets.arn)
accounts = ServiceAccounts(
    "accounts",
    ServiceAccountsArgs(
        prefix=name,
        accounts=(reader,),
        oidc_provider_arn=cluster.oidc_provider_arn,
        after=alive,
        tags=tags,
    ),
    in_both,
)

# `destroy` deletes it first: it deletes the pools and waits for the end of their nodes. Until then, pods use what it
# depends on.
Drain(
    "drain",
    DrainArgs(cluster=name, region=region),
    ResourceOptions(
        depends_on=[*alive, karpenter, pools, devices, kubernetes, datasets, datasets_policy, accounts]
    ),
)

pulumi.export("kubeconfig", cluster.kubeconfig)
pulumi.export("datasets", datasets.bucket)
