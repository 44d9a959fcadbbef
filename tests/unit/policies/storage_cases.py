"""What the rules of keys, buckets, file systems and repositories must reject and accept."""

from __future__ import annotations

from typing import Any

from components.documents import iam
from tests.unit.policies.building import Cases, document, made
from trainyard.policies import registry as r
from trainyard.policies import storage as s
from trainyard.policies.cluster import BUCKET
from trainyard.policies.model import Resource
from trainyard.policies.network import LUSTRE
from trainyard.policies.security_groups import GROUP, INGRESS, RULE

IT = made(BUCKET, "bucket")
ELSEWHERE = made(BUCKET, "another")
KMS = {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "arn"}
PUBLIC = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")


def about(type_: str, bucket: Resource = IT, **properties: Any) -> Resource:
    return made(type_, "about", of={"bucket": bucket}, **properties)


def encrypted(bucket_key: bool = True, **chosen: Any) -> Resource:
    rule = {"applyServerSideEncryptionByDefault": chosen, "bucketKeyEnabled": bucket_key}
    return about(s.ENCRYPTION, rules=[rule])


def versioned(status: str, bucket: Resource = IT) -> Resource:
    return about(s.VERSIONING, bucket, versioningConfiguration={"status": status})


def owned(kind: str) -> Resource:
    return about(s.OWNERSHIP, rule={"objectOwnership": kind})


def policed(*statements: dict[str, Any]) -> Resource:
    return about(s.BUCKET_POLICY, policy=document(*statements))


def cleaned(days: int | None = 7, kept: int | None = 30, status: str = "Enabled") -> Resource:
    rule: dict[str, Any] = {"status": status}
    if days:
        rule["abortIncompleteMultipartUpload"] = {"daysAfterInitiation": days}
    if kept:
        rule["noncurrentVersionExpiration"] = {"noncurrentDays": kept}
    return about(s.LIFECYCLE, rules=[rule])


SHUT = made(GROUP, "files")
NODES = made(GROUP, "nodes")
FILES = made(LUSTRE, "files", of={"securityGroupIds": SHUT}, securityGroupIds=["sg-1"])


def let_in(first: int, last: int, **more: Any) -> Resource:
    of = {"securityGroupId": SHUT, "referencedSecurityGroupId": NODES}
    name = f"{first}-{len(more)}"
    properties = {
        "ipProtocol": "tcp",
        "fromPort": first,
        "toPort": last,
        "referencedSecurityGroupId": "n",
        **more,
    }
    return made(INGRESS, name, of=of, **properties)


LUSTRE_IN = (let_in(988, 988), let_in(1018, 1023))
EFA = made(RULE, "efa", of={"securityGroupId": SHUT}, type="ingress", protocol="-1", self=True)
REPOSITORY = made(r.REPOSITORY, "repository")
TLS = iam.bucket_tls_only("arn:aws:s3:::b")["Statement"]

CASES: dict[str, Cases] = {
    "key-rotates": Cases(rejects=[made(s.KEY)], accepts=[made(s.KEY, enableKeyRotation=True)]),
    "key-policy-closed": Cases(
        rejects=[
            made(s.KEY),
            made(s.KEY, policy=document({"Principal": {"AWS": "*"}, "Action": "kms:*"})),
            made(s.KEY, policy=document({"Principal": "*", "Action": "kms:*"})),
            made(s.KEY, policy=document({"NotPrincipal": {"AWS": "1"}, "Action": "kms:*"})),
            made(s.KEY, policy=document({"Principal": {"Service": "*"}, "Action": "kms:*"})),
        ],
        accepts=[
            made(s.KEY, policy=document(*iam.key_policy(account="1", partition="aws")["Statement"])),
        ],
    ),
    "key-deletion-waits": Cases(
        rejects=[made(s.KEY, deletionWindowInDays=6)],
        accepts=[made(s.KEY), made(s.KEY, deletionWindowInDays=7)],
    ),
    "bucket-versioned": Cases(
        rejects=[(IT,), (IT, versioned("Suspended")), (IT, ELSEWHERE, versioned("Enabled", ELSEWHERE))],
        accepts=[(IT, versioned("Enabled"))],
    ),
    "bucket-encrypted": Cases(
        rejects=[
            (IT,),
            (IT, encrypted(sseAlgorithm="AES256")),
            (IT, encrypted(sseAlgorithm="aws:kms")),
            (IT, encrypted(False, **KMS)),
        ],
        accepts=[(IT, encrypted(**KMS))],
    ),
    "bucket-not-public": Cases(
        rejects=[(IT,), *((IT, about(s.PUBLIC_BLOCK, **{n: n != left for n in PUBLIC})) for left in PUBLIC)],
        accepts=[(IT, about(s.PUBLIC_BLOCK, **dict.fromkeys(PUBLIC, True)))],
    ),
    "bucket-tls-only": Cases(
        rejects=[
            (IT,),
            (IT, policed({**TLS[0], "Action": "s3:GetObject"})),
            (IT, policed({**TLS[0], "Principal": {"AWS": "arn:aws:iam::1:role/a"}})),
            (IT, policed({**TLS[0], "Condition": {"Bool": {"aws:SecureTransport": "true"}}})),
            (IT, policed({**TLS[0], "Resource": "arn:aws:s3:::b"})),
        ],
        accepts=[(IT, policed(*TLS))],
    ),
    "bucket-policy-closed": Cases(
        rejects=[
            made(s.BUCKET_POLICY, policy=document({"Principal": "*", "Action": "s3:GetObject"})),
            made(s.BUCKET_POLICY, policy=document({"NotPrincipal": {"AWS": "1"}, "Action": "s3:GetObject"})),
        ],
        accepts=[
            made(s.BUCKET_POLICY, policy=document(*iam.bucket_tls_only("arn:aws:s3:::b")["Statement"])),
            made(s.BUCKET_POLICY, policy=document({"Principal": {"Service": "fsx.amazonaws.com"}})),
        ],
    ),
    "bucket-without-acls": Cases(
        rejects=[
            (IT,),
            (IT, owned("ObjectWriter")),
            (IT, owned("BucketOwnerEnforced"), about(s.BUCKET_ACL, acl="private")),
        ],
        accepts=[(IT, owned("BucketOwnerEnforced"))],
    ),
    "bucket-cleaned": Cases(
        rejects=[
            (IT,),
            (IT, cleaned(days=8)),
            (IT, cleaned(days=None)),
            (IT, cleaned(kept=None)),
            (IT, cleaned(status="Disabled")),
        ],
        accepts=[(IT, cleaned())],
    ),
    "lustre-key": Cases(
        rejects=[made(LUSTRE, deploymentType="PERSISTENT_2"), made(LUSTRE, deploymentType="PERSISTENT_1")],
        accepts=[
            made(LUSTRE, deploymentType="PERSISTENT_2", kmsKeyId="arn"),
            made(LUSTRE, deploymentType="SCRATCH_2"),
        ],
    ),
    "lustre-ports": Cases(
        rejects=[
            made(LUSTRE),
            (FILES, SHUT),
            (FILES, SHUT, LUSTRE_IN[0]),
            (FILES, SHUT, *LUSTRE_IN, let_in(443, 443)),
            (FILES, SHUT, *LUSTRE_IN, let_in(988, 988, cidrIpv4="10.0.0.0/8")),
            (FILES, SHUT, *LUSTRE_IN, let_in(988, 988, ipProtocol="udp")),
            (FILES, SHUT, let_in(0, 65535, ipProtocol="-1")),
        ],
        accepts=[(FILES, SHUT, *LUSTRE_IN), (FILES, SHUT, *LUSTRE_IN, EFA), FILES],
    ),
    "lustre-data-kept": Cases(
        rejects=[FILES, (FILES, made(s.DATA_LINK, of={"fileSystemId": made(LUSTRE, "another")}))],
        accepts=[
            made(LUSTRE, automaticBackupRetentionDays=7),
            made(LUSTRE, importPath="s3://b/p"),
            (FILES, made(s.DATA_LINK, of={"fileSystemId": FILES})),
        ],
    ),
    "repository-immutable": Cases(
        rejects=[REPOSITORY, made(r.REPOSITORY, imageTagMutability="MUTABLE")],
        accepts=[made(r.REPOSITORY, imageTagMutability="IMMUTABLE")],
    ),
    "repository-scanned": Cases(
        rejects=[REPOSITORY, made(r.REPOSITORY, imageScanningConfiguration={"scanOnPush": False})],
        accepts=[made(r.REPOSITORY, imageScanningConfiguration={"scanOnPush": True})],
    ),
    "repository-encrypted": Cases(
        rejects=[
            REPOSITORY,
            made(r.REPOSITORY, encryptionConfigurations=[{"encryptionType": "AES256"}]),
            made(r.REPOSITORY, encryptionConfigurations=[{"encryptionType": "KMS"}]),
        ],
        accepts=[made(r.REPOSITORY, encryptionConfigurations=[{"encryptionType": "KMS", "kmsKey": "arn"}])],
    ),
    "repository-cleaned": Cases(
        rejects=[REPOSITORY],
        accepts=[(REPOSITORY, made(r.REPOSITORY_LIFECYCLE, of={"repository": REPOSITORY}))],
    ),
    "repository-not-public": Cases(
        rejects=[
            made(r.REPOSITORY_POLICY, policy=document({"Principal": "*", "Action": "ecr:BatchGetImage"})),
            made(r.REPOSITORY_POLICY, policy=document({"NotPrincipal": {"AWS": "1"}, "Action": "ecr:*"})),
        ],
        accepts=[
            made(
                r.REPOSITORY_POLICY,
                policy=document(
                    {"Principal": {"AWS": "arn:aws:iam::1:role/a"}, "Action": "ecr:BatchGetImage"}
                ),
            )
        ],
    ),
}
