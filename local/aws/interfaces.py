"""Network interfaces: one in use can't be deleted, and a rule can make VPC CNI leave one behind.

With the rule `{"code": "NetworkInterfaceLeft", "instanceType": ..., "zone": ..., "times": n}` in the fault plan, an
instance of a cluster that ends leaves an `available` interface in its subnet and groups. Its tags are those of the CNI
(aws/amazon-vpc-cni-k8s, pkg/awsutils/awsutils.go).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moto.core.responses import EmptyResult
from moto.core.utils import utcnow
from moto.ec2.models.instances import Instance
from moto.ec2.responses.elastic_network_interfaces import ElasticNetworkInterfaces

from local.aws import faults
from local.aws.ec2_utils import capacity_type, tags_of
from local.aws.errors import ApiError


def add(backend: Any, subnet: Any, group_ids: list[str], description: str) -> Any:
    """Create an interface that a service uses, and return it."""
    interface = backend.create_network_interface(subnet, None, group_ids=group_ids, description=description)
    interface.requester_managed, interface.status = True, "in-use"
    return interface


def remove(backend: Any, interface_ids: Iterable[str]) -> None:
    """Delete the interfaces that are still there."""
    for interface_id in list(interface_ids):
        if interface_id in backend.enis:
            backend.enis[interface_id].delete()


def leave_behind(instance: Any, cluster: str, subnet_id: str, group_ids: list[str]) -> Any:
    """Create an interface as the CNI does for an instance, without attaching it."""
    return instance.ec2_backend.create_network_interface(
        subnet_id,
        None,
        group_ids=group_ids,
        description=f"aws-K8S-{instance.id}",
        tags={
            "cluster.k8s.amazonaws.com/name": cluster,
            "eks:eni:owner": "amazon-vpc-cni",
            "node.k8s.amazonaws.com/createdAt": utcnow().strftime("%Y-%m-%dT%H:%M:%SZ"),
            "node.k8s.amazonaws.com/instance_id": instance.id,
        },
    )


def install() -> None:
    """Wrap the deletion of an interface and the end of an instance."""

    def delete_network_interface(self: Any) -> EmptyResult:
        interface_id = self._get_param("NetworkInterfaceId")
        self.error_on_dryrun()
        interface = self.ec2_backend.get_network_interface(interface_id)
        if interface.status == "in-use":
            raise ApiError(
                "InvalidParameterValue", f"Network interface '{interface_id}' is currently in use."
            )
        interface.delete()  # this also releases its address; moto's own call would not
        return EmptyResult()

    ElasticNetworkInterfaces.delete_network_interface = delete_network_interface

    terminate = Instance.terminate

    def terminate_and_leave(self: Any) -> Any:
        tags, zone = tags_of(self), str(self.placement.zone or "")
        cluster = tags.get("eks:eks-cluster-name") or tags.get("eks:cluster-name")
        if cluster is None or self.state == "terminated":
            return terminate(self)
        fault = faults.plan().left_interface(self.instance_type, zone, capacity_type(self))
        subnet_id, group_ids = self.nics[0].subnet.id, [group.id for group in self.nics[0].group_set]
        result = terminate(self)
        if fault is not None:
            leave_behind(self, cluster, subnet_id, group_ids)
        return result

    Instance.terminate = terminate_and_leave
