"""`sync` with a bucket: the archive first, then the job's spec, which alone says what runs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.kubectl.plugin_api import JOBS, Run, TorchrunApi
from trainyard.kubectl import upload
from trainyard.workspace.errors import WorkspaceError

pytestmark = pytest.mark.unit
OLD = {"digest": "sha256:" + "0" * 64, "sizeBytes": 1, "url": "s3://code/team/workspaces/team/0.tar.zst"}


class Bucket:
    """One that takes archives, or refuses them."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.refuses = False

    def send(self, _archive: Any, url: str, *_: Any) -> bool:
        if self.refuses:
            raise WorkspaceError("bucket: code: AccessDenied")
        self.sent.append(url)
        return True


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    monkeypatch.setattr(upload, "bucket", lambda: made)
    return made


def test_sync_with_a_refused_archive_leaves_the_job(api: TorchrunApi, run: Run, bucket: Bucket) -> None:
    api.job("one", phase="Running", workspace=OLD)
    bucket.refuses = True
    result, out, err = run("sync", "one")
    assert (result, out) == (65, "")
    assert "AccessDenied" in err
    assert api.objects[f"{JOBS}/one"]["spec"]["workspace"] == OLD


def test_sync_without_permission_to_patch_changes_nothing(api: TorchrunApi, run: Run, bucket: Bucket) -> None:
    """The bucket has one archive more, under its digest: no worker looks there for what it should run."""
    api.job("one", phase="Running", workspace=OLD)
    api.refused.add(("PATCH", f"{JOBS}/one"))
    result, out, _ = run("sync", "one")
    assert (result, out) == (77, "")
    assert len(bucket.sent) == 1
    assert bucket.sent[0].startswith("s3://code/team/workspaces/team/")
    assert api.objects[f"{JOBS}/one"]["spec"]["workspace"] == OLD
