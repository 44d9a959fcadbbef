"""KAI Scheduler's own kinds and its two queues, as its installation brings them; nobody schedules by them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import yaml

from local.tools.go import find_go
from tests.integration.local.own_api_server import ApiServer
from trainyard.operator import names as n

# The newest release that Go's module proxy has; of what the controller reads and writes, v0.17.0 has the same fields.
MODULE, SUM = "github.com/NVIDIA/KAI-scheduler@v0.12.0", "h1:3rhB0TdbJYNgOiZ6E0cAa+VJnr4srhoigJI/PkY85vI="
_PLURALS = (n.KAI_POD_GROUP_PLURAL, n.KAI_QUEUE_PLURAL)
_UNLIMITED = {kind: {"quota": -1, "limit": -1, "overQuotaWeight": 1} for kind in ("cpu", "gpu", "memory")}
_TREE = {n.KAI_PARENT_QUEUE: {}, n.KAI_DEFAULT_QUEUE: {"parentQueue": n.KAI_PARENT_QUEUE}}
_OWN_QUEUES = yaml.safe_dump_all(
    {
        "apiVersion": f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}",
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {**above, "resources": _UNLIMITED},
    }
    for name, above in _TREE.items()
)
QUEUES = f"/apis/{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}/{n.KAI_QUEUE_PLURAL}"


def gangs(namespace: str) -> str:
    """Where the PodGroups of a namespace are."""
    version = f"/apis/{n.KAI_GROUP}/{n.KAI_POD_GROUP_VERSION}"
    return f"{version}/namespaces/{namespace}/{n.KAI_POD_GROUP_PLURAL}"


@cache
def files() -> tuple[str, ...]:
    """The definitions, out of KAI's module; Go keeps it in its module cache."""
    found = find_go("KAI Scheduler's kinds").query("mod", "download", "-json", MODULE, directory=Path("/"))
    assert found["Sum"] == SUM, found
    directory = Path(found["Dir"]) / "deployments" / "kai-scheduler" / "crds"
    return tuple(str(directory / f"{n.KAI_GROUP}_{each}.yaml") for each in _PLURALS)


def install(server: ApiServer) -> None:
    """They are there from now on."""
    for each in files():
        applied = server.kubectl("apply", "-f", each)
        assert applied.returncode == 0, applied.stderr
    kinds = [f"crd/{each}.{n.KAI_GROUP}" for each in _PLURALS]
    server.established(*kinds)
    applied = server.kubectl("apply", "-f", "-", stdin=_OWN_QUEUES)
    assert applied.returncode == 0, applied.stderr


@contextmanager
def kai_kinds(server: ApiServer) -> Iterator[None]:
    """They are there meanwhile."""
    install(server)
    yield
    for each in files():
        server.kubectl("delete", "-f", each, "--timeout=60s")
