"""Import the used parts of the package `kubernetes`: requests over TLS, and the credentials of a kubeconfig.

The package imports all of its parts, including pydantic and two OAuth libraries. They take more than half of the CPU
time of `kubectl torchrun list`. Import the used parts from here, so that the others are not imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any


def _skip_init(name: str) -> None:
    """Import a package without its `__init__`, which imports all of its modules."""
    spec = find_spec(name)
    if name not in sys.modules and spec is not None:
        sys.modules[name] = module_from_spec(spec)


@contextmanager
def _placeholders(**attributes: str) -> Iterator[None]:
    """Replace these modules by empty ones during an import, each with one attribute that is None."""
    missing = {name.replace("__", "."): each for name, each in attributes.items()}
    missing = {name: each for name, each in missing.items() if name not in sys.modules}
    for name, each in missing.items():
        sys.modules[name] = ModuleType(name)
        setattr(sys.modules[name], each, None)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


_skip_init("kubernetes")

from kubernetes import client  # noqa: E402
from kubernetes.client.exceptions import ApiException as ApiException  # noqa: E402
from kubernetes.client.rest import RESTClientObject as RESTClientObject  # noqa: E402

# kube_config imports it for the renewal of OIDC tokens.
client.ApiClient = None
with _placeholders(oauthlib="oauth2", oauthlib__oauth2="rfc6749", requests_oauthlib="OAuth2Session"):
    from kubernetes import config as config
    from kubernetes.config import incluster_config as incluster_config
    from kubernetes.config import kube_config as kube_config
del client.ApiClient
from kubernetes.config.dateutil import parse_rfc3339 as parse_rfc3339  # noqa: E402
from kubernetes.config.exec_provider import ExecProvider as ExecProvider  # noqa: E402

Configuration: Any = client.Configuration


class KubeConfigLoader(kube_config.KubeConfigLoader):  # type: ignore[misc]
    """The package's loader. It imports the OAuth libraries only to renew an OIDC token."""

    def _refresh_oidc(self, provider: Any) -> None:
        import oauthlib.oauth2  # type: ignore[import-untyped]
        import requests_oauthlib  # type: ignore[import-untyped]

        kube_config.oauthlib, kube_config.OAuth2Session = oauthlib, requests_oauthlib.OAuth2Session
        kube_config.ApiClient = client.ApiClient
        super()._refresh_oidc(provider)
