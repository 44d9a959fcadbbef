from __future__ import annotations

import pytest

from local.nodes.dockerfile import parse

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


def test_dockerfile_stage_inherits_from_its_base() -> None:
    image = parse(TWO_STAGES)
    assert image.entrypoint == ("python", "-m", "base")
    assert image.command == ("run", "--fast")
    assert image.workdir == "/app/sub"
    assert image.environment == {"A": "1", "B": "two words", "C": "3.11-x", "OLD": "form value"}


def test_dockerfile_target_is_found_by_name_or_number() -> None:
    assert parse(TWO_STAGES, "base").command == ("--help",)
    assert parse(TWO_STAGES, "0").workdir == "/app"
    assert parse(TWO_STAGES, "final").workdir == "/app/sub"


def test_dockerfile_missing_stage_is_named() -> None:
    with pytest.raises(ValueError, match="no stage 'nothing'"):
        parse(TWO_STAGES, "nothing")


def test_dockerfile_new_entrypoint_drops_inherited_command() -> None:
    image = parse('FROM a AS x\nCMD ["old"]\nFROM x\nENTRYPOINT ["new"]\n')
    assert (image.entrypoint, image.command) == (("new",), ())


def test_dockerfile_shell_form_runs_in_a_shell() -> None:
    assert parse("FROM a\nCMD python -m x && y\n").command == ("/bin/sh", "-c", "python -m x && y")


def test_dockerfile_variable_default_is_used_if_unset() -> None:
    image = parse("FROM a\nARG X\nENV P=${X:-d}\nENV Q=${P:+set} R=\\$P S=$P P=2\n")
    assert image.environment == {"P": "2", "Q": "set", "R": "$P", "S": "d"}


def test_dockerfile_without_stage_or_with_bad_command_fails() -> None:
    with pytest.raises(ValueError, match="no FROM"):
        parse("# nothing\n")
    with pytest.raises(ValueError, match="not a JSON list"):
        parse('FROM a\nCMD ["x\n')
