"""The state directory of the local cloud: `.local/` of the checkout or `$TRAINYARD_HOME`. `Home` has all paths."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
# This path always belongs to the local cloud, whatever it contains.
OWN = CHECKOUT / ".local"

# The scripts that start `trainyard` set it. make sets the other for its recipes, which run `trainyard` too.
STARTED, BY_MAKE = "TRAINYARD_STARTED", "MAKELEVEL"

# sockaddr_un.sun_path holds 108 bytes with the final zero (unix(7)).
SOCKET_PATH_BYTES = 107


def user_program() -> str:
    """Return the program whose commands the user types, `make` or `trainyard`, for messages."""
    return "make" if BY_MAKE in os.environ or STARTED not in os.environ else "trainyard"


class Home:
    """Paths of one local cloud. The constructor creates nothing; `make()` creates the directories.

    `root` is the directory in the argument, otherwise `$TRAINYARD_HOME`, otherwise `.local` of the checkout.
    """

    def __init__(self, root: Path | str | None = None, environment: Mapping[str, str] = os.environ) -> None:
        chosen = root or environment.get("TRAINYARD_HOME") or OWN
        self.root = root = expand("TRAINYARD_HOME", chosen)
        # Marks a directory of a local cloud (see `claim`), which `reset` may delete.
        self.marker = root / ".trainyard"
        # Files that exist only while the cloud runs. Only the owner can read them.
        self.run = root / "run"
        # The record of a supervisor from its start: process id and start time.
        self.supervisor_file = self.run / "supervisor.json"
        # The record of a cloud that is ready: process id, endpoint, region, account and the deployer's key (mode 0600).
        self.cloud_file = self.run / "cloud.json"
        # The deployer's access key, which the AWS emulator writes for the supervisor at its start (mode 0600).
        self.aws_file = self.run / "aws.json"
        # The unix socket of the supervisor's HTTP API.
        self.control_socket = self.run / "control.sock"
        if len(os.fsencode(self.control_socket)) > SOCKET_PATH_BYTES:
            digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
            private = Path(tempfile.gettempdir()) / f"trainyard-{os.getuid()}-{digest}"
            self.control_socket = private / "control.sock"
        # Delays of the simulated nodes in seconds, from the options of `python -m local up`.
        self.settings_file = root / "settings.json"
        # The administrator's kubeconfig: one context per cluster.
        self.kubeconfig = root / "kubeconfig"
        # The discovery cache of kubectl and Helm (`KUBECACHEDIR`), per API server. These get other ports at each start.
        self.kube_cache = root / "kube-cache"
        # The tools of the local cloud, first on PATH of all its processes: links, and a script for kubectl.
        self.bin = root / "bin"
        # One file per process: `supervisor.log`, `aws.log`, `<cluster>-<process>.log`.
        self.logs = root / "logs"
        # The actions that each role of the emulated account was granted and used.
        self.role_calls_file = self.logs / "role-calls.json"
        # One directory per cluster: its certificates, etcd's data, `cluster.json`, `admin.kubeconfig`.
        self.clusters = root / "clusters"
        # Files of running pods.
        self.pods = root / "pods"
        # Persistent volumes, one directory each.
        self.volumes = root / "volumes"
        # The build context of each image reference (see the docker-build plugin).
        self.images_file = root / "images.json"

    def __repr__(self) -> str:
        return f"Home({str(self.root)!r})"

    def cluster(self, name: str) -> Path:
        """Return the directory of one cluster."""
        return self.clusters / name

    def claim(self) -> None:
        """Create the directory if it is new, and mark it as a local cloud's, before anything else is written.

        Raises:
            OSError: The directory has files but no mark, so `reset` would delete the user's files; or it can't be
                written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        # In this order, because a concurrent process marks the directory before it writes anything else.
        used = any(self.root.iterdir())
        if used and not self.marker.exists() and self.root != OWN:
            raise OSError(
                errno.EEXIST,
                "TRAINYARD_HOME must name a new or empty directory, or a local cloud's; other files are in this one",
                str(self.root),
            )
        self.marker.touch()

    def make(self) -> None:
        """Create the directories that every process expects.

        Directories with keys, tokens, Secrets and program output are readable by their owner only. The root is not,
        because it may be a directory that others use too.

        Raises:
            OSError: The disk is full, or the directory has other files (see `claim`).
        """
        self.claim()
        self.bin.mkdir(exist_ok=True)
        socket_directory = self.control_socket.parent
        # STACKS of local/backend.py, and the directory for the settings of a preflight.
        states = (self.root / "stacks", self.root / "checks")
        for private in (
            self.run,
            socket_directory,
            self.logs,
            self.clusters,
            self.pods,
            self.volumes,
            *states,
        ):
            private.mkdir(parents=True, exist_ok=True, mode=0o700)
            private.chmod(0o700)

    def settings(self) -> dict[str, float]:
        """Return delays in seconds: `bootSeconds` until a node joins, `gpuDelaySeconds` until it has its devices.

        Raises:
            OSError: The file is damaged.
        """
        defaults = {"bootSeconds": 2.0, "gpuDelaySeconds": 1.0}
        if not self.settings_file.exists():
            return defaults
        found = read_record(self.settings_file)
        if found is None or not all(_is_seconds(value) for value in found.values()):
            raise OSError(
                errno.EINVAL,
                "it must be a JSON object with numbers of seconds. Delete it, and the next start writes the defaults",
                str(self.settings_file),
            )
        return {**defaults, **found}

    def cloud(self) -> dict[str, Any] | None:
        """Return the record in `run/cloud.json`, or None if the file is missing or damaged.

        It may be stale: see `local.cluster.record`.
        """
        return read_record(self.cloud_file)


def _is_default(home: Home) -> bool:
    """Return whether commands use this home by default."""
    return home.root == OWN == Home().root


def program_command(home: Home, words: str) -> str:
    """Return a command of `user_program` for messages. It names this home if it is not the default."""
    place = "" if _is_default(home) else f"TRAINYARD_HOME={shlex.quote(str(home.root))} "
    return f"{place}{user_program()} {words}"


def local_command(home: Home, words: str) -> str:
    """Return a command of `python -m local` for messages. It runs in the checkout alone."""
    place = "" if Path.cwd() == CHECKOUT else f"cd {shlex.quote(str(CHECKOUT))} && "
    option = "" if _is_default(home) else f"--home {shlex.quote(str(home.root))} "
    return f"{place}.venv/bin/python -m local {option}{words}"


def read_record(file: Path) -> dict[str, Any] | None:
    """Return a record of the local cloud, or None if the file is missing or damaged.

    Writes are atomic, so a damaged file comes from a file system repair or a manual change.
    """
    try:
        return parse_record(file.read_text())
    except (FileNotFoundError, IsADirectoryError, ValueError):
        return None


def parse_record(text: str) -> dict[str, Any] | None:
    """Return a JSON object, or None if the text is another value or damaged."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def expand(variable: str, value: Path | str) -> Path:
    """Return the absolute path of a variable, with the home directory for `~`.

    Raises:
        OSError: There is no such user.
    """
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError:
        raise OSError(errno.ENOENT, f"{variable} must be a path; there is no such user", str(value)) from None


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step.

    A reader sees the old or the new text. A full disk damages neither.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_program(path: Path, text: str) -> None:
    """Write a script that everyone may run, in place of a link too. Do nothing if it has this text already."""
    if path.is_symlink() or not path.is_file() or path.read_text() != text:
        write_atomically(path, text, mode=0o755)
