"""VPC endpoints and flow logs (API reference: Amazon EC2, version 2016-11-15)."""

from __future__ import annotations

from typing import ClassVar

from local.plugins.aws.cloud import Cloud, is_gone, wait_until
from local.plugins.aws.ec2_network import Ec2Handler, only
from local.plugins.aws.resource import Props, listed, serves, tag_map, upper

# Inputs that only one type of endpoint has.
_ONLY = {"Gateway": ("routeTableIds",), "Interface": ("subnetIds", "securityGroupIds", "privateDnsEnabled")}


@serves
class VpcEndpoint(Ec2Handler):
    """A gateway or interface endpoint."""

    token = "aws:ec2/vpcEndpoint:VpcEndpoint"
    kind = "vpc-endpoint"
    accepts = frozenset(
        {
            "vpcId",
            "serviceName",
            "vpcEndpointType",
            "policy",
            "privateDnsEnabled",
            "routeTableIds",
            "securityGroupIds",
            "subnetIds",
            "tags",
        }
    )
    required = frozenset({"vpcId", "serviceName"})
    replaces = frozenset({"vpcId", "serviceName", "vpcEndpointType"})
    unordered = frozenset({"routeTableIds", "securityGroupIds", "subnetIds"})
    documents = frozenset({"policy"})
    defaults: ClassVar[Props] = {"vpcEndpointType": "Gateway"}

    def check(self, inputs: Props) -> list[tuple[str, str]]:
        kind = inputs.get("vpcEndpointType")
        return [
            (key, f"is for endpoints of type {other}; this one is of type {kind}")
            for other, keys in _ONLY.items()
            for key in keys
            if kind in _ONLY and kind != other and inputs.get(key)
        ]

    def create(self, cloud: Cloud, inputs: Props) -> str:
        arguments = upper(
            inputs,
            [
                "vpcId",
                "serviceName",
                "vpcEndpointType",
                "privateDnsEnabled",
                "routeTableIds",
                "subnetIds",
                "securityGroupIds",
            ],
        )
        if inputs.get("policy"):
            arguments["PolicyDocument"] = inputs["policy"]
        answer = cloud.client("ec2").create_vpc_endpoint(**arguments, **self.tag_specification(inputs))
        return str(answer["VpcEndpoint"]["VpcEndpointId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        wait_until(
            f"VPC endpoint {rid} available",
            lambda: (self.read(cloud, rid, inputs) or {}).get("state") == "available",
            600,
        )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = only(cloud.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[rid])["VpcEndpoints"])
        if found is None or str(found.get("State", "")).lower() == "deleted":
            return None
        return {
            "arn": cloud.arn("ec2", f"vpc-endpoint/{rid}"),
            "vpcId": found["VpcId"],
            "serviceName": found["ServiceName"],
            "vpcEndpointType": found.get("VpcEndpointType", "Gateway"),
            "routeTableIds": listed(found.get("RouteTableIds")),
            "subnetIds": listed(found.get("SubnetIds")),
            "securityGroupIds": [group["GroupId"] for group in listed(found.get("Groups"))],
            "privateDnsEnabled": bool(found.get("PrivateDnsEnabled", False)),
            **({"policy": found["PolicyDocument"]} if found.get("PolicyDocument") else {}),
            "state": str(found.get("State", "available")).lower(),
            "networkInterfaceIds": listed(found.get("NetworkInterfaceIds")),
            "dnsEntries": [
                {"dnsName": entry.get("DnsName", ""), "hostedZoneId": entry.get("HostedZoneId", "")}
                for entry in listed(found.get("DnsEntries"))
            ],
            "ownerId": found.get("OwnerId", cloud.account),
            "tags": tag_map(found.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        arguments: Props = {}
        for key, name in (("routeTableIds", "RouteTableIds"), ("subnetIds", "SubnetIds")):
            if key in changed:
                before, after = set(listed(old.get(key))), set(listed(new.get(key)))
                if after - before:
                    arguments[f"Add{name}"] = sorted(after - before)
                if before - after:
                    arguments[f"Remove{name}"] = sorted(before - after)
        if "securityGroupIds" in changed:
            before, after = set(listed(old.get("securityGroupIds"))), set(listed(new.get("securityGroupIds")))
            arguments["AddSecurityGroupIds"] = sorted(after - before)
            arguments["RemoveSecurityGroupIds"] = sorted(before - after)
        if "policy" in changed:
            arguments |= {"PolicyDocument": new["policy"]} if new.get("policy") else {"ResetPolicy": True}
        if "privateDnsEnabled" in changed:
            arguments["PrivateDnsEnabled"] = bool(new.get("privateDnsEnabled"))
        if arguments:
            cloud.client("ec2").modify_vpc_endpoint(VpcEndpointId=rid, **arguments)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[rid])
        wait_until(f"VPC endpoint {rid} deleted", lambda: self._absent(cloud, rid), 600)

    def _absent(self, cloud: Cloud, rid: str) -> bool:
        try:
            return self.read(cloud, rid, {}) is None
        except Exception as error:
            if is_gone(error):
                return True
            raise


@serves
class FlowLog(Ec2Handler):
    """Flow logs of a VPC or a subnet, to a log group or a bucket. Any change except for tags replaces them.

    The official provider waits until a new role is known everywhere. Here it is at once.
    """

    token = "aws:ec2/flowLog:FlowLog"
    kind = "vpc-flow-log"
    accepts = frozenset(
        {
            "vpcId",
            "subnetId",
            "trafficType",
            "logDestination",
            "logDestinationType",
            "iamRoleArn",
            "logFormat",
            "maxAggregationInterval",
            "tags",
        }
    )
    replaces = accepts - {"tags"}
    defaults: ClassVar[Props] = {"logDestinationType": "cloud-watch-logs", "maxAggregationInterval": 600}

    def check(self, inputs: Props) -> list[tuple[str, str]]:
        if (inputs.get("vpcId") is None) == (inputs.get("subnetId") is None):
            return [("vpcId", "a flow log is of exactly one of vpcId and subnetId")]
        return []

    def create(self, cloud: Cloud, inputs: Props) -> str:
        subject = ("VPC", inputs["vpcId"]) if inputs.get("vpcId") else ("Subnet", inputs["subnetId"])
        arguments = upper(
            inputs,
            ["trafficType", "logDestination", "logDestinationType", "logFormat", "maxAggregationInterval"],
        )
        if inputs.get("iamRoleArn"):
            arguments["DeliverLogsPermissionArn"] = inputs["iamRoleArn"]
        answer = cloud.client("ec2").create_flow_logs(
            ResourceType=subject[0], ResourceIds=[subject[1]], **arguments, **self.tag_specification(inputs)
        )
        refused = listed(answer.get("Unsuccessful"))
        if refused:
            raise RuntimeError(f"flow log of {subject[1]}: {refused[0]['Error']['Message']}")
        return str(answer["FlowLogIds"][0])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        log = only(
            cloud.client("ec2").describe_flow_logs(Filters=[{"Name": "flow-log-id", "Values": [rid]}])[
                "FlowLogs"
            ]
        )
        if log is None:
            return None
        return {
            "arn": cloud.arn("ec2", f"vpc-flow-log/{rid}"),
            "vpcId" if log["ResourceId"].startswith("vpc-") else "subnetId": log["ResourceId"],
            "trafficType": log.get("TrafficType", ""),
            "logDestination": str(log.get("LogDestination") or inputs.get("logDestination", "")).removesuffix(
                ":*"
            ),
            "logDestinationType": log.get("LogDestinationType", "cloud-watch-logs"),
            "iamRoleArn": log.get("DeliverLogsPermissionArn", ""),
            "logFormat": log.get("LogFormat", ""),
            "maxAggregationInterval": int(log.get("MaxAggregationInterval", 600)),
            "tags": tag_map(log.get("Tags")),
        }

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").delete_flow_logs(FlowLogIds=[rid])
