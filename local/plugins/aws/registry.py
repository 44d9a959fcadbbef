"""ECR repositories and KMS keys."""

from __future__ import annotations

from typing import ClassVar

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.resource import (
    Handler,
    Props,
    random_name,
    serves,
    tag_changes,
    tag_list,
    tag_map,
    upper,
)


@serves
class Repository(Handler):
    """An ECR repository. Its id is its name."""

    token = "aws:ecr/repository:Repository"
    accepts = frozenset(
        {
            "name",
            "encryptionConfigurations",
            "forceDelete",
            "imageScanningConfiguration",
            "imageTagMutability",
            "tags",
        }
    )
    replaces = frozenset({"name", "encryptionConfigurations"})
    write_only = frozenset({"forceDelete"})
    defaults: ClassVar[Props] = {"imageTagMutability": "MUTABLE"}
    auto_name = "name"
    auto_name_limit = 256
    auto_name_lower = True
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        arguments: Props = {
            "repositoryName": inputs["name"],
            "imageTagMutability": inputs["imageTagMutability"],
            "tags": tag_list(inputs.get("tags")),
        }
        if inputs.get("imageScanningConfiguration"):
            arguments["imageScanningConfiguration"] = dict(inputs["imageScanningConfiguration"])
        if inputs.get("encryptionConfigurations"):
            arguments["encryptionConfiguration"] = dict(inputs["encryptionConfigurations"][0])
        cloud.client("ecr").create_repository(**arguments)
        return str(inputs["name"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        ecr = cloud.client("ecr")
        found = ecr.describe_repositories(repositoryNames=[rid])["repositories"][0]
        return {
            "arn": found["repositoryArn"],
            "name": found["repositoryName"],
            "registryId": found["registryId"],
            "repositoryUrl": found["repositoryUri"],
            "imageTagMutability": found.get("imageTagMutability", "MUTABLE"),
            "imageScanningConfiguration": found.get("imageScanningConfiguration", {"scanOnPush": False}),
            "encryptionConfigurations": [found["encryptionConfiguration"]]
            if found.get("encryptionConfiguration")
            else [],
            "tags": tag_map(ecr.list_tags_for_resource(resourceArn=found["repositoryArn"])["tags"]),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        ecr = cloud.client("ecr")
        if "imageTagMutability" in changed:
            ecr.put_image_tag_mutability(repositoryName=rid, imageTagMutability=new["imageTagMutability"])
        if "imageScanningConfiguration" in changed:
            scan = new.get("imageScanningConfiguration") or {"scanOnPush": False}
            ecr.put_image_scanning_configuration(repositoryName=rid, imageScanningConfiguration=scan)
        if "tags" in changed:
            arn = (self.read(cloud, rid, new) or {})["arn"]
            gone, put = tag_changes(old, new)
            if gone:
                ecr.untag_resource(resourceArn=arn, tagKeys=gone)
            if put:
                ecr.tag_resource(resourceArn=arn, tags=tag_list(put))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ecr").delete_repository(repositoryName=rid, force=bool(state.get("forceDelete")))


@serves
class LifecyclePolicy(Handler):
    """The rules by which a repository deletes images. Its id is the repository's name."""

    token = "aws:ecr/lifecyclePolicy:LifecyclePolicy"
    accepts = frozenset({"repository", "policy"})
    required = accepts
    replaces = frozenset({"repository"})
    documents = frozenset({"policy"})

    def create(self, cloud: Cloud, inputs: Props) -> str:
        self._put(cloud, inputs["repository"], inputs["policy"])
        return str(inputs["repository"])

    def _put(self, cloud: Cloud, repository: str, policy: str) -> None:
        cloud.client("ecr").put_lifecycle_policy(repositoryName=repository, lifecyclePolicyText=policy)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("ecr").get_lifecycle_policy(repositoryName=rid)
        return {
            "repository": rid,
            "policy": found["lifecyclePolicyText"],
            "registryId": found.get("registryId", ""),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        self._put(cloud, rid, new["policy"])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ecr").delete_lifecycle_policy(repositoryName=rid)


@serves
class Key(Handler):
    """A KMS key. A deletion is scheduled after `deletionWindowInDays` (30 by default)."""

    token = "aws:kms/key:Key"
    accepts = frozenset(
        {
            "description",
            "customerMasterKeySpec",
            "deletionWindowInDays",
            "enableKeyRotation",
            "isEnabled",
            "keyUsage",
            "multiRegion",
            "policy",
            "tags",
        }
    )
    replaces = frozenset({"customerMasterKeySpec", "keyUsage", "multiRegion"})
    documents = frozenset({"policy"})
    write_only = frozenset({"deletionWindowInDays"})
    defaults: ClassVar[Props] = {
        "customerMasterKeySpec": "SYMMETRIC_DEFAULT",
        "isEnabled": True,
        "keyUsage": "ENCRYPT_DECRYPT",
    }
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("kms").create_key(
            **upper(inputs, ["description", "keyUsage", "multiRegion", "policy"]),
            KeySpec=inputs["customerMasterKeySpec"],
            Tags=[{"TagKey": k, "TagValue": v} for k, v in (inputs.get("tags") or {}).items()],
        )
        return str(answer["KeyMetadata"]["KeyId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("enableKeyRotation"):
            cloud.client("kms").enable_key_rotation(KeyId=rid)
        if not inputs["isEnabled"]:
            cloud.client("kms").disable_key(KeyId=rid)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        kms = cloud.client("kms")
        found = kms.describe_key(KeyId=rid)["KeyMetadata"]
        if found["KeyState"] == "PendingDeletion":
            return None
        tags = kms.list_resource_tags(KeyId=rid)["Tags"]
        return {
            "arn": found["Arn"],
            "keyId": found["KeyId"],
            "description": found.get("Description", ""),
            "customerMasterKeySpec": found.get("KeySpec", "SYMMETRIC_DEFAULT"),
            "isEnabled": found["Enabled"],
            "keyUsage": found["KeyUsage"],
            "multiRegion": found.get("MultiRegion", False),
            "enableKeyRotation": kms.get_key_rotation_status(KeyId=rid)["KeyRotationEnabled"],
            "policy": kms.get_key_policy(KeyId=rid, PolicyName="default")["Policy"],
            "tags": {t["TagKey"]: t["TagValue"] for t in tags if not t["TagKey"].startswith("aws:")},
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        kms = cloud.client("kms")
        if "description" in changed:
            kms.update_key_description(KeyId=rid, Description=new.get("description", ""))
        if "policy" in changed and new.get("policy"):
            kms.put_key_policy(KeyId=rid, PolicyName="default", Policy=new["policy"])
        if "enableKeyRotation" in changed:
            (kms.enable_key_rotation if new.get("enableKeyRotation") else kms.disable_key_rotation)(KeyId=rid)
        if "isEnabled" in changed:
            (kms.enable_key if new["isEnabled"] else kms.disable_key)(KeyId=rid)
        if "tags" in changed:
            gone, put = tag_changes(old, new)
            if gone:
                kms.untag_resource(KeyId=rid, TagKeys=gone)
            if put:
                kms.tag_resource(KeyId=rid, Tags=[{"TagKey": k, "TagValue": v} for k, v in put.items()])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        days = int(state.get("deletionWindowInDays") or 30)
        cloud.client("kms").schedule_key_deletion(KeyId=rid, PendingWindowInDays=days)


@serves
class Alias(Handler):
    """An alias of a key. Its id is its name, which begins with `alias/`."""

    token = "aws:kms/alias:Alias"
    accepts = frozenset({"name", "namePrefix", "targetKeyId"})
    required = frozenset({"targetKeyId"})
    replaces = frozenset({"name", "namePrefix"})
    write_only = frozenset({"namePrefix"})
    auto_name = "name"
    auto_name_limit = 250
    auto_name_prefix = "alias/"

    def check(self, inputs: Props) -> list[tuple[str, str]]:
        name = str(inputs.get("name", "alias/"))
        return [] if name.startswith("alias/") else [("name", f"is {name!r}; must begin with alias/")]

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = str(inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 250))
        cloud.client("kms").create_alias(AliasName=name, TargetKeyId=inputs["targetKeyId"])
        return name

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        kms = cloud.client("kms")
        for page in kms.get_paginator("list_aliases").paginate():
            for alias in page["Aliases"]:
                if alias["AliasName"] == rid and alias.get("TargetKeyId"):
                    key = kms.describe_key(KeyId=alias["TargetKeyId"])["KeyMetadata"]
                    given = inputs.get("targetKeyId")
                    # The program may set the key's id or its ARN.
                    same = given in (key["KeyId"], key["Arn"])
                    return {
                        "arn": alias["AliasArn"],
                        "name": rid,
                        "targetKeyId": given if same else key["KeyId"],
                        "targetKeyArn": key["Arn"],
                    }
        return None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        cloud.client("kms").update_alias(AliasName=rid, TargetKeyId=new["targetKeyId"])

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("kms").delete_alias(AliasName=rid)
