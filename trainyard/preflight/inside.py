"""What is in a given cluster: pure checks on what this stack would make a second time, and on what it relies on.

On a given cluster the drivers and add-ons are its owner's (`infra.volumes`); Karpenter, the training operator, the
device plugins and the namespaces are this stack's own, and each of them can be in a cluster once only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from components.documents import efa
from components.documents.eks import AGENT, VALUES
from components.documents.pool import GPU
from trainyard.k8s import names
from trainyard.preflight.account import Denied
from trainyard.preflight.wanted import Problem, WantedCluster

NAME_KEY: Final = "trainyard:cluster.existing.name"
# The agent's DaemonSet that reads NVIDIA GPUs (github.com/aws/eks-node-monitoring-agent,
# charts/eks-node-monitoring-agent/templates/dcgm-daemonset.yaml).
DCGM: Final = "dcgm-server"
NETWORK_PLUGIN: Final = "vpc-cni"
# A definition that only one release can own -> who brings it.
DEFINITIONS: Final = {
    "nodepools.karpenter.sh": "Karpenter",
    "ec2nodeclasses.karpenter.k8s.aws": "Karpenter",
    "pytorchjobs.kubeflow.org": "Kubeflow's training operator",
    "mpijobs.kubeflow.org": "an operator for MPIJobs",
    f"{names.TORCHRUN_QUEUES}.{names.TORCHRUN_GROUP}": "a controller of torchrun jobs",
    f"{names.TORCHRUN_JOBS}.{names.TORCHRUN_GROUP}": "a controller of torchrun jobs",
}
# A CSI driver -> its EKS add-on.
ADDONS: Final = {"fsx.csi.aws.com": "aws-fsx-csi-driver"}
# The end of an image's repository -> the resource that this device plugin tells the kubelet of.
PLUGIN_IMAGES: Final = {
    "/k8s-device-plugin": "nvidia.com/gpu",
    "/aws-efa-k8s-device-plugin": names.EFA_RESOURCE,
    "/neuron-device-plugin": "aws.amazon.com/neuron",
}


@dataclass(frozen=True, kw_only=True)
class DaemonSet:
    """A DaemonSet by namespace and name, with its images and tolerations.

    `everywhere` says whether it runs on all nodes, without a selector.
    """

    name: str
    images: tuple[str, ...]
    everywhere: bool
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Inside:
    """What a cluster has: of the definitions and namespaces that were asked for those that exist, and all the rest.

    `addons` are those of EKS, `drivers` the names of all CSI drivers. `agent_tolerations` are those of
    `DCGM` in the configuration of the add-on; None: the monitoring agent is no add-on.
    """

    definitions: frozenset[str]
    namespaces: frozenset[str]
    drivers: frozenset[str]
    addons: frozenset[str]
    daemon_sets: tuple[DaemonSet, ...] = ()
    agent_tolerations: tuple[Mapping[str, Any], ...] | None = None


def check(wanted: WantedCluster, found: Inside, *, deployed: bool) -> list[Problem]:
    """What this stack would make must not be there, and what it relies on must; `deployed`: the former is its own."""
    lacking = [*_drivers(wanted, found), *_agent(wanted, found), *_dcgm(wanted, found)]
    return lacking if deployed else [*_taken(wanted, found), *_plugins(wanted, found), *lacking]


def check_network_plugin(wanted: WantedCluster, version: str | None) -> list[Problem]:
    """The VPC CNI of a cluster whose machines will have EFA; None: it has another network plugin, which is not judged.

    Raises:
        Denied: the version is none that can be read.
    """
    if version is None:
        return []
    try:
        problem = efa.cni_problem(version)
    except ValueError:
        raise Denied(f"a VPC CNI whose version can be read, which '{version}' is not") from None
    if problem is None:
        return []
    return [
        Problem(
            key=NAME_KEY,
            message=f"'{wanted.name}' has the VPC CNI {version}, which {problem}: its owner must update it (EKS add-on"
            f" {NETWORK_PLUGIN}), or pools must have efa: none",
        )
    ]


def _taken(wanted: WantedCluster, found: Inside) -> list[Problem]:
    by_bringer: dict[str, list[str]] = {}
    for definition in wanted.definitions:
        if definition in found.definitions:
            by_bringer.setdefault(DEFINITIONS[definition], []).append(definition)
    problems = [
        Problem(
            key=NAME_KEY,
            message=f"'{wanted.name}' has {bringer} already ({', '.join(definitions)}), and this stack brings its own,"
            " which a cluster can have once only; it must be a cluster without",
        )
        for bringer, definitions in by_bringer.items()
    ]
    there = [name for name in wanted.namespaces if name in found.namespaces]
    if there:
        problems.append(
            Problem(
                key=NAME_KEY,
                message=f"'{wanted.name}' has the namespace{'s' if len(there) > 1 else ''} {', '.join(there)} already,"
                " which this stack makes, and deletes with all that is in it; it must be a cluster without",
            )
        )
    return problems


def _plugins(wanted: WantedCluster, found: Inside) -> list[Problem]:
    """Two device plugins for one resource take it from each other on every machine that both run on."""
    problems = []
    for each in found.daemon_sets:
        resources = {_resource(image) for image in each.images} & set(wanted.devices)
        if each.everywhere and resources:
            problems.append(
                Problem(
                    key=NAME_KEY,
                    message=f"'{wanted.name}' runs the DaemonSet {each.name} on every machine, a device plugin for"
                    f" {', '.join(sorted(map(str, resources)))} as this stack's own; it must leave out this stack's"
                    f" pools by the label {names.LABEL_NODEPOOL}",
                )
            )
    return problems


def _resource(image: str) -> str | None:
    path, _, last = image.partition("@")[0].rpartition("/")
    repository = f"{path}/{last.partition(':')[0]}"
    return next((name for end, name in PLUGIN_IMAGES.items() if repository.endswith(end)), None)


def _drivers(wanted: WantedCluster, found: Inside) -> list[Problem]:
    return [
        Problem(
            key="trainyard:storage.lustre",
            message=f"needs the CSI driver {driver} in '{wanted.name}', which has none; its owner must install it:"
            f" aws eks create-addon --cluster-name {wanted.name} --addon-name {ADDONS[driver]}",
        )
        for driver in wanted.drivers
        if driver not in found.drivers and ADDONS[driver] not in found.addons
    ]


def _agent(wanted: WantedCluster, found: Inside) -> list[Problem]:
    """Without the agent nobody says of a machine that its accelerators are broken."""
    runs = any(each.name.rpartition("/")[2] == AGENT for each in found.daemon_sets)
    if not wanted.node_repair or runs or AGENT in found.addons:
        return []
    return [
        Problem(
            key="trainyard:cluster.nodeRepair",
            message=f"is true, and '{wanted.name}' has no {AGENT}, which tells that an accelerator is broken; its owner"
            f" must install it (aws eks create-addon --cluster-name {wanted.name} --addon-name {AGENT}), or it must be"
            " false",
        )
    ]


def _dcgm(wanted: WantedCluster, found: Inside) -> list[Problem]:
    """Check that dcgm-server can run on the nodes. Otherwise the agent reports healthy GPUs as broken."""
    tolerations = found.agent_tolerations
    for each in found.daemon_sets:
        if each.name.rpartition("/")[2] == DCGM:
            tolerations = each.tolerations
    taint = {"key": GPU, "effect": "NoSchedule"}
    if tolerations is None or not wanted.node_repair or GPU not in wanted.devices:
        return []
    if any(_tolerates(each, taint) for each in tolerations):
        return []
    return [
        Problem(
            key="trainyard:cluster.nodeRepair",
            message=f"is true, and {DCGM} of {AGENT} in '{wanted.name}' does not tolerate the taint {GPU}:NoSchedule of"
            " the pools' nodes, so healthy nodes would be reported as broken and replaced; its owner must set"
            f" dcgmAgent.tolerations (aws eks update-addon --cluster-name {wanted.name} --addon-name {AGENT}"
            f" --configuration-values '{VALUES[AGENT]}'), or it must be false",
        )
    ]


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, str]) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/ for a taint without a value."""
    key, effect = toleration.get("key"), toleration.get("effect")
    if (key or taint["key"]) != taint["key"] or (effect or taint["effect"]) != taint["effect"]:
        return False
    return toleration.get("operator") == "Exists" or (bool(key) and not toleration.get("value"))
