"""Find the API server, the credentials and the namespace. Entry point: `connect`.

https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/
"""

from __future__ import annotations

import os
import ssl
from base64 import b64decode
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
    """The user of a kubeconfig has no usable token, or its credential plugin, such as `aws eks get-token`, failed."""


def connect(file: str | None, context: str | None, retry: RetryPolicy) -> tuple[Client, str]:
    """Connect as `kubectl` does: with this file, else the files of KUBECONFIG, else ~/.kube/config.

    A pod without any of them uses its service account and namespace.

    Returns:
        The client and the namespace of the context.

    Raises:
        NoLogin: The credential plugin failed, or the token is not usable.
        ApiUnavailable: There is no file or no such context, or it is not valid.
    """
    settings = Configuration()
    with _understood():
        if _is_in_pod(file, context):
            config.load_incluster_config(client_configuration=settings)
            namespace = _namespace_of_pod()
        else:
            loader = _loader(file, context)
            namespace = _namespace(loader)
            _check_server(loader)
            _check_user(loader)
            _check_base64(loader)
            loader.load_and_set(settings)
            _check_certificates(loader, settings)
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

    token: str

    def _load_authentication(self) -> None:
        """Remove white space around the token, as client-go does, and refuse what no HTTP header can have."""
        super()._load_authentication()
        if "token" not in self.__dict__:
            return
        scheme, _, token = self.token.partition(" ")
        token = token.strip()
        invalid = [each for each in token if not (each.isascii() and each.isprintable())]
        if invalid or not token:
            problem = f"has the character {invalid[0]!a}" if invalid else "is empty"
            raise NoLogin(f"{_places(self)[1]}: its token {problem}; it must be one line of ASCII characters")
        self.token = f"{scheme} {token}"

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
        except (TypeError, AttributeError, LookupError):  # at a terminal, the plugin printed its own error
            raise self._failed(wanted, "see its own message") from None
        return True

    def _failed(self, wanted: Any, why: object) -> NoLogin:
        program = " ".join(map(str, (wanted.value.get("command"), *(wanted.value.get("args") or ())[:2])))
        said = " ".join(str(why).removeprefix("exec: ").split()).rstrip(".")
        hint = " ".join(str(wanted.value.get("installHint") or "log in again").split())
        return NoLogin(f"{_places(self)[1]}: {program} failed: {said}; {hint}")


# The package's messages name a value of a wrong type. Without this, they show the object of the package.
kube_config.ConfigNode.__repr__ = lambda node: repr(node.value)


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


def _places(loader: Any) -> tuple[str, str]:
    """Return the cluster and the user of the context, for messages."""
    context = loader.current_context["context"]
    return f"cluster {context.get('cluster')}", f"user {context.get('user')}"


def _check_server(loader: Any) -> None:
    server = str(loader._cluster.safe_get("server"))
    try:
        address = urlsplit(server)
        port, host = address.port, address.hostname or ""
        host.encode("idna")  # as a connection does; an empty part is an error
    except ValueError:  # an invalid port or host
        port = 0
    if port == 0 or address.scheme not in ("http", "https") or not host or not server.isprintable():
        raise ApiUnavailable(f"server: {server[:_SHOWN]!r} should be an address such as https://host:6443")


def _check_user(loader: Any) -> None:
    """Refuse a user that does not exist, and impersonation.

    Without a user, the package would connect without a login. It ignores impersonation, and would use all permissions
    of the user.
    """
    if loader._user is None:
        if loader.current_context["context"].get("user"):
            raise ApiUnavailable(f"{_places(loader)[1]}: is not in users")
        return
    for each in ("as", "as-uid", "as-groups", "as-user-extra"):
        if loader._user.safe_get(each):
            why = f"{each} is not supported; use a user with permissions of its own"
            raise ApiUnavailable(f"{_places(loader)[1]}: {why}")


def _check_base64(loader: Any) -> None:
    """Refuse invalid base64. The package skips invalid characters, and does not name the field in its errors."""
    for place, node in zip(_places(loader), (loader._cluster, loader._user), strict=True):
        for field in ("certificate-authority-data", "client-certificate-data", "client-key-data"):
            data = node.safe_get(field) if node is not None else ""
            try:
                b64decode("".join(str(data or "").split()), validate=True)
            except ValueError:
                raise ApiUnavailable(f"{place}: {field} must be base64") from None


def _check_certificates(loader: Any, settings: Any) -> None:
    """Load the certificates once. A request would report an invalid one as a failed connection."""
    if not settings.host.startswith("https"):
        return
    trial = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    cluster, user = _places(loader)
    if settings.ssl_ca_cert:
        with _named(f"{cluster}: certificate-authority must be PEM certificates"):
            trial.load_verify_locations(settings.ssl_ca_cert)
    if settings.cert_file:
        try:
            # The empty password prevents a question at the terminal.
            trial.load_cert_chain(settings.cert_file, settings.key_file, password="")
        except OSError:
            with _named(f"{user}: client-certificate must be a PEM certificate"):
                trial.load_verify_locations(settings.cert_file)
            with _named(f"{user}: client-key must be the PEM key of client-certificate, without a password"):
                raise


@contextmanager
def _named(problem: str) -> Iterator[None]:
    """Convert errors of a certificate file to ApiUnavailable with this message."""
    try:
        yield
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror  # an SSLError's own reason, if it has one
        raise ApiUnavailable(f"{problem} ({why})") from None


def _namespace(loader: Any) -> str:
    return str(loader.current_context["context"].get("namespace") or "default")


@contextmanager
def _understood() -> Iterator[None]:
    """Convert the package's errors for an invalid file to ApiUnavailable."""
    try:
        yield
    except (config.ConfigException, OSError, ValueError, YAMLError) as error:
        raise ApiUnavailable(" ".join(str(error).split())) from None
    except (TypeError, AttributeError, LookupError):  # the package does not check types
        raise ApiUnavailable("should be a kubeconfig: clusters, users and contexts") from None
