"""Reading a given cluster through its own API, as the identity that asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import yaml

from components.documents.eks import AGENT
from trainyard.k8s import eks
from trainyard.k8s.client import REFUSED_STATUS, ApiError, ApiUnavailable, RetryPolicy
from trainyard.preflight.account import Account, Denied
from trainyard.preflight.inside import NETWORK_PLUGIN, DaemonSet, Inside
from trainyard.preflight.services import Cluster
from trainyard.preflight.wanted import WantedCluster

RETRY: Final = RetryPolicy(timeout=5.0)
NOT_FOUND: Final = 404
# Where the VPC CNI runs, whoever installed it (github.com/aws/amazon-vpc-cni-k8s, config/master/aws-k8s-cni.yaml).
AWS_NODE: Final = "aws-node"

# An API path -> the answer, None where there is no such thing.
Get = Callable[[str], Any]


def reader(account: Account, cluster: Cluster) -> Get:
    """A function that gets one path of the cluster's API.

    It raises Denied where the caller may not, or where the API is not reached from here: the check was not made then.
    """
    client = eks.connect(
        account.signing(), cluster.name, cluster.endpoint, cluster.certificate_authority, RETRY
    )

    def get(path: str) -> Any:
        try:
            return client.request("GET", path)
        except ApiUnavailable as error:
            raise Denied(f"a way from here to the cluster's API at {cluster.endpoint}") from error
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            if error.status in REFUSED_STATUS:
                raise Denied(f"the right to get {path} in the cluster") from error
            raise Denied(f"an answer of the cluster's API to {path} other than {error.status}") from error

    return get


def inside(account: Account, wanted: WantedCluster, get: Get) -> Inside:
    """What of all that matters to the stack is in the cluster.

    Raises:
        Denied: the caller may not ask, or does not reach the cluster.
    """
    listed = account.items(
        "eks", "list_addons", "addons", clusterName=wanted.name, missing=("ResourceNotFoundException",)
    )
    addons = frozenset(str(name) for name in listed)
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    return Inside(
        definitions=frozenset(name for name in wanted.definitions if get(f"{definitions}/{name}")),
        namespaces=frozenset(name for name in wanted.namespaces if get(f"/api/v1/namespaces/{name}")),
        drivers=frozenset(
            name for name in wanted.drivers if get(f"/apis/storage.k8s.io/v1/csidrivers/{name}")
        ),
        addons=addons,
        daemon_sets=tuple(_daemon_set(each) for each in (get("/apis/apps/v1/daemonsets") or {})["items"]),
        agent_tolerations=_agent_tolerations(account, wanted.name) if AGENT in addons else None,
    )


def _agent_tolerations(account: Account, cluster: str) -> tuple[Any, ...] | None:
    """Return the tolerations of dcgm-server in the add-on's configuration, None if the add-on is not installed.

    Raises:
        Denied: The configuration is invalid, or the caller may not read it.
    """
    found = account.call(
        "eks",
        "describe_addon",
        clusterName=cluster,
        addonName=AGENT,
        missing=("ResourceNotFoundException",),
    )
    if found is None:
        return None
    try:
        # EKS accepts JSON and YAML. JSON is also YAML.
        values = yaml.safe_load(found["addon"].get("configurationValues") or "{}")
        return tuple((values.get("dcgmAgent") or {}).get("tolerations") or ())
    except (yaml.YAMLError, AttributeError, TypeError):
        raise Denied(f"a valid configuration of the add-on {AGENT}") from None


def network_plugin(account: Account, cluster: Cluster, open_reader: Callable[[], Get]) -> str | None:
    """The version of the VPC CNI, such as v1.21.1-eksbuild.3; None where there is none.

    EKS tells that of its add-on. Without the add-on the cluster itself is asked, through `open_reader`: it is the tag
    of the image that runs, or the whole image where it has no tag.

    Raises:
        Denied: the caller may not ask, or does not reach the cluster.
    """
    addon = account.call(
        "eks",
        "describe_addon",
        clusterName=cluster.name,
        addonName=NETWORK_PLUGIN,
        missing=("ResourceNotFoundException",),
    )
    if addon is not None:
        return str(addon["addon"]["addonVersion"])
    found = open_reader()(f"/apis/apps/v1/namespaces/kube-system/daemonsets/{AWS_NODE}")
    if found is None:
        return None
    containers = found["spec"]["template"]["spec"]["containers"]
    image = next(str(each["image"]) for each in containers if each["name"] == AWS_NODE)
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2] or image


def _daemon_set(item: dict[str, Any]) -> DaemonSet:
    pod = item["spec"]["template"]["spec"]
    chosen = pod.get("nodeSelector") or (pod.get("affinity") or {}).get("nodeAffinity")
    return DaemonSet(
        name=f"{item['metadata']['namespace']}/{item['metadata']['name']}",
        images=tuple(container["image"] for container in pod["containers"]),
        everywhere=not chosen,
        tolerations=tuple(pod.get("tolerations") or ()),
    )
