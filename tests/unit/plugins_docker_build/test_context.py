"""The digest of a build and the record of an image."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from local.plugins.docker_build.context import build_digest, files, parse_ignore
from local.plugins.docker_build.provider import IMAGE, DockerBuildProvider, reference_of
from local.plugins.provider import (
    CheckRequest,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    ProviderError,
    ReadRequest,
    UpdateRequest,
)
from local.plugins.values import UNKNOWN

ROOT = Path(__file__).resolve().parents[3]
URN = "urn:pulumi:dev::p::docker-build:index:Image::img"
WHO = {"urn": URN, "type": IMAGE, "name": "img"}


@pytest.fixture
def context(tmp_path: Path) -> Path:
    root = tmp_path / "context"
    for name in ("trainer/a.py", "trainer/sub/b.py", "docs/c.md", ".venv/lib/big.bin", "keep.md", "x.log"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (root / "Dockerfile").write_text("FROM scratch\n")
    return root


def names(root: Path, text: str) -> list[str]:
    return [name for name, _ in files(root, parse_ignore(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*\n!trainer\n", ["trainer/a.py", "trainer/sub/b.py"]),
        ("*\n!trainer/sub/*.py\n", ["trainer/sub/b.py"]),
        ("*\n!trainer\ntrainer/sub\n", ["trainer/a.py"]),
        ("# a comment\n.venv\n**/*.py\n*.md\nDockerfile\n", ["docs/c.md", "x.log"]),
        ("/.venv/\ndocs\n**/b.py\nDockerfile\n*.log\n", ["keep.md", "trainer/a.py"]),
        ("**\n!**/c.md\n", ["docs/c.md"]),
        ("**\n!docs/**/*.md\n", ["docs/c.md"]),
        # A pattern that leaves the context matches nothing, and `**` in the middle stands for whole directories.
        (
            "../docs\n.venv\ntrainer/**.py\nDockerfile\n*.log\n",
            ["docs/c.md", "keep.md", "trainer/a.py", "trainer/sub/b.py"],
        ),
        (".venv\ntrainer/**b.py\n**le\n*.log\n*.md\n", ["docs/c.md", "trainer/a.py"]),
    ],
)
def test_a_dockerignore_leaves_out_what_docker_leaves_out(
    context: Path, text: str, expected: list[str]
) -> None:
    assert names(context, text) == expected


@pytest.mark.parametrize(
    ("text", "searched"), [(".venv\n!keep.md\n", True), ("*\n!*.md\n", False), ("*\n!trainer/*.py\n", True)]
)
def test_an_ignored_directory_is_not_entered(
    context: Path, text: str, searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []
    import os

    real = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: (entered.append(Path(path).name), real(path))[1])
    names(context, text)
    assert ".venv" not in entered
    assert ("trainer" in entered) is searched


def test_the_digest_changes_with_content_mode_dockerfile_and_target_and_with_nothing_ignored(
    context: Path,
) -> None:
    (context / ".dockerignore").write_text("x.log\n")
    dockerfile = context / "Dockerfile"
    seen = [build_digest(context, dockerfile, {})]
    (context / "x.log").write_text("something else")
    assert build_digest(context, dockerfile, {}) == seen[0]
    for change in (
        lambda: (context / "trainer/a.py").write_text("new"),
        lambda: (context / "trainer/a.py").chmod(0o755),
        lambda: (context / "trainer/a.py").chmod(0o775),
        lambda: (context / "trainer/a.py").rename(context / "trainer/z.py"),
        lambda: dockerfile.write_text("FROM other\n"),
    ):
        change()
        seen.append(build_digest(context, dockerfile, {}))
    seen.append(build_digest(context, dockerfile, {"target": "debug"}))
    assert len(set(seen)) == len(seen)


def test_a_dockerfiles_own_ignore_file_comes_first(context: Path) -> None:
    (context / ".dockerignore").write_text("*\n")
    before = build_digest(context, context / "Dockerfile", {})
    (context / "Dockerfile.dockerignore").write_text("docs\n")
    assert build_digest(context, context / "Dockerfile", {}) != before


def test_an_edit_of_the_launcher_leaves_the_trainers_image_and_the_other_way_round(tmp_path: Path) -> None:
    """With the ignore files of this checkout."""
    images = ("launcher", "trainer")
    for place in (
        ".dockerignore",
        *(f"{i}/Dockerfile{suffix}" for i in images for suffix in ("", ".dockerignore")),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / place, tmp_path / place)

    def digests() -> list[str]:
        return [build_digest(tmp_path, tmp_path / i / "Dockerfile", {}) for i in images]

    before = digests()
    for index, image in enumerate(images):
        (tmp_path / image / "new.py").write_text("x = 1\n")
        after = digests()
        assert [old != new for old, new in zip(before, after, strict=True)] == [index == 0, index == 1]
        before = after


def test_a_relative_path_counts_from_the_directory_that_the_engine_starts_plugins_in(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (context / "trainer" / "Dockerfile").write_text("FROM scratch\n")
    monkeypatch.setenv("TRAINYARD_LOCAL_CLOUD", str(context.parent / "home/run/cloud.json"))
    monkeypatch.chdir(context)
    given = inputs(Path("."), dockerfile={"location": "trainer/Dockerfile"})
    _, outputs = DockerBuildProvider().create(CreateRequest(**WHO, inputs=given, preview=False))
    recorded = json.loads((context.parent / "home/images.json").read_text())[outputs["ref"]]
    assert (recorded["context"], recorded["dockerfile"]) == (
        str(context),
        str(context / "trainer/Dockerfile"),
    )


def test_a_reference_is_the_first_tag_with_the_digest_in_place_of_its_tag() -> None:
    assert reference_of({"tags": ["r.example:5000/a/b:v1", "x:y"]}, "ab") == "r.example:5000/a/b@sha256:ab"
    assert reference_of({"tags": ["r.example:5000/a/b"]}, "ab") == "r.example:5000/a/b@sha256:ab"
    assert reference_of({}, "ab") == ""


def inputs(context: Path, **more: object) -> dict[str, object]:
    return {
        "context": {"location": str(context)},
        "push": True,
        "tags": ["repo/img:one"],
        **more,
    }


def test_an_image_is_recorded_changed_and_forgotten(
    context: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINYARD_LOCAL_CLOUD", str(tmp_path / "home/run/cloud.json"))
    record = tmp_path / "home/images.json"
    provider = DockerBuildProvider()
    given = inputs(context, target="last")
    rid, outputs = provider.create(CreateRequest(**WHO, inputs=given, preview=False))
    recorded = json.loads(record.read_text())
    assert set(recorded) == {outputs["ref"], "repo/img:one"}
    assert recorded[outputs["ref"]]["context"] == str(context)
    assert recorded[outputs["ref"]]["dockerfile"] == str(context / "Dockerfile")
    assert recorded[outputs["ref"]]["target"] == "last"

    same = DiffRequest(**WHO, id=rid, old_inputs=given, old_outputs=outputs, inputs=given)
    assert not provider.diff(same).has_changes
    (context / "keep.md").write_text("changed")
    assert provider.diff(same).detailed == {"contextHash": "update"}

    update = UpdateRequest(**WHO, id=rid, old_inputs=given, old_outputs=outputs, inputs=given, preview=False)
    after = provider.update(update)
    assert after["ref"] != outputs["ref"]
    # A running pod may still name the former one.
    assert {outputs["ref"], after["ref"]} <= set(json.loads(record.read_text()))
    assert provider.read(ReadRequest(**WHO, id=rid, inputs=given, outputs=after)) is not None

    provider.delete(DeleteRequest(**WHO, id=rid, inputs=given, outputs=after))
    assert json.loads(record.read_text()) == {}
    assert provider.read(ReadRequest(**WHO, id=rid, inputs=given, outputs=after)) is None


def test_preview_has_the_reference_only_with_build_on_preview(
    context: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINYARD_LOCAL_CLOUD", raising=False)
    provider = DockerBuildProvider()
    _, plain = provider.create(CreateRequest(**WHO, inputs=inputs(context), preview=True))
    assert plain["ref"] is UNKNOWN
    assert len(plain["contextHash"]) == 64
    _, outputs = provider.create(
        CreateRequest(**WHO, inputs=inputs(context, buildOnPreview=True), preview=True)
    )
    assert outputs["ref"] == f"repo/img@sha256:{outputs['contextHash']}"
    open_tag = inputs(context, buildOnPreview=True, tags=[UNKNOWN])
    assert provider.create(CreateRequest(**WHO, inputs=open_tag, preview=True))[1]["ref"] is UNKNOWN
    with pytest.raises(ProviderError, match="TRAINYARD_LOCAL_CLOUD is not set"):
        provider.create(CreateRequest(**WHO, inputs=inputs(context), preview=False))


def test_builds_that_have_no_local_stand_in_are_refused_by_name(context: Path) -> None:
    wrong = {
        "context": {"location": "https://example.com/x.git"},
        "dockerfile": {"inline": "FROM x"},
        "nonsense": 1,
    }
    found = DockerBuildProvider().check(CheckRequest(**WHO, inputs=wrong, old_inputs=None))
    assert {failure.path for failure in found.failures} == {
        "context.location",
        "dockerfile.inline",
        "nonsense",
        "push",
    }
    missing = inputs(context / "absent")
    with pytest.raises(ProviderError, match="absent is no directory"):
        DockerBuildProvider().create(CreateRequest(**WHO, inputs=missing, preview=True))
