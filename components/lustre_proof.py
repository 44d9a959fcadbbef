"""A pod that proves that the shared file system is mounted, and that people enter to look at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from components.documents.lustre_manifests import SHELL, proof_spec
from trainyard.k8s import names

NAME: Final = "attach-pvc"


@dataclass(frozen=True, kw_only=True)
class LustreProofArgs:
    """`claim` is in the training namespace, and pods see it at `mount_path`; `image` has a shell.

    They write to the directory `writes`, by default the file system's root.

    `placement` are the parts of a pod's `spec` that say where it runs: machines in one of the file system's client
    groups. `after` are the claim and what brings such a machine.
    """

    image: pulumi.Input[str]
    claim: str
    mount_path: str
    placement: dict[str, Any]
    after: list[pulumi.Resource]
    writes: str | None = None


class LustreProof(pulumi.ComponentResource):
    """Afterwards the file system is mounted on a machine of the stack, and there is the pod `attach-pvc` to enter:

        kubectl exec -it attach-pvc -n training -- /bin/bash

    The pod has made the file system's root, or the stack's own directory in a given one, writable for the training
    pods, and has written and read a file as one of them, before it is Ready. `up` does not wait for that: its machine
    may be hours away. It has no controller, so that its name is always the same: one that is lost with its machine, or
    gave way to work there, is made again by the next `pulumi up --refresh`.
    """

    def __init__(self, name: str, args: LustreProofArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:storage:LustreProof", name, None, opts)
        k8s.core.v1.Pod(
            name,
            metadata={
                "name": NAME,
                "namespace": names.TRAINING_NAMESPACE,
                # By its role the drain finds it.
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
                # Next to nothing of a pod can be changed, and another image is another proof.
                replace_on_changes=["spec"],
                delete_before_replace=True,
            ),
        )
        self.register_outputs({"name": NAME})
