"""Paths of the local cloud's state, and writes that never leave half a file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from local import home as home_module
from local.cluster import lifecycle
from local.cluster.lifecycle import CloudError
from local.home import (
    BY_MAKE,
    CHECKOUT,
    OWN,
    SOCKET_PATH_BYTES,
    Home,
    local_command,
    program_command,
    write_atomically,
)
from local.tools.registry import cache_directory


def test_the_home_is_the_given_directory_then_the_variable_then_the_checkouts(tmp_path: Path) -> None:
    variable = {"TRAINYARD_HOME": str(tmp_path / "variable")}
    assert Home(tmp_path / "given", variable).root == tmp_path / "given"
    assert Home(environment=variable).root == tmp_path / "variable"
    assert Home(environment={}).root == CHECKOUT / ".local"


def test_home_of_an_unknown_user_is_refused() -> None:
    with pytest.raises(OSError, match="TRAINYARD_HOME must be a path; there is no such user"):
        Home(environment={"TRAINYARD_HOME": "~nobody2/x"})


@pytest.mark.parametrize("name", ["TRAINYARD_CACHE", "XDG_CACHE_HOME"])
def test_cache_of_an_unknown_user_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("TRAINYARD_CACHE", raising=False)
    monkeypatch.setenv(name, "~nobody2/x")
    with pytest.raises(OSError, match=f"{name} must be a path; there is no such user"):
        cache_directory()


@pytest.mark.parametrize("length", [1, 50, 100, 150])
def test_the_control_socket_always_fits_into_a_socket_address(tmp_path: Path, length: int) -> None:
    socket = Home(tmp_path / ("x" * length)).control_socket
    assert len(os.fsencode(socket)) <= SOCKET_PATH_BYTES


def test_long_homes_do_not_share_a_socket(tmp_path: Path) -> None:
    sockets = {Home(tmp_path / ("x" * 120) / name).control_socket for name in "ab"}
    assert len(sockets) == 2


def test_what_holds_secrets_is_closed_to_others(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.make()
    for private in (home.run, home.logs, home.clusters, home.pods, home.volumes):
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
    write_atomically(home.cloud_file, "{}", mode=0o600)
    assert stat.S_IMODE(home.cloud_file.stat().st_mode) == 0o600


def test_an_empty_directory_is_taken_and_one_with_a_persons_files_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.make()
    home.make()
    data = Home(tmp_path / "data")
    data.root.mkdir()
    (data.root / "thesis").touch()
    with pytest.raises(OSError, match="TRAINYARD_HOME must name a new or empty directory") as refused:
        data.make()
    assert refused.value.filename == str(data.root)
    assert [path.name for path in data.root.iterdir()] == ["thesis"]


def test_the_checkouts_own_directory_is_ours_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(home_module, "OWN", tmp_path)
    Home(tmp_path).make()
    assert Home(tmp_path).marker.exists()


def test_a_failed_write_keeps_the_old_text_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "file"
    write_atomically(target, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(target, "new")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_settings_have_defaults_and_keep_changes(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.settings() == {"bootSeconds": 2.0, "gpuDelaySeconds": 1.0}
    home.settings_file.write_text('{"bootSeconds": 1}')
    assert home.settings() == {"bootSeconds": 1, "gpuDelaySeconds": 1.0}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[1]", "null", "[" * 100_000, '{"bootSeconds": "2"}', '{"gpuDelaySeconds": -1}', '{"x": NaN}'],
)
def test_damaged_settings_name_the_file_and_the_way_out(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    home.make()
    home.settings_file.write_text(text)
    monkeypatch.setattr(lifecycle, "_up", lambda *_: None)  # a fault of the check starts no cloud
    with pytest.raises(CloudError, match=rf"must be a JSON object .*Delete it.*: {home.settings_file}$"):
        lifecycle.up(home, lambda _: None)
    lifecycle.down(home, lambda _: None)


@pytest.mark.parametrize(
    ("given", "variable", "by_make", "by_python"),
    [
        (None, None, "make up", ".venv/bin/python -m local up"),
        (OWN, str(OWN), "make up", ".venv/bin/python -m local up"),
        ("/x/a b", None, "TRAINYARD_HOME='/x/a b' make up", ".venv/bin/python -m local --home '/x/a b' up"),
        (None, "/x", "TRAINYARD_HOME=/x make up", ".venv/bin/python -m local --home /x up"),
        (OWN, "/x", f"TRAINYARD_HOME={OWN} make up", f".venv/bin/python -m local --home {OWN} up"),
    ],
)
def test_commands_of_messages_name_the_home(
    given: Path | str | None,
    variable: str | None,
    by_make: str,
    by_python: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(BY_MAKE, "1")
    monkeypatch.delenv("TRAINYARD_HOME", raising=False)
    if variable is not None:
        monkeypatch.setenv("TRAINYARD_HOME", variable)
    monkeypatch.chdir(CHECKOUT)
    assert program_command(Home(given), "up") == by_make
    assert local_command(Home(given), "up") == by_python
    monkeypatch.chdir(tmp_path)
    assert local_command(Home(given), "up") == f"cd {CHECKOUT} && {by_python}"
