"""Rules for what keeps data: keys, buckets, file systems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.cluster import BUCKET
from trainyard.policies.documents import actions, anybody, conditions, grants, principals, statements, targets
from trainyard.policies.model import Resource, Rules, Stack, at, rows
from trainyard.policies.network import LUSTRE
from trainyard.policies.security_groups import GROUP, opening, rules_into

RULES: Final = Rules()

KEY: Final = "aws:kms/key:Key"
VERSIONING: Final = "aws:s3/bucketVersioning:BucketVersioning"
ENCRYPTION: Final = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
PUBLIC_BLOCK: Final = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
BUCKET_POLICY: Final = "aws:s3/bucketPolicy:BucketPolicy"
OWNERSHIP: Final = "aws:s3/bucketOwnershipControls:BucketOwnershipControls"
BUCKET_ACL: Final = "aws:s3/bucketAcl:BucketAcl"
LIFECYCLE: Final = "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration"
DATA_LINK: Final = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"

LEAST_WINDOW_DAYS: Final = 7
MOST_ABORT_DAYS: Final = 7
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE_PORTS: Final = ((988, 988), (1018, 1023))


@RULES.rule("key-rotates", "CKV_AWS_7", "AVD-AWS-0065", "CIS EKS 5.3.1", types=[KEY])
def key_rotates(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Keys change every year."""
    if not resource.at("enableKeyRotation", default=False):
        yield "enableKeyRotation is not true; it must be"


@RULES.rule("key-policy-closed", "CKV_AWS_33", "CKV2_AWS_64", types=[KEY])
def key_policy_closed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A key says who may use it, and that is not anybody."""
    if not resource.has("policy"):
        yield "policy is missing; it must say who may use the key"
        return
    for statement in grants(resource):
        for who in anybody(statement):
            yield f"policy lets {who} use the key; it must name the account, a role or a service"


@RULES.rule("key-deletion-waits", types=[KEY])
def key_deletion_waits(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A deleted key can be taken back for a week at least."""
    days = resource.at("deletionWindowInDays", default=30)
    if days < LEAST_WINDOW_DAYS:
        yield f"deletionWindowInDays is {days}; it must be at least {LEAST_WINDOW_DAYS}"


@RULES.rule("bucket-versioned", "CKV_AWS_21", "AVD-AWS-0090", types=[BUCKET], whole_stack=True)
def bucket_versioned(resource: Resource, stack: Stack) -> Iterator[str]:
    """A replaced object can be taken back."""
    found = stack.pointing(resource, VERSIONING, "bucket")
    if not any(each.at("versioningConfiguration", "status") == "Enabled" for each in found):
        yield "no BucketVersioning with status Enabled is for it; there must be one"


@RULES.rule("bucket-encrypted", "CKV_AWS_145", "AVD-AWS-0132", types=[BUCKET], whole_stack=True)
def bucket_encrypted(resource: Resource, stack: Stack) -> Iterator[str]:
    """Objects are encrypted with a key of ours, asked for once and not per object."""
    found = stack.pointing(resource, ENCRYPTION, "bucket")
    if not found:
        yield "no BucketServerSideEncryptionConfiguration is for it; there must be one"
    for each in found:
        for rule in rows(each.at("rules")):
            chosen = at(rule, "applyServerSideEncryptionByDefault", default={})
            if at(chosen, "sseAlgorithm") != "aws:kms" or chosen.get("kmsMasterKeyId") is None:
                yield f"{each.name} does not encrypt with a key of ours; it must have aws:kms and kmsMasterKeyId"
            if not at(rule, "bucketKeyEnabled", default=False):
                yield f"bucketKeyEnabled of {each.name} is not true; it must be"


@RULES.rule(
    "bucket-not-public",
    *("CKV_AWS_53", "CKV_AWS_54", "CKV_AWS_55", "CKV_AWS_56", "CKV2_AWS_6"),
    types=[BUCKET],
    whole_stack=True,
)
def bucket_not_public(resource: Resource, stack: Stack) -> Iterator[str]:
    """All four ways to make a bucket public are closed."""
    found = stack.pointing(resource, PUBLIC_BLOCK, "bucket")
    if not found:
        yield "no BucketPublicAccessBlock is for it; there must be one"
    for each in found:
        for name in ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"):
            if not each.at(name, default=False):
                yield f"{name} of {each.name} is not true; it must be"


@RULES.rule("bucket-tls-only", "CKV_AWS_379", types=[BUCKET], whole_stack=True)
def bucket_tls_only(resource: Resource, stack: Stack) -> Iterator[str]:
    """Requests without TLS are refused."""
    for policy in stack.pointing(resource, BUCKET_POLICY, "bucket"):
        for statement in statements(policy, "policy"):
            refused = statement.get("Effect") == "Deny" and "s3:*" in actions(statement)
            plain = ("Bool", "aws:SecureTransport", ["false"])
            anybody = "*" in principals(statement, "AWS")
            objects = any(target.endswith("/*") for target in targets(statement))
            if refused and anybody and objects and plain in conditions(statement):
                return
    yield "no BucketPolicy refuses s3:* where aws:SecureTransport is false; there must be one"


@RULES.rule("bucket-policy-closed", "CKV_AWS_70", types=[BUCKET_POLICY])
def bucket_policy_closed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """No bucket's policy lets anybody in, that of a given bucket neither."""
    for statement in grants(resource):
        for who in anybody(statement):
            yield f"policy lets {who} in; it must name accounts, roles or services"


@RULES.rule("bucket-without-acls", "CKV2_AWS_65", types=[BUCKET], whole_stack=True)
def bucket_without_acls(resource: Resource, stack: Stack) -> Iterator[str]:
    """The bucket's owner owns every object, and access lists are off."""
    found = stack.pointing(resource, OWNERSHIP, "bucket")
    if not any(each.at("rule", "objectOwnership") == "BucketOwnerEnforced" for each in found):
        yield "no BucketOwnershipControls with objectOwnership BucketOwnerEnforced is for it; there must be one"
    for each in stack.pointing(resource, BUCKET_ACL, "bucket"):
        yield f"BucketAcl {each.name} is for it; there must be none"


@RULES.rule("bucket-cleaned", "CKV_AWS_300", "CKV2_AWS_61", types=[BUCKET], whole_stack=True)
def bucket_cleaned(resource: Resource, stack: Stack) -> Iterator[str]:
    """Broken uploads and replaced versions are removed after a while."""
    rules = [
        rule
        for each in stack.pointing(resource, LIFECYCLE, "bucket")
        for rule in rows(each.at("rules"))
        if at(rule, "status") == "Enabled"
    ]
    days = [at(rule, "abortIncompleteMultipartUpload", "daysAfterInitiation") for rule in rules]
    if not any(each is not None and each <= MOST_ABORT_DAYS for each in days):
        yield f"no lifecycle rule ends broken uploads within {MOST_ABORT_DAYS} days; one must"
    if not any(at(rule, "noncurrentVersionExpiration", "noncurrentDays") for rule in rules):
        yield "no lifecycle rule removes replaced versions (noncurrentVersionExpiration); one must"


@RULES.rule("lustre-key", "CKV_AWS_190", "AVD-AWS-0203", types=[LUSTRE])
def lustre_key(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A file system that lasts is encrypted with a key of ours; a scratch one can only have the service's."""
    kind = str(resource.at("deploymentType", default="SCRATCH_1"))
    if kind.startswith("PERSISTENT") and not resource.has("kmsKeyId"):
        yield f"kmsKeyId is missing and deploymentType is {kind}; it must name a KMS key"


@RULES.rule("lustre-ports", types=[LUSTRE], whole_stack=True)
def lustre_ports(resource: Resource, stack: Stack) -> Iterator[str]:
    """A file system is reached on Lustre's ports by security groups of nodes, and by nothing else."""
    if not resource.has("securityGroupIds"):
        yield "securityGroupIds is missing, so that the VPC's default group counts; it must name one of its own"
    for group in stack.sources(resource, "securityGroupIds", GROUP):
        openings = [(each, opening(each)) for each in rules_into(group, stack)]
        for port in (port for ports in LUSTRE_PORTS for port in ports):
            if not any(found.passes(port) for _, found in openings):
                yield f"{group.name} lets no port {port} in; Lustre needs 988 and 1018 to 1023"
        for rule, found in openings:
            if found.ranges:
                yield f"{rule.name} lets {', '.join(found.ranges)} in; it must name the security group of the nodes"
            if found.everything and found.same:
                continue  # EFA, which is no IP traffic, needs it
            if (found.first, found.last) not in LUSTRE_PORTS or found.protocol not in ("tcp", "6"):
                yield (
                    f"{rule.name} lets {found.protocol} {found.first} to {found.last} in;"
                    " it must be tcp 988 or tcp 1018 to 1023"
                )


@RULES.rule("lustre-data-kept", types=[LUSTRE], whole_stack=True)
def lustre_data_kept(resource: Resource, stack: Stack) -> Iterator[str]:
    """What is on a file system is also elsewhere: in backups, or in a linked bucket."""
    backed = (resource.at("automaticBackupRetentionDays", default=0) or 0) > 0
    linked = resource.has("importPath") or bool(stack.pointing(resource, DATA_LINK, "fileSystemId"))
    if not backed and not linked:
        yield "automaticBackupRetentionDays is 0 and no DataRepositoryAssociation is for it; one of them must be"
