"""Check Kubernetes and add-on versions, and an existing cluster as EKS and IAM describe it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from components.documents import versions
from infra.changes import update_problem
from infra.settings import Settings
from trainyard.preflight.access import is_principal, principal_arn
from trainyard.preflight.aws import Aws, caller_arn, has, tags_of
from trainyard.preflight.findings import Finding, own_tags

KEY: Final = "trainyard:cluster.existing"
VERSION_KEY: Final = "trainyard:cluster.version"
# Access entries need one of these
# (https://docs.aws.amazon.com/eks/latest/userguide/setting-up-access-entries.html).
ACCESS_MODES: Final = ("API", "API_AND_CONFIG_MAP")
STS_AUDIENCE: Final = "sts.amazonaws.com"
# The longest list of add-on versions in a message.
SHOWN_VERSIONS: Final = 5


def describe(aws: Aws, name: str) -> dict[str, Any] | None:
    """Return an EKS cluster; None if it does not exist."""
    answer = aws.call("eks", "describe_cluster", name=name, missing=("ResourceNotFoundException",))
    return None if answer is None else dict(answer["cluster"])


def existing_cluster(settings: Settings, aws: Aws) -> dict[str, Any] | None:
    """Return the existing cluster; None if the stack creates one, or if it does not exist."""
    return describe(aws, settings.cluster.name) if settings.cluster.existing else None


def check_version(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that EKS offers the Kubernetes version of a new cluster.

    Source: https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html (standard and extended support).
    """
    if settings.cluster.existing:
        return []
    offered = {
        each["clusterVersion"]
        for each in aws.items("eks", "describe_cluster_versions", "clusterVersions")
        if each.get("versionStatus") != "UNSUPPORTED"
    }
    if settings.cluster.version in offered:
        return []
    valid = [each for each in versions.KUBERNETES_SUPPORTED if each in offered]
    message = (
        f"EKS offers no Kubernetes {settings.cluster.version} in {settings.region}."
        f" It must be {' or '.join(valid) or 'another version'}"
    )
    return [Finding(VERSION_KEY, message)]


def check_update(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that EKS updates a running cluster to the configured version."""
    name, version = settings.cluster.name, settings.cluster.version
    found = None if settings.cluster.existing else describe(aws, name)
    if found is None or not has(tags_of(found, key="tags"), own_tags(settings)):
        return []
    running = str(found["version"])
    problem = update_problem(running, version)
    return [Finding(VERSION_KEY, f"is {version}, but '{name}' runs {running}. {problem}")] if problem else []


def check_addons(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that EKS has `cluster.addonVersions` for the Kubernetes version of a new cluster."""
    cluster, findings = settings.cluster, []
    for name, version in cluster.addon_versions.items():
        found = aws.items(
            "eks",
            "describe_addon_versions",
            "addons",
            addonName=name,
            kubernetesVersion=cluster.version,
            # For an unknown add-on or Kubernetes version.
            missing=("ResourceNotFoundException", "InvalidParameterException"),
        )
        offered = [each["addonVersion"] for addon in found for each in addon["addonVersions"]]
        if version not in offered:
            action = f"be {' or '.join(offered[:SHOWN_VERSIONS])}" if offered else "be omitted"
            message = (
                f"'{version}' is not for Kubernetes {cluster.version} in {settings.region}. It must {action}"
            )
            findings.append(Finding(f"trainyard:cluster.addonVersions.{name}", message))
    return findings


def check_cluster(settings: Settings, aws: Aws) -> list[Finding]:
    """Check the existing cluster: active, with access entries, a supported version, IPv4 and the values in the file."""
    existing, network = settings.cluster.existing, settings.network.existing
    if existing is None:
        return []
    found, name, key = existing_cluster(settings, aws), f"'{settings.cluster.name}'", f"{KEY}.name"
    if found is None:
        message = f"{name} does not exist in {settings.region}. It must be an EKS cluster of this account"
        return [Finding(key, message)]
    messages = []
    mode = _access_mode(found)
    family = (found.get("kubernetesNetworkConfig") or {}).get("ipFamily") or "ipv4"
    if found["status"] != "ACTIVE":
        messages.append(f"{name} is {found['status']}. It must be ACTIVE")
    if mode not in ACCESS_MODES:
        messages.append(
            f"{name} has the authentication mode {mode}, without access entries. It must be API: aws eks"
            f" update-cluster-config --name {settings.cluster.name} --access-config authenticationMode=API"
        )
    if found["version"] not in versions.KUBERNETES_SUPPORTED:
        supported = " or ".join(versions.KUBERNETES_SUPPORTED)
        messages.append(f"{name} runs Kubernetes {found['version']}. It must be {supported}")
    if family != "ipv4":
        messages.append(
            f"{name} has the ipFamily {family}, but the stack's network rules and file systems use IPv4. It must be a"
            " cluster with the ipFamily ipv4"
        )
    vpc = found.get("resourcesVpcConfig") or {}
    values = (
        ("trainyard:network.vpcId", network.vpc_id if network else None, vpc.get("vpcId")),
        (f"{KEY}.endpoint", existing.endpoint, found.get("endpoint")),
        (
            f"{KEY}.certificateAuthority",
            existing.certificate_authority,
            (found.get("certificateAuthority") or {}).get("data"),
        ),
        (f"{KEY}.oidcIssuer", _host(existing.oidc_issuer), _host(_issuer(found))),
        (f"{KEY}.securityGroupId", existing.security_group_id, vpc.get("clusterSecurityGroupId")),
    )
    return [
        *(Finding(key, message) for message in messages),
        *(
            Finding(setting, f"is {_short(value)}, but must be {_short(real or 'none')}, as {name} has it")
            for setting, value, real in values
            if value is not None and value != (real or "")
        ),
    ]


def _access_mode(cluster: Mapping[str, Any]) -> str:
    return (cluster.get("accessConfig") or {}).get("authenticationMode") or "CONFIG_MAP"


def _issuer(cluster: Mapping[str, Any]) -> str:
    return ((cluster.get("identity") or {}).get("oidc") or {}).get("issuer") or ""


def _host(issuer: str) -> str:
    return issuer.removeprefix("https://").rstrip("/")


def _short(text: str) -> str:
    return f"'{text}'" if len(text) <= 80 else f"'{text[:40]}...' ({len(text)} characters)"


def check_access(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the caller has an access entry in the existing cluster."""
    found, name, caller = existing_cluster(settings, aws), settings.cluster.name, caller_arn(aws)
    # In the mode API_AND_CONFIG_MAP the cluster's own aws-auth may grant access. EKS does not show it.
    if found is None or _access_mode(found) != "API":
        return []
    absent = ("ResourceNotFoundException",)
    entries = aws.items("eks", "list_access_entries", "accessEntries", clusterName=name, missing=absent)
    if any(is_principal(caller, entry) for entry in entries):
        return []
    message = (
        f"'{name}' has no access entry for {principal_arn(caller)}, whose credentials are in use. Its owner must create"
        " one with AmazonEKSClusterAdminPolicy"
    )
    return [Finding(f"{KEY}.name", message)]


def check_oidc_provider(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that IAM has the OIDC provider of the existing cluster, with the audience of STS."""
    existing = settings.cluster.existing
    if existing is None:
        return []
    key, arn = f"{KEY}.oidcProviderArn", existing.oidc_provider_arn
    found = aws.call(
        "iam",
        "get_open_id_connect_provider",
        OpenIDConnectProviderArn=arn,
        missing=("NoSuchEntity", "ValidationError", "InvalidInput"),
    )
    if found is None:
        command = f"eksctl utils associate-iam-oidc-provider --cluster {settings.cluster.name} --approve"
        message = f"'{arn}' does not exist. It must be the IAM OIDC provider of the cluster: {command}"
        return [Finding(key, message)]
    # The provider's URL is part of its ARN, and the settings compare that with the issuer.
    if STS_AUDIENCE in (found.get("ClientIDList") or []):
        return []
    return [
        Finding(key, f"'{arn}' must have the audience {STS_AUDIENCE}, which roles for service accounts need")
    ]
