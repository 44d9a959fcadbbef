"""The CSI drivers of a cluster: EBS, and FSx for Lustre."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from .cluster import addon
from .documents import iam
from .documents.account import Account
from .documents.versions import EBS_ADDON, FSX_ADDON
from .identity import Identity, IdentityArgs

EBS_DRIVER: Final = "ebs.csi.aws.com"
# The controller's service account in the add-on (https://docs.aws.amazon.com/eks/latest/userguide/ebs-csi.html).
EBS_SERVICE_ACCOUNT: Final = "ebs-csi-controller-sa"
NAMESPACE: Final = "kube-system"
DEFAULT_CLASS: Final = "gp3"


@dataclass(frozen=True, kw_only=True)
class CsiArgs:
    """The drivers of a cluster."""

    cluster: str
    kubernetes_version: pulumi.Input[str]
    """The Kubernetes version, for the default versions of the add-ons."""
    account: Account
    key_arn: pulumi.Input[str]
    """The key that encrypts volumes."""
    oidc_provider_arn: pulumi.Input[str]
    lustre: bool
    """Whether the component also creates the driver for FSx for Lustre."""
    addon_versions: Mapping[str, str]
    """Pinned versions, by add-on."""
    after: list[pulumi.Resource]
    tags: dict[str, str]


class Csi(pulumi.ComponentResource):
    """The CSI drivers of a cluster.

    Creates:

    - the EBS CSI driver as an add-on. Only its controller has an IAM role, which can only use this cluster's
      volumes. Each volume has the stack's tags;
    - the default StorageClass `gp3`: volumes are encrypted with `key_arn`, created in the zone of their pod, and
      deleted with their claim;
    - with `lustre`, the FSx CSI driver as an add-on, without IAM permissions.

    `ready` must exist before the first pod with a claim, and until the last claim is deleted.
    """

    def __init__(self, name: str, args: CsiArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:storage:Csi", name, None, opts)
        self._name = name
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        self.identity = Identity(
            f"{args.cluster}-ebs-csi",
            IdentityArgs(
                namespace=NAMESPACE,
                service_account=EBS_SERVICE_ACCOUNT,
                oidc_provider_arn=args.oidc_provider_arn,
                policies=self._policies(),
                tags=args.tags,
            ),
            self._child,
        )
        """The role of the EBS driver."""
        # The tags of volumes, which the driver's role and a search for leftovers use.
        volume_tags = {**args.tags, iam.CLUSTER_TAG: args.cluster}
        create_addon = partial(
            addon,
            prefix=name,
            cluster=args.cluster,
            kubernetes_version=args.kubernetes_version,
            pinned=args.addon_versions,
            tags=args.tags,
        )
        disks = create_addon(
            name=EBS_ADDON,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[*args.after, *self.identity.granted]),
            service_account_role_arn=self.identity.role_arn,
            configuration_values=json.dumps({"controller": {"extraVolumeTags": volume_tags}}, sort_keys=True),
        )
        storage_class = self._storage_class(disks)
        self.ready: list[pulumi.Resource] = [disks, storage_class]
        """The resources that must exist as long as there is a pod with a claim."""
        if args.lustre:
            after = pulumi.ResourceOptions(parent=self, depends_on=args.after)
            self.ready.append(create_addon(name=FSX_ADDON, opts=after))
        self.register_outputs({})

    def _policies(self) -> dict[str, pulumi.Input[str]]:
        args = self._args
        key = pulumi.Output.from_input(args.key_arn).apply(
            lambda arn: json.dumps(iam.volume_key(region=args.account.region, key_arn=arn))
        )
        return {"volumes": json.dumps(iam.volumes(args.account, args.cluster)), "key": key}

    def _storage_class(self, driver: aws.eks.Addon) -> k8s.storage.v1.StorageClass:
        return k8s.storage.v1.StorageClass(
            f"{self._name}-{DEFAULT_CLASS}",
            metadata={
                "name": DEFAULT_CLASS,
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            provisioner=EBS_DRIVER,
            parameters={"type": "gp3", "encrypted": "true", "kmsKeyId": self._args.key_arn},
            # A volume is in one zone, so it is created after its pod is scheduled.
            volume_binding_mode="WaitForFirstConsumer",
            reclaim_policy="Delete",
            allow_volume_expansion=True,
            opts=pulumi.ResourceOptions(parent=self, depends_on=[driver]),
        )
