"""The cluster in the settings of a provider resource."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from local.plugins.kubernetes import objects
from local.plugins.kubernetes.client import Client, Unreachable
from local.plugins.kubernetes.kubeconfig import load
from local.plugins.provider import ProviderError
from local.plugins.values import Props, decode_json

_SERVED = ("kubeconfig", "deleteUnreachable", "enableServerSideApply")


@dataclass(frozen=True)
class Settings:
    """The settings of the provider resource that this plugin serves. It refuses all others."""

    # The content of the kubeconfig.
    kubeconfig: str = ""
    # If a cluster does not answer, its objects are gone, too.
    delete_unreachable: bool = False

    @classmethod
    def parse(cls, inputs: Props) -> Settings:
        """Read the settings. The SDK sends all values except texts as JSON. None, false and empty values are accepted.

        Raises:
            ProviderError: A setting is refused. The message names it.
        """
        values = {name: decode_json(value) for name, value in inputs.items() if name != "kubeconfig"}
        refused = [name for name, value in values.items() if value and name not in _SERVED]
        if values.get("enableServerSideApply") is False:
            refused.append("enableServerSideApply: false")
        if refused:
            raise ProviderError(
                f"the local kubernetes plugin does not support the setting {', '.join(refused)}"
            )
        delete_unreachable = values.get("deleteUnreachable")
        if delete_unreachable is None:
            delete_unreachable = os.environ.get("PULUMI_K8S_DELETE_UNREACHABLE", "").lower() in ("1", "true")
        return cls(inputs.get("kubeconfig") or "", bool(delete_unreachable))


class Cluster:
    """The cluster of a provider. It connects at first use: a preview needs no connection."""

    def __init__(self) -> None:
        self.settings = Settings()
        self._client: Client | None = None
        self._answers: bool | None = None
        self._lock = threading.Lock()

    def configure(self, settings: Settings) -> None:
        """Use the cluster of these settings from now on."""
        self.settings = settings
        self._client = None
        self._answers = None

    def client(self) -> Client:
        """Return the connection.

        Raises:
            ProviderError: The settings lead to no cluster.
        """
        if not self.settings.kubeconfig:
            raise ProviderError(
                "kubeconfig: is not set. Pass a k8s.Provider with the kubeconfig of the cluster"
            )
        with self._lock:
            if self._client is None:
                self._client = Client(load(self.settings.kubeconfig))
            return self._client

    def default_namespace(self) -> str:
        """Return the namespace of objects without one: that of the kubeconfig's context."""
        try:
            return self.client().connection.namespace
        except ProviderError:
            return "default"

    def namespaced(self, api_version: str, kind: str) -> bool:
        """Return whether a kind is namespaced.

        Raises:
            ProviderError: Neither this plugin nor a reachable cluster knows the kind.
        """
        if objects.is_builtin(api_version):
            return kind not in objects.CLUSTER_SCOPED
        return self.client().kind(api_version, kind).namespaced

    def answers(self) -> bool:
        """Return whether its API server is reachable. The result is cached."""
        if self._answers is None:
            try:
                self.client().request("GET", "/version")
                self._answers = True
            except Unreachable:
                self._answers = False
        return self._answers
