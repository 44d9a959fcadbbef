"""What the plugin asks of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import yaml
from kubernetes import client, config

from launcher.core.torchrun import names
from launcher.kube.rest import ApiError, ApiUnavailable, JsonObject, Rest, client_of

_MERGE = "application/merge-patch+json"
_NOT_FOUND = 404
# A worker may say nothing for long; a connection that is gone without a word shows by TCP's own questions.
_SILENCE_SECONDS = 24 * 3600.0


class Cluster:
    """The jobs and queues of one namespace. Every method may raise ApiError and ApiUnavailable."""

    def __init__(self, rest: Rest, namespace: str) -> None:
        self._rest = rest
        self.namespace = namespace

    @classmethod
    def connect(cls, kubeconfig: str | None, context: str | None, namespace: str | None) -> Cluster:
        """As kubectl finds it. Raises ApiUnavailable, naming the file, where there is no usable kubeconfig."""
        settings = client.Configuration()
        place = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
        try:
            config.load_kube_config(place, context, settings)
            contexts, active = config.list_kube_config_contexts(place)
            if context is not None:
                active = next(each for each in contexts if each["name"] == context)
        except (config.ConfigException, yaml.YAMLError, OSError, TypeError, ValueError) as error:
            raise ApiUnavailable(f"no usable kubeconfig ({place}): {str(error).splitlines()[0]}") from None
        return cls(Rest(client_of(settings)), namespace or active["context"].get("namespace") or "default")

    def _path(self, plural: str, name: str = "", *, everywhere: bool = False) -> str:
        place = "" if everywhere else f"/namespaces/{self.namespace}"
        return f"/apis/{names.API_VERSION}{place}/{plural}" + (f"/{name}" if name else "")

    def create(self, job: JsonObject) -> JsonObject:
        """Make this TorchrunJob."""
        return self._rest.request("POST", self._path(names.JOB_PLURAL), body=job, repeatable=False)

    def job(self, name: str) -> JsonObject:
        """This TorchrunJob."""
        return self._rest.request("GET", self._path(names.JOB_PLURAL, name))

    def queue(self, name: str) -> JsonObject | None:
        """This TorchrunQueue, None where there is none."""
        try:
            return self._rest.request("GET", self._path(names.QUEUE_PLURAL, name))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return None
            raise

    def every(self, plural: str, *, everywhere: bool) -> list[JsonObject]:
        """All of a kind, of this namespace or of all."""
        return self._rest.list_items(self._path(plural, everywhere=everywhere), {}, lambda item: item)

    def change(self, name: str, spec: dict[str, Any]) -> JsonObject:
        """Set these fields of the job's spec."""
        return self._rest.request(
            "PATCH", self._path(names.JOB_PLURAL, name), body={"spec": spec}, content=_MERGE
        )

    def delete(self, name: str) -> None:
        """Delete the job; what was made for it follows."""
        self._rest.request(
            "DELETE", self._path(names.JOB_PLURAL, name), body={"propagationPolicy": "Background"}
        )

    def worker(self, job: str, attempt: int, node: int) -> JsonObject | None:
        """The pod of this node in this attempt, None where there is none yet."""
        labels = {
            names.LABEL_JOB: job,
            names.LABEL_ATTEMPT: str(attempt),
            "batch.kubernetes.io/job-completion-index": str(node),
        }
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        pods = self._rest.list_items(path, {"labelSelector": selector}, lambda item: item)
        return max(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)

    def log(self, pod: str, *, follow: bool, tail: int | None = None, since: str = "") -> Iterator[bytes]:
        """What the worker's container printed, piece by piece; with `follow` until it ends."""
        query = {"container": names.WORKER_CONTAINER, "follow": str(follow).lower()}
        if tail is not None:
            query["tailLines"] = str(tail)
        if since:
            query["sinceTime"] = since
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/log"
        with self._rest.open(path, query, silence=_SILENCE_SECONDS) as answer:
            yield from answer.chunks()
