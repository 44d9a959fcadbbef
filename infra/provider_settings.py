"""Read the keys of the AWS provider in a stack file (`aws:...`); part of `infra.settings`.

The program creates its own provider, which the engine does not configure from these keys. So `read_provider` applies
or refuses each key.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from infra.model import Provider
from infra.reading import Problems, Section, hint, shown, type_name

PREFIX: Final = "aws:"
PROFILE: Final = r"[!-~]([ -~]*[!-~])?"
SUPPORTED_KEYS: Final = ("region", "profile", "defaultTags")
# Characters that all services accept:
# https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html.
TAG_KEY: Final = r"[A-Za-z0-9 _.:/=+@-]{1,128}"
TAG_VALUE: Final = r"[A-Za-z0-9 _.:/=+@-]{0,256}"
# AWS allows 50 tags on a resource (same page). The stack, Karpenter and EKS set some of them.
MAX_TAGS: Final = 30
# Prefixes of tags that the stack and its controllers set or select by. AWS reserves `aws:`.
RESERVED_TAG_PREFIXES: Final = (
    "aws:",
    "trainyard:",
    "eks:",
    "karpenter.",
    "kubernetes.io/",
    "k8s.io/",
    "ebs.csi.aws.com/",
)
_USE_PROFILE: Final = "set it in a profile of ~/.aws/config, and set aws:profile to the profile's name"
_LEAVE_OUT: Final = "remove it, or use a profile (aws:profile) or the environment"
# Keys of the provider (pulumi_aws.Provider) that are refused, each with the advice for the user.
REFUSED: Final = {
    **dict.fromkeys(
        ("accessKey", "secretKey", "token"),
        "a stack file must not contain credentials. Use a profile (aws:profile) or the environment",
    ),
    **dict.fromkeys(
        (
            *("assumeRole", "assumeRoles", "assumeRoleWithWebIdentity", "stsRegion", "customCaBundle"),
            *("useDualstackEndpoint", "useFipsEndpoint", "maxRetries", "retryMode", "endpoints"),
            *("s3UsePathStyle", "s3UsEast1RegionalEndpoint"),
        ),
        _USE_PROFILE,
    ),
    **dict.fromkeys(
        ("allowedAccountIds", "forbiddenAccountIds"), "set trainyard:cluster.accountId to the one account"
    ),
    **dict.fromkeys(
        ("sharedConfigFiles", "sharedCredentialsFiles"),
        "set AWS_CONFIG_FILE or AWS_SHARED_CREDENTIALS_FILE in the environment",
    ),
    **dict.fromkeys(
        ("httpProxy", "httpsProxy", "noProxy"), "set HTTPS_PROXY and NO_PROXY in the environment"
    ),
    **dict.fromkeys(
        (
            *("ec2MetadataServiceEndpoint", "ec2MetadataServiceEndpointMode", "ignoreTags", "insecure"),
            *("skipCredentialsValidation", "skipMetadataApiCheck", "skipRegionValidation"),
            *(
                "skipRequestingAccountId",
                "tagPolicyCompliance",
                "tokenBucketRateLimiterCapacity",
                "userAgents",
            ),
        ),
        _LEAVE_OUT,
    ),
}
# Other providers, and why their keys have no effect.
UNUSED_PROVIDERS: Final = {
    "aws-native": "the program does not use this provider",
    "docker": "the program does not use this provider",
    "docker-build": "the program uses Docker's own configuration",
    "eks": "trainyard:cluster holds the settings of the cluster",
    "kubernetes": "the program connects it to the stack's own cluster",
}


def read_provider(problems: Problems, config: Mapping[str, Any]) -> Provider:
    """Return the profile and tags. `config` contains the full keys of a stack file with decoded values."""
    values = {key.removeprefix(PREFIX): value for key, value in config.items() if key.startswith(PREFIX)}
    profile = values.get("profile")
    if profile is not None and not (isinstance(profile, str) and re.fullmatch(PROFILE, profile)):
        problems.add(f"{PREFIX}profile", f"{shown(profile)} is invalid; it must be the name of a profile")
        profile = None
    tags = _tags(problems, values.get("defaultTags"))
    for key in values:
        # A key may contain a path: aws:assumeRoles[0].roleArn.
        name = re.split(r"[.\[]", key)[0]
        if name in SUPPORTED_KEYS:
            continue
        advice = REFUSED.get(name)
        known = hint(name, (*SUPPORTED_KEYS, *REFUSED))
        problems.add(
            f"{PREFIX}{key}",
            f"is not supported; {advice}"
            if advice
            else f"is not a known key{known} (known: {', '.join(SUPPORTED_KEYS)})",
        )
    for key in config:
        namespace, colon, _ = key.partition(":")
        if colon and namespace in UNUSED_PROVIDERS:
            problems.add(key, f"has no effect, because {UNUSED_PROVIDERS[namespace]}; remove it")
    return Provider(profile=profile, tags=tags)


def _tags(problems: Problems, value: Any) -> dict[str, str]:
    path = f"{PREFIX}defaultTags"
    if value is None:
        return {}
    if not isinstance(value, Mapping) or set(value) != {"tags"}:
        problems.add(
            path,
            f"{shown(value)} is invalid; it must be a mapping with the key tags, such as tags: {{team: ml}}",
        )
        return {}
    if not isinstance(value["tags"], Mapping):
        problems.add(
            f"{path}.tags", f"{shown(value['tags'])} is {type_name(value['tags'])}; it must be a mapping"
        )
        return {}
    section = Section(problems, path, value)
    tags = section.text_map(
        "tags",
        keys=TAG_KEY,
        keys_wanted="1 to 128 letters, digits, spaces and _.:/=+@-",
        pattern=TAG_VALUE,
        wanted="at most 256 letters, digits, spaces and _.:/=+@-",
    )
    for key in tags:
        if key.lower().startswith(RESERVED_TAG_PREFIXES) or key == "Name":
            section.reject(f"tags.{key}", "is reserved for the stack and for AWS; it must be another tag")
    if len(tags) > MAX_TAGS:
        section.reject(
            "tags",
            f"has {len(tags)} tags; it must have at most {MAX_TAGS}, because AWS allows 50 on a resource",
        )
    return tags
