"""Kubeflow's training operator (PyTorchJob). Its module also holds the manifests."""

from local.tools.pin import Tool

TOOL = Tool(
    name="training-operator",
    module="github.com/kubeflow/training-operator",
    version="v1.9.4",
    packages=("cmd/training-operator.v1",),
    binaries={"training-operator.v1": "training-operator"},
    typical_seconds=99,
)
