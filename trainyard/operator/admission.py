"""Build the ValidatingAdmissionPolicies of TorchrunJobs and TorchrunQueues. The entry point is `objects`.

The controller may create pods everywhere. Without these policies, a user who may only submit jobs could make it create
any pod: with another service account, a Secret or the host network. So the API server checks the user's own permissions
for each write of a job or queue (https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/;
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
    return [
        made
        for each in (_job_policy(), _queue_policy())
        for made in (each, _binding(each["metadata"]["name"]))
    ]


def fields_with_permission(permission: str) -> dict[str, str]:
    """Return the job fields that need this permission, each with a CEL condition that the field is set."""
    return {
        path: cel for path, cel in _fields(JOB, "object.spec", "") if required_permission(path) == permission
    }


def _fields(parent: Field, here: str, above: str) -> Iterator[tuple[str, str]]:
    """Yield the fields below `parent`, as deep as the table goes, with the CEL condition that each is set."""
    for name, each in parent.fields.items():
        path = f"{above}.{name}" if above else name
        place = f"{here}.?{name}"
        entries = each.item is not None and bool(each.item.fields)
        if not contains_free_field(path):
            yield path, f"{place}.hasValue()"
        elif entries and each.item is not None:
            for below, cel in _fields(each.item, "each", path):
                yield below, f"{place}.orValue([]).exists(each, {cel})"
        else:
            yield from _fields(each, place, path)


def _job_policy() -> dict[str, Any]:
    checked = [name for name in JOB.fields if name not in HARMLESS_CHANGES]
    return _policy(
        name=n.JOB_POLICY,
        resource=n.JOB_PLURAL,
        changed=" || ".join(f"object.spec.?{name} != oldObject.spec.?{name}" for name in checked),
        variables={
            "queueFields": _cel_list(fields_with_permission(UPDATE_QUEUE)),
            "podFields": _cel_list(fields_with_permission(CREATE_PODS)),
            **_reserved_keys("object.spec.?overrides.?podTemplate"),
        },
        validations=[
            {
                "expression": f"size(variables.queueFields) == 0 || {_MAY_UPDATE_QUEUE}",
                "messageExpression": "'spec: ' + variables.queueFields.join(', ') + ' requires permission to update "
                f"{n.QUEUE_KIND} ' + object.spec.jobQueue + ' in namespace ' + request.namespace + '. "
                "Remove it, or ask the administrator of the queue.'",
                "reason": "Forbidden",
            },
            _pods_validation("Remove it, or ask for the ClusterRole edit."),
            _reserved_validation("spec.overrides.podTemplate.metadata"),
        ],
    )


def _queue_policy() -> dict[str, Any]:
    fields = {path: f"object.spec.{_optional_path(path)}.hasValue()" for path in RESTRICTED_QUEUE_FIELDS}
    return _policy(
        name=n.QUEUE_POLICY,
        resource=n.QUEUE_PLURAL,
        changed="object.spec != oldObject.spec",
        variables={"podFields": _cel_list(fields), **_reserved_keys("object.spec.?podTemplate")},
        validations=[
            _pods_validation("Remove it, or ask for the ClusterRole edit."),
            _reserved_validation("spec.podTemplate.metadata"),
        ],
    )


def _pods_validation(advice: str) -> dict[str, str]:
    return {
        "expression": f"size(variables.podFields) == 0 || {_MAY_CREATE_PODS}",
        "messageExpression": "'spec: ' + variables.podFields.join(', ') + ' requires permission to create pods in "
        f"namespace ' + request.namespace + '. {advice}'",
        "reason": "Forbidden",
    }


def _optional_path(path: str) -> str:
    return ".".join(f"?{name}" for name in path.split("."))


def _cel_list(fields: dict[str, str]) -> str:
    """Return a CEL expression for the list of the paths whose conditions are true."""
    return " + ".join(f"({cel} ? ['{path}'] : [])" for path, cel in fields.items())


def _reserved_keys(template: str) -> dict[str, str]:
    kinds = ("labels", "annotations")
    keys = (f"{template}.?metadata.?{kind}.orValue({{}}).map(key, key)" for kind in kinds)
    return {"reserved": f"({' + '.join(keys)}).filter(key, key.matches('{RESERVED_PATTERN}'))"}


def _reserved_validation(place: str) -> dict[str, str]:
    return {
        "expression": "size(variables.reserved) == 0",
        "messageExpression": f"'{place}: ' + variables.reserved.join(', ') + ' is reserved for Trainyard and "
        "the schedulers and operators of its pods. Use a key of another domain.'",
        "reason": "Invalid",
    }


def _policy(
    *, name: str, resource: str, changed: str, variables: dict[str, str], validations: list[dict[str, str]]
) -> dict[str, Any]:
    rule = {
        "apiGroups": [n.GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource],
        "scope": "Namespaced",
    }
    return {
        "apiVersion": API_VERSION,
        "kind": POLICY,
        "metadata": {"name": name, "labels": dict(_LABELS)},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [rule]},
            # Changes of labels, and scaling, need no further permission.
            "matchConditions": [
                {"name": "spec-changes", "expression": f"request.operation == 'CREATE' || {changed}"}
            ],
            "variables": [{"name": key, "expression": value} for key, value in variables.items()],
            "validations": validations,
        },
    }


def _binding(name: str) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": BINDING,
        "metadata": {"name": name, "labels": dict(_LABELS)},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
