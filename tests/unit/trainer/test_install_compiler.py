"""trainer/install-compiler.sh: an image gets what Triton needs, and keeps what it has."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "trainer" / "install-compiler.sh"
DEBIAN = 'ID=debian\nVERSION_ID="12"\n'
PINNED = ["gcc=4:12.2.0-*", "libc6-dev=2.36-*"]


def build(
    image: Path,
    release: str,
    *,
    has_gcc: bool = False,
    has_headers: bool = True,
    has_apt: bool = True,
    works: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run the script with programs that stand in for the image's; they write down what they are asked."""
    tools, headers = image / "tools", image / "include"
    for directory in (tools, headers, image / "etc", image / "var/lib/apt/lists"):
        directory.mkdir(parents=True)
    (image / "etc/os-release").write_text(release)
    if has_headers:
        (headers / "Python.h").touch()
    compiler = f'#!/bin/sh\ncat >/dev/null\necho "$@" >>{image}/compiled\nexit {0 if works else 1}\n'
    apt = f'#!/bin/sh\necho "$@" >>{image}/asked\ncp {image}/compiler {tools}/gcc\n'
    programs = {"python": f"#!/bin/sh\necho {headers}\n"}
    programs |= {"apt-get": apt} if has_apt else {}
    programs |= {"gcc": compiler} if has_gcc else {}
    for path, text in {
        image / "compiler": compiler,
        **{tools / name: text for name, text in programs.items()},
    }.items():
        path.write_text(text)
        path.chmod(0o755)
    for name in ("sh", "cat", "cp", "rm"):
        (tools / name).symlink_to(str(shutil.which(name)))
    return subprocess.run(
        [str(shutil.which("sh")), str(SCRIPT)],
        env={"PATH": str(tools), "DESTDIR": str(image), "LC_ALL": os.environ.get("LC_ALL", "C")},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("release", "image", "packages"),
    [
        (DEBIAN, {}, PINNED),
        (DEBIAN, {"has_headers": False}, [*PINNED, "python3-dev"]),
        (DEBIAN, {"has_gcc": True}, []),
        (DEBIAN, {"has_gcc": True, "has_headers": False}, ["python3-dev"]),
        ("ID=ubuntu\nVERSION_ID=24.04\n", {}, ["gcc", "libc6-dev"]),
    ],
)
def test_image_gets_what_it_lacks(
    tmp_path: Path, release: str, image: dict[str, bool], packages: list[str]
) -> None:
    result = build(tmp_path, release, **image)
    assert result.returncode == 0, result.stderr
    asked = tmp_path / "asked"
    words = asked.read_text().splitlines()[-1].split() if asked.exists() else []
    assert [word for word in words if not word.startswith("-") and word != "install"] == packages
    assert "-fsyntax-only" in (tmp_path / "compiled").read_text()
    assert (tmp_path / "var/lib/apt/lists").exists() == (packages == [])


def test_base_image_without_apt_goes_without_and_says_so(tmp_path: Path) -> None:
    result = build(tmp_path, "ID=rocky\nVERSION_ID=9\n", has_apt=False)
    assert result.returncode == 0
    assert "without torch.compile" in result.stderr


def test_compiler_that_does_not_work_makes_no_image(tmp_path: Path) -> None:
    assert build(tmp_path, DEBIAN, works=False).returncode != 0
