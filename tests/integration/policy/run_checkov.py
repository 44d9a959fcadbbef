"""Run checkov on several inputs: `run_checkov.py DIRECTORY`, with one file of arguments for each input in it.

checkov's own Python runs it. checkov takes 2 s of processor time to import, so each input is a fork of this process,
which sees nothing of the others. `NAME.arguments` is a JSON list; the report goes to `NAME.report`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

# checkov imports these itself only when it runs.
import checkov.dockerfile.runner
import checkov.kubernetes.runner
import checkov.terraform.plan_runner  # noqa: F401
from checkov.main import Checkov

FAILED_TO_RUN = 2


def main(directory: Path) -> int:
    """Write a report for each input; return 0, or FAILED_TO_RUN if one has none."""
    is_complete = True
    for arguments in sorted(directory.glob("*.arguments")):
        child = os.fork()
        if child == 0:
            run(json.loads(arguments.read_text()), arguments.with_suffix(".report"))
        _, status = os.waitpid(child, 0)
        is_complete &= os.waitstatus_to_exitcode(status) == 0
    return 0 if is_complete else FAILED_TO_RUN


def run(arguments: list[str], report: Path) -> None:
    """Run checkov in this process with its output in a file, and exit."""
    code = FAILED_TO_RUN
    try:
        with report.open("w") as sink:
            os.dup2(sink.fileno(), 1)
        Checkov(argv=arguments).run()
        sys.stdout.flush()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
