"""Security groups of a given VPC: pure checks. A missing self rule fails silently: the first collective hangs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from infra.preflight.wanted import Problem, Wanted

KEY: Final = "trainyard:network.workerSecurityGroupId"
DISCOVERY: Final = "karpenter.sh/discovery"
ALL: Final = "-1"
HTTPS: Final = 443


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: protocol (-1: all, with all ports), first and last port, the groups that it names, and IPv4 ranges."""

    protocol: str
    first: int = 0
    last: int = 65535
    groups: frozenset[str] = frozenset()
    ranges: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Group:
    """A security group."""

    group_id: str
    vpc_id: str
    ingress: tuple[Rule, ...] = ()
    egress: tuple[Rule, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)


def judge_group(wanted: Wanted, found: Group | None) -> list[Problem]:
    """The given group must be in the VPC, open to itself in both directions for everything, and have a way out.

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
    if not any("0.0.0.0/0" in rule.ranges and rule.protocol == ALL for rule in found.egress):
        problems += _https_out(found)
    return problems


def _https_out(found: Group) -> list[Problem]:
    """A narrower way out will do as long as HTTPS gets out by it."""
    if any(
        (rule.ranges or rule.groups - {found.group_id})
        and (rule.protocol == ALL or (rule.protocol in ("tcp", "6") and rule.first <= HTTPS <= rule.last))
        for rule in found.egress
    ):
        return []
    return [
        Problem(
            key=KEY,
            message=f"'{found.group_id}' lets no HTTPS out; it must let TCP port 443 out, by which"
            " machines reach AWS and join the cluster",
        )
    ]


def judge_discovery(wanted: Wanted, tagged: list[Group]) -> list[Problem]:
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


def judge_cluster_tag(wanted: Wanted, found: Group | None) -> list[Problem]:
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
