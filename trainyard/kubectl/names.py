"""Check names that a user gives, before they become part of a URL. Pure.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import re
from typing import Final

from trainyard.operator import names as n

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE: Final = re.compile(_LABEL)
_MAX_SUBDOMAIN, _MAX_LABEL = 253, 63
_SHOWN: Final = 60
# Prefixes as `kubectl get -o name` prints them.
_KINDS: Final = frozenset(
    f"{kind}{group}" for kind in (n.JOB_SINGULAR, n.JOB_PLURAL, n.JOB_SHORT) for group in ("", f".{n.GROUP}")
)


def object_name(word: str) -> str:
    """Return a valid name of a job or queue (subdomain of RFC 1123). Raise ValueError."""
    if len(word) > _MAX_SUBDOMAIN or not _SUBDOMAIN.fullmatch(word):
        rule = f"a-z, 0-9, - and ., with a letter or digit at both ends, at most {_MAX_SUBDOMAIN} characters"
        raise ValueError(f"{_shorten(word)} must be a name: {rule}")
    return word


def job_name(word: str) -> str:
    """Return a valid name of a job, without a prefix such as `torchrunjob/`. Raise ValueError."""
    kind, slash, name = word.partition("/")
    return object_name(name if slash and kind in _KINDS else word)


def namespace_name(word: str) -> str:
    """Return a valid name of a namespace (label of RFC 1123). Raise ValueError."""
    if len(word) > _MAX_LABEL or not _NAMESPACE.fullmatch(word):
        rule = f"a-z, 0-9 and -, with a letter or digit at both ends, at most {_MAX_LABEL} characters"
        raise ValueError(f"{_shorten(word)} must be a namespace: {rule}")
    return word


def utf8(word: str) -> str:
    """Return the word if it is UTF-8: arguments and file names may have any bytes. Raise ValueError."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shorten(word)} must be UTF-8") from None
    return word


def _shorten(word: str) -> str:
    return repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}..."
