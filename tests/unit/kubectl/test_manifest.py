"""The variables of a job: their names, Secrets, and credentials in plain text."""

from __future__ import annotations

import base64

import pytest

from infra import credential_names
from tests.unit.kubectl.conftest import JOBS, SUBMIT, Run, TorchrunApi, only_line
from trainyard.kubectl import manifest
from trainyard.kubectl.manifest import (
    VARIABLE,
    parse_reference,
)
from trainyard.operator.api.job import JOB


def test_names_of_variables_are_those_of_the_api_server() -> None:
    variable = JOB.fields["env"].item
    assert variable is not None
    rules = variable.fields["name"].rules
    assert [rule.cel for rule in rules] == [f"self.matches({f'^{VARIABLE.pattern}$'!r})"]


def test_submit_warns_of_variables_that_shells_drop(api: TorchrunApi, run: Run) -> None:
    words = (*SUBMIT, "--no-workspace", "--env", "my.var=1", "--env", "A=2", "x")
    result, out, err = run(*words)
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n")
    assert only_line(err).startswith("--env: my.var: some shells, such as dash, do not pass on names with")
    variables = [(each["name"], each["value"]) for each in api.objects[f"{JOBS}/one"]["spec"]["env"]]
    assert variables == [("my.var", "1"), ("A", "2")]


SECRETS = "/api/v1/namespaces/team/secrets"
WORDS = (*SUBMIT, "--no-workspace")
HIDDEN = "c2VjcmV0"


def stored(api: TorchrunApi, name: str, key: str) -> None:
    api.put(f"{SECRETS}/{name}", {"metadata": {"name": name, "namespace": "team"}, "data": {key: HIDDEN}})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("HF_TOKEN", ("HF_TOKEN", "hf-token", "HF_TOKEN")),
        ("HF_TOKEN=hub/token.v1", ("HF_TOKEN", "hub", "token.v1")),
        ("A=b.c/d", ("A", "b.c", "d")),
    ],
)
def test_a_secret_is_named_by_convention_or_by_its_place(given: str, found: tuple[str, str, str]) -> None:
    assert parse_reference(given) == found


def test_a_variable_from_a_secret_is_a_reference_in_the_job(api: TorchrunApi, run: Run) -> None:
    stored(api, "hf-token", "HF_TOKEN")
    stored(api, "wandb", "key")
    code, out, err = run(
        *WORDS, "--env", "A=1", "--secret", "HF_TOKEN", "--secret", "W=wandb/key", "python a.py"
    )
    assert code == 0, err
    assert api.objects[f"{JOBS}/one"]["spec"]["env"] == [
        {"name": "A", "value": "1"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}},
        {"name": "W", "valueFrom": {"secretKeyRef": {"name": "wandb", "key": "key"}}},
    ]
    for text in (HIDDEN, base64.b64decode(HIDDEN).decode()):
        assert text not in out + err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--secret", "HF_TOKEN"),
            "--secret: HF_TOKEN: Secret hf-token does not exist in namespace team. Cre",
        ),
        (("--secret", "K=wandb/other"), "--secret: K: Secret wandb has no key other. It must be one of: key"),
        (("--secret", "A=Upper/key"), "--secret: 'A=Upper/key': 'Upper' is not the name of a Secret"),
        (("--secret", "A=x/a b"), "'a b' is not a key of a Secret"),
        (("--secret", "A=hub"), "'' is not a key of a Secret"),
        (("--secret", "A="), "is not the name of a Secret"),
        (("--secret", "1A=x/y"), "--secret: the name '1A' must"),
        (("--secret", "A=x/y", "--env", "A=1"), "--secret: A is also set by --env"),
    ],
)
def test_invalid_secret_is_refused_before_the_job_is_created(
    api: TorchrunApi, run: Run, words: tuple[str, ...], said: str
) -> None:
    stored(api, "wandb", "key")
    code, _, err = run(*WORDS, *words, "python a.py")
    assert code == 64
    assert said in err
    assert f"{JOBS}/one" not in api.objects


def test_submit_without_permission_on_secrets_warns(api: TorchrunApi, run: Run) -> None:
    api.refused.add(("GET", f"{SECRETS}/hf-token"))
    code, _, err = run(*WORDS, "--secret", "HF_TOKEN", "python a.py")
    assert code == 0, err
    assert "--secret: HF_TOKEN: not checked, because you may not read Secrets in namespace team" in err


def test_credential_in_plain_text_warns(api: TorchrunApi, run: Run) -> None:
    code, _, err = run(*WORDS, "--env", "HF_TOKEN=x", "--env", "A=1", "--env", "EMPTY_TOKEN=", "python a.py")
    assert code == 0
    assert err.count("plain text") == 1
    assert "--secret HF_TOKEN (key HF_TOKEN of Secret hf-token)" in err


@pytest.mark.parametrize("check", [manifest.is_credential_name, credential_names.is_credential_name])
def test_names_that_look_like_credentials(check: object) -> None:
    assert callable(check)
    for name in (
        *(
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "HF_TOKEN",
            "WANDB_API_KEY",
            "DB_PASSWORD",
            "PGPASSWORD",
        ),
        *("GITHUB_PAT", "SSH_PRIVATE_KEY", "OPENAI_APIKEY", "hf_token", "MY_SECRET", "APP_CREDENTIALS"),
    ):
        assert check(name), name
    for name in (
        *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "NCCL_DEBUG", "AWS_WEB_IDENTITY_TOKEN_FILE", "KEY", "PATH"),
        *("HF_TOKEN_PATH", "PATTERN", "COMPAT", "KEYS", "SEED"),
    ):
        assert not check(name), name
