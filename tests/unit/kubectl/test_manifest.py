"""The variables of a job: their names, Secrets, and credentials in plain text."""

from __future__ import annotations

import base64

import pytest

from infra import credential_names
from tests.unit.kubectl.conftest import JOBS, SUBMIT, Run, TorchrunApi, only_line
from trainyard.kubectl import manifest


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


def test_a_variable_from_a_secret_is_a_reference_in_the_job(api: TorchrunApi, run: Run) -> None:
    stored(api, "hf-token", "HF_TOKEN")
    stored(api, "wandb.ai", "key.v1")
    words = ("--env", "A=1", "--secret", "HF_TOKEN", "--secret", "W=wandb.ai/key.v1")
    code, out, err = run(*WORDS, *words, "python a.py")
    assert code == 0, err
    assert api.objects[f"{JOBS}/one"]["spec"]["env"] == [
        {"name": "A", "value": "1"},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}},
        {"name": "W", "valueFrom": {"secretKeyRef": {"name": "wandb.ai", "key": "key.v1"}}},
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
        (("--secret", "A=Upper/key"), "--secret: 'A=Upper/key' must be NAME or NAME=SECRET/KEY"),
        (("--secret", "A=x/a b"), "--secret: 'A=x/a b' must be NAME or NAME=SECRET/KEY"),
        (("--secret", "A=hub"), "--secret: 'A=hub' must be NAME or NAME=SECRET/KEY"),
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
    credentials = """AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN HF_TOKEN WANDB_API_KEY DB_PASSWORD PGPASSWORD GITHUB_PAT
        SSH_PRIVATE_KEY OPENAI_APIKEY hf_token MY_SECRET APP_CREDENTIALS"""
    others = """TOKENIZERS_PARALLELISM MAX_TOKENS NCCL_DEBUG AWS_WEB_IDENTITY_TOKEN_FILE KEY PATH HF_TOKEN_PATH PATTERN
        COMPAT KEYS SEED"""
    assert [name for name in credentials.split() if not check(name)] == []
    assert [name for name in others.split() if check(name)] == []
