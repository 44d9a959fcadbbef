"""Route tables of EC2, their routes and associations (API reference: Amazon EC2, version 2016-11-15)."""

from __future__ import annotations

import hashlib

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.ec2_network import Ec2Handler, only
from local.plugins.aws.resource import Handler, Props, listed, serves, tag_map, upper

_TARGETS = {
    "gatewayId": "GatewayId",
    "natGatewayId": "NatGatewayId",
    "egressOnlyGatewayId": "EgressOnlyInternetGatewayId",
    "networkInterfaceId": "NetworkInterfaceId",
    "transitGatewayId": "TransitGatewayId",
    "vpcEndpointId": "VpcEndpointId",
    "vpcPeeringConnectionId": "VpcPeeringConnectionId",
}


@serves
class RouteTable(Ec2Handler):
    """A route table. Its routes are separate resources; routes inside the table are refused."""

    token = "aws:ec2/routeTable:RouteTable"
    kind = "route-table"
    accepts = frozenset({"vpcId", "tags"})
    required = frozenset({"vpcId"})
    replaces = frozenset({"vpcId"})

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").create_route_table(
            VpcId=inputs["vpcId"], **self.tag_specification(inputs)
        )
        return str(answer["RouteTable"]["RouteTableId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        table = only(cloud.client("ec2").describe_route_tables(RouteTableIds=[rid])["RouteTables"])
        if table is None:
            return None
        return {
            "arn": cloud.arn("ec2", f"route-table/{rid}"),
            "vpcId": table["VpcId"],
            "ownerId": table.get("OwnerId", cloud.account),
            "tags": tag_map(table.get("Tags")),
        }

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").delete_route_table(RouteTableId=rid))


@serves
class Route(Handler):
    """One IPv4 or IPv6 route of a table. A new target is set in place."""

    token = "aws:ec2/route:Route"
    accepts = frozenset({"routeTableId", "destinationCidrBlock", "destinationIpv6CidrBlock", *_TARGETS})
    required = frozenset({"routeTableId"})
    replaces = frozenset({"routeTableId", "destinationCidrBlock", "destinationIpv6CidrBlock"})

    def check(self, inputs: Props) -> list[tuple[str, str]]:
        found = [key for key in _TARGETS if inputs.get(key) is not None]
        if len(found) == 1:
            return []
        return [("gatewayId", f"a route needs exactly one target of {', '.join(_TARGETS)}; got {len(found)}")]

    def _arguments(self, inputs: Props, targets: bool = True) -> Props:
        chosen = upper(inputs, ["routeTableId", "destinationCidrBlock", "destinationIpv6CidrBlock"])
        if targets:
            chosen |= {_TARGETS[key]: inputs[key] for key in _TARGETS if inputs.get(key)}
        return chosen

    def create(self, cloud: Cloud, inputs: Props) -> str:
        cloud.client("ec2").create_route(**self._arguments(inputs))
        destination = inputs.get("destinationCidrBlock") or inputs.get("destinationIpv6CidrBlock")
        digest = hashlib.sha256(str(destination).encode()).hexdigest()
        return f"r-{inputs['routeTableId']}{int(digest[:8], 16)}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        answer = cloud.client("ec2").describe_route_tables(RouteTableIds=[inputs["routeTableId"]])
        for route in (only(answer["RouteTables"]) or {}).get("Routes", []):
            wanted = inputs.get("destinationCidrBlock") or inputs.get("destinationIpv6CidrBlock")
            if wanted in (route.get("DestinationCidrBlock"), route.get("DestinationIpv6CidrBlock")):
                live = {key: route.get(name, "") for key, name in _TARGETS.items()}
                return {
                    "routeTableId": inputs["routeTableId"],
                    "destinationCidrBlock": route.get("DestinationCidrBlock", ""),
                    "origin": route.get("Origin", "CreateRoute"),
                    "state": route.get("State", "active"),
                    **live,
                }
        return None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        cloud.client("ec2").replace_route(**self._arguments(new))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").delete_route(**self._arguments(state, targets=False))


@serves
class RouteTableAssociation(Handler):
    """The association of a route table with a subnet."""

    token = "aws:ec2/routeTableAssociation:RouteTableAssociation"
    accepts = frozenset({"routeTableId", "subnetId", "gatewayId"})
    required = frozenset({"routeTableId"})
    # The association gets a new id when its table changes.
    replaces = frozenset({"routeTableId", "subnetId", "gatewayId"})
    exclusive = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").associate_route_table(
            **upper(inputs, ["routeTableId", "subnetId", "gatewayId"])
        )
        return str(answer["AssociationId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        answer = cloud.client("ec2").describe_route_tables(
            Filters=[{"Name": "association.route-table-association-id", "Values": [rid]}]
        )
        for table in answer["RouteTables"]:
            for association in listed(table.get("Associations")):
                if association.get("RouteTableAssociationId") == rid:
                    return {
                        "routeTableId": table["RouteTableId"],
                        "subnetId": association.get("SubnetId", ""),
                        "gatewayId": association.get("GatewayId", ""),
                    }
        return None

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").disassociate_route_table(AssociationId=rid)
