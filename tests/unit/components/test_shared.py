"""The pure helpers: ranges, policies, digests, manifests, and what the program shares with the launcher."""

from __future__ import annotations

import ipaddress
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from components.documents import iam, karpenter_iam, vpc
from components.documents.account import Account
from components.documents.images import context_digest, ignored, parse_ignore
from components.documents.pool import limits, node_class, node_pool
from tests.unit.components.pools import pool
from trainyard.k8s import names

ROOT = Path(__file__).resolve().parents[3]
SCOPE = karpenter_iam.Scope(
    account=Account(id="123456789012", region="us-west-2"),
    cluster="trainyard-" + "x" * 30,
    node_role_arn="arn:aws:iam::123456789012:role/workers",
    queue_arn="arn:aws:sqs:us-west-2:123456789012:trainyard-x",
)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(vpc.LARGEST_PREFIX, vpc.SMALLEST_VPC_PREFIX),
    st.sampled_from(vpc.ZONES),
)
def test_subnets_lie_in_the_vpc_and_never_overlap(address: int, prefix: int, zones: int) -> None:
    whole = ipaddress.IPv4Network((address & ~((1 << (32 - prefix)) - 1), prefix))
    layout = vpc.subnets(str(whole), zones)
    blocks = [ipaddress.IPv4Network(block) for block in (*layout.private, *layout.public)]
    assert len(layout.private) == len(layout.public) == zones
    assert all(block.subnet_of(whole) and block.prefixlen <= vpc.SMALLEST_PREFIX for block in blocks)
    assert not any(a.overlaps(b) for i, a in enumerate(blocks) for b in blocks[:i])


def test_a_third_zone_moves_no_subnet_of_the_first_two() -> None:
    two, three = vpc.subnets("10.64.0.0/16", 2), vpc.subnets("10.64.0.0/16", 3)
    assert three.private[:2] == two.private
    assert three.public[:2] == two.public


@pytest.mark.parametrize(
    ("block", "zones"), [("10.0.0.0/15", 3), ("10.0.0.0/21", 3), ("10.0.0.0/16", 5), ("x", 3)]
)
def test_a_range_that_does_not_fit_is_refused(block: str, zones: int) -> None:
    with pytest.raises(ValueError, match=r"prefix|zones|x"):
        vpc.subnets(block, zones)


@pytest.mark.parametrize(
    ("region", "partition"),
    [("eu-west-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")],
)
def test_account_has_the_partition_of_its_region(region: str, partition: str) -> None:
    assert Account(id="123456789012", region=region).partition == partition


@pytest.mark.parametrize("partition", ["aws", "aws-cn", "aws-us-gov"])
def test_a_role_is_for_exactly_one_service_account_and_audience(partition: str) -> None:
    (statement,) = iam.service_account_trust(
        provider_arn=f"arn:{partition}:iam::123456789012:oidc-provider/oidc.example/id/AB",
        namespace="training",
        service_account="trainer",
    )["Statement"]
    assert statement["Condition"] == {
        "StringEquals": {
            "oidc.example/id/AB:sub": "system:serviceaccount:training:trainer",
            "oidc.example/id/AB:aud": "sts.amazonaws.com",
        }
    }


def test_the_trainer_writes_below_its_prefix_and_deletes_nothing() -> None:
    document = iam.model_writer(
        bucket_arn="arn:aws:s3:::b", prefix="models", key_arn="arn:k", checkpoints=None
    )
    statements = {s["Sid"]: s for s in document["Statement"]}
    assert statements["ReadAndWriteModels"]["Resource"] == "arn:aws:s3:::b/models/*"
    assert "Delete" not in json.dumps(document)
    assert "checkpoints" not in json.dumps(document)
    assert '"s3:*"' not in json.dumps(document)


def test_of_checkpoints_alone_the_trainer_may_delete() -> None:
    document = iam.model_writer(
        bucket_arn="arn:aws:s3:::b", prefix="models", key_arn="arn:k", checkpoints="checkpoints"
    )
    deleting = [each for each in document["Statement"] if "Delete" in json.dumps(each)]
    assert [each["Resource"] for each in deleting] == ["arn:aws:s3:::b/checkpoints/*"]
    (listing,) = (each for each in document["Statement"] if each["Action"] == "s3:ListBucket")
    assert listing["Condition"] == {
        "StringLike": {"s3:prefix": ["models", "models/*", "checkpoints", "checkpoints/*"]}
    }


@pytest.mark.parametrize("name", karpenter_iam.CONTROLLER_POLICIES)
def test_a_policy_of_karpenter_fits_into_one_managed_policy(name: str) -> None:
    document = karpenter_iam.CONTROLLER_POLICIES[name](SCOPE)
    assert len(json.dumps(document, separators=(",", ":"))) <= karpenter_iam.MANAGED_POLICY_LIMIT
    sids = [statement["Sid"] for statement in document["Statement"]]
    assert len(sids) == len(set(sids))


def test_karpenter_changes_only_what_carries_this_clusters_tags() -> None:
    reads = ("Describe", "Get", "List", "Receive")
    for build in karpenter_iam.CONTROLLER_POLICIES.values():
        for statement in build(SCOPE)["Statement"]:
            actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
            changing = [a for a in actions if not a.split(":")[1].startswith(reads)]
            # Launching takes images and subnets of anybody; what it makes is bound by the next statement's tags.
            if not changing or statement["Sid"] in (
                "AllowScopedEC2InstanceAccessActions",
                "AllowInterruptionQueueActions",
            ):
                continue
            if statement["Sid"] == "AllowPassingInstanceRole":
                assert statement["Resource"] == SCOPE.node_role_arn
                continue
            assert SCOPE.owned in json.dumps(statement["Condition"]), statement["Sid"]
            assert statement["Resource"] != "*", statement["Sid"]


def test_karpenter_may_list_instance_profiles_because_its_finalizer_needs_it() -> None:
    assert "iam:ListInstanceProfiles" in json.dumps(karpenter_iam.resource_discovery(SCOPE))


def test_a_ceiling_is_counted_in_devices_and_for_cpu_pools_in_cores() -> None:
    assert limits(pool()) == {"nvidia.com/gpu": "16"}
    assert limits(pool(accelerators=0, resource="cpu", max_nodes=2)) == {"cpu": "96"}


def test_a_pool_buys_one_type_in_one_zone_and_never_moves_machines_at_work() -> None:
    spec = node_pool(pool())
    values = {r["key"]: r["values"] for r in spec["template"]["spec"]["requirements"]}
    assert values == {
        "node.kubernetes.io/instance-type": ["g5.12xlarge"],
        "topology.kubernetes.io/zone": ["us-west-2b"],
        "karpenter.sh/capacity-type": ["on-demand"],
    }
    assert spec["template"]["spec"]["expireAfter"] == "Never"
    assert spec["disruption"]["consolidationPolicy"] == "WhenEmpty"
    assert spec["disruption"]["budgets"][0] == {"nodes": "0", "reasons": ["Drifted", "Underutilized"]}
    # Nodes that are bought to stay wait for their workers.
    for each in (spec, node_pool(pool(purchase="reserved"))):
        assert "terminationGracePeriod" not in each["template"]["spec"]


SPOT, BLOCK = {"purchase": "spot"}, {"purchase": "reserved", "reservation_type": "capacity-block"}


@pytest.mark.parametrize(
    # Seconds of notice from EC2 before termination; Karpenter receives a spot notice a little later.
    ("bought", "notice", "later"),
    [(SPOT, 120, 15), (BLOCK, 600, 0)],
)
def test_workers_on_interrupted_nodes_stop_in_time(bought: dict[str, Any], notice: int, later: int) -> None:
    spec = node_pool(pool(**bought))
    grace = int(spec["template"]["spec"]["terminationGracePeriod"].removesuffix("s"))
    assert grace + later < notice
    assert grace >= names.SHUTDOWN_SECONDS + names.SHUTDOWN_MARGIN_SECONDS, (
        "else they get less than their own"
    )
    # With a grace period drift would end workers, too.
    assert {"nodes": "0", "reasons": ["Drifted", "Underutilized"]} in spec["disruption"]["budgets"]


def test_a_machine_demands_imdsv2_and_encrypts_its_disk() -> None:
    spec = node_class(pool(), cluster="c", ami="al2023@v1", role="r", subnet_id="s", tags={})
    assert spec["metadataOptions"]["httpTokens"] == "required"
    assert spec["metadataOptions"]["httpPutResponseHopLimit"] == 1
    assert spec["blockDeviceMappings"][0]["ebs"]["encrypted"] is True
    assert spec["instanceStorePolicy"] == "RAID0"
    assert "instanceStorePolicy" not in node_class(
        pool(nvme_gb=0), cluster="c", ami="a", role="r", subnet_id="s", tags={}
    )


def test_reservations_are_selected_by_id() -> None:
    reserved = pool(purchase="reserved", capacity_reservation_ids=("cr-1",))
    spec = node_class(reserved, cluster="c", ami="a", role="r", subnet_id="s", tags={})
    assert spec["capacityReservationSelectorTerms"] == [{"id": "cr-1"}]


@pytest.mark.parametrize(
    ("ignore", "path", "hidden"),
    [
        ("*\n!trainer", "trainer/a/b.py", False),
        ("*\n!trainer", "local/x.py", True),
        ("*\n!trainer\n**/__pycache__", "trainer/a/__pycache__/b.pyc", True),
        ("**/*.pyc", "a/b/c.pyc", True),
        ("**/*.pyc", "c.pyc", True),
        ("*.md", "docs/a.md", False),
        ("docs/*.md", "docs/a.md", True),
        ("# docs", "docs/a.md", False),
        ("./docs/", "docs/a.md", True),
        ("d?cs", "docs/a.md", True),
    ],
)
def test_a_dockerignore_is_understood_as_docker_does(ignore: str, path: str, hidden: bool) -> None:
    assert ignored(path, parse_ignore(ignore)) is hidden


def test_an_images_digest_changes_exactly_with_what_the_build_sees(tmp_path: Path) -> None:
    (tmp_path / "trainer").mkdir()
    (tmp_path / "local").mkdir()
    dockerfile = tmp_path / "trainer" / "Dockerfile"
    dockerfile.write_text("FROM scratch")
    (tmp_path / ".dockerignore").write_text("*\n!trainer\n")
    (tmp_path / "trainer" / "a.py").write_text("1")
    (tmp_path / "local" / "b.py").write_text("1")
    before = context_digest(tmp_path, dockerfile)
    (tmp_path / "local" / "b.py").write_text("2")
    assert context_digest(tmp_path, dockerfile) == before
    (tmp_path / "trainer" / "a.py").write_text("2")
    changed = context_digest(tmp_path, dockerfile)
    assert changed != before
    (tmp_path / "trainer" / "a.py").rename(tmp_path / "trainer" / "c.py")
    assert context_digest(tmp_path, dockerfile) != changed


def test_a_checkout_under_another_umask_is_another_image_and_so_another_tag(tmp_path: Path) -> None:
    """The plugin builds and pushes it again, which ECR refuses under a tag that is taken."""
    dockerfile, file = tmp_path / "Dockerfile", tmp_path / "a.py"
    dockerfile.write_text("FROM scratch")
    file.write_text("1")
    tags = []
    for mode in (0o644, 0o664, 0o600, 0o755):
        file.chmod(mode)
        tags.append(context_digest(tmp_path, dockerfile))
    assert len(set(tags)) == len(tags)


def test_the_images_of_launcher_and_trainer_have_tags_of_their_own(tmp_path: Path) -> None:
    """An edit of the one leaves the other's tag, with the ignore files of this checkout."""
    images = ("launcher", "trainer")
    for place in (
        ".dockerignore",
        *(f"{i}/Dockerfile{suffix}" for i in images for suffix in ("", ".dockerignore")),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)

    def tags() -> list[str]:
        return [context_digest(tmp_path, tmp_path / i / "Dockerfile") for i in images]

    before = tags()
    (tmp_path / "launcher" / "new.py").write_text("x = 1\n")
    after = tags()
    assert after[0] != before[0]
    assert after[1] == before[1]
    (tmp_path / "trainer" / "new.py").write_text("x = 1\n")
    assert tags()[0] == after[0]
    assert tags()[1] != after[1]
