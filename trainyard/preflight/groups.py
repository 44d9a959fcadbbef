"""Security groups of a given VPC: pure checks. A missing self rule fails silently: the first collective hangs."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from trainyard.preflight.wanted import Problem, Wanted

KEY: Final = "trainyard:network.workerSecurityGroupId"
DISCOVERY: Final = "karpenter.sh/discovery"
ALL: Final = "-1"
HTTPS: Final = 443
ANYWHERE: Final = "0.0.0.0/0"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: protocol (-1: all, with all ports), first and last port; its groups, ranges and prefix lists."""

    protocol: str
    first: int = 0
    last: int = 65535
    groups: frozenset[str] = frozenset()
    ranges: frozenset[str] = frozenset()
    lists: frozenset[str] = frozenset()

    def has_ports(self, first: int, last: int) -> bool:
        """Whether it is for TCP on all of these ports."""
        return self.protocol == ALL or (
            self.protocol in ("tcp", "6") and self.first <= first and last <= self.last
        )

    def holds(self, blocks: Collection[str]) -> bool:
        """Whether each of the address blocks lies within one of its ranges; False for no blocks."""
        return bool(blocks) and all(any(_within(block, outer) for outer in self.ranges) for block in blocks)


def _within(block: str, outer: str) -> bool:
    inner, around = (ipaddress.ip_network(each, strict=False) for each in (block, outer))
    if isinstance(inner, ipaddress.IPv4Network):
        return isinstance(around, ipaddress.IPv4Network) and inner.subnet_of(around)
    return isinstance(around, ipaddress.IPv6Network) and inner.subnet_of(around)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A security group."""

    group_id: str
    vpc_id: str
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)


def lets_in(
    groups: Sequence[Group],
    ports: Collection[tuple[int, int]],
    workers: Collection[str],
    blocks: Collection[str],
) -> bool | None:
    """Whether the groups let TCP in on all of the ports, from one of the workers' groups or from all of the blocks.

    None: not as far as can be told, but a prefix list may.
    """
    rules = [rule for group in groups for rule in group.ingress]
    answers: list[bool | None] = []
    for first, last in ports:
        fitting = [rule for rule in rules if rule.has_ports(first, last)]
        if any(rule.groups & set(workers) or rule.holds(blocks) for rule in fitting):
            answers.append(True)
        else:
            answers.append(None if any(rule.lists for rule in fitting) else False)
    return False if False in answers else None if None in answers else True


def check_group(wanted: Wanted, found: Group | None, blocks: Collection[str]) -> list[Problem]:
    """The given group must be in the VPC, open to itself in both directions for everything, and have a way out.

    It must not be open to everybody. `blocks` are the ranges of the private subnets.

    EFA traffic is no IP traffic, so that a rule with a range does not let it through
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html, step 1).
    """
    assert wanted.vpc is not None  # noqa: S101 - for the type checker
    given = wanted.vpc.worker_group
    if given is None:
        return []
    if found is None:
        return [
            Problem(
                key=KEY,
                message=f"'{given}' does not exist in {wanted.region}; it must be a group of {wanted.vpc.vpc_id}",
            )
        ]
    problems = []
    if found.vpc_id != wanted.vpc.vpc_id:
        problems.append(
            Problem(
                key=KEY,
                message=f"'{given}' belongs to {found.vpc_id}; it must be a group of {wanted.vpc.vpc_id}",
            )
        )
    for direction, rules in (("in", found.ingress), ("out", found.egress)):
        if not any(rule.protocol == ALL and given in rule.groups for rule in rules):
            command = (
                "authorize-security-group-ingress" if direction == "in" else "authorize-security-group-egress"
            )
            problems.append(
                Problem(
                    key=KEY,
                    message=f"'{given}' has no rule that lets everything {direction} from and to itself, which EFA"
                    f" needs and without which workers wait for ever; it must have one: aws ec2 {command}"
                    f" --group-id {given} --ip-permissions"
                    f" IpProtocol=-1,UserIdGroupPairs=[{{GroupId={given}}}]",
                )
            )
    if any(rule.protocol == ALL and {ANYWHERE, "::/0"} & rule.ranges for rule in found.ingress):
        problems.append(
            Problem(
                key=KEY,
                message=f"'{given}' lets everything in from everywhere; it must let in what the workers need alone,"
                " everything from itself",
            )
        )
    return problems + _https_out(found, blocks)


def _https_out(found: Group, blocks: Collection[str]) -> list[Problem]:
    """A narrow way out will do as long as HTTPS gets by it to the private subnets, where the cluster's API is.

    What a prefix list or another group holds is not looked up, and is taken to be enough.
    """
    if any(
        rule.has_ports(HTTPS, HTTPS)
        and (ANYWHERE in rule.ranges or rule.holds(blocks) or rule.lists or rule.groups - {found.group_id})
        for rule in found.egress
    ):
        return []
    return [
        Problem(
            key=KEY,
            message=f"'{found.group_id}' lets no HTTPS out to where it is needed; it must let TCP port 443 out, to"
            f" everywhere or to {', '.join(blocks) or 'the private subnets'} at least, by which machines reach AWS and"
            " join the cluster",
        )
    ]


def check_discovery(wanted: Wanted, tagged: list[Group]) -> list[Problem]:
    """Karpenter gives its machines every group with the discovery tag of the cluster: it must be one alone.

    Where the stack makes the workers' group none may have the tag yet, except the stack's own.
    """
    assert wanted.vpc is not None  # noqa: S101 - for the type checker
    given = wanted.vpc.worker_group
    strangers = sorted(
        group.group_id
        for group in tagged
        if group.group_id != given
        and not all(group.tags.get(name) == value for name, value in wanted.tags.items())
    )
    if not strangers:
        return []
    return [
        Problem(
            key=KEY if given else "trainyard:network.vpcId",
            message=f"{', '.join(strangers)} {'has' if len(strangers) == 1 else 'have'} the tag"
            f" {DISCOVERY}: {wanted.cluster}, by which Karpenter would add it to every machine;"
            " exactly one group, the workers', must have it",
        )
    ]


def check_cluster_tag(wanted: Wanted, found: Group | None) -> list[Problem]:
    """Controllers for load balancers refuse nodes with two groups of `kubernetes.io/cluster/<name>`.

    EKS's own group has the tag (https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html).
    """
    tag = f"kubernetes.io/cluster/{wanted.cluster}"
    if found is None or tag not in found.tags:
        return []
    return [
        Problem(
            key=KEY,
            message=f"'{found.group_id}' has the tag {tag}, which EKS's own group has; it must not have it, because"
            " load balancers are refused on nodes with two such groups",
        )
    ]
