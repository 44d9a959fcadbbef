"""What the checks are asked, out of the settings: every shipped stack file, and settings with everything given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra import versions
from infra.settings import SettingsError, read
from infra.stack_file import load
from tests.shipped import shipped
from tests.unit.infra.changing import GIVEN_CLUSTER
from trainyard.preflight.leftovers.target import target_of
from trainyard.preflight.mapping import wanted_of
from trainyard.preflight.services import NAME_KINDS, names
from trainyard.preflight.wanted import Wanted, WantedSystem
from trainyard.stack_files import StackFileError

pytestmark = pytest.mark.unit
STACKS = shipped()
SUBNET = "subnet-0123456789abcde"


def given(**changes: Any) -> Wanted:
    config = {
        "aws:region": "us-west-2",
        "trainyard:cluster": {
            "administrators": ["arn:aws:iam::123456789012:role/platform"],
            "publicAccessCidrs": ["203.0.113.0/24"],
        },
        "trainyard:network": {
            "vpcId": "vpc-0123456789abcdef0",
            "privateSubnetIds": {"us-west-2a": f"{SUBNET}a1", "us-west-2b": f"{SUBNET}b1"},
            "workerSecurityGroupId": "sg-0123456789abcdef0",
        },
        "trainyard:pools": [
            {"name": "p4d", "instanceType": "p4d.24xlarge", "zone": "us-west-2b", "maxNodes": 2}
        ],
        **changes,
    }
    return wanted_of(read("train", config))


@pytest.mark.parametrize("stack", STACKS)
def test_every_shipped_stack_file_can_be_asked_for(stack: str) -> None:
    settings = load(stack)
    wanted = wanted_of(settings)
    assert [pool.name for pool in wanted.pools] == [pool.name for pool in settings.pools]
    assert wanted.public_ranges == settings.cluster.public_access_cidrs
    assert (wanted.vpc is None) == (settings.network.existing is None)
    assert {name.kind for name in names(wanted)} == set(NAME_KINDS)
    assert target_of(settings).tags == wanted.tags
    assert target_of(settings).cluster == wanted.cluster


def test_a_new_vpc_needs_an_address_per_gateway() -> None:
    def addresses(network: dict[str, Any]) -> int:
        return given(**{"trainyard:network": network}).elastic_ips

    assert addresses({}) == 1
    assert addresses({"natPerZone": True}) == 3


def test_file_system_counts_against_the_quota_only_where_it_is_new() -> None:
    def quota(lustre: dict[str, Any]) -> tuple[str, int] | None:
        return given(**{"trainyard:storage": {"lustre": lustre}}).new_lustre

    name = "fs-0123456789abcdef0"
    existing = {"fileSystemId": name, "dnsName": f"{name}.fsx.us-west-2.amazonaws.com", "mountName": "m"}
    assert given().new_lustre is None
    assert quota({"deploymentType": "SCRATCH_2", "capacityGiB": 1200}) == ("SCRATCH_2", 1200)
    assert quota({"existing": existing}) is None


def test_a_given_vpc_is_asked_for_room_for_every_machine_of_its_zone() -> None:
    vpc = given().vpc
    assert vpc is not None
    assert (vpc.vpc_id, vpc.worker_group) == ("vpc-0123456789abcdef0", "sg-0123456789abcdef0")
    assert any("p4d" in taker for taker in vpc.addresses["us-west-2b"])
    assert not any("p4d" in taker for taker in vpc.addresses["us-west-2a"])


def test_the_network_plugin_of_a_given_cluster_is_taken_to_keep_whole_interfaces() -> None:
    cluster = {
        "existing": {
            "name": "research",
            "endpoint": "https://AB.gr7.us-west-2.eks.amazonaws.com",
            "certificateAuthority": "LS0tLS1CRUdJTg==",
            "oidcProviderArn": "arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
            "oidcIssuer": "https://oidc.eks.us-west-2.amazonaws.com/id/AB",
            "securityGroupId": "sg-0123456789abcdef0",
        }
    }
    own, others = given().vpc, given(**{"trainyard:cluster": cluster}).vpc
    assert own is not None
    assert others is not None
    assert own.addresses["us-west-2b"]["p4d (2 x p4d.24xlarge, 15 each)"] == 30
    assert others.addresses["us-west-2b"] == {"p4d (2 x p4d.24xlarge, 100 each)": 200}


def test_machines_are_asked_for_with_their_disks_and_network_interfaces() -> None:
    base = {"zone": "us-west-2b", "maxNodes": 2}
    pools = [
        {**base, "name": "p4d", "instanceType": "p4d.24xlarge", "rootVolumeGiB": 300},
        {**base, "name": "p5", "instanceType": "p5.48xlarge", "efa": "bandwidth"},
        {**base, "name": "cpu", "instanceType": "m5.large"},
    ]
    wanted = given(**{"trainyard:pools": pools})
    # Four EFA interfaces and one for IP; 32 and eight; two of ten addresses each for the pods.
    assert [pool.interfaces for pool in wanted.pools] == [5, 40, 2]
    assert wanted.pools[0].disks_gib == 300
    assert wanted.system == WantedSystem(
        instance_type="c5.2xlarge", count=2, vcpus=8, spare=2, disk_gib=50, interfaces=2
    )
    theirs = given(**{"trainyard:cluster": {"existing": GIVEN_CLUSTER}, "trainyard:pools": pools})
    # A given cluster's network plugin has an interface to spare, where the first card has room for one beside an EFA.
    assert [pool.interfaces for pool in theirs.pools] == [6, 40, 2]


def test_an_isolated_vpc_must_have_the_endpoints_that_the_stack_does_not_make() -> None:
    network = {
        "vpcId": "vpc-0123456789abcdef0",
        "privateSubnetIds": {"us-west-2a": f"{SUBNET}a1", "us-west-2b": f"{SUBNET}b1"},
        "private": True,
        "cidr": "10.1.0.0/16",
        "interfaceEndpoints": ["sts"],
    }
    images = {"mirror": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror"}
    vpc = given(**{"trainyard:network": network, "trainyard:images": images}).vpc
    assert vpc is not None
    assert vpc.made_endpoints == ("sts",)
    assert {"s3", "ec2", "ecr.api", "ecr.dkr", "sqs"} <= set(vpc.endpoints)
    assert "sts" not in vpc.endpoints


def test_reservations_are_asked_for_as_the_pool_says() -> None:
    begins = datetime.now(UTC).replace(microsecond=0) + timedelta(days=16)
    ends = begins + timedelta(days=14)
    reserved = {
        "name": "p5",
        "instanceType": "p5.48xlarge",
        "zone": "us-west-2b",
        "maxNodes": 2,
        "purchase": "reserved",
        "reservationType": "capacity-block",
        "capacityReservationIds": ["cr-0123456789abcdef0"],
        "reservationBegins": begins.isoformat(),
        "reservationEnds": ends.isoformat(),
    }
    (pool,) = given(**{"trainyard:pools": [reserved]}).pools
    assert pool.key == "trainyard:pools[0]"
    assert (pool.reservation_begins, pool.reservation_ends) == (begins, ends)
    assert (pool.reservation_type, pool.reservation_ids) == ("capacity-block", ("cr-0123456789abcdef0",))


def test_a_placement_group_that_the_stack_makes_need_not_exist() -> None:
    base = {"name": "a", "instanceType": "p4d.24xlarge", "zone": "us-west-2b", "maxNodes": 2}
    pools = [{**base, "placementGroup": True}, {**base, "name": "b", "placementGroup": "near"}]
    assert [p.placement_group for p in given(**{"trainyard:pools": pools}).pools] == [None, "near"]


def test_a_given_cluster_is_asked_for_and_its_things_are_no_leftovers() -> None:
    issuer = "oidc.eks.us-west-2.amazonaws.com/id/AB"
    existing = {
        "name": "shared",
        "endpoint": "https://AB.gr7.us-west-2.eks.amazonaws.com",
        "certificateAuthority": "Y2E=",
        "oidcProviderArn": f"arn:aws:iam::123456789012:oidc-provider/{issuer}",
        "oidcIssuer": issuer,
        "securityGroupId": "sg-0123456789abcdef1",
    }
    wanted = given(**{"trainyard:cluster": {"existing": existing}})
    assert wanted.existing_cluster is not None
    assert (wanted.existing_cluster.name, wanted.system) == ("shared", None)
    assert wanted.existing_cluster.vpc_id == "vpc-0123456789abcdef0"
    assert "EKS cluster" not in {name.kind for name in names(wanted)}


def test_given_buckets_and_file_systems_are_asked_for_by_their_keys() -> None:
    storage = {
        "lustre": {
            "existing": {
                "fileSystemId": "fs-0123456789abcdef0",
                "dnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
                "mountName": "abcdefgh",
            },
        }
    }
    lustre = given(**{"trainyard:storage": storage}).lustre
    assert lustre is not None
    assert (lustre.file_system_id, lustre.mount_name, lustre.zones) == (
        "fs-0123456789abcdef0",
        "abcdefgh",
        ("us-west-2b",),
    )
    assert lustre.worker_group == "sg-0123456789abcdef0"
    wanted = given(**{"trainyard:storage": {"lustre": {"zone": "us-west-2b", "s3": {"bucket": "the-data"}}}})
    assert [(b.key, b.name) for b in wanted.buckets] == [("trainyard:storage.lustre.s3.bucket", "the-data")]
    accounts = [{"name": "reader", "namespace": "training", "bucket": "their-data", "access": "read"}]
    wanted = given(**{"trainyard:serviceAccounts": accounts})
    assert [(b.key, b.name) for b in wanted.buckets] == [
        ("trainyard:serviceAccounts[0].bucket", "their-data")
    ]


def test_buckets_and_images_of_queues_are_asked_for_by_their_keys() -> None:
    image = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/pytorch@sha256:{'0' * 64}"
    queues = [
        {"name": "plain", "pool": "p4d", "storage": {"workspace": {"bucket": "models"}}},
        {"name": "theirs", "pool": "p4d", "image": image, "storage": {"workspace": {"bucket": "their-data"}}},
    ]
    wanted = given(**{"trainyard:queues": queues})
    assert [(each.key, each.name) for each in wanted.buckets] == [
        ("trainyard:queues[1].storage.workspace.bucket", "their-data")
    ]
    (found,) = (each for each in wanted.images if "queues" in each.key)
    assert (found.key, found.reference) == ("trainyard:queues[1].image", image)


def test_the_account_is_that_of_the_administrators_of_the_setting_or_of_a_given_cluster() -> None:
    def account(*people: str, **more: Any) -> tuple[str, str]:
        cluster = {"administrators": list(people), "publicAccessCidrs": ["203.0.113.0/24"], **more}
        wanted = given(**{"trainyard:cluster": cluster})
        return wanted.account, wanted.account_key

    ours, theirs = (f"arn:aws:iam::{number}:role/platform" for number in ("111111111111", "222222222222"))
    assert account(ours) == ("111111111111", "trainyard:cluster.administrators")
    assert account(ours, theirs, accountId="222222222222") == ("222222222222", "trainyard:cluster.accountId")
    wanted = given(**{"trainyard:cluster": {"existing": GIVEN_CLUSTER}})
    assert (wanted.account, wanted.account_key) == (
        "123456789012",
        "trainyard:cluster.existing.oidcProviderArn",
    )


def test_versions_are_asked_for_as_the_settings_pin_them_and_not_of_a_given_cluster() -> None:
    pins = {"coredns": "v1.12.4-eksbuild.1"}
    cluster = {
        "administrators": ["arn:aws:iam::123456789012:role/platform"],
        "publicAccessCidrs": ["203.0.113.0/24"],
        "version": "1.36",
        "ami": "al2023@v20260714",
        "addonVersions": pins,
    }
    wanted = given(**{"trainyard:cluster": cluster})
    assert (wanted.kubernetes, wanted.addons, wanted.ami) == ("1.36", pins, "al2023@v20260714")
    assert [pool.resource for pool in wanted.pools] == ["nvidia.com/gpu"]
    wanted = given(**{"trainyard:cluster": {"existing": GIVEN_CLUSTER, "addonVersions": pins}})
    assert (wanted.kubernetes, wanted.addons, wanted.ami) == (None, {}, versions.AMI)


def test_the_images_that_are_asked_for_are_those_that_the_stack_pulls() -> None:
    ours = f"123456789012.dkr.ecr.us-west-2.amazonaws.com/base@sha256:{'0' * 64}"
    images = given(**{"trainyard:images": {"baseImages": {"trainer": ours}, "debug": ours}}).images
    assert {image.name for image in images} == {
        "placeholder",
        "devicePlugin",
        "efaDevicePlugin",
        "baseImages.trainer",
    }
    assert [(i.key, i.reference) for i in images if i.name.startswith("base")] == [
        ("trainyard:images.baseImages.trainer", ours)
    ]
    mirror = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror"
    more = {"trainyard:images": {"mirror": mirror}, "trainyard:mpi": True, "trainyard:debugPod": True}
    mirrored = {image.name: image for image in given(**more).images}
    assert {"kubectlDelivery", "debug", "trainingOperator"} <= set(mirrored)
    assert mirrored["debug"].key == "trainyard:images.mirror"
    assert mirrored["debug"].reference == f"{mirror}/{versions.DEBUG_IMAGE}"


def test_a_stack_file_that_is_missing_or_broken_is_told_in_one_line(tmp_path: Any) -> None:
    with pytest.raises(
        StackFileError, match=r"Pulumi.none.yaml does not exist. Stack files here: .*dev.*p4d"
    ):
        load("none")
    broken = tmp_path / "Pulumi.x.yaml"
    broken.write_text("config: [")
    with pytest.raises(StackFileError, match="is not valid YAML"):
        load("x", broken)
    broken.write_text("name: x")
    with pytest.raises(StackFileError, match="needs a mapping named 'config'"):
        load("x", broken)
    broken.write_text("config: {'aws:region': 'nowhere'}")
    with pytest.raises(SettingsError, match="aws:region"):
        load("x", broken)
