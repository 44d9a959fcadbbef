"""The controller's process against a real API server, as its own service account: what it hears, and what it survives.

There are no machines here and nobody who makes pods of Jobs; what is decided is seen in what is made.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.faults.proxy import Proxy
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import (
    Running,
    Team,
    controller,
    taken_away,
    until,
    without_right,
)
from tests.torchrun_manifests import manifest
from trainyard.k8s.client import accept_deep_objects
from trainyard.operator import names as n

NUMBERS = count(1)
# Nothing is waited for but running reconciles.
STOP_SECONDS = 4.0
PERIOD_SECONDS = 7.0
# As deep as the API server takes objects (sigs.k8s.io/json, internal/golang/encoding/json/scanner.go:
# maxNestingDepth is 10000), but for what surrounds the value.
DEEP = 9900
INSTALL = ("config/deployment.yaml", "config/rbac/role.yaml", "config/admission.yaml")


@pytest.fixture(scope="module")
def installed(torchrun_api: ApiServer) -> ApiServer:
    for each in INSTALL:
        applied = torchrun_api.kubectl("apply", "-f", each)
        assert applied.returncode == 0, applied.stderr
    return torchrun_api


@pytest.fixture
def team(installed: ApiServer) -> Team:
    return Team(installed, f"team-{next(NUMBERS)}")


@pytest.fixture(scope="class")
def shared(installed: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with controller(installed, tmp_path_factory.mktemp("controller")) as running:
        yield running


def queue(name: str = "research", **changes: object) -> dict[str, object]:
    return manifest(n.QUEUE_KIND, name, changes)


def job(name: str, **changes: object) -> dict[str, object]:
    return manifest(n.JOB_KIND, name, changes)


def is_resumed(team: Team, name: str) -> bool:
    """Whether the attempt's Job is there and may run."""
    spec = team.get(team.batch(name)).get("spec") or {"suspend": True}
    return not spec.get("suspend")


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


@pytest.mark.local
class TestOneController:
    """What is seen while one controller works."""

    def test_a_job_gets_its_service_and_its_job_and_says_where_it_is(
        self, team: Team, shared: Running
    ) -> None:
        team.make(queue())
        team.make(job("vit"))
        until(lambda: is_resumed(team, "vit-0"), "the Job of attempt 0 is resumed")
        status = team.reaches("vit", n.PHASE_PROVISIONING)
        assert (status["nodes"], status["gpusPerNode"], status["gpus"]) == (2, 8, 16)
        made = team.get(team.batch("vit-0"))["spec"]
        assert (made["completions"], made["completionMode"], made["backoffLimit"]) == (2, "Indexed", 0)
        assert team.get(team.core("services", "vit"))["spec"]["clusterIP"] == "None"
        ready = until(lambda: team.condition("research", n.READY, n.QUEUE_KIND), "the queue is judged")
        assert ready["status"] == "True", ready
        counted = {"active": 1, "pending": 0}
        until(
            lambda: team.status("research", n.QUEUE_KIND).get("jobs") == counted, "the queue counts its job"
        )
        assert " 403 " not in shared.said()
        (event,) = (each for each in team.events("vit") if each["reason"] == n.REASON_STARTING)
        assert (event["type"], event["message"]) == ("Normal", "attempt 0 starts; nodes: 2, GPUs on each: 8")
        assert event["source"]["component"] == n.CONTROLLER
        (event,) = (each for each in team.events("research", n.QUEUE_KIND) if each["reason"] == "Ready")
        assert event["type"] == "Normal"
        described = team.server.kubectl("describe", "torchrunjob", "vit", "-n", team.name).stdout
        assert "attempt 0 starts; nodes: 2, GPUs on each: 8" in described.partition("Events:")[2]

    def test_a_job_without_its_queue_waits_and_begins_when_it_appears(
        self, team: Team, shared: Running
    ) -> None:
        del shared
        team.make(job("early"))
        status = team.reaches("early", n.PHASE_PENDING)
        assert status["reason"] == n.REASON_QUEUE_NOT_FOUND
        assert "research" in status["message"]
        assert not team.get(team.batch("early-0"))
        team.make(queue())
        until(lambda: is_resumed(team, "early-0"), "it begins", 5.0)

    def test_suspended_it_has_no_job_and_resumed_the_next_attempt(self, team: Team, shared: Running) -> None:
        del shared
        team.make(queue())
        team.make(job("held"))
        until(lambda: is_resumed(team, "held-0"), "it begins")
        team.merge(team.path(n.JOB_KIND, "held"), {"spec": {"suspend": True}})
        # Foreground deletion is the garbage collector's to end, which is not here.
        until(
            lambda: "deletionTimestamp" in team.get(team.batch("held-0")).get("metadata", {}), "its Job goes"
        )
        team.merge(team.batch("held-0"), {"metadata": {"finalizers": None}})
        team.reaches("held", n.PHASE_SUSPENDED)
        until(lambda: team.condition("held", n.SUSPENDED).get("status") == "True", "it says so")
        team.merge(team.path(n.JOB_KIND, "held"), {"spec": {"suspend": False}})
        until(lambda: is_resumed(team, "held-1"), "attempt 1 begins")
        assert team.status("held")["restarts"] == 0

    @pytest.mark.parametrize(
        ("hard", "named"),
        [
            ({"count/services": "0"}, 'services "refused" is forbidden'),
            ({"requests.storage": "0"}, 'persistentvolumeclaims "refused-workspace" is forbidden'),
            ({"persistentvolumeclaims": "0"}, 'persistentvolumeclaims "refused-workspace" is forbidden'),
        ],
    )
    def test_quota_refusal_is_reported_on_the_job_alone(
        self, team: Team, shared: Running, hard: dict[str, str], named: str
    ) -> None:
        del shared
        team.make(queue(storage={"workspace": {"enabled": True, "size": "1Gi"}}))
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none"},
            "spec": {"hard": hard},
        }
        answer = team.server.request("POST", team.core("resourcequotas"), quota)
        assert answer.status == 201
        # Who counts what is used is not here.
        used = {"status": {"hard": hard, "used": dict.fromkeys(hard, "0")}}
        team.merge(f"{team.core('resourcequotas', 'none')}/status", used)
        team.make(job("refused"))
        until(lambda: team.status("refused").get("reason") == n.REASON_REFUSED, "it says so")
        message = team.status("refused")["message"]
        assert named in message
        assert "exceeded quota: none" in message
        assert not team.get(team.batch("refused-0"))
        other = Team(team.server, f"{team.name}-other")
        other.make(queue())
        other.make(job("free"))
        until(lambda: is_resumed(other, "free-0"), "another one begins", 5.0)
        team.delete(team.core("resourcequotas", "none"))
        until(lambda: is_resumed(team, "refused-0"), "it begins once it may", 30.0)

    def test_a_quota_that_is_used_up_says_nothing_of_a_queue(self, team: Team, shared: Running) -> None:
        del shared
        few = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"pods": "2"}},
        }
        assert team.server.request("POST", team.core("resourcequotas"), few).status == 201
        used = {"status": {"hard": {"pods": "2"}, "used": {"pods": "2"}}}
        team.merge(f"{team.core('resourcequotas', 'few')}/status", used)
        team.make(queue())
        ready = until(lambda: team.condition("research", n.READY, n.QUEUE_KIND), "the queue is judged")
        assert ready["status"] == "True", ready
        assert (
            "a quota that is used up"
            in team.condition("research", n.POD_TEMPLATE_VALID, n.QUEUE_KIND)["message"]
        )

    def test_a_job_that_is_deleted_while_it_waits_leaves_nothing_to_do(
        self, team: Team, shared: Running
    ) -> None:
        team.make(job("gone"))
        team.reaches("gone", n.PHASE_PENDING)
        team.delete(team.path(n.JOB_KIND, "gone"))
        until(lambda: not team.get(team.path(n.JOB_KIND, "gone")), "it is gone")
        until(
            lambda: "trainyard_torchrun_waiting 0" in shared.scrape().replace(".0", ""),
            "nothing is pending",
        )

    def test_reserved_field_of_a_pod_template_is_named(self, team: Team, shared: Running) -> None:
        """The API server's message names the field as in the job's manifest, after what jobs add."""
        label = "batch.kubernetes.io/job-name"
        containers = [{"name": "prepare"}, {"name": "workspace", "image": "busybox"}]
        team.make(queue("labelled", podTemplate={"metadata": {"labels": {label: "x"}}}))
        team.make(queue("named", podTemplate={"spec": {"initContainers": containers}}))
        team.make(queue("incomplete", podTemplate={"spec": {"initContainers": containers[:1]}}))

        def message(name: str) -> str:
            seen = until(lambda: team.condition(name, n.READY, n.QUEUE_KIND), f"{name} is judged")
            assert seen["status"] == "False"
            return str(seen["message"])

        assert f"spec.podTemplate.metadata.labels.{label}: Kubernetes" in message("labelled")
        assert "spec.podTemplate.spec.initContainers[1].name" in message("named")
        assert "spec.initContainers[0].image: Required value" in message("incomplete")
        team.make(job("refused", jobQueue="labelled"))
        until(lambda: team.status("refused").get("reason") == n.REASON_REFUSED, "the Job is not taken")
        assert label in team.status("refused")["message"]

    def test_a_claim_is_kept_by_the_command_that_its_job_tells(self, team: Team, shared: Running) -> None:
        size = {"enabled": True, "size": "1Gi"}
        team.make(queue(storage={"checkpoints": size}))
        team.make(job("vit", numGPUs=8))
        until(lambda: is_resumed(team, "vit-0"), "it begins")
        team.merge(
            team.path(n.QUEUE_KIND, "research"), {"spec": {"storage": {"checkpoints": {"retain": True}}}}
        )

        def said() -> str:
            return str(team.condition("vit", n.ACCEPTED).get("message", ""))

        _, _, words = str(until(said, "it says that its claim goes with it")).partition("kubectl ")
        done = team.server.kubectl(*shlex.split(words))
        assert done.returncode == 0, done.stderr
        team.merge(
            team.path(n.JOB_KIND, "vit"), {"spec": {"maxRestarts": 1}}
        )  # a reconcile, sooner than by its timer
        until(lambda: not said(), "it says nothing more")
        claim = team.get(team.core("persistentvolumeclaims", "vit-checkpoints"))
        assert "ownerReferences" not in claim["metadata"]

    def test_it_is_alive_and_counts(self, shared: Running) -> None:
        assert "the last reconcile ended" in shared.healthy()["reconciles"]
        scraped = shared.scrape()
        assert 'trainyard_torchrun_reconcile_seconds_count{kind="TorchrunJob"}' in scraped
        assert 'trainyard_torchrun_jobs{phase="Provisioning"}' in scraped


@pytest.mark.faults
class TestItsOwnController:
    """Each test ends its controllers itself; their Leases run out in between. The shortest are `make test`'s, too."""

    def test_what_changed_while_it_was_down_is_made_up_for(
        self, installed: ApiServer, team: Team, tmp_path: Path
    ) -> None:
        with controller(installed, tmp_path / "first") as first:
            team.make(queue())
            team.make(job("one"))
            team.make(job("two"))
            until(lambda: is_resumed(team, "one-0") and is_resumed(team, "two-0"), "both begin")
            first.kill()
        team.delete(team.path(n.JOB_KIND, "one"))
        team.merge(team.path(n.JOB_KIND, "two"), {"spec": {"suspend": True}})
        team.make(job("three"))
        # A Lease of one that was killed runs out first.
        with controller(installed, tmp_path / "second", wait=False):
            until(lambda: is_resumed(team, "three-0"), "the new one begins", 40.0)
            team.reaches("two", n.PHASE_SUSPENDED)
        assert not team.get(team.path(n.JOB_KIND, "one"))

    @pytest.mark.local
    def test_standby_takes_over_at_once_when_the_first_is_stopped(
        self, installed: ApiServer, team: Team, tmp_path: Path
    ) -> None:
        team.make(queue())
        with (
            controller(installed, tmp_path / "a") as first,
            controller(installed, tmp_path / "b", wait=False) as second,
        ):
            until(lambda: "waits" in second.said(), "the second one says that it waits")
            team.make(job("vit"))
            until(lambda: is_resumed(team, "vit-0"), "the first one works")
            assert not second.working
            assert "reconciles" in second.healthy()
            began = time.monotonic()
            assert first.stop() == 0
            assert time.monotonic() - began < STOP_SECONDS
            until(lambda: second.working, "the second one works", 10.0)
            team.make(job("next"))
            until(lambda: is_resumed(team, "next-0"), "and does the pending work")

    def test_controller_without_its_rights_waits_for_them(
        self, installed: ApiServer, team: Team, tmp_path: Path
    ) -> None:
        with (
            Proxy(installed.url, authority=installed.authority) as proxy,
            controller(installed, tmp_path, through=proxy.url) as running,
        ):
            team.make(queue())
            give = taken_away(installed)
            since = time.monotonic()
            try:
                team.make(job("later"))
                until(lambda: "403" in running.said(), "it is refused", 30.0)
                time.sleep(max(0.0, since + 3 * PERIOD_SECONDS - time.monotonic()))
            finally:
                give()
            asked = Counter(
                int((call.at - since) / PERIOD_SECONDS) for call in proxy.calls if call.at > since
            )
            assert 2 * asked[2] < asked[0], asked
            until(lambda: is_resumed(team, "later-0"), "it goes on", 60.0)
            assert running.process.poll() is None

    @pytest.mark.parametrize(("resource", "verb"), [("services", "list"), ("jobs", "create")])
    def test_c11_a_right_that_is_missing_is_a_condition_and_an_event_until_it_is_given(
        self, installed: ApiServer, team: Team, tmp_path: Path, resource: str, verb: str
    ) -> None:
        with controller(installed, tmp_path) as running:
            team.make(queue())
            with without_right(installed, resource, verb):
                team.make(job("refused"))
                until(lambda: team.status("refused").get("reason") == n.REASON_REFUSED, "it says so")
                condition = team.condition("refused", n.ACCEPTED)
                assert condition["status"] == "False"
                assert f'cannot {verb} resource "{resource}"' in condition["message"]
                event = until(lambda: team.events("refused"), "an Event tells it")[-1]
                assert (event["type"], event["reason"]) == ("Warning", n.REASON_REFUSED)
            until(lambda: is_resumed(team, "refused-0"), "it begins", 90.0)
            # A reconcile that was refused just before may have written the condition last. The next one corrects it.
            until(lambda: team.condition("refused", n.ACCEPTED)["status"] == "True", "it is accepted")
            assert running.process.poll() is None

    @pytest.mark.local
    def test_a_queue_or_job_of_nonsense_holds_up_nobody(
        self, installed: ApiServer, team: Team, tmp_path: Path
    ) -> None:
        """What the API server takes can be wrong nevertheless."""
        accept_deep_objects()
        team.make(queue())
        team.make(queue("wrong", podTemplate={"spec": {"containers": "none"}}))
        team.make(queue("deep", podTemplate={"spec": nested(DEEP)}))
        with controller(installed, tmp_path):
            team.make(job("lost", jobQueue="wrong"))
            team.make(job("odd", numGPUs=17))
            team.make(job("sunk", jobQueue="deep"))
            team.make(job("well"))
            until(lambda: is_resumed(team, "well-0"), "it begins")
            failed = team.reaches("odd", n.PHASE_FAILED)
            assert failed["reason"] == n.REASON_INVALID_SPEC
            assert "numGPUs" in failed["message"]
            until(lambda: team.status("lost").get("reason") == n.REASON_QUEUE_INVALID, "it says why it waits")
            for name in ("wrong", "deep"):
                ready = until(partial(team.condition, name, n.READY, n.QUEUE_KIND), "the queue is judged")
                assert ready["status"] == "False"
            team.make(queue("misspelt", podTemplate={"spec": {"dnsPolcy": "Default"}}))
            condition = until(
                lambda: team.condition("misspelt", n.READY, n.QUEUE_KIND), "a misspelt field is reported"
            )
            assert condition["status"] == "False"
            assert 'unknown field "spec.dnsPolcy"' in condition["message"]
