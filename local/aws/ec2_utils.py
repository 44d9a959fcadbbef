"""Shared by our EC2 APIs: running instances and own tables of moto's backends; tags, filters and pages of a request."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from moto.ec2.utils import convert_tag_spec

from local.aws import faults
from local.aws.errors import ApiError
from local.aws.pages import page
from local.aws.policy import like

Document = dict[str, Any]


def table(backend: Any, name: str) -> dict[Any, Any]:
    """Return a table of our own in a backend. moto's `reset` drops it with the rest of the backend's state."""
    found: dict[Any, Any] = backend.__dict__.setdefault(f"trainyard_{name}", {})
    return found


def capacity_type(instance: Any) -> str:
    """Return the capacity type in Karpenter's terms: on-demand, spot or reserved."""
    if getattr(instance, "capacity_reservation_id", None):
        return "reserved"
    return "spot" if instance.lifecycle == "spot" else "on-demand"


def count_running(backend: Any, fault: faults.Fault) -> int:
    """Return how many running instances a rule applies to."""
    return sum(
        fault.matches(i.instance_type, i.placement.zone or "", capacity_type(i))
        for i in backend.all_instances()
        if i.state in ("pending", "running")
    )


def new_id(prefix: str) -> str:
    """Return a new id in the form of EC2 and FSx: the prefix and 17 hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(9)[:17]}"


def requested_tags(response: Any, kind: str) -> dict[str, str]:
    """Return the tags that a request of moto's EC2 has for a type of resource."""
    return dict(convert_tag_spec(response._get_param("TagSpecifications", [])).get(kind, {}))


def tags_of(resource: Any) -> dict[str, str]:
    """Return the tags of one of moto's resources."""
    return {tag["key"]: tag["value"] for tag in resource.get_tags()}


def tag_list(tags: Mapping[str, str]) -> list[Document]:
    """Return tags as EC2 answers them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def ec2_page(response: Any, key: str, items: list[Document]) -> Document:
    """Return an answer with the page of a list that a request of moto's EC2 asks for."""
    found, token = page(items, response._get_param("NextToken"), response._get_param("MaxResults"), 1000)
    return {key: found, "NextToken": token}


def matches(
    item: Document, tags: Mapping[str, str], filters: Mapping[str, list[str]], names: Mapping[str, str]
) -> bool:
    """Return whether an item matches all filters, with the wildcards * and ?. `names` has the item's key for each.

    Raises:
        ApiError: A filter is unknown.
    """
    for name, values in filters.items():
        if name.startswith("tag:"):
            tag = tags.get(name[4:])
            if tag is None or not any(like(value, tag) for value in values):
                return False
        elif name == "tag-key":
            if not any(like(value, tag) for value in values for tag in tags):
                return False
        elif name not in names:
            raise ApiError("InvalidParameterValue", f"The filter '{name}' is invalid")
        elif not any(like(value, str(item.get(names[name]))) for value in values):
            return False
    return True
