"""A sample of the controller's sweep: killed at one of its writes and started again, all ends as undisturbed."""

from __future__ import annotations

import re

import pytest

from tests.faults.proxy import Call
from tests.integration.sweeps.controller import place
from tests.integration.sweeps.kills import pause, sample
from tests.seed import of_run
from tests.torchrun_manifests import controller_rules

# What this life does not use. An object with a needed name is read; a changed queue of KAI is corrected; the archive of
# a running job is changed (tests/unit/operator/test_reconcile.py, tests/unit/operator). Nodes that are not needed are
# released, and reservations are read (test_pool.py). A gang of which a worker has succeeded needs one member
# (test_gang_queue.py).
UNUSED = {
    *((kind, "get") for kind in ("jobs", "services", "pods", "persistentvolumeclaims", "podgroups")),
    *((kind, "patch") for kind in ("queues", "pods", "podgroups")),
    ("ec2nodeclasses", "get"),
    ("nodeclaims", "delete"),
}

pytestmark = [pytest.mark.local, pytest.mark.timeout(600)]


def test_controller_killed_at_a_write_is_taken_up_by_the_next() -> None:
    seed = of_run()
    with place() as here:
        jobs = {name.split()[1] for name in here.undisturbed.made if name.startswith("Job ")}
        of_one = {"fails-0", "fails-1", "deleted-0", "gang-0", "holds-0"}
        assert jobs == of_one | {"paused-0", "paused-0-n1", "paused-1", "paused-1-n1"}
        assert here.undisturbed.wrongs == ()
        assert {
            "PodGroup gang-0 of TorchrunJob",
            "Queue LIFE-gpus of nobody",
            "Pod gang-sync-0 of TorchrunJob",
            "Pod holds-hold-1 of TorchrunJob",
        } <= set(here.undisturbed.made)
        assert _granted() - {_right(each) for each in here.calls} == UNUSED
        for kill in sample(seed, 1, here.writes):
            outcome = here.strike(kill, pause(seed, kill))
            assert outcome.wrongs == (), kill
            # Lives differ by a few writes of a status.
            assert outcome.at or kill.write > 1, kill


def _granted() -> set[tuple[str, str]]:
    return {
        (resource, verb)
        for each in (*controller_rules(), *controller_rules("Role"))
        for resource in each["resources"]
        for verb in each["verbs"]
    }


def _right(call: Call) -> tuple[str, str]:
    """The resource and the verb that an authorizer reads out of a request."""
    found = re.fullmatch(
        r"/apis?(/[^/]+)?/v[0-9a-z]+(/namespaces/[^/]+)?/([a-z]+)(/[^/]+)?(/status)?", call.path
    )
    if found is None:
        return call.path, call.method
    one = "get" if found[4] else "watch" if "watch" in call.query else "list"
    verbs = {"GET": one, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return f"{found[3]}{found[5] or ''}", verbs[call.method]
