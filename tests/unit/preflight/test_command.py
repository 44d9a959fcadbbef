"""The command line of both commands."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import yaml

from infra.settings import Settings
from tests.unit.infra.changing import BASE, POOL
from trainyard.preflight import command
from trainyard.preflight.aws import Aws
from trainyard.preflight.leftovers.search import Search

ENDED = {
    **BASE,
    "trainyard:pools": [
        {
            **POOL,
            "instanceType": "p5.48xlarge",
            "purchase": "reserved",
            "reservationType": "capacity-block",
            "capacityReservationIds": ["cr-0123456789abcdef0"],
            "reservationEnds": "2024-01-31T11:30:00Z",
        }
    ],
}


def test_leftovers_take_a_reservation_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(yaml.safe_dump({"config": ENDED}))
    seen: list[Settings] = []

    def run(settings: Settings, aws: Aws, _state: Path | None) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr("sys.argv", ["x", "--stack", "dev", "--file", str(path)])
    assert command.main("trainyard.preflight", "", run) == 1
    assert not seen
    assert "is past" in capsys.readouterr().err
    assert command.main("trainyard.preflight.leftovers", "", run, takes_ended=True) == 0
    assert seen[0].pools[0].reservation_ends == "2024-01-31T11:30:00+00:00"
    # As `make verify-clean` starts it.
    monkeypatch.setattr("trainyard.preflight.leftovers.search.search", lambda *_: Search())
    monkeypatch.delitem(sys.modules, "trainyard.preflight.leftovers.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("trainyard.preflight.leftovers", run_name="__main__")
    assert ended.value.code == 0
