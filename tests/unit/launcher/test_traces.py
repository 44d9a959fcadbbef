"""The launcher's decisions on seeded traces: late nodes, flaps, missing GPUs, losses, limits, crashes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter

import pytest

from launcher.core import contract as c
from launcher.core.request import parse_request
from tests.unit.launcher.conftest import DOCUMENT
from tests.unit.launcher.world import EPOCH, TICK, World

pytestmark = pytest.mark.unit

TRACES = 240


@pytest.fixture(scope="module")
def worlds() -> list[World]:
    """The traces, run to their ends."""
    request_ = parse_request({"TRAINYARD_REQUEST": json.dumps(DOCUMENT)})
    ran = []
    for seed in range(TRACES):
        lowest = 1 + seed % 3
        world = World(dataclasses.replace(request_, min_nodes=lowest), seed)
        world.run()
        ran.append(world)
    return ran


def test_no_trace_ends_in_a_wrong_count_a_surplus_or_a_leftover(worlds: list[World]) -> None:
    assert {world.seed: world.wrongs for world in worlds if world.wrongs} == {}
    ends = Counter(world.code for world in worlds)
    # The mix is worth something only if it has each of the ends often.
    assert ends[c.EXIT_SUCCEEDED] > 60
    assert ends[c.EXIT_BELOW_MINIMUM] > 20
    assert ends[c.EXIT_IMPOSSIBLE] > 5
    assert len({world.training[0] for world in worlds if world.training}) == 4


def test_each_trace_submits_once_or_not_at_all_and_in_time(worlds: list[World]) -> None:
    for world in worlds:
        assert world.submits == (world.code == c.EXIT_SUCCEEDED), world.seed
        if world.training is not None and world.crashes == 0:
            latest = world.request.deadline_seconds + 2 * TICK + 5
            assert world.training[1] - EPOCH <= latest, world.seed
        elif world.code == c.EXIT_BELOW_MINIMUM and world.crashes == 0:
            assert world.now - EPOCH >= world.request.deadline_seconds, world.seed
