"""Names of environment variables that hold credentials; the plugin of kubectl has the same words."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|PAT|CREDENTIALS?|(ACCESS|PRIVATE|API|SECRET)_?KEY)(_|$)|PASSWORD$",
    re.IGNORECASE,
)
# Where a credential is, and not what it is.
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR|URI|URL)$", re.IGNORECASE)


def names_a_secret(variable: str) -> bool:
    """Return whether a variable of this name holds what nobody else should read."""
    return bool(_WORDS.search(variable)) and not _PLACE.search(variable)
