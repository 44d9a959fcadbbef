"""Torchrun queues and jobs in the hands of people: what they restore can be deleted, and who may do what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from launcher.core.torchrun import names as n
from tests.local import kai
from tests.local.own_api_server import ApiServer
from tests.local.torchrun_controller import Running, Team, controller, until
from tests.local.torchrun_machine import cluster
from tests.torchrun_manifests import manifest

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

NUMBERS = count(1)
THEIRS = "example.com/theirs"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with cluster(with_kai=True) as running:
        yield running


@pytest.fixture(scope="module")
def working(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with controller(server, tmp_path_factory.mktemp("controller")) as running:
        yield running


@pytest.fixture
def team(server: ApiServer) -> Team:
    return Team(server, f"people-{next(NUMBERS)}")


def finalizers(team: Team) -> list[str]:
    """Of its queue."""
    metadata: dict[str, Any] = team.get(team.path(n.QUEUE_KIND, "research"))["metadata"]
    return list(metadata.get("finalizers") or [])


@pytest.mark.parametrize("how", [("create",), ("apply",), ("apply", "--server-side")], ids=" ".join)
def test_a_queue_that_was_restored_with_its_finalizer_can_be_deleted(
    team: Team, working: Running, how: tuple[str, ...]
) -> None:
    """As a dump has it, and so as its author's own; another program's finalizer is left to that program."""
    del working
    dump = manifest(n.QUEUE_KIND, "research", {"kaiQueue": f"{team.name}-gpus"})
    dump["metadata"] |= {"namespace": team.name, "finalizers": [THEIRS, n.QUEUE_FINALIZER]}
    restored = team.server.kubectl(*how, "-f", "-", stdin=json.dumps(dump))
    assert restored.returncode == 0, restored.stderr
    above = f"{kai.QUEUES}/{team.name}-gpus"
    until(lambda: team.get(above), "KAI's queue is made")
    path = team.path(n.QUEUE_KIND, "research")
    team.delete(path)
    until(lambda: finalizers(team) == [THEIRS], "the controller's finalizer is taken away, and no other")
    assert not team.get(above)
    team.merge(path, {"metadata": {"finalizers": None}})
    until(lambda: not team.get(path), "it is gone")


@pytest.mark.parametrize("how", [("create",), ("apply", "--server-side")], ids=" ".join)
def test_one_without_a_queue_of_kai_needs_no_finalizer_that_it_was_restored_with(
    team: Team, working: Running, how: tuple[str, ...]
) -> None:
    del working
    dump = manifest(n.QUEUE_KIND, "research")
    dump["metadata"] |= {"namespace": team.name, "finalizers": [n.QUEUE_FINALIZER]}
    restored = team.server.kubectl(*how, "-f", "-", stdin=json.dumps(dump))
    assert restored.returncode == 0, restored.stderr
    until(lambda: finalizers(team) == [], "it is taken away")
    team.server.kubectl("delete", "namespace", team.name, "--wait=false")
    until(lambda: not team.get(f"/api/v1/namespaces/{team.name}"), "the namespace is gone", 60.0)
