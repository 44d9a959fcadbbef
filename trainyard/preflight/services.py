"""A given cluster, a given file system, given buckets, and names that must be free: pure checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from trainyard.preflight.identity import principal_arn, same_principal
from trainyard.preflight.wanted import Problem, Unasked, Wanted, WantedBucket, WantedCluster, WantedLustre

CLUSTER_KEY: Final = "trainyard:cluster.existing"
LUSTRE_KEY: Final = "trainyard:storage.lustre.existing"
# Access entries work in these two (https://docs.aws.amazon.com/eks/latest/userguide/setting-up-access-entries.html).
ACCESS_MODES: Final = ("API", "API_AND_CONFIG_MAP")
# The client of Amazon Linux 2023, 2.15, mounts no such file system
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/lustre-client-matrix.html).
TOO_OLD: Final = ("2.10",)
NAME_KINDS: Final = ("EKS cluster", "log group", "SQS queue", "KMS alias", "ECR repository")
STS_AUDIENCE: Final = "sts.amazonaws.com"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """An EKS cluster as it is."""

    name: str
    status: str
    version: str
    mode: str
    vpc_id: str
    endpoint: str = ""
    certificate_authority: str = ""
    issuer: str = ""
    security_group: str = ""
    ip_family: str = "ipv4"
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An IAM OpenID Connect provider: issuer without https://, and audiences."""

    url: str
    audiences: frozenset[str]


def check_cluster(wanted: WantedCluster, found: Cluster | None, region: str) -> list[Problem]:
    """The given cluster must exist, work, and be as the stack file says it is."""
    if found is None:
        return [
            Problem(
                key=f"{CLUSTER_KEY}.name",
                message=f"'{wanted.name}' does not exist in {region}; it must be an EKS cluster of this account",
            )
        ]
    problems = []
    if found.status != "ACTIVE":
        problems.append(
            Problem(
                key=f"{CLUSTER_KEY}.name", message=f"'{wanted.name}' is {found.status}; it must be ACTIVE"
            )
        )
    if found.mode not in ACCESS_MODES:
        problems.append(
            Problem(
                key=f"{CLUSTER_KEY}.name",
                message=f"'{wanted.name}' has the authentication mode {found.mode}, which knows no access entries;"
                f" it must be API: aws eks update-cluster-config --name {wanted.name}"
                " --access-config authenticationMode=API",
            )
        )
    if found.version not in wanted.versions:
        problems.append(
            Problem(
                key=f"{CLUSTER_KEY}.name",
                message=f"'{wanted.name}' runs Kubernetes {found.version}; it must be"
                f" {' or '.join(wanted.versions)}",
            )
        )
    if found.ip_family != "ipv4":
        problems.append(
            Problem(
                key=f"{CLUSTER_KEY}.name",
                message=f"'{wanted.name}' has the ipFamily {found.ip_family}, but the stack's network rules and file"
                " systems use IPv4; it must be a cluster with the ipFamily ipv4",
            )
        )
    compared = (
        ("trainyard:network.vpcId", wanted.vpc_id, found.vpc_id),
        (f"{CLUSTER_KEY}.endpoint", wanted.endpoint, found.endpoint),
        (f"{CLUSTER_KEY}.certificateAuthority", wanted.certificate_authority, found.certificate_authority),
        (f"{CLUSTER_KEY}.oidcIssuer", _bare(wanted.oidc_issuer), _bare(found.issuer)),
        (f"{CLUSTER_KEY}.securityGroupId", wanted.security_group, found.security_group),
    )
    for key, said, real in compared:
        if said is not None and said != real:
            problems.append(
                Problem(
                    key=key, message=f"is {_short(said)}, but '{wanted.name}' has {_short(real or 'none')}"
                )
            )
    return problems


def check_access(
    wanted: WantedCluster, found: Cluster, caller: str, entries: tuple[str, ...]
) -> list[Problem]:
    """Whoever deploys into a given cluster must have an access entry; `entries` are their principals."""
    if found.mode != "API" or any(same_principal(caller, entry) for entry in entries):
        # In the mode API_AND_CONFIG_MAP the rights may stand in the cluster's own aws-auth, which EKS does not show.
        return []
    return [
        Problem(
            key=f"{CLUSTER_KEY}.name",
            message=f"'{wanted.name}' has no access entry for {principal_arn(caller)}, whose credentials are in use;"
            " its owner must make one with AmazonEKSClusterAdminPolicy",
        )
    ]


def check_provider(wanted: WantedCluster, issuer: str | None, found: Provider | None) -> list[Problem]:
    """Roles for service accounts need the cluster's OIDC provider in IAM, for the audience of STS."""
    arn = wanted.oidc_provider_arn
    if arn is None:
        return []
    key = f"{CLUSTER_KEY}.oidcProviderArn"
    if found is None:
        return [
            Problem(
                key=key,
                message=f"'{arn}' does not exist; it must be the IAM OIDC provider of the cluster:"
                f" eksctl utils associate-iam-oidc-provider --cluster {wanted.name} --approve",
            )
        ]
    problems = []
    if issuer is not None and _bare(found.url) != _bare(issuer):
        problems.append(
            Problem(
                key=key,
                message=f"'{arn}' is for {found.url}; it must be for the cluster's issuer {_bare(issuer)}",
            )
        )
    if STS_AUDIENCE not in found.audiences:
        problems.append(
            Problem(
                key=key,
                message=f"'{arn}' does not have the audience {STS_AUDIENCE}, which roles for service accounts need",
            )
        )
    return problems


def _bare(issuer: str | None) -> str | None:
    return None if issuer is None else issuer.removeprefix("https://").rstrip("/")


def _short(text: str) -> str:
    return f"'{text}'" if len(text) <= 80 else f"'{text[:40]}...' ({len(text)} characters)"


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """A file system of FSx as it is. `zones` are those of its subnets, `version` is Lustre's.

    `ports` is whether the workers may reach it, None where that can't be told.
    """

    file_system_id: str
    kind: str
    lifecycle: str
    vpc_id: str
    zones: tuple[str, ...]
    dns_name: str
    mount_name: str
    version: str = ""
    ports: bool | None = None


def check_lustre(wanted: WantedLustre, found: FileSystem | None, region: str) -> list[Problem | Unasked]:
    """The given file system must be there, of Lustre, where its clients are, and named as it is."""
    said = f"'{wanted.file_system_id}'"
    workers = "the workers' group or from their subnets"
    if wanted.worker_group is None:
        workers = "the workers' subnets, since the stack makes their group"
    id_key = f"{LUSTRE_KEY}.fileSystemId"
    if found is None:
        return [
            Problem(
                key=id_key,
                message=f"{said} does not exist in {region}; it must be a file system of FSx for Lustre there",
            )
        ]
    if found.kind != "LUSTRE":
        return [
            Problem(
                key=id_key, message=f"{said} is a file system of the type {found.kind}; it must be of LUSTRE"
            )
        ]
    problems: list[Problem | Unasked] = []
    if found.lifecycle != "AVAILABLE":
        problems.append(
            Problem(key=id_key, message=f"{said} is {found.lifecycle}; it must be AVAILABLE"),
        )
    if found.version in TOO_OLD:
        message = (
            f"{said} is of Lustre {found.version}, which machines with Amazon Linux 2023 can't mount; it must be of"
            f" 2.12 or 2.15: aws fsx update-file-system --file-system-id {wanted.file_system_id}"
            " --file-system-type-version 2.15"
        )
        problems.append(Problem(key=id_key, message=message))
    if wanted.vpc_id is None:
        message = (
            f"is missing: {said} lies in {found.vpc_id}, which machines in a VPC that the stack makes do not reach;"
            f" it must be {found.vpc_id}"
        )
        problems.append(Problem(key="trainyard:network.vpcId", message=message))
    elif found.vpc_id != wanted.vpc_id:
        problems.append(
            Problem(key=id_key, message=f"{said} lies in {found.vpc_id}; it must lie in {wanted.vpc_id}")
        )
    if strangers := [zone for zone in wanted.zones if zone not in found.zones]:
        problems.append(
            Problem(
                key=id_key,
                message=f"{said} lies in {', '.join(found.zones)}; it must lie in {' and '.join(strangers)}, where its"
                " clients are",
            )
        )
    for key, given, real in (
        ("dnsName", wanted.dns_name, found.dns_name),
        ("mountName", wanted.mount_name, found.mount_name),
    ):
        if given != real:
            problems.append(
                Problem(key=f"{LUSTRE_KEY}.{key}", message=f"'{given}' is invalid; it must be '{real}'")
            )
    if found.ports is False:
        problems.append(
            Problem(
                key=id_key,
                message=f"{said} lets no workers in: its security group must allow TCP ports 988 and 1018-1023 from"
                f" {workers}",
            )
        )
    elif found.ports is None and found.vpc_id == wanted.vpc_id:
        message = (
            f"whether {said} lets TCP ports 988 and 1018-1023 in from {workers} can't be told by its rules"
        )
        problems.append(Unasked(key=id_key, message=message))
    return problems


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """What S3 says of a bucket's name: its region, or that it is somebody else's (`forbidden`)."""

    region: str = ""
    forbidden: bool = False


def check_buckets(
    wanted: tuple[WantedBucket, ...], found: Mapping[str, Bucket | None], region: str
) -> list[Problem]:
    """A bucket that is given must exist, be this account's to read, and lie in the region."""
    problems = []
    for bucket in wanted:
        real = found.get(bucket.name)
        if real is None:
            said = f"'{bucket.name}' does not exist; it must be the name of a bucket in {region}"
        elif real.forbidden:
            said = (
                f"'{bucket.name}' may not be read with these credentials; it must be a bucket of this account"
            )
        elif real.region != region:
            said = f"'{bucket.name}' lies in {real.region}; it must lie in {region}"
        else:
            continue
        problems.append(Problem(key=bucket.key, message=said))
    return problems


@dataclass(frozen=True, kw_only=True)
class Name:
    """A name that the stack will take: the settings key that it comes from, its kind, and the name."""

    key: str
    kind: str
    name: str


def names(wanted: Wanted) -> list[Name]:
    """The fixed names of a stack that an account can have once only; all other names are made unique."""
    result = []
    key = "trainyard:cluster.name"
    if wanted.existing_cluster is None:
        result += [
            Name(key=key, kind="EKS cluster", name=wanted.cluster),
            Name(key=key, kind="log group", name=f"/aws/eks/{wanted.cluster}/cluster"),
        ]
    result.append(Name(key=key, kind="SQS queue", name=wanted.queue or wanted.cluster))
    result += [Name(key=key, kind="KMS alias", name=name) for name in wanted.key_aliases]
    result += [Name(key=key, kind="ECR repository", name=name) for name in wanted.repositories]
    return result


def check_names(wanted: Wanted, taken: Mapping[Name, dict[str, str]]) -> list[Problem]:
    """A name may be taken by this very stack alone; `taken` maps a name that exists to its tags."""
    return [
        Problem(
            key=name.key,
            message=f"{name.kind} '{name.name}' exists already and is not this stack's; it must be another name,"
            f" or the {name.kind} must go",
        )
        for name, tags in taken.items()
        if not all(tags.get(key) == value for key, value in wanted.tags.items())
    ]
