"""What the plugin asks of the API server, and its refusals as lines for a person."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from typing import Any, Final

from trainyard.k8s import kubeconfig as kubeconfigs
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy
from trainyard.k8s.kubeconfig import NoLogin
from trainyard.kubectl.errors import (
    NO_KUBECONFIG,
    NOT_FOUND,
    REFUSED,
    UNAVAILABLE,
    USAGE,
    PluginError,
)
from trainyard.kubectl.names import namespace_name
from trainyard.operator import names as n

JsonObject = dict[str, Any]
MERGE: Final = "application/merge-patch+json"
LABEL_INDEX: Final = n.LABEL_INDEX
_ROOT: Final = f"/apis/{n.API_VERSION}"
# A person waits.
PATIENCE: Final = RetryPolicy(timeout=10.0, initial_delay=0.2, max_delay=2.0)
_EVERYWHERE: Final = "all namespaces"
_ABSENT, _CONFLICT = 404, 409


class Cluster:
    """One API server and one namespace. Every method raises PluginError."""

    def __init__(self, rest: Client, namespace: str, given: Sequence[tuple[str, str | None]] = ()) -> None:
        """`given` are the flags with which a person named them, and their values, if any."""
        self.rest = rest
        self.namespace = namespace
        self._given = given

    @classmethod
    def connect(
        cls,
        kubeconfig: str | None,
        context: str | None,
        namespace: str | None,
        patience: RetryPolicy = PATIENCE,
    ) -> Cluster:
        """With the person's kubeconfig."""
        with _usable(kubeconfig, context):
            rest, default = kubeconfigs.connect(kubeconfig, context, patience)
        given = (("-n", namespace), ("--context", context), ("--kubeconfig", kubeconfig))
        return cls(rest, _checked(namespace or default), given)

    def command(self, words: str, *names: str) -> str:
        """A command of kubectl that a person may paste: for these names in this namespace, or for all that there is."""
        given = self._given if names else [each for each in self._given if each[0] != "-n"]
        flags = [f"{flag} {shlex.quote(value)}" for flag, value in given if value]
        return " ".join(("kubectl", words, *flags, *names))

    def jobs(self, everywhere: bool = False) -> list[JsonObject]:
        """The jobs of the namespace, or of all."""
        return self._list(n.JOB_PLURAL, everywhere)

    def queues(self, everywhere: bool = False) -> list[JsonObject]:
        """The queues of the namespace, or of all."""
        return self._list(n.QUEUE_PLURAL, everywhere)

    def namespaces(self) -> list[str]:
        """Those of the cluster."""
        with self._explained("list namespaces"):
            return self.rest.list_items("/api/v1/namespaces", {}, lambda item: str(item["metadata"]["name"]))

    def job(self, name: str) -> JsonObject:
        """The job of this name."""
        found = self.find_job(name)
        if found is None:
            raise PluginError(
                NOT_FOUND,
                f"job {name}: is not in namespace {self.namespace}; `{self.command('torchrun list -A')}` shows all",
            )
        return found

    def find_job(self, name: str) -> JsonObject | None:
        """The job of this name, if there is one."""
        return self._get(f"{self.path(n.JOB_PLURAL)}/{name}", f"get {n.JOB_PLURAL}")

    def queue(self, name: str) -> JsonObject | None:
        """The queue of this name, if there is one."""
        return self._get(f"{self.path(n.QUEUE_PLURAL)}/{name}", f"get {n.QUEUE_PLURAL}")

    def create(self, job: JsonObject, *, dry_run: bool = False) -> JsonObject | None:
        """Makes the job, None where one of its name exists; with `dry_run` the API server judges it and makes nothing.

        Where an answer is lost, the job that exists may be this very one (trainyard/kubectl/submit.py).
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        with self._explained(f"create {n.JOB_PLURAL}"):
            try:
                return self.rest.request("POST", self.path(n.JOB_PLURAL), query, job)
            except ApiError as error:
                if error.status == _CONFLICT and error.reason == "AlreadyExists":
                    return None
                if error.status == _ABSENT:
                    self._kinds()
                    if error.message == f'namespaces "{self.namespace}" not found':
                        lists = self.command("get namespaces")
                        raise PluginError(
                            USAGE, f"-n: there is no namespace {self.namespace}; `{lists}` shows all"
                        ) from None
                raise

    def change(self, name: str, spec: JsonObject, uid: str) -> JsonObject:
        """Sets these fields of the job's spec; not those of another job that has its name by now."""
        body = {"metadata": {"uid": uid}, "spec": spec}
        with self._explained(f"patch {n.JOB_PLURAL}"):
            path = f"{self.path(n.JOB_PLURAL)}/{name}"
            return self.rest.request("PATCH", path, None, body, content=MERGE)

    def delete(self, name: str, uid: str) -> None:
        """Deletes exactly this job; nothing where it is gone."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        with self._explained(f"delete {n.JOB_PLURAL}"):
            try:
                self.rest.request("DELETE", f"{self.path(n.JOB_PLURAL)}/{name}", None, body)
            except ApiError as error:
                if error.status not in (_ABSENT, _CONFLICT):
                    raise

    def pod(self, name: str) -> JsonObject | None:
        """The pod of this name, if there is one."""
        return self._get(f"/api/v1/namespaces/{self.namespace}/pods/{name}", "get pods")

    def secret(self, name: str) -> JsonObject | None:
        """Return the Secret with this name, None if it does not exist."""
        return self._get(f"/api/v1/namespaces/{self.namespace}/secrets/{name}", "get secrets")

    def workers(self, job: JsonObject) -> list[JsonObject]:
        """The pods of the job's attempts, as far as they are there, and of no other job of its name."""
        query = {"labelSelector": f"{n.LABEL_JOB_UID}={job['metadata']['uid']}"}
        with self._explained("list pods"):
            return self.rest.list_items(f"/api/v1/namespaces/{self.namespace}/pods", query, lambda pod: pod)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """`what` is a verb and a resource, as a role has them."""
        with explained(what, self.namespace):
            yield

    def _get(self, path: str, what: str) -> JsonObject | None:
        with self._explained(what):
            try:
                return self.rest.request("GET", path)
            except ApiError as error:
                if error.status != _ABSENT:
                    raise
                if path.startswith(_ROOT):
                    self._kinds()
                return None

    def _list(self, plural: str, everywhere: bool) -> list[JsonObject]:
        path = f"{_ROOT}/{plural}" if everywhere else self.path(plural)
        where = _EVERYWHERE if everywhere else self.namespace
        with explained(f"list {plural}", where):
            try:
                return self.rest.list_items(path, {}, lambda item: item)
            except ApiError as error:
                if error.status == _ABSENT:
                    self._kinds()
                raise

    def _kinds(self) -> None:
        """Raises PluginError where the cluster does not know of torchrun jobs at all."""
        try:
            self.rest.request("GET", _ROOT)
        except ApiError as error:
            if error.status == _ABSENT:
                raise PluginError(
                    UNAVAILABLE,
                    f"cluster: {n.API_VERSION} is not installed; a stack of Trainyard has it with trainyard:queues in "
                    "its file, any other cluster by the commands of docs/torchrun.md",
                ) from None

    def path(self, plural: str) -> str:
        """Of the list of these in the namespace."""
        return f"{_ROOT}/namespaces/{self.namespace}/{plural}"


def namespace_of(kubeconfig: str | None, context: str | None) -> str:
    """That of the person's context, for which no cluster is asked. Raises PluginError."""
    with _usable(kubeconfig, context):
        found = kubeconfigs.namespace_of(kubeconfig, context)
    return _checked(found)


def contexts_of(kubeconfig: str | None) -> list[str]:
    """The contexts of the person's kubeconfig. Raises PluginError."""
    with _usable(kubeconfig, None):
        return kubeconfigs.contexts_of(kubeconfig)


def _checked(namespace: str) -> str:
    try:
        return namespace_name(namespace)
    except ValueError as error:
        raise PluginError(NO_KUBECONFIG, f"namespace: {error}") from None


@contextmanager
def _usable(kubeconfig: str | None, context: str | None) -> Iterator[None]:
    """What is wrong with a kubeconfig as PluginError."""
    try:
        yield
    except NoLogin as error:
        raise PluginError(NO_KUBECONFIG, str(error)) from None
    except ApiUnavailable as error:
        given = os.environ.get("KUBECONFIG")
        where = f"KUBECONFIG {given}" if given else "~/.kube/config"
        where = f"--kubeconfig {kubeconfig}" if kubeconfig else where
        if context and (others := _without_context(kubeconfig, context)):
            raise PluginError(
                NO_KUBECONFIG, f"--context: {context} is not in {where}; it has {others}"
            ) from None
        where = f"{where}, --context {context}" if context else where
        why = str(error).rstrip(".")
        raise PluginError(
            NO_KUBECONFIG,
            f"{where}: {why}; name one with --kubeconfig or KUBECONFIG, a context with --context",
        ) from None


def _without_context(kubeconfig: str | None, context: str) -> str:
    """The contexts that there are, "" where this one is among them, or nothing can be read."""
    try:
        there = kubeconfigs.contexts_of(kubeconfig)
    except ApiUnavailable:
        return ""
    return nearest(context, there) if context not in there else ""


@contextmanager
def explained(what: str, namespace: str) -> Iterator[None]:
    """Refusals and silence of the API server as PluginError."""
    try:
        yield
    except ApiError as error:
        said = " ".join(error.message.split()) or str(error)
        if error.status == 401:
            raise PluginError(
                REFUSED, f"login: the API server does not know you ({said}); log in again"
            ) from None
        if error.status == 403:
            where = namespace if namespace == _EVERYWHERE else f"namespace {namespace}"
            raise PluginError(REFUSED, f"{where}: you may not {what} there: {said}") from None
        if error.status in (400, 409, 422):
            raise PluginError(USAGE, f"job: the API server refuses it: {said}") from None
        raise PluginError(UNAVAILABLE, f"API server: {error}") from None
    except NoLogin as error:  # the one before has run out
        raise PluginError(NO_KUBECONFIG, str(error)) from None
    except ApiUnavailable as error:
        raise PluginError(UNAVAILABLE, f"API server: no answer: {error}") from None


def shown(item: JsonObject, output: str) -> str:
    """An object, or a List of some, as JSON or YAML, without what the API server keeps of their writers."""
    for each in (item, *item.get("items", ())):
        each.get("metadata", {}).pop("managedFields", None)
    if output == "json":
        return json.dumps(item, indent=2) + "\n"
    import yaml

    return str(yaml.safe_dump(item, sort_keys=False, allow_unicode=True))


SHOWN: Final = 5


def nearest(name: str, there: Sequence[str]) -> str:
    """Those that are most like it first, and how many more there are; `none` of none."""
    named = list(dict.fromkeys([*get_close_matches(name, there, SHOWN), *there]))[:SHOWN]
    more = f" and {len(there) - len(named)} more" if len(there) > len(named) else ""
    return f"{', '.join(named) or 'none'}{more}"


def queues_that_are_there(cluster: Cluster, name: str) -> str:
    """What queues there are, as far as this person may see them: the name may be mistyped, or the namespace."""
    try:
        found = cluster.queues(everywhere=True)
    except PluginError:
        try:
            found = cluster.queues()
        except PluginError:
            return ""
    here = sorted(
        each["metadata"]["name"] for each in found if each["metadata"]["namespace"] == cluster.namespace
    )
    elsewhere = sorted(each["metadata"]["namespace"] for each in found if each["metadata"]["name"] == name)
    there = f", and one of this name in {', '.join(elsewhere[:SHOWN])}" if elsewhere else ""
    return f", which has {nearest(name, here)}{there}"


def unknown_queue(cluster: Cluster, name: str) -> PluginError:
    """Return the error for a queue that does not exist in the namespace, with suggestions."""
    try:
        found = cluster.queues(everywhere=True)
    except PluginError:
        found = []
    if not found:
        with suppress(PluginError):
            found = cluster.queues()
    here = [each["metadata"]["name"] for each in found if each["metadata"]["namespace"] == cluster.namespace]
    elsewhere = sorted(each["metadata"]["namespace"] for each in found if each["metadata"]["name"] == name)
    if elsewhere:
        advice = f"it is in {', '.join(elsewhere[:SHOWN])}: submit with -n {elsewhere[0]}"
    elif near := get_close_matches(name, here, 1):
        advice = f"did you mean {near[0]}?"
    else:
        advice = f"the namespace has {nearest(name, sorted(here))}; `{cluster.command('torchrun queues -A')}` shows all"
    return PluginError(
        USAGE, f"--queue: queue {name} does not exist in namespace {cluster.namespace}; {advice}"
    )
