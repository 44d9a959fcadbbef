"""Our resources as a Terraform plan, so that checkov can read them. Pure.

The form is Terraform's (https://developer.hashicorp.com/terraform/internals/json-format): planned values, the change
per resource, and a configuration whose expressions say which resource a value comes from. The AWS provider of Pulumi
is made from Terraform's, so that names differ by rules: snake case, plural lists, single blocks without their list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from trainyard.policies.model import UNKNOWN, Resource, Stack

JsonObject = dict[str, Any]

# What Terraform's name of a resource has in front, by Pulumi's module.
MODULES: Final[Mapping[str, str]] = {
    "cloudwatch": "cloudwatch_",
    "ec2": "",
    "ecr": "ecr_",
    "eks": "eks_",
    "fsx": "fsx_",
    "iam": "iam_",
    "kms": "kms_",
    "s3": "s3_",
    "sqs": "sqs_",
    "vpc": "vpc_",
}
IRREGULAR: Final[Mapping[str, str]] = {
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": "aws_iam_openid_connect_provider",
}
# What a value comes from that Pulumi does not record.
ELSEWHERE = "terraform_data.not_recorded"
# Lists that have another number in Terraform, where they are repeated blocks or lists with a name of their own.
RENAMED: Final[Mapping[str, Mapping[str, str]]] = {
    "aws_ecr_repository": {"encryption_configurations": "encryption_configuration"},
    "aws_iam_openid_connect_provider": {
        "client_id_lists": "client_id_list",
        "thumbprint_lists": "thumbprint_list",
    },
    "aws_s3_bucket_lifecycle_configuration": {"rules": "rule"},
    "aws_s3_bucket_server_side_encryption_configuration": {"rules": "rule"},
}
# Mappings that are values, where all other mappings are blocks.
MAPS: Final = frozenset({"tags", "tags_all", "labels", "parameters"})


class PlanError(Exception):
    """A resource that can't be said in Terraform's terms."""


def snake(name: str) -> str:
    """camelCase as snake_case."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def type_of(token: str) -> str:
    """Terraform's type of a Pulumi type token, such as aws:ec2/vpc:Vpc.

    Raises:
        PlanError: its module is not among those that are known here.
    """
    if token in IRREGULAR:
        return IRREGULAR[token]
    module, _, name = token.removeprefix("aws:").partition(":")[0].partition("/")
    if module not in MODULES:
        raise PlanError(f"{token} has no Terraform type here; its module must be added to {__name__}.MODULES")
    return f"aws_{MODULES[module]}{snake(name)}"


def address(resource: Resource) -> str:
    """The resource's address in the plan, from which `by_address` finds it again."""
    return f"{type_of(resource.type)}.{re.sub(r'[^A-Za-z0-9_-]', '_', resource.name)}"


def by_address(stack: Stack) -> dict[str, Resource]:
    """The AWS resources of a stack by address.

    Raises:
        PlanError: two have the same.
    """
    found: dict[str, Resource] = {}
    for each in stack.resources:
        if not each.type.startswith("aws:"):
            continue
        where = address(each)
        if where in found:
            raise PlanError(f"{each.name} and {found[where].name} both have the address {where}")
        found[where] = each
    return found


def plan(stack: Stack) -> JsonObject:
    """The AWS resources of a stack, all of them to be created.

    Raises:
        PlanError: one of them can't be said so.
    """
    resources = by_address(stack)
    addresses = {each.urn: where for where, each in resources.items()}
    values = [_values(where, each) for where, each in resources.items()]
    return {
        "format_version": "1.2",
        "terraform_version": "1.9.0",
        "planned_values": {"root_module": {"resources": values}},
        "resource_changes": [_change(each, resources[each["address"]]) for each in values],
        "configuration": {
            "provider_config": {"aws": {"name": "aws"}},
            "root_module": {
                "resources": [_configuration(where, each, addresses) for where, each in resources.items()]
            },
        },
    }


def _head(where: str) -> JsonObject:
    kind, _, name = where.partition(".")
    return {"address": where, "mode": "managed", "type": kind, "name": name}


def _values(where: str, resource: Resource) -> JsonObject:
    kind = type_of(resource.type)
    return {
        **_head(where),
        "provider_name": "registry.terraform.io/hashicorp/aws",
        "schema_version": 0,
        "values": _block(resource.properties, RENAMED.get(kind, {})),
    }


def _change(values: JsonObject, resource: Resource) -> JsonObject:
    kind = type_of(resource.type)
    change = {
        "actions": ["create"],
        "before": None,
        "after": values["values"],
        "after_unknown": _unknown(resource.properties, RENAMED.get(kind, {})),
    }
    return {**_head(values["address"]), "provider_name": values["provider_name"], "change": change}


def _configuration(where: str, resource: Resource, addresses: Mapping[str, str]) -> JsonObject:
    renamed = RENAMED.get(type_of(resource.type), {})
    expressions: JsonObject = {}
    for name, value in resource.properties.items():
        attribute = renamed.get(snake(name), snake(name))
        sources = [addresses[urn] for urn in sorted(resource.refers(name)) if urn in addresses]
        if sources:
            # checkov needs the resource; Pulumi does not record which of its attributes it is.
            expressions[attribute] = {"references": [x for each in sources for x in (f"{each}.id", each)]}
        elif value is UNKNOWN:
            # A plan has an expression for an unknown value; without one, checkov treats it as not set.
            expressions[attribute] = {"references": [f"{ELSEWHERE}.output", ELSEWHERE]}
        else:
            expressions[attribute] = {"constant_value": _value(name, value)}
    return {**_head(where), "provider_config_key": "aws", "expressions": expressions, "schema_version": 0}


def _block(properties: Mapping[str, Any], renamed: Mapping[str, str]) -> JsonObject:
    """What is known of the properties."""
    result: JsonObject = {}
    for name, value in properties.items():
        if value is not UNKNOWN:
            result[renamed.get(snake(name), snake(name))] = _value(snake(name), value)
    return result


def _value(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        if name in MAPS:
            return {key: entry for key, entry in value.items() if entry is not UNKNOWN}
        return [_block(value, {})]
    if isinstance(value, list):
        return [
            _block(each, {}) if isinstance(each, Mapping) else each for each in value if each is not UNKNOWN
        ]
    return value


def _unknown(properties: Mapping[str, Any], renamed: Mapping[str, str]) -> JsonObject:
    """Which of the properties are not known: true in their place."""
    result: JsonObject = {}
    for name, value in properties.items():
        attribute = renamed.get(snake(name), snake(name))
        if value is UNKNOWN:
            result[attribute] = True
        elif isinstance(value, Mapping) and snake(name) not in MAPS:
            if inner := _unknown(value, {}):
                result[attribute] = [inner]
        elif isinstance(value, list):
            entries = [_unknown(e, {}) if isinstance(e, Mapping) else e is UNKNOWN for e in value]
            if any(entries):
                result[attribute] = entries
    return result
