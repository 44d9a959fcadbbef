"""An archive that is in the cluster already is copied there."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.core.torchrun import names as n
from launcher.plugin import near_archives
from launcher.workspace.store import Store
from tests.unit.plugin.plugin_api import JOBS, Run, TorchrunApi, only_line
from tests.unit.workspace.archives import serving

pytestmark = pytest.mark.unit


def test_what_another_job_s_pod_has_is_not_sent_again(
    api: TorchrunApi, run: Run, pod: Store, stores: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.queue("q")
    for name in ("one", "two", "three", "four", "five"):
        api.pod(f"{name}-sync-0", n.SYNC_CONTAINER)

    def submitted(name: str) -> str:
        result, _, err = run("submit", "--queue", "q", "--gpus", "8", "--name", name, "python train.py")
        assert result == 0, err
        return only_line(err)

    with serving(pod) as address:
        monkeypatch.setattr(
            near_archives, "sync_pod_url", lambda job, _: address if job == "one" else "http://127.0.0.1:1"
        )
        assert submitted("one").endswith(" sent")
        digest = api.objects[f"{JOBS}/one"]["spec"]["workspace"]["digest"]
        assert "unchanged, its " in submitted("two")
        assert Store(stores / "two-sync-0").archive(digest).read_bytes() == pod.archive(digest).read_bytes()
        api.objects[f"{JOBS}/one"]["status"] = {"phase": n.PHASE_FAILED}
        assert submitted("three").endswith(" sent"), "an ended job has no pod, and two's does not answer"
        api.objects[f"{JOBS}/one"]["status"] = {"phase": n.PHASE_RUNNING}
        api.refused.add(("GET", JOBS))
        assert submitted("four").endswith(" sent"), "who may not list jobs sends it"
        api.refused.clear()
        (code / "train.py").write_text("print(2)\n")
        assert run("sync", "one")[2].strip().endswith(" sent")
        _, _, err = run("sync", "two")
        assert "unchanged, its " in only_line(err), "what one was brought comes from there"
        assert "unchanged, its " in submitted("five")
        assert Store(stores / "five-sync-0").current() == pod.current()
