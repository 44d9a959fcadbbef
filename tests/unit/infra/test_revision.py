"""Which revision of the project a stack says that it trains with, and that a commit changes nothing but that."""

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

pytestmark = [
    pytest.mark.unit,
    # The SDK imports the old names of what it exports.
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

RUN = {"pool": "small", "minNodes": 1, "maxNodes": 4, "runId": "r1"}
JOB = ("kubernetes:batch/v1:Job", "launch-r1")


def committed(place: Path, message: str = "one") -> str:
    """Make a commit of all that is there; returns its hash."""
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


def test_a_checkout_says_its_whole_hash_and_whether_files_differ(checkout: Path) -> None:
    head = committed(checkout)
    git(checkout, "tag", "--annotate", "--message", "v1", "v1")
    (checkout / "new").touch()
    assert revision(checkout) == head
    (checkout / "file").write_text("two")
    assert revision(checkout) == f"{head}-dirty"


def test_without_a_commit_of_its_own_nobody_knows(checkout: Path) -> None:
    assert revision(checkout) == "unknown"
    committed(checkout.parent)
    assert revision(checkout) == "unknown", "the repository around it is another project's"
    git(checkout, "init", "--quiet")
    assert revision(checkout) == "unknown"


def test_without_git_nobody_knows(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed(checkout)
    monkeypatch.setenv("PATH", str(checkout))
    assert shutil.which("git") is None
    assert revision(checkout) == "unknown"


def deployed() -> Recorded:
    return whole(read("test", with_({"training": RUN}), NOW))


def told(made: Recorded) -> str | None:
    (container,) = made.one(*JOB).inputs["spec"]["template"]["spec"]["containers"]
    (request,) = (each["value"] for each in container["env"] if each["name"] == "TRAINYARD_REQUEST")
    found: str | None = json.loads(request)["worker"]["env"].get("TRAINYARD_REVISION")
    return found


@pytest.mark.long
def test_another_commit_changes_the_job_that_is_begun_with_it_and_no_other_resource() -> None:
    with in_a_small_checkout():
        for name in stack.IMAGES:  # as in the real one, git's own files are in no image
            (stack.ROOT / name / "Dockerfile.dockerignore").write_text(f"*\n!{name}\n")
        first = committed(stack.ROOT)
        one = deployed()
        second = committed(stack.ROOT, "two")
        two = deployed()
    assert (told(one), told(two)) == (first, second)
    assert second in two.result["launcherManifest"]
    before, after = (
        {
            # Some inputs of the mocks are outputs, which are equal to nothing.
            (each.type, each.name): json.dumps(each.inputs, sort_keys=True, default=lambda _: "output")
            for each in made.resources
        }
        for made in (one, two)
    )
    assert before.keys() == after.keys()
    # A Job that is there keeps what it was begun with (`ignore_changes` in components/launcher_job.py).
    assert [key for key in before if before[key] != after[key]] == [JOB]


def of_the_run(**change: Any) -> str | None:
    """Return the revision of the run that the stack begins."""
    found = read("test", with_({"training": RUN, **change}), NOW)
    assert found.training
    return stack._run(found, found.training, volumes.Volumes()).revision


def test_revision_without_git_is_unknown() -> None:
    with in_a_small_checkout():
        assert of_the_run() == "unknown"


def test_revision_of_existing_image_is_absent() -> None:
    """The image says itself what is in it."""
    given = {"trainer": "registry.example/trainer@sha256:" + "0" * 64}
    with in_a_small_checkout():
        head = committed(stack.ROOT)
        assert of_the_run() in (head, f"{head}-dirty")
        assert of_the_run(images=given) is None
