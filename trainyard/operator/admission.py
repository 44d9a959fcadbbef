"""Build the ValidatingAdmissionPolicies of TorchrunJobs and TorchrunQueues. The entry point is `objects`.

The controller may create pods everywhere. Without these policies, a user who may only submit jobs could let it create
any pod: with another service account, a Secret or the host network. So the API server checks the user's permissions at
each write of a job or queue (https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/;
`authorizer` is the CEL library https://pkg.go.dev/k8s.io/apiserver/pkg/cel/library#Authz). The expressions come from
the schema and from the tables in trainyard/operator/api/permissions.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trainyard.operator import names as n
from trainyard.operator.api.fields import Field
from trainyard.operator.api.job import JOB
from trainyard.operator.api.permissions import (
    CREATE_PODS,
    HARMLESS_CHANGES,
    RESERVED_PATTERN,
    RESTRICTED_QUEUE_FIELDS,
    UPDATE_QUEUE,
    contains_free_field,
    required_permission,
)

API_VERSION: Final = "admissionregistration.k8s.io/v1"
POLICY: Final = "ValidatingAdmissionPolicy"
BINDING: Final = f"{POLICY}Binding"
_LABELS: Final = {"app.kubernetes.io/name": n.CONTROLLER}
_MAY_CREATE_PODS: Final = (
    "authorizer.group('').resource('pods').namespace(request.namespace).check('create').allowed()"
)
_MAY_UPDATE_QUEUE: Final = (
    f"authorizer.group('{n.GROUP}').resource('{n.QUEUE_PLURAL}').namespace(request.namespace)"
    ".name(object.spec.jobQueue).check('update').allowed()"
)


def objects() -> list[dict[str, Any]]:
    """Return the policies and their bindings."""
    return [*_job_policy(), *_queue_policy()]


def fields_with_permission(permission: str) -> dict[str, str]:
    """Return the job fields that need this permission, each with a CEL condition that the field is set."""
    fields = _fields(JOB, "object.spec", "")
    return {path: cel for path, cel in fields if required_permission(path) == permission}


def _fields(parent: Field, here: str, above: str) -> Iterator[tuple[str, str]]:
    """Yield the fields below `parent`, to the depth of the table, each with the CEL condition that it is set."""
    for name, field in parent.fields.items():
        path = f"{above}.{name}".removeprefix(".")
        place = f"{here}.?{name}"
        if not contains_free_field(path):
            yield path, f"{place}.hasValue()"
        elif field.item is not None and field.item.fields:
            for item_path, cel in _fields(field.item, "each", path):
                yield item_path, f"{place}.orValue([]).exists(each, {cel})"
        else:
            yield from _fields(field, place, path)


def _job_policy() -> list[dict[str, Any]]:
    checked = [name for name in JOB.fields if name not in HARMLESS_CHANGES]
    update_queue = {
        "expression": f"size(variables.queueFields) == 0 || {_MAY_UPDATE_QUEUE}",
        "messageExpression": "'spec: ' + variables.queueFields.join(', ') + ' requires permission to update "
        f"{n.QUEUE_KIND} ' + object.spec.jobQueue + ' in namespace ' + request.namespace + '. "
        "Remove it, or ask the administrator of the queue.'",
        "reason": "Forbidden",
    }
    return _policy(
        n.JOB_POLICY,
        n.JOB_PLURAL,
        " || ".join(f"object.spec.?{name} != oldObject.spec.?{name}" for name in checked),
        {
            "queueFields": fields_with_permission(UPDATE_QUEUE),
            "podFields": fields_with_permission(CREATE_PODS),
        },
        "overrides.podTemplate",
        [update_queue],
    )


def _queue_policy() -> list[dict[str, Any]]:
    fields = {path: f"object.spec.{_optional(path)}.hasValue()" for path in RESTRICTED_QUEUE_FIELDS}
    changed = "object.spec != oldObject.spec"
    return _policy(n.QUEUE_POLICY, n.QUEUE_PLURAL, changed, {"podFields": fields}, "podTemplate", [])


def _optional(path: str) -> str:
    return ".".join(f"?{name}" for name in path.split("."))


def _policy(
    name: str,
    resource: str,
    changed: str,
    fields: dict[str, dict[str, str]],
    template: str,
    validations: list[dict[str, str]],
) -> list[dict[str, Any]]:
    """Return a policy and its binding.

    Args:
        changed: A CEL condition that an update changes more than harmless fields.
        fields: The fields that need a permission, each with the condition that it is set, by the variable for their
            paths.
        template: The path of the pod template. Its labels and annotations must not be reserved ones.
        validations: Validations before those of `podFields` and of the pod template.
    """
    keys = (
        f"object.spec.{_optional(template)}.?metadata.?{kind}.orValue({{}}).map(key, key)"
        for kind in ("labels", "annotations")
    )
    variables = {
        name: " + ".join(f"({cel} ? ['{path}'] : [])" for path, cel in conditions.items())
        for name, conditions in fields.items()
    }
    variables["reserved"] = f"({' + '.join(keys)}).filter(key, key.matches('{RESERVED_PATTERN}'))"
    create_pods = {
        "expression": f"size(variables.podFields) == 0 || {_MAY_CREATE_PODS}",
        "messageExpression": "'spec: ' + variables.podFields.join(', ') + ' requires permission to create pods in "
        "namespace ' + request.namespace + '. Remove it, or ask for the ClusterRole edit.'",
        "reason": "Forbidden",
    }
    not_reserved = {
        "expression": "size(variables.reserved) == 0",
        "messageExpression": f"'spec.{template}.metadata: ' + variables.reserved.join(', ') + ' is reserved for "
        "Trainyard and the schedulers and operators of its pods. Use a key of another domain.'",
        "reason": "Invalid",
    }
    rule = {
        "apiGroups": [n.GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource],
        "scope": "Namespaced",
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
        # Changes of labels, and scaling, need no further permission.
        "matchConditions": [
            {"name": "spec-changes", "expression": f"request.operation == 'CREATE' || {changed}"}
        ],
        "variables": [{"name": key, "expression": value} for key, value in variables.items()],
        "validations": [*validations, create_pods, not_reserved],
    }
    metadata = {"name": name, "labels": _LABELS}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": API_VERSION, "kind": POLICY, "metadata": metadata, "spec": spec},
        {"apiVersion": API_VERSION, "kind": BINDING, "metadata": metadata, "spec": binding},
    ]
