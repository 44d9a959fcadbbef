"""Karpenter's controller for AWS, unmodified. Its module also holds the charts and the CRDs."""

from local.tools.pin import Tool

TOOL = Tool(
    name="karpenter",
    module="github.com/aws/karpenter-provider-aws",
    version="v1.14.1",
    packages=("cmd/controller",),
    binaries={"controller": "karpenter"},
    # The module's own replace line only counts where it is the main module.
    replaces={"sigs.k8s.io/karpenter": "v1.14.1"},
    variables={"sigs.k8s.io/karpenter/pkg/operator.Version": "1.14.1"},
    typical_seconds=207,
)
