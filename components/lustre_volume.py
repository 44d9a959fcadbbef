"""A Lustre file system as a volume of the training pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from components.shared.lustre_manifests import claim_spec, proof_spec, volume_spec

CLAIM: Final = "lustre"
PROOF: Final = "attach-pvc"


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Where the Job that proves the mount runs, and the image with a shell that it takes.

    The nodes must be in one of the file system's client groups. Karpenter buys one where none is free.
    """

    image: pulumi.Input[str]
    node_selector: dict[str, str]
    tolerations: list[dict[str, Any]]


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
    proof: Proof | None
    after: list[pulumi.Resource]


class LustreVolume(pulumi.ComponentResource):
    """Afterwards there are

    - a static PersistentVolume, ReadWriteMany, which outlives its claim, as the data does;
    - the claim `lustre` to it in the training namespace;
    - where asked, the Job `attach-pvc`, which makes the file system's root writable for the training pods, and writes
      and reads a file as one. `up` does not wait for it: a machine for it may be hours away.

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
            opts=pulumi.ResourceOptions(parent=self, depends_on=[volume]),
        )
        self.ready: list[pulumi.Resource] = [volume, claim]
        # What has to be gone before the volume is.
        self.objects = list(self.ready)
        if args.proof is not None:
            self.objects.append(self._prove(name, args, args.proof))
        self.register_outputs({"claimName": CLAIM, "mountPath": args.mount_path})

    def _prove(self, name: str, args: LustreVolumeArgs, proof: Proof) -> k8s.batch.v1.Job:
        return k8s.batch.v1.Job(
            f"{name}-proof",
            metadata={
                "name": PROOF,
                "namespace": args.namespace,
                "annotations": {"pulumi.com/skipAwait": "true"},
            },
            spec=proof_spec(
                image=proof.image,
                claim=CLAIM,
                mount_path=args.mount_path,
                node_selector=proof.node_selector,
                tolerations=proof.tolerations,
            ),
            opts=pulumi.ResourceOptions(parent=self, depends_on=list(self.ready)),
        )
