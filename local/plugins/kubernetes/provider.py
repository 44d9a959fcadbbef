"""The provider `kubernetes`. It dispatches to objects and Helm releases."""

from __future__ import annotations

from local.plugins import sdk
from local.plugins.kubernetes import objects, replacement, resources
from local.plugins.kubernetes.client import UnknownKind, Unreachable
from local.plugins.kubernetes.cluster import Cluster, Settings
from local.plugins.kubernetes.helm import Releases
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
from local.plugins.values import Props, contains_unknown, decode_json, diff_paths, is_unknown

RELEASE = "kubernetes:helm.sh/v3:Release"
_PROVIDER = "pulumi:providers:kubernetes"


class KubernetesProvider(Provider):
    """The provider of objects of any kind that the API server knows, and of Helm releases."""

    name = "kubernetes"

    def __init__(self) -> None:
        super().__init__()
        self.version = sdk.sdk_version("kubernetes")
        self._cluster = Cluster()
        self._releases = Releases(self, self._cluster)

    def check_config(self, inputs: Props) -> CheckResult:
        failures = sdk.check_inputs(_PROVIDER, {key: decode_json(value) for key, value in inputs.items()})
        try:
            Settings.parse({key: value for key, value in inputs.items() if not contains_unknown(value)})
        except ProviderError as error:
            failures.append(Failure("", str(error)))
        return CheckResult(inputs, failures)

    def configure(self, inputs: Props) -> None:
        self._cluster.configure(Settings.parse(inputs))

    def check(self, request: CheckRequest) -> CheckResult:
        inputs = {key: value for key, value in request.inputs.items() if value is not None}
        if request.type == RELEASE:
            return self._releases.check(request, inputs)
        # Manifests from controller generators have an empty status. Users never set it.
        inputs.pop("status", None)
        api_version, kind = objects.api_version_and_kind(request.type)
        failures = _check_token(request.type, api_version, kind, inputs)
        if failures:
            return CheckResult(inputs, failures)
        for key in objects.unserved_annotations(inputs):
            reason = f"{request.type}: annotation {key} is not supported by the local plugin"
            failures.append(Failure("metadata.annotations", reason))
        for key, wanted in (("apiVersion", api_version), ("kind", kind)):
            if inputs.get(key, wanted) != wanted:
                reason = f"{request.type}: {key} is {inputs[key]!r}; it must be {wanted!r}"
                failures.append(Failure(key, reason))
        namespace = self._namespace_for(api_version, kind, request.old_inputs)
        checked = objects.with_defaults(
            inputs,
            api_version,
            kind,
            auto_name=request.auto_name(digits=8),
            namespace=namespace,
            old_inputs=request.old_inputs,
        )
        return CheckResult(checked, failures)

    def _namespace_for(self, api_version: str, kind: str, old_inputs: Props | None) -> str | None:
        """Return the default namespace; None for cluster-scoped kinds. Without a connection, use the state."""
        try:
            namespaced = self._cluster.namespaced(api_version, kind)
            return self._cluster.default_namespace() if namespaced else None
        except ProviderError:
            # The CRD or the cluster does not exist yet. The API server will report what is missing.
            old: Props = (old_inputs or {}).get("metadata") or {}
            namespace: str | None = old.get("namespace")
            return namespace

    def diff(self, request: DiffRequest) -> DiffResult:
        if request.type == RELEASE:
            return self._releases.diff(request)
        old, new = _compared(request.old_inputs), _compared(request.inputs)
        changed = diff_paths(old, new)
        if not changed:
            return DiffResult(changes=False)
        replaces = replacement.find_replacements(new, changed)
        if not replaces and not contains_unknown(new):
            replaces = self._refused(request, list(changed))
        return DiffResult(
            changed, replaces, delete_before_replace=bool(replaces) and _has_same_name(old, new)
        )

    def _refused(self, request: DiffRequest, changed: list[str]) -> list[str]:
        """Ask the API server whether the change is possible. Without a connection, assume that it is."""
        manager = self._manager(request.urn, request.old_outputs)
        try:
            error = resources.dry_run(self._cluster.client(), request.inputs, manager)
        except (Unreachable, UnknownKind, ProviderError):
            return []
        if error is None:
            return []
        return replacement.refused_replacements(error, changed) or []

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        if request.type == RELEASE:
            return self._releases.create(request)
        if request.preview:
            return "", objects.foreseen(request.inputs)
        call = self._call(request, objects.field_manager(request.urn))
        return resources.create(self._cluster.client(), request.inputs, call)

    def read(self, request: ReadRequest) -> ReadResult | None:
        if self._gone_with_its_cluster():
            return None
        if request.type == RELEASE:
            return self._releases.read(request)
        api_version, kind = objects.api_version_and_kind(request.type)
        inputs = {"apiVersion": api_version, "kind": kind, **request.inputs}
        try:
            return resources.read(
                self._cluster.client(), request.id, inputs, self._manager(request.urn, request.outputs)
            )
        except UnknownKind:
            # Its CRD was deleted, and all objects with it.
            return None

    def update(self, request: UpdateRequest) -> Props:
        if request.type == RELEASE:
            return self._releases.update(request)
        manager = self._manager(request.urn, request.old_outputs)
        if request.preview:
            foreseen: Props = objects.merged(request.old_outputs, request.inputs)
            return foreseen
        return resources.update(self._cluster.client(), request.inputs, self._call(request, manager))

    def delete(self, request: DeleteRequest) -> None:
        if self._gone_with_its_cluster():
            return
        if request.type == RELEASE:
            self._releases.delete(request)
            return
        api_version, kind = objects.api_version_and_kind(request.type)
        state = {"apiVersion": api_version, "kind": kind, **request.outputs}
        call = self._call(request, self._manager(request.urn, request.outputs))
        end = resources.give_up if objects.is_patch(request.type) else resources.delete
        try:
            end(self._cluster.client(), request.id, state, call)
        except UnknownKind:
            # Its CRD was deleted, and all objects with it.
            return

    def _gone_with_its_cluster(self) -> bool:
        """Return whether the cluster does not answer, and the settings say that its objects are gone then."""
        return self._cluster.settings.delete_unreachable and not self._cluster.answers()

    def _manager(self, urn: str, outputs: Props) -> str:
        return str(outputs.get(objects.FIELD_MANAGER) or objects.field_manager(urn))

    def _call(self, request: CreateRequest | UpdateRequest | DeleteRequest, manager: str) -> resources.Call:
        return resources.Call(
            manager=manager,
            timeout=request.timeout,
            status=lambda text: self.engine.status(request.urn, text),
            cancelled=self.cancelled,
            upsert=objects.is_patch(request.type),
        )


def _check_token(token: str, api_version: str, kind: str, inputs: Props) -> list[Failure]:
    """Refuse properties that the official SDK lacks. Kinds of other API groups are custom resources."""
    if objects.is_patch(token) and not (inputs.get("metadata") or {}).get("name"):
        return [Failure("metadata.name", f"{token}: metadata.name is missing; it must name what is patched")]
    try:
        fields = sdk.resource(token)
    except sdk.UnknownTokenError as error:
        if objects.is_builtin(api_version):
            return [Failure("", str(error))]
        metadata = inputs.get("metadata")
        shape = sdk.properties(sdk.resource("kubernetes:core/v1:ConfigMap"))["metadata"]
        return sdk.check_shape(shape, metadata, "metadata", token)
    if kind == "CustomResourceDefinition":
        # A JSON schema has two spellings of its keys (`x-kubernetes-...`). The API server checks it.
        inputs = {key: value for key, value in inputs.items() if key != "spec"}
    return sdk.check_shape(fields, inputs, "", token)


def _compared(inputs: Props) -> Props:
    return {key: value for key, value in inputs.items() if key != "status" and value is not None}


def _has_same_name(old: Props, new: Props) -> bool:
    """Return whether old and new object have the same name. Then the old one must be deleted first."""
    if objects.flag(new, objects.AUTONAMED):
        return False
    here, there = old.get("metadata") or {}, new.get("metadata") or {}
    if is_unknown(there) or contains_unknown({key: there.get(key) for key in ("name", "namespace")}):
        return True
    keys = ("name", "namespace")
    return old.get("kind") == new.get("kind") and all(here.get(key) == there.get(key) for key in keys)
