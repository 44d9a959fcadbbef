"""Compute a container's environment, command line and downward API values. Pure."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

from local.guard import endpoints
from trainyard.k8s.quantity import parse

Object = dict[str, Any]  # not that of `api`, whose client takes long to import for `local up`
UNKNOWN_USER = 1000
NO_USERS: Mapping[str, int] = MappingProxyType({})
Lookup = Callable[[str], Object | None]

VARIABLE = re.compile(r"\$\$|\$\(([^)]*)\)")
SUBSCRIPT = re.compile(r"(metadata\.(?:labels|annotations))\['([^']+)'\]")
TOKEN_FILE = "/var/run/secrets/eks.amazonaws.com/serviceaccount/token"  # noqa: S105 a path


class MissingReference(Exception):
    """A ConfigMap, Secret or key that the container needs does not exist (yet)."""


@dataclass(frozen=True)
class Facts:
    """What a pod's environment may refer to. `config_map` and `secret` look up objects of its namespace."""

    pod: Object
    pod_ip: str
    host_ip: str
    allocatable: Object
    config_map: Lookup
    secret: Lookup


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by its value. An unknown name stays unchanged, and `$$` becomes a dollar sign."""

    def value(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])

    return VARIABLE.sub(value, text)


def field(facts: Facts, path: str) -> str:
    """Return the value of a downward API field.

    Raises:
        ValueError: The API server has no such field path.
    """
    metadata, spec = facts.pod["metadata"], facts.pod["spec"]
    subscript = SUBSCRIPT.fullmatch(path)
    if subscript:
        return str((metadata.get(subscript[1].split(".")[1]) or {}).get(subscript[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        entries = metadata.get(path.split(".")[1]) or {}
        return "\n".join(f'{key}="{value}"' for key, value in sorted(entries.items()))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path not in values:
        raise ValueError(f"fieldPath {path!r} is not one of {', '.join(sorted(values))}")
    return str(values[path])


def resource(facts: Facts, reference: Object, container: Object | None = None) -> str:
    """Return the value of a resourceFieldRef. A limit that is not set is the node's allocatable amount."""
    name = reference.get("containerName")
    if name:
        every = facts.pod["spec"]["containers"] + facts.pod["spec"].get("initContainers", [])
        container = next((c for c in every if c["name"] == name), container)
    kind, _, what = reference["resource"].partition(".")
    given = ((container or {}).get("resources") or {}).get(kind) or {}
    fallback = facts.allocatable.get(what, "0") if kind == "limits" else "0"
    amount = Fraction(parse(str(given.get(what, fallback))))
    # Rounded up, in units of the divisor; a divisor of 0 means 1.
    return str(math.ceil(amount / (parse(str(reference.get("divisor", "1"))) or 1)))


def keyed(kind: str, found: Object | None, reference: Object) -> str | None:
    """Return one key of a ConfigMap or Secret as text, or None if an optional one is missing."""
    if found is None or reference["key"] not in (found.get("data") or {}):
        if reference.get("optional"):
            return None
        what = f"key {reference['key']!r} of " if found is not None else ""
        raise MissingReference(f"{what}{kind} {reference['name']!r} not found")
    value = found["data"][reference["key"]]
    return base64.b64decode(value).decode(errors="replace") if kind == "secret" else str(value)


def reference_value(facts: Facts, container: Object, source: Object) -> str | None:
    if "fieldRef" in source:
        return field(facts, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource(facts, source["resourceFieldRef"], container)
    if "configMapKeyRef" in source:
        reference = source["configMapKeyRef"]
        return keyed("configmap", facts.config_map(reference["name"]), reference)
    if "secretKeyRef" in source:
        reference = source["secretKeyRef"]
        return keyed("secret", facts.secret(reference["name"]), reference)
    raise MissingReference(f"valueFrom with {sorted(source)} is not supported by the local nodes")


def from_sources(facts: Facts, sources: list[Object]) -> dict[str, str]:
    found: dict[str, str] = {}
    for source in sources:
        kind = "secret" if "secretRef" in source else "configmap"
        reference = source.get("secretRef") or source["configMapRef"]
        item = (facts.secret if kind == "secret" else facts.config_map)(reference["name"])
        if item is None:
            if reference.get("optional"):
                continue
            raise MissingReference(f"{kind} {reference['name']!r} not found")
        for key in item.get("data") or {}:
            value = keyed(kind, item, {"name": reference["name"], "key": key})
            found[source.get("prefix", "") + key] = value or ""
    return found


def declared(facts: Facts, container: Object) -> dict[str, str]:
    """Return the container's envFrom and env, with references resolved and `$(NAME)` expanded in order."""
    found = from_sources(facts, container.get("envFrom") or [])
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            value = reference_value(facts, container, entry["valueFrom"])
            if value is not None:
                found[entry["name"]] = value
        else:
            found[entry["name"]] = expand(entry.get("value") or "", found)
    return found


def web_identity(role: str, region: str, endpoint: str) -> dict[str, str]:
    """Return the variables that the EKS pod identity webhook injects for a role, with the local endpoints."""
    return {
        "AWS_ROLE_ARN": role,
        "AWS_WEB_IDENTITY_TOKEN_FILE": TOKEN_FILE,
        "AWS_STS_REGIONAL_ENDPOINTS": "regional",
    } | endpoints(region, endpoint)


def user_and_group(
    pod: Object, container: Object, image: str, users: Mapping[str, int] = NO_USERS
) -> tuple[int, int]:
    """Return user and group of a container: from its securityContext, then the pod's, then the image's USER.

    As in a container runtime, an unlisted user ID has the group 0. `users` are those that the Dockerfile creates.
    """
    security = {**(pod["spec"].get("securityContext") or {}), **(container.get("securityContext") or {})}
    name, _, group = image.partition(":")
    user = int(name) if name.isdigit() else 0 if name in ("", "root") else users.get(name, UNKNOWN_USER)
    if security.get("runAsUser") is not None:
        user, group = security["runAsUser"], ""
    default = int(group) if group.isdigit() else 0
    return user, security.get("runAsGroup") or default


def home_directory(user: int, users: Mapping[str, int]) -> str:
    """Return HOME as container runtimes set it: from /etc/passwd, or `/` for an unlisted user."""
    own = next((f"/home/{name}" for name, number in users.items() if number == user), "/")
    return "/root" if user == 0 else own


def complete(
    own: Mapping[str, str],
    image: Mapping[str, str],
    injected: Mapping[str, str],
    name: str,
    service_ip: str,
    user: int = 0,
    users: Mapping[str, int] = NO_USERS,
) -> dict[str, str]:
    """Return the whole environment. In order: defaults, image, injected variables, the pod's own variables."""
    defaults = {
        "HOME": home_directory(user, users),
        "HOSTNAME": name,
        "KUBERNETES_SERVICE_HOST": service_ip,
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "LANG": "C.UTF-8",
        # Many pods share few cores, so the default is one thread.
        "OMP_NUM_THREADS": "1",
    }
    return defaults | dict(image) | dict(injected) | dict(own)
