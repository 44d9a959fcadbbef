"""Requests of the plugin to the API server. `Cluster` raises each error as one line for the user (`PluginError`)."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any, Final

from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy
from trainyard.k8s.kubeconfig import NoLogin
from trainyard.kubectl.cli import namespace_name
from trainyard.kubectl.output import NO_KUBECONFIG, NOT_FOUND, REFUSED, UNAVAILABLE, USAGE, PluginError
from trainyard.operator import names as n

JsonObject = dict[str, Any]
# A user waits for the answer.
RETRY: Final = RetryPolicy(timeout=10.0, initial_delay=0.2, max_delay=2.0)
_MERGE_PATCH: Final = "application/merge-patch+json"
_ROOT: Final = f"/apis/{n.API_VERSION}"
_OUR_KINDS: Final = (n.JOB_PLURAL, n.QUEUE_PLURAL)
_JOB_WRITES: Final = tuple(f"{verb} {n.JOB_PLURAL}" for verb in ("create", "patch", "delete"))
_EVERYWHERE: Final = "all namespaces"
_SHOWN: Final = 5
_ABSENT, _CONFLICT = 404, 409


class Cluster:
    """One API server and one namespace. Each method raises PluginError."""

    def __init__(self, client: Client, namespace: str, flags: Sequence[tuple[str, str | None]] = ()) -> None:
        """Create the cluster. `flags` are the flags of the user that name it, with their values, if any."""
        self.client, self.namespace, self._flags = client, namespace, flags

    @classmethod
    def connect(
        cls, kubeconfig: str | None, context: str | None, namespace: str | None, retry: RetryPolicy = RETRY
    ) -> Cluster:
        with _explain_kubeconfig(kubeconfig, context):
            client, default = kubeconfigs.connect(kubeconfig, context, retry)
        flags = (("-n", namespace), ("--context", context), ("--kubeconfig", kubeconfig))
        return cls(client, _valid_namespace(namespace or default), flags)

    def command(self, words: str, *names: str) -> str:
        """Return a kubectl command that the user can paste: for these names in this namespace, or for all."""
        flags = self._flags if names else [flag for flag in self._flags if flag[0] != "-n"]
        given = [f"{flag} {shlex.quote(value)}" for flag, value in flags if value]
        return " ".join(("kubectl", words, *given, *names))

    def path(self, plural: str, *, everywhere: bool = False) -> str:
        """Return the path of the list of these objects in the namespace, or in all namespaces."""
        root = _ROOT if plural in _OUR_KINDS else "/api/v1"
        return f"{root}/{plural}" if everywhere else f"{root}/namespaces/{self.namespace}/{plural}"

    def items(
        self, plural: str, query: dict[str, str] | None = None, *, everywhere: bool = False
    ) -> list[JsonObject]:
        """List the objects of the namespace, or of all namespaces."""
        with self._explained("list", plural, _EVERYWHERE if everywhere else self.namespace):
            return self.client.list_objects(self.path(plural, everywhere=everywhere), query)

    def find(self, plural: str, name: str) -> JsonObject | None:
        """Return the object with this name, None if it does not exist."""
        with self._explained("get", plural):
            try:
                return self.client.request("GET", f"{self.path(plural)}/{name}")
            except ApiError as error:
                if error.status != _ABSENT:
                    raise
                self._check_installed(plural)
                return None

    def job(self, name: str) -> JsonObject:
        found = self.find(n.JOB_PLURAL, name)
        if found is None:
            raise self._job_not_found(name)
        return found

    def _job_not_found(self, name: str) -> PluginError:
        hint = f"`{self.command('torchrun list -A')}` shows all"
        return PluginError(NOT_FOUND, f"job {name}: is not in namespace {self.namespace}; {hint}")

    def workers(self, job: JsonObject) -> list[JsonObject]:
        """List the existing pods of this job, of all its attempts."""
        return self.items("pods", {"labelSelector": f"{n.LABEL_JOB_UID}={job['metadata']['uid']}"})

    def create(self, job: JsonObject, *, dry_run: bool = False) -> JsonObject | None:
        """Create the job, or with `dry_run` only check it. Return None if a job with its name exists.

        If an answer was lost, that may be the same job (submit.py).
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        with self._explained("create", n.JOB_PLURAL):
            try:
                return self.client.request("POST", self.path(n.JOB_PLURAL), query, job)
            except ApiError as error:
                if error.status == _CONFLICT and error.reason == "AlreadyExists":
                    return None
                if error.message == f'namespaces "{self.namespace}" not found':
                    hint = f"`{self.command('get namespaces')}` shows all"
                    why = f"-n: namespace {self.namespace} does not exist; {hint}"
                    raise PluginError(USAGE, why) from None
                raise

    def change(self, name: str, spec: JsonObject, uid: str) -> None:
        """Set these fields of the job's spec, unless the name belongs to another job by now."""
        body = {"metadata": {"uid": uid}, "spec": spec}
        with self._explained("patch", n.JOB_PLURAL):
            path = f"{self.path(n.JOB_PLURAL)}/{name}"
            try:
                self.client.request("PATCH", path, None, body, content_type=_MERGE_PATCH)
            except ApiError as error:
                if error.status == _ABSENT:
                    self._check_installed(n.JOB_PLURAL)
                    raise self._job_not_found(name) from None
                if error.status == _CONFLICT and "uid" in error.message.lower():
                    why = f"job {name}: was replaced by another job of this name meanwhile"
                    raise PluginError(NOT_FOUND, why) from None
                raise

    def delete(self, name: str, uid: str) -> None:
        """Delete exactly this job, if it still exists."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        with self._explained("delete", n.JOB_PLURAL):
            try:
                self.client.request("DELETE", f"{self.path(n.JOB_PLURAL)}/{name}", None, body)
            except ApiError as error:
                if error.status not in (_ABSENT, _CONFLICT):
                    raise

    @contextmanager
    def _explained(self, verb: str, plural: str, namespace: str = "") -> Iterator[None]:
        with explained(f"{verb} {plural}", namespace or self.namespace):
            try:
                yield
            except ApiError as error:
                if error.status == _ABSENT:
                    self._check_installed(plural)
                raise

    def _check_installed(self, plural: str) -> None:
        """Raise PluginError if the cluster does not serve the API of TorchrunJobs, and these objects need it."""
        if plural not in _OUR_KINDS:
            return
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
    return Cluster.connect(options.kubeconfig, options.context, options.namespace)


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """Return the namespace of the user's context, without a request. Raise PluginError."""
    with _explain_kubeconfig(kubeconfig, context):
        return _valid_namespace(kubeconfigs.namespace_of(kubeconfig, context))


def nearest(name: str, names: Sequence[str]) -> str:
    """Return some of these names, the most similar first, and the number of the others; `none` for no names."""
    first = list(dict.fromkeys([*get_close_matches(name, names, _SHOWN), *names]))[:_SHOWN]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return f"{', '.join(first) or 'none'}{more}"


def suggest_queue(cluster: Cluster, name: str) -> str:
    """Return where the queue is, a queue of a similar name, or the queues of the namespace."""
    metas: list[JsonObject] = []
    for everywhere in (False, True):  # the user may not list all
        with suppress(PluginError):
            metas = [queue["metadata"] for queue in cluster.items(n.QUEUE_PLURAL, everywhere=everywhere)]
    here = sorted(meta["name"] for meta in metas if meta["namespace"] == cluster.namespace)
    elsewhere = sorted(meta["namespace"] for meta in metas if meta["name"] == name)
    if elsewhere:
        return f"it is in {', '.join(elsewhere[:_SHOWN])}: submit with -n {elsewhere[0]}"
    if near := get_close_matches(name, here, 1):
        return f"did you mean {near[0]}?"
    return f"the namespace has {nearest(name, here)}; `{cluster.command('torchrun queues -A')}` shows all"


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
        advice = "name one with --kubeconfig or KUBECONFIG, a context with --context"
        why = f"{where}{f', --context {context}' if context else ''}: {str(error).rstrip('.')}; {advice}"
        if context:
            try:
                names = kubeconfigs.contexts_of(kubeconfig)
            except ApiUnavailable:
                names = [context]
            if context not in names:
                why = f"--context: {context} is not in {where}; it has {nearest(context, names)}"
        raise PluginError(NO_KUBECONFIG, why) from None


def _is_refused_by_admission(message: str) -> bool:
    """Return whether a quota, a policy or a webhook refused the object, not the authorization of the user.

    An authorizer's message has the user (k8s.io/apiserver, endpoints/handlers/responsewriters/errors.go).
    """
    is_of_user = "is forbidden: User " in message
    return ("is forbidden: " in message and not is_of_user) or "denied the request" in message


@contextmanager
def explained(action: str, namespace: str) -> Iterator[None]:
    """Convert errors of the API server to PluginError. `action` is a verb and a resource, as in a role."""
    try:
        yield
    except ApiError as error:
        message = " ".join(error.message.split()) or str(error)
        where = namespace if namespace == _EVERYWHERE else f"namespace {namespace}"
        forbidden = f"{where}: you may not {action} there: {message}"
        if _is_refused_by_admission(message):
            forbidden = f"{where}: {action}: refused: {message}"
        invalid = (UNAVAILABLE, f"{action}: refused: {message}")
        if action in _JOB_WRITES:
            invalid = (USAGE, f"job: the API server refuses it: {message}")
        code, line = {
            401: (REFUSED, f"login: the API server does not know you ({message}); log in again"),
            403: (REFUSED, forbidden),
            **dict.fromkeys((400, 409, 422), invalid),
        }.get(error.status, (UNAVAILABLE, f"API server: {error}"))
        raise PluginError(code, line) from None
    except NoLogin as error:  # the earlier login has expired
        raise PluginError(NO_KUBECONFIG, str(error)) from None
    except ApiUnavailable as error:
        raise PluginError(UNAVAILABLE, f"API server: no answer: {error}") from None
