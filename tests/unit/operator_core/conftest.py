"""Whatever is decided, the controller has the right to do."""

from __future__ import annotations

import pytest

from tests.unit.operator.asked_rights import GIVEN
from tests.unit.operator_core.api import Api

_VERBS = {"create": "create", "apply": "patch", "delete": "delete"}
_GIVEN = {(each.resource, each.verb) for each in GIVEN}


@pytest.fixture(autouse=True)
def within_its_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Api._write

    def judged(api: Api, what: str) -> None:
        verb, kind = what.split()[:2]
        assert verb == "put" or (f"{kind.lower()}s", _VERBS[verb]) in _GIVEN, what
        write(api, what)

    monkeypatch.setattr(Api, "_write", judged)
