"""The tools of the local cloud in pinned versions: from PATH, else downloaded, else built once by Go.

ensure(["pulumi"], home)      download or build missing tools, and link all of them in the home's `bin`
ensure_other(tool)            do the same for a tool that not every local cloud needs
module_directory("karpenter") the tool's module as published: charts, manifests
rendered(name, directory)     a file with the objects of a kustomization of the tool's module
"""

from local.tools.pins import OPTIONAL_TOOLS, TOOLS
from local.tools.registry import (
    cache_directory,
    ensure,
    ensure_other,
    module_directory,
    module_directory_of,
    rendered,
)
from local.tools.tool import ToolError

__all__ = [
    "OPTIONAL_TOOLS",
    "TOOLS",
    "ToolError",
    "cache_directory",
    "ensure",
    "ensure_other",
    "module_directory",
    "module_directory_of",
    "rendered",
]
