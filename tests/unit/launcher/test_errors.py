"""Find the error in the output of a process."""

from __future__ import annotations

import pytest

from launcher.errors import describe, error_line

pytestmark = pytest.mark.unit
AGENT = (
    "E1126 16:39:57.046000 71 {}torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1)"
)
CHAINED = """Traceback (most recent call last):
  File x
ValueError: a

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File y
KeyError: 'b'
Exception ignored in: <x>"""
ABORTED = """terminate called after throwing an instance of 'c10::Error'
  what():  CUDA error: bad
frame #0"""
SYNTAX = """  File "t.py", line 1
    x =
       ^
SyntaxError: invalid syntax"""


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (CHAINED, "KeyError: 'b'"),
        (ABORTED, "what(): CUDA error: bad"),
        (SYNTAX, "SyntaxError: invalid syntax"),
        ("train.sh: line 3: pyton: command not found\nbye", "train.sh: line 3: pyton: command not found"),
        ("did nothing", ""),
        ("\x1b[1;31mTraceback (most recent call last):\x1b[0m\n  x\n\x1b[31mOops: y\x1b[0m\nbye", "Oops: y"),
        *((f"error: no data\n{AGENT.format(place)}", "error: no data") for place in ("", "/opt/venv/lib/")),
        ("", ""),
    ],
)
def test_error_line_of_an_output(output: str, error: str) -> None:
    assert error_line(output.splitlines()) == error


def test_output_without_an_error_shows_its_last_line() -> None:
    assert describe(["step 1", "did nothing", ""]) == "the last line of its log is 'did nothing'"
    assert describe(["RuntimeError: x", "bye"]) == "RuntimeError: x"
    assert describe([]) == ""
