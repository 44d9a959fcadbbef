"""`python -m infra.check --stack NAME`: all mistakes in a stack file, without the engine and without an account."""

from __future__ import annotations

import argparse
import sys

from infra.preflight.stack_file import StackFileError, load
from infra.settings import SettingsError


def main() -> int:
    """The exit code is 1 where the file has a mistake; standard error names them all."""
    parser = argparse.ArgumentParser(prog="python -m infra.check", description=__doc__)
    parser.add_argument("--stack", required=True)
    try:
        load(parser.parse_args().stack)
    except (SettingsError, StackFileError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
