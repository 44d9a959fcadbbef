"""Placement groups: their life, and launches into them."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.unit.local_aws.test_fleets import TYPE, Launcher


@pytest.fixture
def ec2(cloud):
    return cloud.client("ec2")


@pytest.fixture
def launcher(cloud):
    return Launcher(cloud)


def group(ec2, name="g", **more):
    return ec2.create_placement_group(GroupName=name, **{"Strategy": "cluster", **more})["PlacementGroup"]


def into(launcher, made, **more):
    """A fleet into a group, as Karpenter launches it: by the group's id."""
    placement = {"GroupId": made["GroupId"]}
    return launcher.fleet(zones="a", template=launcher.make_template("placed", Placement=placement, **more))


def test_a_group_is_made_found_by_name_id_and_state_and_deleted(ec2):
    made = group(ec2)
    assert (made["State"], made["Strategy"]) == ("available", "cluster")
    available = [{"Name": "state", "Values": ["available"]}]
    for query in ({"GroupNames": ["g"]}, {"GroupIds": [made["GroupId"]]}, {}):
        found = ec2.describe_placement_groups(Filters=available, **query)["PlacementGroups"]
        assert [each["GroupArn"] for each in found] == [made["GroupArn"]]
    ec2.delete_placement_group(GroupName="g")
    for query in ({"GroupNames": ["g"]}, {"GroupIds": [made["GroupId"]]}):
        with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Unknown"):
            ec2.describe_placement_groups(**query)
    assert ec2.describe_placement_groups()["PlacementGroups"] == []


def test_a_name_serves_once(ec2):
    group(ec2)
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Duplicate"):
        group(ec2)


def test_a_group_carries_tags_and_is_found_by_them(ec2):
    tags = [{"Key": "a", "Value": "b"}]
    made = group(ec2, TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}])
    group(ec2, "other")
    assert made["Tags"] == tags
    ec2.create_tags(Resources=[made["GroupId"]], Tags=[{"Key": "c", "Value": "d"}])
    ec2.delete_tags(Resources=[made["GroupId"]], Tags=[{"Key": "a"}])
    for name, values in (("tag:c", ["d"]), ("tag-key", ["c"])):
        found = ec2.describe_placement_groups(Filters=[{"Name": name, "Values": values}])["PlacementGroups"]
        assert [(each["GroupName"], each["Tags"]) for each in found] == [("g", [{"Key": "c", "Value": "d"}])]


def test_an_instance_stands_in_its_group_which_stays_until_it_is_gone(launcher):
    made = group(launcher.ec2)
    instance_id = into(launcher, made)["Instances"][0]["InstanceIds"][0]
    placement = launcher.instance(instance_id)["Placement"]
    assert (placement["GroupName"], placement["GroupId"]) == ("g", made["GroupId"])
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.InUse"):
        launcher.ec2.delete_placement_group(GroupName="g")
    launcher.ec2.terminate_instances(InstanceIds=[instance_id])
    launcher.ec2.delete_placement_group(GroupName="g")


def test_a_launch_into_a_group_that_is_gone_fails(launcher):
    made = group(launcher.ec2)
    launcher.ec2.delete_placement_group(GroupName="g")
    fleet = into(launcher, made)
    assert fleet["Instances"] == []
    assert fleet["Errors"][0]["ErrorCode"] == "InvalidPlacementGroup.Unknown"


@pytest.mark.parametrize("inside", [True, False])
def test_a_reservation_fills_no_other_cluster_group_than_its_own(launcher, inside):
    made = group(launcher.ec2)
    own = {"PlacementGroupArn": made["GroupArn"]} if inside else {}
    reservation = launcher.ec2.create_capacity_reservation(
        InstanceType=TYPE,
        InstancePlatform="Linux/UNIX",
        AvailabilityZone="us-west-2a",
        InstanceCount=1,
        **own,
    )["CapacityReservation"]["CapacityReservationId"]
    target = {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": reservation},
    }
    fleet = into(launcher, made, CapacityReservationSpecification=target)
    if inside:
        assert len(fleet["Instances"]) == 1
    else:
        assert [each["ErrorCode"] for each in fleet["Errors"]] == ["InsufficientInstanceCapacity"]
