"""The Pulumi backend in the state directory, as Pulumi's environment variables. `variables` is the entry point."""

from __future__ import annotations

from pathlib import Path

from local.home import CHECKOUT

STACKS = "stacks"
# The local cloud's plugins, `pulumi-resource-<name>`. The engine looks for them on PATH.
PLUGINS = CHECKOUT / "local" / "plugins" / "bin"


def passphrase_file(directory: Path) -> Path:
    """Return the file of the passphrase that encrypts the secrets in the states of a directory."""
    return directory / "passphrase"


def engine_logs(home: Path) -> Path:
    """Return the directory of the Pulumi engine's own logs."""
    return home / "pulumi-home" / "logs"


def variables(home: Path, state: str = STACKS) -> dict[str, str]:
    """Return the variables with which `pulumi` finds the stacks in the directory `state` of a home."""
    directory = home / state
    return {
        # Without `metadata=skip` each file gets a second one with its attributes, which is written in place.
        # If the engine is killed, that file stays empty, and no engine can read the state.
        "PULUMI_BACKEND_URL": f"file://{directory / 'state'}?metadata=skip",
        "PULUMI_HOME": str(home / "pulumi-home"),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase_file(directory)),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }
