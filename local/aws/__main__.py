"""`python -m local.aws --home DIR --port P`: serve the AWS API of the local cloud until SIGTERM."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Start the server, and write `run/aws.json` for the supervisor. On errors, print one line and exit with 1."""
    parser = argparse.ArgumentParser(
        prog="python -m local.aws", description="The AWS API of the local cloud."
    )
    parser.add_argument("--home", required=True, help="state directory of the local cloud")
    parser.add_argument("--port", required=True, type=int, help="port on 127.0.0.1; 0 chooses a free one")
    arguments = parser.parse_args()

    # moto reads its settings at import, so its modules are imported after this call.
    from local.aws.account import prepare_environment

    prepare_environment(os.environ)
    from local.aws.server import serve

    def stop(_signal: int, _frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        serve(arguments.home, arguments.port)
    except OSError as error:
        sys.exit(f"local.aws: cannot listen on 127.0.0.1:{arguments.port}: {error}")


if __name__ == "__main__":
    main()
