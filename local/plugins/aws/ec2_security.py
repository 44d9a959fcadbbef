"""Security groups of EC2: those of the program, and the default group of a VPC."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.ec2_network import Ec2Handler, only
from local.plugins.aws.resource import Props, listed, random_name, serves, tag_map

_RULE_LISTS = frozenset(
    {"ingress", "egress", "cidrBlocks", "ipv6CidrBlocks", "prefixListIds", "securityGroups"}
)


def permission(rule: Mapping[str, Any], sources: Iterable[str]) -> Props:
    """Return an `IpPermission` of the API for a rule with the SDK's names. `sources` are security group ids."""
    protocol = str(rule.get("protocol", "-1")).lower()
    protocol = "-1" if protocol == "all" else protocol
    text = {"Description": rule["description"]} if rule.get("description") else {}
    made: Props = {"IpProtocol": protocol}
    if protocol != "-1":
        made |= {"FromPort": int(rule["fromPort"]), "ToPort": int(rule["toPort"])}
    for name, key, field in (
        ("IpRanges", "cidrBlocks", "CidrIp"),
        ("Ipv6Ranges", "ipv6CidrBlocks", "CidrIpv6"),
        ("PrefixListIds", "prefixListIds", "PrefixListId"),
    ):
        if rule.get(key):
            made[name] = [{field: value, **text} for value in rule[key]]
    groups = list(sources)
    if groups:
        made["UserIdGroupPairs"] = [{"GroupId": group, **text} for group in groups]
    return made


def rules_of(permissions: Iterable[Mapping[str, Any]], own: str) -> list[Props]:
    """Return the API's permissions as rules with the SDK's names, one per protocol, ports and description."""
    merged: dict[str, Props] = {}
    for item in permissions:
        base = {
            "protocol": item["IpProtocol"],
            "fromPort": item.get("FromPort", 0) if item["IpProtocol"] != "-1" else 0,
            "toPort": item.get("ToPort", 0) if item["IpProtocol"] != "-1" else 0,
        }
        for name, key, field in (
            ("IpRanges", "cidrBlocks", "CidrIp"),
            ("Ipv6Ranges", "ipv6CidrBlocks", "CidrIpv6"),
            ("PrefixListIds", "prefixListIds", "PrefixListId"),
            ("UserIdGroupPairs", "securityGroups", "GroupId"),
        ):
            for entry in listed(item.get(name)):
                text = {"description": entry["Description"]} if entry.get("Description") else {}
                rule = merged.setdefault(json.dumps([base, text], sort_keys=True), {**base, **text})
                if entry[field] == own:
                    rule["self"] = True
                else:
                    rule.setdefault(key, []).append(entry[field])
    return list(merged.values())


def _plain(rule: Mapping[str, Any]) -> Props:
    """Return a rule of the program without empty parts, for the comparison with a live one."""
    return {key: value for key, value in rule.items() if value not in (None, "", False, [])} | {
        "fromPort": int(rule.get("fromPort", 0)),
        "toPort": int(rule.get("toPort", 0)),
    }


def _sources(rule: Mapping[str, Any], own: str) -> list[str]:
    return [*listed(rule.get("securityGroups")), *([own] if rule.get("self") else [])]


def _key(rule: Mapping[str, Any]) -> str:
    return json.dumps(
        {k: sorted(v) if isinstance(v, list) else v for k, v in _plain(rule).items()}, sort_keys=True
    )


def set_rules(cloud: Cloud, group: str, direction: str, wanted: list[Props], live: list[Props]) -> None:
    """Revoke live rules that are not wanted, then authorize wanted rules that are not live."""
    ec2 = cloud.client("ec2")
    revoke = ec2.revoke_security_group_ingress if direction == "ingress" else ec2.revoke_security_group_egress
    allow = (
        ec2.authorize_security_group_ingress
        if direction == "ingress"
        else ec2.authorize_security_group_egress
    )
    old, new = {_key(rule): rule for rule in live}, {_key(rule): rule for rule in wanted}
    surplus = [permission(rule, _sources(rule, group)) for key, rule in old.items() if key not in new]
    missing = [permission(rule, _sources(rule, group)) for key, rule in new.items() if key not in old]
    if surplus:
        revoke(GroupId=group, IpPermissions=surplus)
    if missing:
        allow(GroupId=group, IpPermissions=missing)


def describe(cloud: Cloud, group: str) -> Any | None:
    """Return the group as the API describes it, or None."""
    return only(cloud.client("ec2").describe_security_groups(GroupIds=[group])["SecurityGroups"])


@serves
class SecurityGroup(Ec2Handler):
    """A security group. Like the official provider, it removes the rule "all egress" that AWS adds."""

    token: ClassVar[str] = "aws:ec2/securityGroup:SecurityGroup"
    kind = "security-group"
    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            "name",
            "namePrefix",
            "description",
            "vpcId",
            "ingress",
            "egress",
            "revokeRulesOnDelete",
            "tags",
        }
    )
    replaces = frozenset({"name", "namePrefix", "description", "vpcId"})
    unordered = _RULE_LISTS
    write_only = frozenset({"revokeRulesOnDelete", "namePrefix"})
    defaults: ClassVar[Props] = {"description": "Managed by Pulumi", "revokeRulesOnDelete": False}
    auto_name: ClassVar[str | None] = "name"

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 255)
        arguments = {"GroupName": name, "Description": inputs["description"]}
        if inputs.get("vpcId"):
            arguments["VpcId"] = inputs["vpcId"]
        answer = cloud.client("ec2").create_security_group(**arguments, **self.tag_specification(inputs))
        return str(answer["GroupId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        live = self.read(cloud, rid, {}) or {}
        for direction in ("ingress", "egress"):
            wanted = [_plain(rule) for rule in listed(inputs.get(direction))]
            set_rules(cloud, rid, direction, wanted, listed(live.get(direction)))

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        group = describe(cloud, rid)
        if group is None:
            return None
        live = {
            "arn": cloud.arn("ec2", f"security-group/{rid}"),
            "name": group["GroupName"],
            "description": group["Description"],
            "vpcId": group.get("VpcId", ""),
            "ownerId": group.get("OwnerId", cloud.account),
            "tags": tag_map(group.get("Tags")),
        }
        for direction, name in (("ingress", "IpPermissions"), ("egress", "IpPermissionsEgress")):
            rules = rules_of(group.get(name, []), rid)
            given = inputs.get(direction)
            # Keep the program's spelling if it means the same (empty lists, `self: false`).
            # Rules that are separate resources are no output of the group: they would look like drift.
            if given is not None or not inputs:
                agrees = given is not None and {_key(r) for r in given} == {_key(r) for r in rules}
                live[direction] = given if agrees else rules
        return live

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        live = self.read(cloud, rid, {}) or {}
        for direction in sorted(changed & {"ingress", "egress"}):
            if new.get(direction) is not None:
                wanted = [_plain(rule) for rule in new[direction]]
                set_rules(cloud, rid, direction, wanted, listed(live.get(direction)))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        if state.get("revokeRulesOnDelete"):
            live = self.read(cloud, rid, {}) or {}
            for direction in ("ingress", "egress"):
                set_rules(cloud, rid, direction, [], listed(live.get(direction)))
        retry_busy(lambda: cloud.client("ec2").delete_security_group(GroupId=rid))


@serves
class DefaultSecurityGroup(SecurityGroup):
    """A VPC's own default group. Creation replaces its rules by the program's; deletion changes nothing."""

    token = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
    accepts = frozenset({"vpcId", "ingress", "egress", "revokeRulesOnDelete", "tags"})
    replaces = frozenset({"vpcId"})
    required = frozenset({"vpcId"})
    defaults: ClassVar[Props] = {"revokeRulesOnDelete": False}
    auto_name = None

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").describe_security_groups(
            Filters=[
                {"Name": "vpc-id", "Values": [inputs["vpcId"]]},
                {"Name": "group-name", "Values": ["default"]},
            ]
        )
        group = only(answer["SecurityGroups"])
        if group is None:
            raise LookupError(f"VPC {inputs['vpcId']} has no default security group")
        return str(group["GroupId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        super().finish(cloud, rid, inputs)
        self.retag(cloud, rid, {}, inputs)

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, {"ingress": [], "egress": [], **new}, changed)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        return None
