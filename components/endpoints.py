"""Interface endpoints: access to AWS services from a VPC without internet access."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from .documents.tags import named
from .documents.vpc import policy, service_name

HTTPS = 443


@dataclass(frozen=True, kw_only=True)
class EndpointsArgs:
    """VPC endpoints to create."""

    region: str
    vpc_id: pulumi.Input[str]
    cidr: str
    """The address range of the VPC, which may use the endpoints."""
    subnet_ids: list[pulumi.Output[str]]
    """The subnets of the endpoints, at most one per zone, as AWS requires."""
    services: tuple[str, ...]
    """Short names of services, such as ecr.api."""
    owner: tuple[str, str] | None = None
    tags: dict[str, str]


class Endpoints(pulumi.ComponentResource):
    """Interface endpoints of AWS services in a VPC.

    Creates:

    - a security group that allows HTTPS from the VPC and no egress;
    - one interface endpoint per service, in each subnet of `subnet_ids`, with the service's public DNS name.

    The DNS names need the VPC's attributes `enableDnsSupport` and `enableDnsHostnames`. Delete nodes that have no
    other route to these services before `objects`.
    """

    def __init__(self, name: str, args: EndpointsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:network:Endpoints", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        group = aws.ec2.SecurityGroup(
            name,
            description="Interface endpoints of AWS services",
            vpc_id=args.vpc_id,
            tags=named(args.tags, name),
            opts=child,
        )
        rule = aws.vpc.SecurityGroupIngressRule(
            f"{name}-from-vpc",
            security_group_id=group.id,
            cidr_ipv4=args.cidr,
            ip_protocol="tcp",
            from_port=HTTPS,
            to_port=HTTPS,
            description="HTTPS from the VPC",
            tags=named(args.tags, f"{name}-from-vpc"),
            opts=child,
        )
        self.objects: list[pulumi.Resource] = [rule]
        """The endpoints, and the rule of their security group."""
        for service in args.services:
            self.objects.append(
                aws.ec2.VpcEndpoint(
                    f"{name}-{service}",
                    vpc_id=args.vpc_id,
                    service_name=service_name(args.region, service),
                    vpc_endpoint_type="Interface",
                    private_dns_enabled=True,
                    policy=endpoint_policy(service, args.owner),
                    subnet_ids=args.subnet_ids,
                    security_group_ids=[group.id],
                    tags=named(args.tags, f"{name}-{service}"),
                    opts=child,
                )
            )
        self.register_outputs({"groupId": group.id})


def endpoint_policy(service: str, owner: tuple[str, str] | None) -> str | None:
    """Return the policy of an endpoint as JSON, None for the default policy, which allows all access."""
    if owner is None:
        return None
    partition, account = owner
    found = policy(service, account=account, partition=partition)
    return None if found is None else json.dumps(found)
