"""The three commands that install torchrun queues and jobs, in their order, on a real API server."""

from __future__ import annotations

import itertools

import pytest

from tests.integration.local.own_api_server import ApiServer
from tests.torchrun_manifests import controller_rules
from tests.torchrun_manifests import installed as documents
from trainyard.operator import names as n

pytestmark = pytest.mark.local

COMMANDS = (
    "crd/",
    "config/deployment.yaml",
    "config/rbac/role.yaml",
    "config/admission.yaml",
    "config/network.yaml",
)
USER = f"system:serviceaccount:{n.CONTROLLER_NAMESPACE}:{n.CONTROLLER}"
PODS = f"/api/v1/namespaces/{n.CONTROLLER_NAMESPACE}/pods?dryRun=All&fieldValidation=Strict"


@pytest.fixture(scope="module")
def installed(torchrun_api: ApiServer) -> ApiServer:
    for each in COMMANDS:
        applied = torchrun_api.kubectl("apply", "-f", each)
        assert (applied.returncode, applied.stderr) == (0, "")
    return torchrun_api


def test_applied_again_nothing_changes(installed: ApiServer) -> None:
    for each in COMMANDS:
        lines = installed.kubectl("apply", "-f", each).stdout.splitlines()
        assert lines
        assert all(line.endswith(" unchanged") for line in lines), lines


@pytest.mark.parametrize("plural", [n.QUEUE_PLURAL, n.JOB_PLURAL])
def test_the_definitions_are_established(installed: ApiServer, plural: str) -> None:
    place = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.{n.GROUP}"
    conditions = {
        each["type"]: each["status"] for each in installed.request("GET", place).body["status"]["conditions"]
    }
    # Without the third: a schema that is not structural has it, with what is wrong.
    assert conditions == {"NamesAccepted": "True", "Established": "True"}


def controller_pod() -> dict[str, object]:
    """The pod that the Deployment makes."""
    (made,) = [each for each in documents("deployment.yaml") if each["kind"] == "Deployment"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": made["spec"]["template"]["spec"],
    }


def test_the_controllers_pod_is_let_into_its_restricted_namespace(installed: ApiServer) -> None:
    taken = installed.request("POST", PODS, controller_pod())
    assert (taken.status, taken.warnings) == (201, ()), taken.message


def test_the_namespace_refuses_a_pod_with_more_rights(installed: ApiServer) -> None:
    pod = controller_pod()
    pod["spec"] = {**pod["spec"], "hostNetwork": True}  # type: ignore[dict-item]
    refused = installed.request("POST", PODS, pod)
    assert refused.status == 403
    assert 'violates PodSecurity "restricted' in refused.message


def may(
    server: ApiServer, group: str, resource: str, verb: str, *, of: str = "", namespace: str = "default"
) -> bool:
    """Whether the API server lets the controller do this in any namespace, with the object of a name or with all."""
    name, _, below = resource.partition("/")
    attributes = {
        "group": group,
        "resource": name,
        "subresource": below,
        "verb": verb,
        "name": of,
        "namespace": namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": USER, "resourceAttributes": attributes},
    }
    answer = server.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.status == 201, answer.message
    return bool(answer.body["status"]["allowed"])


def test_the_controller_may_do_what_its_role_says(installed: ApiServer) -> None:
    for each in controller_rules():
        (name,) = each.get("resourceNames", [""])
        for group, resource, verb in itertools.product(each["apiGroups"], each["resources"], each["verbs"]):
            assert may(installed, group, resource, verb, of=name), (resource, verb)


@pytest.mark.parametrize("verb", ["get", "update"])
def test_of_leases_the_controller_has_its_own(installed: ApiServer, verb: str) -> None:
    leases, place = ("coordination.k8s.io", "leases", verb), n.CONTROLLER_NAMESPACE
    assert may(installed, *leases, of=n.CONTROLLER, namespace=place)
    assert not may(installed, *leases, of="another", namespace=place)
    assert not may(installed, *leases, of=n.CONTROLLER)


@pytest.mark.parametrize(
    ("group", "resource", "verb"),
    [
        ("", "secrets", "get"),
        ("", "secrets", "list"),
        ("", "pods/exec", "create"),
        ("", "services", "delete"),
        ("", "persistentvolumeclaims", "delete"),
        ("", "nodes", "patch"),
        ("", "events", "delete"),
        ("apps", "deployments", "patch"),
        ("rbac.authorization.k8s.io", "clusterroles", "bind"),
        ("rbac.authorization.k8s.io", "clusterrolebindings", "create"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "patch"),
        (n.GROUP, n.JOB_PLURAL, "create"),
        (n.GROUP, n.QUEUE_PLURAL, "delete"),
        ("karpenter.sh", "nodepools", "patch"),
    ],
)
def test_the_controller_may_do_nothing_else(
    installed: ApiServer, group: str, resource: str, verb: str
) -> None:
    assert not may(installed, group, resource, verb)
