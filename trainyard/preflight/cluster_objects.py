"""Check an existing cluster for objects that the stack would create twice, and for objects that it needs.

CSI drivers and add-ons of an existing cluster belong to its owner (`infra.volumes`). Karpenter, the training operator,
device plugins and namespaces belong to the stack, and a cluster can have each of them only once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from components.documents import efa
from components.documents.device_plugins import where
from components.documents.eks import AGENT, VALUES
from components.documents.pool import GPU, NEURON
from components.documents.versions import FSX_ADDON
from infra.settings import Settings
from trainyard.k8s import eks, names
from trainyard.k8s.client import REFUSED_STATUS, ApiError, ApiUnavailable, RetryPolicy
from trainyard.preflight.aws import Aws, Denied, has
from trainyard.preflight.cluster import existing_cluster
from trainyard.preflight.findings import WARNING, Finding, own_tags
from trainyard.preflight.resource_names import queue_tags

KEY: Final = "trainyard:cluster.existing.name"
RETRY: Final = RetryPolicy(timeout=5.0)
NOT_FOUND: Final = 404
REPAIR_KEY: Final = "trainyard:cluster.nodeRepair"
DEFINITIONS_PATH: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# The agent's DaemonSet for NVIDIA GPUs (github.com/aws/eks-node-monitoring-agent,
# charts/eks-node-monitoring-agent/templates/dcgm-daemonset.yaml).
DCGM: Final = "dcgm-server"
# The VPC CNI's add-on, and its DaemonSet (github.com/aws/amazon-vpc-cni-k8s, config/master/aws-k8s-cni.yaml).
VPC_CNI: Final = "vpc-cni"
AWS_NODE: Final = "aws-node"
_TORCHRUN: Final = (
    f"{names.TORCHRUN_QUEUES}.{names.TORCHRUN_GROUP}",
    f"{names.TORCHRUN_JOBS}.{names.TORCHRUN_GROUP}",
)
# Who installs which CustomResourceDefinitions.
DEFINITIONS: Final = {
    "Karpenter": ("nodepools.karpenter.sh", "ec2nodeclasses.karpenter.k8s.aws"),
    "Kubeflow's training operator": ("pytorchjobs.kubeflow.org",),
    "an operator for MPIJobs": ("mpijobs.kubeflow.org",),
    "Kubeflow Trainer": ("trainjobs.trainer.kubeflow.org",),
    "JobSet": ("jobsets.jobset.x-k8s.io",),
    "a controller of torchrun jobs": _TORCHRUN,
}
# The CSI driver of a file system.
FSX_DRIVER: Final = "fsx.csi.aws.com"
# The end of an image's repository, and the resource of this device plugin.
PLUGIN_IMAGES: Final = {
    "/k8s-device-plugin": GPU,
    "/aws-efa-k8s-device-plugin": names.EFA_RESOURCE,
    "/neuron-device-plugin": NEURON,
}
# The facts about KAI Scheduler are from github.com/kai-scheduler/KAI-Scheduler, tags v0.15.0 to v0.17.0, branch v0.17.
KAI_DEFINITION: Final = "podgroups.scheduling.run.ai"
# CHANGELOG.md of v0.15.0: kai.scheduler/skip-podgrouper.
KAI_MINIMUM: Final = (0, 15, 0)
# kai-scheduler/KAI-Scheduler#1968: tags from the first have filterTerminalPods in pkg/scheduler/cache/cache.go. Pull
# request 2022 removed it from the branch v0.17 after v0.17.0; the branch v0.16 still has it.
KAI_EVICTING: Final = (0, 16, 2)
KAI_FIXED: Final = (0, 17, 1)


class ClusterReader:
    """A reader of a cluster's API with the caller's EKS token."""

    def __init__(self, aws: Aws, cluster: Mapping[str, Any]) -> None:
        self._endpoint = cluster.get("endpoint") or ""
        authority = (cluster.get("certificateAuthority") or {}).get("data") or ""
        self._client = eks.connect(aws.signing(), cluster["name"], self._endpoint, authority, RETRY)

    def get(self, path: str) -> Any:
        """Return the object or list at a path; None if it does not exist.

        Raises:
            Denied: The caller has no access, or can't reach the API.
        """
        try:
            return self._client.request("GET", path)
        except ApiUnavailable as error:
            raise Denied(f"a connection to the cluster's API at {self._endpoint}") from error
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            if error.status in REFUSED_STATUS:
                raise Denied(f"permission to get {path} in the cluster") from error
            raise Denied(f"an answer of the cluster's API to {path} other than {error.status}") from error


def _reader(settings: Settings, aws: Aws) -> ClusterReader | None:
    """Return a reader of the existing cluster; None if there is no active one."""
    found = existing_cluster(settings, aws)
    return ClusterReader(aws, found) if found and found["status"] == "ACTIVE" else None


def check_objects(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the existing cluster has none of the stack's objects, but the driver and the agent that it needs."""
    reader = _reader(settings, aws)
    if reader is None:
        return []
    daemon_sets = list((reader.get("/apis/apps/v1/daemonsets") or {}).get("items") or [])
    addons = aws.items(
        "eks",
        "list_addons",
        "addons",
        clusterName=settings.cluster.name,
        missing=("ResourceNotFoundException",),
    )
    findings = []
    # Where Karpenter's queue has the stack's tags, the stack has created the objects itself.
    if not has(queue_tags(aws, settings.prefix) or {}, own_tags(settings)):
        findings += [Finding(KEY, each) for each in _conflicts(settings, reader)]
        findings += [Finding(KEY, each) for each in _plugin_conflicts(settings, daemon_sets)]
    findings += _missing_driver(settings, reader, addons)
    return [
        *findings,
        *(Finding(REPAIR_KEY, each) for each in _agent_problems(settings, aws, daemon_sets, addons)),
    ]


def _conflicts(settings: Settings, reader: ClusterReader) -> Iterator[str]:
    name = settings.cluster.name
    is_created = {
        "Kubeflow's training operator": settings.training_operator,
        "an operator for MPIJobs": settings.mpi,
        "Kubeflow Trainer": settings.kubeflow_trainer,
        "JobSet": settings.kubeflow_trainer,
        "a controller of torchrun jobs": settings.queues,
    }
    for owner, definitions in DEFINITIONS.items():
        if not is_created.get(owner, True):
            continue
        existing = [each for each in definitions if reader.get(f"{DEFINITIONS_PATH}/{each}")]
        if existing:
            yield (
                f"'{name}' has {owner} already ({', '.join(existing)}). It must be a cluster without, because the stack"
                " installs its own and a cluster can have only one"
            )
    namespaces = [
        names.TRAINING_NAMESPACE,
        *([names.OPERATOR_NAMESPACE] if settings.training_operator else []),
        *([names.TRAINER_NAMESPACE] if settings.kubeflow_trainer else []),
        *([names.DEVICE_PLUGIN_NAMESPACE] if where(settings.pools) else []),
        *([names.TORCHRUN_NAMESPACE] if settings.queues else []),
    ]
    existing = [each for each in namespaces if reader.get(f"/api/v1/namespaces/{each}")]
    if existing:
        yield (
            f"'{name}' has the namespace{'s' if len(existing) > 1 else ''} {', '.join(existing)} already. It must be a"
            " cluster without, because the stack creates them and deletes them with everything in them"
        )


def _plugin_conflicts(settings: Settings, daemon_sets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the device plugins that conflict: two for one resource can't run on the same node."""
    for each in daemon_sets:
        pod = each["spec"]["template"]["spec"]
        if pod.get("nodeSelector") or (pod.get("affinity") or {}).get("nodeAffinity"):
            continue
        repositories = [f"/{_split(container['image'])[0]}" for container in pod["containers"]]
        resources = sorted(
            resource
            for end, resource in PLUGIN_IMAGES.items()
            if resource in where(settings.pools) and any(name.endswith(end) for name in repositories)
        )
        if resources:
            metadata = each["metadata"]
            yield (
                f"'{settings.cluster.name}' runs the DaemonSet {metadata['namespace']}/{metadata['name']} on every"
                f" node, a device plugin for {', '.join(resources)} like the stack's own. It must exclude the stack's"
                f" pools by the label {names.LABEL_NODEPOOL}"
            )


def _split(image: str) -> tuple[str, str]:
    """Return repository and tag of an image."""
    path, _, last = image.partition("@")[0].rpartition("/")
    name, _, tag = last.partition(":")
    return f"{path}/{name}", tag


def _missing_driver(settings: Settings, reader: ClusterReader, addons: Sequence[str]) -> list[Finding]:
    if settings.storage.lustre is None or FSX_ADDON in addons:
        return []
    if reader.get(f"/apis/storage.k8s.io/v1/csidrivers/{FSX_DRIVER}"):
        return []
    name = settings.cluster.name
    message = (
        f"'{name}' does not have the CSI driver {FSX_DRIVER}. Its owner must install it:"
        f" aws eks create-addon --cluster-name {name} --addon-name {FSX_ADDON}"
    )
    return [Finding("trainyard:storage.lustre", message)]


def _agent_problems(
    settings: Settings, aws: Aws, daemon_sets: Sequence[Mapping[str, Any]], addons: Sequence[str]
) -> Iterator[str]:
    """Yield the problems of the node monitoring agent. Nothing else reports broken accelerators.

    If its dcgm-server can't run on GPU nodes, the agent reports healthy GPUs as broken.
    """
    name, by_name = settings.cluster.name, {each["metadata"]["name"]: each for each in daemon_sets}
    if not settings.cluster.node_repair:
        return
    if AGENT not in by_name and AGENT not in addons:
        yield (
            f"is true, but '{name}' does not have {AGENT}, which reports broken accelerators. Its owner must install"
            f" it (aws eks create-addon --cluster-name {name} --addon-name {AGENT}), or it must be false"
        )
    tolerations = _agent_tolerations(aws, name) if AGENT in addons else None
    if DCGM in by_name:
        tolerations = by_name[DCGM]["spec"]["template"]["spec"].get("tolerations") or []
    if tolerations is None or GPU not in where(settings.pools) or any(map(_tolerates_gpu_taint, tolerations)):
        return
    yield (
        f"is true, but {DCGM} of {AGENT} in '{name}' does not tolerate the taint {GPU}:NoSchedule of the pools'"
        " nodes, so healthy nodes would be replaced. Its owner must set dcgmAgent.tolerations (aws eks update-addon"
        f" --cluster-name {name} --addon-name {AGENT} --configuration-values '{VALUES[AGENT]}'), or it must be false"
    )


def _agent_tolerations(aws: Aws, cluster: str) -> list[Any] | None:
    """Return dcgm-server's tolerations in the add-on's configuration, which is YAML or JSON."""
    addon = _addon(aws, cluster, AGENT)
    if addon is None:
        return None
    try:
        values = yaml.safe_load(addon.get("configurationValues") or "{}")
        return list((values.get("dcgmAgent") or {}).get("tolerations") or ())
    except (yaml.YAMLError, AttributeError, TypeError):
        raise Denied(f"a valid configuration of the add-on {AGENT}") from None


def _addon(aws: Aws, cluster: str, name: str) -> dict[str, Any] | None:
    absent = ("ResourceNotFoundException",)
    answer = aws.call("eks", "describe_addon", clusterName=cluster, addonName=name, missing=absent)
    return None if answer is None else dict(answer["addon"])


def _tolerates_gpu_taint(toleration: Mapping[str, Any]) -> bool:
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/, for a taint without a value."""
    key, effect = toleration.get("key"), toleration.get("effect")
    if (key or GPU) != GPU or (effect or "NoSchedule") != "NoSchedule":
        return False
    return toleration.get("operator") == "Exists" or (bool(key) and not toleration.get("value"))


def check_vpc_cni(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the existing cluster's VPC CNI, if any, supports efa-only interfaces for pools with EFA."""
    found = existing_cluster(settings, aws) if any(pool.efa for pool in settings.pools) else None
    if found is None or found["status"] != "ACTIVE":
        return []
    name = settings.cluster.name
    addon = _addon(aws, name, VPC_CNI)
    version = addon["addonVersion"] if addon else _cni_image_version(ClusterReader(aws, found))
    try:
        problem = efa.cni_problem(version) if version else None
    except ValueError:
        raise Denied(f"a VPC CNI with a valid version instead of '{version}'") from None
    if problem is None:
        return []
    message = (
        f"'{name}' has the VPC CNI {version}, which {problem}. Its owner must update it (EKS add-on {VPC_CNI}), or"
        " pools must have efa: none"
    )
    return [Finding(KEY, message)]


def _cni_image_version(reader: ClusterReader) -> str | None:
    """Return the version of the VPC CNI from its image tag, or the image without a tag; None if it does not run."""
    found = reader.get(f"/apis/apps/v1/namespaces/kube-system/daemonsets/{AWS_NODE}")
    if found is None:
        return None
    containers = found["spec"]["template"]["spec"]["containers"]
    image = next(str(each["image"]) for each in containers if each["name"] == AWS_NODE)
    return _split(image)[1] or image


def check_kai_scheduler(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that the existing cluster's KAI Scheduler, if any, has no defect that affects gangs. A defect is a warning.

    KAI's operator runs one scheduler for each shard, with an image named `scheduler` of any registry (buildArgsList in
    pkg/operator/operands/scheduler/resources_for_shard.go).
    """
    reader = _reader(settings, aws) if settings.queues else None
    if reader is None or not reader.get(f"{DEFINITIONS_PATH}/{KAI_DEFINITION}"):
        return []
    findings = []
    for item in (reader.get("/apis/apps/v1/deployments") or {}).get("items") or []:
        for container in item["spec"]["template"]["spec"]["containers"]:
            command = " ".join([*container.get("command", ()), *container.get("args", ())])
            repository, tag = _split(container["image"])
            if not repository.endswith("/scheduler") or "--scheduler-conf" not in command:
                continue
            problem = _kai_problem(container["image"], tag, command)
            if problem:
                deployment = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
                message = f"'{settings.cluster.name}' has KAI Scheduler {tag} (Deployment {deployment}). It {problem}"
                findings.append(Finding(KEY, message, WARNING))
    return findings


def _kai_problem(image: str, tag: str, command: str) -> str:
    version = re.fullmatch(r"v?(\d+)\.(\d+)\.(\d+)(?:[-+].*)?", tag)
    if version is None:
        raise Denied(f"an image of KAI Scheduler with a version instead of '{image}'")
    numbers = tuple(map(int, version.groups()))
    never_stale = re.search(r"--default-staleness-grace-period[= ]-", command)
    fixed = f"v{'.'.join(map(str, KAI_FIXED))}"
    if numbers < KAI_MINIMUM:
        return (
            "ignores kai.scheduler/skip-podgrouper, so gangs of torchrun jobs start with one worker. It must be"
            f" v{'.'.join(map(str, KAI_MINIMUM))} or newer"
        )
    if KAI_EVICTING <= numbers < KAI_FIXED and not never_stale:
        return (
            "evicts the other pods of a gang 60 s after the first has succeeded (kai-scheduler/KAI-Scheduler#1968). It"
            f" affects other gangs than torchrun jobs. It must be {fixed} or newer, or have the argument"
            " --default-staleness-grace-period=-1s"
        )
    return ""
