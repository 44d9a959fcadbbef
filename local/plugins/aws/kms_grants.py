"""Grants of KMS keys: permissions of a principal on a key, in addition to the key's policy."""

from __future__ import annotations

from typing import Any

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.resource import Handler, Props, serves, upper


@serves
class Grant(Handler):
    """A grant. Its id is `<key id>:<grant id>`, as in the official provider. Nothing changes in place."""

    token = "aws:kms/grant:Grant"
    accepts = frozenset(
        {
            "constraints",
            "granteePrincipal",
            "keyId",
            "name",
            "operations",
            "retireOnDelete",
            "retiringPrincipal",
        }
    )
    required = frozenset({"granteePrincipal", "keyId", "operations"})
    replaces = accepts
    unordered = frozenset({"operations"})
    write_only = frozenset({"retireOnDelete"})

    def create(self, cloud: Cloud, inputs: Props) -> str:
        kms = cloud.client("kms")
        arguments = upper(inputs, ["granteePrincipal", "keyId", "name", "operations", "retiringPrincipal"])
        if inputs.get("constraints"):
            given = inputs["constraints"][0]
            arguments["Constraints"] = upper(given, ["encryptionContextEquals", "encryptionContextSubset"])
        answer = kms.create_grant(**arguments)
        key = kms.describe_key(KeyId=inputs["keyId"])["KeyMetadata"]["KeyId"]
        return f"{key}:{answer['GrantId']}"

    def _live(self, cloud: Cloud, rid: str) -> Any:
        key, _, grant = rid.rpartition(":")
        found = cloud.client("kms").list_grants(KeyId=key, GrantId=grant)["Grants"]
        return found[0] if found else None

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = self._live(cloud, rid)
        if found is None:
            return None
        live: Props = {
            "grantId": found["GrantId"],
            "granteePrincipal": found["GranteePrincipal"],
            # The program may set the key's id or its ARN. KMS returns the ARN.
            "keyId": inputs.get("keyId") or found["KeyId"],
            "name": found.get("Name") or "",
            "operations": found["Operations"],
        }
        if found.get("RetiringPrincipal"):
            live["retiringPrincipal"] = found["RetiringPrincipal"]
        if found.get("Constraints"):
            live["constraints"] = [{k[0].lower() + k[1:]: v for k, v in found["Constraints"].items()}]
        return live

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        key, _, grant = rid.rpartition(":")
        if state.get("retireOnDelete"):
            cloud.client("kms").retire_grant(KeyId=key, GrantId=grant)
        else:
            cloud.client("kms").revoke_grant(KeyId=key, GrantId=grant)
