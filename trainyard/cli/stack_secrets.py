"""Keep only this home's own salt in the engine's copy of a stack file.

`pulumi stack init` against AWS writes `encryptionsalt`, or `secretsprovider` and `encryptedkey`, into the file of the
checkout. They belong to another state or key, which the local engine does not have. The engine adds a salt to its
copy if there is none, and reads its state with the salt of the state (github.com/pulumi/pulumi/pkg/v3@v3.250.0,
cmd/pulumi/stack/secrets.go, GetSecretsManager).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from trainyard.stack_files import SALT, SECRETS_KEYS

ITERATIONS = 1_000_000


def without_keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a stack file without the keys of its secrets."""
    return {key: value for key, value in document.items() if key not in SECRETS_KEYS}


def is_of(passphrase: str, salt: object) -> bool:
    """Return whether an `encryptionsalt` was made with the passphrase.

    Format and cipher are those of github.com/pulumi/pulumi/pkg/v3@v3.250.0, secrets/passphrase/manager.go: the word
    `pulumi` in AES-256-GCM with a key of PBKDF2-SHA256.
    """
    try:
        version, start, inner, nonce, encrypted = str(salt).split(":")
        key = hashlib.pbkdf2_hmac("sha256", passphrase.encode(), _bytes(start), ITERATIONS)
        word = AESGCM(key).decrypt(_bytes(nonce), _bytes(encrypted), None)
    except (ValueError, InvalidTag):
        return False
    return (version, inner, word) == ("v1", "v1", b"pulumi")


def discard_foreign(copy: Path, passphrase: str) -> None:
    """Remove foreign keys from the engine's copy of a stack file.

    Raises:
        OSError: The copy can't be read or written.
    """
    document = yaml.safe_load(copy.read_text()) if copy.is_file() else None
    if not isinstance(document, dict) or not any(key in document for key in SECRETS_KEYS):
        return
    kept = without_keys(document)
    if is_of(passphrase, document.get(SALT)):
        kept[SALT] = document[SALT]
    if kept != document:
        replace(copy, kept)


def replace(target: Path, document: Mapping[str, Any]) -> None:
    """Write the content of a stack file in one step.

    Raises:
        OSError: It can't be written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(yaml.safe_dump(dict(document), sort_keys=False))
    temporary.replace(target)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
