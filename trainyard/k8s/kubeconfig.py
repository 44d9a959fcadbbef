"""A person's kubeconfig: which API server, as whom, and in which namespace.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kubernetes import client, config
from kubernetes.config import incluster_config, kube_config
from kubernetes.config.dateutil import parse_rfc3339
from kubernetes.config.exec_provider import ExecProvider
from yaml import YAMLError

from trainyard.k8s.client import ApiUnavailable, Client, RetryPolicy, api_client

_HOME: Final = "~/.kube/config"
_CURRENT: Final = "current-context"
_SHOWN: Final = 60


class NoLogin(ApiUnavailable):
    """The program that a kubeconfig names to log in, such as `aws eks get-token`, gave nothing to log in with."""


def connect(file: str | None, context: str | None, retry: RetryPolicy) -> tuple[Client, str]:
    """As `kubectl` connects: this file, else those of KUBECONFIG, else ~/.kube/config; and the context's namespace.

    Without any of them, in a pod such as a notebook's, by its service account and in its namespace. Raises
    ApiUnavailable where there is no file, no such context, or nothing usable in it; NoLogin.
    """
    settings = client.Configuration()
    if _is_in_pod(file, context):
        with _understood():
            config.load_incluster_config(client_configuration=settings)
        return Client(api_client(settings), retry), _namespace_of_pod()
    with _understood():
        loader = _loader(file, context)
        namespace = _namespace(loader)
        _check_server(loader)
        _check_user(loader)
        loader.load_and_set(settings)
    return Client(api_client(settings), retry), namespace


def connect_in_pod_or_outside() -> Client:
    """With the pod's service account, or outside of a pod as `kubectl` connects.

    Raises ApiUnavailable where there is neither.
    """
    settings = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        try:
            return connect(None, None, RetryPolicy())[0]
        except ApiUnavailable as error:
            raise ApiUnavailable(f"neither a service account nor a usable kubeconfig: {error}") from None
    return Client(api_client(settings))


def namespace_of(file: str | None, context: str | None) -> str:
    """The context's namespace: nobody is asked and no program is run. Raises ApiUnavailable as `connect` does."""
    if _is_in_pod(file, context):
        return _namespace_of_pod()
    with _understood():
        return _namespace(_loader(file, context))


def contexts_of(file: str | None) -> list[str]:
    """The names of its contexts. Raises ApiUnavailable as `connect` does."""
    with _understood():
        return [str(each["name"]) for each in _merged(file).config["contexts"].value]


def _is_in_pod(file: str | None, context: str | None) -> bool:
    """Whether there is no kubeconfig, and a service account instead."""
    if file or context or os.environ.get("KUBECONFIG") or os.path.exists(os.path.expanduser(_HOME)):
        return False
    account = Path(incluster_config.SERVICE_TOKEN_FILENAME)
    return incluster_config.SERVICE_HOST_ENV_NAME in os.environ and account.exists()


def _namespace_of_pod() -> str:
    """https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/"""
    try:
        return Path(incluster_config.SERVICE_TOKEN_FILENAME).with_name("namespace").read_text().strip()
    except OSError:
        return "default"


class _Loader(kube_config.KubeConfigLoader):  # type: ignore[misc]
    """The package's, whose own way with a program that fails is to log it and to go on without a login."""

    def _load_from_exec_plugin(self) -> bool | None:
        if "exec" not in self._user:
            return None
        wanted, place = self._user["exec"], self._get_base_path(self._cluster.path)
        try:
            given = ExecProvider(wanted, place, self._cluster).run()
            if given.get("token"):
                self.token = f"Bearer {given['token']}"
            else:
                self.cert_file, self.key_file = (
                    kube_config.FileOrData(
                        given, None, data_key_name=name, base64_file_content=False
                    ).as_file()
                    for name in ("clientCertificateData", "clientKeyData")
                )
                if not (self.cert_file and self.key_file):
                    raise config.ConfigException("it gave neither a token nor a certificate with its key")
            if given.get("expirationTimestamp"):
                self.expiry = parse_rfc3339(given["expirationTimestamp"])
        except (config.ConfigException, OSError, ValueError) as error:
            raise self._failed(wanted, error.strerror if isinstance(error, OSError) else error) from None
        except (
            TypeError,
            AttributeError,
            LookupError,
        ):  # at a terminal, where it has said itself what is wrong
            raise self._failed(wanted, "see what it says") from None
        return True

    def _failed(self, wanted: Any, why: object) -> NoLogin:
        program = " ".join(map(str, (wanted.value.get("command"), *(wanted.value.get("args") or ())[:2])))
        said = " ".join(str(why).removeprefix("exec: ").split()).rstrip(".")
        hint = " ".join(str(wanted.value.get("installHint") or "log in again").split())
        return NoLogin(
            f"user {self.current_context['context'].get('user')}: {program} failed: {said}; {hint}"
        )


class _Merger(kube_config.KubeConfigMerger):  # type: ignore[misc]
    """The package's, whose own current context is that of the last file, and to which an empty file is an error.

    kubectl's is that of the first file that has one (k8s.io/client-go, tools/clientcmd/loader.go).
    """

    def load_config(self, path: str) -> None:
        first = self.config.safe_get(_CURRENT) if self.config is not None else None
        try:
            super().load_config(path)
        except config.ConfigException:  # only that the file is empty
            self.config_files[path] = {}
            return
        if first:
            self.config.value[_CURRENT] = first


def _merged(file: str | None) -> Any:
    found = _Merger(file or _usual())
    if found.config is None:
        raise ApiUnavailable("the file is empty" if found.paths else "no such file")
    return found


def _usual() -> str:
    given = os.environ.get("KUBECONFIG")
    if not given:
        return os.path.expanduser(_HOME)
    # In a variable, '~' is a name like any other to kubectl.
    return os.pathsep.join(os.path.abspath(each) for each in given.split(os.pathsep) if each)


def _loader(file: str | None, context: str | None) -> Any:
    found = _merged(file)
    if not (context or found.config.safe_get(_CURRENT)):  # such as that of a local cloud which is down
        raise ApiUnavailable("has no current context; is its cluster up?")
    return _Loader(found.config, context, config_persister=found.save_changes, config_base_path=None)


def _check_server(loader: Any) -> None:
    server = loader._cluster.safe_get("server")
    try:
        address = urlsplit(str(server))
        port = address.port
    except ValueError:  # a port that is none
        port = 0
    if port == 0 or address.scheme not in ("http", "https") or not address.hostname:
        raise ApiUnavailable(
            f"server: {str(server)[:_SHOWN]!r} should be an address such as https://host:6443"
        )


def _check_user(loader: Any) -> None:
    """The package leaves out whom a user acts as, and would go on with all rights of the user's own."""
    for each in ("as", "as-uid", "as-groups", "as-user-extra"):
        if loader._user is not None and loader._user.safe_get(each):
            name = loader.current_context["context"].get("user")
            raise ApiUnavailable(
                f"user {name}: {each} is not supported; use a user with permissions of its own"
            )


def _namespace(loader: Any) -> str:
    return str(loader.current_context["context"].get("namespace") or "default")


@contextmanager
def _understood() -> Iterator[None]:
    """What the package raises for a file that is none as ApiUnavailable."""
    try:
        yield
    except (config.ConfigException, OSError, ValueError, YAMLError) as error:
        raise ApiUnavailable(" ".join(str(error).split())) from None
    except (
        TypeError,
        AttributeError,
        LookupError,
    ):  # the client looks at what it has, and not at what that is
        raise ApiUnavailable("should be a kubeconfig: clusters, users and contexts") from None
