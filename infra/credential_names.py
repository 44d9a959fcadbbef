"""Recognize names of environment variables that hold credentials.

trainyard/kubectl/manifest.py has the same patterns.
"""

from __future__ import annotations

import re
from typing import Final

_CREDENTIAL: Final = re.compile(
    r"(^|_)(SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|PAT|CREDENTIALS?|(ACCESS|PRIVATE|API|SECRET)_?KEY)(_|$)|PASSWORD$",
    re.IGNORECASE,
)
# Such a variable contains the location of a credential, not the credential.
_PLACE: Final = re.compile(r"_(FILE|PATH|DIR|URI|URL)$", re.IGNORECASE)


def is_credential_name(variable: str) -> bool:
    """Return whether a variable of this name holds a credential."""
    return bool(_CREDENTIAL.search(variable)) and not _PLACE.search(variable)
