"""The docker-build plugin. The output of an image is the digest of its build; a record has the build's location."""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local.home import Home, read_record, write_atomically
from local.plugins import sdk
from local.plugins.docker_build.context import build_digest
from local.plugins.provider import (
    CheckRequest,
    CheckResult,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    DiffResult,
    Failure,
    Provider,
    ProviderError,
    ReadRequest,
    ReadResult,
    UpdateRequest,
)
from local.plugins.values import UNKNOWN, Props, contains_unknown, diff_paths

IMAGE = "docker-build:index:Image"
# Inputs that change the content of an image. They are part of its digest, with the context and the Dockerfile.
CONTENT = ("target", "buildArgs", "labels", "platforms")
# Inputs that do not change the result, as in the official plugin's diff.
IRRELEVANT = frozenset({"buildOnPreview", "cacheFrom", "cacheTo", "noCache", "pull", "registries", "builder"})


class DockerBuildProvider(Provider):
    """The provider of images with local contexts. It refuses a remote context or an inline Dockerfile."""

    name = "docker-build"
    version = sdk.sdk_version("docker-build")

    def check(self, request: CheckRequest) -> CheckResult:
        """Refuse unknown names, other resources and builds that the local cloud does not support."""
        if request.type != IMAGE:
            raise ProviderError(f"{request.type} is not served by the local docker-build plugin; {IMAGE} is")
        inputs = {key: value for key, value in request.inputs.items() if value is not None}
        failures = sdk.check_inputs(IMAGE, inputs)
        if "push" not in inputs:
            failures.append(Failure("push", "is required"))
        where = inputs.get("context")
        if not isinstance(where, dict) or not where.get("location"):
            failures.append(Failure("context", "needs a location: a directory of this machine"))
        elif "://" in str(where["location"]):
            failures.append(
                Failure("context.location", f"{where['location']} is remote; a local directory is needed")
            )
        if isinstance(inputs.get("dockerfile"), dict) and inputs["dockerfile"].get("inline"):
            failures.append(
                Failure("dockerfile.inline", "is not served locally; write the Dockerfile to a file")
            )
        return CheckResult(inputs, failures)

    def diff(self, request: DiffRequest) -> DiffResult:
        """Return the changed inputs, or a changed content of the context."""
        detailed = {
            path: kind
            for path, kind in diff_paths(request.old_inputs, request.inputs).items()
            if path.split(".")[0].split("[")[0] not in IRRELEVANT
        }
        if not contains_unknown([request.inputs.get(key) for key in ("context", "dockerfile", *CONTENT)]):
            _, _, digest = _build(request.inputs)
            if digest != request.old_outputs.get("contextHash"):
                detailed["contextHash"] = "update"
        return DiffResult(detailed)

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        """Record the image."""
        if request.preview:
            return "", self._foreseen(request.inputs)
        return uuid.uuid4().hex, self._record(request.urn, request.inputs)

    def update(self, request: UpdateRequest) -> Props:
        """Record the image in its present state.

        References to former contents stay known, as in a registry. But nothing was copied: they, too, run the present
        content of the checkout.
        """
        if request.preview:
            return self._foreseen(request.inputs)
        return self._record(request.urn, request.inputs)

    def read(self, request: ReadRequest) -> ReadResult | None:
        """Return the state as long as the local cloud knows the image."""
        if not request.outputs:
            raise ProviderError(f"{request.name}: an image can't be imported into the local cloud")
        reference = request.outputs.get("ref")
        if reference and reference not in _read(_home().images_file):
            return None
        return ReadResult(request.id, request.outputs, request.inputs)

    def delete(self, request: DeleteRequest) -> None:
        """Remove all references of this resource from the records."""
        with _changing(_home().images_file) as records:
            for reference in [key for key, record in records.items() if record.get("owner") == request.urn]:
                del records[reference]

    def _foreseen(self, inputs: Props) -> Props:
        if contains_unknown([inputs.get(key) for key in ("context", "dockerfile", *CONTENT)]):
            return {**inputs, "contextHash": UNKNOWN, "digest": UNKNOWN, "ref": UNKNOWN}
        _, _, digest = _build(inputs)
        foreseen: Props = {**inputs, "contextHash": digest, "digest": UNKNOWN, "ref": UNKNOWN}
        # The official plugin builds in a preview only if an input says so. Only then it knows the reference.
        if inputs.get("buildOnPreview") is True and not contains_unknown(inputs.get("tags")):
            foreseen |= {"digest": f"sha256:{digest}", "ref": reference_of(inputs, digest)}
        return foreseen

    def _record(self, urn: str, inputs: Props) -> Props:
        context, dockerfile, digest = _build(inputs)
        reference = reference_of(inputs, digest)
        record: dict[str, Any] = {"context": str(context), "dockerfile": str(dockerfile), "owner": urn}
        if inputs.get("target"):
            record["target"] = inputs["target"]
        with _changing(_home().images_file) as records:
            for key in (reference, *(inputs.get("tags") or [])):
                if key:
                    records[key] = record
        return {**inputs, "contextHash": digest, "digest": f"sha256:{digest}", "ref": reference}


def reference_of(inputs: Props, digest: str) -> str:
    """Return `<first tag without its :tag>@sha256:<digest>`; empty if the image has no tag."""
    tags = inputs.get("tags") or []
    if not tags:
        return ""
    repository, colon, tag = str(tags[0]).rpartition(":")
    # The colon of a registry's port does not begin a tag.
    name = repository if colon and "/" not in tag else str(tags[0])
    return f"{name}@sha256:{digest}"


# The nodes of the local cloud read the build context of an image reference from this file.
_Records = dict[str, dict[str, Any]]


@contextmanager
def _changing(file: Path) -> Iterator[_Records]:
    """Yield the records, and write them back in one step if the block succeeds. Other processes wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = _read(file)
        yield records
        write_atomically(file, json.dumps(records, indent=1, sort_keys=True))


def _read(file: Path) -> _Records:
    """Return all records by image reference; none if the file is missing or damaged."""
    return read_record(file) or {}


def _build(inputs: Props) -> tuple[Path, Path, str]:
    """Return (context, Dockerfile, digest). Paths are relative to the program's directory, where plugins run."""
    context = Path(inputs["context"]["location"]).absolute()
    given = (inputs.get("dockerfile") or {}).get("location")
    dockerfile = Path(given).absolute() if given else context / "Dockerfile"
    settings = {key: inputs[key] for key in CONTENT if inputs.get(key)}
    try:
        return context, dockerfile, build_digest(context, dockerfile, settings)
    except OSError as error:
        raise ProviderError(f"{IMAGE}: {error}") from error


def _home() -> Home:
    """Return the state directory of the running local cloud.

    Raises:
        ProviderError: No directory is set.
    """
    named = os.environ.get("TRAINYARD_LOCAL_CLOUD")
    if not named:
        raise ProviderError(
            "no local cloud to keep images for (TRAINYARD_LOCAL_CLOUD is not set): start it with `make up`"
        )
    return Home(Path(named).parent.parent)
