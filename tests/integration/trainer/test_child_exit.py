"""The operator reads a command's exit code from the last lines of torchrun's log, as the kubelet keeps them."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.integration.trainer.forks import ForkedProgram
from trainyard.operator.api.job import C10D
from trainyard.operator.command import Rendezvous, build_command
from trainyard.operator.observe import command_exit_code, read_termination_message
from trainyard.operator.resources import Size

pytestmark = pytest.mark.trainer

KEPT_BYTES = 2048
ENDS = "import os, signal, sys; own = sys.argv[1 + int(os.environ['RANK'])]; "
LEAVES = ENDS + "sys.exit(int(own))"
KILLED = ENDS + "int(own) and os.kill(os.getpid(), int(own))"
RAISES = "open('/none/of/it')"
COMMANDS = [
    ("python", ("-c", LEAVES, "0", "3"), 3),
    ("python", ("-c", KILLED, "0", "9"), 137),
    ("python", ("-c", RAISES), 1),
    ("pyhton", ("train.py",), 127),
    ("./unset.sh", (), 126),
    ("no-such-program | cat; exit 5", (), 5),
    # torchrun replaces such variables itself.
    ("for local_rank in 4; do exit $local_rank; done", (), 4),
    ("kill -9 $$", (), 137),
]


def programs() -> str:
    """Return a PATH with torchrun."""
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(("typed", "args", "code"), COMMANDS, ids=[f"{c[0]}-{c[2]}" for c in COMMANDS])
def test_exit_code_is_that_of_the_command(
    typed: str, args: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    script = tmp_path / "unset.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(stat.S_IRUSR)
    rendezvous = Rendezvous(
        backend=C10D,
        endpoint="localhost:0",
        id="one",
        size=Size(nodes=1, minimum=1, gpus=2),
        is_external=False,
    )
    built = build_command(typed, args, rendezvous, "torchrun")
    program, *words = [each.replace("$$", "$") for each in built.words]  # as the kubelet does
    assert program == "torchrun"
    environ = {**os.environ, **built.environment, "PATH": programs()}
    # Even root cannot execute a file without the permission.
    torchrun = ForkedProgram(["-m", "torch.distributed.run", *words], environ, directory=tmp_path)
    output, _ = torchrun.communicate(timeout=120)
    message = output.encode()[-KEPT_BYTES:].decode(errors="replace")
    assert torchrun.returncode == 1, message
    assert command_exit_code(1, read_termination_message(message)) == code, message


def test_exit_code_without_torchruns_report_is_the_containers() -> None:
    for own in (None, 0, 1, 7, 137):
        assert command_exit_code(own, read_termination_message("")) == own
    summary = "Root Cause (first observed failure):\n  exitcode  : 3 (pid: 1) \n"
    assert command_exit_code(143, read_termination_message(summary)) == 143
    message = "[default0]:  File \"/x/subprocess_handler.py\", line 1\nFileNotFoundError: [Errno 2] 'data'\n"
    assert command_exit_code(1, read_termination_message(message)) == 1, "the command's own traceback"
