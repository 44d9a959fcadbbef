from __future__ import annotations

import pytest

from local.nodes.dockerfile import parse

pytestmark = pytest.mark.unit

TWO_STAGES = """
# syntax=docker/dockerfile:1
ARG VERSION=3.11
FROM --platform=linux/amd64 python:${VERSION}-slim AS base
ENV A=1 B="two words" \\
    C=$VERSION-x
WORKDIR /app
RUN pip install \\
    # a comment in between
    something
ENTRYPOINT ["python", "-m", "base"]
CMD ["--help"]

FROM base AS final
ENV OLD form value
WORKDIR sub
CMD ["run", "--fast"]
"""


def test_the_last_stage_inherits_from_the_stage_it_is_built_from() -> None:
    image = parse(TWO_STAGES)
    assert image.entrypoint == ("python", "-m", "base")
    assert image.command == ("run", "--fast")
    assert image.workdir == "/app/sub"
    assert image.environment == {"A": "1", "B": "two words", "C": "3.11-x", "OLD": "form value"}


def test_a_target_is_found_by_name_and_by_number() -> None:
    assert parse(TWO_STAGES, "base").command == ("--help",)
    assert parse(TWO_STAGES, "0").workdir == "/app"
    assert parse(TWO_STAGES, "final").workdir == "/app/sub"


def test_a_stage_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match="no stage 'nothing'"):
        parse(TWO_STAGES, "nothing")


def test_a_new_entry_point_drops_the_command_that_was_inherited() -> None:
    image = parse('FROM a AS x\nCMD ["old"]\nFROM x\nENTRYPOINT ["new"]\n')
    assert (image.entrypoint, image.command) == (("new",), ())


def test_the_shell_form_runs_in_a_shell() -> None:
    assert parse("FROM a\nCMD python -m x && y\n").command == ("/bin/sh", "-c", "python -m x && y")


def test_defaults_in_variables_are_used_where_nothing_is_set() -> None:
    image = parse("FROM a\nARG X\nENV P=${X:-d}\nENV Q=${P:+set} R=\\$P S=$P P=2\n")
    assert image.environment == {"P": "2", "Q": "set", "R": "$P", "S": "d"}


def test_a_file_without_a_stage_and_a_broken_command_are_errors() -> None:
    with pytest.raises(ValueError, match="no FROM"):
        parse("# nothing\n")
    with pytest.raises(ValueError, match="not a JSON list"):
        parse('FROM a\nCMD ["x\n')
