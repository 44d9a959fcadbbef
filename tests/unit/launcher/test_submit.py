"""What `python -m launcher.submit` is given instead of a stack's manifest: one line, and nothing is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.submit import main
from trainyard.k8s import names

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xfe\x00", "can't decode"),
        (b"", "the manifest is not JSON"),
        (b"[" * 100_000, "the manifest is not JSON"),
        (b"[]", "the manifest is not a Job"),
        (b'{"kind": "Pod"}', "the manifest is not a Job"),
        (b'{"kind": "Job"}', "the manifest is not a Job"),
        (
            b'{"kind": "Job", "metadata": {}, "spec": {"template": {"spec": {"containers": []}}}}',
            "the manifest is not a Job",
        ),
    ],
)
def test_what_is_no_manifest_is_refused_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, expected: str
) -> None:
    (tmp_path / "manifest").write_bytes(data)
    assert main(["--manifest", str(tmp_path / "manifest")]) == names.EXIT_BAD_REQUEST
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("submit: ")
    assert expected in line
