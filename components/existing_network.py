"""An existing VPC, named by its ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pulumi

from .endpoints import Endpoints, EndpointsArgs
from .flow_logs import FlowLogs, FlowLogsArgs
from .network import FlowLogSettings
from .worker_group import WorkerGroup, WorkerGroupArgs


@dataclass(frozen=True, kw_only=True)
class ExistingNetworkArgs:
    """An existing VPC. Request endpoints and flow logs only if the VPC has none."""

    region: str
    cluster: str
    vpc_id: str
    private_subnet_ids: Mapping[str, str]
    """The subnets of nodes, by zone."""
    public_subnet_ids: Mapping[str, str] = field(default_factory=dict)
    """Public subnets, by zone."""
    worker_group_id: str | None = None
    """The security group of workers. Without one, the component creates it."""
    cidr: str | None = None
    """The address range of the VPC, which interface endpoints need."""
    interface_endpoints: tuple[str, ...] = ()
    flow_logs: FlowLogSettings | None = None
    tags: dict[str, str]


class ExistingNetwork(pulumi.ComponentResource):
    """An existing VPC, named by its ids.

    Creates the security group of workers, unless `worker_group_id` names one, and the interface endpoints and flow
    logs that the arguments request.

    Subnets and routes stay unchanged and get no tags: Karpenter finds the subnets by their ids. The component does
    not check whether they are suitable; `make preflight` does for a stack file. The outputs implement the protocol
    `trainyard.components.handles.NetworkHandles`.

    Raises:
        ValueError: `interface_endpoints` is set without `cidr`.
    """

    vpc_id: pulumi.Output[str]
    private_by_zone: dict[str, pulumi.Output[str]]
    private_subnet_ids: list[pulumi.Output[str]]
    public_subnet_ids: list[pulumi.Output[str]]
    worker_group_id: pulumi.Output[str]
    worker_group: list[pulumi.Resource]
    held: list[pulumi.Resource]
    egress: list[pulumi.Resource]

    def __init__(
        self, name: str, args: ExistingNetworkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:network:ExistingNetwork", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        self.vpc_id = pulumi.Output.from_input(args.vpc_id)
        self.private_by_zone = {
            zone: pulumi.Output.from_input(subnet) for zone, subnet in args.private_subnet_ids.items()
        }
        self.private_subnet_ids = list(self.private_by_zone.values())
        self.public_subnet_ids = [
            pulumi.Output.from_input(subnet) for subnet in args.public_subnet_ids.values()
        ]
        self.worker_group = []
        if args.worker_group_id is None:
            group = WorkerGroup(
                f"{name}-workers",
                WorkerGroupArgs(cluster=args.cluster, vpc_id=args.vpc_id, tags=args.tags),
                child,
            )
            self.worker_group_id = group.group_id
            self.worker_group = group.objects
        else:
            self.worker_group_id = pulumi.Output.from_input(args.worker_group_id)
        self.held = [*self.worker_group]
        self.egress = [*self.worker_group, *self._interface_endpoints(name, args)]
        if args.flow_logs is not None:
            FlowLogs(
                f"{name}-flow-logs",
                FlowLogsArgs(
                    cluster=args.cluster,
                    region=args.region,
                    vpc_id=args.vpc_id,
                    key_arn=args.flow_logs.key_arn,
                    retention_days=args.flow_logs.retention_days,
                    tags=args.tags,
                ),
                child,
            )
        self.register_outputs({"vpcId": self.vpc_id, "workerGroupId": self.worker_group_id})

    def _interface_endpoints(self, name: str, args: ExistingNetworkArgs) -> list[pulumi.Resource]:
        if not args.interface_endpoints:
            return []
        if args.cidr is None:
            raise ValueError(f"interface endpoints in {args.vpc_id} need its address range, which is not set")
        endpoints = Endpoints(
            f"{name}-endpoints",
            EndpointsArgs(
                region=args.region,
                vpc_id=args.vpc_id,
                cidr=args.cidr,
                subnet_ids=self.private_subnet_ids,
                services=args.interface_endpoints,
                tags=args.tags,
            ),
            pulumi.ResourceOptions(parent=self),
        )
        return endpoints.objects
