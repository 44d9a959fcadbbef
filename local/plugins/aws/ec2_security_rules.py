"""Rules of EC2 security groups, as `aws.ec2.SecurityGroupRule` and as `aws.vpc.SecurityGroup{Ingress,Egress}Rule`."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, error_code
from local.plugins.aws.ec2_network import Ec2Handler, only
from local.plugins.aws.ec2_security import describe, permission
from local.plugins.aws.resource import Handler, Props, listed, serves, tag_map


@serves
class SecurityGroupRule(Handler):
    """The permissions of one `aws.ec2.SecurityGroupRule` in one direction. Only the text changes in place."""

    token = "aws:ec2/securityGroupRule:SecurityGroupRule"
    accepts = frozenset(
        {
            "type",
            "securityGroupId",
            "protocol",
            "fromPort",
            "toPort",
            "cidrBlocks",
            "ipv6CidrBlocks",
            "prefixListIds",
            "sourceSecurityGroupId",
            "self",
            "description",
        }
    )
    required = frozenset({"type", "securityGroupId", "protocol", "fromPort", "toPort"})
    replaces = accepts - {"description"}

    def check(self, inputs: Props) -> list[tuple[str, str]]:
        if inputs.get("type") in ("ingress", "egress"):
            return []
        return [("type", f"is {inputs.get('type')!r}; must be ingress or egress")]

    def _permission(self, rule: Props) -> Props:
        source = rule.get("sourceSecurityGroupId")
        sources = [source] if source else []
        return permission(rule, [*sources, *([rule["securityGroupId"]] if rule.get("self") else [])])

    def _single(self, rule: Props) -> Props:
        """Return the rule in the form of ModifySecurityGroupRules, which accepts one source."""
        made = {"IpProtocol": rule["protocol"], "Description": rule.get("description", "")}
        if rule["protocol"] not in ("-1", "all"):
            made |= {"FromPort": rule["fromPort"], "ToPort": rule["toPort"]}
        if rule.get("cidrBlocks"):
            return {**made, "CidrIpv4": rule["cidrBlocks"][0]}
        source = rule["securityGroupId"] if rule.get("self") else rule["sourceSecurityGroupId"]
        return {**made, "ReferencedGroupId": source}

    def create(self, cloud: Cloud, inputs: Props) -> str:
        ec2 = cloud.client("ec2")
        call = (
            ec2.authorize_security_group_ingress
            if inputs["type"] == "ingress"
            else ec2.authorize_security_group_egress
        )
        call(GroupId=inputs["securityGroupId"], IpPermissions=[self._permission(inputs)])
        text = json.dumps({k: v for k, v in inputs.items() if k in self.replaces}, sort_keys=True)
        return f"sgrule-{int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        own = inputs["securityGroupId"]
        group = describe(cloud, own)
        if group is None:
            return None
        name = "IpPermissions" if inputs["type"] == "ingress" else "IpPermissionsEgress"
        protocol = self._permission(inputs)
        cidrs: list[str] = []
        sources: list[str] = []
        texts: set[str] = set()
        for item in group.get(name, []):
            alike = all(item.get(k) == protocol.get(k) for k in ("IpProtocol",)) and (
                protocol["IpProtocol"] == "-1"
                or (item.get("FromPort"), item.get("ToPort")) == (protocol["FromPort"], protocol["ToPort"])
            )
            if not alike:
                continue
            for part, field, found in (
                ("IpRanges", "CidrIp", cidrs),
                ("UserIdGroupPairs", "GroupId", sources),
            ):
                wanted = {entry[field] for entry in listed(protocol.get(part))}
                for entry in listed(item.get(part)):
                    if entry[field] in wanted:
                        found.append(entry[field])
                        texts.add(entry.get("Description", ""))
        expected = len(listed(protocol.get("IpRanges"))) + len(listed(protocol.get("UserIdGroupPairs")))
        if expected and not cidrs and not sources:
            return None
        live = {key: inputs.get(key) for key in ("type", "securityGroupId", "protocol", "fromPort", "toPort")}
        rule = self._rule(cloud, inputs)
        live["securityGroupRuleId"] = rule.get("SecurityGroupRuleId", "")
        text = texts.pop() if len(texts) == 1 else inputs.get("description", "")
        # Only here the emulator returns a changed description of a rule between groups.
        live["description"] = rule.get("Description") or text
        if inputs.get("cidrBlocks"):
            live["cidrBlocks"] = [c for c in inputs["cidrBlocks"] if c in cidrs]
        if inputs.get("self"):
            live["self"] = own in sources
        else:
            live["sourceSecurityGroupId"] = next(iter(sources), "")
        return live

    def _rule(self, cloud: Cloud, inputs: Props) -> Any:
        """Return the API's rule if the resource is exactly one, otherwise nothing.

        The official provider outputs its id in the same way.
        """
        answer = cloud.client("ec2").describe_security_group_rules(
            Filters=[{"Name": "group-id", "Values": [inputs["securityGroupId"]]}]
        )
        found = []
        for rule in answer["SecurityGroupRules"]:
            ports = inputs["protocol"] in ("-1", "all") or (rule.get("FromPort"), rule.get("ToPort")) == (
                inputs["fromPort"],
                inputs["toPort"],
            )
            source = rule.get("ReferencedGroupInfo", {}).get("GroupId")
            target = inputs.get("sourceSecurityGroupId") or (
                inputs["securityGroupId"] if inputs.get("self") else None
            )
            matches = source == target if target else rule.get("CidrIpv4") in listed(inputs.get("cidrBlocks"))
            if bool(rule.get("IsEgress")) == (inputs["type"] == "egress") and ports and matches:
                found.append(rule)
        return found[0] if len(found) == 1 else {}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        ec2 = cloud.client("ec2")
        rule_id = self._rule(cloud, new).get("SecurityGroupRuleId")
        if rule_id:
            # By its id: the emulator's call for descriptions ignores rules between groups.
            ec2.modify_security_group_rules(
                GroupId=new["securityGroupId"],
                SecurityGroupRules=[
                    {"SecurityGroupRuleId": rule_id, "SecurityGroupRule": self._single(new)},
                ],
            )
            return
        call = (
            ec2.update_security_group_rule_descriptions_ingress
            if new["type"] == "ingress"
            else ec2.update_security_group_rule_descriptions_egress
        )
        call(GroupId=new["securityGroupId"], IpPermissions=[self._permission(new)])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        ec2 = cloud.client("ec2")
        call = (
            ec2.revoke_security_group_ingress
            if state["type"] == "ingress"
            else ec2.revoke_security_group_egress
        )
        try:
            call(GroupId=state["securityGroupId"], IpPermissions=[self._permission(state)])
        except Exception as error:
            if error_code(error) not in ("InvalidPermission.NotFound", "InvalidGroup.NotFound"):
                raise


class _VpcRule(Ec2Handler):
    """One rule with its own id (`aws.vpc.SecurityGroup{Ingress,Egress}Rule`)."""

    kind = "security-group-rule"
    accepts: ClassVar[frozenset[str]] = frozenset(
        {
            "securityGroupId",
            "ipProtocol",
            "fromPort",
            "toPort",
            "cidrIpv4",
            "cidrIpv6",
            "prefixListId",
            "referencedSecurityGroupId",
            "description",
            "tags",
        }
    )
    required = frozenset({"securityGroupId", "ipProtocol"})
    replaces = frozenset({"securityGroupId"})
    egress: ClassVar[bool]

    def create(self, cloud: Cloud, inputs: Props) -> str:
        rule = {
            "protocol": inputs["ipProtocol"],
            "fromPort": inputs.get("fromPort", 0),
            "toPort": inputs.get("toPort", 0),
            "description": inputs.get("description"),
            "cidrBlocks": [inputs["cidrIpv4"]] if inputs.get("cidrIpv4") else [],
            "ipv6CidrBlocks": [inputs["cidrIpv6"]] if inputs.get("cidrIpv6") else [],
            "prefixListIds": [inputs["prefixListId"]] if inputs.get("prefixListId") else [],
        }
        source = inputs.get("referencedSecurityGroupId")
        ec2 = cloud.client("ec2")
        call = ec2.authorize_security_group_egress if self.egress else ec2.authorize_security_group_ingress
        answer = call(
            GroupId=inputs["securityGroupId"],
            IpPermissions=[permission(rule, [source] if source else [])],
            **self.tag_specification(inputs),
        )
        return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        rules = cloud.client("ec2").describe_security_group_rules(SecurityGroupRuleIds=[rid])
        rule = only([r for r in rules["SecurityGroupRules"] if r["SecurityGroupRuleId"] == rid])
        if rule is None:
            return None
        live = {
            "arn": cloud.arn("ec2", f"security-group-rule/{rid}"),
            "securityGroupRuleId": rid,
            "securityGroupId": rule["GroupId"],
            "ipProtocol": rule["IpProtocol"],
            "cidrIpv4": rule.get("CidrIpv4", ""),
            "cidrIpv6": rule.get("CidrIpv6", ""),
            "prefixListId": rule.get("PrefixListId", ""),
            "referencedSecurityGroupId": rule.get("ReferencedGroupInfo", {}).get("GroupId", ""),
            "description": rule.get("Description") or self._text(cloud, rule),
            "tags": tag_map(rule.get("Tags")),
        }
        if rule["IpProtocol"] != "-1":
            live |= {"fromPort": rule.get("FromPort"), "toPort": rule.get("ToPort")}
        return live

    def _text(self, cloud: Cloud, rule: Any) -> str:
        """Return a rule's description as its group reports it: the emulator leaves it out of rules between groups."""
        source = rule.get("ReferencedGroupInfo", {}).get("GroupId")
        group = describe(cloud, rule["GroupId"]) if source else None
        for item in (group or {}).get("IpPermissionsEgress" if self.egress else "IpPermissions", []):
            ports = (item["IpProtocol"], item.get("FromPort", -1), item.get("ToPort", -1))
            if ports != (rule["IpProtocol"], rule.get("FromPort", -1), rule.get("ToPort", -1)):
                continue
            for pair in item.get("UserIdGroupPairs", []):
                if pair["GroupId"] == source:
                    return str(pair.get("Description", ""))
        return ""

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        if changed - {"tags"}:
            rule = {
                "IpProtocol": new["ipProtocol"],
                # -1 is the API's form of "all ports". The emulator requires it.
                "FromPort": new.get("fromPort", -1),
                "ToPort": new.get("toPort", -1),
                "CidrIpv4": new.get("cidrIpv4"),
                "CidrIpv6": new.get("cidrIpv6"),
                "PrefixListId": new.get("prefixListId"),
                "ReferencedGroupId": new.get("referencedSecurityGroupId"),
                "Description": new.get("description"),
            }
            cloud.client("ec2").modify_security_group_rules(
                GroupId=new["securityGroupId"],
                SecurityGroupRules=[
                    {
                        "SecurityGroupRuleId": rid,
                        "SecurityGroupRule": {k: v for k, v in rule.items() if v is not None},
                    }
                ],
            )

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        ec2 = cloud.client("ec2")
        call = ec2.revoke_security_group_egress if self.egress else ec2.revoke_security_group_ingress
        call(GroupId=state["securityGroupId"], SecurityGroupRuleIds=[rid])


@serves
class SecurityGroupIngressRule(_VpcRule):
    """One rule of traffic into the group."""

    token = "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
    egress = False


@serves
class SecurityGroupEgressRule(_VpcRule):
    """One rule of traffic out of the group."""

    token = "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule"
    egress = True
