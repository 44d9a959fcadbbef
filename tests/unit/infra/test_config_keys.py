"""Keys of a stack file: each is read or reported, and secrets are refused."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest
from pulumi.runtime import config as engine
from pulumi_aws.provider import ProviderArgs

from infra.settings import Provider, SettingsError, load, read
from infra.settings.provider import SUPPORTED_KEYS
from tests.unit.infra.changing import BASE, NOW, POOL, with_

PROVIDER_KEYS = {
    re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)
    for name in set(inspect.signature(ProviderArgs.__init__).parameters) - {"__self__"}
}
RUN = {"pool": "small", "minNodes": 1, "maxNodes": 2}


def errors(config: dict[Any, Any], **more: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read("test", config, NOW, **more)
    return caught.value.lines


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("network", "network: has no namespace; it must be trainyard:network"),
        ("netwrok", "netwrok: has no namespace; it must be trainyard:netwrok; did you mean network?"),
        (
            "trainyrd:network",
            "trainyrd:network: 'trainyrd' is nobody's namespace; it must be trainyard:network",
        ),
        ("Trainyard:network", "Trainyard:network: 'Trainyard' is nobody's namespace; it must be"),
        (" trainyard:network", " trainyard:network: ' trainyard' is nobody's namespace; it must be"),
        (5, "trainyard:5: has a key that is a whole number; it must be a text"),
        (True, "trainyard:true: has a key that is a boolean; it must be a text"),
        (None, "trainyard:null: has a key that is nothing; it must be a text"),
    ],
)
def test_key_that_is_not_read_is_reported(key: Any, line: str) -> None:
    lines = errors({**BASE, key: {}})
    assert len(lines) == 1, "one mistake, one line"
    assert lines[0].startswith(line)


def test_key_of_the_engine_is_ignored() -> None:
    assert read("test", {**BASE, "pulumi:tags": "x"}, NOW) == read("test", BASE, NOW)


@pytest.mark.parametrize("key", ["kubernetes:context", "docker-build:host", "eks:a", "aws-native:region"])
def test_key_of_a_provider_without_effect_is_refused(key: str) -> None:
    (line,) = errors({**BASE, key: "x"})
    assert line.startswith(f"{key}: has no effect")


def test_profile_and_default_tags_are_read() -> None:
    config = {
        **BASE,
        "aws:profile": "ml team",
        "aws:defaultTags": '{"tags": {"team": "ml", "cost:center": "7"}}',
    }
    provider = read("test", config, NOW).provider
    assert provider == Provider(profile="ml team", tags={"team": "ml", "cost:center": "7"})


@pytest.mark.parametrize("key", sorted(PROVIDER_KEYS - set(SUPPORTED_KEYS)))
def test_other_key_of_the_aws_provider_is_refused(key: str) -> None:
    (line,) = errors({**BASE, f"aws:{key}": "x"})
    assert line.startswith(f"aws:{key}: is not supported")


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("secretKey", "a stack file must not contain credentials"),
        ("allowedAccountIds", "set trainyard:cluster.accountId"),
        ("assumeRoles", "set others in a profile of ~/.aws/config"),
    ],
)
def test_refused_provider_key_names_the_alternative(key: str, advice: str) -> None:
    assert advice in errors({**BASE, f"aws:{key}": "x"})[0]


@pytest.mark.parametrize(
    ("key", "value", "begin"),
    [
        ("aws:profil", "x", "aws:profil: is not supported; did you mean profile?"),
        ("aws:assumeRoles[0].roleArn", "x", "aws:assumeRoles[0].roleArn: is not supported"),
        ("aws:profile", "ml ", "aws:profile: 'ml ' is invalid"),
        ("aws:profile", ["ml"], "aws:profile: "),
        ("aws:defaultTags", {"team": "ml"}, "aws:defaultTags.team: is not a known key (known: tags)"),
        ("aws:defaultTags", {"tags": ["ml"]}, "aws:defaultTags.tags: "),
        ("aws:defaultTags", {"tags": {"trainyard:stack": "b"}}, "aws:defaultTags.tags.trainyard:stack: "),
        ("aws:defaultTags", {"tags": {"Name": "b"}}, "aws:defaultTags.tags.Name: "),
        ("aws:defaultTags", {"tags": {"team": "a\nb"}}, "aws:defaultTags.tags.team: "),
        ("aws:defaultTags", {"tags": {f"t{n}": "x" for n in range(31)}}, "aws:defaultTags.tags: has 31"),
        ("trainyard:tags", ["ml"], "trainyard:tags: "),
        ("trainyard:tags", {"": "x"}, "trainyard:tags.: has the key ''"),
        ("trainyard:tags", {"k" * 129: "x"}, "trainyard:tags.kkk"),
        ("trainyard:tags", {"team": "v" * 257}, "trainyard:tags.team: "),
        ("trainyard:tags", {" ": "x"}, "trainyard:tags. : has the key ' '"),
        ("trainyard:tags", {" team": "x"}, "trainyard:tags. team: has the key ' team'"),
        ("aws:defaultTags", {"tags": {"team ": "x"}}, "aws:defaultTags.tags.team : has the key 'team '"),
        ("trainyard:tags", {"te*m": "x"}, "trainyard:tags.te*m: has the key"),
        ("trainyard:tags", {"a=b": "x"}, "trainyard:tags.a=b: has the key"),
        ("trainyard:tags", {"team": "a,b"}, "trainyard:tags.team: "),
        ("trainyard:tags", {"AWS:team": "x"}, "trainyard:tags.AWS:team: is reserved"),
        ("trainyard:tags", {"Name": "x"}, "trainyard:tags.Name: is reserved"),
        ("trainyard:tags", {"trainyard:stack": "x"}, "trainyard:tags.trainyard:stack: is reserved"),
        ("trainyard:tags", {"CSIVolumeName": "x"}, "trainyard:tags.CSIVolumeName: is reserved"),
        (
            "trainyard:tags",
            {"karpenter.sh/nodepool": "x"},
            "trainyard:tags.karpenter.sh/nodepool: is reserved",
        ),
        ("trainyard:tags", {"Team": "x", "team": "x"}, "trainyard:tags: has the keys 'Team' and 'team'"),
        ("trainyard:tags", {f"t{n}": "x" for n in range(31)}, "trainyard:tags: has 31 tags"),
    ],
)
def test_invalid_provider_key_is_reported_once(key: str, value: Any, begin: str) -> None:
    (line,) = errors({**BASE, key: value})
    assert line.startswith(begin)


def test_tags_of_both_settings_are_merged_unless_they_conflict() -> None:
    config = {
        **BASE,
        "trainyard:tags": {"team": "ml", "cost": 7},
        "aws:defaultTags": {"tags": {"team": "ml", "a": "b"}},
    }
    assert read("test", config, NOW).tags == {"team": "ml", "cost": "7", "a": "b"}
    (line,) = errors({**config, "aws:defaultTags": {"tags": {"team": "web"}}})
    assert line.startswith("trainyard:tags.team: is 'ml', but aws:defaultTags.tags.team is 'web'")


def test_secret_in_stack_file_is_refused_once() -> None:
    config = with_({"training": {**RUN, "env": {"HF_TOKEN": {"secure": "v1:abc:def"}}}})
    (line,) = errors(config)
    assert line.startswith("trainyard:training.env.HF_TOKEN: is a secret, and settings stand in plain text")
    assert "a Kubernetes Secret" in line
    assert "v1:abc" not in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aws:region", "us-west-2"),
        ("aws:profile", "ml"),
        ("aws:defaultTags", {"tags": {"team": "hf_SENTINEL"}}),
    ],
)
def test_secret_key_of_the_aws_provider_is_refused_once(key: str, value: Any) -> None:
    (line,) = errors({**BASE, key: {"secure": "v1:abc"}})
    assert line.startswith(f"{key}: is a secret, and")
    (line,) = errors({**BASE, key: value}, secrets=frozenset({key}))
    assert line.startswith(f"{key}: holds a secret, and")
    assert "SENTINEL" not in line


@pytest.mark.parametrize("profile", ["123456789012", "true", "null", "1.50", "[]"])
def test_profile_that_looks_like_json_is_a_text(profile: str) -> None:
    assert read("test", {**BASE, "aws:profile": profile}, NOW).provider.profile == profile


def test_secret_section_has_no_other_errors() -> None:
    (line,) = errors({**BASE, "trainyard:pools": {"secure": "v1:abc"}})
    assert line.startswith("trainyard:pools: is a secret, and")
    (line,) = errors({**BASE, "trainyard:pools": [{**POOL, "name": {"secure": "v1:abc"}}]})
    assert line.startswith("trainyard:pools[0].name: is a secret, and")


def test_decrypted_secret_is_refused_and_not_repeated() -> None:
    passed = {key: value if isinstance(value, str) else json.dumps(value) for key, value in BASE.items()}
    passed["trainyard:training"] = json.dumps(
        {**RUN, "runId": "hf_SENTINEL", "env": {"HF_TOKEN": "hf_SENTINEL"}}
    )
    engine.set_all_config(passed, ["trainyard:training"])
    try:
        with pytest.raises(SettingsError) as caught:
            load("test")
    finally:
        engine.set_all_config({}, [])
    (line,) = caught.value.lines
    assert line.startswith("trainyard:training: holds a secret, and settings stand in plain text")
    assert "SENTINEL" not in line
    assert errors(BASE, secrets=frozenset({"trainyard:cluster"}))[0].startswith(
        "trainyard:cluster: holds a secret"
    )
