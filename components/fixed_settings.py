"""Record settings in a stack's state: the fixed settings, and the settings that its run started with."""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.dynamic import (
    CheckFailure,
    CheckResult,
    CreateResult,
    DiffResult,
    ResourceProvider,
    UpdateResult,
)
from pulumi.dynamic import Resource as DynamicResource


class _Record(ResourceProvider):
    """Compare new values with the state, in `preview` and in `up`. It creates nothing outside the state."""

    serialize_as_secret_always = False

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Refuse changed values, so that the engine does not change resources that depend on this one."""
        from .documents.setting_changes import find_changes

        changes = find_changes(_olds.get("values") or {}, news["values"])
        return CheckResult(news, [CheckFailure("", f"{key}: {message}") for key, message in changes.items()])

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Record the values."""
        return CreateResult("settings", props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Compare the values only. The state also holds this code, whose bytes differ between checkouts."""
        return DiffResult(changes=_olds.get("values") != _news.get("values"), replaces=[])

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Record the new values. Keys appear and disappear with other settings."""
        return UpdateResult(_news)


class FixedSettings(DynamicResource, module="settings", name="Fixed"):
    """Hold the fixed settings of a stack.

    The engine creates this resource first, so that a failed first `up` has recorded the values, too. Resources that
    must not change while a fixed setting differs depend on it. `values` maps the key of a setting to its value.
    """

    def __init__(self, name: str, values: dict[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(_Record(), name, {"values": values}, opts)


class _Run(ResourceProvider):
    """Report settings that changed after the run started, and keep the first values. It creates nothing."""

    serialize_as_secret_always = False

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Compare the settings with those of the same Job. A new Job of the same name has the new settings."""
        from .documents.setting_changes import changed_settings_message

        inputs = {**news, "late": ""}
        if _olds and _olds.get("job") == news["job"]:
            before, now = _olds["values"], news["values"]
            changed = sorted(key for key in before if key in now and now[key] != before[key])
            message = changed_settings_message(news["runId"], changed) if changed else ""
            inputs = {**news, "values": {**now, **before}, "late": message}
            if message:
                print(message, flush=True)
        return CheckResult(inputs, [])

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Record the values."""
        return CreateResult(str(props["runId"]), props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """Compare the values only. The state also holds this code."""
        changed = any(_olds.get(key) != _news.get(key) for key in ("job", "values", "late"))
        return DiffResult(changes=changed, replaces=[])

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Record the new note."""
        return UpdateResult(_news)


class StartedRun(DynamicResource, module="settings", name="StartedRun"):
    """Hold the settings that a run's Job was created with.

    The output `late` names the settings that changed later and have no effect on the run. `job` is the Job's uid: a Job
    that is created again after a deletion has the new settings.
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        job: pulumi.Input[str],
        values: dict[str, Any],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(_Run(), name, {"runId": run_id, "job": job, "values": values, "late": ""}, opts)
