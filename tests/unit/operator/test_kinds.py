"""What is to be watched once a CustomResourceDefinition says so."""

from __future__ import annotations

import asyncio
from typing import Any

import kopf
import pytest

from trainyard.operator import kinds as kinds_of
from trainyard.operator import names as n
from trainyard.operator.api.crd import definitions
from trainyard.operator.kinds import Kind, Kinds, served

pytestmark = pytest.mark.unit
QUEUES = Kind(n.GROUP, n.VERSION, n.QUEUE_PLURAL)
JOBS = Kind(n.GROUP, n.VERSION, n.JOB_PLURAL)


def defined(kind: str = n.QUEUE_KIND, **conditions: str) -> dict[str, Any]:
    definition = next(each for each in definitions().values() if each["spec"]["names"]["kind"] == kind)
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


@pytest.mark.parametrize(
    "found",
    [
        [{QUEUES, JOBS}],
        [set(), {QUEUES}, {QUEUES, JOBS}],
        # An API server that is behind another one, or a look that began before another one.
        [{QUEUES}, {JOBS}, {QUEUES, JOBS}],
    ],
)
def test_it_is_looked_until_all_that_is_defined_is_watched(
    monkeypatch: pytest.MonkeyPatch, found: list[set[Kind]]
) -> None:
    """A look puts what it found in place of what was known."""
    answers = iter(found)

    async def look(*, raw_event: Any, insights: Any, **_: Any) -> None:
        assert raw_event["object"]["spec"]["group"] == n.GROUP
        await asyncio.sleep(0)
        insights.watched_resources.clear()
        insights.watched_resources.update(next(answers))

    monkeypatch.setattr(kinds_of, "process_discovered_resource_event", look)

    async def main() -> set[Kind]:
        kinds = Kinds(kopf.OperatorSettings(), (QUEUES, JOBS), pauses=(0.0,) * 20)
        registry = kopf.OperatorRegistry()
        await asyncio.gather(
            *(kinds.see(defined(each, Established="True"), registry) for each in (n.QUEUE_KIND, n.JOB_KIND))
        )
        return {Kind(each.group, each.version, each.plural) for each in kinds.insights.watched_resources}

    assert asyncio.run(main()) == {QUEUES, JOBS}
    assert list(answers) == [], "it looked less often, or more"


def test_what_is_not_wanted_is_not_waited_for_and_what_is_gone_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def look(**_: Any) -> None:
        """Nothing is served."""

    monkeypatch.setattr(kinds_of, "process_discovered_resource_event", look)

    async def main() -> None:
        kinds = Kinds(kopf.OperatorSettings(), (JOBS,), pauses=(0.0,))
        registry = kopf.OperatorRegistry()
        await kinds.see(defined(Established="True"), registry)
        assert caplog.messages == []
        await kinds.see(defined(n.JOB_KIND, Established="True"), registry)
        assert caplog.messages == [
            "torchrunjobs.torchrun.ai v1alpha1 is defined, and not served by the API server"
        ]
        kinds.forget(defined(n.JOB_KIND))
        await kinds.see(defined(Established="True"), registry)
        assert len(caplog.messages) == 1

    asyncio.run(main())
