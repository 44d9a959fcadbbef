from __future__ import annotations

from typing import Any

import pytest

from local.nodes import status
from local.nodes.status import ContainerState


def running(name: str = "c", ready: bool = True) -> ContainerState:
    state = ContainerState(name, "image")
    state.run(100.0)
    state.ready = state.started = ready
    return state


def ended(code: int, name: str = "c") -> ContainerState:
    state = running(name)
    state.end(code, 110.0)
    return state


def pod(policy: str = "Always", **extra: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p"},
        "spec": {"restartPolicy": policy, "containers": [], **extra},
        "status": {},
    }


def pod_status(pod: dict[str, Any], *containers: ContainerState, now: float = 200.0) -> dict[str, Any]:
    return status.pod_status(pod, [], [], list(containers), "127.96.0.2", "127.0.0.1", now)


def condition(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(c for c in found["conditions"] if c["type"] == kind)


@pytest.mark.parametrize(
    ("policy", "code", "expected"),
    [
        ("Always", 0, "Running"),
        ("Always", 1, "Running"),
        ("OnFailure", 1, "Running"),
        ("OnFailure", 0, "Succeeded"),
        ("Never", 0, "Succeeded"),
        ("Never", 3, "Failed"),
    ],
)
def test_phase_only_a_final_exit_ends_the_pod(policy: str, code: int, expected: str) -> None:
    assert status.phase(policy, [], [ended(code)]) == expected


def test_phase_with_container_in_back_off_is_running() -> None:
    state = ended(1)
    state.wait("CrashLoopBackOff", "")
    assert status.phase("Always", [], [state]) == "Running"
    assert state.report()["lastState"]["terminated"]["exitCode"] == 1


def test_phase_with_one_running_container_is_running() -> None:
    assert status.phase("Never", [], [ended(1), running("d")]) == "Running"


def test_phase_failed_init_container_fails_only_without_retry() -> None:
    waiting = ContainerState("c")
    assert status.phase("Never", [running("i")], [waiting]) == "Pending"
    assert status.phase("Never", [ended(1, "i")], [waiting]) == "Failed"
    assert status.phase("OnFailure", [ended(1, "i")], [waiting]) == "Pending"
    assert status.phase("Never", [ended(0, "i")], [waiting]) == "Pending"


def test_conditions_name_the_unready_containers() -> None:
    good = pod_status(pod(), running())
    assert condition(good, "Ready")["status"] == "True"
    bad = pod_status(pod(), running(), running("d", ready=False))
    assert condition(bad, "Ready")["message"] == "containers with unready status: [d]"


def test_conditions_keep_the_time_of_their_last_change() -> None:
    first = pod_status(pod(), running())
    again = pod_status(pod() | {"status": first}, running(), now=999.0)
    assert condition(again, "Ready") == condition(first, "Ready")
    assert again["startTime"] == first["startTime"]
    changed = pod_status(pod() | {"status": first}, running(ready=False), now=999.0)
    assert condition(changed, "Ready")["lastTransitionTime"] == "1970-01-01T00:16:39Z"


def test_init_container_statuses_have_the_order_of_the_spec() -> None:
    spec = pod(initContainers=[{"name": "side"}, {"name": "once"}])
    found = status.pod_status(
        spec, [ended(0, "once")], [running("side")], [running()], "127.96.0.2", "h", 1.0
    )
    assert [s["name"] for s in found["initContainerStatuses"]] == ["side", "once"]
    assert found["initContainerStatuses"][1]["ready"] is True


def test_container_state_of_its_report_is_equal() -> None:
    for state in (running(), ended(7), ContainerState("c", "image", reason="ErrImagePull", message="why")):
        state.restarts = 2
        again = ContainerState.of(state.report())
        assert (again.stage, again.exit_code, again.restarts, again.reason, again.message) == (
            state.stage, state.exit_code, 2, state.reason, state.message,
        )  # fmt: skip


def test_back_off_doubles_up_to_five_minutes() -> None:
    assert [status.back_off(n) for n in range(8)] == [0, 10, 20, 40, 80, 160, 300, 300]


def test_deleted_pod_succeeds_only_if_all_containers_did() -> None:
    assert status.end_phase([ended(0)]) == "Succeeded"
    assert status.end_phase([ended(0), ended(137, "d")]) == "Failed"
    assert status.end_phase([running()]) == "Failed"
