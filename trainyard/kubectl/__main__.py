"""`kubectl torchrun`, the executable `kubectl-torchrun`: TorchrunJobs from the current directory.

The entry point is `entry`. Each verb has a module, which is imported when it is used. Exit codes: output.py.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

from trainyard.kubectl.output import DONE, INTERRUPTED, OUTPUT, PROGRAM, PluginError, say


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one verb and return the exit code. Print an error as one line on standard error."""
    options = argparse.Namespace(environment=environment, follow=False)
    options.kubeconfig = options.context = options.namespace = None
    try:
        from trainyard.kubectl.cli import parser

        parser().parse_args(arguments, options)
        code = _run(options)
        sys.stdout.flush()
        return code
    except PluginError as error:
        return _report(str(error), error.code)
    except KeyboardInterrupt:
        return _report("interrupted", INTERRUPTED)
    except BrokenPipeError:  # the reader of the output has ended
        _close_output()
        if options.follow:  # 0 would mean that the job succeeded
            return _report("standard output: was closed; the end of the job is unknown", OUTPUT)
        return DONE
    except OSError as error:
        if error.filename is None:  # an error of the output has no file name
            _close_output()
        return _report(f"{error.filename or 'standard output'}: {error.strerror or error}", OUTPUT)


def _run(options: argparse.Namespace) -> int:
    module = f"trainyard.kubectl.{options.module}"
    if not hasattr(options, "workspace"):
        from trainyard.kubectl.cluster import connect

        return int(import_module(module).run(options, connect(options)))
    # A second process packs the workspace while this one imports the clients of Kubernetes and S3.
    from trainyard.kubectl.packing import packing

    with packing(options) as packed:
        return int(import_module(module).run(options, packed))


def _report(line: str, code: int) -> int:
    say(f"{PROGRAM}: {line}")
    return code


def _close_output() -> None:
    """Redirect the output, so that Python does not write the rest of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _handle_signals() -> None:
    import signal

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
            signal.signal(number, signal.default_int_handler)


def entry() -> None:
    # Imported objects stay until the end. Collections during the imports take a fourth of the time.
    gc.set_threshold(100_000)
    if sys.stderr is None:  # closed
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the end
    try:
        _handle_signals()
        if sys.stdout is None:
            sys.exit(_report("standard output: is closed. Nothing was done", OUTPUT))
        code = main(sys.argv[1:], os.environ)
    except KeyboardInterrupt:  # outside of `main`, or a second one
        code = _report("interrupted", INTERRUPTED)
    gc.freeze()  # no collection at exit
    sys.exit(code)


if __name__ == "__main__":
    entry()
