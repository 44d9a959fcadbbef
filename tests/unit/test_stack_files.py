"""Where the file of a stack is, by the stack's name, and how its values are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.shipped import shipped
from trainyard.stack_files import StackFileError, display_name, find, is_example, names, path_of, read

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


# What `pulumi config --json` of Pulumi 3.250.0 has for each, in a list of a setting.
AS_THE_ENGINE: list[tuple[str, Any]] = [
    *((text, text) for text in ("yes", "no", "on", "Off", "y", "n", "tRue", "nUll", "=")),
    *((text, True) for text in ("true", "True", "TRUE", "!!bool true")),
    *((text, False) for text in ("false", "False", "FALSE")),
    *((text, None) for text in ("null", "Null", "NULL", "~")),
    ("0777", 511),
    ("-0o17", -15),
    ("0O17", 15),
    ("0x1F", 31),
    ("0b101", 5),
    ("012345678901", 12345678901),
    ("012345670123", 1402433619),
    ("1_000", 1000),
    ("_1", "_1"),
    ("12:30:45", "12:30:45"),
    ("+12", 12),
    ("1e21", 1e21),
    ("1e3", 1000),
    ("1.0", 1),
    (".5", 0.5),
    ("5.", 5),
    ("1e400", "1e400"),
    ("1e", "1e"),
    ("0x1p4", "0x1p4"),
    ("9007199254740993", 9007199254740993),
    ("9223372036854775808", 9223372036854776000),
    ("100000000000000000000000", 1e23),
    ("0xFFFFFFFFFFFFFFFFFF", "0xFFFFFFFFFFFFFFFFFF"),
    ("2026-11", "2026-11"),
    ("'yes'", "yes"),
    ("'2026-11-01'", "2026-11-01"),
    ("!!str 12", "12"),
    ("!!int '12'", 12),
    ("!!float 3", 3),
]


@pytest.mark.parametrize(("text", "value"), AS_THE_ENGINE, ids=[text for text, _ in AS_THE_ENGINE])
def test_value_is_read_as_the_engine_reads_it(tmp_path: Path, text: str, value: Any) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"config:\n  a: [{text}]\n")
    (found,) = read(file)["config"]["a"]
    assert (type(found), found) == (type(value), value)


def test_key_is_read_as_the_engine_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("config: {a: {on: 1, y: 2, 1:30: 3}}\n")
    assert read(file)["config"]["a"] == {"on": 1, "y": 2, "1:30": 3}


@pytest.mark.parametrize(
    ("text", "must"),
    [
        *(
            (text, "it must be in quotes")
            for text in (
                "2026-11-01",
                "2026-1-1",
                "2026-13-45",
                "2026-11-01T10:00:00Z",
                "2026-11-01t1:2:3.5+02:00",
                "2026-11-01 10:00:00",
            )
        ),
        ("!!timestamp soon", "it must be in quotes"),
        *((text, "it must be finite") for text in (".inf", "-.Inf", ".NAN")),
        *((text, "it must be a value of this type") for text in ("!!bool yes", "!!int 1.5", "!!null x")),
    ],
)
def test_value_that_the_engine_changes_or_refuses_is_one_line(tmp_path: Path, text: str, must: str) -> None:
    file = tmp_path / "a.yaml"
    for line in (f"a: {text}", f"{text}: a"):
        file.write_text(f"config:\n  {line}\n")
        with pytest.raises(StackFileError) as error:
            read(file)
        value = text.rpartition("!")[2].partition(" ")[2] if text.startswith("!") else text
        assert str(error.value).startswith(f"a.yaml:2: '{value}' ")
        assert must in str(error.value)
        assert "\n" not in str(error.value)


def test_key_twice_is_refused_whatever_its_type(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    for mapping in ('{1: a, "1": b}', "{<<: {a: 1}, <<: {b: 1}}"):
        file.write_text(f"config: {mapping}\n")
        with pytest.raises(StackFileError, match=r"^a\.yaml:1: is not valid YAML: the key '.+' stands twice"):
            read(file)
