"""The live object in the shape of the inputs: drift shows, and additions of the server do not. Pure.

Every field of the inputs is compared with the live one. If they mean the same (`1000m` and `1`, an empty value that the
server leaves out), the input's spelling stays. If they differ, the live value replaces it. A field that is gone is left
out. Fields that the inputs do not set are ignored: other managers own them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from local.plugins.kubernetes.objects import AUTONAMED
from local.plugins.values import Props
from trainyard.k8s.quantity import Amount, parse

# Lists that are maps by key in the API (`x-kubernetes-list-map-keys`): other managers may add items of their own.
# https://kubernetes.io/docs/reference/using-api/server-side-apply/#merge-strategy
_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "webhooks": ("name",),
    "resourceClaims": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "hostAliases": ("ip",),
    "ports": ("containerPort", "port", "protocol"),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
}
_SETS = frozenset({"finalizers"})
# Maps and fields whose values are quantities. The server changes their spelling.
_QUANTITIES = frozenset({"limits", "requests", "capacity", "hard", "default", "defaultRequest", "max", "min"})
_QUANTITY_FIELDS = frozenset({"sizeLimit", "storage", "divisor"})


def project_object(live: Props, inputs: Props) -> Props:
    """Return the inputs that describe the live object."""
    own = {key: value for key, value in inputs.items() if key != "status"}
    result: Props = dict(project(live, own))
    if "status" in inputs:
        result["status"] = inputs["status"]
    if "stringData" in inputs:
        result["stringData"] = _string_data(inputs["stringData"], live.get("data") or {})
    if AUTONAMED in ((inputs.get("metadata") or {}).get("annotations") or {}):
        # A field of this plugin, not of the cluster. Without it, the next Check would treat the name as the
        # program's.
        metadata = result.setdefault("metadata", {})
        metadata["annotations"] = {**(metadata.get("annotations") or {}), AUTONAMED: "true"}
    return result


def import_inputs(live: Props) -> Props:
    """Return the inputs for an imported object: everything except fields that the server sets."""
    result = {key: value for key, value in live.items() if key != "status"}
    drop = {
        "creationTimestamp",
        "generation",
        "managedFields",
        "resourceVersion",
        "selfLink",
        "uid",
        "ownerReferences",
    }
    result["metadata"] = {key: value for key, value in live["metadata"].items() if key not in drop}
    return result


def project(live: Any, wanted: Any, key: str = "", parent: str = "") -> Any:
    """Return `wanted` where `live` means the same, else `live`, limited to the fields of `wanted`."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            return wanted if live is None and is_empty(wanted) else live
        result = {}
        for name, value in wanted.items():
            if name in live:
                result[name] = project(live[name], value, name, key)
            elif is_empty(value):
                result[name] = value
        return result
    if isinstance(wanted, list):
        if not isinstance(live, list):
            return wanted if live is None and is_empty(wanted) else live
        return _project_list(live, wanted, key)
    quantity = key in _QUANTITY_FIELDS or parent in _QUANTITIES
    return wanted if is_equal(live, wanted, quantity=quantity) else live


def is_equal(live: Any, wanted: Any, *, quantity: bool) -> bool:
    """Return whether two scalars mean the same."""
    if isinstance(live, bool) or isinstance(wanted, bool):
        return live is wanted or (isinstance(live, bool) and isinstance(wanted, bool) and live == wanted)
    if live == wanted:
        return True
    if quantity:
        left, right = _amount(live), _amount(wanted)
        return left is not None and left == right
    return False


def _amount(value: Any) -> Amount | None:
    try:
        return parse(str(value))
    except ValueError:
        return None


def is_empty(value: Any) -> bool:
    """Return whether the API server leaves a value out.

    It leaves out null, false, zero, empty texts, lists and objects, at any depth.
    """
    if isinstance(value, Mapping):
        return all(is_empty(item) for item in value.values())
    if isinstance(value, list):
        return not value
    return value is None or value is False or value == "" or (isinstance(value, int | float) and value == 0)


def _project_list(live: list[Any], wanted: list[Any], key: str) -> list[Any]:
    if key in _SETS:
        return [item for item in wanted if item in live]
    identify = _KEYS.get(key)
    if identify and all(isinstance(item, Mapping) for item in [*live, *wanted]):
        by_key = {_identity(item, identify): item for item in live}
        if len(by_key) == len(live):
            return [
                project(by_key[_identity(item, identify)], item, "")
                for item in wanted
                if _identity(item, identify) in by_key
            ]
    paired = [project(there, here, "") for there, here in zip(live, wanted, strict=False)]
    return paired + live[len(wanted) :]


def _identity(item: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    # A port without a protocol is a TCP port.
    return tuple(item.get(name, "TCP" if name == "protocol" else None) for name in names)


def _string_data(wanted: Mapping[str, Any], data: Mapping[str, str]) -> Props:
    result: Props = {}
    for key in wanted:
        if key in data:
            try:
                result[key] = base64.b64decode(data[key]).decode()
            except (binascii.Error, UnicodeDecodeError):
                result[key] = data[key]
    return result
