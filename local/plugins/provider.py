"""The base of the local cloud's Pulumi plugins: subclass `Provider`, then `serve` it (`local.plugins.server`).

    class Mine(Provider):
        name, version = "mine", "1.0.0"
        def check(self, request): return CheckResult(request.inputs)
        def create(self, request): return "id-1", {**request.inputs, "arn": "..."}

    if __name__ == "__main__":
        serve(Mine())

Inputs and outputs are plain values (`local.plugins.values`). The calls may come from many threads at once and may
block. What they raise:

- `ProviderError`: one line for the person who runs Pulumi;
- `InitFailed`: the resource exists but is not ready; the engine keeps it in its state and reports the reasons.

Secrets: a provider gets plain values and need not care; what it returns under the same path as a secret input is marked
as a secret by the server (`values.mark_secrets`). What is derived from a secret under another path, or is secret by
nature, the provider wraps in `Secret` itself. References to other resources arrive as their ids (components: URNs).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from local.plugins.values import Props, diff_paths


class ProviderError(Exception):
    """A failure that the person at the command line should read as it stands."""


class InitFailed(ProviderError):
    """The resource was created or updated but did not become ready: it stays in the state, with these outputs."""

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
    """One input that is wrong: its property path and why."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every call about one resource carries."""

    urn: str
    type: str
    name: str


@dataclass(frozen=True, kw_only=True)
class CheckRequest(Request):
    """New inputs of the program; `old_inputs` is None for a resource that does not exist yet."""

    inputs: Props
    old_inputs: Props | None
    seed: bytes = b""

    def auto_name(self, digits: int = 7, separator: str = "-", prefix: str | None = None) -> str:
        """`<name>-<hex digits>`: the same within one operation for the same seed, else different each time."""
        digest = hashlib.sha256(self.seed + self.urn.encode()).hexdigest()
        return f"{self.name if prefix is None else prefix}{separator}{digest[:digits]}"


@dataclass(frozen=True)
class CheckResult:
    """The inputs with defaults filled in, or what is wrong with them."""

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
    """What differs. `detailed`: property path -> `add`, `delete`, `update`. `replaces`: those paths or top-level
    properties of them that force a replacement. `changes` None: derived from the two."""

    detailed: Mapping[str, str] = field(default_factory=dict)
    replaces: list[str] = field(default_factory=list)
    delete_before_replace: bool = False
    changes: bool | None = None

    @property
    def has_changes(self) -> bool:
        """True when an update or a replacement is needed."""
        return bool(self.detailed or self.replaces) if self.changes is None else self.changes


@dataclass(frozen=True, kw_only=True)
class CreateRequest(Request):
    """`preview`: answer with the outputs that can be foreseen (`UNKNOWN` for the others), touch nothing.
    `timeout`: seconds that the program allows, or None."""

    inputs: Props
    preview: bool
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReadRequest(Request):
    """Refresh (with the state's `inputs` and `outputs`) or import (both empty)."""

    id: str
    inputs: Props
    outputs: Props


@dataclass(frozen=True)
class ReadResult:
    """The live resource: `inputs` as a program would have to write them to get it."""

    id: str
    outputs: Props
    inputs: Props


@dataclass(frozen=True, kw_only=True)
class UpdateRequest(Request):
    """As `DiffRequest`, with `preview` and `timeout` (seconds) of `CreateRequest`."""

    id: str
    old_inputs: Props
    old_outputs: Props
    inputs: Props
    preview: bool
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class DeleteRequest(Request):
    """The inputs and outputs of the state; `timeout` in seconds or None."""

    id: str
    inputs: Props
    outputs: Props
    timeout: float | None = None


class Engine:
    """Messages to the engine. This one drops them; the server puts the real one in its place."""

    def status(self, urn: str, text: str) -> None:
        """Progress of a wait: shown beside the resource until the next one."""

    def info(self, urn: str, text: str) -> None:
        """A line in the resource's diagnostics."""

    def warning(self, urn: str, text: str) -> None:
        """A warning in the resource's diagnostics."""


class Provider:
    """One plugin. `name` and `version` are those of the official package."""

    name: str
    version: str
    # Properties that repeat another one: secrets of that one are secrets there too. To -> from, top level.
    copies: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.engine = Engine()
        self.cancelled = threading.Event()

    def check_config(self, inputs: Props) -> CheckResult:
        """Inputs of the provider resource itself; may hold `UNKNOWN`. Nested ones come as JSON texts: `decode_json`."""
        return CheckResult(inputs)

    def diff_config(self, old: Props, new: Props) -> DiffResult:
        """Changed settings of the provider resource; by default they take effect without replacing anything."""
        return DiffResult(diff_paths(old, new))

    def configure(self, inputs: Props) -> None:
        """Take the settings. The engine does not call this while one is unknown; see `check`."""

    def check(self, request: CheckRequest) -> CheckResult:
        """Refuse wrong inputs by name, fill in defaults. Not called while the provider's settings are unknown."""
        return CheckResult(request.inputs)

    def diff(self, request: DiffRequest) -> DiffResult:
        """Compare old and new inputs."""
        return DiffResult(diff_paths(request.old_inputs, request.inputs))

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        """Make the resource: its id (empty in a preview) and its outputs."""
        raise ProviderError(f"{request.type} can't be created by the local {self.name} plugin")

    def read(self, request: ReadRequest) -> ReadResult | None:
        """The live resource, or None when it is gone."""
        raise ProviderError(f"{request.type} can't be read by the local {self.name} plugin")

    def update(self, request: UpdateRequest) -> Props:
        """Change the resource in place: its new outputs."""
        raise ProviderError(f"{request.type} can't be updated by the local {self.name} plugin")

    def delete(self, request: DeleteRequest) -> None:
        """Remove the resource and wait until it is gone; a resource that is gone already is no error."""
        raise ProviderError(f"{request.type} can't be deleted by the local {self.name} plugin")

    def invoke(self, token: str, args: Props) -> tuple[Props, list[Failure]]:
        """A function of the package, such as a look-up."""
        raise ProviderError(f"the local {self.name} plugin has no function {token}")

    def construct(self, name: str, resource_type: str, inputs: Mapping[str, Any], options: Any) -> Any:
        """A remote component, by Pulumi's SDK: `inputs` hold Outputs, `options` is `pulumi.ResourceOptions`, the answer
        `pulumi.provider.ConstructResult(urn, state)`. Runs on the event loop: no blocking calls beyond a moment."""
        raise ProviderError(f"the local {self.name} plugin has no component {resource_type}")

    def schema(self) -> Props:
        """The package schema as far as the engine asks for it."""
        return {"name": self.name, "version": self.version}

    def cancel(self) -> None:
        """Give up waiting: `self.cancelled` is set already."""
