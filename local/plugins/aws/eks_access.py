"""EKS: add-ons, access entries and their policies."""

from __future__ import annotations

import json
from typing import Any

from local.plugins.aws.cloud import Cloud, absent, wait_until
from local.plugins.aws.eks import plain_tags, retag, settled
from local.plugins.aws.resource import Handler, Props, listed, serves

# The official provider's deadline for add-ons.
ADDON_SECONDS = 1200.0


@serves
class Addon(Handler):
    """An EKS add-on. Its id is `<cluster>:<add-on>`. Creation waits for ACTIVE."""

    token = "aws:eks/addon:Addon"
    accepts = frozenset(
        {
            "clusterName",
            "addonName",
            "addonVersion",
            "configurationValues",
            "preserve",
            "resolveConflictsOnCreate",
            "resolveConflictsOnUpdate",
            "serviceAccountRoleArn",
            "tags",
        }
    )
    required = frozenset({"clusterName", "addonName"})
    replaces = frozenset({"clusterName", "addonName"})
    documents = frozenset({"configurationValues"})
    write_only = frozenset({"preserve", "resolveConflictsOnCreate", "resolveConflictsOnUpdate"})
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        arguments = {
            key: inputs[key]
            for key in (
                "clusterName",
                "addonName",
                "addonVersion",
                "configurationValues",
                "serviceAccountRoleArn",
            )
            if inputs.get(key)
        }
        if inputs.get("resolveConflictsOnCreate"):
            arguments["resolveConflicts"] = inputs["resolveConflictsOnCreate"]
        cloud.client("eks").create_addon(**arguments, tags=inputs.get("tags") or {})
        return f"{inputs['clusterName']}:{inputs['addonName']}"

    def _live(self, cloud: Cloud, rid: str) -> Any:
        cluster, _, name = rid.partition(":")
        return cloud.client("eks").describe_addon(clusterName=cluster, addonName=name)["addon"]

    def _settle(self, cloud: Cloud, rid: str) -> None:
        def ready() -> bool:
            live = self._live(cloud, rid)
            return settled(f"add-on {rid}", live["status"], live.get("health", {}).get("issues"))

        wait_until(f"add-on {rid} ACTIVE", ready, ADDON_SECONDS)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        self._settle(cloud, rid)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = self._live(cloud, rid)
        if found["status"] == "DELETING":
            return None
        live = {
            "arn": found["addonArn"],
            "clusterName": found["clusterName"],
            "addonName": found["addonName"],
            "addonVersion": found.get("addonVersion", ""),
            "configurationValues": found.get("configurationValues", ""),
            "serviceAccountRoleArn": found.get("serviceAccountRoleArn", ""),
            "createdAt": str(found.get("createdAt", "")),
            "modifiedAt": str(found.get("modifiedAt", "")),
            "tags": plain_tags(found.get("tags")),
        }
        given = inputs.get("configurationValues")
        if given and live["configurationValues"]:
            alike = json.loads(given) == json.loads(live["configurationValues"])
            live["configurationValues"] = given if alike else live["configurationValues"]
        return live

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        if changed & {"addonVersion", "configurationValues", "serviceAccountRoleArn"}:
            arguments = {
                key: new[key]
                for key in ("addonVersion", "configurationValues", "serviceAccountRoleArn")
                if new.get(key)
            }
            if new.get("resolveConflictsOnUpdate"):
                arguments["resolveConflicts"] = new["resolveConflictsOnUpdate"]
            cluster, _, name = rid.partition(":")
            cloud.client("eks").update_addon(clusterName=cluster, addonName=name, **arguments)
            self._settle(cloud, rid)
        if "tags" in changed:
            retag(cloud, self._live(cloud, rid)["addonArn"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cluster, _, name = rid.partition(":")
        cloud.client("eks").delete_addon(
            clusterName=cluster, addonName=name, preserve=bool(state.get("preserve"))
        )

        wait_until(f"add-on {rid} deleted", lambda: absent(lambda: self._live(cloud, rid)), ADDON_SECONDS)


@serves
class AccessEntry(Handler):
    """The access of an IAM principal to a cluster. Its id is `<cluster>:<principal>`."""

    token = "aws:eks/accessEntry:AccessEntry"
    accepts = frozenset({"clusterName", "principalArn", "kubernetesGroups", "type", "userName", "tags"})
    required = frozenset({"clusterName", "principalArn"})
    replaces = frozenset({"clusterName", "principalArn", "type"})
    unordered = frozenset({"kubernetesGroups"})
    exclusive = True
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        arguments = {
            "clusterName": inputs["clusterName"],
            "principalArn": inputs["principalArn"],
            "kubernetesGroups": inputs.get("kubernetesGroups"),
            "type": inputs.get("type"),
            "username": inputs.get("userName"),
            "tags": inputs.get("tags"),
        }
        cloud.client("eks").create_access_entry(**{key: value for key, value in arguments.items() if value})
        return f"{inputs['clusterName']}:{inputs['principalArn']}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        cluster, _, principal = rid.partition(":")
        answer = cloud.client("eks").describe_access_entry(clusterName=cluster, principalArn=principal)
        found = answer["accessEntry"]
        return {
            "accessEntryArn": found["accessEntryArn"],
            "clusterName": found["clusterName"],
            "principalArn": found["principalArn"],
            "kubernetesGroups": listed(found.get("kubernetesGroups")),
            "type": found.get("type", "STANDARD"),
            "userName": found.get("username", ""),
            "createdAt": str(found.get("createdAt", "")),
            "modifiedAt": str(found.get("modifiedAt", "")),
            "tags": plain_tags(found.get("tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        cluster, _, principal = rid.partition(":")
        if changed & {"kubernetesGroups", "userName"}:
            arguments: Props = {"kubernetesGroups": listed(new.get("kubernetesGroups"))}
            if new.get("userName"):
                arguments["username"] = new["userName"]
            cloud.client("eks").update_access_entry(clusterName=cluster, principalArn=principal, **arguments)
        if "tags" in changed:
            live = self.read(cloud, rid, new) or {}
            retag(cloud, live["accessEntryArn"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cluster, _, principal = rid.partition(":")
        cloud.client("eks").delete_access_entry(clusterName=cluster, principalArn=principal)


@serves
class AccessPolicyAssociation(Handler):
    """An access policy of an access entry. Its id is `<cluster>#<principal>#<policy>`."""

    token = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
    accepts = frozenset({"clusterName", "principalArn", "policyArn", "accessScope"})
    required = accepts
    replaces = accepts

    def create(self, cloud: Cloud, inputs: Props) -> str:
        cloud.client("eks").associate_access_policy(
            clusterName=inputs["clusterName"],
            principalArn=inputs["principalArn"],
            policyArn=inputs["policyArn"],
            accessScope=inputs["accessScope"],
        )
        return f"{inputs['clusterName']}#{inputs['principalArn']}#{inputs['policyArn']}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        cluster, principal, policy = rid.split("#")
        answer = cloud.client("eks").list_associated_access_policies(
            clusterName=cluster, principalArn=principal
        )
        for found in answer["associatedAccessPolicies"]:
            if found["policyArn"] == policy:
                scope = dict(found.get("accessScope", {}))
                if not scope.get("namespaces"):
                    scope.pop("namespaces", None)
                return {
                    "clusterName": cluster,
                    "principalArn": principal,
                    "policyArn": policy,
                    "accessScope": scope,
                    "associatedAt": str(found.get("associatedAt", "")),
                    "modifiedAt": str(found.get("modifiedAt", "")),
                }
        return None

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cluster, principal, policy = rid.split("#")
        cloud.client("eks").disassociate_access_policy(
            clusterName=cluster, principalArn=principal, policyArn=policy
        )
