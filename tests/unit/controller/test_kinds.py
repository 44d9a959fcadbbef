"""What is to be watched once a CustomResourceDefinition says so."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.controller.kinds import Kind, served
from launcher.controller.schema.definitions import definitions
from launcher.core.torchrun import names as n

pytestmark = pytest.mark.unit
QUEUES = Kind(n.GROUP, n.VERSION, n.QUEUE_PLURAL)


def defined(**conditions: str) -> dict[str, Any]:
    definition = next(
        each for each in definitions().values() if each["spec"]["names"]["kind"] == n.QUEUE_KIND
    )
    listed = [{"type": name, "status": status} for name, status in conditions.items()]
    return {**definition, "status": {"conditions": listed}}


def test_a_kind_is_there_once_its_definition_is_established() -> None:
    assert served(defined(NamesAccepted="True", Established="True")) == {QUEUES}


@pytest.mark.parametrize("conditions", [{}, {"NamesAccepted": "True"}, {"Established": "False"}])
def test_a_definition_that_is_not_established_has_no_kind_yet(conditions: dict[str, str]) -> None:
    assert served(defined(**conditions)) == set()
    new = {key: value for key, value in defined().items() if key != "status"}
    assert served(new) == set()


def test_only_the_versions_that_are_served_are_there() -> None:
    definition = defined(Established="True")
    (version,) = definition["spec"]["versions"]
    versions = [version, {**version, "name": "v1"}, {**version, "name": "v0", "served": False}]
    definition["spec"] = {**definition["spec"], "versions": versions}
    assert served(definition) == {QUEUES, Kind(n.GROUP, "v1", n.QUEUE_PLURAL)}
