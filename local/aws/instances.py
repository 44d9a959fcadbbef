"""`GET /_trainyard/instances`: the EC2 instances of a cluster, with the resources of their type."""

from __future__ import annotations

import hashlib
import json
import time
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.iam.models import iam_backends

from local.aws import events, faults, prices, serial
from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.ec2_utils import capacity_type, tags_of
from local.aws.eks.addons import AGENT, dcgm_tolerations
from local.aws.eks.store import Cluster, store

# Changes of tags cause no event. A waiting client sees them after this time.
POLL_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 55.0
SHOWN_STATES = ("pending", "running", "stopping", "shutting-down")


def listing(cluster_name: str) -> list[dict[str, Any]]:
    """Return a cluster's running instances, oldest first: Karpenter's by their tags, and those of node groups."""
    with serial.lock:
        cluster = store.by_name(cluster_name)
        found = [
            _describe(instance, cluster)
            for backend in ec2_backends[ACCOUNT_ID].values()
            for instance in backend.all_instances()
            # An instance that ends at launch never boots.
            if instance.state in SHOWN_STATES
            and not hasattr(instance, "launch_failure")
            and tags_of(instance).get(f"kubernetes.io/cluster/{cluster_name}") == "owned"
        ]
    return sorted(found, key=lambda i: (i["launchTime"], i["instanceId"]))


def wait(cluster_name: str, after: str | None, seconds: float) -> tuple[str, list[dict[str, Any]]]:
    """Return the listing and its tag when the tag differs from `after`, or after the given number of seconds."""
    end = time.monotonic() + min(seconds, LONGEST_WAIT_SECONDS)
    while True:
        items = listing(cluster_name)
        tag = hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()[:16]
        left = end - time.monotonic()
        if tag != after or left <= 0:
            return tag, items
        events.wait_for_change(min(POLL_SECONDS, left))


def _describe(instance: Any, cluster: Cluster | None) -> dict[str, Any]:
    facts = INSTANCE_TYPES.get(instance.instance_type, {})
    gpus = facts.get("GpuInfo", {}).get("Gpus", [])
    neuron = facts.get("NeuronInfo", {}).get("NeuronDevices", [])
    role = _role(instance)
    return {
        "instanceId": instance.id,
        "instanceType": instance.instance_type,
        "zone": instance.placement.zone,
        "privateIp": instance.private_ip,
        "privateDns": instance.private_dns_name,
        "state": instance.state,
        "launchTime": instance.launch_time.timestamp(),
        "tags": tags_of(instance),
        "nodegroup": _node_group(instance, cluster),
        "nodeRole": role,
        "joinError": _join_error(role, cluster),
        "vcpus": facts.get("VCpuInfo", {}).get("DefaultVCpus", 0),
        "memoryMiB": facts.get("MemoryInfo", {}).get("SizeInMiB", 0),
        "gpus": sum(g.get("Count", 0) for g in gpus),
        "gpuName": gpus[0].get("Name") if gpus else None,
        "gpuMemoryMiB": gpus[0].get("MemoryInfo", {}).get("SizeInMiB", 0) if gpus else 0,
        "neuronDevices": sum(n.get("Count", 0) for n in neuron),
        # Only the interfaces of the launch count: a type that supports EFA has no EFA interface by default.
        "efaInterfaces": getattr(instance, "efa_interfaces", 0),
        "nvmeGiB": facts.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        "capacityType": capacity_type(instance),
        "capacityReservationId": getattr(instance, "capacity_reservation_id", None),
        "pricePerHour": prices.hourly(instance.instance_type),
        "addons": _addons(cluster),
        "volumeTags": _volume_tags(cluster),
        "conditions": _conditions(instance, cluster, bool(gpus or neuron)),
        "dcgmTolerations": dcgm_tolerations(cluster)
        if gpus and cluster and AGENT in cluster.addons
        else None,
    }


def _conditions(instance: Any, cluster: Cluster | None, accelerated: bool) -> list[dict[str, Any]]:
    """Return what EKS's node monitoring agent reports of an instance: nothing if the cluster lacks the add-on."""
    if cluster is None or AGENT not in cluster.addons:
        return []
    zone = instance.placement.zone or ""
    wrong = faults.plan().conditions(instance.id, instance.instance_type, zone, capacity_type(instance))
    found = []
    for kind in faults.CONDITIONS:
        fault = wrong.get(kind)
        if kind == "AcceleratedHardwareReady" and not accelerated:
            continue
        found.append(
            {
                "type": kind,
                "status": "True" if fault is None else "False",
                "reason": f"{kind.removesuffix('Ready')}IsReady" if fault is None else fault.code,
                "message": f"Monitoring for {kind} is active" if fault is None else fault.text("", ""),
                "since": instance.launch_time.timestamp() if fault is None else fault.since,
            }
        )
    return found


def _addons(cluster: Cluster | None) -> dict[str, str]:
    """Return the cluster's add-ons by name, each with the role of its service account ("" without one)."""
    documents = cluster.addons if cluster else {}
    return {name: document.get("serviceAccountRoleArn") or "" for name, document in sorted(documents.items())}


def _volume_tags(cluster: Cluster | None) -> dict[str, str]:
    """Return the tags that the EBS CSI driver adds to its volumes."""
    document = (cluster.addons if cluster else {}).get("aws-ebs-csi-driver") or {}
    values = json.loads(document.get("configurationValues") or "{}")
    tags: dict[str, str] = (values.get("controller") or {}).get("extraVolumeTags") or {}
    return tags


def _node_group(instance: Any, cluster: Cluster | None) -> dict[str, Any] | None:
    for group in (cluster.node_groups if cluster else {}).values():
        if instance.id in group.instance_ids:
            document = group.document
            return {
                "name": document["nodegroupName"],
                "labels": document["labels"],
                "taints": document["taints"],
            }
    return None


def _role(instance: Any) -> str | None:
    """Return the ARN of the instance's role: that of its instance profile, or of its node group."""
    if getattr(instance, "node_role", None):
        return str(instance.node_role)
    arn = (instance.iam_instance_profile or {}).get("Arn")
    for profile in list(iam_backends[ACCOUNT_ID][PARTITION].instance_profiles.values()):
        if profile.arn == arn and profile.roles:
            return str(profile.roles[0].arn)
    return None


def _join_error(role: str | None, cluster: Cluster | None) -> str | None:
    """Return why EKS refuses the instance's kubelet; None if it accepts it."""
    if cluster is None:
        return None
    if role is None:
        return "the instance has no instance profile with a role"
    entry = cluster.entries.get(role)
    if entry is None:
        return f"{role} has no access entry in cluster {cluster.name}"
    if entry.document["type"] not in ("EC2_LINUX", "EC2"):
        return f"the access entry of {role} is of type {entry.document['type']}, not EC2_LINUX"
    return None
