"""The lifecycle of a cluster: its control plane, its security group and its network interfaces."""

from __future__ import annotations

import http.client
import logging
import secrets
import threading
from typing import Any
from urllib.parse import quote

from moto.core.exceptions import ServiceException
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends

from local.aws import identity, interfaces, keys, log_groups, serial
from local.aws.account import ACCOUNT_ID
from local.aws.eks import versions
from local.aws.eks.access import bootstrap_creator
from local.aws.eks.store import Cluster, Document, arn, in_use, invalid, store
from local.aws.errors import ApiError
from local.cluster import control

log = logging.getLogger(__name__)

# A control plane is ready in about five seconds, or later on a host with other load.
SUPERVISOR_SECONDS = 300.0
LOG_TYPES = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
# What a call of UpdateClusterConfig changes -> the type of the update.
UPDATES = {
    "resourcesVpcConfig": "EndpointAccessUpdate",
    "logging": "LoggingUpdate",
    "accessConfig": "AccessConfigUpdate",
    "upgradePolicy": "UpgradePolicyUpdate",
    "deletionProtection": "DeletionProtectionUpdate",
}


def create(region: str, params: Document, creator_arn: str) -> Cluster:
    """Register a cluster with status CREATING and start its control plane in a thread.

    Raises:
        ResourceInUseException: The name is in use.
        InvalidParameterException: A subnet, the role or the version is not valid.
    """
    name = params["name"]
    if (region, name) in store.clusters:
        raise in_use(f"Cluster already exists with name: {name}")
    version = params.get("version") or versions.DEFAULT
    if version not in versions.offered():
        raise invalid(
            f"unsupported Kubernetes version {version}; supported are {', '.join(versions.offered())}"
        )
    require_role(params.get("roleArn", ""))
    for each in params.get("encryptionConfig") or []:
        error = keys.use_error(region, (each.get("provider") or {}).get("keyArn"))
        if error is not None:
            raise invalid(error.message)
    access = {
        "authenticationMode": "CONFIG_MAP",
        "bootstrapClusterCreatorAdminPermissions": True,
        **_members(params.get("accessConfig")),
    }
    vpc, interface_ids = _network(region, name, params.get("resourcesVpcConfig") or {})
    network = {
        "ipFamily": "ipv4",
        "serviceIpv4Cidr": "10.100.0.0/16",
        "elasticLoadBalancing": {"enabled": False},
        **_members(params.get("kubernetesNetworkConfig")),
    }
    document: Document = {
        "name": name,
        "arn": arn(region, "cluster", name),
        "createdAt": utcnow(),
        "version": version,
        "roleArn": params["roleArn"],
        "resourcesVpcConfig": vpc,
        "kubernetesNetworkConfig": network,
        "logging": _logging([], (params.get("logging") or {}).get("clusterLogging") or []),
        "identity": {
            "oidc": {"issuer": f"https://oidc.eks.{region}.amazonaws.com/id/{secrets.token_hex(16).upper()}"}
        },
        "status": "CREATING",
        "certificateAuthority": {},
        "platformVersion": "eks.1",
        "tags": dict(params.get("tags") or {}),
        "encryptionConfig": params.get("encryptionConfig") or [],
        "health": {"issues": []},
        "accessConfig": access,
        "upgradePolicy": params.get("upgradePolicy") or {"supportType": "EXTENDED"},
        "deletionProtection": bool(params.get("deletionProtection")),
    }
    cluster = Cluster(document, region, interface_ids=interface_ids)
    store.clusters[(region, name)] = cluster
    if access["bootstrapClusterCreatorAdminPermissions"]:
        bootstrap_creator(cluster, creator_arn)
    threading.Thread(target=_start, args=(cluster,), name=f"create-{name}", daemon=True).start()
    return cluster


def _start(cluster: Cluster) -> None:
    document = cluster.document
    facts = {key: document[key] for key in ("name", "version", "arn")}
    answer = _call_supervisor(
        cluster, "POST", "/clusters", {**facts, "issuer": cluster.issuer, "region": cluster.region}
    )
    if answer is None:
        return
    with serial.lock:  # DescribeCluster must not answer ACTIVE without the endpoint
        document["endpoint"] = answer["endpoint"]
        document["certificateAuthority"] = {"data": answer["certificateAuthority"]}
        cluster.jwks = answer["jwks"]
        document["status"] = "ACTIVE"


def _call_supervisor(
    cluster: Cluster, method: str, path: str, body: Document | None = None
) -> Document | None:
    """Call the supervisor (`local.cluster.control`). It answers when the control plane is ready, or has stopped.

    Returns:
        The answer; None after an error, which sets the cluster's status to FAILED.
    """
    try:
        return control.request(store.supervisor_socket, method, path, body, SUPERVISOR_SECONDS)
    except control.ControlError as error:
        if error.status == 404 and method == "DELETE":  # an unknown cluster counts as stopped
            return {}
        reason = f"{method} {path}: {error.status} {error}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"{method} {path} on {store.supervisor_socket}: {error}"
    log.error("cluster %s: %s", cluster.name, reason)
    issue = {"code": "InternalFailure", "message": reason, "resourceIds": []}
    with serial.lock:
        cluster.document |= {"health": {"issues": [issue]}, "status": "FAILED"}
    return None


def delete(region: str, name: str) -> Cluster:
    """Start the deletion of a cluster. It is gone when its control plane has stopped.

    Raises:
        ResourceInUseException: It has node groups or is being created.
    """
    cluster = store.cluster(region, name)
    if cluster.node_groups:
        raise in_use("Cluster has nodegroups attached")
    if cluster.document["status"] == "CREATING":
        raise in_use(f"Cluster {name} has an operation in progress: CREATING")
    if cluster.document.get("deletionProtection"):
        raise ApiError("InvalidRequestException", f"Cluster {name} has deletion protection enabled")
    if cluster.document["status"] != "DELETING":
        cluster.document["status"] = "DELETING"
        threading.Thread(target=_stop, args=(cluster,), name=f"delete-{name}", daemon=True).start()
    return cluster


def _stop(cluster: Cluster) -> None:
    if _call_supervisor(cluster, "DELETE", f"/clusters/{quote(cluster.name, safe='')}") is None:
        return
    with serial.lock:
        _remove(cluster)


def _remove(cluster: Cluster) -> None:
    """Remove a cluster without a control plane, with its interfaces and its security group."""
    backend = ec2_backends[ACCOUNT_ID][cluster.region]
    interfaces.remove(backend, cluster.interface_ids)
    group = cluster.document["resourcesVpcConfig"]["clusterSecurityGroupId"]
    try:
        backend.delete_security_group(group_id=group)
    except ServiceException as error:
        # As on AWS, the group stays if something still uses it. Then it blocks the deletion of the VPC.
        log.warning("cluster %s: its security group %s stays: %s", cluster.name, group, error)
    if any(entry["enabled"] for entry in cluster.document["logging"]["clusterLogging"]):
        log_groups.deliver_late(cluster.region, cluster.name)
    store.clusters.pop((cluster.region, cluster.name), None)


def update_config(cluster: Cluster, params: Document) -> Document:
    """Answer UpdateClusterConfig, and return the update's document. A call changes one thing."""
    document = cluster.document
    kind = next(each for each in UPDATES if params.get(each) is not None)
    change = params[kind]
    if kind == "logging":
        document["logging"] = _logging(document["logging"]["clusterLogging"], change["clusterLogging"])
    elif isinstance(change, dict):
        document[kind].update(_members(change))
    else:
        document[kind] = change
    return cluster.record_update(UPDATES[kind])


def update_version(cluster: Cluster, version: str) -> Document:
    """Answer UpdateClusterVersion: only the next minor version. The build of the control plane stays."""
    old = cluster.document["version"]
    if version not in versions.offered() or int(version.split(".")[1]) != int(old.split(".")[1]) + 1:
        raise invalid(f"Unsupported Kubernetes minor version update from {old} to {version}")
    cluster.document["version"] = version
    return cluster.record_update("VersionUpdate")


def require_role(role_arn: str) -> None:
    """Raise InvalidParameterException if the role does not exist."""
    if identity.role_for(role_arn) is None:
        raise invalid(
            f"The role {role_arn!r} does not exist. It must be the ARN of an IAM role of this account"
        )


def _logging(old: list[Document], changes: list[Document]) -> Document:
    enabled = {t for entry in old if entry.get("enabled") for t in entry.get("types", [])}
    for entry in changes:
        types = set(entry.get("types", []))
        enabled = enabled | types if entry.get("enabled") else enabled - types
    entries = []
    for flag, kinds in ((True, enabled), (False, set(LOG_TYPES) - enabled)):
        if kinds:
            entries.append({"types": [k for k in LOG_TYPES if k in kinds], "enabled": flag})
    return {"clusterLogging": entries}


def _network(region: str, name: str, config: Document) -> tuple[Document, list[str]]:
    """Create the security group and the control plane's interfaces, and return the VPC configuration."""
    backend = ec2_backends[ACCOUNT_ID][region]
    subnets = [_subnet(backend, subnet_id) for subnet_id in config.get("subnetIds") or []]
    if len({s.availability_zone for s in subnets}) < 2:
        raise invalid("Subnets specified must be in at least two different AZs")
    vpc_id = subnets[0].vpc_id
    group = _security_group(backend, name, vpc_id)
    groups = [group.id, *(config.get("securityGroupIds") or [])]
    # EKS creates interfaces in two of the subnets. They prevent the deletion of subnets and groups of a cluster.
    zones: dict[str, Any] = {s.availability_zone: s for s in subnets}
    made = [
        interfaces.add(backend, each, groups, f"Amazon EKS {name}").id for each in list(zones.values())[:2]
    ]
    document = {
        "securityGroupIds": [],
        "endpointPublicAccess": True,
        "endpointPrivateAccess": False,
        **_members(config),
        "publicAccessCidrs": config.get("publicAccessCidrs") or ["0.0.0.0/0"],
        "clusterSecurityGroupId": group.id,
        "vpcId": vpc_id,
    }
    return document, made


def _members(values: Document | None) -> Document:
    """Return the members of a request's structure that have a value."""
    return {key: value for key, value in (values or {}).items() if value is not None}


def _subnet(backend: Any, subnet_id: str) -> Any:
    try:
        return backend.get_subnet(subnet_id)
    except ServiceException:
        raise invalid(f"The subnet ID '{subnet_id}' does not exist") from None


def _security_group(backend: Any, name: str, vpc_id: str) -> Any:
    group_name = f"eks-cluster-sg-{name}-{secrets.randbelow(10**10)}"
    tags = {"Name": group_name, f"kubernetes.io/cluster/{name}": "owned", "aws:eks:cluster-name": name}
    text = "EKS created security group applied to the control plane and to managed workloads."
    group = backend.create_security_group(group_name, text, vpc_id=vpc_id, tags=tags)
    backend.authorize_security_group_ingress(
        group_name_or_id=group.id,
        ip_protocol="-1",
        from_port=None,
        to_port=None,
        ip_ranges=[],
        source_groups=[{"GroupId": group.id, "UserId": ACCOUNT_ID}],
    )
    return group
