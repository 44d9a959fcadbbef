"""What EKS offers: the Kubernetes version of a new cluster, and the versions of its add-ons that a stack file pins.

EKS refuses others when it makes the cluster, and an add-on only once the cluster is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Wanted

VERSION_KEY: Final = "trainyard:cluster.version"
ADDONS_KEY: Final = "trainyard:cluster.addonVersions"
# In standard or extended support a version can be made
# (https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html).
UNSUPPORTED: Final = "UNSUPPORTED"
# So many versions of an add-on are told as those that would be right.
TOLD: Final = 5


def read_versions(account: Account) -> frozenset[str]:
    """The Kubernetes versions that a cluster can be made of."""
    found = account.items("eks", "describe_cluster_versions", "clusterVersions")
    return frozenset(
        str(each["clusterVersion"]) for each in found if each.get("versionStatus") != UNSUPPORTED
    )


def check_version(wanted: Wanted, offered: frozenset[str]) -> list[Problem]:
    """The version of a cluster that the stack makes must be one of those."""
    version = wanted.kubernetes
    if version is None or version in offered:
        return []
    right = [each for each in wanted.kubernetes_supported if each in offered]
    message = f"EKS offers no Kubernetes {version} in {wanted.region}; it must be {' or '.join(right) or 'another one'}"
    return [Problem(key=VERSION_KEY, message=message)]


def check_update(wanted: Wanted, running: str) -> list[Problem]:
    """Check that the cluster's version stays the same, or becomes the next minor version.

    Source: https://docs.aws.amazon.com/eks/latest/userguide/update-cluster.html, "Detailed considerations".
    """
    version, name = wanted.kubernetes, wanted.cluster
    if version is None:
        return []
    step = _minor(version) - _minor(running)
    if step in (0, 1):
        return []
    if step < 0:
        message = f"is {version}, but '{name}' runs {running}; EKS has no downgrades; it must be {running}"
    else:
        next_one = f"{running.partition('.')[0]}.{_minor(running) + 1}"
        message = (
            f"is {version}, but '{name}' runs {running}; EKS updates by one minor version at a time; it must be"
            f" {next_one} first"
        )
    return [Problem(key=VERSION_KEY, message=message)]


def _minor(version: str) -> int:
    return int(version.split(".")[1])


def read_addons(account: Account, wanted: Wanted) -> dict[str, tuple[str, ...]]:
    """The versions of each pinned add-on for the Kubernetes version of the stack's cluster, as EKS lists them."""
    return {name: _versions(account, name, wanted.kubernetes or "") for name in wanted.addons}


def _versions(account: Account, name: str, kubernetes: str) -> tuple[str, ...]:
    found = account.items(
        "eks",
        "describe_addon_versions",
        "addons",
        addonName=name,
        kubernetesVersion=kubernetes,
        # Of an add-on or a Kubernetes version that it does not have.
        missing=("ResourceNotFoundException", "InvalidParameterException"),
    )
    return tuple(str(version["addonVersion"]) for each in found for version in each["addonVersions"])


def check_addons(wanted: Wanted, found: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Each version that is pinned must be one for the cluster's Kubernetes version."""
    problems = []
    for name, version in wanted.addons.items():
        offered = found.get(name, ())
        if version not in offered:
            right = f"it must be {' or '.join(offered[:TOLD])}" if offered else "it must be left out"
            message = (
                f"'{version}' is not offered for Kubernetes {wanted.kubernetes} in {wanted.region}; {right}"
            )
            problems.append(Problem(key=f"{ADDONS_KEY}.{name}", message=message))
    return problems
