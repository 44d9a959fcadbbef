"""The cluster of a stack: its logs, who reaches and administers it, what it waits for; and Karpenter's values."""

from __future__ import annotations

import json
from typing import Any

import pulumi
import pytest

from components.cluster import BaseCluster, Cluster, ClusterArgs, short_names, with_provider_tags
from components.documents import eks
from components.documents.iam import control_plane_group, flow_logs_group
from components.documents.karpenter_iam import queue_policy
from components.encryption import Encryption, EncryptionArgs
from components.identity import NodeRoles, NodeRolesArgs
from components.karpenter import Karpenter, KarpenterArgs
from components.network import Network, NetworkArgs
from tests.unit.components.recording import ACCOUNT, HERE, Recorded, addon_default, deploy

TAGS = {"trainyard:stack": "test"}
GROUPS = (control_plane_group("mine"), flow_logs_group("mine"))
CLUSTER = ("eks:index:Cluster", "mine")
NODES = ("eks:index:ManagedNodeGroup", "mine-system")
NAT = ("aws:ec2/natGateway:NatGateway", "mine-us-west-2a")
KEYS, ALIASES = "aws:kms/key:Key", "aws:kms/alias:Alias"
KEY = (KEYS, "mine-logs")


def program() -> dict[str, Any]:
    roles = NodeRoles("roles", NodeRolesArgs(prefix="mine", account=HERE, tags=TAGS))
    keys = Encryption("mine", EncryptionArgs(cluster="mine", account=HERE, log_groups=GROUPS, tags=TAGS))
    zones = ("us-west-2a", "us-west-2b")
    network = Network(
        "mine", NetworkArgs(account=HERE, cluster="mine", cidr="10.0.0.0/16", zones=zones, tags=TAGS)
    )
    made: BaseCluster = Cluster(
        "mine",
        ClusterArgs(
            name="mine",
            account=HERE,
            vpc_id=network.vpc_id,
            private_subnet_ids=network.private_subnet_ids,
            public_subnet_ids=network.public_subnet_ids,
            private_access_cidrs=("10.0.0.0/16",),
            administrators=(f"arn:aws:iam::{ACCOUNT}:role/platform",),
            secrets_key_arn=keys.secrets_key_arn,
            logs_key_arn=keys.logs_key_arn,
            system_role=roles.system,
            worker_role=roles.worker,
            control_plane_dependencies=network.deleted_after_cluster,
            node_dependencies=[*network.egress, *roles.attachments],
            tags=TAGS,
        ),
    )
    return {"access": [f"{r._type} {r._name}" for r in made.access]}


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    return deploy(program)


ADDON = "aws:eks/addon:Addon"


def test_the_control_planes_logs_are_encrypted_and_their_group_is_there_before_eks_would_make_one(
    recorded: Recorded,
) -> None:
    group = recorded.one("aws:cloudwatch/logGroup:LogGroup").inputs
    assert group["name"] == "/aws/eks/mine/cluster"
    assert group["kmsKeyId"].endswith("key/mine-logs")
    assert {("aws:cloudwatch/logGroup:LogGroup", "mine-control-plane"), KEY} <= recorded.needs(*CLUSTER)


def test_the_network_plugin_enforces_policies_and_keeps_few_addresses(recorded: Recorded) -> None:
    addon = recorded.one(ADDON, "mine-vpc-cni").inputs
    values = json.loads(addon["configurationValues"])
    assert values["enableNetworkPolicy"] == "true"
    assert json.loads(values["env"].pop("ADDITIONAL_ENI_TAGS")) == addon["tags"]
    assert values["env"] == {"WARM_IP_TARGET": "4", "MINIMUM_IP_TARGET": "14"}, "EKS refuses numbers"
    machine = {"interfaces": 15, "addresses": 50}
    least = int(values["env"]["MINIMUM_IP_TARGET"]) + 1
    assert eks.NodeNetwork(**machine).address_count == least, "what is counted is what is asked for"


def test_addons_follow_the_version_of_the_control_plane(recorded: Recorded) -> None:
    found = {each.inputs["addonName"]: each.inputs["addonVersion"] for each in recorded.of(ADDON)}
    assert found == {name: addon_default(name, "1.35") for name in found}
    assert len(found) == 4


def test_monitoring_agent_tolerates_taints_of_gpu_nodes(recorded: Recorded) -> None:
    addon = recorded.one(ADDON, "mine-eks-node-monitoring-agent").inputs
    assert json.loads(addon["configurationValues"])["dcgmAgent"]["tolerations"] == [{"operator": "Exists"}]


def test_what_makes_a_node_ready_is_there_before_one_and_what_needs_a_node_after(recorded: Recorded) -> None:
    """CoreDNS is DEGRADED where there is no node; the monitoring agent is what node repair goes by."""
    kind, of_nodes = ADDON, recorded.needs(*NODES)
    before = {"vpc-cni", "kube-proxy"}
    after = {"coredns", "eks-node-monitoring-agent"}
    assert {r.inputs["addonName"] for r in recorded.of(kind)} == before | after
    for addon in before:
        assert (kind, f"mine-{addon}") in of_nodes
        assert CLUSTER in recorded.needs(kind, f"mine-{addon}")
    for addon in after:
        assert NODES in recorded.needs(kind, f"mine-{addon}")


def test_a_system_nodes_identity_is_not_for_pods_and_its_disk_is_encrypted(recorded: Recorded) -> None:
    template = recorded.one("aws:ec2/launchTemplate:LaunchTemplate").inputs
    options = template["metadataOptions"]
    assert (options["httpTokens"], options["httpPutResponseHopLimit"]) == ("required", 1)
    (disk,) = template["blockDeviceMappings"]
    assert disk["ebs"]["encrypted"] == "true"


def test_the_log_group_goes_before_what_looks_for_late_entries(recorded: Recorded) -> None:
    under = recorded.needs("aws:cloudwatch/logGroup:LogGroup", "mine-control-plane")
    assert ("aws:ec2/securityGroup:SecurityGroup", "mine-workers") in under, "one of those under the cluster"


def test_cloudwatch_may_use_the_key_for_the_stacks_own_groups_alone(recorded: Recorded) -> None:
    policy = json.loads(recorded.one(*KEY).inputs["policy"])
    service = next(s for s in policy["Statement"] if "Service" in s["Principal"])
    assert service["Principal"]["Service"] == "logs.us-west-2.amazonaws.com"
    prefix = f"arn:aws:logs:us-west-2:{ACCOUNT}:log-group:"
    assert service["Condition"] == {
        "ArnEquals": {"kms:EncryptionContext:aws:logs:arn": [prefix + name for name in GROUPS]}
    }
    account = next(s for s in policy["Statement"] if "AWS" in s["Principal"])
    assert account["Principal"]["AWS"] == f"arn:aws:iam::{ACCOUNT}:root", (
        "or nobody could change the key again"
    )
    others = [k.inputs["policy"] for k in recorded.of("aws:kms/key:Key") if k.name != "mine-logs"]
    assert len(others) == 2
    assert not any("logs." in text for text in others)
    kept = {(kind, f"mine-{name}") for kind in (KEYS, ALIASES) for name in ("secrets", "data")}
    assert recorded.protected == kept, "logs are no data"


def test_no_role_is_kept_for_a_key_that_is(recorded: Recorded) -> None:
    """Whatever a kept resource needs is kept, too, and a key needs of a role no more than the account's number."""
    for name in ("mine-secrets", "mine-data"):
        assert not {kind for kind, _ in recorded.needs(KEYS, name)} & {"aws:iam/role:Role"}


def test_the_control_plane_does_not_wait_for_gateways_and_nodes_do(recorded: Recorded) -> None:
    """The control plane takes nine minutes; two more in front of them would be two more for everything."""
    plane, nodes = recorded.needs(*CLUSTER), recorded.needs(*NODES)
    assert NAT not in plane
    assert not any("route" in kind.lower() for kind, _ in plane)
    for zone in "ab":
        assert ("aws:ec2/subnet:Subnet", f"mine-private-us-west-2{zone}") in plane
    assert ("aws:ec2/securityGroup:SecurityGroup", "mine-workers") in plane, "it is under the control plane"
    assert NAT in nodes
    assert ("aws:ec2/route:Route", "mine-private-us-west-2b") in nodes
    assert CLUSTER in nodes


def test_who_deploys_from_the_vpc_is_let_in_to_the_private_endpoint(recorded: Recorded) -> None:
    cluster = recorded.one(*CLUSTER).inputs
    assert (cluster["endpointPrivateAccess"], cluster["endpointPublicAccess"]) == (True, False)
    rule = recorded.one(
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "mine-api-from-10.0.0.0-16"
    ).inputs
    assert rule["securityGroupId"] == "eks-cluster-sg-mine"
    assert (rule["cidrIpv4"], rule["fromPort"], rule["toPort"]) == ("10.0.0.0/16", 443, 443)


def test_access_holds_entries_their_rights_and_the_way_to_the_api(recorded: Recorded) -> None:
    assert sorted(recorded.result["access"]) == [
        "aws:eks/accessEntry:AccessEntry mine-role-platform",
        "aws:eks/accessEntry:AccessEntry mine-workers",
        "aws:eks/accessPolicyAssociation:AccessPolicyAssociation mine-role-platform",
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule mine-api-from-10.0.0.0-16",
    ]


def test_a_cluster_without_public_subnets_is_given_none() -> None:
    def private() -> None:
        subnets = [pulumi.Output.from_input(each) for each in ("subnet-a", "subnet-b")]
        roles = NodeRoles("roles", NodeRolesArgs(prefix="mine", account=HERE, tags=TAGS))
        Cluster(
            "mine",
            ClusterArgs(
                name="mine",
                account=HERE,
                vpc_id="vpc-1",
                private_subnet_ids=subnets,
                public_subnet_ids=[],
                administrators=(),
                secrets_key_arn="arn:aws:kms:us-west-2:1:key/k",
                system_role=roles.system,
                worker_role=roles.worker,
                tags=TAGS,
            ),
        )

    recorded = deploy(private)
    assert "publicSubnetIds" not in recorded.one(*CLUSTER).inputs
    assert not recorded.of("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")


def karpenter(**more: Any) -> dict[str, Any]:
    recorded = deploy_karpenter(**more)
    values: dict[str, Any] = recorded.one("kubernetes:helm.sh/v3:Release", "karpenter").inputs["values"]
    return values


def deploy_karpenter(**more: Any) -> Recorded:
    given: dict[str, Any] = {
        "cluster": "mine",
        "prefix": "mine",
        "account": HERE,
        "node_role_arn": f"arn:aws:iam::{ACCOUNT}:role/worker",
        "oidc_provider_arn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.example/id/AB",
        "tags": TAGS,
    }
    return deploy(lambda: Karpenter("karpenter", KarpenterArgs(**{**given, **more})) and None)


@pytest.mark.parametrize("repair", [True, False])
def test_node_repair_is_a_gate_of_karpenter(repair: bool) -> None:
    assert karpenter(node_repair=repair)["settings"]["featureGates"] == {"nodeRepair": repair}


def test_karpenter_isolated_network_sets_isolated_vpc() -> None:
    assert karpenter()["settings"]["isolatedVPC"] is False
    assert "image" not in karpenter()["controller"]
    values = karpenter(isolated_vpc=True, image_repository="registry.example/karpenter/controller")
    assert values["settings"]["isolatedVPC"] is True
    assert values["controller"]["image"] == {"repository": "registry.example/karpenter/controller"}


def test_an_administrators_resources_are_named_by_role_or_user_alone() -> None:
    """Names in the states of deployed stacks: other names would recreate every administrator's access."""
    platform, ada = f"arn:aws:iam::{ACCOUNT}:role/platform", f"arn:aws:iam::{ACCOUNT}:user/team/ada"
    assert short_names((platform, ada)) == {"role-platform": platform, "user-team-ada": ada}


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ("arn:aws:iam::210987654321:role/team/ops", "role-team-ops-210987654321"),
        (f"arn:aws:iam::{ACCOUNT}:role/team-ops", f"role-team-ops-{ACCOUNT}"),
    ],
)
def test_two_administrators_with_one_short_name_have_two_resources(other: str, name: str) -> None:
    first = f"arn:aws:iam::{ACCOUNT}:role/team/ops"
    assert short_names((first, other)) == {"role-team-ops": first, name: other}
    third = "arn:aws:iam::210987654321:role/team-ops"
    names = short_names((first, other, third))
    assert sorted(names.values()) == sorted((first, other, third))
    assert list(names)[:2] == ["role-team-ops", name], "one more renames nobody"


def test_interruption_queue_takes_events_of_own_rules_alone() -> None:
    arn, own = "arn:aws:sqs:us-west-2:123456789012:mine", ["arn:aws:events:us-west-2:123456789012:rule/a"]
    allowed, denied = queue_policy(arn, own)["Statement"]
    assert allowed["Principal"] == {"Service": "events.amazonaws.com"}
    assert allowed["Condition"] == {"ArnEquals": {"aws:SourceArn": own}}
    assert denied["Effect"] == "Deny"


def test_both_releases_of_karpenter_are_taken_back_where_they_fail() -> None:
    recorded = deploy_karpenter()
    releases = recorded.of("kubernetes:helm.sh/v3:Release")
    assert {each.inputs["name"]: each.inputs["atomic"] for each in releases} == {
        "karpenter": True,
        "karpenter-crd": True,
    }
    policy = json.loads(recorded.one("aws:sqs/queuePolicy:QueuePolicy").inputs["policy"])
    sources = policy["Statement"][0]["Condition"]["ArnEquals"]["aws:SourceArn"]
    made = [each.name for each in recorded.of("aws:cloudwatch/eventRule:EventRule")]
    assert sorted(sources) == [f"arn:aws:events:us-west-2:{ACCOUNT}:rule/{name}-1a2b3c4" for name in made]


def test_network_plugin_has_its_rights_by_its_service_account_alone(recorded: Recorded) -> None:
    addon = recorded.one(ADDON, "mine-vpc-cni").inputs
    assert addon["serviceAccountRoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/mine-vpc-cni"
    role = recorded.one("aws:iam/role:Role", "mine-vpc-cni").inputs
    assert "system:serviceaccount:kube-system:aws-node" in role["assumeRolePolicy"]
    attached = {
        each.name: each.inputs["policyArn"].rpartition("/")[2]
        for each in recorded.of("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    }
    assert [name for name, policy in attached.items() if policy == "AmazonEKS_CNI_Policy"] == [
        "mine-vpc-cni-AmazonEKS_CNI_Policy"
    ]
    assert ("aws:iam/role:Role", "mine-vpc-cni") in recorded.needs(ADDON, "mine-vpc-cni")


@pytest.mark.parametrize(
    ("type_", "tags"),
    [("aws:iam/openIdConnectProvider:OpenIdConnectProvider", TAGS), ("aws:eks/cluster:Cluster", None)],
)
def test_provider_tags_are_set_on_the_oidc_provider_only(type_: str, tags: dict[str, str] | None) -> None:
    args = pulumi.ResourceTransformArgs(
        custom=True, type_=type_, name="x", props={"url": "https://a"}, opts=pulumi.ResourceOptions()
    )
    result: Any = with_provider_tags(TAGS)(args)
    assert (result and result.props) == (tags and {"url": "https://a", "tags": tags})
