"""Names as a person gives them, before they become part of an address. Pure.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import re
from typing import Final

from trainyard.operator import names as n

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAMESPACE: Final = re.compile(_LABEL)
_MOST: Final = 253
_MOST_IN_LABEL: Final = 63
_SHOWN: Final = 60
# What `kubectl get -o name` prints, and what kubectl takes for it.
_KINDS: Final = frozenset(
    f"{kind}{group}" for kind in (n.JOB_SINGULAR, n.JOB_PLURAL, n.JOB_SHORT) for group in ("", f".{n.GROUP}")
)


def object_name(word: str) -> str:
    """The name of a job or a queue (RFC 1123's subdomain). Raises ValueError."""
    if len(word) > _MOST or not _SUBDOMAIN.fullmatch(word):
        raise ValueError(
            f"{_shown(word)} should be a name: a-z, 0-9, - and ., with a letter or digit at both ends, at most {_MOST}"
        )
    return word


def job_name(word: str) -> str:
    """The name of a job, which `torchrunjob/` may stand before. Raises ValueError."""
    kind, slash, name = word.partition("/")
    return object_name(name if slash and kind in _KINDS else word)


def namespace_name(word: str) -> str:
    """The name of a namespace (RFC 1123's label). Raises ValueError."""
    if len(word) > _MOST_IN_LABEL or not _NAMESPACE.fullmatch(word):
        raise ValueError(
            f"{_shown(word)} should be a namespace: a-z, 0-9 and -, with a letter or digit at both ends, at most "
            f"{_MOST_IN_LABEL}"
        )
    return word


def sendable(word: str) -> str:
    """What can be sent: words of a command line, and names of files, may be any bytes. Raises ValueError."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{_shown(word)} should be UTF-8") from None
    return word


def _shown(word: str) -> str:
    return repr(word) if len(word) <= _SHOWN else f"{word[:_SHOWN]!r}..."
