"""The permissions that a call needs: actions, their resources, and the condition keys that the request has.

From the Service Authorization Reference (https://docs.aws.amazon.com/service-authorization/latest/reference/). EC2's
launch calls need several permissions at once, each with its own resource and tags. All must be granted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moto.ec2.models import ec2_backends
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, convert_tag_spec
from moto.iam.models import iam_backends

from local.aws.account import ACCOUNT_ID, PARTITION
from local.aws.policy import Request

Tags = dict[str, str]
Context = dict[str, tuple[str, ...]]

# Parameters of IAM calls that name the resource, and the kind of its ARN.
IAM_RESOURCES = (
    ("InstanceProfileName", "instance-profile"),
    ("RoleName", "role"),
    ("UserName", "user"),
    ("GroupName", "group"),
)
# Services whose actions have a prefix other than the service's name.
IAM_PREFIXES = {
    "service-quotas": "servicequotas",
    "resourcegroupstaggingapi": "tag",
    "elbv2": "elasticloadbalancing",
}


def needed(response: Any, service: str, action: str) -> list[Request]:
    """Return every permission that a call needs. `response` is moto's, with the parsed parameters of the request."""
    base: Context = {"aws:requestedregion": (response.region,)}
    if service == "ec2":
        handler = EC2.get(action)
        if handler is not None:
            return [Request(r.action, r.resource, {**base, **r.context}) for r in handler(response)]
        # Describe calls have no resource-level permissions. For the other calls, this module derives no resource.
        return [Request(f"ec2:{action}", "*" if action.startswith(("Describe", "List")) else None, base)]
    if service == "iam":
        return _iam(response, action, base)
    if service == "s3":  # handled by s3() below, with bucket and key
        return []
    resource = RESOURCES[service](response, action) if service in RESOURCES else None
    return [Request(f"{IAM_PREFIXES.get(service, service)}:{action}", resource, base)]


def s3(response: Any, action: str, bucket: str | None, key: str | None) -> list[Request]:
    """Return the permissions of an S3 operation. Their names differ.

    HeadObject needs s3:GetObject, listing needs s3:ListBucket, and so on.
    """
    action = "ListBucket" if action == "HeadBucket" else action
    context: Context = {"aws:requestedregion": (response.region,)}
    if bucket is None:
        return [Request(f"s3:{action}", "*", context)]
    prefix = response.querystring.get("prefix")
    if prefix:
        first = prefix[0] if isinstance(prefix, list) else prefix
        context["s3:prefix"] = (first.decode() if isinstance(first, bytes) else str(first),)
    arn = f"arn:aws:s3:::{bucket}" + (f"/{key}" if key else "")
    requests = [Request(f"s3:{action}", arn, context)]
    source = response.headers.get("x-amz-copy-source")
    if source:
        requests.append(Request("s3:GetObject", f"arn:aws:s3:::{source.lstrip('/').split('?')[0]}", context))
    return requests


# --- EC2 -------------------------------------------------------------------------------------------------------------


def _arn(response: Any, kind: str, name: str = "*") -> str:
    account = "" if kind in ("image", "snapshot") else ACCOUNT_ID
    return f"arn:aws:ec2:{response.region}:{account}:{kind}/{name}"


def _request_tags(tags: Tags) -> Context:
    context: Context = {f"aws:requesttag/{k.lower()}": (v,) for k, v in tags.items()}
    if tags:
        context["aws:tagkeys"] = tuple(tags)
    return context


def _resource_tags(tags: Tags, service: str) -> Context:
    context: Context = {}
    for key, value in tags.items():
        context[f"aws:resourcetag/{key.lower()}"] = (value,)
        context[f"{service}:resourcetag/{key.lower()}"] = (value,)
    return context


def _existing(response: Any, action: str, kind: str, name: str) -> Request:
    """Return a permission on an existing EC2 resource, with its tags."""
    tags = ec2_backends[ACCOUNT_ID][response.region].tags.get(name, {})
    return Request(action, _arn(response, kind, name), _resource_tags(dict(tags), "ec2"))


def _tagging(response: Any, tags: dict[str, Tags], create_action: str) -> list[Request]:
    return [
        Request(
            "ec2:CreateTags", _arn(response, kind), {**_request_tags(t), "ec2:createaction": (create_action,)}
        )
        for kind, t in tags.items()
        if t
    ]


def _template(response: Any, specification: Any) -> tuple[str, dict[str, Any]]:
    """Return the id and data of the launch template that a call names; empty if it names no existing one."""
    if not specification:
        return "", {}
    backend = ec2_backends[ACCOUNT_ID][response.region]
    name = specification.get("LaunchTemplateName")
    template_id = specification.get("LaunchTemplateId") or backend.launch_template_name_to_ids.get(name)
    template = backend.launch_templates.get(template_id)
    if template is None:
        return "", {}
    return template.id, template.get_version(specification.get("Version", "$Default")).data


def _launch(
    response: Any, data: dict[str, Any], overrides: list[Any], tags: dict[str, Tags]
) -> list[Request]:
    """Return the permissions that RunInstances needs on what it creates and what it uses."""
    kinds = ["instance", "volume", "network-interface"]
    if "spot-instances-request" in tags:
        kinds.append("spot-instances-request")
    made = [
        Request("ec2:RunInstances", _arn(response, kind), _request_tags(tags.get(kind, {}))) for kind in kinds
    ]
    used: dict[str, set[str]] = {"image": set(), "subnet": set(), "security-group": set()}
    for source in (data, *overrides):
        used["image"].add(source.get("ImageId", ""))
        used["subnet"].add(source.get("SubnetId", ""))
        used["security-group"].update(source.get("SecurityGroupIds") or [])
        for card in source.get("NetworkInterfaces") or []:
            used["security-group"].update(card.get("Groups") or [])
            used["subnet"].add(card.get("SubnetId", ""))
    reservation = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    used["capacity-reservation"] = {reservation.get("CapacityReservationId", "")}
    used["placement-group"] = {(data.get("Placement") or {}).get("GroupId", "")}
    taken = [
        _existing(response, "ec2:RunInstances", kind, name)
        for kind, names in used.items()
        for name in sorted(names)
        if name
    ]
    return made + taken + _pass_profile(data)


def _named(store: Mapping[str, Any], name: str) -> Any | None:
    """Return the role or profile of this name, or None. It reads a copy, because other calls change the store."""
    return next((each for each in list(store.values()) if each.name == name), None)


def _pass_profile(data: dict[str, Any]) -> list[Request]:
    """Return the permission to pass the role of an instance profile to EC2."""
    profile = data.get("IamInstanceProfile") or {}
    name = profile.get("Name") or str(profile.get("Arn", "")).rsplit("/", 1)[-1]
    found = _named(iam_backends[ACCOUNT_ID][PARTITION].instance_profiles, name)
    return [_pass_role(role.arn) for role in found.roles] if found else []


def _pass_role(arn: str) -> Request:
    return Request("iam:PassRole", arn, {"iam:passedtoservice": ("ec2.amazonaws.com",)})


def _create_fleet(response: Any) -> list[Request]:
    tags = convert_tag_spec(response._get_param("TagSpecifications", []))
    requests = [Request("ec2:CreateFleet", _arn(response, "fleet"), _request_tags(tags.get("fleet", {})))]
    for config in response._get_param("LaunchTemplateConfigs", []):
        template_id, data = _template(response, config.get("LaunchTemplateSpecification"))
        if template_id:
            requests += [
                _existing(response, action, "launch-template", template_id)
                for action in ("ec2:CreateFleet", "ec2:RunInstances")
            ]
        merged = {**convert_tag_spec(data.get("TagSpecifications") or []), **tags}
        requests += _launch(response, data, config.get("Overrides") or [], merged)
        requests += _tagging(response, merged, "CreateFleet")
    return requests


def _run_instances(response: Any) -> list[Request]:
    tags = convert_tag_spec(response._get_param("TagSpecifications", []))
    template_id, data = _template(response, response._get_param("LaunchTemplate"))
    names = ("ImageId", "SubnetId", "SecurityGroupIds", "NetworkInterfaces", "IamInstanceProfile")
    given = {name: response._get_param(name) for name in names}
    data = {**data, **{k: v for k, v in given.items() if v}}
    merged = {**convert_tag_spec(data.get("TagSpecifications") or []), **tags}
    requests = _launch(response, data, [], merged) + _tagging(response, merged, "RunInstances")
    # Karpenter validates its EC2NodeClasses with a dry run that names a template.
    if template_id:
        requests.append(_existing(response, "ec2:RunInstances", "launch-template", template_id))
    return requests


def _create(action: str, kind: str) -> Callable[[Any], list[Request]]:
    """Return the permissions of a call that creates one resource with tags."""

    def handler(response: Any) -> list[Request]:
        tags = convert_tag_spec(response._get_param("TagSpecifications", []))
        context = _request_tags(tags.get(kind, {}))
        return [Request(f"ec2:{action}", _arn(response, kind), context), *_tagging(response, tags, action)]

    return handler


def _delete_launch_template(response: Any) -> list[Request]:
    named = {n: response._get_param(n) for n in ("LaunchTemplateId", "LaunchTemplateName")}
    template_id, _ = _template(response, named)
    return [_existing(response, "ec2:DeleteLaunchTemplate", "launch-template", template_id or "*")]


def _terminate_instances(response: Any) -> list[Request]:
    ids = response._get_param("InstanceIds", [])
    return [_existing(response, "ec2:TerminateInstances", "instance", i) for i in ids]


def _on_volume(action: str) -> Callable[[Any], list[Request]]:
    """Return the permissions of a call on an existing volume, and on the instance if the call names one."""

    def handler(response: Any) -> list[Request]:
        names = (("volume", "VolumeId"), ("instance", "InstanceId"))
        given = [(kind, response._get_param(parameter)) for kind, parameter in names]
        return [_existing(response, f"ec2:{action}", kind, name) for kind, name in given if name]

    return handler


def _tags_on_existing(action: str) -> Callable[[Any], list[Request]]:
    def handler(response: Any) -> list[Request]:
        tags = {t["Key"]: t.get("Value", "") for t in response._get_param("Tags", [])}
        requests = []
        for name in response._get_param("Resources", []):
            existing = _existing(
                response, action, EC2_PREFIX_TO_RESOURCE.get(name.rpartition("-")[0], "*"), name
            )
            requests.append(Request(action, existing.resource, {**existing.context, **_request_tags(tags)}))
        return requests

    return handler


EC2: dict[str, Callable[[Any], list[Request]]] = {
    "CreateFleet": _create_fleet,
    "RunInstances": _run_instances,
    "CreateLaunchTemplate": _create("CreateLaunchTemplate", "launch-template"),
    "DeleteLaunchTemplate": _delete_launch_template,
    "TerminateInstances": _terminate_instances,
    "CreateVolume": _create("CreateVolume", "volume"),
    **{name: _on_volume(name) for name in ("AttachVolume", "DeleteVolume", "DetachVolume", "ModifyVolume")},
    "CreateTags": _tags_on_existing("ec2:CreateTags"),
    "DeleteTags": _tags_on_existing("ec2:DeleteTags"),
}


# --- the other services ----------------------------------------------------------------------------------------------


def _iam(response: Any, action: str, base: Context) -> list[Request]:
    backend = iam_backends[ACCOUNT_ID][PARTITION]
    tags = {
        t["Key"]: t.get("Value", "") for t in response._get_param("Tags", []) or [] if isinstance(t, dict)
    }
    context: Context = {**base, **_request_tags(tags)}
    resource: str | None = "*" if action.startswith("List") else None
    for parameter, kind in IAM_RESOURCES:
        name = response._get_param(parameter)
        if not name:
            continue
        path = response._get_param("Path") or "/"
        resource = f"arn:aws:iam::{ACCOUNT_ID}:{kind}{path}{name}"
        if kind == "instance-profile":
            profile = _named(backend.instance_profiles, name)
            if profile is not None:
                resource = profile.arn
                context.update(_resource_tags({t["Key"]: t["Value"] for t in profile.tags}, "iam"))
        if kind == "role":
            role = _named(backend.roles, name)
            resource = role.arn if role is not None else resource
        break
    requests = [Request(f"iam:{action}", resource, context)]
    if action == "AddRoleToInstanceProfile":
        name = response._get_param("RoleName")
        role = _named(backend.roles, name)
        passed = _pass_role(role.arn if role is not None else f"arn:aws:iam::{ACCOUNT_ID}:role/{name}")
        requests.append(Request(passed.action, passed.resource, {**base, **passed.context}))
    return requests


def _queue(response: Any, action: str) -> str | None:
    name = response._get_param("QueueName") or str(response._get_param("QueueUrl") or "").rsplit("/", 1)[-1]
    if name:
        return f"arn:aws:sqs:{response.region}:{ACCOUNT_ID}:{name}"
    return "*" if action == "ListQueues" else None


def _parameter(response: Any, _action: str) -> str | None:
    name = str(response._get_param("Name") or response._get_param("Path") or "")
    # Public parameters belong to no account: arn:aws:ssm:<region>::parameter/aws/service/...
    account = "" if name.startswith("/aws/service/") else ACCOUNT_ID
    return f"arn:aws:ssm:{response.region}:{account}:parameter/{name.lstrip('/')}" if name else None


def _cluster(response: Any, action: str) -> str | None:
    name = response._get_param("name") or response._get_param("clusterName")
    if name:
        return f"arn:aws:eks:{response.region}:{ACCOUNT_ID}:cluster/{name}"
    return "*" if action.startswith("List") else None


def _repository(response: Any, action: str) -> str | None:
    name = response._get_param("repositoryName")
    if name:
        return f"arn:aws:ecr:{response.region}:{ACCOUNT_ID}:repository/{name}"
    return "*" if action == "GetAuthorizationToken" else None


RESOURCES: dict[str, Callable[[Any, str], str | None]] = {
    "sqs": _queue,
    "ssm": _parameter,
    "eks": _cluster,
    "ecr": _repository,
    "sts": lambda response, _action: response._get_param("RoleArn") or "*",
}
