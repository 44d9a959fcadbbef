"""A small API server; whatever a test has the controller ask of it, the controller has the right to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.operator.api import Api
from tests.unit.operator.permissions import GIVEN, needed

_VERBS = {"create": "create", "apply": "patch", "delete": "delete"}
_GIVEN = {(each.resource, each.verb) for each in GIVEN}


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
        assert verb == "put" or (f"{kind.lower()}s", _VERBS[verb]) in _GIVEN, what
        write(api, what)

    monkeypatch.setattr(Api, "_write", judged)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as api:
        yield api
