"""Find the error in the output of a process."""

from __future__ import annotations

import pytest

from launcher.errors import describe, error_line, is_consequence

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
HANDLED = """Traceback (most recent call last):
  File "x.py", line 3, in f
ConnectionResetError: Connection closed by peer"""
STEPS = "\n".join(f"step={step} loss=0.5" for step in range(30))
TORCHRUN = f"""{AGENT.format("")}
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 10, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
{STEPS}"""
FINAL = "error: loss: nan at step 9000"


@pytest.mark.parametrize(
    ("output", "error"),
    [
        (CHAINED, "KeyError: 'b'"),
        (ABORTED, "what(): CUDA error: bad"),
        (SYNTAX, "SyntaxError: invalid syntax"),
        ("train.sh: line 3: pyton: command not found\nbye", "train.sh: line 3: pyton: command not found"),
        ("did nothing", ""),
        (f"{HANDLED}\nstep=9000 loss=0.5\n{FINAL}", FINAL),
        (f"{HANDLED}\n{STEPS}\n{FINAL}", FINAL),
        (f"{HANDLED}\n{STEPS}", ""),
        (f"{HANDLED}\n{STEPS}\n{CHAINED}", "KeyError: 'b'"),
        (f"{CHAINED}\nerror: process 3 failed. See its log", "KeyError: 'b'"),
        (f"{CHAINED}\nerror: training ended with exit code 1 (process 0 with 1)", "KeyError: 'b'"),
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


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (HANDLED, True),
        (f"{HANDLED}\nbye", True),
        (f"{HANDLED}\n{TORCHRUN}", True),
        (f"[rank1]: {HANDLED}\n{STEPS}", False),
        (f"{HANDLED}\n{STEPS}\n{CHAINED}", False),
        (f"{CHAINED}\n{STEPS}\n{HANDLED}", True),
        ("error: process 0 failed. See its log", True),
        ("error: rank 1: the rendezvous store on rank 0's node is not reachable: its node ended", True),
    ],
)
def test_traceback_before_ordinary_output_is_no_consequence(output: str, expected: bool) -> None:
    assert is_consequence(output.splitlines()) is expected
