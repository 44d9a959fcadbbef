"""Pulumi's language host for Python.

Later releases of it are not published as a Go module of their own; 3.60.0 is the newest that builds by itself, and
it serves the pinned engine. It starts `pulumi-language-python-exec`, which has to lie beside it, with the Python
that is first on PATH. The engine finds the two launchers on PATH: for dynamic providers and for policy packs.
"""

from local.tools.pin import Tool

TOOL = Tool(
    name="pulumi-language-python",
    module="github.com/pulumi/pulumi/sdk/v3",
    version="v3.60.0",
    packages=("python/cmd/pulumi-language-python",),
    binaries={"pulumi-language-python": "pulumi-language-python"},
    files={
        "python/cmd/pulumi-language-python-exec": "pulumi-language-python-exec",
        "python/dist/pulumi-resource-pulumi-python": "pulumi-resource-pulumi-python",
        "python/dist/pulumi-analyzer-policy-python": "pulumi-analyzer-policy-python",
    },
    typical_seconds=19,
)
