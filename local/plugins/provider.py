"""The base class of the local cloud's Pulumi plugins. Subclass `Provider`, then `serve` it (`local.plugins.server`).

    class Mine(Provider):
        name, version = "mine", "1.0.0"
        def check(self, request): return CheckResult(request.inputs)
        def create(self, request): return "id-1", {**request.inputs, "arn": "..."}

    if __name__ == "__main__":
        serve(Mine())

Inputs and outputs are plain values (`local.plugins.values`). Calls may come from many threads at once and may block.
They can raise:

- `ProviderError`: one line for the user of Pulumi;
- `InitFailed`: the resource exists but is not ready. The engine keeps it in its state and reports the reasons.

Secrets: a provider gets plain values. If it returns an output under the same path as a secret input, the server marks
the output as a secret (`values.mark_secrets`). The provider wraps other secrets in `Secret` itself: values that it
derives from a secret under another path, and values that are always secret. References to other resources arrive as
their ids (components: URNs).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.plugins.values import Props, diff_paths


class ProviderError(Exception):
    """A failure with a message for the user, who sees it unchanged."""


class InitFailed(ProviderError):
    """The resource was created or updated but is not ready. The state keeps it, with these outputs."""

    def __init__(
        self, resource_id: str, outputs: Props, reasons: list[str], inputs: Props | None = None
    ) -> None:
        super().__init__("; ".join(reasons))
        self.resource_id = resource_id
        self.outputs = outputs
        self.reasons = reasons
        self.inputs = inputs


@dataclass(frozen=True)
class Failure:
    """An invalid input: its property path and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """The common part of all requests about a resource."""

    urn: str
    type: str
    name: str


@dataclass(frozen=True, kw_only=True)
class CheckRequest(Request):
    """New inputs of the program. `old_inputs` is None for a resource that does not exist yet."""

    inputs: Props
    old_inputs: Props | None
    seed: bytes = b""

    def auto_name(self, digits: int = 7, prefix: str | None = None) -> str:
        """Return `<name>-<hex digits>`: equal within one operation for equal seeds, otherwise different each time."""
        digest = hashlib.sha256(self.seed + self.urn.encode()).hexdigest()
        return f"{self.name if prefix is None else prefix}-{digest[:digits]}"


@dataclass(frozen=True)
class CheckResult:
    """The inputs with defaults, or the failures."""

    inputs: Props
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class DiffRequest(Request):
    """Old and new inputs, and the outputs of the state."""

    id: str
    old_inputs: Props
    old_outputs: Props
    inputs: Props


@dataclass(frozen=True)
class DiffResult:
    """The differences of a resource.

    Attributes:
        detailed: Property path -> `add`, `delete`, `update`.
        replaces: Those paths, or top-level properties of them, that force a replacement.
        changes: Whether there are changes. None: derived from the other two.
    """

    detailed: Mapping[str, str] = field(default_factory=dict)
    replaces: list[str] = field(default_factory=list)
    delete_before_replace: bool = False
    changes: bool | None = None

    @property
    def has_changes(self) -> bool:
        """Whether an update or a replacement is needed."""
        return bool(self.detailed or self.replaces) if self.changes is None else self.changes


@dataclass(frozen=True, kw_only=True)
class CreateRequest(Request):
    """A request to create a resource.

    Attributes:
        preview: Return the outputs that are predictable (`UNKNOWN` for the others), and change nothing.
        timeout: Seconds that the program allows, or None.
    """

    inputs: Props
    preview: bool
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReadRequest(Request):
    """A refresh (with the state's `inputs` and `outputs`) or an import (both empty)."""

    id: str
    inputs: Props
    outputs: Props


@dataclass(frozen=True)
class ReadResult:
    """The live resource. `inputs` are those of a program that would create it."""

    id: str
    outputs: Props
    inputs: Props


@dataclass(frozen=True, kw_only=True)
class UpdateRequest(DiffRequest):
    """A `DiffRequest` with `preview` and `timeout` (seconds) of `CreateRequest`."""

    preview: bool
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeleteRequest(Request):
    """The inputs and outputs of the state. `timeout` is in seconds or None."""

    id: str
    inputs: Props
    outputs: Props
    timeout: float | None = None


class Engine:
    """Messages to the engine. This class drops them; the server replaces it by the real one."""

    def status(self, urn: str, text: str) -> None:
        """Show the progress of a wait beside the resource, until the next message."""

    def warning(self, urn: str, text: str) -> None:
        """Add a warning to the resource's diagnostics."""


class Provider:
    """A plugin. `name` and `version` are those of the official package."""

    name: str
    version: str
    # Properties that copy another one: secrets of the source are secrets in the copy, too. To -> from, top level.
    copies: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.engine = Engine()
        self.cancelled = threading.Event()

    def check_config(self, inputs: Props) -> CheckResult:
        """Check the provider's inputs. They can contain `UNKNOWN`; nested ones are JSON texts: `decode_json`."""
        return CheckResult(inputs)

    def diff_config(self, old: Props, new: Props) -> DiffResult:
        """Compare the provider's settings. By default, changes take effect without a replacement."""
        return DiffResult(diff_paths(old, new))

    def configure(self, inputs: Props) -> None:
        """Apply the settings. The engine does not call this while one is unknown; see `check`."""

    def check(self, request: CheckRequest) -> CheckResult:
        """Refuse wrong inputs by name, and fill in defaults. Not called while the provider's settings are unknown."""
        return CheckResult(request.inputs)

    def diff(self, request: DiffRequest) -> DiffResult:
        """Compare old and new inputs."""
        return DiffResult(diff_paths(request.old_inputs, request.inputs))

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        """Create the resource. Return its id (empty in a preview) and its outputs."""
        raise ProviderError(f"{request.type} can't be created by the local {self.name} plugin")

    def read(self, request: ReadRequest) -> ReadResult | None:
        """Return the live resource, or None if it does not exist."""
        raise ProviderError(f"{request.type} can't be read by the local {self.name} plugin")

    def update(self, request: UpdateRequest) -> Props:
        """Change the resource in place. Return its new outputs."""
        raise ProviderError(f"{request.type} can't be updated by the local {self.name} plugin")

    def delete(self, request: DeleteRequest) -> None:
        """Delete the resource and wait until it is gone. A resource that does not exist is no error."""
        raise ProviderError(f"{request.type} can't be deleted by the local {self.name} plugin")

    def invoke(self, token: str, args: Props) -> tuple[Props, list[Failure]]:
        """Call a function of the package, such as `getAvailabilityZones`."""
        raise ProviderError(f"the local {self.name} plugin has no function {token}")

    def construct(self, name: str, resource_type: str, inputs: Mapping[str, Any], options: Any) -> Any:
        """Create a remote component with Pulumi's SDK.

        This runs on the event loop, so calls must not block for more than a moment.

        Args:
            inputs: The arguments; they hold Outputs.
            options: The `pulumi.ResourceOptions`.

        Returns:
            The `pulumi.provider.ConstructResult(urn, state)`.
        """
        raise ProviderError(f"the local {self.name} plugin has no component {resource_type}")

    def schema(self) -> Props:
        """Return the part of the package schema that the engine asks for."""
        return {"name": self.name, "version": self.version}
