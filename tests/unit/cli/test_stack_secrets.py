"""A stack file that `pulumi stack init` has salted for AWS is deployed by the local engine with its own salt."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.home import Home
from trainyard.cli.engine import Engine
from trainyard.cli.stack_file import write
from trainyard.cli.stack_secrets import is_of

pytestmark = pytest.mark.unit

# github.com/pulumi/pulumi/pkg/v3@v3.250.0, secrets/passphrase/manager_test.go: what the engine makes of "password".
PASSWORD = "password"
SALTED = "v1:fozI5u6B030=:v1:F+6ZduKKd8G0/V7L:PGMFeIzwobWRKmEAzUdaQHqC5mMRIQ=="
START = base64.b64decode(SALTED.split(":")[1])
PBKDF2 = hashlib.pbkdf2_hmac
CONFIG = {"config": {"aws:region": "us-west-2"}}
KMS = {"secretsprovider": "awskms://alias/k?region=us-west-2", "encryptedkey": "QUJD"}


@functools.cache
def own_key(*arguments: Any) -> bytes:
    return PBKDF2(*arguments)


@pytest.fixture(autouse=True)
def derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of this passphrase and salt is derived once, as it takes a third of a second; others in one round."""

    def derive(name: str, passphrase: bytes, salt: bytes, iterations: int) -> bytes:
        own = (passphrase, salt) == (PASSWORD.encode(), START)
        return own_key(name, passphrase, salt, iterations) if own else PBKDF2(name, passphrase, salt, 1)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", derive)


def test_a_salt_is_known_by_its_passphrase() -> None:
    assert is_of(PASSWORD, SALTED)
    assert not is_of("another", SALTED)


@pytest.mark.parametrize(
    "salt",
    [
        None,
        "",
        "v1:abc",
        "v1:a:b:c:d",
        SALTED[:-6] + "AAAA==",
        SALTED.replace("v1:F", "v2:F"),
        "v2" + SALTED[2:],
    ],
)
@pytest.mark.long
def test_what_is_no_salt_is_nobodys(salt: object) -> None:
    assert not is_of(PASSWORD, salt)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """An engine of a home whose passphrase is `password`, with an (empty) state."""
    home = tmp_path / "home"
    Home(home).claim()
    (home / "stacks").mkdir()
    (home / "stacks" / "passphrase").write_text(f"{PASSWORD}\n")
    made = Engine(home, "mine", {})
    made.state_file.parent.mkdir(parents=True)
    made.state_file.write_text('{"checkpoint": {}}')
    return made


@pytest.mark.parametrize("keys", [{"encryptionsalt": "v1:theirs"}, KMS], ids=("passphrase", "kms"))
def test_a_copy_that_an_earlier_program_spoiled_is_mended(keys: dict[str, str], engine: Engine) -> None:
    engine.config_file.write_text(yaml.safe_dump({**keys, **CONFIG}))
    engine.initialise()
    assert yaml.safe_load(engine.config_file.read_text()) == CONFIG
    write({**keys, **CONFIG}, engine.config_file)
    assert yaml.safe_load(engine.config_file.read_text()) == CONFIG


def test_the_engines_own_salt_stays(engine: Engine) -> None:
    engine.config_file.write_text(yaml.safe_dump({"encryptionsalt": SALTED, **KMS, **CONFIG}))
    engine.initialise()
    assert yaml.safe_load(engine.config_file.read_text()) == {"encryptionsalt": SALTED, **CONFIG}
    write({"encryptionsalt": "v1:theirs", **CONFIG}, engine.config_file)
    assert yaml.safe_load(engine.config_file.read_text()) == {"encryptionsalt": SALTED, **CONFIG}


def test_a_copy_is_mended_before_the_stack_is_made_from_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.state_file.unlink()
    engine.config_file.write_text(yaml.safe_dump({**KMS, **CONFIG}))
    seen: list[object] = []
    monkeypatch.setattr(
        engine,
        "_capture",
        lambda *_words, directory: seen.append(yaml.safe_load(engine.config_file.read_text())),
    )
    engine.initialise()
    assert seen == [CONFIG]
