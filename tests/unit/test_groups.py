"""Which tests one process has."""

from __future__ import annotations

from itertools import chain

import pytest

from tests import suite
from tests.conftest import group


def test_shards_have_each_directory_once() -> None:
    names = suite.unit_tests()
    assert sorted(chain(*suite.shards(names))) == sorted(names)


@pytest.mark.parametrize("name", [*chain(*suite.TOGETHER)])
def test_name_in_a_shard_is_that_of_a_directory(name: str) -> None:
    assert (suite.UNIT / name).is_dir()


def test_live_tests_of_one_folder_share_a_worker() -> None:
    assert group("tests/integration/policy/test_shipped_stacks.py::test_it") == "previews"
