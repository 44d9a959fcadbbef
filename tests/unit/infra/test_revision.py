"""The project revision that a stack records for its run; a new commit changes nothing else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from infra import stack, volumes
from infra.revision import revision
from infra.settings import read
from tests.unit.components.recording import Recorded
from tests.unit.infra.changing import NOW, with_
from tests.unit.infra.whole import in_a_small_checkout, whole
from tests.unit.repositories import git

RUN = {"pool": "small", "minNodes": 1, "maxNodes": 4, "runId": "r1"}
JOB = ("kubernetes:batch/v1:Job", "launch-r1")


def committed(place: Path, message: str = "one") -> str:
    """Commit all files and return the hash."""
    git(place, "init", "--quiet")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(place, "rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    (place / "file").write_text("one")
    return place


def test_revision_of_checkout_has_full_hash_and_dirty_mark(checkout: Path) -> None:
    head = committed(checkout)
    git(checkout, "tag", "--annotate", "--message", "v1", "v1")
    (checkout / "new").touch()
    assert revision(checkout) == head
    (checkout / "file").write_text("two")
    assert revision(checkout) == f"{head}-dirty"


def test_revision_without_own_commit_is_unknown(checkout: Path) -> None:
    assert revision(checkout) == "unknown"
    committed(checkout.parent)
    assert revision(checkout) == "unknown", "the repository around it is another project's"
    git(checkout, "init", "--quiet")
    assert revision(checkout) == "unknown"


def test_revision_without_git_executable_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(checkout)
    monkeypatch.setenv("PATH", str(checkout))
    assert shutil.which("git") is None
    assert revision(checkout) == "unknown"


def deployed() -> Recorded:
    return whole(read("test", with_({"training": RUN}), NOW))


def recorded_revision(made: Recorded) -> str | None:
    (container,) = made.one(*JOB).inputs["spec"]["template"]["spec"]["containers"]
    (request,) = (each["value"] for each in container["env"] if each["name"] == "TRAINYARD_REQUEST")
    found: str | None = json.loads(request)["worker"]["env"].get("TRAINYARD_REVISION")
    return found


@pytest.mark.long
def test_new_commit_changes_only_the_launcher_job() -> None:
    with in_a_small_checkout():
        for name in stack.IMAGES:  # no image contains git's files, as in the real checkout
            (stack.ROOT / name / "Dockerfile.dockerignore").write_text(f"*\n!{name}\n")
        first = committed(stack.ROOT)
        one = deployed()
        second = committed(stack.ROOT, "two")
        two = deployed()
    assert (recorded_revision(one), recorded_revision(two)) == (first, second)
    assert second in two.result["launcherManifest"]
    before, after = (
        {
            # Some inputs of the mocks are outputs, which never compare equal.
            (each.type, each.name): json.dumps(each.inputs, sort_keys=True, default=lambda _: "output")
            for each in made.resources
        }
        for made in (one, two)
    )
    assert before.keys() == after.keys()
    # An existing Job keeps its initial values (`ignore_changes` in components/launcher_job.py).
    assert [key for key in before if before[key] != after[key]] == [JOB]


def of_the_run(**change: Any) -> str | None:
    """Return the revision of the run that the stack starts."""
    found = read("test", with_({"training": RUN, **change}), NOW)
    assert found.training
    return stack._run(found, found.training, volumes.Volumes()).revision


def test_revision_without_git_is_unknown() -> None:
    with in_a_small_checkout():
        assert of_the_run() == "unknown"


def test_revision_of_existing_image_is_absent() -> None:
    """The image has its own revision label."""
    given = {"trainer": "registry.example/trainer@sha256:" + "0" * 64}
    with in_a_small_checkout():
        head = committed(stack.ROOT)
        assert of_the_run() in (head, f"{head}-dirty")
        assert of_the_run(images=given) is None
