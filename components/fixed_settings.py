"""What a stack's state records of its settings: the fixed ones, and those that its run was started with."""

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
    """Makes nothing. Its check compares the new values with the ones in the state, in `preview` and in `up`."""

    serialize_as_secret_always = False

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Refuse another value: the engine then neither plans nor changes what depends on the record."""
        from components.shared.fixed import differences

        found = differences(_olds.get("values") or {}, news["values"])
        return CheckResult(news, [CheckFailure("", f"{key}: {said}") for key, said in found.items()])

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Nothing is made."""
        return CreateResult("settings", props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """The values count, not this code, which stands in the state with bytes that differ between checkouts."""
        return DiffResult(changes=_olds.get("values") != _news.get("values"), replaces=[])

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """A key may come or go with other settings."""
        return UpdateResult(_news)


class FixedSettings(DynamicResource, module="settings", name="Fixed"):
    """Created before everything else, so that a first `up` that fails later has recorded the values all the same.

    `values` maps the key of a setting to its value. Everything that must not be touched once one of them differs has
    to depend on this resource.
    """

    def __init__(self, name: str, values: dict[str, Any], opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(_Record(), name, {"values": values}, opts)


class _Run(ResourceProvider):
    """Makes nothing. Its check says which settings were changed after the run was started, and keeps the first ones."""

    serialize_as_secret_always = False

    def check(self, _olds: dict[str, Any], news: dict[str, Any]) -> CheckResult:
        """Compare the settings with those of the same Job; another Job under the name was started with the new."""
        from components.shared.fixed import late_line

        inputs = {**news, "late": ""}
        if _olds and _olds.get("job") == news["job"]:
            before, now = _olds["values"], news["values"]
            changed = sorted(key for key in before if key in now and now[key] != before[key])
            said = late_line(news["runId"], changed) if changed else ""
            inputs = {**news, "values": {**now, **before}, "late": said}
            if said:
                print(said, flush=True)
        return CheckResult(inputs, [])

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Nothing is made."""
        return CreateResult(str(props["runId"]), props)

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        """This code stands in the state, too, and does not count."""
        changed = any(_olds.get(key) != _news.get(key) for key in ("job", "values", "late"))
        return DiffResult(changes=changed, replaces=[])

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """The note changes."""
        return UpdateResult(_news)


class StartedRun(DynamicResource, module="settings", name="StartedRun"):
    """The settings that a run's Job was made with. Its `late` says which have other values now, that reach nobody.

    `job` is the Job's uid: the one of its name that is made after a deletion has the new settings.
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
