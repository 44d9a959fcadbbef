"""The home's kubectl: the real one, inside the network of the local cloud where that is not this one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from local.home import Home
from local.tools.scripts import write_script


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with a space in its name, a kubeconfig, a record of a supervisor, and the script."""
    home = Home(tmp_path / "a home")
    home.make()
    home.kubeconfig.touch()
    (home.run / "supervisor.json").write_text(json.dumps({"pid": os.getpid(), "startTime": 1}))
    program(tmp_path / "real kubectl", "printf '%s, ' kubectl \"$@\"")
    program(tmp_path / "programs" / "nsenter", "printf '%s, ' nsenter \"$@\"")
    write_script(home, "kubectl", tmp_path / "real kubectl")
    return home


def program(place: Path, text: str) -> None:
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"#!/bin/sh\n{text}\n")
    place.chmod(0o755)


def said(home: Home, kubeconfig: str | None, directory: Path | None = None) -> str:
    """What `kubectl get "a b"` does with this KUBECONFIG."""
    path = f"{home.root.parent / 'programs'}:/usr/bin:/bin"
    variables = {"PATH": path} | ({} if kubeconfig is None else {"KUBECONFIG": kubeconfig})
    return subprocess.run(
        [str(home.bin / "kubectl"), "get", "a b"], env=variables, cwd=directory,
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip


@pytest.fixture
def elsewhere(home: Home) -> None:
    """Every process seems to have a network of its own."""
    program(home.root.parent / "programs" / "readlink", 'echo "$1"')


def test_in_the_clouds_own_network_it_is_the_program_itself(home: Home) -> None:
    assert said(home, str(home.kubeconfig)) == "kubectl, get, a b,"


@pytest.mark.usefixtures("elsewhere")
def test_elsewhere_it_enters_that_network(home: Home) -> None:
    entered = f"nsenter, --target={os.getpid()}, --user, --preserve-credentials, --net, --"
    wanted = f"{entered}, {home.root.parent / 'real kubectl'}, get, a b,"
    assert said(home, str(home.kubeconfig)) == wanted
    assert said(home, "kubeconfig", directory=home.root) == wanted


@pytest.mark.usefixtures("elsewhere")
def test_with_another_kubeconfig_or_none_it_stays_where_it_is(home: Home, tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    assert said(home, str(tmp_path / "other")) == "kubectl, get, a b,"
    assert said(home, None) == "kubectl, get, a b,"


@pytest.mark.parametrize(
    ("config", "own", "cache"),
    [("kubeconfig", None, "{home}/kube-cache"), ("kubeconfig", "/mine", "/mine"), ("other", None, "")],
)
def test_what_it_remembers_of_the_homes_clusters_stays_in_the_home(
    config: str, own: str | None, cache: str, home: Home
) -> None:
    program(home.root.parent / "real kubectl", 'printf %s "$KUBECACHEDIR"')
    (home.root / "other").touch()
    variables = {"PATH": "/usr/bin:/bin", "KUBECONFIG": str(home.root / config)}
    variables |= {"KUBECACHEDIR": own} if own else {}
    answer = subprocess.run(
        [str(home.bin / "kubectl")], env=variables, capture_output=True, text=True, check=True
    )
    assert answer.stdout == cache.format(home=home.root)


@pytest.mark.usefixtures("elsewhere")
def test_without_a_running_cloud_it_is_the_program_itself(home: Home) -> None:
    (home.run / "supervisor.json").unlink()
    assert said(home, str(home.kubeconfig)) == "kubectl, get, a b,"


def test_a_link_of_an_earlier_version_gives_way_and_what_is_right_is_left_alone(home: Home) -> None:
    script, real = home.bin / "kubectl", home.root.parent / "real kubectl"
    text, made = script.read_text(), script.stat().st_ino
    write_script(home, "kubectl", real)
    assert script.stat().st_ino == made
    script.unlink()
    real.write_bytes(b"\x7fELF\xff")
    script.symlink_to(real)
    write_script(home, "kubectl", real)
    assert script.read_text() == text
    assert not script.is_symlink()
    assert real.read_bytes() == b"\x7fELF\xff"
