"""A VPC and a cluster that are given: what is made all the same, and that both kinds have the same handles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.cluster import BaseCluster, ExistingCluster, ExistingClusterArgs
from components.identity import NodeRoles, NodeRolesArgs
from components.network import (
    BaseNetwork,
    ExistingNetwork,
    ExistingNetworkArgs,
    FlowLogSettings,
    Network,
    NetworkArgs,
)
from tests.unit.components.recording import ACCOUNT, HERE, deploy

TAGS = {"trainyard:stack": "test"}
PRIVATE = {"us-west-2a": "subnet-a", "us-west-2b": "subnet-b"}
GIVEN: dict[str, Any] = {
    "account": HERE,
    "cluster": "mine",
    "vpc_id": "vpc-1",
    "private_subnet_ids": PRIVATE,
    "tags": TAGS,
}


def handles(network: BaseNetwork) -> dict[str, Any]:
    return {
        "vpc": network.vpc_id,
        "zones": network.private_by_zone,
        "private": network.private_subnet_ids,
        "public": network.public_subnet_ids,
        "group": network.worker_security_group_id,
        "made": len(network.worker_security_group),
        "held": len(network.deleted_after_cluster),
        "egress": len(network.egress),
    }


def test_a_given_vpc_gets_the_workers_group_and_nothing_else() -> None:
    recorded = deploy(lambda: handles(ExistingNetwork("mine", ExistingNetworkArgs(**GIVEN))))
    kinds = sorted(r.type.split(":")[-1] for r in recorded.resources if r.type.startswith("aws:"))
    assert kinds == [
        "SecurityGroup",
        "SecurityGroupEgressRule",
        "SecurityGroupEgressRule",
        "SecurityGroupIngressRule",
    ]
    assert recorded.one("aws:ec2/securityGroup:SecurityGroup").inputs["vpcId"] == "vpc-1"
    assert recorded.result == {
        "vpc": "vpc-1",
        "zones": PRIVATE,
        "private": ["subnet-a", "subnet-b"],
        "public": [],
        "group": "mine-workers-id",
        "made": 4,
        "held": 4,
        "egress": 4,
    }


def test_with_every_id_given_nothing_is_made() -> None:
    args = ExistingNetworkArgs(
        **GIVEN, public_subnet_ids={"us-west-2a": "subnet-p"}, worker_security_group_id="sg-1"
    )
    recorded = deploy(lambda: handles(ExistingNetwork("mine", args)))
    assert [r.type for r in recorded.resources] == ["trainyard:network:ExistingNetwork"]
    assert (recorded.result["group"], recorded.result["public"]) == ("sg-1", ["subnet-p"])
    assert recorded.result["made"] == recorded.result["egress"] == 0


def test_endpoints_and_flow_logs_of_a_given_vpc_are_made_when_they_are_asked_for() -> None:
    args = ExistingNetworkArgs(
        **GIVEN,
        worker_security_group_id="sg-1",
        cidr="10.0.0.0/16",
        interface_endpoints=("sqs",),
        flow_logs=FlowLogSettings(key_arn=f"arn:aws:kms:us-west-2:{ACCOUNT}:key/k", retention_days=365),
    )
    recorded = deploy(lambda: handles(ExistingNetwork("mine", args)))
    endpoint = recorded.one("aws:ec2/vpcEndpoint:VpcEndpoint").inputs
    assert endpoint["subnetIds"] == ["subnet-a", "subnet-b"]
    assert recorded.one("aws:ec2/flowLog:FlowLog").inputs["vpcId"] == "vpc-1"
    assert recorded.result["egress"] == 2, "the endpoint and the rule that lets machines to it"


def test_endpoints_without_an_address_range_are_refused() -> None:
    def program() -> None:
        args = ExistingNetworkArgs(**GIVEN, worker_security_group_id="sg-1", interface_endpoints=("sqs",))
        with pytest.raises(ValueError, match="cidr: interface endpoints in vpc-1 need its address range"):
            ExistingNetwork("mine", args)

    deploy(program)


def test_a_made_and_a_given_network_have_the_same_handles() -> None:
    args = NetworkArgs(account=HERE, cluster="mine", cidr="10.0.0.0/16", zones=tuple(PRIVATE), tags=TAGS)
    made = deploy(lambda: handles(Network("mine", args))).result
    assert made["zones"] == {zone: f"mine-private-{zone}-id" for zone in PRIVATE}
    assert made["private"] == list(made["zones"].values())
    assert made["group"] == "mine-workers-id"


def cluster(partition: str = "aws") -> BaseCluster:
    args = ExistingClusterArgs(
        name="theirs",
        region="us-west-2",
        endpoint="https://ab.gr7.us-west-2.eks.amazonaws.com",
        certificate_authority="Q0E=",
        oidc_provider_arn=f"arn:{partition}:iam::{ACCOUNT}:oidc-provider/oidc.example/id/AB",
        security_group_id="sg-1",
        worker_role_arn=f"arn:aws:iam::{ACCOUNT}:role/theirs-worker-node",
        tags=TAGS,
    )
    return ExistingCluster("theirs", args)


def test_a_given_cluster_gets_an_entry_for_the_workers_and_nothing_else() -> None:
    recorded = deploy(lambda: {"access": len(cluster().access)})
    made = [r for r in recorded.resources if r.type.startswith(("aws:eks", "eks:"))]
    assert [r.type for r in made] == ["aws:eks/accessEntry:AccessEntry"]
    assert made[0].inputs["type"] == "EC2_LINUX"
    assert made[0].inputs["principalArn"].endswith("role/theirs-worker-node")
    assert recorded.result == {"access": 1}


def test_a_given_clusters_kubeconfig_holds_no_secret_and_asks_for_a_token() -> None:
    config = json.loads(deploy(lambda: {"config": cluster().kubeconfig}).result["config"])
    assert config["clusters"][0]["cluster"] == {
        "server": "https://ab.gr7.us-west-2.eks.amazonaws.com",
        "certificate-authority-data": "Q0E=",
    }
    login = config["users"][0]["user"]
    assert list(login) == ["exec"]
    assert login["exec"]["args"][:6] == [
        "--region",
        "us-west-2",
        "eks",
        "get-token",
        "--cluster-name",
        "theirs",
    ]


@pytest.mark.parametrize("partition", ["aws", "aws-cn"])
def test_existing_cluster_has_the_issuer_of_its_provider(partition: str) -> None:
    result = deploy(lambda: {"issuer": cluster(partition).oidc_issuer}).result
    assert result == {"issuer": "oidc.example/id/AB"}


def test_without_system_nodes_there_is_no_role_for_them() -> None:
    def program() -> None:
        roles = NodeRoles("roles", NodeRolesArgs(prefix="mine", account=HERE, system=False, tags=TAGS))
        with pytest.raises(LookupError, match="has no system nodes"):
            _ = roles.system

    recorded = deploy(program)
    assert [r.name for r in recorded.of("aws:iam/role:Role")] == ["mine-worker-node"]


def test_the_workers_instance_profile_is_made_where_karpenter_cannot_make_one() -> None:
    def program() -> dict[str, Any]:
        args = NodeRolesArgs(prefix="mine", account=HERE, instance_profile=True, tags=TAGS)
        roles = NodeRoles("roles", args)
        return {"profile": roles.worker_profile_name, "needed": [r._name for r in roles.attachments]}

    recorded = deploy(program)
    profile = recorded.one("aws:iam/instanceProfile:InstanceProfile")
    assert profile.inputs["role"] == "mine-worker-node-1a2b3c4"
    assert recorded.result["profile"] == "mine-worker-node-1a2b3c4"
    assert "mine-worker-node" in recorded.result["needed"]
