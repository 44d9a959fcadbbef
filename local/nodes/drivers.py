"""Keep the API objects of the CSI drivers that a cluster has as EKS add-ons. `Drivers.keep` is the entry point.

On EKS a driver's pod registers with the kubelet, which writes the node's CSINode. Then it removes its startup taint
(kubernetes-sigs/aws-ebs-csi-driver and aws-fsx-csi-driver, pkg/driver/node.go). The drivers' pods do not exist here:
`pod_volumes` mounts volumes, and `provisioner` creates them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, Final

from local.nodes.api import MERGE, UNREACHABLE, Api, ApiError, Informer, Object
from trainyard.k8s import names

log = logging.getLogger(__name__)

NODES: Final = "/api/v1/nodes"
CSI_NODES: Final = "/apis/storage.k8s.io/v1/csinodes"
CSI_DRIVERS: Final = "/apis/storage.k8s.io/v1/csidrivers"
ACCOUNTS: Final = "/api/v1/namespaces/kube-system/serviceaccounts"
ROLE_ANNOTATION: Final = "eks.amazonaws.com/role-arn"
LOOK_SECONDS: Final = 0.5


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


def of(instance: Object | None) -> dict[str, Driver]:
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
        self._installed: dict[str, str] | None = None

    async def keep(self) -> None:
        """Reconcile every LOOK_SECONDS until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.settle()
            except (*UNREACHABLE, ApiError) as error:
                log.info("CSI drivers not brought up to date: %s", error)

    async def settle(self) -> None:
        """Reconcile once."""
        found = next((i.get("addons") or {} for i in self.instances.values()), None)
        if found is not None:
            await self._install({name: role for name, role in found.items() if name in DRIVERS})
        known = list(self.nodes.objects.values())
        for item in known:
            instance = self.instances.get(item["metadata"]["name"])
            if instance is not None:
                await self._show(item, instance)
                await self._let_in(item, of(instance))
        for name in self._shown.keys() - {item["metadata"]["name"] for item in known}:
            del self._shown[name]

    async def _install(self, addons: dict[str, str]) -> None:
        """Create or delete the API objects of the add-ons."""
        if addons == self._installed:
            return
        for addon, driver in DRIVERS.items():
            if addon not in addons:
                if addon not in (self._installed or {}):
                    continue
                await self._absent(f"{CSI_DRIVERS}/{driver.name}")
                await self._absent(f"{ACCOUNTS}/{driver.account}")
                continue
            await self._present(
                CSI_DRIVERS,
                driver.name,
                {"spec": {"attachRequired": driver.attach, "podInfoOnMount": False}},
            )
            annotations = {ROLE_ANNOTATION: addons[addon]} if addons[addon] else {ROLE_ANNOTATION: None}
            await self._present(ACCOUNTS, driver.account, {"metadata": {"annotations": annotations}})
        self._installed = addons

    async def _present(self, path: str, name: str, body: dict[str, Any]) -> None:
        try:
            await self.api.create(path, {**body, "metadata": {**body.get("metadata", {}), "name": name}})
        except ApiError as error:
            if error.status != 409:
                raise
            await self.api.patch(f"{path}/{name}", body, MERGE)

    async def _absent(self, path: str) -> None:
        try:
            await self.api.delete(path)
        except ApiError as error:
            if error.status != 404:
                raise

    async def _show(self, item: Object, instance: Object) -> None:
        """Write the node's CSINode, from which the scheduler reads how many volumes fit."""
        name, uid = item["metadata"]["name"], item["metadata"]["uid"]
        drivers = of(instance)
        wanted = (uid, tuple(sorted(drivers)))
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
        owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
        body = {"metadata": {"ownerReferences": [owner]}, "spec": {"drivers": entries}}
        await self._present(CSI_NODES, name, body)
        self._shown[name] = wanted

    async def _let_in(self, item: Object, drivers: dict[str, Driver]) -> None:
        """Remove the startup taints of the drivers that run."""
        gone = {driver.taint for driver in drivers.values()}
        taints = item["spec"].get("taints") or []
        left = [taint for taint in taints if taint["key"] not in gone]
        if len(left) == len(taints):
            return
        # With the resourceVersion that was read, so that a taint added meanwhile is not lost.
        version = {"resourceVersion": item["metadata"]["resourceVersion"]}
        path = f"{NODES}/{item['metadata']['name']}"
        try:
            await self.api.patch(path, {"metadata": version, "spec": {"taints": left}}, MERGE)
        except ApiError as error:
            if error.status not in (404, 409):
                raise
