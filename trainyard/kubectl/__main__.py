"""`kubectl torchrun`, the executable `kubectl-torchrun`: torchrun jobs from the current directory.

Exit codes: trainyard/kubectl/errors.py.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence

from trainyard.kubectl.errors import DONE, INTERRUPTED, OUTPUT, PROGRAM, PluginError


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs one verb and returns the exit code; what is wrong is one line on standard error."""
    follows = False
    try:
        # They take as long as many a verb does, and may be interrupted as well.
        from trainyard.kubectl.cli import parser
        from trainyard.kubectl.packing import packing

        options = parser().parse_args(arguments)
        follows = getattr(options, "follow", False)
        with packing(options) as packed:
            from trainyard.kubectl.list import run  # this import takes as long as packing does

            code = run(options, packed, environment)
            sys.stdout.flush()
            return code
    except PluginError as error:
        return _told(str(error), error.code)
    except KeyboardInterrupt:
        return _told("interrupted", INTERRUPTED)
    except BrokenPipeError:  # who reads us has enough
        _close_output()
        if follows:  # 0 would say that the job succeeded
            return _told("standard output: nobody reads it any more; how the job ends is not known", OUTPUT)
        return DONE
    except OSError as error:
        if error.filename is None:  # what has a name was no output
            _close_output()
        return _told(f"{error.filename or 'standard output'}: {error.strerror or error}", OUTPUT)


def _told(line: str, code: int) -> int:
    from trainyard.kubectl.progress import say

    say(f"{PROGRAM}: {line}")
    return code


def _close_output() -> None:
    """What is not written yet is not tried again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _listen() -> None:
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one of them
            signal.signal(number, signal.default_int_handler)


def entry() -> None:
    """The executable `kubectl-torchrun`."""
    # What is imported stays: to look through it again and again for what could go is a fourth of the time.
    gc.set_threshold(100_000)
    if sys.stderr is None:  # closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    try:
        _listen()
        if sys.stdout is None:
            sys.exit(_told("standard output: is closed; nothing is done", OUTPUT))
        code = main(sys.argv[1:], os.environ)
    except KeyboardInterrupt:  # before `main` listens to it, or once more while it ends
        code = _told("interrupted", INTERRUPTED)
    gc.freeze()  # at the end, too: what is there goes with the process
    sys.exit(code)


if __name__ == "__main__":
    entry()
