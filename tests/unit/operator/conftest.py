"""A small API server; whatever a test has the controller ask of it, the controller has the right to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.torchrun_manifests import controller_rules
from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.operator.api import Api
from trainyard.operator import names as n


class Needed(NamedTuple):
    """One verb on one resource of an API group. `own`: only in the namespace of the controller."""

    group: str
    resource: str
    verb: str
    own: bool = False


_PATH = re.compile(
    r"/(api|apis/(?P<group>[^/]+))/(?P<version>v[0-9a-z]+)(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z0-9]+)(/(?P<name>[^/]+))?(?P<sub>/status)?"
)
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def needed(method: str, path: str, query: dict[str, str]) -> Needed | None:
    """Return the permission that a request needs; None for discovery and health, which everybody may read."""
    found = _PATH.fullmatch(path)
    if found is None:
        assert path == "/readyz" or re.fullmatch(r"/apis/[^/]+/v[0-9a-z]+", path), path
        return None
    read = "get" if found["name"] else "watch" if "watch" in query else "list"
    verb = read if method == "GET" else _VERBS[method]
    own = found["plural"] == "leases" and found["namespace"] == n.CONTROLLER_NAMESPACE
    if own and verb != "create":
        assert found["name"] == n.CONTROLLER, path
    return Needed(found["group"] or "", found["plural"] + (found["sub"] or ""), verb, own)


GIVEN = {
    Needed(group, resource, verb, own=kind == "Role")
    for kind in ("ClusterRole", "Role")
    for rule in controller_rules(kind)
    for group in rule["apiGroups"]
    for resource in rule["resources"]
    for verb in rule["verbs"]
}
_GIVEN = {(each.resource, each.verb) for each in GIVEN}
_PLANNED = {"create": "create", "apply": "patch", "delete": "delete"}


@pytest.fixture(autouse=True)
def within_its_rights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[FakeApi] = []
    begin = FakeApi.__init__

    def noted(api: FakeApi) -> None:
        begin(api)
        made.append(api)

    monkeypatch.setattr(FakeApi, "__init__", noted)
    yield
    asked = {needed(*request) for api in made for request in api.requests}
    assert asked - {None} <= GIVEN


@pytest.fixture(autouse=True)
def plans_within_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Api._write

    def judged(api: Api, what: str) -> None:
        verb, kind = what.split()[:2]
        assert verb == "put" or (f"{kind.lower()}s", _PLANNED[verb]) in _GIVEN, what
        write(api, what)

    monkeypatch.setattr(Api, "_write", judged)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        yield api
