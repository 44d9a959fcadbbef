"""Find the API server, the credentials and the namespace. Entry point: `connect`.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from yaml import YAMLError

from trainyard.k8s.client import ApiUnavailable, Client, RetryPolicy, api_client
from trainyard.k8s.package import (
    Configuration,
    ExecProvider,
    KubeConfigLoader,
    config,
    incluster_config,
    kube_config,
    parse_rfc3339,
)

_HOME: Final = "~/.kube/config"
_CURRENT: Final = "current-context"
_SHOWN: Final = 60


class NoLogin(ApiUnavailable):
    """The credential plugin of a kubeconfig, such as `aws eks get-token`, returned no credentials."""


def connect(file: str | None, context: str | None, retry: RetryPolicy) -> tuple[Client, str]:
    """Connect as `kubectl` does: with this file, else the files of KUBECONFIG, else ~/.kube/config.

    A pod without any of them uses its service account and namespace.

    Returns:
        The client and the namespace of the context.

    Raises:
        NoLogin: The credential plugin failed.
        ApiUnavailable: There is no file or no such context, or it is not valid.
    """
    settings = Configuration()
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
    """Connect with the pod's service account, or outside of a pod as `kubectl` does.

    Raises ApiUnavailable if there is neither.
    """
    settings = Configuration()
    try:
        config.load_incluster_config(client_configuration=settings)
    except config.ConfigException:
        try:
            return connect(None, None, RetryPolicy())[0]
        except ApiUnavailable as error:
            raise ApiUnavailable(f"neither a service account nor a usable kubeconfig: {error}") from None
    return Client(api_client(settings))


def namespace_of(file: str | None, context: str | None) -> str:
    """Return the context's namespace, without a request and without a credential plugin. Raises as `connect` does."""
    if _is_in_pod(file, context):
        return _namespace_of_pod()
    with _understood():
        return _namespace(_loader(file, context))


def contexts_of(file: str | None) -> list[str]:
    """Return the names of the contexts. Raises ApiUnavailable as `connect` does."""
    with _understood():
        return [str(each["name"]) for each in _merged(file).config["contexts"].value]


def _is_in_pod(file: str | None, context: str | None) -> bool:
    """Return whether there is no kubeconfig but a service account."""
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


class _Loader(KubeConfigLoader):
    """The package's loader, but a failed credential plugin is an error. The package only logs it."""

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
        ):  # at a terminal, the plugin printed its own error
            raise self._failed(wanted, "see its own message") from None
        return True

    def _failed(self, wanted: Any, why: object) -> NoLogin:
        program = " ".join(map(str, (wanted.value.get("command"), *(wanted.value.get("args") or ())[:2])))
        said = " ".join(str(why).removeprefix("exec: ").split()).rstrip(".")
        hint = " ".join(str(wanted.value.get("installHint") or "log in again").split())
        return NoLogin(
            f"user {self.current_context['context'].get('user')}: {program} failed: {said}; {hint}"
        )


class _Merger(kube_config.KubeConfigMerger):  # type: ignore[misc]
    """The package's merger, but it allows empty files and uses the current context of the first file.

    kubectl does the same (k8s.io/client-go, tools/clientcmd/loader.go). The package uses that of the last file.
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
    # kubectl does not expand '~' in the variable.
    return os.pathsep.join(os.path.abspath(each) for each in given.split(os.pathsep) if each)


def _loader(file: str | None, context: str | None) -> Any:
    found = _merged(file)
    if not (context or found.config.safe_get(_CURRENT)):  # for instance of a stopped local cloud
        raise ApiUnavailable("has no current context; is its cluster up?")
    return _Loader(found.config, context, config_persister=found.save_changes, config_base_path=None)


def _check_server(loader: Any) -> None:
    server = loader._cluster.safe_get("server")
    try:
        address = urlsplit(str(server))
        port = address.port
    except ValueError:  # an invalid port
        port = 0
    if port == 0 or address.scheme not in ("http", "https") or not address.hostname:
        raise ApiUnavailable(
            f"server: {str(server)[:_SHOWN]!r} should be an address such as https://host:6443"
        )


def _check_user(loader: Any) -> None:
    """Refuse impersonation. The package ignores it and would use all permissions of the user."""
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
    """Convert the package's errors for an invalid file to ApiUnavailable."""
    try:
        yield
    except (config.ConfigException, OSError, ValueError, YAMLError) as error:
        raise ApiUnavailable(" ".join(str(error).split())) from None
    except (
        TypeError,
        AttributeError,
        LookupError,
    ):  # the package does not check types
        raise ApiUnavailable("should be a kubeconfig: clusters, users and contexts") from None
