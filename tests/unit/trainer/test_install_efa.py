"""trainer/install-efa.sh with real signatures: an installer runs only where AWS's key, and no other, signed it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.skipif(
        not all(map(shutil.which, ("gpg", "gpgv", "curl"))),
        reason="the image installs them; here they are missing",
    ),
]

SCRIPT = Path(__file__).parents[3] / "trainer" / "install-efa.sh"
VERSION = "1.51.0"
# The files of AWS's installer that the script uses. It also writes down its arguments.
INSTALLER = """#!/bin/sh
set -eu
mkdir -p "$DESTDIR/opt/amazon/efa/bin" "$DESTDIR/etc/ld.so.conf.d" "$DESTDIR/opt/amazon/ofi-nccl/lib64"
echo "$@" >"$DESTDIR/arguments"
printf '#!/bin/sh\\necho fi_info: 2.7.0\\n' >"$DESTDIR/opt/amazon/efa/bin/fi_info"
chmod +x "$DESTDIR/opt/amazon/efa/bin/fi_info"
[ -z "$PLUGIN" ] || touch "$DESTDIR/opt/amazon/ofi-nccl/lib64/$PLUGIN"
"""


@dataclass
class Place:
    """A mirror with the installer, and the root of an image that is built from it."""

    path: Path

    @property
    def root(self) -> Path:
        return self.path / "root"

    @property
    def mirror(self) -> Path:
        return self.path / "mirror"

    def gpg(self, home: str, *arguments: str) -> str:
        directory = self.path / home
        directory.mkdir(mode=0o700, exist_ok=True)
        command = ["gpg", "--homedir", str(directory), "--batch", "--quiet", "--passphrase", "", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    def key(self, home: str) -> str:
        """A new key. Returns its fingerprint."""
        self.gpg(home, "--quick-generate-key", f"{home} <{home}@example.com>", "ed25519", "sign", "never")
        lines = self.gpg(home, "--with-colons", "--list-keys").splitlines()
        return next(line.split(":")[9] for line in lines if line.startswith("fpr"))

    def publish(self, home: str, content: str = INSTALLER) -> None:
        """The installer on the mirror, signed by the key of `home`."""
        self.mirror.mkdir(exist_ok=True)
        script = self.path / "efa_installer.sh"
        script.write_text(content)
        script.chmod(0o755)
        archive = self.mirror / f"aws-efa-installer-{VERSION}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(script, "aws-efa-installer/efa_installer.sh")
        self.gpg(home, "--yes", "--detach-sign", "--output", f"{archive}.sig", str(archive))

    def run(self, signer: str, plugin: str = "libnccl-net-ofi.so") -> subprocess.CompletedProcess[str]:
        tools = self.path / "tools"
        tools.mkdir(exist_ok=True)
        self.root.mkdir(exist_ok=True)
        for name in ("apt-get", "ldconfig"):
            (tools / name).write_text(f'#!/bin/sh\necho "{name} $@" >>"$DESTDIR/../asked"\n')
            (tools / name).chmod(0o755)
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "EFA_VERSION": VERSION,
            "EFA_URL": f"file://{self.mirror}",
            "EFA_SIGNER": signer,
            "DESTDIR": str(self.root),
            "PLUGIN": plugin,
            "TMPDIR": str(self.path),
        }
        return subprocess.run(
            ["sh", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120
        )

    @property
    def installed(self) -> bool:
        return (self.root / "arguments").exists()


@contextmanager
def short_directory() -> Iterator[Path]:
    """Give a directory with a short name. gpg's agent listens at a socket, whose path has 108 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="efa-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def place() -> Iterator[Place]:
    with short_directory() as directory:
        yield Place(directory)


@pytest.fixture(scope="module")
def vendor() -> Iterator[tuple[Place, str]]:
    """A mirror with the installer and its key, and the key's fingerprint. Tests copy the mirror: keys take long."""
    with short_directory() as directory:
        made = Place(directory)
        fingerprint = made.key("vendor")
        made.publish("vendor")
        (made.mirror / "aws-efa-installer.key").write_text(made.gpg("vendor", "--armor", "--export"))
        yield made, fingerprint


@pytest.fixture
def signer(place: Place, vendor: tuple[Place, str]) -> str:
    """The fingerprint of the key by which the installer on the mirror is signed."""
    made, fingerprint = vendor
    shutil.copytree(made.mirror, place.mirror)
    return fingerprint


def test_installer_with_valid_signature_runs_for_a_container(place: Place, signer: str) -> None:
    done = place.run(signer)
    assert done.returncode == 0, done.stderr
    arguments = (place.root / "arguments").read_text().split()
    assert arguments == ["-y", "--skip-kmod", "--skip-limit-conf", "--no-verify", "--mpi=openmpi5"]
    assert "fi_info: 2.7.0" in done.stdout
    assert (place.path / "asked").read_text().splitlines()[-1].strip() == "ldconfig"
    assert not list(place.path.glob("tmp.*")), "nothing is left in the layer"
    # NCCL finds the plugin by the name that it asks for.
    directory = place.root / "opt/amazon/ofi-nccl/lib64"
    assert (directory / "libnccl-net.so").readlink() == Path("libnccl-net-ofi.so")
    loader = (place.root / "etc/ld.so.conf.d/200-aws-ofi-nccl.conf").read_text()
    assert loader == "/opt/amazon/ofi-nccl/lib64\n"


def test_plugin_of_that_name_stays_unchanged(place: Place, signer: str) -> None:
    assert place.run(signer, "libnccl-net.so").returncode == 0
    assert not (place.root / "opt/amazon/ofi-nccl/lib64/libnccl-net.so").is_symlink()


def test_an_image_without_the_plugin_is_not_built(place: Place, signer: str) -> None:
    done = place.run(signer, "")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "EFA: installer 1.51.0 brought no libnccl-net*.so below /opt/amazon; expected the plugin aws-ofi-nccl"
    )


def test_an_installer_that_was_changed_does_not_run(place: Place, signer: str) -> None:
    archive = place.mirror / f"aws-efa-installer-{VERSION}.tar.gz"
    archive.write_bytes(archive.read_bytes() + b"x")
    done = place.run(signer)
    assert done.returncode != 0
    assert "BAD signature" in done.stderr
    assert not place.installed


def test_another_key_on_the_mirror_opens_nothing(place: Place, signer: str) -> None:
    """A mirror may serve both keys, AWS's and its own, and sign by its own."""
    place.key("stranger")
    place.publish("stranger")
    with (place.mirror / "aws-efa-installer.key").open("a") as both:
        both.write(place.gpg("stranger", "--armor", "--export"))
    done = place.run(signer)
    assert done.returncode != 0
    assert not place.installed


def test_install_efa_from_incomplete_mirror_fails(place: Place, signer: str) -> None:
    assert place.run("0" * 40).returncode != 0
    (place.mirror / f"aws-efa-installer-{VERSION}.tar.gz").unlink()
    done = place.run(signer)
    assert done.returncode != 0
    assert "curl:" in done.stderr
    assert not place.installed


def test_a_base_that_brings_efa_keeps_it(place: Place) -> None:
    tool = place.root / "opt/amazon/efa/bin/fi_info"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    done = place.run("none")
    assert (done.returncode, done.stdout) == (0, "EFA: the base image brings its own\n")
    assert not (place.path / "asked").exists()


def test_a_base_without_apt_goes_without_and_says_so(place: Place) -> None:
    environment = {"PATH": "/nowhere", "DESTDIR": str(place.root), "EFA_VERSION": VERSION}
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "neither EFA's software nor apt-get" in done.stderr
