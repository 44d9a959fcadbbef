"""A job that is followed and removed: how it ended is known, or that nobody knows it is reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.kubectl.plugin_api import JOBS, PODS, Run, TorchrunApi
from tests.unit.launcher.api_server import until
from trainyard.kubectl import follow

pytestmark = pytest.mark.unit
NAME = "one-0-0-abcde"
LINE = b"2026-01-01T00:00:00Z trained\n"
UNKNOWN = "kubectl torchrun: job one: was removed; how it ended is not known\n"


@pytest.fixture
def ends(api: TorchrunApi) -> Callable[..., None]:
    """Job `one` runs, and when its log has come to its end it is gone; its last status is this, None for none."""

    def with_status(last: dict[str, Any] | None, *, watched: bool = True) -> None:
        def remove(_pod: str) -> None:
            if watched:
                until(lambda: api.watching)
            api.logs[NAME] = [LINE]
            api.remove(f"{PODS}/{NAME}")
            if last is not None:
                api.put(f"{JOBS}/one", {**api.objects[f"{JOBS}/one"], "status": last})
            api.remove(f"{JOBS}/one")

        api.job("one", phase="Running")
        api.worker(NAME)
        api.on_log = remove

    return with_status


@pytest.mark.parametrize(
    ("last", "code"),
    [({"phase": "Succeeded"}, 0), ({"phase": "Failed", "exitCode": 7}, 7), ({"phase": "Failed"}, 1)],
)
def test_a_job_that_is_removed_at_its_end_ends_with_its_own_code(
    run: Run, ends: Callable[..., None], last: dict[str, Any], code: int
) -> None:
    ends(last)
    result, out, err = run("logs", "-f", "one")
    assert (result, out) == (code, "trained\n")
    assert err == f"one: Running\none: {last['phase']}\n"


def test_a_job_that_is_cancelled_is_said_to_be_removed(run: Run, ends: Callable[..., None]) -> None:
    ends(None)
    assert run("logs", "-f", "one") == (75, "trained\n", f"one: Running\n{UNKNOWN}")


def test_another_job_that_takes_its_name_is_not_followed(
    api: TorchrunApi, run: Run, ends: Callable[..., None]
) -> None:
    ends({"phase": "Succeeded"})
    remove = api.on_log

    def replace(pod: str) -> None:
        remove(pod)
        api.job("one", phase="Failed")

    api.on_log = replace
    assert run("logs", "-f", "one")[:2] == (0, "trained\n")


def test_who_may_not_watch_it_does_not_ask_without_end(
    api: TorchrunApi, run: Run, ends: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_WATCH_DELAY_SECONDS", 0.1)
    api.refused.add(("GET", JOBS))
    ends({"phase": "Succeeded"}, watched=False)
    remove = api.on_log

    def refused_often(pod: str) -> None:
        until(lambda: sum(path == JOBS for _, path, _ in api.requests) == 2)
        remove(pod)

    api.on_log = refused_often
    assert run("logs", "-f", "one") == (75, "trained\n", f"one: Running\n{UNKNOWN}")
    assert sum(path == JOBS for _, path, _ in api.requests) == 2
