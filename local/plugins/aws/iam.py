"""IAM: roles, policies, attachments, instance profiles, OIDC providers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.resource import Props, Resource
from local.plugins.sdk import split_names


@dataclass(frozen=True, kw_only=True)
class _Row(Resource):
    service: str = "iam"
    busy_seconds: float = 60.0


def _text(document: Any) -> str:
    """Return a policy document as the JSON text of the outputs (boto3 decodes it, older answers are quoted)."""
    return unquote(document) if isinstance(document, str) else json.dumps(document, separators=(",", ":"))


def _role_name(value: Any) -> str:
    """Return a role's name from a name, or from the id of a role that the program passed as a resource."""
    return str(value).rsplit("/", 1)[-1]


# ------------------------------------------------------------------------------------------------- roles


class _OfRole(_Row):
    """What a role has. The program may pass the role's name or the role itself."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        return super().create(cloud, {**inputs, "role": _role_name(inputs["role"])})

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, {**new, "role": _role_name(new["role"])}, changed)


# ------------------------------------------------------------------------------------------------- policies


def _live_policy(cloud: Cloud, rid: str, _inputs: Props, found: Any) -> Props:
    get = cloud.client("iam").get_policy_version
    version = get(PolicyArn=rid, VersionId=found["DefaultVersionId"])["PolicyVersion"]
    return {"policy": _text(version["Document"])}


def _new_document(cloud: Cloud, rid: str, _old: Props, new: Props, changed: frozenset[str]) -> None:
    """Make a new document the default version."""
    if "policy" not in changed:
        return
    iam = cloud.client("iam")
    # A policy has at most five versions. Delete the oldest one that is not in use to make room.
    versions = iam.list_policy_versions(PolicyArn=rid)["Versions"]
    spare = sorted((v for v in versions if not v["IsDefaultVersion"]), key=lambda v: v["CreateDate"])
    if len(versions) >= 5:
        iam.delete_policy_version(PolicyArn=rid, VersionId=spare[0]["VersionId"])
    iam.create_policy_version(PolicyArn=rid, PolicyDocument=new["policy"], SetAsDefault=True)


def _delete_versions(cloud: Cloud, rid: str, _state: Props) -> None:
    iam = cloud.client("iam")
    for version in iam.list_policy_versions(PolicyArn=rid)["Versions"]:
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=rid, VersionId=version["VersionId"])


# ------------------------------------------------------------------------------------------------- profiles


def _empty_profile(cloud: Cloud, rid: str, _state: Props) -> None:
    iam = cloud.client("iam")
    for role in iam.get_instance_profile(InstanceProfileName=rid)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=rid, RoleName=role["RoleName"])


def _set_role(cloud: Cloud, rid: str, _old: Props, new: Props, changed: frozenset[str]) -> None:
    if "role" in changed:
        _empty_profile(cloud, rid, {})
        if new.get("role"):
            cloud.client("iam").add_role_to_instance_profile(
                InstanceProfileName=rid, RoleName=_role_name(new["role"])
            )


class _InstanceProfile(_Row):
    """An instance profile with at most one role."""

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        _set_role(cloud, rid, {}, inputs, frozenset(inputs))


def _live_profile(_cloud: Cloud, _rid: str, inputs: Props, found: Any) -> Props:
    roles = [role["RoleName"] for role in found["Roles"]]
    given = inputs.get("role")
    return {"role": given if given and roles == [_role_name(given)] else next(iter(roles), "")}


# ------------------------------------------------------------------------------------------------- OIDC


def _live_oidc(_cloud: Cloud, rid: str, inputs: Props, found: Any) -> Props:
    """Return the URL without scheme, as AWS does, unless the program set it with one."""
    url, given = str(found["Url"]).removeprefix("https://"), str(inputs.get("url", ""))
    return {"arn": rid, "url": given if given.removeprefix("https://") == url else url}


# ------------------------------------------------------------------------------------------------- the table

ROWS = (
    # Its policies are resources of their own.
    _Row(
        "aws:iam/role:Role",
        accepts=split_names("name assumeRolePolicy description tags"),
        documents=split_names("assumeRolePolicy"),
        auto_name="name",
        auto_name_limit=64,
        create_op="create_role",
        id="{name}",
        key="RoleName",
        read_op="get_role",
        found="Role",
        extras={"tags": ("list_role_tags", "Tags", {})},
        updates=(
            ("update_assume_role_policy", split_names("assumeRolePolicy")),
            ("update_role_description", split_names("description")),
        ),
        names={
            "name": "RoleName",
            "uniqueId": "RoleId",
            "assumeRolePolicy": "AssumeRolePolicyDocument PolicyDocument",
        },
        live=lambda _cloud, _rid, _inputs, found: {
            "assumeRolePolicy": _text(found["AssumeRolePolicyDocument"])
        },
        tag_op="tag_role",
        delete_op="delete_role",
    ),
    _Row(
        "aws:iam/policy:Policy",
        accepts=split_names("name path description policy tags"),
        documents=split_names("policy"),
        defaults={"path": "/"},
        auto_name="name",
        auto_name_limit=128,
        create_op="create_policy",
        id="Policy.Arn",
        key="PolicyArn",
        read_op="get_policy",
        found="Policy",
        extras={"tags": ("list_policy_tags", "Tags", {})},
        names={"name": "PolicyName", "policy": "PolicyDocument"},
        live=_live_policy,
        changes=split_names("policy"),
        change=_new_document,
        tag_op="tag_policy",
        before_delete=_delete_versions,
        delete_op="delete_policy",
    ),
    _OfRole(
        "aws:iam/rolePolicy:RolePolicy",
        accepts=split_names("name role policy"),
        documents=split_names("policy"),
        auto_name="name",
        auto_name_limit=128,
        put=True,
        create_op="put_role_policy",
        id="{role}:{name}",
        key="RoleName:PolicyName",
        read_op="get_role_policy",
        names={"name": "PolicyName", "role": "RoleName", "policy": "PolicyDocument"},
        live=lambda _cloud, rid, inputs, found: {
            "role": inputs.get("role", rid.partition(":")[0]),
            "policy": _text(found["PolicyDocument"]),
        },
        delete_op="delete_role_policy",
    ),
    _OfRole(
        "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
        accepts=split_names("role policyArn"),
        create_op="attach_role_policy",
        id="{role}/{policyArn}",
        key="RoleName/PolicyArn",
        read_op="list_attached_role_policies",
        found="AttachedPolicies[?PolicyArn=='{PolicyArn}'] | [0]",
        names={"role": "RoleName"},
        live=lambda _cloud, rid, inputs, _found: {"role": inputs.get("role", rid.partition("/")[0])},
        delete_op="detach_role_policy",
    ),
    _InstanceProfile(
        "aws:iam/instanceProfile:InstanceProfile",
        accepts=split_names("name path role tags"),
        defaults={"path": "/"},
        auto_name="name",
        auto_name_limit=128,
        create_op="create_instance_profile",
        id="{name}",
        key="InstanceProfileName",
        read_op="get_instance_profile",
        found="InstanceProfile",
        names={"name": "InstanceProfileName", "uniqueId": "InstanceProfileId"},
        live=_live_profile,
        changes=split_names("role"),
        change=_set_role,
        tag_op="tag_instance_profile",
        before_delete=_empty_profile,
        delete_op="delete_instance_profile",
    ),
    _Row(
        "aws:iam/openIdConnectProvider:OpenIdConnectProvider",
        accepts=split_names("url clientIdLists thumbprintLists tags"),
        # The emulator has no operation for the clients.
        unordered=split_names("clientIdLists"),
        create_op="create_open_id_connect_provider",
        id="OpenIDConnectProviderArn",
        key="OpenIDConnectProviderArn",
        read_op="get_open_id_connect_provider",
        updates=(("update_open_id_connect_provider_thumbprint", split_names("thumbprintLists")),),
        names={"clientIdLists": "ClientIDList", "thumbprintLists": "ThumbprintList"},
        live=_live_oidc,
        tag_op="tag_open_id_connect_provider",
        delete_op="delete_open_id_connect_provider",
    ),
)
