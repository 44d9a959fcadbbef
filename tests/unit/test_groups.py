"""Which tests one worker has: a name in conftest.py that no file has would group, or hasten, nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import LONGEST_UNITS, UNITS_TOGETHER, group

pytestmark = pytest.mark.unit

UNIT = Path(__file__).parent


@pytest.mark.parametrize(
    "name", [*UNITS_TOGETHER, *sorted(set(LONGEST_UNITS) - set(UNITS_TOGETHER.values()))]
)
def test_each_name_is_that_of_a_file(name: str) -> None:
    assert (UNIT / f"{name}.py").is_file()


def test_files_of_one_group_share_a_worker() -> None:
    groups = {name: group(f"tests/unit/{name}.py::test_it[a/b]") for name in UNITS_TOGETHER}
    assert groups == UNITS_TOGETHER


def test_files_of_one_name_in_other_folders_are_others() -> None:
    assert group("tests/integration/policy/test_shipped_stacks.py::test_it") == "previews"
    one, other = (
        group(f"tests/unit/{folder}/test_network.py::test_it") for folder in ("components", "preflight")
    )
    assert one != other
