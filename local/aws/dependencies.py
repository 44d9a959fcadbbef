"""Deletions that AWS refuses while something depends on the resource, and second associations. moto allows them.

Without these checks, a `destroy` in the wrong order would succeed here and hang on AWS. A subnet could have two route
tables.
"""

from __future__ import annotations

from typing import Any

from moto.ec2.exceptions import DependencyViolationError
from moto.ec2.models import EC2Backend
from moto.iam.exceptions import DeleteConflictException
from moto.iam.models import IAMBackend

from local.aws.errors import ApiError


def _check_group(backend: Any, group: Any) -> None:
    text = f"resource {group.id} has a dependent object"
    if any(group.id in {g.id for g in eni.group_set} for eni in backend.enis.values()):
        raise DependencyViolationError(text)
    for groups in backend.groups.values():
        for other in groups.values():
            if other.id == group.id:
                continue
            for rule in (*other.ingress_rules, *other.egress_rules):
                if rule.source_group.get("GroupId") == group.id:
                    raise DependencyViolationError(text)


def _check_vpc(backend: Any, vpc_id: str) -> None:
    # moto itself refuses a VPC with subnets.
    dependent = (
        any(g.vpc_id == vpc_id and g.name != "default" for gs in backend.groups.values() for g in gs.values())
        or any(gateway.vpc and gateway.vpc.id == vpc_id for gateway in backend.internet_gateways.values())
        or any(e.vpc_id == vpc_id and e.state != "deleted" for e in backend.vpc_end_points.values())
    )
    if dependent:
        raise DependencyViolationError(f"The vpc '{vpc_id}' has dependencies and cannot be deleted.")


def install() -> None:
    """Wrap the deletions of EC2 and IAM."""
    delete_subnet, delete_group = EC2Backend.delete_subnet, EC2Backend.delete_security_group
    delete_vpc, detach = EC2Backend.delete_vpc, EC2Backend.detach_internet_gateway
    delete_gateway, release = EC2Backend.delete_nat_gateway, EC2Backend.release_address

    def checked_subnet(self: Any, subnet_id: str) -> Any:
        if any(eni.subnet.id == subnet_id for eni in self.enis.values()):
            raise DependencyViolationError(
                f"The subnet '{subnet_id}' has dependencies and cannot be deleted."
            )
        return delete_subnet(self, subnet_id)

    def checked_group(self: Any, name: str | None = None, group_id: str | None = None) -> Any:
        found = self.get_security_group_from_id(group_id)
        if found is not None and not found.is_default:  # the VPC takes its default group along
            _check_group(self, found)
        return delete_group(self, name, group_id)

    def checked_vpc(self: Any, vpc_id: str) -> Any:
        _check_vpc(self, vpc_id)
        return delete_vpc(self, vpc_id)

    def checked_detach(self: Any, internet_gateway_id: str, vpc_id: str) -> Any:
        if any(eni.subnet.vpc_id == vpc_id and eni.public_ip for eni in self.enis.values()):
            raise DependencyViolationError(f"Network {vpc_id} has some mapped public address(es).")
        return detach(self, internet_gateway_id, vpc_id)

    def delete_gateway_and_interface(self: Any, nat_gateway_id: str) -> Any:
        gateway = self.nat_gateways.get(nat_gateway_id)
        if gateway is None:
            raise ApiError("NatGatewayNotFound", f"NatGateway {nat_gateway_id} was not found")
        result = delete_gateway(self, nat_gateway_id)
        # moto does not delete the interface and the association of the address.
        for address in self.addresses:
            if address.eni is gateway._eni:
                self.disassociate_address(address.public_ip)
        if gateway._eni.id in self.enis:
            gateway._eni.delete()
        return result

    def checked_release(self: Any, address: Any = None, allocation_id: Any = None) -> None:
        for found in self.addresses:
            if allocation_id and found.allocation_id == allocation_id and found.association_id:
                raise ApiError("InvalidIPAddress.InUse", f"Address {found.public_ip} is in use.")
        release(self, address, allocation_id)

    EC2Backend.delete_subnet = checked_subnet
    EC2Backend.delete_security_group = checked_group
    EC2Backend.delete_vpc = checked_vpc
    EC2Backend.detach_internet_gateway = checked_detach
    EC2Backend.delete_nat_gateway = delete_gateway_and_interface
    EC2Backend.release_address = checked_release

    delete_policy = IAMBackend.delete_policy

    def checked_policy(self: Any, policy_arn: str) -> None:
        holders = (*self.roles.values(), *self.users.values(), *self.groups.values())
        if any(policy_arn in holder.managed_policies for holder in holders):
            raise DeleteConflictException("Cannot delete a policy attached to entities.")
        delete_policy(self, policy_arn)

    IAMBackend.delete_policy = checked_policy
    _install_associations()


def _install_associations() -> None:
    """Allow a subnet or gateway one route table, and a VPC one internet gateway."""
    associate, attach = EC2Backend.associate_route_table, EC2Backend.attach_internet_gateway

    def associate_route_table(
        self: Any, route_table_id: str, gateway_id: str | None = None, subnet_id: str | None = None
    ) -> Any:
        # moto answers with the existing association, whichever table it has.
        for table in self.route_tables.values():
            taken = {gateway_id, subnet_id} & set(table._associations.values())
            if taken and table.id != route_table_id:
                raise ApiError(
                    "Resource.AlreadyAssociated",
                    f"the specified association for route table {route_table_id} conflicts with an existing"
                    " association",
                )
        return associate(self, route_table_id, gateway_id, subnet_id)

    def attach_internet_gateway(self: Any, internet_gateway_id: str, vpc_id: str) -> Any:
        gateways = self.internet_gateways.values()
        if any(each.vpc and each.vpc.id == vpc_id and each.id != internet_gateway_id for each in gateways):
            raise ApiError(
                "InvalidParameterValue", f"Network {vpc_id} already has an internet gateway attached"
            )
        return attach(self, internet_gateway_id, vpc_id)

    EC2Backend.associate_route_table = associate_route_table
    EC2Backend.attach_internet_gateway = attach_internet_gateway
