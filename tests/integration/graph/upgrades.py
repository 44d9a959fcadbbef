"""What a program would do to a stack that an earlier one deployed: what it would replace, delete or fail at.

Both are recordings (`tests.integration.graph.recordings`), judged by the plugins' own comparison, the one that the
engine asks in a
real preview, and by the engine's treatment of `ignoreChanges` and `retainOnDelete` (github.com/pulumi/pulumi,
pkg/resource/deploy/step_generator.go). What a preview can't know stays as its mark, which is equal to itself. Where one
side alone is known, they differ. A resource that is replaced because another one is (its id changes) isn't named again.

The plugins' comparison is that of the local cloud, held to the official tables (`local.plugins.kubernetes.force_new`,
`local.plugins.aws.handlers`). What the API server would refuse stands in `tests.integration.graph.api_server`, what
is meant to happen in `tests.integration.graph.intended`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from components.documents.setting_changes import find_changes
from infra.changes import FIXED_SETTINGS_TYPE
from local.plugins.aws.handlers import HANDLERS
from local.plugins.aws.provider import AwsProvider
from local.plugins.kubernetes.objects import api_version_and_kind
from local.plugins.kubernetes.provider import KubernetesProvider
from local.plugins.provider import DiffRequest, DiffResult, Provider
from tests.integration.graph import api_server
from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.paths import covers, without
from tests.integration.graph.recordings import RELEASE, Recording

# So that no cluster of the environment is asked.
NO_CLUSTER: Final = "{}"
# Packages none of whose resources is ever replaced for its inputs, with the reason.
IN_PLACE: Final = {
    "docker-build": "an image is rebuilt and pushed to another tag; earlier ones stay in their repository "
    "(github.com/pulumi/pulumi-docker-build, provider/internal/image.go, Diff)",
    "pulumi": "a provider's settings are those of its cluster or account, and the cluster is judged itself",
}


class How(StrEnum):
    """What becomes of a resource."""

    DELETED = "deleted"
    LEFT_BEHIND = "left behind"
    REPLACED = "replaced for"
    REFUSED = "can't be changed in"
    EXPOSED = "no longer ignores"
    UNJUDGED = "judged by nobody"


@dataclass(frozen=True, kw_only=True)
class Harm:
    """A resource that the program would take away or fail at, and the input that is the cause, where one is."""

    urn: str
    how: How
    path: str = ""

    @property
    def resource(self) -> str:
        """The URN behind stack and project: types of parents, type and name."""
        return self.urn.split("::", 2)[2]

    @property
    def what(self) -> str:
        """What becomes of it, and for which input."""
        return f"{self.how} {self.path}".strip()

    def __str__(self) -> str:
        return f"{self.what}: {self.resource}"


def harms(before: Recording, now: Recording) -> Iterator[Harm]:
    """What today's program would take away of what was recorded, or fail at."""
    renamed = {alias: urn for urn, each in now.items() for alias in each.get("aliases", [])}
    judges = _judges()
    for urn, old in before.items():
        new = now.get(urn) or now.get(renamed.get(urn, ""))
        if new is None:
            yield Harm(urn=urn, how=How.LEFT_BEHIND if old.get("retainOnDelete") else How.DELETED)
        else:
            yield from _changed(judges, urn, old, new)


def unseen(recording: Recording) -> list[str]:
    """Objects of Kubernetes of which a preview doesn't know a whole part that counts: no change of that is seen."""
    return [
        f"{key} of {urn.split('::', 2)[2]}"
        for urn, each in recording.items()
        for key, value in each["inputs"].items()
        if each["type"].startswith("kubernetes:") and value == UNKNOWN
    ]


def _judges() -> dict[str, Provider]:
    kubernetes = KubernetesProvider()
    kubernetes.configure({"kubeconfig": NO_CLUSTER})
    return {"aws": AwsProvider(), "kubernetes": kubernetes}


def _changed(
    judges: Mapping[str, Provider], urn: str, old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[Harm]:
    before, now = old.get("ignoreChanges", []), new.get("ignoreChanges", [])
    for path in before:
        if not any(covers(each, path) for each in now):
            yield Harm(urn=urn, how=How.EXPOSED, path=path)
    ignored = [*before, *now]
    inputs = _opened(without(old["inputs"], ignored), without(new["inputs"], ignored))
    yield from _judged(judges, urn, str(old["type"]), *inputs)


def _judged(
    judges: Mapping[str, Provider], urn: str, kind: str, old: dict[str, Any], new: dict[str, Any]
) -> Iterator[Harm]:
    package = kind.split(":", 1)[0]
    if package in IN_PLACE:
        return
    if kind == FIXED_SETTINGS_TYPE:
        for key in find_changes(old["values"], new["values"]):
            yield Harm(urn=urn, how=How.REFUSED, path=key)
        return
    if package == "pulumi-python":
        for key in sorted({*old, *new}):
            if old.get(key) != new.get(key):
                yield Harm(urn=urn, how=How.REPLACED, path=key)
        return
    if package not in judges or (package == "aws" and kind not in HANDLERS):
        yield Harm(urn=urn, how=How.UNJUDGED)
        return
    request = DiffRequest(
        urn=urn,
        type=kind,
        name=urn.rsplit("::", 1)[1],
        id="recorded",
        old_inputs=old,
        old_outputs=old,
        inputs=new,
    )
    found = judges[package].diff(request)
    for path in found.replaces:
        yield Harm(urn=urn, how=How.REPLACED, path=path)
    if not found.replaces and package == "kubernetes" and kind != RELEASE:
        yield from _refused(urn, kind, found)


def _refused(urn: str, kind: str, found: DiffResult) -> Iterator[Harm]:
    for path in api_server.refused(*api_version_and_kind(kind), found.detailed):
        yield Harm(urn=urn, how=How.REFUSED, path=path)


def _opened(old: Any, new: Any) -> tuple[Any, Any]:
    """The two with an empty counterpart for what one side alone knows, so that each path in there is a change."""
    for known, other in ((old, new), (new, old)):
        if other == UNKNOWN and isinstance(known, Mapping | list):
            empty: Any = {} if isinstance(known, Mapping) else []
            return (old, empty) if known is old else (empty, new)
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        both = {key: _opened(old[key], new[key]) for key in old if key in new}
        return (
            {**old, **{key: pair[0] for key, pair in both.items()}},
            {**new, **{key: pair[1] for key, pair in both.items()}},
        )
    if isinstance(old, list) and isinstance(new, list):
        pairs = [_opened(*each) for each in zip(old, new, strict=False)]
        return (
            [*(pair[0] for pair in pairs), *old[len(pairs) :]],
            [*(pair[1] for pair in pairs), *new[len(pairs) :]],
        )
    return old, new
