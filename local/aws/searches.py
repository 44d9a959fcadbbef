"""Searches that moto answers wrongly: filters of EC2 with several values, instance profiles by path, NAT gateways by
tag, rules by tag and description.

Karpenter finds the instance profiles of a node class by their path. With all profiles of the account, one cluster's
Karpenter tries to delete those of another, and never finishes with its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from moto.core.resource_tagging import TaggedResource
from moto.core.responses import ActionResult
from moto.ec2 import utils
from moto.ec2.models import EC2Backend
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.events.models import EventsBackend
from moto.iam.responses import IamResponse

from local.aws.ec2_utils import matches, tags_of
from local.aws.policy import like


def install() -> None:
    """Replace moto's searches."""
    match, of_nat_gateways = utils.is_filter_matching, EC2Backend.describe_nat_gateways
    buses = EventsBackend.iter_tagged_resources

    # For an item with several values, moto compares whole sets. One of them must match one value of the filter
    # (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html).
    def is_filter_matching(obj: Any, name: str, values: Any) -> Any:
        found = obj.get_filter_value(name)
        if isinstance(values, list) and isinstance(found, Collection) and not isinstance(found, str):
            return any(like(str(value), str(each)) for value in values for each in found)
        return match(obj, name, values)

    def describe_nat_gateways(
        self: Any, filters: dict[str, list[str]] | None, nat_gateway_ids: Any
    ) -> list[Any]:
        found = of_nat_gateways(self, filters, nat_gateway_ids)
        on_tags = {name: values for name, values in (filters or {}).items() if name.startswith("tag")}
        return [each for each in found if matches({}, tags_of(each), on_tags, {})]

    # https://docs.aws.amazon.com/IAM/latest/APIReference/API_ListInstanceProfiles.html
    def list_instance_profiles(self: Any) -> ActionResult:
        prefix = self._get_param("PathPrefix") or "/"
        profiles = [each for each in self.backend.get_instance_profiles() if each.path.startswith(prefix)]
        return ActionResult({"InstanceProfiles": profiles})

    def iter_tagged_resources(self: Any) -> Iterator[TaggedResource]:
        yield from buses(self)
        for bus in self.event_buses.values():
            for rule in bus.rules.values():
                tags = self.tagger.get_tag_dict_for_resource(rule.arn)
                yield TaggedResource(arn=rule.arn, tags=tags, resource_type="events:rule")

    utils.is_filter_matching = is_filter_matching
    EC2Backend.describe_nat_gateways = describe_nat_gateways
    IamResponse.list_instance_profiles = list_instance_profiles
    EventsBackend.iter_tagged_resources = iter_tagged_resources
    # moto leaves out the description of a rule between groups.
    SecurityGroupRule.description = property(
        lambda self: self.ip_range.get("Description", self.source_group.get("Description"))
    )
