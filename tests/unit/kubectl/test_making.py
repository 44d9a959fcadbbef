"""A job is made once, whatever becomes of the answers, and nobody else's job is touched."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.kubectl.plugin_api import JOBS, SUBMIT, Run, TorchrunApi, only_line, sent
from tests.unit.launcher.api_history import Object
from trainyard.k8s.client import RetryPolicy
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.submit import MARK
from trainyard.workspace.store import Store

pytestmark = pytest.mark.unit
NO_WORKSPACE = (*SUBMIT, "--no-workspace", "x")


def lose(
    api: TorchrunApi, monkeypatch: pytest.MonkeyPatch, times: int, methods: tuple[str, ...] = ("POST",)
) -> None:
    """From the job's creation on, so many requests are carried out and their answers lost."""
    real, left, started = api.answer, times, False
    if times > 1:
        impatient = RetryPolicy(timeout=0.05, initial_delay=0.01, max_delay=0.02)
        monkeypatch.setattr(Cluster.connect.__func__, "__defaults__", (impatient,))  # type: ignore[attr-defined]

    def answer(method: str, target: str, body: Object) -> tuple[int, Object] | Iterator[bytes | None]:
        nonlocal left, started
        done = real(method, target, body)
        started = started or (method == "POST" and "dryRun" not in target)
        if started and left and method in methods:
            left -= 1
            return iter([None])
        return done

    monkeypatch.setattr(api, "answer", answer)


def test_a_creation_whose_answer_is_lost_is_gone_on_with(
    api: TorchrunApi, run: Run, pod: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    api.pod("one-sync-0", "sync")
    lose(api, monkeypatch, 1)
    result, out, err = run(*SUBMIT, "x")
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n"), err
    assert sent(api, "POST") == [JOBS, JOBS]
    assert pod.archive(api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]).exists()


def test_a_job_that_nobody_said_was_made_is_not_left(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    lose(api, monkeypatch, 10_000)
    result, out, err = run(*NO_WORKSPACE)
    assert (result, out) == (69, "")
    said, cause = err.splitlines()
    assert said == "job one is deleted again: the answer to its creation was lost"
    assert cause.startswith("kubectl torchrun: API server: no answer: POST ")
    assert f"{JOBS}/one" not in api.objects


def test_lost_answer_without_a_server_names_the_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    lose(api, monkeypatch, 10_000, ("POST", "GET"))
    result, _, err = run(*NO_WORKSPACE, "-n", "team")
    assert result == 69
    assert err.startswith("job one may still be created: kubectl torchrun cancel -n team --kubeconfig ")


def test_an_interrupt_before_the_answer_leaves_no_job(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    real = Cluster.create

    def interrupted(self: Cluster, job: Object, *, dry_run: bool = False) -> Object | None:
        made = real(self, job, dry_run=dry_run)
        if not dry_run:
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(Cluster, "create", interrupted)
    result, _, err = run(*NO_WORKSPACE)
    assert (result, err.splitlines()[0]) == (
        130,
        "job one is deleted again: the answer to its creation was lost",
    )
    assert f"{JOBS}/one" not in api.objects


@pytest.mark.parametrize("lost", [0, 1, 10_000])
def test_a_job_of_somebody_else_is_neither_taken_nor_deleted(
    api: TorchrunApi, run: Run, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    api.queue("q")
    theirs = api.job("one", command="x")
    theirs["metadata"]["annotations"] = {MARK: "theirs"}
    lose(api, monkeypatch, lost)
    result, out, err = run(*NO_WORKSPACE)
    assert (result, out) == (69 if lost > 1 else 64, "")
    if lost < 2:
        assert only_line(err).endswith("--name: job one exists in namespace team; use another name")
    assert sent(api, "DELETE") == []
    assert api.objects[f"{JOBS}/one"]["metadata"]["annotations"] == {MARK: "theirs"}


def test_each_submit_has_a_mark_of_its_own(api: TorchrunApi, run: Run) -> None:
    api.queue("q")
    assert run(*NO_WORKSPACE)[0] == 0
    assert run(*NO_WORKSPACE)[0] == 64
    first = api.objects.pop(f"{JOBS}/one")["metadata"]["annotations"][MARK]
    assert run(*NO_WORKSPACE)[0] == 0
    assert api.objects[f"{JOBS}/one"]["metadata"]["annotations"][MARK] != first
