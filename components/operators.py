"""What turns a PyTorchJob into pods, and what tells Kubernetes of GPUs."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s

from components.shared.pool import GPU

OPERATOR: Final = "training-operator"
# One kind of job only, and several at a time: with its one default thread the operator makes pods one after another.
OPERATOR_ARGUMENTS: Final = ("--enable-scheme=pytorchjob", "--controller-threads=4")


@dataclass(frozen=True, kw_only=True)
class OperatorsArgs:
    """`manifests` is the training operator's kustomization, a directory or an address; `image` replaces its image.

    `gpus` says whether any pool has NVIDIA GPUs.
    """

    manifests: str
    image: str | None
    gpus: bool
    device_plugin_image: str
    after: list[pulumi.Resource]


class Operators(pulumi.ComponentResource):
    """Afterwards there are

    - the training operator with its definitions, roles and webhook, in the namespace `kubeflow`;
    - where a pool has GPUs, NVIDIA's device plugin on every machine that has some.
    """

    def __init__(self, name: str, args: OperatorsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:operators:Operators", name, None, opts)
        self.training_operator = k8s.kustomize.v2.Directory(
            OPERATOR,
            directory=args.manifests,
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=args.after, transforms=[_operator_transform(args.image)]
            ),
        )
        if args.gpus:
            k8s.apps.v1.DaemonSet(
                f"{name}-nvidia",
                metadata={"name": "nvidia-device-plugin", "namespace": "kube-system"},
                spec=device_plugin(args.device_plugin_image),
                opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
            )
        self.register_outputs({})


def _operator_transform(image: str | None) -> Any:
    def transform(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
        if args.type_ != "kubernetes:apps/v1:Deployment":
            return None
        return pulumi.ResourceTransformResult(props=operator_deployment(args.props, image), opts=args.opts)

    return transform


def operator_deployment(props: Mapping[str, Any], image: str | None) -> dict[str, Any]:
    """The operator's Deployment with our arguments, and with `image` where one is given."""
    result: dict[str, Any] = copy.deepcopy(dict(props))
    for container in result["spec"]["template"]["spec"]["containers"]:
        if container["name"] == OPERATOR:
            container["args"] = [*(container.get("args") or []), *OPERATOR_ARGUMENTS]
            container["image"] = image or container["image"]
    return result


def device_plugin(image: str) -> dict[str, Any]:
    """The `spec` of NVIDIA's device plugin (https://github.com/NVIDIA/k8s-device-plugin, deployments/static).

    It runs only where an NVIDIA machine is, and needs the kubelet's socket directory.
    """
    labels = {"name": "nvidia-device-plugin"}
    return {
        "selector": {"matchLabels": labels},
        "updateStrategy": {"type": "RollingUpdate"},
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "priorityClassName": "system-node-critical",
                "tolerations": [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {
                                    "matchExpressions": [
                                        {
                                            "key": "karpenter.k8s.aws/instance-gpu-manufacturer",
                                            "operator": "In",
                                            "values": ["nvidia"],
                                        }
                                    ]
                                }
                            ]
                        }
                    }
                },
                "containers": [
                    {
                        "name": "nvidia-device-plugin",
                        "image": image,
                        # Mellanox devices are not for it to hand out: with them EFA breaks (its issue 1692).
                        "env": [
                            {"name": "FAIL_ON_INIT_ERROR", "value": "false"},
                            {"name": "MOFED_ENABLED", "value": "false"},
                        ],
                        "resources": {
                            "requests": {"cpu": "10m", "memory": "64Mi"},
                            "limits": {"memory": "256Mi"},
                        },
                        "securityContext": {
                            "allowPrivilegeEscalation": False,
                            "capabilities": {"drop": ["ALL"]},
                        },
                        "volumeMounts": [{"name": "sockets", "mountPath": "/var/lib/kubelet/device-plugins"}],
                    }
                ],
                "volumes": [{"name": "sockets", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
            },
        },
    }
