"""Where the local cloud keeps its state on disk: one directory,
`.local/` of the checkout or `$TRAINYARD_HOME`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]
# Ours by its place, whatever is in it.
OWN = CHECKOUT / ".local"

# sockaddr_un.sun_path holds 108 bytes with the final zero (unix(7)).
SOCKET_PATH_BYTES = 107


class Home:
    """Paths of one local cloud. Constructing it creates nothing; `make()` creates the directories.

    `root` is the given directory, else `$TRAINYARD_HOME`, else `.local` of the checkout.
    """

    def __init__(self, root: Path | str | None = None, environment: Mapping[str, str] = os.environ) -> None:
        chosen = root or environment.get("TRAINYARD_HOME") or OWN
        self.root = Path(chosen).expanduser().absolute()

    def __repr__(self) -> str:
        return f"Home({str(self.root)!r})"

    @property
    def run(self) -> Path:
        """Files that live as long as the running cloud; readable by the owner alone."""
        return self.root / "run"

    @property
    def marker(self) -> Path:
        """Says that we took the directory (see `claim`), so that `reset` may delete it."""
        return self.root / ".trainyard"

    @property
    def cloud_file(self) -> Path:
        """The running cloud's record: process id, endpoint, region, account and the deployer's key (mode 0600)."""
        return self.run / "cloud.json"

    @property
    def role_calls_file(self) -> Path:
        """Which actions each role of the emulated account was granted and used."""
        return self.logs / "role-calls.json"

    @property
    def aws_file(self) -> Path:
        """What the AWS emulator tells the supervisor at its start: the deployer's access key (mode 0600)."""
        return self.run / "aws.json"

    @property
    def control_socket(self) -> Path:
        """Unix socket of the supervisor's HTTP API; in a private temporary directory where the path is too long."""
        path = self.run / "control.sock"
        if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
            return path
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"trainyard-{os.getuid()}-{digest}" / "control.sock"

    @property
    def settings_file(self) -> Path:
        """Delays of the simulated machines, in seconds, as `python -m local up` was told."""
        return self.root / "settings.json"

    @property
    def kubeconfig(self) -> Path:
        """Administrator's kubeconfig: one context per cluster."""
        return self.root / "kubeconfig"

    @property
    def kube_cache(self) -> Path:
        """What kubectl and Helm remember of each API server's kinds (`KUBECACHEDIR`); ports are new at each start."""
        return self.root / "kube-cache"

    @property
    def bin(self) -> Path:
        """Every tool of the local cloud, first on PATH of whatever runs on it: links, and a script for kubectl."""
        return self.root / "bin"

    @property
    def logs(self) -> Path:
        """One file per process: `supervisor.log`, `aws.log`, `<cluster>-<process>.log`."""
        return self.root / "logs"

    @property
    def clusters(self) -> Path:
        """One directory per cluster: its certificates, etcd's data, `cluster.json`, `admin.kubeconfig`."""
        return self.root / "clusters"

    @property
    def pods(self) -> Path:
        """Files of running pods."""
        return self.root / "pods"

    @property
    def volumes(self) -> Path:
        """Persistent volumes, one directory each."""
        return self.root / "volumes"

    @property
    def images_file(self) -> Path:
        """Which build context an image reference stands for (see the docker-build plugin)."""
        return self.root / "images.json"

    def cluster(self, name: str) -> Path:
        """Directory of one cluster."""
        return self.clusters / name

    def claim(self) -> None:
        """Take the directory before anything else is put into it: make it where it is new, and mark it as ours.

        Raises:
            OSError: it holds files and is not marked, so that `reset` would delete a person's files with ours; or it
                can't be written.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        # In this order: whoever takes the directory at the same time marks it before anything else is in it.
        used = any(self.root.iterdir())
        if used and not self.marker.exists() and self.root != OWN:
            raise OSError(
                errno.EEXIST,
                "TRAINYARD_HOME must name a new or empty directory, or a local cloud's; other files are in this one",
                str(self.root),
            )
        self.marker.touch()

    def make(self) -> None:
        """Create the directories that every process expects. A full disk raises OSError, and a directory with other
        files does (see `claim`).

        Those with keys, tokens, Secrets and what programs print are their owner's alone; the root is not, since it
        may be a directory that others use too.
        """
        self.claim()
        self.bin.mkdir(exist_ok=True)
        socket_directory = self.control_socket.parent
        # STACKS of local/backend.py, and the settings of a preflight.
        states = (self.root / "stacks", self.root / "asked")
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
        """Delays in seconds: `bootSeconds` of a machine until it joins, `gpuDelaySeconds` until its devices show."""
        defaults = {"bootSeconds": 5.0, "gpuDelaySeconds": 2.0}
        if not self.settings_file.exists():
            return defaults
        return {**defaults, **json.loads(self.settings_file.read_text())}

    def cloud(self) -> dict[str, Any] | None:
        """The record in `run/cloud.json`, or None where there is none. It may be stale: see `local.cluster.record`."""
        try:
            record: dict[str, Any] = json.loads(self.cloud_file.read_text())
        except FileNotFoundError:
            return None
        return record


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file in one step, so that a reader sees the old text or the new one, and a full disk spoils neither."""
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
    """A script that everybody may run, for a link of that name, too; nothing is written where it says so already."""
    if path.is_symlink() or not path.is_file() or path.read_text() != text:
        write_atomically(path, text, mode=0o755)
