"""The messages of Pulumi's plugin protocol, loaded without the whole Pulumi SDK.

`import pulumi` takes most of a second; the generated message modules alone take a quarter of it. They import only each
other, so they are loaded here as a package with its own name. If a component imports the SDK later, protobuf returns
the same message classes for both names.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

from google.protobuf.pyext import cpp_message

_PACKAGE = "trainyard_pulumi_protos"


def sdk_directory(package: str) -> Path:
    """Return the directory of an installed package, without an import.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"the Python package {package} is not installed in this environment")
    return Path(next(iter(spec.submodule_search_locations)))


def _load(module: str) -> Any:
    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(sdk_directory("pulumi") / "runtime" / "proto")]
        sys.modules[_PACKAGE] = package
    return importlib.import_module(f"{_PACKAGE}.{module}")


# protobuf's default depth of 100 messages is too little for the schema of a JobSet or a TrainJob. The Pulumi SDK raises
# the limit in the same way (pulumi/runtime/rpc.py), and protobuf for Go has a limit of 10,000.
if cpp_message._message is not None:
    cpp_message._message.SetAllowOversizeProtos(True)

provider: Any = _load("provider_pb2")
provider_grpc: Any = _load("provider_pb2_grpc")
plugin: Any = _load("plugin_pb2")
engine: Any = _load("engine_pb2")
engine_grpc: Any = _load("engine_pb2_grpc")
status: Any = _load("status_pb2")
