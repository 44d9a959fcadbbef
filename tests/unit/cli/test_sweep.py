from __future__ import annotations

from components.documents import tags as program
from infra.settings import PROJECT
from tests.unit.emulator import REGION, Cloud
from trainyard.cli.sweep import stack_tags, sweep


def launch(account: Cloud, cluster: str) -> str:
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "eks:eks-cluster-name", "Value": cluster}]}]
    answer = account.client("ec2").run_instances(
        ImageId="ami-1", InstanceType="t3.micro", MinCount=1, MaxCount=1, TagSpecifications=tags
    )
    return str(answer["Instances"][0]["InstanceId"])


def state(account: Cloud, instance: str) -> str:
    answer = account.client("ec2").describe_instances(InstanceIds=[instance])
    return str(answer["Reservations"][0]["Instances"][0]["State"]["Name"])


def test_only_what_carries_exactly_this_clusters_tag_is_removed(account: Cloud) -> None:
    ours, similar = launch(account, "train"), launch(account, "train-two")
    lines: list[str] = []
    assert sweep(REGION, "train", lines.append) == 1
    assert state(account, ours) == "terminated"
    assert state(account, similar) == "running"
    assert ours in lines[0]


def test_an_instance_profile_goes_with_its_role_taken_out_first(account: Cloud) -> None:
    iam = account.client("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(
        InstanceProfileName="p", Tags=[{"Key": "eks:eks-cluster-name", "Value": "train"}]
    )
    iam.add_role_to_instance_profile(InstanceProfileName="p", RoleName="node")
    assert sweep(REGION, "train", print) == 1
    assert iam.list_instance_profiles()["InstanceProfiles"] == []


def test_a_clean_account_needs_no_sweep(account: Cloud) -> None:
    assert sweep(REGION, "train", print) == 0


def tagged(kind: str, **tags: str) -> list[dict[str, object]]:
    return [{"ResourceType": kind, "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]


def test_what_controllers_and_plugins_left_goes_too_each_by_its_own_tag(account: Cloud) -> None:
    ec2, logs, elb = account.client("ec2"), account.client("logs"), account.client("elbv2")
    network = account.network()
    for cluster in ("train", "train-two"):
        ec2.create_volume(
            AvailabilityZone=f"{REGION}a",
            Size=1,
            TagSpecifications=tagged("volume", **{f"kubernetes.io/cluster/{cluster}": "owned"}),
        )
        ec2.create_network_interface(
            SubnetId=network["subnets"][0],
            TagSpecifications=tagged("network-interface", **{"cluster.k8s.amazonaws.com/name": cluster}),
        )
        ec2.create_security_group(
            GroupName=f"elb-{cluster}",
            Description="g",
            VpcId=network["vpc"],
            TagSpecifications=tagged("security-group", **{"elbv2.k8s.aws/cluster": cluster}),
        )
        tags = [{"Key": "elbv2.k8s.aws/cluster", "Value": cluster}]
        elb.create_load_balancer(Name=cluster, Subnets=network["subnets"], Type="network", Tags=tags)
        elb.create_target_group(Name=cluster, Protocol="TCP", Port=80, VpcId=network["vpc"], Tags=tags)
        logs.create_log_group(logGroupName=f"/aws/eks/{cluster}/cluster")
    lines: list[str] = []
    assert sweep(REGION, "train", lines.append) == 6
    assert sweep(REGION, "train", lines.append) == 0
    kinds = [line.removeprefix("sweep: ").rpartition(" was left")[0].rpartition(" ")[0] for line in lines]
    assert sorted(kinds) == [
        "load balancer",
        "log group",
        "network interface",
        "security group",
        "target group",
        "volume",
    ]
    assert kinds.index("load balancer") < kinds.index("target group")
    assert sweep(REGION, "train-two", lines.append) == 6


def test_what_two_tags_find_is_removed_once(account: Cloud) -> None:
    account.client("ec2").create_volume(
        AvailabilityZone=f"{REGION}a",
        Size=1,
        TagSpecifications=tagged(
            "volume", **{"kubernetes.io/cluster/train": "owned", "KubernetesCluster": "train"}
        ),
    )
    assert sweep(REGION, "train", print) == 1


def test_on_an_existing_cluster_only_what_is_the_stacks_too_goes(account: Cloud) -> None:
    """Its system nodes and the machines of other stacks carry the cluster's tags as well."""
    ours, stack = stack_tags("mine"), {}
    ec2, iam, logs = (account.client(each) for each in ("ec2", "iam", "logs"))
    for name, more in (("ours", ours), ("theirs", stack_tags("x"))):
        tags = {"eks:eks-cluster-name": "train", **more}
        answer = ec2.run_instances(
            ImageId="ami-1",
            InstanceType="t3.micro",
            MinCount=1,
            MaxCount=1,
            TagSpecifications=tagged("instance", **tags),
        )
        stack[name] = answer["Instances"][0]["InstanceId"]
        listed = [{"Key": key, "Value": value} for key, value in tags.items()]
        iam.create_instance_profile(InstanceProfileName=name, Tags=listed)
    logs.create_log_group(logGroupName="/aws/eks/train/cluster")
    lines: list[str] = []
    assert sweep(REGION, "train", lines.append, ours) == 2, lines
    assert (state(account, stack["ours"]), state(account, stack["theirs"])) == ("terminated", "running")
    assert [p["InstanceProfileName"] for p in iam.list_instance_profiles()["InstanceProfiles"]] == ["theirs"]
    assert len(logs.describe_log_groups()["logGroups"]) == 1


def test_the_tags_of_a_stack_are_those_that_the_program_puts_on_everything() -> None:
    assert stack_tags("mine") == program.stack_tags(PROJECT, "mine")
