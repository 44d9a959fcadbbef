"""IAM resources: roles, policies, attachments, instance profiles."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar
from urllib.parse import unquote

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.resource import (
    Handler,
    Props,
    listed,
    random_name,
    serves,
    tag_changes,
    tag_list,
    tag_map,
    upper,
)


def text_of(document: Any) -> str:
    """Return a policy document as the JSON text of the outputs (boto3 decodes it, older answers are quoted)."""
    return unquote(document) if isinstance(document, str) else json.dumps(document, separators=(",", ":"))


def retag(old: Props, new: Props, untag: Callable[..., Any], tag: Callable[..., Any], **subject: str) -> None:
    """Apply a change of tags by the Untag and Tag calls of IAM."""
    gone, put = tag_changes(old, new)
    if gone:
        untag(TagKeys=gone, **subject)
    if put:
        tag(Tags=tag_list(put), **subject)


def names_of(value: Any) -> str:
    """Return a role's name from a name, or from the id of a role that the program passed as a resource."""
    return str(value).rsplit("/", 1)[-1]


@serves
class Role(Handler):
    """A role with its trust policy, inline policies and attached managed policies."""

    token = "aws:iam/role:Role"
    accepts = frozenset(
        {
            "name",
            "namePrefix",
            "path",
            "assumeRolePolicy",
            "description",
            "forceDetachPolicies",
            "inlinePolicies",
            "managedPolicyArns",
            "maxSessionDuration",
            "permissionsBoundary",
            "tags",
        }
    )
    required = frozenset({"assumeRolePolicy"})
    replaces = frozenset({"name", "namePrefix", "path"})
    unordered = frozenset({"inlinePolicies", "managedPolicyArns"})
    documents = frozenset({"assumeRolePolicy", "policy"})
    write_only = frozenset({"forceDetachPolicies", "namePrefix"})
    defaults: ClassVar[Props] = {"maxSessionDuration": 3600, "path": "/", "forceDetachPolicies": False}
    auto_name = "name"
    auto_name_limit = 64
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 64)
        answer = cloud.client("iam").create_role(
            RoleName=name,
            AssumeRolePolicyDocument=inputs["assumeRolePolicy"],
            **upper(inputs, ["path", "description", "maxSessionDuration", "permissionsBoundary"]),
            **({"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}),
        )
        return str(answer["Role"]["RoleName"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        self._policies(cloud, rid, {}, inputs)

    def _policies(self, cloud: Cloud, rid: str, old: Props, new: Props) -> None:
        iam = cloud.client("iam")
        before = {p["name"]: p for p in listed(old.get("inlinePolicies"))}
        after = {p["name"]: p for p in listed(new.get("inlinePolicies"))}
        for name in before.keys() - after.keys():
            iam.delete_role_policy(RoleName=rid, PolicyName=name)
        for name, policy in after.items():
            if before.get(name) != policy:
                iam.put_role_policy(RoleName=rid, PolicyName=name, PolicyDocument=policy["policy"])
        attached, wanted = (
            set(listed(old.get("managedPolicyArns"))),
            set(listed(new.get("managedPolicyArns"))),
        )
        for arn in sorted(attached - wanted):
            iam.detach_role_policy(RoleName=rid, PolicyArn=arn)
        for arn in sorted(wanted - attached):
            iam.attach_role_policy(RoleName=rid, PolicyArn=arn)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        iam = cloud.client("iam")
        role = iam.get_role(RoleName=rid)["Role"]
        live = {
            "arn": role["Arn"],
            "name": role["RoleName"],
            "path": role["Path"],
            "uniqueId": role["RoleId"],
            "createDate": role["CreateDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
            "assumeRolePolicy": text_of(role["AssumeRolePolicyDocument"]),
            "description": role.get("Description", ""),
            "maxSessionDuration": role.get("MaxSessionDuration", 3600),
            "permissionsBoundary": role.get("PermissionsBoundary", {}).get("PermissionsBoundaryArn", ""),
            "tags": tag_map(iam.list_role_tags(RoleName=rid)["Tags"]),
        }
        # Only if the program manages them here: separate attachment resources add to both lists.
        if inputs.get("managedPolicyArns") is not None:
            attached = iam.list_attached_role_policies(RoleName=rid)["AttachedPolicies"]
            live["managedPolicyArns"] = [policy["PolicyArn"] for policy in attached]
        if inputs.get("inlinePolicies") is not None:
            live["inlinePolicies"] = [
                {
                    "name": name,
                    "policy": text_of(iam.get_role_policy(RoleName=rid, PolicyName=name)["PolicyDocument"]),
                }
                for name in iam.list_role_policies(RoleName=rid)["PolicyNames"]
            ]
        return live

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        iam = cloud.client("iam")
        if "assumeRolePolicy" in changed:
            iam.update_assume_role_policy(RoleName=rid, PolicyDocument=new["assumeRolePolicy"])
        if changed & {"description", "maxSessionDuration"}:
            iam.update_role(
                RoleName=rid,
                Description=new.get("description", ""),
                MaxSessionDuration=new["maxSessionDuration"],
            )
        if "permissionsBoundary" in changed:
            if new.get("permissionsBoundary"):
                iam.put_role_permissions_boundary(
                    RoleName=rid, PermissionsBoundary=new["permissionsBoundary"]
                )
            else:
                iam.delete_role_permissions_boundary(RoleName=rid)
        if changed & {"inlinePolicies", "managedPolicyArns"}:
            self._policies(cloud, rid, old, new)
        if "tags" in changed:
            retag(old, new, iam.untag_role, iam.tag_role, RoleName=rid)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        iam = cloud.client("iam")
        own = set(listed(state.get("managedPolicyArns")))
        for policy in iam.list_attached_role_policies(RoleName=rid)["AttachedPolicies"]:
            if state.get("forceDetachPolicies") or policy["PolicyArn"] in own:
                iam.detach_role_policy(RoleName=rid, PolicyArn=policy["PolicyArn"])
        inline = {policy["name"] for policy in listed(state.get("inlinePolicies"))}
        for name in iam.list_role_policies(RoleName=rid)["PolicyNames"]:
            if state.get("forceDetachPolicies") or name in inline:
                iam.delete_role_policy(RoleName=rid, PolicyName=name)
        retry_busy(lambda: iam.delete_role(RoleName=rid), 60)


@serves
class Policy(Handler):
    """A customer managed policy. Its id is its ARN. A new document becomes the default version."""

    token = "aws:iam/policy:Policy"
    accepts = frozenset({"name", "namePrefix", "path", "description", "policy", "tags"})
    required = frozenset({"policy"})
    replaces = frozenset({"name", "namePrefix", "path", "description"})
    documents = frozenset({"policy"})
    write_only = frozenset({"namePrefix"})
    defaults: ClassVar[Props] = {"path": "/"}
    auto_name = "name"
    auto_name_limit = 128
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 128)
        answer = cloud.client("iam").create_policy(
            PolicyName=name,
            PolicyDocument=inputs["policy"],
            **upper(inputs, ["path", "description"]),
            **({"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}),
        )
        return str(answer["Policy"]["Arn"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        iam = cloud.client("iam")
        policy = iam.get_policy(PolicyArn=rid)["Policy"]
        version = iam.get_policy_version(PolicyArn=rid, VersionId=policy["DefaultVersionId"])
        return {
            "arn": rid,
            "name": policy["PolicyName"],
            "path": policy["Path"],
            "policyId": policy["PolicyId"],
            "description": policy.get("Description", ""),
            "policy": text_of(version["PolicyVersion"]["Document"]),
            "tags": tag_map(iam.list_policy_tags(PolicyArn=rid)["Tags"]),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        iam = cloud.client("iam")
        if "policy" in changed:
            # A policy has at most five versions. Delete the oldest one that is not in use to make room.
            versions = iam.list_policy_versions(PolicyArn=rid)["Versions"]
            spare = sorted((v for v in versions if not v["IsDefaultVersion"]), key=lambda v: v["CreateDate"])
            if len(versions) >= 5:
                iam.delete_policy_version(PolicyArn=rid, VersionId=spare[0]["VersionId"])
            iam.create_policy_version(PolicyArn=rid, PolicyDocument=new["policy"], SetAsDefault=True)
        if "tags" in changed:
            retag(old, new, iam.untag_policy, iam.tag_policy, PolicyArn=rid)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        iam = cloud.client("iam")
        for version in iam.list_policy_versions(PolicyArn=rid)["Versions"]:
            if not version["IsDefaultVersion"]:
                iam.delete_policy_version(PolicyArn=rid, VersionId=version["VersionId"])
        retry_busy(lambda: iam.delete_policy(PolicyArn=rid), 60)


@serves
class RolePolicy(Handler):
    """An inline policy of a role. Its id is `<role>:<policy>`."""

    token = "aws:iam/rolePolicy:RolePolicy"
    accepts = frozenset({"name", "namePrefix", "role", "policy"})
    required = frozenset({"role", "policy"})
    replaces = frozenset({"name", "namePrefix", "role"})
    documents = frozenset({"policy"})
    write_only = frozenset({"namePrefix"})
    auto_name = "name"
    auto_name_limit = 128

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 128)
        self._put(cloud, names_of(inputs["role"]), name, inputs["policy"])
        return f"{names_of(inputs['role'])}:{name}"

    def _put(self, cloud: Cloud, role: str, name: str, policy: str) -> None:
        cloud.client("iam").put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=policy)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        role, _, name = rid.partition(":")
        answer = cloud.client("iam").get_role_policy(RoleName=role, PolicyName=name)
        return {"role": inputs.get("role", role), "name": name, "policy": text_of(answer["PolicyDocument"])}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        role, _, name = rid.partition(":")
        self._put(cloud, role, name, new["policy"])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        role, _, name = rid.partition(":")
        cloud.client("iam").delete_role_policy(RoleName=role, PolicyName=name)


@serves
class RolePolicyAttachment(Handler):
    """A managed policy attached to a role. Its id is `<role>/<policy ARN>`."""

    token = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
    accepts = frozenset({"role", "policyArn"})
    required = accepts
    replaces = accepts

    def create(self, cloud: Cloud, inputs: Props) -> str:
        role = names_of(inputs["role"])
        cloud.client("iam").attach_role_policy(RoleName=role, PolicyArn=inputs["policyArn"])
        return f"{role}/{inputs['policyArn']}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        role, _, arn = rid.partition("/")
        pages = cloud.client("iam").get_paginator("list_attached_role_policies").paginate(RoleName=role)
        if not any(policy["PolicyArn"] == arn for page in pages for policy in page["AttachedPolicies"]):
            return None
        return {"role": inputs.get("role", role), "policyArn": arn}

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        role, _, arn = rid.partition("/")
        cloud.client("iam").detach_role_policy(RoleName=role, PolicyArn=arn)


@serves
class InstanceProfile(Handler):
    """An instance profile with at most one role."""

    token = "aws:iam/instanceProfile:InstanceProfile"
    accepts = frozenset({"name", "namePrefix", "path", "role", "tags"})
    replaces = frozenset({"name", "namePrefix", "path"})
    write_only = frozenset({"namePrefix"})
    defaults: ClassVar[Props] = {"path": "/"}
    auto_name = "name"
    auto_name_limit = 128
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 128)
        cloud.client("iam").create_instance_profile(
            InstanceProfileName=name,
            Path=inputs["path"],
            **({"Tags": tag_list(inputs["tags"])} if inputs.get("tags") else {}),
        )
        return str(name)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("role"):
            cloud.client("iam").add_role_to_instance_profile(
                InstanceProfileName=rid, RoleName=names_of(inputs["role"])
            )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        profile = cloud.client("iam").get_instance_profile(InstanceProfileName=rid)["InstanceProfile"]
        roles = [role["RoleName"] for role in profile["Roles"]]
        given = inputs.get("role")
        return {
            "arn": profile["Arn"],
            "name": profile["InstanceProfileName"],
            "path": profile["Path"],
            "uniqueId": profile["InstanceProfileId"],
            "createDate": profile["CreateDate"].strftime("%Y-%m-%dT%H:%M:%SZ"),
            "role": given if given and roles == [names_of(given)] else next(iter(roles), ""),
            "tags": tag_map(profile.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        iam = cloud.client("iam")
        if "role" in changed:
            self._empty(cloud, rid)
            self.finish(cloud, rid, new)
        if "tags" in changed:
            retag(old, new, iam.untag_instance_profile, iam.tag_instance_profile, InstanceProfileName=rid)

    def _empty(self, cloud: Cloud, rid: str) -> None:
        iam = cloud.client("iam")
        for role in iam.get_instance_profile(InstanceProfileName=rid)["InstanceProfile"]["Roles"]:
            iam.remove_role_from_instance_profile(InstanceProfileName=rid, RoleName=role["RoleName"])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        self._empty(cloud, rid)
        cloud.client("iam").delete_instance_profile(InstanceProfileName=rid)
