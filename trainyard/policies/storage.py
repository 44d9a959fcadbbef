"""Rules for stored data: buckets, file systems and volumes. checkov checks the encryption and versions of buckets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.iam_documents import tls_denials
from trainyard.policies.model import Resource, Stack, rule
from trainyard.policies.network import ALL_PROTOCOLS, GROUP, INGRESS, LUSTRE, TCP, traffic

BUCKET: Final = "aws:s3/bucket:Bucket"
BUCKET_POLICY: Final = "aws:s3/bucketPolicy:BucketPolicy"
DATA_LINK: Final = "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation"
# https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
LUSTRE_PORTS: Final = ((988, 988), (1018, 1023))
STORAGE_CLASS: Final = "kubernetes:storage.k8s.io/v1:StorageClass"
EBS_DRIVER: Final = "ebs.csi.aws.com"
# FSx encrypts all data (https://docs.aws.amazon.com/fsx/latest/LustreGuide/encryption-at-rest.html).
DRIVERS: Final = (EBS_DRIVER, "fsx.csi.aws.com")


@rule("bucket-tls-only", BUCKET, why="CKV_AWS_379 does not read bucket policies")
def bucket_tls_only(resource: Resource, stack: Stack) -> Iterator[str]:
    """The policy of a bucket denies requests without TLS."""
    for policy in stack.pointing(resource, BUCKET_POLICY, "bucket"):
        for statement in tls_denials(policy):
            if "s3:*" in statement.actions and any(each.endswith("/*") for each in statement.targets):
                return
    yield "no BucketPolicy denies s3:* where aws:SecureTransport is false; there must be one"


@rule("lustre-data-kept", LUSTRE, why="checkov does not read backups of Lustre")
def lustre_data_kept(resource: Resource, stack: Stack) -> Iterator[str]:
    """A file system has backups or a linked bucket."""
    has_backups = (resource.at("automaticBackupRetentionDays", default=0) or 0) > 0
    has_link = resource.has("importPath") or bool(stack.pointing(resource, DATA_LINK, "fileSystemId"))
    if not has_backups and not has_link:
        yield "automaticBackupRetentionDays is 0 and it has no DataRepositoryAssociation; it must have one of them"


@rule("lustre-ports", LUSTRE, why="a file system has no access control of its own")
def lustre_ports(resource: Resource, stack: Stack) -> Iterator[str]:
    """Security groups of nodes reach a file system on the ports of Lustre; nothing else reaches it."""
    if not resource.has("securityGroupIds"):
        yield "securityGroupIds is missing, which selects the VPC's default group; it must name a group"
    for group in stack.sources(resource, "securityGroupIds", GROUP):
        inbound = [(each, traffic(each)) for each in stack.pointing(group, INGRESS, "securityGroupId")]
        for first, last in LUSTRE_PORTS:
            if not all(any(found.passes(port) for _, found in inbound) for port in range(first, last + 1)):
                yield f"{group.name} does not allow ports {first} to {last}; it must"
        for each, found in inbound:
            if found.ranges:
                yield f"{each.name} allows {', '.join(found.ranges)}; it must name the security group of the nodes"
            if found.protocol in ALL_PROTOCOLS and found.is_own_group:
                continue  # EFA needs it
            if (found.first, found.last) not in LUSTRE_PORTS or found.protocol not in TCP:
                yield f"{each.name} allows {found}; it must be tcp 988 or tcp 1018 to 1023"


@rule("storage-class-encrypted", STORAGE_CLASS, why="checkov checks volumes, not classes that create them")
def storage_class_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Storage classes create encrypted volumes of AWS services."""
    provisioner = resource.at("provisioner")
    if provisioner not in DRIVERS:
        yield f"provisioner is {provisioner or 'missing'}; it must be one of {', '.join(DRIVERS)}"
    elif provisioner == EBS_DRIVER and str(resource.at("parameters", "encrypted")).lower() != "true":
        yield 'parameters.encrypted is not "true"; it must be'
