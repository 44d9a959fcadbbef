"""What turns a PyTorchJob into pods, and what tells Kubernetes of GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_kubernetes as k8s

from components.kustomization import render
from components.shared.operator_manifests import OPERATOR, token, waves
from components.shared.pool import GPU


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
        self.training_operator = self._training_operator(args)
        if args.gpus:
            k8s.apps.v1.DaemonSet(
                f"{name}-nvidia",
                metadata={"name": "nvidia-device-plugin", "namespace": "kube-system"},
                spec=device_plugin(args.device_plugin_image),
                opts=pulumi.ResourceOptions(parent=self, depends_on=args.after),
            )
        self.register_outputs({})

    def _training_operator(self, args: OperatorsArgs) -> pulumi.Resource:
        """Register the operator's objects, wave by wave; returns its Deployment."""
        done: list[pulumi.Resource] = list(args.after)
        by_kind: dict[str, pulumi.Resource] = {}
        for wave in waves(render(args.manifests), args.image):
            made = [self._register(each, done) for each in wave]
            done = [*done, *made]
            by_kind |= {each["kind"]: resource for each, resource in zip(wave, made, strict=True)}
        return by_kind["Deployment"]

    def _register(self, manifest: dict[str, Any], after: list[pulumi.Resource]) -> pulumi.Resource:
        metadata = manifest["metadata"]
        scope = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        return pulumi.CustomResource(
            token(manifest),
            f"{OPERATOR}:{scope}{metadata['name']}",
            manifest,
            pulumi.ResourceOptions(parent=self, depends_on=after),
        )


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
