"""The CSI drivers that a cluster has as EKS add-ons: their API objects (`Drivers`) and their volumes (`Provisioner`).

On EKS a driver's pod registers with the kubelet, which writes the node's CSINode. Then it removes its startup taint
(kubernetes-sigs/aws-ebs-csi-driver and aws-fsx-csi-driver, pkg/driver/node.go). The drivers' pods do not exist here:
`volumes` mounts volumes.

A provisioned volume is a volume in EC2, its PersistentVolume, and a directory. The EC2 calls use the role of the
driver's service account, so they have exactly the permissions of the stack. Protocol:
https://github.com/kubernetes-csi/external-provisioner and sig-storage-lib-external-provisioner.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from local.nodes.api import (
    MERGE,
    NODES,
    UNREACHABLE,
    Api,
    ApiError,
    Informer,
    Object,
    ignore_status,
    key_of,
    owner_reference,
    post_event,
)
from local.nodes.context import Settings
from trainyard.k8s import names
from trainyard.k8s.quantity import parse

log = logging.getLogger(__name__)

CSI_NODES: Final = "/apis/storage.k8s.io/v1/csinodes"
CSI_DRIVERS: Final = "/apis/storage.k8s.io/v1/csidrivers"
ACCOUNTS: Final = "/api/v1/namespaces/kube-system/serviceaccounts"
ROLE_ANNOTATION: Final = "eks.amazonaws.com/role-arn"
RECONCILE_SECONDS: Final = 0.5
CLAIMS: Final = "/api/v1/persistentvolumeclaims"
VOLUMES: Final = "/api/v1/persistentvolumes"
CLASSES: Final = "/apis/storage.k8s.io/v1/storageclasses"
PROVISIONER: Final = "volume.kubernetes.io/storage-provisioner"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
RETRY_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class Driver:
    """A CSI driver.

    `account` is its controller's service account, `attach` says whether volumes are attached, and `limit` is the
    maximum number of volumes per node.
    """

    name: str
    account: str
    attach: bool
    topology: tuple[str, ...] = ()
    limit: int | None = None

    @property
    def taint(self) -> str:
        """The key of its startup taint."""
        return f"{self.name}/agent-not-ready"


# A Nitro instance has at most 28 attachments, including its network interface and its root volume
# (https://docs.aws.amazon.com/ebs/latest/userguide/volume_limits.html).
DRIVERS: Final = {
    "aws-ebs-csi-driver": Driver(
        name="ebs.csi.aws.com",
        account="ebs-csi-controller-sa",
        attach=True,
        topology=("kubernetes.io/os", "topology.ebs.csi.aws.com/zone", names.LABEL_ZONE),
        limit=26,
    ),
    "aws-fsx-csi-driver": Driver(name="fsx.csi.aws.com", account="fsx-csi-controller-sa", attach=False),
}
ADDON: Final = "aws-ebs-csi-driver"
DRIVER: Final = DRIVERS[ADDON]


def drivers_of(instance: Object | None) -> dict[str, Driver]:
    """Return the drivers of the cluster that an instance belongs to, by name."""
    addons = (instance or {}).get("addons") or {}
    return {driver.name: driver for addon, driver in DRIVERS.items() if addon in addons}


class Drivers:
    """Keeps CSINodes, CSIDrivers and service accounts in step with the add-ons, and removes startup taints."""

    def __init__(self, api: Api, instances: dict[str, Object]) -> None:
        self.api = api
        self.instances = instances
        self.nodes = Informer(api, NODES, lambda *_: None)
        self._shown: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._installed: dict[str, str] = {}

    async def run(self) -> None:
        """Reconcile every RECONCILE_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            await self.settle()

    async def settle(self) -> None:
        found = next((i.get("addons") or {} for i in self.instances.values()), None)
        if found is not None:
            await self._install({name: role for name, role in found.items() if name in DRIVERS})
        known = list(self.nodes.objects.values())
        for item in known:
            instance = self.instances.get(item["metadata"]["name"])
            if instance is not None:
                await self._show(item, instance)
                await self._remove_startup_taints(item, drivers_of(instance))
        for name in self._shown.keys() - {item["metadata"]["name"] for item in known}:
            del self._shown[name]

    async def _install(self, addons: dict[str, str]) -> None:
        """Create or delete the API objects of the add-ons."""
        if addons == self._installed:
            return
        for addon, driver in DRIVERS.items():
            if addon in addons:
                spec = {"attachRequired": driver.attach, "podInfoOnMount": False}
                await self._present(CSI_DRIVERS, driver.name, {"spec": spec})
                annotations = {ROLE_ANNOTATION: addons[addon] or None}
                await self._present(ACCOUNTS, driver.account, {"metadata": {"annotations": annotations}})
            elif addon in self._installed:
                for path in (f"{CSI_DRIVERS}/{driver.name}", f"{ACCOUNTS}/{driver.account}"):
                    with ignore_status(404):
                        await self.api.delete(path)
        self._installed = addons

    async def _present(self, path: str, name: str, body: dict[str, Any]) -> None:
        try:
            await self.api.create(path, {**body, "metadata": {**body.get("metadata", {}), "name": name}})
        except ApiError as error:
            if error.status != 409:
                raise
            await self.api.patch(f"{path}/{name}", body, MERGE)

    async def _show(self, item: Object, instance: Object) -> None:
        """Write the node's CSINode, from which the scheduler reads how many volumes fit."""
        name = item["metadata"]["name"]
        drivers = drivers_of(instance)
        wanted = (item["metadata"]["uid"], tuple(sorted(drivers)))
        if self._shown.get(name) == wanted:
            return
        entries = [
            {
                "name": driver.name,
                "nodeID": instance["instanceId"],
                "topologyKeys": list(driver.topology),
                **({"allocatable": {"count": driver.limit}} if driver.limit else {}),
            }
            for driver in drivers.values()
        ]
        body = {"metadata": {"ownerReferences": [owner_reference(item)]}, "spec": {"drivers": entries}}
        await self._present(CSI_NODES, name, body)
        self._shown[name] = wanted

    async def _remove_startup_taints(self, item: Object, drivers: dict[str, Driver]) -> None:
        gone = {driver.taint for driver in drivers.values()}
        taints = item["spec"].get("taints") or []
        left = [taint for taint in taints if taint["key"] not in gone]
        if len(left) == len(taints):
            return
        # With the resourceVersion that was read, so that a taint added meanwhile is not lost.
        version = {"resourceVersion": item["metadata"]["resourceVersion"]}
        path = f"{NODES}/{item['metadata']['name']}"
        with ignore_status(404, 409):
            await self.api.patch(path, {"metadata": version, "spec": {"taints": left}}, MERGE)


class Refused(Exception):
    """A volume can't be created or deleted (yet). The message has the reason."""


@contextmanager
def _aws_errors() -> Iterator[None]:
    """Raise an error of AWS, or of the connection to it, as Refused."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise Refused(str(error)) from None


class Provisioner:
    """Creates volumes for claims, and deletes those whose claims are gone."""

    def __init__(self, settings: Settings, api: Api, instances: dict[str, Object]) -> None:
        self.settings = settings
        self.api = api
        self.instances = instances
        self.claims = Informer(api, CLAIMS, lambda *_: None)
        self.volumes = Informer(api, VOLUMES, lambda *_: None)
        self._rest: dict[str, float] = {}
        self._reported: dict[str, str] = {}

    async def run(self) -> None:
        """Reconcile every RECONCILE_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(RECONCILE_SECONDS)
            if not any(ADDON in (i.get("addons") or {}) for i in self.instances.values()):
                continue
            for claim in list(self.claims.objects.values()):
                if wants_volume(claim):
                    await self._try(claim, self._make)
            for volume in list(self.volumes.objects.values()):
                if is_left(volume):
                    await self._try(volume, self._remove)

    async def _try(self, item: Object, work: Callable[[Object], Awaitable[None]]) -> None:
        uid = item["metadata"]["uid"]
        if time.monotonic() < self._rest.get(uid, 0):
            return
        # Also after success, because the informers show the result a moment later.
        self._rest[uid] = time.monotonic() + RETRY_SECONDS
        try:
            await work(item)
        except (*UNREACHABLE, ApiError, Refused) as error:
            log.info("volume for %s: %s", "/".join(key_of(item)), error)
            if self._reported.get(uid) != str(error):
                self._reported[uid] = str(error)
                await self._report(item, str(error))

    async def _make(self, claim: Object) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        chosen = await self.api.get(f"{CLASSES}/{spec['storageClassName']}")
        zone = self._zone(metadata["annotations"].get(SELECTED_NODE))
        name, size = f"pvc-{metadata['uid']}", gibibytes(spec)
        ec2 = await self._ec2()
        volume_id = await asyncio.to_thread(
            make_disk, ec2, chosen.get("parameters") or {}, name, size, zone, self._tags(claim, name)
        )
        reference = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        term = {"matchExpressions": [{"key": names.LABEL_ZONE, "operator": "In", "values": [zone]}]}
        volume = {
            "metadata": {"name": name, "annotations": {PROVISIONED_BY: DRIVER.name}},
            "spec": {
                "capacity": {"storage": f"{size}Gi"},
                "accessModes": spec["accessModes"],
                "persistentVolumeReclaimPolicy": chosen.get("reclaimPolicy", "Delete"),
                "storageClassName": spec["storageClassName"],
                "volumeMode": spec.get("volumeMode", "Filesystem"),
                "claimRef": reference,
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
                "csi": {"driver": DRIVER.name, "fsType": "ext4", "volumeHandle": volume_id},
            },
        }
        with ignore_status(409):
            await self.api.create(VOLUMES, volume)

    async def _remove(self, volume: Object) -> None:
        name, handle = volume["metadata"]["name"], volume["spec"]["csi"]["volumeHandle"]
        await asyncio.to_thread(delete_disk, await self._ec2(), handle)
        shutil.rmtree(directory_of(self.settings, volume), ignore_errors=True)
        with ignore_status(404):
            await self.api.delete(f"{VOLUMES}/{name}")

    def _zone(self, node: str | None) -> str:
        """Return the zone of the node, or any zone of the cluster if the storage class waits for no node."""
        if node is not None and node not in self.instances:
            raise Refused(f"node {node!r} not found")
        zones = sorted(i["zone"] for name, i in self.instances.items() if node in (None, name))
        return str(zones[0])

    def _tags(self, claim: Object, name: str) -> dict[str, str]:
        """Return the driver's own tags, and the extra tags of the add-on's configuration."""
        metadata = claim["metadata"]
        tags = (each.get("volumeTags") for each in self.instances.values())
        extra: dict[str, str] = next(filter(None, tags), {})
        return {
            **extra,
            "CSIVolumeName": name,
            "ebs.csi.aws.com/cluster": "true",
            "kubernetes.io/created-for/pv/name": name,
            "kubernetes.io/created-for/pvc/name": metadata["name"],
            "kubernetes.io/created-for/pvc/namespace": metadata["namespace"],
        }

    async def _ec2(self) -> Any:
        """Return an EC2 client with the role of the driver's service account."""
        addons = [instance.get("addons") or {} for instance in self.instances.values()]
        role = next((each[ADDON] for each in addons if ADDON in each), "")
        if not role:
            raise Refused("the driver has no AWS credentials: add-on aws-ebs-csi-driver was given no role")
        body = {"spec": {"audiences": ["sts.amazonaws.com"], "expirationSeconds": 3600}}
        answer = await self.api.create(f"{ACCOUNTS}/{DRIVER.account}/token", body)
        return await asyncio.to_thread(client_as, self.settings, role, answer["status"]["token"])

    async def _report(self, item: Object, message: str) -> None:
        """Post an event about a claim or volume, as the provisioner does."""
        kind, reason = "PersistentVolume", "VolumeFailedDelete"
        if "namespace" in item["metadata"]:
            kind, reason = "PersistentVolumeClaim", "ProvisioningFailed"
        source = {"component": DRIVER.name}
        event = {"type": "Warning", "reason": reason, "message": message, "source": source}
        await post_event(self.api, kind, item, event)


def wants_volume(claim: Object) -> bool:
    """Return whether a claim waits for a volume of this driver, and no longer for its pod's node."""
    annotations = claim["metadata"].get("annotations") or {}
    return (
        annotations.get(PROVISIONER) == DRIVER.name
        and not claim["spec"].get("volumeName")
        and "deletionTimestamp" not in claim["metadata"]
    )


def is_left(volume: Object) -> bool:
    """Return whether a volume of this driver has lost its claim and must be deleted."""
    annotations = volume["metadata"].get("annotations") or {}
    return (
        annotations.get(PROVISIONED_BY) == DRIVER.name
        and volume["spec"].get("persistentVolumeReclaimPolicy") == "Delete"
        and (volume.get("status") or {}).get("phase") == "Released"
        and "deletionTimestamp" not in volume["metadata"]
    )


def gibibytes(spec: Object) -> int:
    """Return the requested size of a claim in whole GiB, at least one."""
    return max(1, math.ceil(parse(spec["resources"]["requests"]["storage"]) / 2**30))


def directory_of(settings: Settings, volume: Object) -> Any:
    """Return the directory of a volume. All clusters of the home share the directory of a file system."""
    csi = volume["spec"].get("csi") or {}
    if csi.get("driver") == "fsx.csi.aws.com":
        return settings.home.volumes / "fsx" / csi["volumeHandle"]
    return settings.home.volumes / settings.cluster / volume["metadata"]["name"]


@_aws_errors()
def client_as(settings: Settings, role: str, token: str) -> Any:
    """Return an EC2 client with the credentials of a web identity.

    Raises:
        Refused: STS returns no credentials.
    """
    from botocore.config import Config
    from botocore.session import Session

    config = Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=30)
    common = {"region_name": settings.region, "endpoint_url": settings.aws_endpoint, "config": config}
    session = Session()
    session.set_credentials("none", "none")  # AssumeRoleWithWebIdentity is not signed
    given = session.create_client("sts", **common).assume_role_with_web_identity(
        RoleArn=role, RoleSessionName="ebs-csi", WebIdentityToken=token
    )["Credentials"]
    session.set_credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
    return session.create_client("ec2", **common)


@_aws_errors()
def make_disk(
    ec2: Any, parameters: dict[str, str], name: str, size: int, zone: str, tags: dict[str, str]
) -> str:
    """Find or create the EC2 volume of this name, and return its id.

    Raises:
        Refused: EC2 refused a request.
    """
    found = ec2.describe_volumes(Filters=[{"Name": "tag:CSIVolumeName", "Values": [name]}])["Volumes"]
    if found:
        return str(found[0]["VolumeId"])
    more = {"KmsKeyId": parameters["kmsKeyId"]} if parameters.get("kmsKeyId") else {}
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    made = ec2.create_volume(
        AvailabilityZone=zone,
        Size=size,
        VolumeType=parameters.get("type", "gp3"),
        Encrypted=parameters.get("encrypted", "false").lower() == "true",
        TagSpecifications=[{"ResourceType": "volume", "Tags": pairs}],
        **more,
    )
    return str(made["VolumeId"])


@_aws_errors()
def delete_disk(ec2: Any, volume_id: str) -> None:
    """Delete an EC2 volume. A missing one is no error.

    Raises:
        Refused: EC2 refused the request.
    """
    from botocore.exceptions import ClientError

    try:
        ec2.delete_volume(VolumeId=volume_id)
    except ClientError as error:
        if error.response["Error"]["Code"] != "InvalidVolume.NotFound":
            raise
