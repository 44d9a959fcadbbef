"""FSx for Lustre for the training pools: the file system, its volume, and a pod that tests the mount."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from trainyard.k8s import names

from . import encryption
from .documents import iam
from .documents.lustre import (
    HDD,
    PERSISTENT_1,
    SCRATCH_2,
    SHELL,
    SSD,
    claim_spec,
    keeps_backups,
    proof_spec,
    volume_spec,
)
from .documents.tags import named

# The ports between a Lustre client and a Lustre server, in both directions
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html).
PORTS: Final = ((988, 988), (1018, 1023))
# The version of the client in AL2023; PERSISTENT_2 and links to S3 need 2.12 at least
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/lustre-client-matrix.html).
LUSTRE_VERSION: Final = "2.15"
# The names of the two ends of a connection in the names of rules. A client's end has the client's name.
ITSELF: Final = "itself"
SERVERS: Final = "lustre"
EVENTS: Final = ["NEW", "CHANGED", "DELETED"]
# FSx creates a file system in about eight minutes. A link with an import, or a deletion, may take more than ten.
SLOW: Final = pulumi.CustomTimeouts(create="30m", update="30m", delete="30m")
# FSx needs minutes or hours to increase the capacity. The file system stays available meanwhile
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/managing-storage-capacity.html).
RESIZE_TIMEOUTS: Final = pulumi.CustomTimeouts(create="30m", update="24h", delete="30m")
# The role that FSx creates for the file system when it is linked to S3.
LINK_ROLE: Final = "s3.data-source.lustre.fsx.amazonaws.com/AWSServiceRoleForFSxS3Access_"
CLAIM: Final = "lustre"
PROOF_POD: Final = "attach-pvc"


@dataclass(frozen=True, kw_only=True)
class S3Link:
    """A link between a prefix of a bucket and a directory of the file system."""

    bucket: pulumi.Input[str]
    """The bucket's name."""
    prefix: str
    """The prefix of the objects, without slashes at its ends; empty for the whole bucket."""
    path: str
    """The directory of the file system, such as /models. PERSISTENT_1 supports the root only."""
    key_arn: pulumi.Input[str] | None
    """The key of the bucket, to which the component adds a grant for FSx. None if the key policy allows FSx."""


@dataclass(frozen=True, kw_only=True)
class ExistingFileSystem:
    """An existing file system. Its security group must allow the workers."""

    file_system_id: str
    """The id of the file system."""
    dns_name: str
    """Its DNS name."""
    mount_name: str
    """Its mount name."""


@dataclass(frozen=True, kw_only=True)
class NewFileSystem:
    """A file system to create, in the subnet of one zone."""

    vpc_id: pulumi.Input[str]
    subnet_id: pulumi.Input[str]
    """The subnet of the file servers."""
    client_groups: Mapping[str, pulumi.Input[str]]
    """The security groups whose instances mount the file system, by short name."""
    key_arn: pulumi.Input[str]
    """The key of persistent file systems. FSx encrypts scratch file systems with its own key."""
    deployment: str
    """The deployment type: SCRATCH_2, PERSISTENT_1 or PERSISTENT_2."""
    capacity_gib: int
    """The capacity in GiB."""
    throughput: int
    """MB/s per TiB; unused for SCRATCH_2, which has 200."""
    compression: str
    """LZ4 or NONE."""
    backup_days: int
    """The retention of daily backups; 0 for none."""
    efa: bool
    """Whether the file system has EFA."""
    link: S3Link | None
    """The link to S3; None for none."""
    storage: str = SSD
    """SSD or HDD."""
    drive_cache: str = "NONE"
    """The cache of HDD storage: NONE or READ."""
    metadata_iops: int = 0
    """The IOPS of metadata; 0 for the default of the capacity."""


@dataclass(frozen=True, kw_only=True)
class LustreArgs:
    """The file system, and its protection."""

    file_system: NewFileSystem | ExistingFileSystem
    """The file system to create, or an existing one."""
    protect: bool
    """Whether Pulumi protects the file system, its security group with its rules, and its link. Without the link,
    the file system loses the files whose data is only in S3.
    """
    tags: dict[str, str]


class Lustre(pulumi.ComponentResource):
    """A file system of FSx for Lustre, new or existing.

    Creates, for a `NewFileSystem`:

    - the file system, encrypted with `key_arn` if its type supports a key;
    - a security group that allows Lustre's ports between its members and to and from the clients' groups, and the
      corresponding rules in the clients' groups. With EFA, they allow all traffic, because EFA has no ports;
    - with `link`, a link to S3. It imports and exports objects and files that are new, changed or deleted.

    Pods need the resources in `ready` to mount the file system. Delete `ready` after the last pod.
    """

    file_system_id: pulumi.Output[str]
    """The id of the file system."""
    dns_name: pulumi.Output[str]
    """Its DNS name."""
    mount_name: pulumi.Output[str]
    """Its mount name."""

    def __init__(self, name: str, args: LustreArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:storage:Lustre", name, None, opts)
        self._name = name
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        self._protected = pulumi.ResourceOptions(parent=self, protect=args.protect)
        self._slow = pulumi.ResourceOptions(parent=self, protect=args.protect, custom_timeouts=SLOW)
        self._resized = pulumi.ResourceOptions(
            parent=self, protect=args.protect, custom_timeouts=RESIZE_TIMEOUTS
        )
        self.ready: list[pulumi.Resource] = []
        """The resources that must exist before a mount."""
        spec = args.file_system
        if isinstance(spec, ExistingFileSystem):
            self.file_system_id = pulumi.Output.from_input(spec.file_system_id)
            self.dns_name = pulumi.Output.from_input(spec.dns_name)
            self.mount_name = pulumi.Output.from_input(spec.mount_name)
        else:
            group, own_rules = self._group(spec)
            file_system = self._file_system(spec, group, own_rules)
            self.file_system_id = file_system.id
            self.dns_name, self.mount_name = file_system.dns_name, file_system.mount_name
            linked: list[pulumi.Resource] = [file_system]
            if spec.link is not None and spec.deployment != PERSISTENT_1:
                linked.append(self._link(spec.link, file_system))
            self.ready += [*linked, group]
            if spec.link is not None and spec.link.key_arn is not None:
                self.ready.append(self._allow(spec.link.key_arn, file_system, linked))
        self.register_outputs({"fileSystemId": self.file_system_id, "dnsName": self.dns_name})

    def _group(self, spec: NewFileSystem) -> tuple[aws.ec2.SecurityGroup, list[pulumi.Resource]]:
        """Create the group and the rules within it: FSx refuses a group whose members can't reach each other."""
        group = aws.ec2.SecurityGroup(
            self._name,
            description="Lustre servers, open to their clients",
            vpc_id=spec.vpc_id,
            tags=named(self._args.tags, self._name),
            opts=self._protected,
        )
        own_rules = self._allow_traffic(spec, ITSELF, group.id, ITSELF, group.id)
        for short, client in spec.client_groups.items():
            self.ready += self._allow_traffic(spec, short, client, SERVERS, group.id)
            self.ready += self._allow_traffic(spec, SERVERS, group.id, short, client)
        self.ready += own_rules
        return group, own_rules

    def _allow_traffic(
        self,
        spec: NewFileSystem,
        source_name: str,
        source: pulumi.Input[str],
        target_name: str,
        target: pulumi.Input[str],
    ) -> list[pulumi.Resource]:
        """Allow one group's members to open connections to the other's: egress of the one, ingress of the other.

        `protect` covers the rules of the file system's own group. A rule of a client's group is deleted with the
        client.
        """
        rules: list[pulumi.Resource] = []
        outward, inward = (
            self._protected if name in (ITSELF, SERVERS) else self._child
            for name in (source_name, target_name)
        )
        ports: dict[str, dict[str, Any]] = {
            str(first): {"ip_protocol": "tcp", "from_port": first, "to_port": last} for first, last in PORTS
        }
        for suffix, protocol in ({"all": {"ip_protocol": "-1"}} if spec.efa else ports).items():
            rule = f"{self._name}-{source_name}-to-{target_name}-{suffix}"
            common = {
                "description": f"Lustre, from {source_name} to {target_name}",
                "tags": self._args.tags,
                **protocol,
            }
            rules += [
                aws.vpc.SecurityGroupEgressRule(
                    f"{rule}-out",
                    security_group_id=source,
                    referenced_security_group_id=target,
                    opts=outward,
                    **common,
                ),
                aws.vpc.SecurityGroupIngressRule(
                    f"{rule}-in",
                    security_group_id=target,
                    referenced_security_group_id=source,
                    opts=inward,
                    **common,
                ),
            ]
        return rules

    def _file_system(
        self, spec: NewFileSystem, group: aws.ec2.SecurityGroup, own_rules: list[pulumi.Resource]
    ) -> aws.fsx.LustreFileSystem:
        more: dict[str, Any] = {}
        if spec.deployment != SCRATCH_2:
            more["kms_key_id"] = spec.key_arn
            more["per_unit_storage_throughput"] = spec.throughput
            # FSx makes no backups of linked file systems: their data is in the bucket.
            more["automatic_backup_retention_days"] = 0 if spec.link else spec.backup_days
        if spec.storage == HDD:
            more["drive_cache_type"] = spec.drive_cache
        if spec.efa:
            more["efa_enabled"] = True
        if spec.metadata_iops:
            more["metadata_configuration"] = {"mode": "USER_PROVISIONED", "iops": spec.metadata_iops}
        elif spec.efa:
            # EFA requires a mode.
            more["metadata_configuration"] = {"mode": "AUTOMATIC"}
        if spec.link is not None and spec.deployment == PERSISTENT_1:
            uri = _uri(spec.link)
            more |= {"import_path": uri, "export_path": uri, "auto_import_policy": "NEW_CHANGED_DELETED"}
        has_final_backup = self._args.protect and keeps_backups(spec.deployment) and spec.link is None
        return aws.fsx.LustreFileSystem(
            self._name,
            deployment_type=spec.deployment,
            storage_type=spec.storage,
            storage_capacity=spec.capacity_gib,
            subnet_ids=spec.subnet_id,
            security_group_ids=[group.id],
            file_system_type_version=LUSTRE_VERSION,
            data_compression_type=spec.compression,
            # If a protected file system is deleted outside of this program, FSx makes a final backup.
            skip_final_backup=not has_final_backup,
            tags=named(self._args.tags, self._name),
            opts=pulumi.ResourceOptions.merge(self._resized, pulumi.ResourceOptions(depends_on=own_rules)),
            **more,
        )

    def _link(self, link: S3Link, file_system: aws.fsx.LustreFileSystem) -> aws.fsx.DataRepositoryAssociation:
        return aws.fsx.DataRepositoryAssociation(
            self._name,
            file_system_id=file_system.id,
            file_system_path=link.path,
            data_repository_path=_uri(link),
            batch_import_meta_data_on_create=True,
            s3={"auto_import_policy": {"events": EVENTS}, "auto_export_policy": {"events": EVENTS}},
            tags=named(self._args.tags, self._name),
            opts=self._slow,
        )

    def _allow(
        self, key_arn: pulumi.Input[str], file_system: aws.fsx.LustreFileSystem, linked: list[pulumi.Resource]
    ) -> aws.kms.Grant:
        """Create a grant, so that the role with which FSx reaches the bucket can use the bucket's key.

        It is a grant and not a statement in the key's policy: the name of the role contains the file system's id,
        and the file system may have the same key, so that the role is not known when the key is created. FSx
        creates the role with the link.
        """
        role = pulumi.Output.all(key_arn, file_system.id).apply(
            lambda both: encryption.service_role(both[0], f"{LINK_ROLE}{both[1]}")
        )
        return encryption.grant(
            f"{self._name}-bucket",
            key_arn,
            role,
            pulumi.ResourceOptions.merge(self._protected, pulumi.ResourceOptions(depends_on=linked)),
            # https://docs.aws.amazon.com/fsx/latest/LustreGuide/s3-server-side-encryption-support.html
            operations=iam.KEY_OPERATIONS,
        )


def _uri(link: S3Link) -> pulumi.Output[str]:
    return pulumi.Output.concat("s3://", link.bucket, f"/{link.prefix}/" if link.prefix else "")


@dataclass(frozen=True, kw_only=True)
class LustreVolumeArgs:
    """The file system, and its claim. `after` has the driver, the namespace and `Lustre.ready`."""

    file_system_id: pulumi.Input[str]
    """The id of the file system."""
    dns_name: pulumi.Input[str]
    """Its DNS name."""
    mount_name: pulumi.Input[str]
    """Its mount name."""
    capacity_gib: int
    """The size of the volume and of its claim."""
    namespace: str
    """The namespace of the claim."""
    mount_path: str
    """The directory where pods mount the file system."""
    after: list[pulumi.Resource]
    """Resources that must exist first: the driver, the namespace and `Lustre.ready`."""


class LustreVolume(pulumi.ComponentResource):
    """The volume of a file system, and its claim.

    Creates:

    - a static PersistentVolume (ReadWriteMany) that remains when its claim is deleted, as the data does;
    - the claim `lustre` for it in `namespace`.

    Pods with the claim need the resources in `ready`.
    """

    claim_name: str
    """The name of the claim."""
    mount_path: str
    """The directory in pods."""

    def __init__(self, name: str, args: LustreVolumeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:storage:LustreVolume", name, None, opts)
        self.claim_name, self.mount_path = CLAIM, args.mount_path

        volume_name = f"{args.namespace}-{CLAIM}"
        volume = k8s.core.v1.PersistentVolume(
            name,
            metadata={"name": volume_name},
            spec=volume_spec(
                file_system_id=args.file_system_id,
                dns_name=args.dns_name,
                mount_name=args.mount_name,
                capacity_gib=args.capacity_gib,
                namespace=args.namespace,
                claim=CLAIM,
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
        )
        claim = k8s.core.v1.PersistentVolumeClaim(
            name,
            metadata={"name": CLAIM, "namespace": args.namespace},
            spec=claim_spec(volume=volume_name, capacity_gib=args.capacity_gib),
            # The API server refuses a larger request of a claim to a static volume; a larger volume still serves it
            # (https://kubernetes.io/docs/concepts/storage/persistent-volumes/#expanding-persistent-volumes-claims).
            opts=pulumi.ResourceOptions(parent=self, depends_on=[volume], ignore_changes=["spec.resources"]),
        )
        self.ready: list[pulumi.Resource] = [volume, claim]
        """The volume and its claim."""
        self.register_outputs({"claimName": CLAIM, "mountPath": args.mount_path})


@dataclass(frozen=True, kw_only=True)
class LustreProofArgs:
    """The pod, and the claim of the file system in the namespace `training`."""

    image: pulumi.Input[str]
    """The image of the pod, which needs a shell."""
    claim: str
    """The claim of the file system, in the namespace `training`."""
    mount_path: str
    """The directory in the pod where the file system is mounted."""
    placement: dict[str, Any]
    """The parts of the pod's `spec` that select its node, for an instance in a security group of the clients."""
    after: list[pulumi.Resource]
    """Resources that must exist first: the claim, and what launches the node."""
    writes: str | None = None
    """The directory in the pod to open to the training pods and to write to; by default the file system's root."""


class LustreProof(pulumi.ComponentResource):
    """The pod `attach-pvc`, which tests the mount of a file system.

    Creates the pod in the namespace `training`. Users can open a shell in it:

        kubectl exec -it attach-pvc -n training -- /bin/bash

    Before the pod is Ready, it makes the directory `writes` writable for the training pods, and it writes and reads
    a file there as one of them. `up` does not wait for the pod, because its node may start hours later. The pod has
    no controller, so its name is always the same. If its node is lost or another pod preempts it, the next
    `pulumi up --refresh` creates it again.
    """

    def __init__(self, name: str, args: LustreProofArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:storage:LustreProof", name, None, opts)
        k8s.core.v1.Pod(
            name,
            metadata={
                "name": PROOF_POD,
                "namespace": names.TRAINING_NAMESPACE,
                # The drain finds the pod by its role.
                "labels": {names.LABEL_ROLE: names.ROLE_PROOF},
                "annotations": {
                    "pulumi.com/skipAwait": "true",
                    "kubectl.kubernetes.io/default-container": SHELL,
                },
            },
            spec=proof_spec(
                image=args.image,
                claim=args.claim,
                mount_path=args.mount_path,
                writes=args.writes,
                placement=args.placement,
            ),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=args.after,
                # Almost no field of a pod can be changed, and a new image needs a new test.
                replace_on_changes=["spec"],
                delete_before_replace=True,
            ),
        )
        self.register_outputs({"name": PROOF_POD})
