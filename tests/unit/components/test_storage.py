"""The CSI drivers with their rights, and the bucket."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.csi import Csi, CsiArgs
from components.documents import iam
from components.storage import ModelBucket, ModelBucketArgs
from tests.unit.components.recording import ACCOUNT, HERE, Recorded, addon_default, deploy

KEY = f"arn:aws:kms:us-west-2:{ACCOUNT}:key/data"
ADDON = "aws:eks/addon:Addon"


def drivers(lustre: bool) -> Recorded:
    args = CsiArgs(
        cluster="main",
        kubernetes_version="1.35",
        account=HERE,
        key_arn=KEY,
        oidc_provider_arn=f"arn:aws:iam::{ACCOUNT}:oidc-provider/issuer",
        lustre=lustre,
        addon_versions={"aws-ebs-csi-driver": "v1.55.0-eksbuild.1"},
        after=[],
        tags={"trainyard:stack": "test"},
    )
    return deploy(lambda: Csi("csi", args) and None)


def test_lustre_driver_follows_kubernetes_and_has_no_role() -> None:
    found = drivers(lustre=True)
    addon = found.one(ADDON, "csi-aws-fsx-csi-driver").inputs
    assert addon["addonVersion"] == addon_default("aws-fsx-csi-driver", "1.35")
    assert "serviceAccountRoleArn" not in addon
    assert len(found.of("aws:iam/role:Role")) == 1


def test_the_disk_driver_has_a_role_and_tags_its_volumes_with_the_stacks_tags() -> None:
    found = drivers(lustre=False)
    addon = found.one(ADDON).inputs
    assert addon["addonVersion"] == "v1.55.0-eksbuild.1"
    assert addon["serviceAccountRoleArn"] == f"arn:aws:iam::{ACCOUNT}:role/main-ebs-csi"
    tags = json.loads(addon["configurationValues"])["controller"]["extraVolumeTags"]
    assert tags == {"trainyard:stack": "test", iam.CLUSTER_TAG: "main"}
    trust = json.loads(found.one("aws:iam/role:Role").inputs["assumeRolePolicy"])["Statement"][0]
    assert trust["Condition"]["StringEquals"]["issuer:sub"] == (
        "system:serviceaccount:kube-system:ebs-csi-controller-sa"
    )


def test_the_default_class_is_encrypted_with_our_key_and_waits_for_the_pod() -> None:
    inputs = drivers(lustre=False).one("kubernetes:storage.k8s.io/v1:StorageClass").inputs
    assert inputs["metadata"]["annotations"] == {"storageclass.kubernetes.io/is-default-class": "true"}
    assert inputs["parameters"] == {"type": "gp3", "encrypted": "true", "kmsKeyId": KEY}
    assert inputs["volumeBindingMode"] == "WaitForFirstConsumer"
    assert inputs["reclaimPolicy"] == "Delete"


def test_every_change_that_the_disk_driver_may_make_is_bound_to_its_cluster() -> None:
    policy = iam.volumes(HERE, "main")
    for statement in policy["Statement"]:
        actions = statement["Action"]
        reads = all(
            a.startswith("ec2:Describe") for a in ([actions] if isinstance(actions, str) else actions)
        )
        assert (statement["Resource"] == "*") == reads
        assert statement["Condition"]
    text = json.dumps(policy)
    assert "Snapshot" not in text
    by_sid = {s["Sid"]: s for s in policy["Statement"]}
    assert by_sid["ChangeTheClustersVolumes"]["Condition"]["StringEquals"] == {
        "aws:ResourceTag/ebs.csi.aws.com/cluster": "true",
        "aws:ResourceTag/ebs.csi.aws.com/cluster-name": "main",
    }


def test_the_key_is_used_through_ec2_alone() -> None:
    for statement in iam.volume_key(region="us-west-2", key_arn=KEY)["Statement"]:
        assert statement["Resource"] == KEY
        assert statement["Condition"]["StringEquals"] == {"kms:ViaService": "ec2.us-west-2.amazonaws.com"}


def bucket(**more: Any) -> Recorded:
    days = {"keep_old_versions_days": 30, "keep_job_logs_days": 20}
    given = {"key_arn": KEY, **days, "protect": False, "tags": {}, **more}
    return deploy(lambda: ModelBucket("models", ModelBucketArgs(**given)) and None)


def test_the_bucket_belongs_to_the_account_alone_is_versioned_encrypted_and_tidied() -> None:
    found = bucket()
    rule = found.one("aws:s3/bucketOwnershipControls:BucketOwnershipControls").inputs["rule"]
    assert rule == {"objectOwnership": "BucketOwnerEnforced"}
    versions = found.one("aws:s3/bucketVersioning:BucketVersioning").inputs["versioningConfiguration"]
    assert versions == {"status": "Enabled"}
    [encryption] = found.one(
        "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    ).inputs["rules"]
    assert encryption["bucketKeyEnabled"] is True
    assert encryption["applyServerSideEncryptionByDefault"] == {
        "sseAlgorithm": "aws:kms",
        "kmsMasterKeyId": KEY,
    }
    closed = found.one("aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock").inputs
    assert [v for k, v in closed.items() if k != "bucket"] == [True] * 4
    [tidy, *_] = found.one("aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration").inputs["rules"]
    assert tidy["abortIncompleteMultipartUpload"]["daysAfterInitiation"] <= 7
    assert tidy["noncurrentVersionExpiration"] == {"noncurrentDays": 30}
    assert tidy["expiration"] == {"expiredObjectDeleteMarker": True}


def test_checkpoints_that_a_run_deleted_are_not_kept_as_long_as_models() -> None:
    kind = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    [_, deleted, _] = bucket().one(kind).inputs["rules"]
    assert deleted["filter"] == {"prefix": "checkpoints/"}
    assert deleted["noncurrentVersionExpiration"] == {"noncurrentDays": 1}
    assert "expiration" not in deleted, "a checkpoint that is in use must never go by its age"


def test_logs_of_jobs_expire_and_nothing_else_does() -> None:
    kind = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
    rules = bucket().one(kind).inputs["rules"]
    assert rules[2]["filter"] == {"prefix": "torchrun/logs/"}
    assert rules[2]["expiration"] == {"days": 20}
    assert rules[2]["noncurrentVersionExpiration"] == {"noncurrentDays": 1}
    assert [each["id"] for each in rules if "days" in each.get("expiration", {})] == [rules[2]["id"]]


@pytest.mark.parametrize("protect", [True, False])
def test_protected_bucket_is_not_emptied_and_keeps_its_settings(protect: bool) -> None:
    found = bucket(protect=protect)
    assert found.one("aws:s3/bucket:Bucket").inputs["forceDestroy"] is not protect
    settings = {(r.type, r.name) for r in found.resources if r.type.startswith("aws:")}
    assert len(settings) == 7
    assert found.protected == (settings if protect else set())
