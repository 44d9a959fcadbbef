"""Section `cluster` of a stack file."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from components.documents import iam, versions
from components.documents.account import Account
from components.documents.eks import SYSTEM_NODE_TYPE
from infra.settings import provider, ranges
from infra.settings.fields import (
    FIXED,
    IN_PLACE,
    NEW_NODES,
    REQUIRED,
    AsTuple,
    Choice,
    MapKey,
    Model,
    Scalar,
    Text,
    WholeNumber,
    hint,
    mistyped,
    setting,
)
from infra.settings.formats import (
    CIDR,
    CLUSTER_NAME,
    CLUSTER_NAME_MUST_BE,
    OIDC_ISSUER,
    PARTITION,
    PRINCIPAL,
    PRINCIPAL_MUST_BE,
    ROLE_SESSION,
    AccountId,
    ClusterName,
    EksName,
    KmsKeyArn,
    Line,
    LogDays,
    SecurityGroupId,
)
from infra.settings.pools import find_type
from infra.settings.problems import Section, twice

INTERNET, VPC = "internet", "vpc"
ONLY_NEW: Final = (
    *("name", "accountId", "version", "deployFrom", "administrators", "publicAccessCidrs", "systemNodes"),
    *("addonVersions", "logRetentionDays", "lateLogSeconds"),
)


class _Principal(Text):
    """An IAM user or role to which EKS can give access."""

    def check(self, value: Any) -> Any:
        session = re.fullmatch(ROLE_SESSION, value) if isinstance(value, str) else None
        if session is None:
            return super().check(value)
        role = session["role"]
        raise ValueError(
            f"'{value}' is a session of the role {role}; it must be that role's ARN, as"
            f" 'aws iam get-role --role-name {role} --query Role.Arn' prints it"
        )


class _PublicRange(Text):
    """A range that can reach the API server over the internet."""

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(mistyped(value, self.must_be))
        if problem := ranges.public_problem(value):
            raise ValueError(problem)
        return value


class _Addon(MapKey):
    """An EKS add-on that the stack creates."""

    def check(self, value: Any) -> Any:
        name = super().check(value)
        if name not in versions.ADDONS:
            near = hint(name, versions.ADDONS)
            raise ValueError(
                f"the stack creates no such add-on{near}; it must be one of {', '.join(versions.ADDONS)}"
            )
        return name


Principals = Annotated[tuple[Annotated[str, _Principal(PRINCIPAL_MUST_BE, PRINCIPAL)], ...], AsTuple]
PublicRanges = Annotated[
    tuple[Annotated[str, _PublicRange("an IPv4 range such as 203.0.113.0/24", CIDR)], ...], AsTuple
]
AddonVersions = dict[
    Annotated[str, _Addon()],
    Annotated[
        str, Scalar("a version such as v1.21.1-eksbuild.1", r"v[0-9]+\.[0-9]+\.[0-9]+-eksbuild\.[0-9]+")
    ],
]
# Bottlerocket has another disk layout and its own device plugin.
Ami = Annotated[str, Text(f"an alias with a version, such as {versions.AMI}", r"al2023@v[0-9]{8}")]
Endpoint = Annotated[
    str,
    Text(
        "the API's address, such as https://AB.gr7.us-west-2.eks.amazonaws.com",
        r"https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?",
    ),
]
Certificate = Annotated[
    str,
    Text(
        "the certificate in base64, certificateAuthority.data of DescribeCluster",
        r"(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
    ),
]
OidcProviderArn = Annotated[
    str,
    Text(
        "the ARN of the cluster's OIDC provider in IAM",
        rf"arn:{PARTITION}:iam::[0-9]{{12}}:oidc-provider/{OIDC_ISSUER}",
    ),
]
OidcIssuer = Annotated[
    str, Text("the issuer, such as oidc.eks.us-west-2.amazonaws.com/id/AB", rf"(https://)?{OIDC_ISSUER}")
]


class ExistingCluster(Model):
    """An existing EKS cluster, as DescribeCluster describes it."""

    name: EksName = setting(REQUIRED, FIXED, example="research")
    """The cluster's name. The names of other resources begin with it, or with `trainyard-<stack>` if it has upper
    case letters, underscores or more than 31 characters.
    """
    endpoint: Endpoint = setting(REQUIRED, FIXED, example="https://AB.gr7.us-west-2.eks.amazonaws.com")
    """The endpoint of its API server."""
    certificate_authority: Certificate = setting(REQUIRED, FIXED, example="LS0tLS1CRUdJTg==")
    """`certificateAuthority.data` of DescribeCluster."""
    oidc_provider_arn: OidcProviderArn = setting(
        REQUIRED,
        "in place, in the same account",
        example="arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
    )
    """Its OIDC provider in IAM."""
    oidc_issuer: OidcIssuer = setting(
        REQUIRED, IN_PLACE, example="https://oidc.eks.us-west-2.amazonaws.com/id/AB"
    )
    """Its OIDC issuer."""
    security_group_id: SecurityGroupId = setting(REQUIRED, NEW_NODES, example="sg-0223456789abcdef0")
    """The cluster security group that EKS created."""


class SystemNodes(Model):
    """The nodes of the managed node group."""

    instance_type: Line = setting(SYSTEM_NODE_TYPE, "replaces the system nodes", example="c5.2xlarge")
    """Their instance type."""
    count: WholeNumber = setting(2, IN_PLACE, example=2, unit="nodes", ge=1, le=20)
    """The number of system nodes."""


class Cluster(Model):
    """The EKS cluster and its system nodes."""

    existing: ExistingCluster | None = setting(None, FIXED)
    """An existing cluster. The stack creates all other resources in it. It excludes settings of a new cluster, and
    needs `network.vpcId`.
    """
    name: ClusterName = setting("", FIXED, example="research", default_text="`trainyard-<stack>`")
    """The cluster's name, which is also the prefix of other names; at most 31 characters."""
    version: Annotated[str, Choice(versions.KUBERNETES_SUPPORTED)] = setting(
        versions.KUBERNETES, "in place, to the next minor version", example="1.35"
    )
    """The Kubernetes version. A running cluster can be updated to the next minor version only. Add-ons and system
    nodes follow it. `up` warns 90 days before EKS ends its support.
    """
    administrators: Principals = setting(
        (),
        IN_PLACE,
        example=["arn:aws:iam::123456789012:role/platform"],
        default_text="required, except for an existing cluster",
    )
    """ARNs of IAM users and roles with all permissions in the cluster. They must include the deployer."""
    public_access_cidrs: PublicRanges = setting((), IN_PLACE, example=["203.0.113.0/24"])
    """Public ranges with access to the API server over the internet, at most 40, each /16 or smaller. Without them,
    the API server is reached from the VPC only, and `deployFrom` must be vpc.
    """
    deploy_from: Annotated[str, Choice((INTERNET, VPC))] = setting(INTERNET, IN_PLACE, example="internet")
    """Where `pulumi up` runs."""
    system_nodes: SystemNodes = setting(SystemNodes(), IN_PLACE)
    """Nodes for Karpenter, CoreDNS, the operators and the launcher."""
    karpenter_replicas: WholeNumber = setting(2, IN_PLACE, example=2, ge=1, le=2)
    """Replicas of Karpenter, each on another system node."""
    account_id: AccountId | None = setting(
        None, FIXED, example="123456789012", default_text="the administrators' account"
    )
    """The AWS account of the stack, in quotes. Credentials of other accounts are refused. Required if the
    administrators belong to several accounts.
    """
    node_repair: bool = setting(True, IN_PLACE, example=True)
    """Replace nodes that stay unhealthy: after 10 minutes for accelerators, otherwise 30."""
    addon_versions: AddonVersions = setting({}, IN_PLACE, example={"coredns": "v1.12.4-eksbuild.1"})
    """Versions of the stack's EKS add-ons by their names: vpc-cni, kube-proxy, coredns, eks-node-monitoring-agent,
    aws-ebs-csi-driver and, with `storage.lustre`, aws-fsx-csi-driver. Each `up` sets others to EKS's default for the
    Kubernetes version. Pools with EFA need a vpc-cni of 1.18.5 or newer.
    """
    ami: Ami = setting(versions.AMI, NEW_NODES, example="al2023@v20260724")
    """The AMI of the pools' nodes, an alias with a version. New nodes use a newer one. EKS chooses the AMI of system
    nodes.
    """
    volume_key: KmsKeyArn | None = setting(
        None,
        "replaces the system nodes",
        example="arn:aws:kms:us-west-2:123456789012:key/0123abcd-0123-0123-0123-0123456789ab",
    )
    """The ARN of a KMS key for the disks of all nodes. The stack grants its use to Karpenter and EC2 Auto Scaling.
    Without it, disks have the account's default key for EBS. Set it if that is a customer managed key whose policy
    does not allow all principals of the account to use it through EC2; otherwise nodes fail at launch. A change
    replaces the system nodes one by one, and applies to new nodes of pools.
    """
    log_retention_days: LogDays = setting(365, IN_PLACE, example=90, unit="days")
    """The retention of the control plane's logs."""
    late_log_seconds: WholeNumber = setting(180, IN_PLACE, example=300, unit="seconds", ge=0, le=600)
    """The time that `destroy` waits for late log entries of the deleted cluster. They create the log group again,
    which would block the next `up`.
    """


def check_cluster(section: Section[Cluster], default_name: str, region: str) -> Cluster:
    """Return the checked cluster, with its name, also of an existing cluster, and with the account of the stack.

    `default_name` is the default of its name, from the stack's name. `region` is the stack's, "" if it is invalid.
    """
    values, existing = section.values, section.values.existing
    nodes = section.part("systemNodes", values.system_nodes)
    facts = find_type(nodes, "instanceType", values.system_nodes.instance_type)
    if facts and facts.accelerators:
        nodes.reject(
            "instanceType",
            f"'{facts.name}' has accelerators, which system nodes can't use; it must be a type without them, such as"
            f" {SYSTEM_NODE_TYPE}",
        )
    for arn in twice(values.administrators):
        section.reject("administrators", f"'{arn}' is listed twice. Remove one.")
    _check_public(section)
    if existing is None:
        name = _check_name(section, default_name)
        _check_new(section)
    else:
        name = existing.name
        _check_existing(section.part("existing", existing), default_name, region)
        section.reject_given(
            ONLY_NEW, "is for a cluster that the stack makes, and existing gives one; leave it out"
        )
    account = _check_account(section)
    _check_arns(section, account, region)
    return values.model_copy(update={"name": name, "account_id": account})


def _check_new(section: Section[Cluster]) -> None:
    values = section.values
    if not section.has("administrators"):
        section.reject("administrators", f"is missing; it must be a list, each entry {PRINCIPAL_MUST_BE}")
    elif section.ok("administrators") and not values.administrators:
        section.reject("administrators", "is empty; it must name at least the user or role that deploys")
    is_open = values.public_access_cidrs or values.deploy_from == VPC
    if not is_open and section.ok("publicAccessCidrs", "deployFrom"):
        section.reject(
            "publicAccessCidrs",
            "has no range, so that nobody outside of the VPC reaches the API; it must hold those that you deploy from,"
            " such as 203.0.113.0/24, or deployFrom must be vpc",
        )
    count = values.system_nodes.count
    if section.ok("systemNodes.count") and values.karpenter_replicas > count:
        section.reject(
            "karpenterReplicas",
            f"{values.karpenter_replicas} need a system node each; it must be at most systemNodes.count ({count})",
        )


def _check_name(section: Section[Cluster], default: str) -> str:
    if section.has("name"):
        return section.values.name
    if not re.fullmatch(CLUSTER_NAME, default):
        section.reject(
            "name", f"is '{default}' by the stack's name; it must be given as {CLUSTER_NAME_MUST_BE}"
        )
    return default


def prefix_of(name: str, default: str) -> str:
    """Return the prefix of other names. An existing cluster's name may be longer, or have other characters."""
    return name if re.fullmatch(CLUSTER_NAME, name) else default


def _check_existing(given: Section[ExistingCluster], default: str, region: str) -> None:
    """Check that the name can be a prefix, the issuer is the provider's, and the endpoint is in the region."""
    name, endpoint, issuer = given.values.name, given.values.endpoint, given.values.oidc_issuer
    if given.ok("name") and not re.fullmatch(CLUSTER_NAME, prefix_of(name, default)):
        given.reject(
            "name",
            f"'{name}' can't be the prefix of other names, and neither can '{default}' by the stack's name; the stack"
            f" must be named so that it is {CLUSTER_NAME_MUST_BE}",
        )
    arn = given.values.oidc_provider_arn
    has_both = bool(arn) and given.ok("oidcProviderArn", "oidcIssuer")
    if has_both and issuer.removeprefix("https://") != iam.issuer_of(arn):
        given.reject("oidcIssuer", f"'{issuer}' is not the provider's. It must be {iam.issuer_of(arn)}.")
    if given.ok("endpoint") and (other := _other_region(endpoint.removeprefix("https://"), region)):
        given.reject("endpoint", f"'{endpoint}' is of {other}; it must be of {region}")


def _check_arns(section: Section[Cluster], account: str, region: str) -> None:
    """Check that every ARN is of the stack's partition, and of its region and account where it must be."""
    values = section.values
    # Administrators may be of several accounts.
    arns = [(f"administrators[{index}]", arn, "") for index, arn in enumerate(values.administrators)]
    if values.existing is not None:
        arns.append(("existing.oidcProviderArn", values.existing.oidc_provider_arn, account))
    if values.volume_key is not None:
        arns.append(("volumeKey", values.volume_key, account))
    for key, arn, owner in arns:
        problem = arn_problem(arn, Account(id=owner, region=region)) if arn and section.ok(key) else None
        if problem:
            section.reject(key, f"'{arn}' {problem}")


def arn_problem(arn: str, account: Account) -> str | None:
    """Return why an ARN is not of an account and its region, else None. An empty id or region is unknown.

    ARNs of IAM have no region. Those of OIDC providers have it in the issuer.
    """
    _, partition, _, place, owner, resource = arn.split(":", 5)
    region = account.region
    if region and partition != account.partition:
        return (
            f"is of the partition {partition}; it must be of {account.partition}, the partition of {region}"
        )
    is_provider = resource.startswith("oidc-provider/")
    other = _other_region(iam.issuer_of(arn), region) if is_provider else place if place != region else None
    if region and other:
        return f"is of {other}; it must be of {region}"
    if account.id and owner != account.id:
        return f"is of another account; it must be of {account.id}"
    return None


def _other_region(address: str, region: str) -> str | None:
    """Return the region in the host's name of an address without its scheme, if it is not the stack's."""
    labels = address.partition("/")[0].split(".")
    found = next((each for each in labels if each in provider.regions()), region)
    return found if region and found != region else None


def _check_account(section: Section[Cluster]) -> str:
    """Return the account of the stack: that of an existing cluster's provider, else that of the administrators.

    The deployer must be one of them. If they belong to several accounts, the setting says which.
    """
    values, chosen = section.values, section.values.account_id
    if values.existing is not None:
        arn = values.existing.oidc_provider_arn
        return iam.account_of(arn) if arn else ""
    if not section.ok("accountId"):
        return ""
    is_valid = section.ok("administrators")
    accounts = sorted({iam.account_of(arn) for arn in values.administrators}) if is_valid else []
    if chosen is not None and accounts and chosen not in accounts:
        section.reject(
            "accountId",
            f"'{chosen}' is the account of no administrator, and the one that deploys must be one; it must be"
            f" {' or '.join(accounts)}",
        )
    elif chosen is None and len(accounts) > 1:
        section.reject(
            "accountId",
            f"is missing; administrators are of {', '.join(accounts)}, and it must be the one to deploy to, in quotes",
        )
    return chosen or (accounts[0] if accounts else "")


def _check_public(section: Section[Cluster]) -> None:
    blocks = section.values.public_access_cidrs
    for index, block in enumerate(blocks):
        if block in blocks[:index]:
            section.reject(f"publicAccessCidrs[{index}]", f"'{block}' is listed twice. Remove one.")
    if len(blocks) > ranges.MAXIMUM_PUBLIC:
        section.reject(
            "publicAccessCidrs", f"has {len(blocks)} entries; EKS takes at most {ranges.MAXIMUM_PUBLIC}"
        )
