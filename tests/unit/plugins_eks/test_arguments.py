"""What the EKS components refuse."""

from __future__ import annotations

from typing import Any

import pytest

from local.plugins.eks.arguments import CLUSTER, NODE_GROUP, REQUIRED, ami_type, refusals
from local.plugins.eks.provider import CLUSTER_TOKEN, NODE_GROUP_TOKEN, EksProvider
from local.plugins.provider import ProviderError


def cluster(**more: Any) -> list[str]:
    return refusals(CLUSTER_TOKEN, CLUSTER, {**REQUIRED, **more})


def test_a_cluster_without_the_defaults_of_the_component_is_accepted() -> None:
    assert cluster(name="x", tags={}) == []
    # The SDK's own defaults of the options.
    options = {
        "enabled": False,
        "resolveConflictsOnCreate": "OVERWRITE",
        "resolveConflictsOnUpdate": "OVERWRITE",
    }
    assert cluster(kubeProxyAddonOptions=options, corednsAddonOptions=options) == []
    assert refusals(NODE_GROUP_TOKEN, NODE_GROUP, {"cluster": "c", "nodeRole": "r", "labels": {}}) == []


@pytest.mark.parametrize("key", sorted(REQUIRED))
def test_a_default_of_the_component_that_is_not_made_here_is_refused(key: str) -> None:
    assert [text.split(" must be ")[0] for text in cluster(**{key: None})] == [key]


def test_everything_that_would_be_ignored_is_named_at_once() -> None:
    found = cluster(
        authenticationMode="CONFIG_MAP", skipDefaultNodeGroup=False, fargate=True, storageClasses="gp3"
    )
    assert len(found) == 4
    assert [text for text in found if text.startswith(("fargate ", "storageClasses "))] == found[:2]
    with pytest.raises(
        ProviderError, match=r"eks:index:ManagedNodeGroup system: enableEfaSupport is not served"
    ):
        EksProvider().construct("system", NODE_GROUP_TOKEN, {"enableEfaSupport": True}, None)
    with pytest.raises(ProviderError, match=r"eks:index:NodeGroupV2 is not served"):
        EksProvider().construct("x", "eks:index:NodeGroupV2", {}, None)


@pytest.mark.parametrize(
    ("kinds", "system", "expected"),
    [
        (["m6i.large"], "AL2023", "AL2023_x86_64_STANDARD"),
        (["m7g.large", "c6gn.large", "a1.large"], "AL2023", "AL2023_ARM_64_STANDARD"),
        (["g5.12xlarge"], "AL2023", "AL2023_x86_64_NVIDIA"),
        (["p4de.24xlarge"], "AL2023", "AL2023_x86_64_NVIDIA"),
        (["g5g.xlarge"], "AL2023", "AL2023_ARM_64_NVIDIA"),
        (["m6i.large"], None, None),
    ],
)
def test_the_ami_follows_processor_and_system(
    kinds: list[str], system: str | None, expected: str | None
) -> None:
    assert ami_type(kinds, system) == expected


def test_mixed_processors_and_unknown_systems_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mixes processor architectures: m6i\.large, m7g\.large"):
        ami_type(["m6i.large", "m7g.large"], "AL2023")
    with pytest.raises(ValueError, match="operatingSystem is AL2"):
        ami_type(["m6i.large"], "AL2")
