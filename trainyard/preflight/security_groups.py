"""Check the security groups of an existing VPC. Without a self-referencing rule the first collective hangs silently."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from components.documents.pool import DISCOVERY_TAG
from infra.settings import Settings
from trainyard.preflight.aws import Aws, by_tags, filter_by, has, tags_of
from trainyard.preflight.findings import SKIPPED, Finding, own_tags, required_endpoints
from trainyard.preflight.network import endpoints, is_endpoint_of, private_subnets

Group = Mapping[str, Any]
Rule = Mapping[str, Any]
KEY: Final = "trainyard:network.workerSecurityGroupId"
ALL: Final = "-1"
HTTPS: Final = 443
ANYWHERE: Final = "0.0.0.0/0"


def security_groups(aws: Aws, *filters: dict[str, Any]) -> list[Group]:
    """Return security groups."""
    return aws.items("ec2", "describe_security_groups", "SecurityGroups", Filters=list(filters))


def _discovered(settings: Settings, aws: Aws) -> list[Group]:
    """Return the groups with Karpenter's discovery tag for the cluster, in any VPC."""
    return security_groups(aws, *by_tags({DISCOVERY_TAG: settings.cluster.name}))


def worker_groups(settings: Settings, aws: Aws) -> list[str]:
    """Return the workers' group: the existing one, or the one that this stack has created, if any."""
    network = settings.network.existing
    if network is None:
        return []
    if network.worker_security_group_id:
        return [network.worker_security_group_id]
    found = _discovered(settings, aws)
    return [each["GroupId"] for each in found if has(tags_of(each), own_tags(settings))]


def private_ranges(settings: Settings, aws: Aws, zones: Collection[str] = ()) -> list[str]:
    """Return the address ranges of the existing private subnets, of all zones or of some."""
    return [
        subnet["CidrBlock"]
        for zone, subnet in private_subnets(settings, aws).items()
        if not zones or zone in zones
    ]


def _ranges(rule: Rule) -> set[str]:
    return {each["CidrIp"] for each in rule.get("IpRanges") or []} | {
        each["CidrIpv6"] for each in rule.get("Ipv6Ranges") or []
    }


def _groups(rule: Rule) -> set[str]:
    return {each["GroupId"] for each in rule.get("UserIdGroupPairs") or [] if each.get("GroupId")}


def _has_ports(rule: Rule, first: int, last: int) -> bool:
    """Return whether a rule is for TCP on all of these ports."""
    return rule["IpProtocol"] == ALL or (
        rule["IpProtocol"] in ("tcp", "6")
        and int(rule.get("FromPort", 0)) <= first
        and last <= int(rule.get("ToPort", 65535))
    )


def _contains(rule: Rule, blocks: Collection[str]) -> bool:
    """Return whether each block is in one of the rule's ranges; False for no blocks."""
    outer = [ipaddress.ip_network(each, strict=False) for each in _ranges(rule)]
    inner = [ipaddress.ip_network(each) for each in blocks]
    return bool(inner) and all(
        any(block.version == each.version and block.subnet_of(each) for each in outer)  # type: ignore[arg-type]
        for block in inner
    )


def allows_in(
    groups: Sequence[Group],
    ports: Collection[tuple[int, int]],
    workers: Collection[str],
    blocks: Collection[str],
) -> bool | None:
    """Return whether groups allow TCP on all ports from the workers' group or from all blocks.

    Return None if the rules have prefix lists, which may allow it.
    """
    rules = [rule for group in groups for rule in group["IpPermissions"]]
    answers: list[bool | None] = []
    for first, last in ports:
        matching = [rule for rule in rules if _has_ports(rule, first, last)]
        if any(_groups(rule) & set(workers) or _contains(rule, blocks) for rule in matching):
            answers.append(True)
        else:
            answers.append(None if any(rule.get("PrefixListIds") for rule in matching) else False)
    return False if False in answers else None if None in answers else True


def check_worker_group(settings: Settings, aws: Aws) -> list[Finding]:
    """Check the workers' group: open to itself, allows HTTPS out, not public, the only one with the discovery tag.

    EFA traffic is not IP traffic, so a rule with an address range does not allow it
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html, step 1).
    """
    network, cluster = settings.network.existing, settings.cluster.name
    if network is None:
        return []
    messages, name = [], network.worker_security_group_id
    if name is not None:
        messages += _worker_group_problems(settings, aws, name)
    # Karpenter adds every group with the tag to its nodes.
    others = sorted(
        each["GroupId"]
        for each in _discovered(settings, aws)
        if each["GroupId"] != name and not has(tags_of(each), own_tags(settings))
    )
    findings = [Finding(KEY, message) for message in messages]
    if others:
        message = (
            f"{', '.join(others)}: Karpenter would add each group with the tag {DISCOVERY_TAG}: {cluster} to every"
            " node. Only the workers' group, exactly one group, must have it"
        )
        findings.append(Finding(KEY if name else "trainyard:network.vpcId", message))
    return findings


def _worker_group_problems(settings: Settings, aws: Aws, name: str) -> list[str]:
    network = settings.network.existing
    vpc = network.vpc_id if network else ""
    groups = security_groups(aws, filter_by("group-id", name))
    if not groups:
        return [f"'{name}' does not exist in {settings.region}. It must be a group of {vpc}"]
    found, messages = groups[0], []
    ingress, egress = found["IpPermissions"], found["IpPermissionsEgress"]
    if found["VpcId"] != vpc:
        messages.append(f"'{name}' belongs to {found['VpcId']}. It must be a group of {vpc}")
    for direction, command, rules in (("in", "ingress", ingress), ("out", "egress", egress)):
        if not any(rule["IpProtocol"] == ALL and name in _groups(rule) for rule in rules):
            messages.append(
                f"'{name}' has no rule that allows everything {direction} from and to itself, without which EFA hangs."
                f" Add it: aws ec2 authorize-security-group-{command} --group-id {name} --ip-permissions"
                f" IpProtocol=-1,UserIdGroupPairs=[{{GroupId={name}}}]"
            )
    if any(rule["IpProtocol"] == ALL and {ANYWHERE, "::/0"} & _ranges(rule) for rule in ingress):
        messages.append(
            f"'{name}' allows everything in from everywhere. It must allow everything from itself, and only what the"
            " workers need from others"
        )
    # The contents of prefix lists and of other groups are not checked.
    blocks = private_ranges(settings, aws)
    if not any(
        _has_ports(rule, HTTPS, HTTPS)
        and (
            ANYWHERE in _ranges(rule)
            or _contains(rule, blocks)
            or rule.get("PrefixListIds")
            or _groups(rule) - {name}
        )
        for rule in egress
    ):
        messages.append(
            f"'{name}' allows no HTTPS out to AWS and the cluster's API. It must allow TCP port 443 out, to"
            f" everywhere or at least to {', '.join(blocks) or 'the private subnets'}"
        )
    # EKS's own group has the tag (https://docs.aws.amazon.com/eks/latest/userguide/sec-group-reqs.html).
    tag = f"kubernetes.io/cluster/{settings.cluster.name}"
    if tag in tags_of(found):
        messages.append(
            f"'{name}' has the tag {tag} of EKS's own group. Remove it: load balancer controllers refuse nodes with two"
            " such groups"
        )
    return messages


def check_endpoint_groups(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that required endpoints of an existing VPC allow HTTPS from the workers' group or all private subnets.

    Source: https://docs.aws.amazon.com/vpc/latest/privatelink/create-interface-endpoint.html
    """
    required = required_endpoints(settings)
    if not required:
        return []
    existing, ranges = endpoints(settings, aws), private_ranges(settings, aws)
    findings = []
    for endpoint in (
        each for name in required for each in existing if is_endpoint_of(each, settings.region, name)
    ):
        ids = [group["GroupId"] for group in endpoint.get("Groups") or []]
        groups = security_groups(aws, filter_by("group-id", *ids)) if ids else []
        is_open = allows_in(groups, ((HTTPS, HTTPS),), worker_groups(settings, aws), ranges)
        name = f"{endpoint['VpcEndpointId']} ({endpoint['ServiceName']})"
        if is_open is None:
            message = (
                f"the prefix lists of {name} do not show whether it allows HTTPS from the private subnets"
            )
            findings.append(Finding("trainyard:network.private", message, SKIPPED))
        elif not is_open:
            message = (
                f"is true, but {name} does not allow HTTPS from {', '.join(ranges)}. One of its security groups must"
                f" allow TCP port {HTTPS} from there"
            )
            findings.append(Finding("trainyard:network.private", message))
    return findings
