"""Where the file of a stack is, by the stack's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shipped import shipped
from trainyard.stack_files import StackFileError, display_name, find, is_example, names, path_of, read

pytestmark = pytest.mark.unit

SETTINGS = "config: {}\n"
KMS = "secretsprovider: awskms://alias/k?region=us-west-2\nencryptedkey: QUJD\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with the stacks `dev` and `p4d`."""
    (tmp_path / "examples" / "stacks").mkdir(parents=True)
    (tmp_path / "Pulumi.yaml").write_text("name: trainyard\n")
    (tmp_path / "Pulumi.dev.yaml").write_text(SETTINGS)
    (tmp_path / "examples" / "stacks" / "p4d.yaml").write_text(SETTINGS)
    return tmp_path


def test_checkout_has_three_stacks_in_its_root_and_nine_examples() -> None:
    found = {name: display_name(find(name)) for name in shipped()}
    in_root = {name for name, file in found.items() if file == f"Pulumi.{name}.yaml"}
    assert in_root == {"dev", "large", "local"}
    assert len(found) == 12
    assert all(found[name] == f"examples/stacks/{name}.yaml" for name in found.keys() - in_root)


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (None, "examples/stacks/p4d.yaml"),
        (SETTINGS, "Pulumi.p4d.yaml"),
        (f"encryptionsalt: v1:abc\n{SETTINGS}", "Pulumi.p4d.yaml"),
        # What `pulumi stack init` writes.
        ("encryptionsalt: v1:abc\n", "examples/stacks/p4d.yaml"),
        (KMS, "examples/stacks/p4d.yaml"),
        # A mistake is reported, and not hidden by an example.
        ("cofig: {}\n", "Pulumi.p4d.yaml"),
        (f"{KMS}  x: [\n", "Pulumi.p4d.yaml"),
    ],
    ids=["none", "settings", "salted settings", "salt", "KMS key", "wrong key", "no YAML"],
)
def test_file_in_root_comes_before_example(root: Path, own: str | None, found: str) -> None:
    if own is not None:
        (root / "Pulumi.p4d.yaml").write_text(own)
    path = find("p4d", root)
    assert display_name(path, root) == found
    assert is_example(path, root) == (found != "Pulumi.p4d.yaml")
    assert names(root) == ["dev", "p4d"]


def test_directory_or_binary_in_root_is_not_hidden_by_example(root: Path) -> None:
    (root / "Pulumi.p4d.yaml").write_bytes(b"\xff")
    assert find("p4d", root) == root / "Pulumi.p4d.yaml"
    (root / "Pulumi.p4d.yaml").unlink()
    (root / "Pulumi.p4d.yaml").mkdir()
    assert find("p4d", root) == root / "Pulumi.p4d.yaml"


@pytest.mark.parametrize(
    ("stack", "meant"),
    [("P4D", " Did you mean p4d?"), ("devv", " Did you mean dev?"), ("nowhere", "")],
)
def test_unknown_stack_lists_the_files_of_both_places(root: Path, stack: str, meant: str) -> None:
    with pytest.raises(StackFileError) as error:
        find(stack, root)
    assert str(error.value) == (
        f"Pulumi.{stack}.yaml does not exist.{meant} Stack files here: dev; in examples/stacks: p4d"
    )
    assert path_of(stack, root) == root / f"Pulumi.{stack}.yaml"


def test_unknown_stack_without_examples_lists_the_root(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text(SETTINGS)
    with pytest.raises(StackFileError, match=r"^Pulumi\.prod\.yaml does not exist\. Stack files here: dev$"):
        find("prod", tmp_path)


def test_error_of_an_example_names_its_path(root: Path) -> None:
    find("p4d", root).write_text("config: 3\n")
    with pytest.raises(StackFileError, match=r"^examples/stacks/p4d\.yaml needs a mapping named 'config'"):
        read(find("p4d", root), root)


def test_missing_file_that_is_given_by_path_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackFileError, match=r"^mine\.yaml does not exist$"):
        read(tmp_path / "mine.yaml")
