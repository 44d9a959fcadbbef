"""A Lustre file system as a volume of the training pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pulumi
import pulumi_kubernetes as k8s

from components.documents.lustre_manifests import claim_spec, volume_spec

CLAIM: Final = "lustre"


@dataclass(frozen=True, kw_only=True)
class LustreVolumeArgs:
    """`mount_path` is where pods see the file system; `namespace` is where the claim is.

    `after` are the driver, the namespace and what the file system itself needs (`Lustre.ready`).
    """

    file_system_id: pulumi.Input[str]
    dns_name: pulumi.Input[str]
    mount_name: pulumi.Input[str]
    capacity_gib: int
    namespace: str
    mount_path: str
    after: list[pulumi.Resource]


class LustreVolume(pulumi.ComponentResource):
    """Afterwards there are

    - a static PersistentVolume, ReadWriteMany, which outlives its claim, as the data does;
    - the claim `lustre` to it in the training namespace.

    `ready` is what a pod with the claim needs.
    """

    claim_name: str
    mount_path: str

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
        self.register_outputs({"claimName": CLAIM, "mountPath": args.mount_path})
