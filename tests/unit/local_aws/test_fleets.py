"""CreateFleet: what instances take from their template, and the failure plan."""

from __future__ import annotations

import json
import threading
import time
from urllib.error import HTTPError

import pytest
from botocore.exceptions import ClientError

TYPE = "g5.12xlarge"


@pytest.fixture
def launcher(cloud):
    """A network, a security group, a profile and a launch template as Karpenter makes them."""
    return Launcher(cloud)


class Launcher:
    def __init__(self, cloud):
        self.cloud, self.ec2 = cloud, cloud.client("ec2")
        self.network = cloud.network()
        group = self.ec2.create_security_group(GroupName="nodes", Description="n", VpcId=self.network["vpc"])
        self.group = group["GroupId"]
        self.role = cloud.role("node", None)
        iam = cloud.client("iam")
        iam.create_instance_profile(InstanceProfileName="node")
        iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
        self.template = self.make_template("lt")

    def make_template(self, name, **data):
        return self.ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={
                "ImageId": "ami-1",
                "IamInstanceProfile": {"Name": "node"},
                "NetworkInterfaces": [{"DeviceIndex": 0, "NetworkCardIndex": 0, "Groups": [self.group]}],
                **data,
            },
        )["LaunchTemplate"]["LaunchTemplateId"]

    def fleet(self, zones="ab", capacity="on-demand", template=None, types=(TYPE,), machines=1, **more):
        overrides = [
            {
                "InstanceType": t,
                "SubnetId": self.network["subnets"]["ab".index(z)],
                "AvailabilityZone": f"us-west-2{z}",
            }
            for z in zones
            for t in types
        ]
        tags = [
            {"Key": "kubernetes.io/cluster/main", "Value": "owned"},
            {"Key": "karpenter.sh/nodepool", "Value": "p"},
        ]
        request = {
            "Type": "instant",
            "LaunchTemplateConfigs": [
                {
                    "LaunchTemplateSpecification": {
                        "LaunchTemplateId": template or self.template,
                        "Version": "$Latest",
                    },
                    "Overrides": overrides,
                }
            ],
            "TargetCapacitySpecification": {
                "DefaultTargetCapacityType": capacity,
                "TotalTargetCapacity": machines,
            },
            "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}],
        }
        return self.ec2.create_fleet(**request | more)

    def instance(self, instance_id):
        return self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]

    def plan(self, *rules):
        return self.cloud.call("PUT", "faults", {"faults": list(rules)})[0]


def test_an_instance_has_the_groups_and_the_profile_of_its_template(launcher):
    instance = launcher.instance(launcher.fleet()["Instances"][0]["InstanceIds"][0])
    assert [g["GroupId"] for g in instance["SecurityGroups"]] == [launcher.group]
    assert [g["GroupId"] for g in instance["NetworkInterfaces"][0]["Groups"]] == [launcher.group]
    assert instance["IamInstanceProfile"]["Arn"].endswith("instance-profile/node")
    assert instance["PrivateDnsName"].endswith(".us-west-2.compute.internal")


def test_the_cheapest_type_is_launched_first(launcher):
    fleet = launcher.fleet(types=("p4d.24xlarge", "g5.12xlarge"))
    assert fleet["Instances"][0]["InstanceType"] == "g5.12xlarge"


def test_addresses_are_unique_and_not_reused_at_once(launcher):
    seen = set()
    for _ in range(4):
        instance_id = launcher.fleet(zones="a")["Instances"][0]["InstanceIds"][0]
        seen.add(launcher.instance(instance_id)["PrivateIpAddress"])
        launcher.ec2.terminate_instances(InstanceIds=[instance_id])
    assert len(seen) == 4


def test_terminating_frees_the_subnet_and_the_group_and_may_be_repeated(launcher):
    ec2 = launcher.ec2
    instance_id = launcher.fleet(zones="a")["Instances"][0]["InstanceIds"][0]
    for refused in (
        lambda: ec2.delete_subnet(SubnetId=launcher.network["subnets"][0]),
        lambda: ec2.delete_security_group(GroupId=launcher.group),
    ):
        with pytest.raises(ClientError, match="DependencyViolation"):
            refused()
    ec2.terminate_instances(InstanceIds=[instance_id])
    ec2.terminate_instances(InstanceIds=[instance_id])
    assert launcher.instance(instance_id)["State"]["Name"] == "terminated"
    ec2.delete_security_group(GroupId=launcher.group)
    ec2.delete_subnet(SubnetId=launcher.network["subnets"][0])


def test_lacking_capacity_in_one_zone_leads_to_the_other(launcher):
    launcher.plan({"code": "InsufficientInstanceCapacity", "instanceType": "g5.*", "zone": "us-west-2a"})
    fleet = launcher.fleet()
    assert fleet["Errors"][0]["ErrorCode"] == "InsufficientInstanceCapacity"
    assert fleet["Errors"][0]["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] == "us-west-2a"
    instance = launcher.instance(fleet["Instances"][0]["InstanceIds"][0])
    assert instance["Placement"]["AvailabilityZone"] == "us-west-2b"


def test_lacking_capacity_everywhere_launches_nothing(launcher):
    launcher.plan({"code": "VcpuLimitExceeded"})
    fleet = launcher.fleet()
    assert fleet["Instances"] == []
    assert [e["ErrorCode"] for e in fleet["Errors"]] == ["VcpuLimitExceeded"] * 2


def test_so_many_instances_are_available_and_no_more(launcher):
    rule = {"code": "InsufficientInstanceCapacity", "instanceType": TYPE, "available": 2}
    launcher.plan(rule)
    launched = [launcher.fleet(zones="a")["Instances"] for _ in range(3)]
    assert [len(i) for i in launched] == [1, 1, 0]
    launcher.ec2.terminate_instances(InstanceIds=launched[0][0]["InstanceIds"])
    assert len(launcher.fleet(zones="a")["Instances"]) == 1
    assert launcher.cloud.call("GET", "faults")[0]["faults"][0]["fired"] == 1


def launched(fleet):
    """The zone of each machine of a fleet."""
    return [
        each["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"][-1]
        for each in fleet["Instances"]
        for _ in each["InstanceIds"]
    ]


def test_one_fleet_of_many_machines_gets_those_that_are_available(launcher):
    """Karpenter asks for machines of one kind by one fleet."""
    launcher.plan({"code": "InsufficientInstanceCapacity", "instanceType": TYPE, "available": 3})
    assert len(launched(launcher.fleet(zones="a"))) == 1
    fleet = launcher.fleet(zones="a", machines=4)
    assert len(launched(fleet)) == 2
    assert [error["ErrorCode"] for error in fleet["Errors"]] == ["InsufficientInstanceCapacity"]
    assert launcher.cloud.call("GET", "faults")[0]["faults"][0]["fired"] == 1
    assert launched(launcher.fleet(zones="a", machines=4)) == []


def test_what_one_zone_lacks_comes_from_the_next_and_both_count_for_a_rule_of_both(launcher):
    zone = {"code": "InsufficientInstanceCapacity", "zone": "us-west-2a", "available": 2}
    launcher.plan(zone, {"code": "VcpuLimitExceeded", "available": 4})
    fleet = launcher.fleet(machines=3)
    assert launched(fleet) == ["a", "a", "b"]
    assert [error["ErrorCode"] for error in fleet["Errors"]] == [zone["code"]]
    launcher.plan(zone | {"available": 3}, {"code": "VcpuLimitExceeded", "available": 5})
    fleet = launcher.fleet(machines=4)
    assert launched(fleet) == ["a", "b"]
    assert [error["ErrorCode"] for error in fleet["Errors"]] == [zone["code"], "VcpuLimitExceeded"]


def test_spot_machines_count_too(launcher):
    launcher.plan({"code": "InsufficientInstanceCapacity", "capacityType": "spot", "available": 2})
    assert len(launched(launcher.fleet(zones="a", capacity="spot", machines=3))) == 2
    assert len(launched(launcher.fleet(zones="a", machines=3))) == 3


def test_a_rule_is_spent_after_its_times(launcher):
    launcher.plan({"code": "InsufficientInstanceCapacity", "times": 1})
    assert launcher.fleet(zones="a")["Instances"] == []
    assert len(launcher.fleet(zones="a")["Instances"]) == 1


def test_a_call_can_be_throttled(launcher):
    launcher.plan({"action": "ec2:CreateFleet", "code": "RequestLimitExceeded", "times": 1})
    with pytest.raises(ClientError) as error:
        launcher.fleet()
    assert error.value.response["Error"]["Code"] == "RequestLimitExceeded"
    assert error.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert launcher.fleet()["Instances"]


def test_a_dry_run_meets_no_capacity(launcher):
    launcher.plan({"code": "InsufficientInstanceCapacity"})
    with pytest.raises(ClientError, match="DryRunOperation"):
        launcher.fleet(DryRun=True)


def test_a_wrong_plan_is_refused_and_the_old_one_stays(launcher):
    launcher.plan({"code": "VcpuLimitExceeded"})
    with pytest.raises(HTTPError) as error:
        launcher.plan({"code": "X", "zones": "a"})
    assert "unknown keys zones" in error.value.read().decode()
    assert launcher.cloud.call("GET", "faults")[0]["faults"][0]["code"] == "VcpuLimitExceeded"


def test_a_spot_instance_says_so(launcher):
    instance = launcher.instance(launcher.fleet(capacity="spot")["Instances"][0]["InstanceIds"][0])
    assert instance["InstanceLifecycle"] == "spot"
    assert instance["SpotInstanceRequestId"].startswith("sir-")


def test_a_reservation_serves_as_many_instances_as_it_has(launcher):
    ec2 = launcher.ec2
    made = ec2.create_capacity_reservation(
        InstanceType=TYPE, InstancePlatform="Linux/UNIX", AvailabilityZone="us-west-2a", InstanceCount=2
    )["CapacityReservation"]["CapacityReservationId"]
    target = {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": made},
    }
    template = launcher.make_template("reserved", CapacityReservationSpecification=target)
    first = launcher.fleet(zones="a", template=template)
    assert "Errors" not in first or first["Errors"] == []
    instance = launcher.instance(first["Instances"][0]["InstanceIds"][0])
    assert instance["CapacityReservationId"] == made
    assert (
        instance["CapacityReservationSpecification"]["CapacityReservationPreference"]
        == "capacity-reservations-only"
    )
    second = launcher.fleet(zones="a", template=template, machines=2)
    assert len(launched(second)) == 1
    assert second["Errors"][0]["ErrorCode"] == "ReservationCapacityExceeded"
    shown = ec2.describe_capacity_reservations(CapacityReservationIds=[made])["CapacityReservations"][0]
    assert (shown["AvailableInstanceCount"], shown["TotalInstanceCount"]) == (0, 2)
    assert launcher.cloud.call("GET", "instances?cluster=main")[0][0]["capacityType"] == "reserved"


def test_the_listing_tells_what_a_machine_of_the_type_has(launcher):
    launcher.fleet(zones="a")
    node = launcher.cloud.call("GET", "instances?cluster=main")[0][0]
    assert (node["vcpus"], node["memoryMiB"], node["gpus"], node["gpuName"]) == (48, 196608, 4, "A10G")
    assert (node["efaInterfaces"], node["nvmeGiB"], node["neuronDevices"]) == (0, 3800, 0)
    assert (node["capacityType"], node["nodegroup"], node["state"]) == ("on-demand", None, "running")
    assert node["nodeRole"] == launcher.role
    assert launcher.cloud.call("GET", "instances?cluster=other")[0] == []


def test_a_machine_has_the_efa_interfaces_that_it_was_launched_with(launcher):
    """A type that may have some has none by itself."""
    cards = [
        {"DeviceIndex": 0, "NetworkCardIndex": 0, "Groups": [launcher.group], "InterfaceType": "interface"},
        {"DeviceIndex": 1, "NetworkCardIndex": 0, "Groups": [launcher.group], "InterfaceType": "efa-only"},
    ]
    launcher.fleet(zones="a", template=launcher.make_template("efa", NetworkInterfaces=cards))
    assert launcher.cloud.call("GET", "instances?cluster=main")[0][0]["efaInterfaces"] == 1


def test_a_wait_for_instances_ends_when_one_starts(launcher):
    _, headers = launcher.cloud.call("GET", "instances?cluster=main")
    threading.Timer(0.2, launcher.fleet).start()
    started = time.monotonic()
    items, after = launcher.cloud.call("GET", f"instances?cluster=main&wait=8&after={headers['ETag']}")
    assert len(items) == 1
    assert after["ETag"] != headers["ETag"]
    assert time.monotonic() - started < 4


def queue_of_rule(cloud, policy=True, event="EC2 Instance State-change Notification"):
    sqs, events = cloud.client("sqs"), cloud.client("events")
    url = sqs.create_queue(QueueName="interruptions")["QueueUrl"]
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    if policy:
        allow = {
            "Effect": "Allow",
            "Principal": {"Service": ["events.amazonaws.com"]},
            "Action": "sqs:SendMessage",
            "Resource": arn,
        }
        deny = {
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": arn,
            "Condition": {"StringEquals": {"aws:SecureTransport": "false"}},
        }
        sqs.set_queue_attributes(
            QueueUrl=url, Attributes={"Policy": json.dumps({"Statement": [allow, deny]})}
        )
    pattern = f'{{"source": ["aws.ec2"], "detail-type": ["{event}"]}}'
    events.put_rule(Name="state", EventPattern=pattern)
    events.put_targets(Rule="state", Targets=[{"Id": "1", "Arn": arn}])
    return lambda: sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages", [])


def test_state_changes_reach_the_queue_of_the_rule(launcher):
    receive = queue_of_rule(launcher.cloud)
    instance_id = launcher.fleet()["Instances"][0]["InstanceIds"][0]
    launcher.ec2.terminate_instances(InstanceIds=[instance_id])
    events = [json.loads(m["Body"]) for m in receive()]
    assert [e["detail"]["state"] for e in events] == ["running", "terminated"]
    assert events[1]["detail"]["instance-id"] == instance_id
    assert events[1]["time"].endswith("Z")


def test_a_queue_that_does_not_let_eventbridge_send_stays_empty(launcher):
    receive = queue_of_rule(launcher.cloud, policy=False)
    launcher.fleet()
    assert receive() == []


def test_spot_request_is_closed_when_its_instance_ends(launcher):
    ec2 = launcher.cloud.client("ec2")
    kept, ended = [launcher.fleet(capacity="spot")["Instances"][0]["InstanceIds"][0] for _ in range(2)]
    ec2.terminate_instances(InstanceIds=[ended])
    requests = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    found = {each["InstanceId"]: (each["State"], each["Status"]["Code"]) for each in requests}
    assert found == {kept: ("active", "fulfilled"), ended: ("closed", "instance-terminated-by-user")}


def test_spot_interruption_is_announced_before(launcher):
    receive = queue_of_rule(launcher.cloud, event="EC2 Spot Instance Interruption Warning")
    ids = [launcher.fleet(capacity="spot")["Instances"][0]["InstanceIds"][0] for _ in range(2)]
    answer, _ = launcher.cloud.call("POST", "interruptions", {"instanceId": ids[0], "seconds": 1})
    assert answer == {"instanceId": ids[0], "endsInSeconds": 1}
    (event,) = [json.loads(m["Body"]) for m in receive()]
    assert event["detail"] == {"instance-id": ids[0], "instance-action": "terminate"}
    assert event["resources"] == [f"arn:aws:ec2:us-west-2a:instance/{ids[0]}"]
    assert launcher.instance(ids[0])["State"]["Name"] == "running"
    end = time.monotonic() + 10
    while launcher.instance(ids[0])["State"]["Name"] != "terminated":
        assert time.monotonic() < end, "the instance was not ended"
        time.sleep(0.1)
    assert launcher.instance(ids[1])["State"]["Name"] == "running"


@pytest.mark.parametrize("asked", [{"instanceId": "i-0"}, {}, [], {"seconds": 200}, {"seconds": "1"}])
def test_only_a_running_spot_instance_is_taken_back(launcher, asked):
    bought = launcher.fleet()["Instances"][0]["InstanceIds"][0]
    for document in (asked, {"instanceId": bought}):
        with pytest.raises(HTTPError) as refused:
            launcher.cloud.call("POST", "interruptions", document)
        assert refused.value.code == 400
        assert "must be" in refused.value.read().decode()
    assert launcher.instance(bought)["State"]["Name"] == "running"
