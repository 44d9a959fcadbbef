"""The tags of a stack's AWS resources: `trainyard:tags`, and `aws:defaultTags` of the AWS provider."""

from __future__ import annotations

from typing import Annotated, Any, Final

from components.documents.tags import is_reserved
from infra.settings.fields import MapKey, Scalar
from infra.settings.problems import Problems

SETTING: Final = "trainyard:tags"
DEFAULTS: Final = "aws:defaultTags.tags"
# Keys have 1 to 128 characters and values at most 256. All services accept letters, digits, spaces and _.:/=+@-, and
# 50 tags (https://docs.aws.amazon.com/tag-editor/latest/userguide/best-practices-and-strats.html). The stack,
# Karpenter, EKS and the EBS CSI driver set up to 20 of them.
MAXIMUM: Final = 30


class _Key(MapKey):
    """A tag that neither the stack nor AWS uses."""

    def check(self, value: Any) -> Any:
        key = super().check(value)
        if is_reserved(key):
            raise ValueError("is reserved for the stack and for AWS; it must be another tag")
        return key


# The EBS CSI driver gets tags as one option, key=value,key=value (github.com/kubernetes-sigs/aws-ebs-csi-driver,
# docs/options.md, extra-tags), so a key has no "=".
Tags = dict[
    Annotated[
        str,
        _Key(
            "1 to 128 letters, digits, spaces and _.:/+@-, without a space at its ends",
            r"(?! )[A-Za-z0-9 _.:/+@-]{1,128}(?<! )",
        ),
    ],
    Annotated[
        str, Scalar("at most 256 letters, digits, spaces and _.:/=+@-", r"[A-Za-z0-9 _.:/=+@-]{0,256}")
    ],
]


def merge(problems: Problems, tags: dict[str, str], defaults: dict[str, str]) -> dict[str, str]:
    """Return the tags of both settings. Report keys with two values, keys that differ in case, and too many tags."""
    for key in sorted(tags.keys() & defaults.keys()):
        if tags[key] != defaults[key]:
            problems.add(
                f"{SETTING}.{key}",
                f"is '{tags[key]}', but {DEFAULTS}.{key} is '{defaults[key]}'; it must be the same,"
                " or be removed from one of them",
            )
    merged = {**defaults, **tags}
    place = SETTING if tags else DEFAULTS
    spelling: dict[str, str] = {}
    for key in merged:
        if (first := spelling.setdefault(key.lower(), key)) != key:
            # "Case sensitivity" in https://docs.aws.amazon.com/IAM/latest/UserGuide/id_tags.html.
            problems.add(
                place,
                f"has the keys '{first}' and '{key}', which are the same key for IAM roles; one of them"
                " must be removed",
            )
    if len(merged) > MAXIMUM:
        problems.add(
            place,
            f"has {len(merged)} tags; it must have at most {MAXIMUM}, because AWS allows 50 on a resource",
        )
    return merged
