"""`python -m trainyard.kubectl.onefile dist`: build the plugin and its dependencies as one executable file, a zipapp.

The dependencies are copied from this environment; nothing is downloaded. The file works on one kind of machine and one
version of Python, because zstandard has compiled modules. Python can't load those from a zip, so the file unpacks
itself once into a cache directory that is named by its contents.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tempfile
import zipapp
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

NEEDED: Final = ("botocore", "kubernetes", "PyYAML", "zstandard")
_PACKAGES: Final = (
    "launcher",
    *(f"trainyard/{package}" for package in ("k8s", "kubectl", "operator", "workspace")),
)
_MODULES: Final = ("trainyard/__init__.py", "trainyard/completion.py")
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_PYTHON: Final = "/usr/bin/env python3"
_FILES: Final = ("kubectl-torchrun", "kubectl_complete-torchrun")
_START: Final = '''"""Unpack the plugin once, and run it."""
import os, shutil, sys, zipfile

if sys.version_info[:2] != {version!r}:
    sys.exit("kubectl torchrun: this file was built for Python {version[0]}.{version[1]}, and this is "
             + sys.version.split()[0] + "; build it again (make plugin) or install it with pip")
cache = os.environ.get("XDG_CACHE_HOME", "")
if not os.path.isabs(cache):  # as its specification says
    cache = os.path.join(os.path.expanduser("~"), ".cache")
builds = os.path.join(cache, "kubectl-torchrun")
home = os.path.join(builds, "{digest}")
if not os.path.isdir(home):
    # An interrupt may come as soon as the directory exists.
    draft = os.path.join(builds, "draft-" + os.urandom(8).hex())
    try:
        os.makedirs(builds, mode=0o700, exist_ok=True)
        os.mkdir(draft, 0o700)
        with zipfile.ZipFile(sys.argv[0]) as file:
            file.extractall(draft)
        try:
            os.rename(draft, home)
        except OSError:  # another process was first
            if not os.path.isdir(home):
                raise
    except OSError as error:
        sys.exit("kubectl torchrun: can't unpack into " + home + ": " + str(error) + "; set XDG_CACHE_HOME")
    except KeyboardInterrupt:
        sys.stderr.write("kubectl torchrun: interrupted\\n")
        sys.exit(130)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
sys.path.insert(0, home)
from trainyard.kubectl.{module} import entry
entry()
'''


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """Return these distributions and their dependencies, by normalized name. Raise PackageNotFoundError."""
    found: dict[str, Distribution] = {}
    waiting = [(name, True) for name in names]
    while waiting:
        name, required = waiting.pop()
        normal = re.sub(r"[-_.]+", "-", name).lower()
        if normal in found:
            continue
        try:
            found[normal] = distribution(name)
        except PackageNotFoundError:  # for another system or version of Python
            if required:
                raise
            continue
        for need in found[normal].requires or ():
            match = _NAME.match(need)
            if match and "extra ==" not in need:
                waiting.append((match.group(), False))
    return found


def collect(into: Path) -> None:
    """Copy the files of the plugin and of its dependencies to this directory."""
    for item in closure(NEEDED).values():
        for file in item.files or ():
            if ".." in file.parts or file.is_absolute() or file.suffix == ".pyc":
                continue
            (into / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(item.locate_file(file)), into / file)
    checkout = Path(__file__).parents[2]
    for package in _PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "README.md")
        shutil.copytree(checkout / package, into / package, ignore=ignore)
    for module in _MODULES:
        shutil.copyfile(checkout / module, into / module)


def build(directory: Path) -> list[Path]:
    """Build the files of the plugin and of its completion in this directory."""
    directory.mkdir(parents=True, exist_ok=True)
    made = [directory / name for name in _FILES]
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        collect(root)
        digest = hashlib.sha256()
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            digest.update(f"{file.relative_to(root)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
        for file, module in zip(made, ("__main__", "complete"), strict=True):
            start = _START.format(version=sys.version_info[:2], digest=digest.hexdigest()[:20], module=module)
            (root / "__main__.py").write_text(start)
            zipapp.create_archive(root, draft := file.with_suffix(".part"), _PYTHON, compressed=True)
            draft.chmod(0o755)
            draft.replace(file)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainyard.kubectl.onefile", description=__doc__)
    parser.add_argument("directory", type=Path)
    try:
        made = build(parser.parse_args().directory)
    except PackageNotFoundError as error:
        sys.exit(f"kubectl torchrun: {error.name} is not installed; run make environment")
    for file in made:
        print(
            f"{file}: {file.stat().st_size / 2**20:.1f} MiB, Python {sys.version_info[0]}.{sys.version_info[1]}"
        )


if __name__ == "__main__":
    main()
