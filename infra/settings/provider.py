"""The keys of the AWS provider in a stack file (`aws:...`), and keys that no provider reads.

The program creates its own provider, which the engine does not configure from these keys. So `read_provider` applies
or refuses each key.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

from infra.settings.fields import REQUIRED, Model, Text, hint, mistyped, setting, type_name
from infra.settings.formats import REGION
from infra.settings.problems import Problems, validate
from infra.settings.tags import Tags

PREFIX: Final = "aws:"
# The only advice for other keys of the provider (pulumi_aws.Provider): assumed roles, endpoints, proxies, retries.
_ADVICE: Final = "set others in a profile of ~/.aws/config, which aws:profile names, or in the environment"
_OTHER_ADVICE: Final = {
    **dict.fromkeys(
        ("accessKey", "secretKey", "token"),
        "a stack file must not contain credentials. Use a profile (aws:profile) or the environment",
    ),
    **dict.fromkeys(
        ("allowedAccountIds", "forbiddenAccountIds"), "set trainyard:cluster.accountId to the one account"
    ),
}
# The program configures these providers itself, or does not use them.
UNUSED_PROVIDERS: Final = ("aws-native", "docker", "docker-build", "eks", "kubernetes")
# `components.documents.account` knows these partitions. The others have other services.
PARTITIONS: Final = ("aws", "aws-cn", "aws-us-gov")
# A namespace less similar to the project's name is that of a provider, such as aws or kubernetes.
SIMILAR: Final = 0.75
# How a stack file writes an encrypted value (https://www.pulumi.com/docs/iac/concepts/secrets/).
ENCRYPTED: Final = "secure"
PLAIN: Final = (
    "settings stand in plain text in what they make, Jobs and outputs among it; it must not be here, but in a"
    " Kubernetes Secret that pods of your own read"
)


@cache
def regions() -> tuple[str, ...]:
    """Return the names of the AWS regions in partitions.json of the pinned botocore.

    botocore's own loader takes 0.3 s to import, and a session would need the profile in the environment's variables.
    """
    file = resources.files("botocore") / "data" / "partitions.json"
    partitions = json.loads(file.read_text())["partitions"]
    found = {name for each in partitions if each["id"] in PARTITIONS for name in each["regions"]}
    # Each partition also has an entry for global services.
    return tuple(sorted(name for name in found if re.fullmatch(REGION, name)))


class _Region(Text):
    """An AWS region that the pinned botocore knows."""

    def check(self, value: Any) -> Any:
        if not isinstance(value, str):
            raise ValueError(mistyped(value, self.must_be))
        if value not in regions():
            near = hint(value, regions()) or f"; it must be {self.must_be}"
            raise ValueError(f"'{value}' is not a known region{near}")
        return value


class DefaultTags(Model):
    """The tags of all resources."""

    tags: Tags = setting({}, "new nodes; replaces system nodes", example={"team": "ml"})
    """Further tags for all resources, nodes and disks. Prefer `trainyard:tags`."""


class ProviderSection(Model):
    """The keys of the AWS provider that the program applies."""

    region: Annotated[str, _Region("the name of an AWS region, such as us-west-2", REGION)] = setting(
        REQUIRED, "fixed", example="us-west-2"
    )
    """The region; required."""
    profile: Annotated[str, Text("the name of a profile", r"[!-~]([ -~]*[!-~])?")] | None = setting(
        None, "in place, in one account", example="research"
    )
    """A profile of `~/.aws/config`. It overrides keys in the environment."""
    default_tags: DefaultTags | None = setting(None, "new nodes; replaces system nodes")
    """`tags:` with further tags for all resources, as `trainyard:tags` has them."""


SUPPORTED_KEYS: Final = tuple(str(each.alias) for each in ProviderSection.model_fields.values())
FULL_KEYS: Final = tuple(f"{PREFIX}{key}" for key in SUPPORTED_KEYS)
# They are texts also if they look like JSON, such as a profile's name of digits.
TEXTS: Final = (f"{PREFIX}region", f"{PREFIX}profile")


@dataclass(frozen=True, kw_only=True)
class Provider:
    """The AWS provider: a profile of ~/.aws/config, None for the environment; its default tags."""

    profile: str | None
    tags: dict[str, str]


def read_provider(problems: Problems, config: Mapping[str, Any]) -> tuple[str, Provider]:
    """Return the region, "" if it is invalid, and the provider. `config` has the full keys of a stack file."""
    values = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    known = {key: values[key] for key in SUPPORTED_KEYS if key in values}
    section = validate(problems, ProviderSection, known, prefix=PREFIX)
    tags = section.default_tags.tags if section.default_tags else {}
    for key in values:
        # A key may contain a path: aws:assumeRoles[0].roleArn.
        name = re.split(r"[.\[]", key)[0]
        if name in SUPPORTED_KEYS:
            continue
        problems.add(
            f"{PREFIX}{key}",
            f"is not supported{hint(name, SUPPORTED_KEYS)} (supported: {', '.join(SUPPORTED_KEYS)});"
            f" {_OTHER_ADVICE.get(name, _ADVICE)}",
        )
    for key in config:
        namespace, colon, _ = key.partition(":")
        if colon and namespace in UNUSED_PROVIDERS:
            problems.add(key, "has no effect, because no provider reads it; remove it")
    return section.region, Provider(profile=section.profile, tags=tags)


def check_namespaces(
    problems: Problems, config: Mapping[Any, Any], project: str, known: tuple[str, ...]
) -> None:
    """Report each key that looks like one of the project but would not be read."""
    for key in config:
        if not isinstance(key, str):
            name = "null" if key is None else str(key).lower() if isinstance(key, bool) else str(key)
            problems.add(f"{project}:{name}", f"has a key that is {type_name(key)}; it must be a text")
            continue
        namespace, colon, name = key.partition(":")
        if not colon:
            near = "" if key in known else hint(key, known)
            problems.add(key, f"has no namespace; it must be {project}:{key}{near}")
            continue
        similarity = difflib.SequenceMatcher(None, namespace.strip().lower(), project).ratio()
        if namespace != project and similarity >= SIMILAR:
            problems.add(key, f"'{namespace}' is nobody's namespace; it must be {project}:{name}")


def has_secret(problems: Problems, path: str, value: object, secrets: frozenset[str]) -> bool:
    """Return whether a section holds a secret, and report its path. The engine only names the section."""
    places = list(_encrypted(path, value))
    for place in places:
        problems.add(place, f"is a secret, and {PLAIN}")
    if not places and path in secrets:
        problems.add(path, f"holds a secret, and {PLAIN}")
    return bool(places) or path in secrets


def _encrypted(path: str, value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if set(value) == {ENCRYPTED} and isinstance(value[ENCRYPTED], str):
            yield path
            return
        for key, entry in value.items():
            yield from _encrypted(f"{path}.{key}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _encrypted(f"{path}[{index}]", entry)
