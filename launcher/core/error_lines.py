"""What was wrong with a program, in the last lines of its output. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

_LINE: Final = 300
# torch.distributed's excepthook puts it before each line.
RANK_PREFIX: Final = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK: Final = "Traceback (most recent call last)"
_ERROR_WORDS: Final = re.compile(
    r"error|exception|fatal|killed|no such file|not found|segmentation fault|aborted|denied|failed", re.I
)
# What the trainer's first process says after its processes (trainer/entrypoint.py).
_SUMMED_UP: Final = "error: training ended with exit code"
# What a process says whose peer, store or agent is gone. Sources: third_party/gloo gloo/transport/tcp/pair.cc,
# torch/csrc/distributed/c10d (NCCLUtils.cpp, ProcessGroupNCCL.cpp, TCPStore*.cpp, socket.cpp, exception.h),
# torch/distributed/elastic (multiprocessing/api.py SignalException, rendezvous/api.py), trainer/others.py.
_FOLLOWS: Final = re.compile(
    r"gloo/transport|Connection closed by peer|Connection closed by remote peer"
    r"|ncclRemoteError|remote process exited|NCCL[^\n]*(?:aborted|Connection (?:reset|closed|refused)|socket)"
    r"|collective operation timeout|Dist(?:Network|Store)Error"
    r"|(?:TCPStore|socket\.cpp|sendBytes|recvValue|c10d)[^\n]*(?:Broken pipe|Connection reset|closed)"
    r"|Failed to recv, got 0 bytes|Connection was likely closed|SignalException|got signal: (?:2|15)\b"
    r"|Rendezvous(?:Closed|Timeout|Connection|State|Graceful\w*)\w*Error|waiting on exit barrier"
    r"|process \d+ could not go on; its log says why|the machine where all processes met is gone"
)  # fmt: skip


def error_line(lines: Sequence[str]) -> str:
    """Return the line that says what was wrong: the end of the last traceback, else the last line about an error."""
    lines = [RANK_PREFIX.sub("", line) for line in lines]
    starts = [place for place, line in enumerate(lines) if line.lstrip(" |+").startswith(_TRACEBACK)]
    if starts:
        own = (line for line in lines[starts[-1] + 1 :] if line.strip(" |") and not line.startswith(" "))
        if found := next(own, ""):
            return _short(found)
    said = [line for line in lines if line.strip() and not line.startswith(_SUMMED_UP)]
    aborted = [line for line in said if line.lstrip().startswith("what():")]
    named = [line for line in said if _ERROR_WORDS.search(line)]
    return _short(next((each[-1] for each in (aborted, named, said) if each), ""))


def follows(lines: Sequence[str]) -> bool:
    """Return whether the error follows from the end of another process."""
    return bool(_FOLLOWS.search(_from_traceback(lines)))


def _from_traceback(lines: Sequence[str]) -> str:
    """The last tracebacks, those among them that led to the last one; else the last lines."""
    starts = [place for place, line in enumerate(lines) if _TRACEBACK in line]
    return "\n".join(lines[starts[0] :] if starts else lines[-5:])


def _short(line: str) -> str:
    return " ".join(line.split())[:_LINE]
