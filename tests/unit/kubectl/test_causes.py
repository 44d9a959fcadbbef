"""Why a job failed reaches the terminal: while its logs go on, and after its pods are gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.kubectl.plugin_api import JOBS, Run, TorchrunApi, only_line
from tests.unit.launcher.api_history import Object
from tests.unit.launcher.api_server import status
from trainyard.kubectl import follow
from trainyard.operator import names as n
from trainyard.operator.names import LABEL_INDEX

pytestmark = pytest.mark.unit
KEPT = {
    "attempt": 0,
    "nodeRank": 1,
    "rank": 9,
    "pod": "one-0-1-abcde",
    "node": "ip-10-0-0-7",
    "exitCode": 137,
    "meaning": "SIGKILL, often out of memory",
    "error": "FileNotFoundError: 'nope'",
    "logTail": "epoch 1\nFileNotFoundError: 'nope'",
}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(follow, "_DRAIN_SECONDS", 0.1)


def failed(api: TorchrunApi) -> Object:
    job = api.job("one", phase="Failed")
    job["status"] |= {"message": "worker failed", "nodes": 2, "firstFailure": KEPT}
    return job


def test_endless_log_hides_neither_restart_nor_end(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun of rank 0 waits in its exit barrier, and then for its pod's grace period."""
    job = api.job("one", phase="Running")
    first = api.worker("one-0-0")["metadata"]["name"]
    never = threading.Event()
    real = api.answer

    def blocked() -> Iterator[bytes | None]:
        yield b"2026-01-01T00:00:00Z begins\n"
        restarted = {"attempt": 0, "reason": "WorkerFailed", "message": "worker 1 failed"}
        job["status"] |= {"attempts": [restarted], "phase": "Provisioning"}
        api.worker("one-1-0", **{n.LABEL_ATTEMPT: "1"})
        never.wait(20)

    def answer(method: str, target: str, body: Object) -> Any:
        if f"/{first}/log" in target:
            return blocked()
        if "/one-1-0/log" in target:
            job["status"] |= {"phase": "Failed", "exitCode": 9, "message": "worker 1 failed again"}
        return real(method, target, body)

    monkeypatch.setattr(api, "answer", answer)
    try:
        result, out, err = run("logs", "-f", "one")
    finally:
        never.set()
    assert (result, out) == (9, "begins\n")
    reported = ["one: Restarting: worker 1 failed", "one: Provisioning", "one: Failed: worker 1 failed again"]
    assert err.splitlines()[-3:] == reported


def test_follow_after_submit_does_not_ask_for_the_workspace(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first status is from before the workspace arrived."""
    waits = {"phase": "Pending", "reason": n.REASON_WAITING_FOR_WORKSPACE, "message": "run sync"}
    job = api.job("one", phase="Pending")
    job["status"] |= waits
    real, reads = api.answer, []

    def answer(method: str, target: str, body: Object) -> Any:
        reads.append(target)
        if len(reads) == 20:
            job["status"] |= {"phase": "Succeeded", "reason": "", "message": "done"}
        return real(method, target, body)

    monkeypatch.setattr(api, "answer", answer)
    assert run("logs", "-f", "one") == (0, "", "one: Succeeded: done\n")
    job["status"] |= waits
    reads.clear()
    monkeypatch.setattr(follow, "_SETTLE_SECONDS", 0.0)
    assert "one: Pending: run sync" in run("logs", "-f", "one")[2]


@pytest.mark.parametrize(
    "words",
    [(), ("--node-rank", "1"), ("--attempt", "0"), ("--node-rank", "1", "--attempt", "0"), ("--all",)],
)
def test_the_last_lines_are_shown_after_the_pod_is_gone(
    api: TorchrunApi, run: Run, words: tuple[str, ...]
) -> None:
    failed(api)
    result, out, err = run("logs", "one", *words)
    assert (result, out) == (0, KEPT["logTail"] + "\n")
    assert "pod one-0-1-abcde: is gone" in only_line(err)
    assert run("logs", "one", "--tail", "1", *words)[1] == "FileNotFoundError: 'nope'\n"


@pytest.mark.parametrize("words", [(), ("--node-rank", "1"), ("--all",)])
def test_follow_of_ended_job_shows_the_last_lines(api: TorchrunApi, run: Run, words: tuple[str, ...]) -> None:
    failed(api)
    out, err = run("logs", "-f", "one", *words)[1:]
    assert out == KEPT["logTail"] + "\n"
    assert "pod one-0-1-abcde: is gone" in err


def test_last_lines_are_shown_if_the_node_is_gone(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(api)
    api.worker("one-0-1-abcde", "terminated", **{LABEL_INDEX: "1"})
    real = api.answer

    def answer(method: str, target: str, body: Object) -> Any:
        return (
            status(404, "NotFound", 'nodes "x" not found') if "/log" in target else real(method, target, body)
        )

    monkeypatch.setattr(api, "answer", answer)
    assert run("logs", "one", "--node-rank", "1")[:2] == (0, KEPT["logTail"] + "\n")


def test_logs_of_a_job_without_node_0_show_the_first_failure(api: TorchrunApi, run: Run) -> None:
    failed(api)
    api.worker("one-0-1-abcde", "terminated", **{LABEL_INDEX: "1"})
    api.logs["one-0-1-abcde"] = [b"epoch 1\nnope\n"]
    result, out, err = run("logs", "one")
    assert (result, out) == (0, "epoch 1\nnope\n")
    assert "node 0 has no pod now" in only_line(err)
    api.logs["one-0-1-abcde"] = [b"epoch 1\nnope\n"]
    result, out, err = run("logs", "one", "--all")
    assert (result, out) == (0, "[node 1] epoch 1\n[node 1] nope\n")
    assert only_line(err).endswith("their logs with them: 0")


@pytest.mark.parametrize("words", [("--node-rank", "0"), ("--attempt", "1")])
def test_another_worker_is_not_shown_in_its_place(api: TorchrunApi, run: Run, words: tuple[str, ...]) -> None:
    failed(api)
    result, out, err = run("logs", "one", *words)
    assert (result, out) == (66, "")
    assert "its phase is Failed: worker failed. Its log was deleted with its pod" in only_line(err)


def test_log_that_is_answered_late_is_followed(api: TorchrunApi, run: Run) -> None:
    api.job("one", phase="Succeeded")
    for node in range(2):
        name = api.worker(f"one-0-{node}", "terminated", **{LABEL_INDEX: str(node)})["metadata"]["name"]
        api.logs[name] = [b"2026-01-01T00:00:00Z a\n"]
    answer = api.answer

    def delayed(method: str, target: str, body: dict[str, Any]) -> Any:
        if "one-0-0/log" in target:
            time.sleep(5 * follow._DRAIN_SECONDS)
        return answer(method, target, body)

    api.answer = delayed  # type: ignore[method-assign]
    result, out, _ = run("logs", "-f", "one", "--all")
    assert (result, sorted(out.splitlines())) == (0, ["[node 0] a", "[node 1] a"])


@pytest.mark.parametrize("words", [("logs", "one", "--all"), ("logs", "-f", "one", "--all")])
def test_all_nodes_are_shown_with_their_numbers(api: TorchrunApi, run: Run, words: tuple[str, ...]) -> None:
    api.job("one", phase="Succeeded")
    stamp = "2026-01-01T00:00:00Z " if "-f" in words else ""
    for node in range(3):
        name = api.worker(f"one-0-{node}", "terminated", **{LABEL_INDEX: str(node)})["metadata"]["name"]
        api.logs[name] = [f"{stamp}a\n{stamp}b\n".encode()]
    result, out, _ = run(*words)
    assert result == 0
    assert sorted(out.splitlines()) == [f"[node {node}] {line}" for node in range(3) for line in "ab"]


def test_all_excludes_one_node(api: TorchrunApi, run: Run) -> None:
    result, _, err = run("logs", "one", "--all", "--node-rank", "1")
    assert result == 64
    assert "--node-rank" in only_line(err)


def test_status_names_the_first_failure(api: TorchrunApi, run: Run) -> None:
    failed(api)
    shown = dict(line.split(":", 1) for line in run("status", "one")[1].splitlines() if ":" in line)
    first = shown["First failure"].strip()
    assert first == (
        "rank 9, node rank 1, attempt 0, pod one-0-1-abcde on node ip-10-0-0-7, "
        "exit code 137 (SIGKILL, often out of memory)"
    )
    assert shown["Error"].strip() == KEPT["error"]
    assert shown["Log"].strip() == "kubectl torchrun logs one -n team --node-rank 1 --attempt 0"
    assert api.objects[f"{JOBS}/one"]["status"]["firstFailure"] == KEPT
