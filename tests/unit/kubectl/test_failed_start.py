"""A worker that did not begin: what kept it is reported, and the log of that is shown."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kubectl.plugin_api import JOBS, PODS, Run, TorchrunApi, only_line
from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import status
from trainyard.kubectl import follow
from trainyard.kubectl.logs import FailedStart, failed_start
from trainyard.operator import names as n

pytestmark = pytest.mark.unit
NAME = "one-0-0-abcde"
SAID = f"pod {NAME}: worker did not start: init container workspace failed with exit code 3"


def worker(api: TorchrunApi, phase: str, **init: Any) -> Object:
    """A worker's pod whose init container `workspace` is in this state."""
    pod = api.worker(NAME, "waiting")
    pod["status"] |= {"phase": phase, "initContainerStatuses": [{"name": "workspace", **init}]}
    return pod


ENDED = {"terminated": {"exitCode": 3}}
AGAIN = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ENDED}


@pytest.mark.parametrize("init", [{"state": ENDED}, AGAIN])
def test_logs_shows_what_the_init_container_printed(api: TorchrunApi, run: Run, init: dict[str, Any]) -> None:
    api.job("one", phase="Failed")
    worker(api, "Failed", **init)
    api.logs[NAME] = [b"no such archive\n"]
    result, out, err = run("logs", "one", "--tail", "5")
    assert (result, out, only_line(err)) == (0, "no such archive\n", SAID)
    assert api.log_queries == [{"container": "workspace", "tailLines": "5"}]


def test_follow_shows_it_once_and_ends_with_the_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0.01)
    api.job("one", phase="Failed")["status"]["message"] = "worker 0 failed"
    worker(api, "Failed", state=ENDED)
    line = b"2026-01-01T00:00:00.1Z no such archive\n"
    api.on_log = lambda _: api.logs.update({NAME: [line]})
    result, out, err = run("logs", "-f", "one")
    assert (result, out) == (1, "no such archive\n")
    assert err.splitlines() == ["one: Failed: worker 0 failed", SAID]


def test_follow_goes_on_with_a_worker_that_begins_after_all(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0.01)
    api.job("one", phase="Provisioning")
    worker(api, "Pending", **AGAIN)
    first = b"2026-01-01T00:00:00.1Z not yet\n"

    def next_log(_pod: str) -> None:
        if len(api.log_queries) < 3:
            api.logs[NAME] = [first]
            return
        api.logs[NAME] = [b"2026-01-01T00:00:09Z trains\n"]
        api.objects[f"{PODS}/{NAME}"]["status"]["phase"] = "Succeeded"
        api.objects[f"{JOBS}/one"]["status"] = {"phase": "Succeeded"}

    def begins(_method: str, path: str) -> None:
        if len(api.log_queries) == 2 and path.endswith("/pods"):
            statuses = api.objects[f"{PODS}/{NAME}"]["status"]["containerStatuses"]
            statuses[0]["state"] = {"running": {}}

    api.on_log, api.on_request = next_log, begins
    result, out, err = run("logs", "-f", "one")
    assert (result, out) == (0, "not yet\ntrains\n")
    assert err.count(SAID) == 1
    assert [query["container"] for query in api.log_queries] == ["workspace", "workspace", "torchrun"]


def test_a_pod_that_is_over_is_not_said_to_begin_yet(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.job("one", phase="Failed")
    worker(api, "Failed", state={"waiting": {}})["status"]["message"] = "The node was low on memory."
    real = api.answer

    def answer(method: str, target: str, body: Object) -> object:
        return status(400, "BadRequest", "waits") if "/log" in target else real(method, target, body)

    monkeypatch.setattr(api, "answer", answer)
    result, out, err = run("logs", "one")
    assert (result, out) == (69, "")
    assert only_line(err).endswith(
        f"pod {NAME}: has ended, and its worker has no log: The node was low on memory."
    )


@pytest.mark.parametrize(
    ("init", "state", "found"),
    [
        ({"state": ENDED}, "waiting", FailedStart("workspace", 3)),
        (AGAIN, "waiting", FailedStart("workspace", 3)),
        (AGAIN, "running", None),
        ({"state": {"terminated": {"exitCode": 0}}}, "waiting", None),
        ({"state": {"running": {}}, "lastState": ENDED}, "waiting", None),
        ({"state": {"waiting": {}}}, "waiting", None),
    ],
)
def test_what_kept_a_worker_from_beginning(
    init: dict[str, Any], state: str, found: FailedStart | None
) -> None:
    pod = {
        "status": {
            "containerStatuses": [{"name": n.WORKER_CONTAINER, "state": {state: {}}}],
            "initContainerStatuses": [{"name": "workspace", **init}],
        }
    }
    assert failed_start(pod) == found


NO_SHELL = 'OCI runtime create failed: exec: "sh": executable file not found in $PATH: unknown'


@pytest.mark.parametrize("words", [("logs", "one"), ("logs", "-f", "one")])
@pytest.mark.parametrize("reason", ["StartError", "ContainerCannotRun"])
def test_worker_that_can_not_start_shows_the_runtime_message(
    api: TorchrunApi, run: Run, words: tuple[str, ...], reason: str
) -> None:
    """As with `--env PATH=/nope`: its log is empty, and 128 alone says nothing."""
    api.job("one", phase="Failed")["status"]["exitCode"] = 128
    pod = api.worker(NAME, "terminated")
    pod["status"]["phase"] = "Failed"
    state = pod["status"]["containerStatuses"][0]["state"]
    state["terminated"] = {"exitCode": 128, "reason": reason, "message": f"{NO_SHELL}\n"}
    result, out, err = run(*words)
    assert (result, out) == (128 if "-f" in words else 0, "")
    assert err.splitlines()[-1] == f"pod {NAME}: worker did not start: {NO_SHELL} ({reason}), exit code 128"


def test_worker_with_exit_code_128_has_started(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Failed")
    state = api.worker(NAME, "terminated")["status"]["containerStatuses"][0]["state"]
    state["terminated"] = {"exitCode": 128, "reason": "Error", "message": "fatal: not a git repository"}
    api.logs[NAME] = [b"fatal: not a git repository\n"]
    assert run("logs", "one") == (0, "fatal: not a git repository\n", "")
