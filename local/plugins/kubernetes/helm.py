"""`kubernetes:helm.sh/v3:Release` with the `helm` binary."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from local.plugins import sdk
from local.plugins.kubernetes import objects
from local.plugins.kubernetes.cluster import Cluster
from local.plugins.kubernetes.helm_command import DEFAULT_TIMEOUT, Helm, HelmError, install_arguments
from local.plugins.kubernetes.projection import project
from local.plugins.provider import (
    CheckRequest,
    CheckResult,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    DiffResult,
    Failure,
    InitFailed,
    Provider,
    ProviderError,
    ReadRequest,
    ReadResult,
    UpdateRequest,
)
from local.plugins.values import UNKNOWN, Props, contains_unknown, diff_paths, is_unknown

# All others of the official resource are refused if set.
_SERVED = sdk.split_names("atomic chart name namespace skipCrds timeout values version")
# It is in the inputs so that an edited chart directory is a change. The engine does not show such a property.
_CHECKSUM = "__chartChecksum"
_COMPUTED = ("compat", "resourceNames", "status")


class Releases:
    """The operations on one Release, in the provider's cluster. The provider's engine shows progress."""

    def __init__(self, provider: Provider, cluster: Cluster) -> None:
        self._provider = provider
        self._cluster = cluster

    def check(self, request: CheckRequest, inputs: Props) -> CheckResult:
        """Fill in the namespace and the checksum of a local chart."""
        failures = sdk.check_inputs(request.type, inputs)
        wrong = {failure.path for failure in failures}
        checked = {key: value for key, value in inputs.items() if key not in _COMPUTED}
        for name, value in checked.items():
            is_other = name not in _SERVED and name not in wrong and not name.startswith("__")
            if is_other and (is_unknown(value) or value):
                failures.append(Failure(name, f"{request.type}: {name} is not supported by the local plugin"))
        for name in ("chart", "name"):
            if name not in checked:
                failures.append(Failure(name, f"{request.type}: {name} is missing; it must be set"))
        if failures:
            return CheckResult(inputs, failures)
        checked.setdefault("namespace", self._cluster.default_namespace())
        chart = checked["chart"]
        if not is_unknown(chart):
            digest = chart_checksum(Path(chart))
            if digest:
                checked[_CHECKSUM] = digest
        return CheckResult(checked, failures)

    def diff(self, request: DiffRequest) -> DiffResult:
        """Compare. A changed name or namespace needs a replacement; everything else is an upgrade."""
        changed = diff_paths(_comparable(request.old_inputs), _comparable(request.inputs))
        replaces = [path for path in changed if path in ("name", "namespace")]
        return DiffResult(changed, replaces)

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        """Install. An interrupted first installation is removed first."""
        inputs = request.inputs
        if request.preview:
            return "", {**_visible(inputs), "status": UNKNOWN, "resourceNames": UNKNOWN}
        helm = self._helm()
        found = _status(helm, inputs["name"], inputs["namespace"])
        if found is not None:
            place = objects.object_id(inputs["namespace"], inputs["name"])
            state = found["info"]["status"]
            if not state.startswith("pending-install"):
                raise ProviderError(
                    f"Helm release {place} already exists, status {state}; import it with id {place} or uninstall it"
                )
            self._remove_interrupted(helm, request.urn, inputs, state)
        self._install(helm, request.urn, inputs, upgrade=False)
        return self._result(helm, inputs)

    def update(self, request: UpdateRequest) -> Props:
        """Upgrade. An interrupted operation is repaired first."""
        inputs = request.inputs
        if request.preview:
            return {**_visible(inputs), "status": UNKNOWN, "resourceNames": UNKNOWN}
        helm = self._helm()
        found = _status(helm, inputs["name"], inputs["namespace"])
        state = found["info"]["status"] if found else ""
        if state.startswith("pending-install"):
            self._remove_interrupted(helm, request.urn, inputs, state)
        elif state.startswith("pending-"):
            self._roll_back(helm, request.urn, inputs, state)
        self._install(helm, request.urn, inputs, upgrade=True)
        return self._result(helm, inputs)[1]

    def read(self, request: ReadRequest) -> ReadResult | None:
        """Return the live release, with values and chart version that differ from the inputs."""
        namespace, name = objects.split_id(request.id)
        helm = self._helm()
        found = _status(helm, name, namespace or "default")
        if found is None or found["info"]["status"] == "uninstalled":
            return None
        inputs = {"name": name, "namespace": namespace or "default", **request.inputs}
        if not request.inputs:
            inputs["values"] = found.get("config") or {}
            inputs["chart"] = _chart(helm, name, inputs["namespace"])["chart"]
        identity, outputs = self._result(helm, inputs)
        described = dict(inputs)
        if inputs.get("values"):
            described["values"] = project(found.get("config") or {}, inputs["values"])
        if inputs.get("version"):
            described["version"] = _keep_written_version(inputs["version"], outputs["status"]["version"])
        return ReadResult(identity, {**outputs, **_visible(described)}, described)

    def delete(self, request: DeleteRequest) -> None:
        """Uninstall and wait until the objects are gone."""
        namespace, name = objects.split_id(request.id)
        seconds = int(request.timeout or request.inputs.get("timeout") or DEFAULT_TIMEOUT)
        arguments = ["uninstall", name, "--namespace", namespace or "default", "--ignore-not-found"]
        arguments += ["--wait", "--cascade", "foreground", "--timeout", f"{seconds}s"]
        self._helm().run(arguments, progress=self._progress(request.urn, "uninstall"))

    def _helm(self) -> Helm:
        return Helm(self._cluster.client().connection)

    def _progress(self, urn: str, verb: str) -> Any:
        return lambda seconds: self._provider.engine.status(urn, f"helm {verb}: waiting, {seconds:.0f} s")

    def _install(self, helm: Helm, urn: str, inputs: Props, *, upgrade: bool) -> None:
        verb = "upgrade" if upgrade else "install"
        self._provider.engine.status(urn, f"helm {verb}")
        try:
            helm.run(
                install_arguments(inputs, upgrade=upgrade),
                stdin=json.dumps(objects.without_null(inputs.get("values") or {})),
                progress=self._progress(urn, verb),
            )
        except HelmError as error:
            found = _status(helm, inputs["name"], inputs["namespace"])
            if found is None or found["info"]["status"] in ("deployed", "uninstalled"):
                raise
            # The release exists with status failed. It stays in the state, and the next run upgrades it.
            identity, outputs = self._result(helm, inputs)
            raise InitFailed(identity, outputs, [str(error)]) from error

    def _remove_interrupted(self, helm: Helm, urn: str, inputs: Props, state: str) -> None:
        place = objects.object_id(inputs["namespace"], inputs["name"])
        self._provider.engine.warning(
            urn,
            f"Helm release {place} was left in status {state} by an interrupted run; it is installed again",
        )
        helm.run(["uninstall", inputs["name"], "--namespace", inputs["namespace"], "--wait", "--no-hooks"])

    def _roll_back(self, helm: Helm, urn: str, inputs: Props, state: str) -> None:
        place = objects.object_id(inputs["namespace"], inputs["name"])
        history = helm.json(["history", inputs["name"], "--namespace", inputs["namespace"]]) or []
        good = [entry["revision"] for entry in history if entry["status"] in ("deployed", "superseded")]
        if not good:
            raise ProviderError(
                f"Helm release {place} is in status {state} and has no revision to go back to"
            )
        self._provider.engine.warning(
            urn,
            f"Helm release {place} was left in status {state} by an interrupted run; rolled back to {max(good)}",
        )
        helm.run(
            ["rollback", inputs["name"], str(max(good)), "--namespace", inputs["namespace"], "--no-hooks"]
        )

    def _result(self, helm: Helm, inputs: Props) -> tuple[str, Props]:
        name, namespace = inputs["name"], inputs["namespace"]
        about = _chart(helm, name, namespace)
        manifest = helm.run(["get", "manifest", name, "--namespace", namespace])
        status = {
            "appVersion": about.get("appVersion", ""),
            "chart": about.get("chart", ""),
            "name": name,
            "namespace": namespace,
            "revision": about.get("revision", 0),
            "status": about.get("status", ""),
            "version": about.get("version", ""),
        }
        outputs = {**_visible(inputs), "status": status, "resourceNames": resource_names(manifest, namespace)}
        return objects.object_id(namespace, name), outputs


def chart_checksum(chart: Path) -> str | None:
    """Return the SHA-256 of the names and contents of a local chart's files; None if the chart is not local."""
    if chart.is_file():
        return hashlib.sha256(chart.read_bytes()).hexdigest()
    if not (chart / "Chart.yaml").is_file():
        return None
    digest = hashlib.sha256()
    for path in sorted(chart.rglob("*")):
        if path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{path.relative_to(chart)}\0{content}\n".encode())
    return digest.hexdigest()


def resource_names(manifest: str, namespace: str) -> dict[str, list[str]]:
    """Return the objects of a release: `Deployment.apps/apps/v1` -> [`kube-system/karpenter`]."""
    names: dict[str, list[str]] = {}
    # The parser in C needs a second for large definitions, the other one ten. The base loader leaves dates as texts.
    for document in yaml.load_all(manifest, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
        if not document:
            continue
        api_version, kind = document["apiVersion"], document["kind"]
        group = api_version.split("/")[0] if "/" in api_version else ""
        key = f"{kind}.{group}/{api_version}" if group else f"{kind}/{api_version}"
        metadata = document["metadata"]
        scoped = kind in objects.CLUSTER_SCOPED
        place = None if scoped else metadata.get("namespace") or namespace
        names.setdefault(key, []).append(objects.object_id(place, metadata["name"]))
    return names


def _status(helm: Helm, name: str, namespace: str) -> Props | None:
    found: Props | None = helm.json(["status", name, "--namespace", namespace])
    return found


def _chart(helm: Helm, name: str, namespace: str) -> Props:
    found: Props = helm.json(["get", "metadata", name, "--namespace", namespace]) or {}
    return found


def _keep_written_version(wanted: str, live: str) -> str:
    """Return `wanted` if it can mean the live version, such as a range or with a leading v; else `live`."""
    exact = wanted.lstrip("v").replace(".", "").isalnum() and wanted.count(".") == 2
    return live if exact and wanted.lstrip("v") != live.lstrip("v") else wanted


def _visible(inputs: Props) -> Props:
    return {key: value for key, value in inputs.items() if not key.startswith("__")}


def _comparable(inputs: Props) -> Props:
    """Return the inputs for a comparison. The checksum replaces the chart."""
    result = {key: value for key, value in inputs.items() if value is not None and key != _CHECKSUM}
    if _CHECKSUM in inputs and not contains_unknown(result.get("chart")):
        result["chart"] = f"sha256:{inputs[_CHECKSUM]}"
    return result
