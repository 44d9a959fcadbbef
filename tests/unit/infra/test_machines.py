"""Security settings of a stack's nodes and network, as registered under mocks."""

from __future__ import annotations

from typing import Any

import pytest

from components.cluster import Cluster, ClusterArgs
from components.identity import NodeRoles, NodeRolesArgs
from components.network import Network, NetworkArgs
from tests.unit.components.recording import HERE, Recorded, deploy

pytestmark = pytest.mark.unit

TAGS = {"trainyard:stack": "test"}


def program() -> None:
    network = Network(
        "mine",
        NetworkArgs(
            account=HERE,
            cluster="mine",
            cidr="10.0.0.0/16",
            zones=("us-west-2a", "us-west-2b"),
            nat_per_zone=False,
            tags=TAGS,
        ),
    )
    roles = NodeRoles("roles", NodeRolesArgs(prefix="mine", account=HERE, tags=TAGS))
    Cluster(
        "mine",
        ClusterArgs(
            name="mine",
            version="1.35",
            account=HERE,
            vpc_id=network.vpc_id,
            private_subnet_ids=network.private_subnet_ids,
            public_subnet_ids=network.public_subnet_ids,
            public_access_cidrs=(),
            administrators=("arn:aws:iam::123456789012:role/platform",),
            secrets_key_arn="arn:aws:kms:us-west-2:123456789012:key/k",
            system_role=roles.system,
            worker_role=roles.worker,
            system_instance_type="m6i.large",
            system_count=2,
            addon_versions={},
            log_retention_days=30,
            deletion_protection=False,
            tags=TAGS,
        ),
    )


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return deploy(program)


def template(recorded: Recorded) -> dict[str, Any]:
    return recorded.one("aws:ec2/launchTemplate:LaunchTemplate").inputs


def test_pods_on_system_nodes_cannot_reach_the_nodes_identity(recorded: Recorded) -> None:
    assert template(recorded)["metadataOptions"] == {
        "httpEndpoint": "enabled",
        "httpTokens": "required",
        "httpPutResponseHopLimit": 1,
    }
    group = recorded.one("eks:index:ManagedNodeGroup").inputs
    assert group["launchTemplate"]["id"], "the node group uses the template"


def test_disks_of_system_nodes_are_encrypted_and_tagged(recorded: Recorded) -> None:
    (disk,) = template(recorded)["blockDeviceMappings"]
    assert disk["ebs"]["encrypted"] == "true"
    specified = {each["resourceType"]: each["tags"] for each in template(recorded)["tagSpecifications"]}
    assert set(specified) == {"instance", "volume", "network-interface"}
    assert all(tags["trainyard:stack"] == "test" for tags in specified.values())


def test_default_security_group_of_vpc_has_no_rules(recorded: Recorded) -> None:
    group = recorded.one("aws:ec2/defaultSecurityGroup:DefaultSecurityGroup").inputs
    assert "ingress" not in group
    assert "egress" not in group
