"""The Pulumi engine. The Python SDK in requirements.txt has the same version."""

from local.tools.pin import OnPath, Tool, exactly

TOOL = Tool(
    name="pulumi",
    module="github.com/pulumi/pulumi/pkg/v3",
    version="v3.250.0",
    packages=("cmd/pulumi",),
    binaries={"pulumi": "pulumi"},
    variables={"github.com/pulumi/pulumi/sdk/v3/go/common/version.Version": "v3.250.0"},
    on_path={"pulumi": OnPath(arguments=("version",), accepts=exactly)},
    typical_seconds=226,
)
