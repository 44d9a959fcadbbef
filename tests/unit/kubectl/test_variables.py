"""Names of `--env`: those that the API server takes, and what a shell does with them."""

from __future__ import annotations

import pytest

from tests.unit.kubectl.plugin_api import JOBS, SUBMIT, Run, TorchrunApi, only_line
from trainyard.kubectl.manifest import TEXT_MAX_LENGTH, VARIABLE, VARIABLE_MAX_LENGTH, dropped_by_shells
from trainyard.operator.api.job import JOB

pytestmark = pytest.mark.unit


def test_they_are_those_that_the_api_server_takes() -> None:
    variable = JOB.fields["env"].item
    assert variable is not None
    name = variable.fields["name"]
    assert [rule.cel for rule in name.rules] == [f"self.matches({f'^{VARIABLE.pattern}$'!r})"]
    assert name.checks["maxLength"] == VARIABLE_MAX_LENGTH
    for text in (variable.fields["value"], JOB.fields["command"]):
        assert text.checks["maxLength"] == TEXT_MAX_LENGTH


def test_one_that_not_every_shell_passes_on_is_sent_and_said(api: TorchrunApi, run: Run) -> None:
    api.queue("q")
    words = (*SUBMIT, "--no-workspace", "--env", "my.var=1", "--env", "A=2", "x")
    result, out, err = run(*words)
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    assert only_line(err).startswith(
        "--env: my.var: some shells, such as dash, do not pass on names with characters"
    )
    assert api.objects[f"{JOBS}/one"]["spec"]["env"] == [
        {"name": "my.var", "value": "1"},
        {"name": "A", "value": "2"},
    ]
    assert dropped_by_shells([{"name": "A"}, {"name": "a-b"}, {"name": "a_b"}]) == ["a-b"]
