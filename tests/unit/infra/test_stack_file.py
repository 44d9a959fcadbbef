"""Read a stack file without the engine: an invalid file causes one error line and no traceback."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from infra import check
from infra.settings import SettingsError
from infra.stack_file import load
from tests.unit.infra.changing import BASE
from trainyard.stack_files import StackFileError


def written(directory: Path, content: bytes) -> Path:
    path = directory / "Pulumi.dev.yaml"
    path.write_bytes(content)
    return path


@pytest.fixture
def _usual_recursion_limit() -> Iterator[None]:
    """Restore Python's recursion limit, which Kubernetes clients raise for the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("_usual_recursion_limit")
@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            b"config:\n  aws:region: us-west-2\n  aws:region: eu-west-1\n",
            "Pulumi.dev.yaml:3: is not valid YAML: the key 'aws:region' stands twice in one mapping",
        ),
        (
            b"config:\n  trainyard:pools:\n    - {name: a, maxNodes: 1, maxNodes: 9}\n",
            "the key 'maxNodes' stands twice in one mapping",
        ),
        (b"config: {}\nconfig: {}\n", "the key 'config' stands twice in one mapping"),
        (
            b"config:\n  a: [1\n  b: 2\n",
            "Pulumi.dev.yaml:3: is not valid YAML: expected ',' or ']', but got ':', while parsing a flow sequence that"
            " begins in line 2",
        ),
        (
            b"config:\n  a: b: c\n",
            "Pulumi.dev.yaml:2: is not valid YAML: mapping values are not allowed here",
        ),
        (
            b"config: \x07\n",
            "Pulumi.dev.yaml is not valid YAML: unacceptable character #x0007: special characters",
        ),
        ("# Größe\nconfig: {}\n".encode("latin-1"), "is not in UTF-8: "),
        (b"config: " + b"[" * 500 + b"]" * 500, "is not valid YAML: maximum recursion"),
        (b"config: 3\n", "needs a mapping named 'config'"),
        (
            b"config: {}\ntrainyard:queues:\n  - {name: a}\n",
            "trainyard:queues stands beside 'config'; it must be indented, below it",
        ),
    ],
)
def test_invalid_stack_file_is_one_line(tmp_path: Path, content: bytes, part: str) -> None:
    with pytest.raises(StackFileError) as caught:
        load("dev", written(tmp_path, content))
    assert re.match(r"Pulumi\.dev\.yaml(:([0-9]+:)?)? ", str(caught.value))
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_merged_mapping_is_not_a_duplicate_key(tmp_path: Path) -> None:
    text = (
        "one: &one {name: small, zone: us-west-2b}\n"
        "two: &two {instanceType: g5.12xlarge}\n"
        f"config: {yaml.safe_dump(BASE, default_flow_style=True, width=9999).strip()}\n"
    ).replace("[{instanceType: g5.12xlarge", "[{<<: [*one, *two]")
    assert "*two" in text
    assert load("dev", written(tmp_path, text.encode())).pools[0].zone == "us-west-2b"


@pytest.mark.parametrize("key", ["5", "true", "null", "1.5"])
def test_key_must_be_text(tmp_path: Path, key: str) -> None:
    text = f"{yaml.safe_dump({'config': BASE})}  {key}: x\n"
    with pytest.raises(SettingsError) as caught:
        load("dev", written(tmp_path, text.encode()))
    (line,) = caught.value.lines
    assert line.startswith(f"trainyard:{key}: has a key that is")


def test_check_reports_a_directory_and_another_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Pulumi.dev.yaml").mkdir()
    (tmp_path / "Pulumi.other.yaml").write_bytes(b"# \xff\nconfig: {}\n")
    for name, part in (("dev", "can't be read: Is a directory"), ("other", "is not in UTF-8")):
        monkeypatch.setattr(
            "sys.argv", ["check", "--stack", name, "--file", str(tmp_path / f"Pulumi.{name}.yaml")]
        )
        assert check.main() == 1
        said = capsys.readouterr().err
        assert part in said
        assert said.count("\n") == 1
