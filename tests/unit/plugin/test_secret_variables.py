"""`submit --secret`, and what is said of credentials in plain text."""

from __future__ import annotations

import base64

import pytest

from infra.credential_names import names_a_secret
from launcher.plugin.secret_variables import looks_like_a_credential, reference
from tests.unit.plugin.plugin_api import JOBS, SUBMIT, Run, TorchrunApi

pytestmark = pytest.mark.unit
SECRETS = "/api/v1/namespaces/team/secrets"
WORDS = (*SUBMIT, "--no-workspace")
HIDDEN = "c2VjcmV0"


def stored(api: TorchrunApi, name: str, key: str) -> None:
    api.put(f"{SECRETS}/{name}", {"metadata": {"name": name, "namespace": "team"}, "data": {key: HIDDEN}})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("HF_TOKEN", ("HF_TOKEN", "hf-token", "HF_TOKEN")),
        ("HF_TOKEN=hub", ("HF_TOKEN", "hub", "HF_TOKEN")),
        ("HF_TOKEN=hub/token.v1", ("HF_TOKEN", "hub", "token.v1")),
        ("A=b.c/d", ("A", "b.c", "d")),
    ],
)
def test_a_secret_is_named_by_convention_or_by_its_place(given: str, found: tuple[str, str, str]) -> None:
    assert reference(given) == found


def test_a_variable_from_a_secret_is_a_reference_in_the_job(api: TorchrunApi, run: Run) -> None:
    api.queue("q")
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
            "--secret: HF_TOKEN: Secret hf-token is not in namespace team. Make it: kubectl create",
        ),
        (("--secret", "K=wandb/other"), "--secret: K: Secret wandb has no key other. It must be one of: key"),
        (("--secret", "A=Upper/key"), "--secret: 'A=Upper/key': 'Upper' is not the name of a Secret"),
        (("--secret", "A=x/a b"), "'a b' is not a key of a Secret"),
        (("--secret", "A="), "is not the name of a Secret"),
        (("--secret", "1A=x/y"), "--secret: the name '1A' should"),
        (("--secret", "A=x/y", "--env", "A=1"), "--secret: A is given by --env, too"),
    ],
)
def test_a_secret_that_is_not_right_is_refused_before_the_job_is_made(
    api: TorchrunApi, run: Run, words: tuple[str, ...], said: str
) -> None:
    api.queue("q")
    stored(api, "wandb", "key")
    code, _, err = run(*WORDS, *words, "python a.py")
    assert code == 64
    assert said in err
    assert f"{JOBS}/one" not in api.objects


def test_who_may_not_read_secrets_submits_and_is_told(api: TorchrunApi, run: Run) -> None:
    api.queue("q")
    api.refused.add(("GET", f"{SECRETS}/hf-token"))
    code, _, err = run(*WORDS, "--secret", "HF_TOKEN", "python a.py")
    assert code == 0, err
    assert "--secret: HF_TOKEN: you may not read Secrets in namespace team, so it is not checked" in err


def test_a_credential_in_plain_text_is_said_with_the_option(api: TorchrunApi, run: Run) -> None:
    api.queue("q")
    code, _, err = run(*WORDS, "--env", "HF_TOKEN=x", "--env", "A=1", "--env", "EMPTY_TOKEN=", "python a.py")
    assert code == 0
    assert err.count("plain text") == 1
    assert "give --secret HF_TOKEN (key HF_TOKEN of Secret hf-token)" in err


@pytest.mark.parametrize("judge", [looks_like_a_credential, names_a_secret])
def test_names_that_look_like_credentials(judge: object) -> None:
    assert callable(judge)
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
        assert judge(name), name
    for name in (
        *("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "NCCL_DEBUG", "AWS_WEB_IDENTITY_TOKEN_FILE", "KEY", "PATH"),
        *("HF_TOKEN_PATH", "PATTERN", "COMPAT", "KEYS", "SEED"),
    ):
        assert not judge(name), name
