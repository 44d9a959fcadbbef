"""The exit code of the user's command under torchrun, which itself ends with 1 whatever its processes ended with. Pure.

What they ended with is in the last lines that it prints, and the kubelet brings these as the container's termination
message (terminationMessagePolicy FallbackToLogsOnError: the last 2048 bytes;
https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/). Its words are those of
ChildFailedError in torch/distributed/elastic/multiprocessing/errors/__init__.py, and Python's own where a program can't
be started.
"""

from __future__ import annotations

import re
from typing import Final

_OF_TORCHRUN: Final = 1
_SIGNALLED: Final = 128
# What a process of Linux can end with, and the signals that it has. The last lines are the command's own words, too.
_MOST: Final = 255
_SIGNALS: Final = 64
_FIRST: Final = re.compile(
    r"^Root Cause \(first observed failure\):$(?:\n.*)*?\n *exitcode *: (-?[0-9]{1,3}) ", re.M
)
# As shells have it.
_NOT_THERE, _NOT_RUN = 127, 126
_NOT_BEGUN: Final = {"FileNotFoundError: [Errno 2] ": _NOT_THERE, "PermissionError: [Errno 13] ": _NOT_RUN}
# The command's own tracebacks have its rank in front of each line.
_BEGINS: Final = re.compile(r"^ +File .*[/.]subprocess_handler\.py\"", re.M)


def exit_code(code: int | None, message: str) -> int | None:
    """That of the process that failed first; `code`, the container's own, where nothing tells of one that can be.

    128 and its number for one that a signal ended, 127 for a program that is not there, 126 for one that may not run.
    """
    if code != _OF_TORCHRUN:
        return code
    told = _FIRST.findall(message)
    if told:
        first = int(told[-1])
        if 0 < first <= _MOST:
            return first
        return _SIGNALLED - first if -_SIGNALS <= first < 0 else code
    last = message.rstrip().rpartition("\n")[2]
    if _BEGINS.search(message):
        return next((own for words, own in _NOT_BEGUN.items() if last.startswith(words)), code)
    return code
