"""The provider's settings, and those that this plugin refuses."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from local.plugins.provider import ProviderError
from local.plugins.values import Props, decode_json

# Settings that would change the behaviour and are not supported here. None, false and empty values are accepted.
_REFUSED = ("alwaysRender", "renderYamlToDirectory", "skipUpdateUnreachable")
_HELM_ENVIRONMENT = {
    "driver": "HELM_DRIVER",
    "pluginsPath": "HELM_PLUGINS",
    "registryConfigPath": "HELM_REGISTRY_CONFIG",
    "repositoryCache": "HELM_REPOSITORY_CACHE",
    "repositoryConfigPath": "HELM_REPOSITORY_CONFIG",
}


@dataclass(frozen=True)
class Settings:
    """The settings of the provider resource. `kubeconfig`: content or path; None means the environment's."""

    kubeconfig: str | None = None
    context: str | None = None
    cluster: str | None = None
    namespace: str | None = None
    patch_force: bool = False
    upsert: bool = False
    # If a cluster does not answer, its objects are gone, too.
    delete_unreachable: bool = False
    mutable_kinds: frozenset[str] = frozenset()
    helm_environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, inputs: Props) -> Settings:
        """Read the settings. The SDK sends all values except texts as JSON.

        Raises:
            ProviderError: A setting is refused. The message names it.
        """
        refused = [name for name in _REFUSED if decode_json(inputs.get(name))]
        if decode_json(inputs.get("enableServerSideApply")) is False:
            refused.append("enableServerSideApply: false")
        if refused:
            raise ProviderError(
                f"the local kubernetes plugin does not support the setting {', '.join(refused)}"
            )
        mutable = {
            kind
            for kind, name, variable in (
                ("ConfigMap", "enableConfigMapMutable", "PULUMI_K8S_ENABLE_CONFIGMAP_MUTABLE"),
                ("Secret", "enableSecretMutable", "PULUMI_K8S_ENABLE_SECRET_MUTABLE"),
            )
            if _switch(inputs, name, variable)
        }
        helm = decode_json(inputs.get("helmReleaseSettings")) or {}
        return cls(
            kubeconfig=inputs.get("kubeconfig") or None,
            context=inputs.get("context") or None,
            cluster=inputs.get("cluster") or None,
            namespace=inputs.get("namespace") or None,
            patch_force=_switch(inputs, "enablePatchForce", "PULUMI_K8S_ENABLE_PATCH_FORCE"),
            upsert=_switch(inputs, "upsertExistingObjects", "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"),
            delete_unreachable=_switch(inputs, "deleteUnreachable", "PULUMI_K8S_DELETE_UNREACHABLE"),
            mutable_kinds=frozenset(mutable),
            helm_environment={
                variable: str(helm[name]) for name, variable in _HELM_ENVIRONMENT.items() if helm.get(name)
            },
        )


def _switch(inputs: Props, name: str, variable: str) -> bool:
    value: Any = decode_json(inputs.get(name))
    if value is None:
        return os.environ.get(variable, "").lower() in ("1", "true")
    return bool(value)
