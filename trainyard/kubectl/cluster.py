"""Requests of the plugin to the API server. `Cluster` raises each error as one line for the user (`PluginError`)."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, Final

from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy
from trainyard.k8s.kubeconfig import NoLogin
from trainyard.kubectl.cli import namespace_name
from trainyard.kubectl.output import NO_KUBECONFIG, NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, PluginError
from trainyard.operator import names as n

JsonObject = dict[str, Any]
MERGE_PATCH: Final = "application/merge-patch+json"
_ROOT: Final = f"/apis/{n.API_VERSION}"
# A user waits for the answer.
RETRY: Final = RetryPolicy(timeout=10.0, initial_delay=0.2, max_delay=2.0)
_EVERYWHERE: Final = "all namespaces"
_SHOWN: Final = 5
_ABSENT, _CONFLICT = 404, 409


class Cluster:
    """One API server and one namespace. Each method raises PluginError."""

    def __init__(self, client: Client, namespace: str, flags: Sequence[tuple[str, str | None]] = ()) -> None:
        """Create the cluster. `flags` are the flags of the user that name it, with their values, if any."""
        self.client = client
        self.namespace = namespace
        self._flags = flags

    @classmethod
    def connect(
        cls, kubeconfig: str | None, context: str | None, namespace: str | None, retry: RetryPolicy = RETRY
    ) -> Cluster:
        """Connect with the user's kubeconfig."""
        with _explain_kubeconfig(kubeconfig, context):
            client, default = kubeconfigs.connect(kubeconfig, context, retry)
        flags = (("-n", namespace), ("--context", context), ("--kubeconfig", kubeconfig))
        return cls(client, _valid_namespace(namespace or default), flags)

    def command(self, words: str, *names: str) -> str:
        """Return a kubectl command that the user can paste: for these names in this namespace, or for all."""
        flags = self._flags if names else [each for each in self._flags if each[0] != "-n"]
        given = [f"{flag} {shlex.quote(value)}" for flag, value in flags if value]
        return " ".join(("kubectl", words, *given, *names))

    def jobs(self, everywhere: bool = False) -> list[JsonObject]:
        """List the jobs of the namespace, or of all namespaces."""
        return self._list(n.JOB_PLURAL, everywhere)

    def queues(self, everywhere: bool = False) -> list[JsonObject]:
        """List the queues of the namespace, or of all namespaces."""
        return self._list(n.QUEUE_PLURAL, everywhere)

    def namespaces(self) -> list[str]:
        """List the names of the namespaces."""
        with explained("list namespaces", self.namespace):
            names = self.client.list_items(
                "/api/v1/namespaces", {}, lambda item: str(item["metadata"]["name"])
            )
            return names

    def job(self, name: str) -> JsonObject:
        """Return the job with this name."""
        found = self.find_job(name)
        if found is None:
            everywhere = self.command("torchrun list -A")
            raise PluginError(
                NOT_FOUND, f"job {name}: is not in namespace {self.namespace}; `{everywhere}` shows all"
            )
        return found

    def find_job(self, name: str) -> JsonObject | None:
        """Return the job with this name, None if it does not exist."""
        return self._get(f"{self.path(n.JOB_PLURAL)}/{name}", f"get {n.JOB_PLURAL}")

    def queue(self, name: str) -> JsonObject | None:
        """Return the queue with this name, None if it does not exist."""
        return self._get(f"{self.path(n.QUEUE_PLURAL)}/{name}", f"get {n.QUEUE_PLURAL}")

    def create(self, job: JsonObject, *, dry_run: bool = False) -> JsonObject | None:
        """Create the job, or with `dry_run` only check it. Return None if a job with its name exists.

        If an answer was lost, that may be the same job (submit.py).
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        with explained(f"create {n.JOB_PLURAL}", self.namespace):
            try:
                return self.client.request("POST", self.path(n.JOB_PLURAL), query, job)
            except ApiError as error:
                if error.status == _CONFLICT and error.reason == "AlreadyExists":
                    return None
                if error.status == _ABSENT:
                    self._check_installed()
                    if error.message == f'namespaces "{self.namespace}" not found':
                        hint = f"`{self.command('get namespaces')}` shows all"
                        raise PluginError(
                            USAGE, f"-n: namespace {self.namespace} does not exist; {hint}"
                        ) from None
                raise

    def change(self, name: str, spec: JsonObject, uid: str) -> JsonObject:
        """Set these fields of the job's spec, unless the name belongs to another job by now."""
        body = {"metadata": {"uid": uid}, "spec": spec}
        with explained(f"patch {n.JOB_PLURAL}", self.namespace):
            path = f"{self.path(n.JOB_PLURAL)}/{name}"
            return self.client.request("PATCH", path, None, body, content_type=MERGE_PATCH)

    def delete(self, name: str, uid: str) -> None:
        """Delete exactly this job, if it still exists."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        with explained(f"delete {n.JOB_PLURAL}", self.namespace):
            try:
                self.client.request("DELETE", f"{self.path(n.JOB_PLURAL)}/{name}", None, body)
            except ApiError as error:
                if error.status not in (_ABSENT, _CONFLICT):
                    raise

    def pod(self, name: str) -> JsonObject | None:
        """Return the pod with this name, None if it does not exist."""
        return self._get(f"/api/v1/namespaces/{self.namespace}/pods/{name}", "get pods")

    def secret(self, name: str) -> JsonObject | None:
        """Return the Secret with this name, None if it does not exist."""
        return self._get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}", "get secrets")

    def workers(self, job: JsonObject) -> list[JsonObject]:
        """List the existing pods of this job, of all its attempts."""
        query = {"labelSelector": f"{n.LABEL_JOB_UID}={job['metadata']['uid']}"}
        with explained("list pods", self.namespace):
            return self.client.list_items(f"/api/v1/namespaces/{self.namespace}/pods", query, lambda pod: pod)

    def path(self, plural: str) -> str:
        """Return the path of the list of these objects in the namespace."""
        return f"{_ROOT}/namespaces/{self.namespace}/{plural}"

    def _get(self, path: str, action: str) -> JsonObject | None:
        with explained(action, self.namespace):
            try:
                return self.client.request("GET", path)
            except ApiError as error:
                if error.status != _ABSENT:
                    raise
                if path.startswith(_ROOT):
                    self._check_installed()
                return None

    def _list(self, plural: str, everywhere: bool) -> list[JsonObject]:
        path = f"{_ROOT}/{plural}" if everywhere else self.path(plural)
        with explained(f"list {plural}", _EVERYWHERE if everywhere else self.namespace):
            try:
                return self.client.list_items(path, {}, lambda item: item)
            except ApiError as error:
                if error.status == _ABSENT:
                    self._check_installed()
                raise

    def _check_installed(self) -> None:
        """Raise PluginError if the cluster does not serve the API of TorchrunJobs."""
        try:
            self.client.request("GET", _ROOT)
        except ApiError as error:
            if error.status == _ABSENT:
                raise PluginError(
                    UNAVAILABLE,
                    f"cluster: {n.API_VERSION} is not installed. Set trainyard:queues in the stack file, or on another "
                    "cluster use the commands of docs/torchrun.md",
                ) from None


def connect(options: argparse.Namespace) -> Cluster:
    """Return the cluster of these arguments. Raise PluginError."""
    return Cluster.connect(*cluster_flags(options))


def cluster_flags(options: argparse.Namespace) -> tuple[str | None, str | None, str | None]:
    """Return the values of --kubeconfig, --context and --namespace."""
    kubeconfig, context, namespace = (
        getattr(options, name, None) for name in ("kubeconfig", "context", "namespace")
    )
    return kubeconfig, context, namespace


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of the user's context, without a request. Raise PluginError."""
    with _explain_kubeconfig(kubeconfig, context):
        found = kubeconfigs.namespace_of(kubeconfig, context)
    return _valid_namespace(found)


def contexts_of(kubeconfig: str | None) -> list[str]:
    """Return the contexts of the user's kubeconfig. Raise PluginError."""
    with _explain_kubeconfig(kubeconfig, None):
        return kubeconfigs.contexts_of(kubeconfig)


def find_queues(cluster: Cluster, name: str) -> tuple[list[str], list[str]] | None:
    """Return the names of the namespace's queues, and the other namespaces with a queue of this name.

    If the user may not list queues, return None.
    """
    found: list[JsonObject] | None = None
    for everywhere in (True, False):
        try:
            found = cluster.queues(everywhere)
            break
        except PluginError:
            continue
    if found is None:
        return None
    names = [(each["metadata"]["namespace"], each["metadata"]["name"]) for each in found]
    return (
        sorted(queue for namespace, queue in names if namespace == cluster.namespace),
        sorted(namespace for namespace, queue in names if queue == name),
    )


def nearest(name: str, names: Sequence[str]) -> str:
    """Return some of these names, the most similar first, and the number of the others; `none` for no names."""
    first = list(dict.fromkeys([*get_close_matches(name, names, _SHOWN), *names]))[:_SHOWN]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"{', '.join(first) or 'none'}{more}"


def unknown_queue(cluster: Cluster, name: str) -> PluginError:
    """Return the error for a queue that does not exist in the namespace, with suggestions."""
    here, elsewhere = find_queues(cluster, name) or ([], [])
    if elsewhere:
        advice = f"it is in {', '.join(elsewhere[:_SHOWN])}: submit with -n {elsewhere[0]}"
    elif near := get_close_matches(name, here, 1):
        advice = f"did you mean {near[0]}?"
    else:
        advice = (
            f"the namespace has {nearest(name, here)}; `{cluster.command('torchrun queues -A')}` shows all"
        )
    return PluginError(
        USAGE, f"--queue: queue {name} does not exist in namespace {cluster.namespace}; {advice}"
    )


def _valid_namespace(namespace: str) -> str:
    try:
        return namespace_name(namespace)
    except ValueError as error:
        raise PluginError(NO_KUBECONFIG, f"namespace: {error}") from None


@contextmanager
def _explain_kubeconfig(kubeconfig: str | None, context: str | None) -> Iterator[None]:
    """Convert errors of a kubeconfig to PluginError."""
    try:
        yield
    except NoLogin as error:
        raise PluginError(NO_KUBECONFIG, str(error)) from None
    except ApiUnavailable as error:
        variable = os.environ.get("KUBECONFIG")
        where = f"KUBECONFIG {variable}" if variable else "~/.kube/config"
        where = f"--kubeconfig {kubeconfig}" if kubeconfig else where
        if context and (others := _other_contexts(kubeconfig, context)):
            raise PluginError(
                NO_KUBECONFIG, f"--context: {context} is not in {where}; it has {others}"
            ) from None
        where = f"{where}, --context {context}" if context else where
        advice = "name one with --kubeconfig or KUBECONFIG, a context with --context"
        raise PluginError(NO_KUBECONFIG, f"{where}: {str(error).rstrip('.')}; {advice}") from None


def _other_contexts(kubeconfig: str | None, context: str) -> str:
    """Return the contexts of a kubeconfig without this one, "" otherwise."""
    try:
        names = kubeconfigs.contexts_of(kubeconfig)
    except ApiUnavailable:
        return ""
    return nearest(context, names) if context not in names else ""


@contextmanager
def explained(action: str, namespace: str) -> Iterator[None]:
    """Convert errors of the API server to PluginError. `action` is a verb and a resource, as in a role."""
    try:
        yield
    except ApiError as error:
        message = " ".join(error.message.split()) or str(error)
        if error.status == 401:
            raise PluginError(
                REFUSED, f"login: the API server does not know you ({message}); log in again"
            ) from None
        if error.status == 403:
            where = namespace if namespace == _EVERYWHERE else f"namespace {namespace}"
            raise PluginError(REFUSED, f"{where}: you may not {action} there: {message}") from None
        if error.status in (400, 409, 422):
            raise PluginError(USAGE, f"job: the API server refuses it: {message}") from None
        raise PluginError(UNAVAILABLE, f"API server: {error}") from None
    except NoLogin as error:  # the earlier login has expired
        raise PluginError(NO_KUBECONFIG, str(error)) from None
    except ApiUnavailable as error:
        raise PluginError(UNAVAILABLE, f"API server: no answer: {error}") from None
