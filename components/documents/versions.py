"""Every version that the program pins, each with its source and the day it was read.

A digest is listed only if a published file names it. The comment names that file.
"""

from __future__ import annotations

from typing import Final

# infra/warnings.py has the end of their support.
KUBERNETES: Final = "1.35"
KUBERNETES_SUPPORTED: Final = ("1.34", "1.35", "1.36")

# The EKS add-ons of a stack's own cluster (https://docs.aws.amazon.com/eks/latest/userguide/eks-add-ons.html): those of
# `components.cluster`, and the drivers of `components.csi`.
EBS_ADDON: Final = "aws-ebs-csi-driver"
FSX_ADDON: Final = "aws-fsx-csi-driver"
ADDONS: Final = ("vpc-cni", "kube-proxy", "coredns", "eks-node-monitoring-agent", EBS_ADDON, FSX_ADDON)

# github.com/aws/karpenter-provider-aws v1.14.1, 2026-08-21; serves Kubernetes 1.35 from 1.9 on
# (website/content/en/v1.14/upgrading/compatibility.md). The published chart names its image by digest. No file names a
# digest of the charts themselves: docs/decisions/0017.
KARPENTER: Final = "1.14.1"
KARPENTER_CHART: Final = "oci://public.ecr.aws/karpenter/karpenter"
# The chart's controller.image.repository (its values.yaml); the digest beside it stays the chart's.
KARPENTER_IMAGE: Final = "public.ecr.aws/karpenter/controller"
KARPENTER_CRD_CHART: Final = "oci://public.ecr.aws/karpenter/karpenter-crd"

# github.com/awslabs/amazon-eks-ami, release v20260724, CHANGELOG, 2026-11-21. Never `latest`: a new image would
# make every node drift. The accelerated variant is chosen by the instance type.
AMI: Final = "al2023@v20260724"

# github.com/kubeflow/training-operator v1.9.4, 2026-08-18. Its manifests/overlays/standalone/kustomization.yaml
# names the image by the tag below (the operator's commit) and no published file names a digest, so that the tag
# stays; `trainyard:images.trainingOperator` sets a digest.
TRAINING_OPERATOR: Final = "v1.9.4"
# The commit of this tag, which can move; the Go module of the release names the same as its origin.
TRAINING_OPERATOR_COMMIT: Final = "4445c12aa62e4345b0c2c6ac9b215a70eca46ed7"
TRAINING_OPERATOR_IMAGE: Final = "ghcr.io/kubeflow/training-v1/training-operator:v1-93c5489"
# kubectl supports a directory of a repository only in this form. The address of its page (`/tree/v1.9.4/`) would select
# the default branch (github.com/kubernetes-sigs/kustomize, examples/remoteBuild.md).
TRAINING_OPERATOR_MANIFESTS: Final = f"https://github.com/kubeflow/training-operator//manifests/overlays/standalone?ref={TRAINING_OPERATOR_COMMIT}"

# github.com/kubeflow/trainer v2.3.0, 2026-11-27. Its manifests/overlays/manager/kustomization.yaml names the image by
# this tag, and no published file names a digest; `trainyard:images.kubeflowTrainer` sets one.
KUBEFLOW_TRAINER: Final = "v2.3.0"
# The commit of this tag, which the Go module of the release names as its origin.
KUBEFLOW_TRAINER_COMMIT: Final = "658725bdae5c7e3a0854d93ac6ff492e109a22ab"
KUBEFLOW_TRAINER_IMAGE: Final = "ghcr.io/kubeflow/trainer/trainer-controller-manager:v2.3.0"
# The directory of the kustomizations that the stack uses (`components.documents.operator_manifests.PARTS`).
KUBEFLOW_TRAINER_MANIFESTS: Final = (
    f"https://github.com/kubeflow/trainer//manifests/base?ref={KUBEFLOW_TRAINER_COMMIT}"
)

# github.com/kubernetes-sigs/jobset v0.12.0, 2026-11-27: the version in go.mod of Kubeflow Trainer v2.3.0.
JOBSET: Final = "v0.12.0"
JOBSET_COMMIT: Final = "09e9a3bb4b64dbe75b5b0119d3623903f0434643"
# Its manifests name the image of a registry for tests. registry.k8s.io's promotion list names this digest:
# github.com/kubernetes/k8s.io, registry.k8s.io/images/k8s-staging-jobset/images.yaml (pull request 9456).
JOBSET_IMAGE: Final = (
    "registry.k8s.io/jobset/jobset:v0.12.0"
    "@sha256:e75536f1135b7bb2f19f8c3b620782fbdd9091d73398e3a272f9a5fed322980d"
)
JOBSET_MANIFESTS: Final = f"https://github.com/kubernetes-sigs/jobset//config/default?ref={JOBSET_COMMIT}"

# registry.k8s.io's own promotion list names this digest: github.com/kubernetes/k8s.io,
# registry.k8s.io/images/k8s-staging-kubernetes/images.yaml (pause, 3.9), 2026-11-21.
PLACEHOLDER_IMAGE: Final = (
    "registry.k8s.io/pause:3.9@sha256:7031c1b283388d2c2e09b57badb803c05ebed362dc88d84b480cc47f72a21097"
)

# github.com/NVIDIA/k8s-device-plugin v0.19.3: 0.19.0 to 0.19.2 break EFA (issue 1692 there). The AL2023 image has no
# plugin of its own. The tag is the release's; no file of the project names its digest, `trainyard:images.devicePlugin`
# sets one.
DEVICE_PLUGIN_IMAGE: Final = "nvcr.io/nvidia/k8s-device-plugin:v0.19.3"

# github.com/aws/eks-charts at 5239609, stable/aws-efa-k8s-device-plugin (chart 0.5.30), 2026-11-21. EKS keeps the image
# in a registry of each region (`infra.eks_registry`); no file names its digest.
EFA_PLUGIN_TAG: Final = "v0.5.20"

# github.com/aws-neuron/neuron-helm-charts at 14049c2, charts/neuron-helm-chart/values.yaml, 2026-11-21; no file names
# its digest.
NEURON_PLUGIN_IMAGE: Final = "public.ecr.aws/neuron/neuron-device-plugin:2.28.27.0"

# Published by the same run as the operator's image and with the same tag (github.com/kubeflow/training-operator,
# .github/workflows/publish-core-images.yaml, template-publish-image/action.yaml); the operator's default is `latest`.
KUBECTL_DELIVERY_IMAGE: Final = "ghcr.io/kubeflow/training-v1/kubectl-delivery:v1-93c5489"

# A shell with network tools. registry.k8s.io's promotion list names this digest: github.com/kubernetes/k8s.io,
# registry.k8s.io/images/k8s-staging-e2e-test-images/images.yaml (agnhost, 2.43), 2026-11-21.
DEBUG_IMAGE: Final = (
    "registry.k8s.io/e2e-test-images/agnhost:2.43"
    "@sha256:16bbf38c463a4223d8cfe4da12bc61010b082a79b4bb003e2d3ba3ece5dd5f9e"
)
