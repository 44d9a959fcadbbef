"""The cluster in the settings of a provider resource."""

from __future__ import annotations

import threading

from local.plugins.kubernetes import objects
from local.plugins.kubernetes.client import Client, Unreachable
from local.plugins.kubernetes.kubeconfig import load
from local.plugins.kubernetes.settings import Settings
from local.plugins.provider import ProviderError


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
        with self._lock:
            if self._client is None:
                settings = self.settings
                self._client = Client(load(settings.kubeconfig, settings.context, settings.cluster))
            return self._client

    def default_namespace(self) -> str:
        """Return the namespace of objects without one: the provider's, else that of the kubeconfig's context."""
        if self.settings.namespace:
            return self.settings.namespace
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
