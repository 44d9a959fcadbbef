"""Where the local engine keeps the stacks of one home, as Pulumi's own variables."""

from __future__ import annotations

from pathlib import Path

from local.home import CHECKOUT

STACKS = "stacks"
# The local cloud's plugins, `pulumi-resource-<name>`. The engine searches them on PATH.
PLUGINS = CHECKOUT / "local" / "plugins" / "bin"


def passphrase_file(directory: Path) -> Path:
    """What the secrets in the states of a folder are encrypted with."""
    return directory / "passphrase"


def engine_logs(home: Path) -> Path:
    """Where the engine keeps logs of its own, unless it can't."""
    return home / "pulumi-home" / "logs"


def variables(home: Path, state: str = STACKS) -> dict[str, str]:
    """Variables with which `pulumi` finds the stacks in the folder `state` of a home."""
    directory = home / state
    return {
        # Otherwise each file has another beside it with its attributes, which is written in place: of a killed
        # engine it stays empty, and no engine reads the state any more.
        "PULUMI_BACKEND_URL": f"file://{directory / 'state'}?metadata=skip",
        "PULUMI_HOME": str(home / "pulumi-home"),
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase_file(directory)),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }
