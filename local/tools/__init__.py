"""The tools of the local cloud: pinned, taken from PATH where the right version is there, else built once by Go.

ensure(["pulumi"], home)      build what is missing, link everything into the home's `bin`
ensure_other(tool)            build a tool that the local cloud itself does not need
module_directory("karpenter") the tool's module as published: charts, manifests
"""

from local.tools.registry import (
    TOOLS,
    ToolError,
    cache_directory,
    ensure,
    ensure_other,
    module_directory,
    module_directory_of,
)

__all__ = [
    "TOOLS",
    "ToolError",
    "cache_directory",
    "ensure",
    "ensure_other",
    "module_directory",
    "module_directory_of",
]
