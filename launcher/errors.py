"""Find the error in the last lines of a program's output, and the meaning of its exit code. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

_MAX_LENGTH: Final = 300
# Escape sequences of terminals: colours (ECMA-48, CSI) and window titles (OSC). Then all other control characters, and
# those of the bidirectional algorithm, which show text in another order (UAX #9: LRE to RLO, LRI to PDI).
_ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_CONTROLS: Final = (*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_REMOVED: Final = {code: None for code in _CONTROLS if chr(code) not in "\t\n"}
# The limit of a line: a worker may print anything, and the time of the search is quadratic in the line's length.
_SEARCHED_LENGTH: Final = 1000
# The prefix that the excepthook of torch.distributed adds to each line.
RANK_PREFIX: Final = re.compile(r"^\[rank\d+\]: ?")
_TRACEBACK: Final = "Traceback (most recent call last)"
# A traceback that more lines than this follow has not ended the program. An exception's message may have some lines.
_MAX_MESSAGE_LINES: Final = 10
# torchrun's own exception. Its summary of the failed processes follows.
_TORCHRUN_ERROR: Final = "ChildFailedError"
# The last line of a program that reports an error without a traceback, such as the trainer.
_FINAL_ERROR: Final = "error: "
_ERROR_WORDS: Final = re.compile(
    r"error|exception|fatal|killed|no such file|not found|segmentation fault|aborted|denied|failed", re.I
)
# A line of torchrun's own log.
TORCHRUN_LOG: Final = re.compile(r"^[EWI]\d{4} \S+ +\d+ \S*torch/distributed/")
# The line that the trainer's entry point prints after its processes ended (trainer/entrypoint.py).
_TRAINER_SUMMARY: Final = "error: training ended with exit code"
# Errors of a process that lost a peer, store or agent. Sources: third_party/gloo gloo/transport/tcp/pair.cc,
# torch/csrc/distributed/c10d (NCCLUtils.cpp, ProcessGroupNCCL.cpp, TCPStore*.cpp, socket.cpp, exception.h),
# torch/distributed/elastic (multiprocessing/api.py SignalException, rendezvous/api.py), trainer/failure_broadcast.py.
_CONSEQUENCE: Final = re.compile(
    r"gloo/transport|Connection closed by peer|Connection closed by remote peer"
    r"|ncclRemoteError|remote process exited|NCCL[^\n]*(?:aborted|Connection (?:reset|closed|refused)|socket)"
    r"|collective operation timeout|Dist(?:Network|Store)Error"
    r"|(?:TCPStore|socket\.cpp|sendBytes|recvValue|c10d)[^\n]*(?:Broken pipe|Connection reset|closed)"
    r"|Failed to recv, got 0 bytes|Connection was likely closed|SignalException|got signal: (?:2|15)\b"
    r"|Rendezvous\w*Error|waiting on exit barrier"
    r"|process \d+ failed\. See its log|the rendezvous store on rank 0's node is not reachable"
)  # fmt: skip


def strip_control_characters(text: str) -> str:
    """Return a worker's text without escape sequences and control characters except newlines and tabs."""
    if text.isprintable():
        return text
    return _ESCAPES.sub("", text).translate(_REMOVED)


def error_line(lines: Sequence[str]) -> str:
    """Return the error of the last traceback, or after it, else the last line with an error; "" for none."""
    lines = _drop_handled([RANK_PREFIX.sub("", strip_control_characters(line)) for line in lines])
    output = _without_summary(lines)
    starts = [place for place, line in enumerate(lines) if _starts_traceback(line)]
    if starts:
        after = _without_summary(lines[starts[-1] + 1 :])
        finals = [each for each in after if each.startswith(_FINAL_ERROR) and not _is_consequence_line(each)]
        own = [each for each in after if each.strip(" |") and not each.startswith(" ")]
        if found := (*finals[-1:], *own[:1]):
            return _shorten(found[0])
    aborted = [line for line in output if line.lstrip().startswith("what():")]
    named = [line for line in output if _ERROR_WORDS.search(line) and not TORCHRUN_LOG.match(line)]
    return _shorten(next((each[-1] for each in (aborted, named) if each), ""))


def describe(lines: Sequence[str]) -> str:
    """Return the error line for a message, else the last line with a note that it is the last; "" for no output."""
    if error := error_line(lines):
        return error
    output = _without_summary([RANK_PREFIX.sub("", strip_control_characters(line)) for line in lines])
    return f"the last line of its log is '{_shorten(output[-1])}'" if output else ""


def is_consequence(lines: Sequence[str]) -> bool:
    """Return whether the error is a consequence of another process's end."""
    return any(map(_is_consequence_line, _from_traceback(lines)))


def _is_consequence_line(line: str) -> bool:
    return bool(_CONSEQUENCE.search(line[:_SEARCHED_LENGTH]))


def _starts_traceback(line: str) -> bool:
    return line.lstrip(" |+").startswith(_TRACEBACK)


def _drop_handled(lines: list[str]) -> list[str]:
    """Return the lines after the last traceback that the program has handled: it went on with ordinary output."""
    ordinary = 0
    for place in range(len(lines) - 1, -1, -1):
        line = lines[place]
        if _starts_traceback(line):
            if ordinary > _MAX_MESSAGE_LINES:
                rest = lines[place + 1 :]
                return rest[next(index for index, each in enumerate(rest) if _is_ordinary(each)) + 1 :]
            ordinary = 0
        elif _TORCHRUN_ERROR in line:
            ordinary = 0
        else:
            ordinary += _is_ordinary(line)
    return lines


def _is_ordinary(line: str) -> bool:
    """Return whether a line belongs neither to a stack trace nor to the last lines of torchrun or the trainer."""
    is_frame = line[:1].isspace() or line.startswith(("|", "+", "frame #"))
    return bool(line) and not (is_frame or TORCHRUN_LOG.match(line) or line.startswith(_TRAINER_SUMMARY))


def _from_traceback(lines: Sequence[str]) -> Sequence[str]:
    """Return the lines from the first traceback on, including chained ones; else the last five lines."""
    lines = _drop_handled([RANK_PREFIX.sub("", strip_control_characters(line)) for line in lines])
    starts = [place for place, line in enumerate(lines) if _TRACEBACK in line]
    return lines[starts[0] :] if starts else lines[-5:]


def _without_summary(lines: Sequence[str]) -> list[str]:
    return [line for line in lines if line.strip() and not line.startswith(_TRAINER_SUMMARY)]


def _shorten(line: str) -> str:
    return " ".join(line.split())[:_MAX_LENGTH]


_SIGNAL_BASE: Final = 128
_HINTS: Final = {
    signal.SIGKILL: "often out of memory",
    signal.SIGBUS: "often /dev/shm is full",
}
_SHELL_CODES: Final = {126: "command not executable", 127: "command not found"}
OUT_OF_MEMORY: Final = "OOMKilled"


def meaning(code: int | None, reason: str = "") -> str:
    """Return the meaning of an exit code, "" if it has no common meaning.

    Args:
        code: The exit code of a container or process. As in shells, it is 128 plus the signal's number after a signal.
        reason: The `reason` of a terminated container from the kubelet. `Error` adds no information.
    """
    if reason == OUT_OF_MEMORY:
        return f"{OUT_OF_MEMORY}: out of memory"
    shown = "" if reason == "Error" else reason
    return ", ".join(each for each in (shown, _describe(code)) if each)


def _describe(code: int | None) -> str:
    if code is None or code in _SHELL_CODES:
        return _SHELL_CODES.get(code, "") if code is not None else ""
    try:
        number = signal.Signals(code - _SIGNAL_BASE)
    except ValueError:
        return ""
    hint = _HINTS.get(number)
    return f"{number.name}, {hint}" if hint else number.name
