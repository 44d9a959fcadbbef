"""Helm, for the charts of the stack."""

from local.tools.pin import OnPath, Tool

TOOL = Tool(
    name="helm",
    module="helm.sh/helm/v3",
    version="v3.19.0",
    packages=("cmd/helm",),
    binaries={"helm": "helm"},
    variables={"helm.sh/helm/v3/internal/version.version": "v3.19.0"},
    on_path={"helm": OnPath(arguments=("version", "--template", "{{.Version}}"))},
    typical_seconds=87,
)
