"""Reading the cluster of a stack file; part of `infra.settings`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from infra import formats, ranges, versions
from infra.model import Cluster, ExistingCluster
from infra.pool_settings import known_type
from infra.reading import Problems, Section, hint, shown, twice

DEPLOY_FROM: Final = ("internet", "vpc")
# Eight cores: room for Karpenter (a core per copy), CoreDNS, the operators, the CSI controllers and the launcher on one
# machine while the other one is replaced.
SYSTEM_NODE_TYPE: Final = "c5.2xlarge"
SYSTEM_NODES: Final = 2
ONLY_NEW: Final = (
    "name",
    "accountId",
    "version",
    "deployFrom",
    "administrators",
    "publicAccessCidrs",
    "systemNodes",
    "logRetentionDays",
    "lateLogSeconds",
)
# "Delivered within a few minutes" (https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html). The wait
# has an end before that of the sweep that it is a part of (`infra.foundation`).
LATE_LOG_SECONDS: Final = 180
MOST_LATE_LOG_SECONDS: Final = 600


def gives_cluster(value: object) -> bool:
    """Whether a stack file's `cluster` gives an existing one."""
    return isinstance(value, Mapping) and value.get("existing") is not None


def read_cluster(problems: Problems, value: object, project: str, stack: str) -> Cluster:
    """The cluster: one to make, or one that is given."""
    section = Section(problems, f"{project}:cluster", value)
    given = section.optional_section("existing")
    name, existing = _existing(given) if given else ("", None)
    if given is None:
        name = prefix = _name(section, f"{project}-{stack}")
    else:
        prefix = _prefix(given, name, f"{project}-{stack}")
    version = section.choice("version", versions.KUBERNETES_SUPPORTED, versions.KUBERNETES)
    administrators = _administrators(section, required=given is None)
    public = _public(section)
    deploy_from = section.choice("deployFrom", DEPLOY_FROM, "internet")
    if given is None and not public and deploy_from == "internet":
        _closed(section)
    instance_type, count = _system_nodes(section)
    replicas = section.integer("karpenterReplicas", 2, least=1, most=2)
    if given is None and count is not None and replicas > count:
        section.reject(
            "karpenterReplicas",
            f"{replicas} need a system node each; it must be at most systemNodes.count ({count})",
        )
    if given is not None:
        section.optional_text("name")
        for key in ONLY_NEW:
            if section.has(key):
                section.reject(
                    key, "is for a cluster that the stack makes, and existing gives one; leave it out"
                )
    result = Cluster(
        name=name,
        prefix=prefix,
        account_id=_account(section, administrators, existing),
        version=version,
        existing=existing,
        deploy_from=deploy_from,
        administrators=administrators,
        public_access_cidrs=public,
        system_instance_type=instance_type,
        system_count=count or 1,
        karpenter_replicas=replicas,
        node_repair=section.boolean("nodeRepair", True),
        addon_versions=_addons(section),
        ami=section.text(
            "ami",
            versions.AMI,
            pattern=formats.AMI_ALIAS,
            wanted=f"an alias with a version, such as {versions.AMI}",
        ),
        volume_key=section.optional_text("volumeKey", pattern=formats.KMS_KEY, wanted=formats.KMS_KEY_WANTED),
        log_retention_days=section.integer_choice("logRetentionDays", formats.LOG_DAYS, 365, unit="days"),
        late_log_seconds=section.integer(
            "lateLogSeconds", LATE_LOG_SECONDS, least=0, most=MOST_LATE_LOG_SECONDS, unit="seconds"
        ),
    )
    arn = result.volume_key
    if arn is not None and "volumeKey" not in section.wrong and result.account_id != _account_of(arn):
        section.reject(
            "volumeKey",
            f"'{arn}' is of another account; it must be a key of {result.account_id or 'the account to deploy to'}",
        )
    section.done()
    return result


def _name(section: Section, default: str) -> str:
    name = section.text("name", default, pattern=formats.CLUSTER_NAME, wanted=formats.CLUSTER_NAME_WANTED)
    if "name" not in section.wrong and not re.fullmatch(formats.CLUSTER_NAME, name):
        section.reject(
            "name", f"is '{name}' by the stack's name; it must be given as {formats.CLUSTER_NAME_WANTED}"
        )
    return name


def _prefix(given: Section, name: str, default: str) -> str:
    """What names begin with beside a given cluster, whose own may be longer than theirs or have what they can't."""
    if "name" in given.wrong or re.fullmatch(formats.CLUSTER_NAME, name):
        return name
    if not re.fullmatch(formats.CLUSTER_NAME, default):
        given.reject(
            "name",
            f"'{name}' is no begin of other names, and neither is '{default}' by the stack's name; the stack must be"
            f" named so that it is {formats.CLUSTER_NAME_WANTED}",
        )
    return default


def _existing(section: Section) -> tuple[str, ExistingCluster]:
    name = section.text("name", pattern=formats.EKS_NAME, wanted=formats.EKS_NAME_WANTED)
    result = ExistingCluster(
        endpoint=section.text(
            "endpoint",
            pattern=formats.API_ENDPOINT,
            wanted="the API's address, such as https://AB.gr7.us-west-2.eks.amazonaws.com",
        ),
        certificate_authority=section.text(
            "certificateAuthority",
            pattern=r"(?=.)([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
            wanted="the certificate in base64, certificateAuthority.data of DescribeCluster",
        ),
        oidc_provider_arn=section.text(
            "oidcProviderArn",
            pattern=formats.OIDC_PROVIDER,
            wanted="the ARN of the cluster's OIDC provider in IAM",
        ),
        oidc_issuer=section.text(
            "oidcIssuer",
            pattern=rf"(https://)?{formats.OIDC_ISSUER}",
            wanted="the issuer, such as oidc.eks.us-west-2.amazonaws.com/id/AB",
        ),
        security_group_id=section.text(
            "securityGroupId", pattern=formats.id_pattern("sg"), wanted=formats.id_wanted("sg")
        ),
    )
    issuer = result.oidc_issuer.removeprefix("https://")
    if not {"oidcProviderArn", "oidcIssuer"} & section.wrong and not result.oidc_provider_arn.endswith(
        f"/{issuer}"
    ):
        section.reject(
            "oidcIssuer", f"'{result.oidc_issuer}' is not the provider's; it must end oidcProviderArn"
        )
    section.done()
    return name, result


def _administrators(section: Section, *, required: bool) -> tuple[str, ...]:
    administrators = section.texts(
        "administrators",
        None if required else (),
        wanted=formats.PRINCIPAL_WANTED,
    )
    for index, arn in enumerate(administrators):
        key = f"administrators[{index}]"
        if key not in section.wrong and not re.fullmatch(formats.PRINCIPAL, arn):
            section.reject(key, _no_principal(arn))
            section.wrong.add("administrators")
    empty = section.has("administrators") and not administrators
    # Of a given cluster they are told as a whole.
    if required and empty and "administrators" not in section.wrong:
        section.reject("administrators", "is empty; it must name at least the user or role that deploys")
    for arn in twice(administrators):
        section.reject("administrators", f"names '{arn}' twice; each must be another one")
    return administrators


def _no_principal(arn: str) -> str:
    """What is wrong with an ARN that EKS gives no rights to."""
    session = re.fullmatch(formats.ROLE_SESSION, arn)
    if session is None:
        return f"{shown(arn)} is invalid; it must be {formats.PRINCIPAL_WANTED}"
    role = session["role"]
    return (
        f"'{arn}' is a session of the role {role}; it must be that role's ARN, as"
        f" 'aws iam get-role --role-name {role} --query Role.Arn' prints it"
    )


def _account(section: Section, administrators: tuple[str, ...], existing: ExistingCluster | None) -> str:
    """The account to deploy to: that of a given cluster's provider, else the one that the administrators are of.

    Whoever deploys has to be among them, so that it can't be another one; of several the setting says which.
    """
    told = section.optional_text("accountId", pattern=formats.ACCOUNT, wanted=formats.ACCOUNT_WANTED)
    if existing is not None:
        return _account_of(existing.oidc_provider_arn)
    accounts = (
        [] if "administrators" in section.wrong else sorted({_account_of(arn) for arn in administrators})
    )
    if "accountId" in section.wrong:
        return ""
    if told is not None and accounts and told not in accounts:
        section.reject(
            "accountId",
            f"'{told}' is the account of no administrator, and the one that deploys must be one; it must be"
            f" {' or '.join(accounts)}",
        )
    elif told is None and len(accounts) > 1:
        section.reject(
            "accountId",
            f"is missing; administrators are of {', '.join(accounts)}, and it must be the one to deploy to, in quotes",
        )
    return told or (accounts[0] if accounts else "")


def _account_of(arn: str) -> str:
    """The account in an ARN; empty where that is none."""
    return (arn.split(":") + [""] * 5)[4]


def _public(section: Section) -> tuple[str, ...]:
    public = section.texts("publicAccessCidrs", (), wanted="an IPv4 range such as 203.0.113.0/24")
    for index, block in enumerate(public):
        key = f"publicAccessCidrs[{index}]"
        if key in section.wrong:
            continue
        if problem := ranges.public_problem(block):
            section.reject(key, problem)
        elif block in public[:index]:
            section.reject(key, f"'{block}' is there already; each must be another one")
    if len(public) > ranges.MOST_PUBLIC:
        section.reject(
            "publicAccessCidrs", f"has {len(public)} entries; EKS takes at most {ranges.MOST_PUBLIC}"
        )
    return public


def _closed(section: Section) -> None:
    if "publicAccessCidrs" in section.wrong or "deployFrom" in section.wrong:
        return
    section.reject(
        "publicAccessCidrs",
        "has no range, so that nobody outside of the VPC reaches the API; it must hold those that you deploy from, such"
        " as 203.0.113.0/24, or deployFrom must be vpc",
    )


def _system_nodes(section: Section) -> tuple[str, int | None]:
    nodes = section.section("systemNodes")
    instance_type = nodes.text("instanceType", SYSTEM_NODE_TYPE)
    known_type(nodes, "instanceType", instance_type)
    count = nodes.integer("count", SYSTEM_NODES, least=1, most=20, unit="nodes")
    nodes.done()
    return instance_type, None if "count" in nodes.wrong else count


def _addons(section: Section) -> dict[str, str]:
    found = section.text_map(
        "addonVersions", pattern=formats.ADDON_VERSION, wanted="a version such as v1.21.1-eksbuild.1"
    )
    for addon in found:
        if addon not in versions.ADDONS:
            section.reject(
                f"addonVersions.{addon}",
                f"no add-on of this name is known{hint(addon, versions.ADDONS)} (known: {', '.join(versions.ADDONS)})",
            )
    return found
