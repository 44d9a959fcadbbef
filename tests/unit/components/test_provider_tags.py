"""The one resource of a stack that would carry no tags by itself gets them."""

from __future__ import annotations

import pulumi
import pytest

from components.cluster import with_provider_tags

pytestmark = pytest.mark.unit


def asked(type_: str) -> pulumi.ResourceTransformResult | None:
    given = pulumi.ResourceTransformArgs(
        custom=True, type_=type_, name="x", props={"url": "https://a"}, opts=pulumi.ResourceOptions()
    )
    return with_provider_tags({"trainyard:stack": "train"})(given)  # type: ignore[return-value]


def test_the_clusters_oidc_provider_carries_the_stacks_tags() -> None:
    result = asked("aws:iam/openIdConnectProvider:OpenIdConnectProvider")
    assert result is not None
    assert result.props == {"url": "https://a", "tags": {"trainyard:stack": "train"}}


def test_nothing_else_of_the_control_plane_is_touched() -> None:
    assert asked("aws:eks/cluster:Cluster") is None
