"""The store of a Kubernetes control plane."""

from local.tools.pin import OnPath, Tool

TOOL = Tool(
    name="etcd",
    module="go.etcd.io/etcd/server/v3",
    version="v3.6.5",
    packages=("",),
    binaries={"server": "etcd"},
    on_path={"etcd": OnPath()},
    typical_seconds=28,
)
