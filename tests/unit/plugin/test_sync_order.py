"""`sync` with a bucket: the workers are told first, and what is half done says so."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.plugin import upload
from launcher.workspace.errors import WorkspaceError
from launcher.workspace.store import Pointer
from tests.unit.plugin.plugin_api import JOBS, Run, TorchrunApi

pytestmark = pytest.mark.unit
OLD = {"digest": "sha256:" + "0" * 64, "sizeBytes": 1, "url": "s3://code/team/workspaces/0.tar.zst"}


class Bucket:
    """One that has everything, and may not be written to."""

    def __init__(self) -> None:
        self.pointed: list[Pointer] = []
        self.refuses = False

    def send(self, *_: Any) -> bool:
        return False

    def point(self, _url: str, pointer: Pointer) -> None:
        if self.refuses:
            raise WorkspaceError("bucket: code: AccessDenied")
        self.pointed.append(pointer)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(upload, "bucket", lambda: made)
    return made


def test_a_job_does_not_name_what_its_workers_were_not_told(
    api: TorchrunApi, run: Run, bucket: Bucket
) -> None:
    api.job("one", phase="Running", workspace=OLD)
    bucket.refuses = True
    result, out, err = run("sync", "one")
    assert (result, out) == (65, "")
    assert "AccessDenied" in err
    assert api.objects[f"{JOBS}/one"]["spec"]["workspace"] == OLD


def test_a_job_that_cant_be_changed_says_that_its_workers_were_told(
    api: TorchrunApi, run: Run, bucket: Bucket
) -> None:
    api.job("one", phase="Running", workspace=OLD)
    api.refused.add(("PATCH", f"{JOBS}/one"))
    result, out, err = run("sync", "one")
    assert (result, out) == (77, "")
    assert err.splitlines()[-1].endswith(
        "; workers take the new workspace, the job names the old one: run sync again"
    )
    api.refused.clear()
    assert run("sync", "one")[0] == 0
    named = api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]
    assert [pointer.digest for pointer in bucket.pointed] == [named, named]
