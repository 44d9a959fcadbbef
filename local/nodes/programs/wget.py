"""wget: fetch one HTTP resource into a file or, with `-O-`, to standard output."""

from __future__ import annotations

import argparse
import http.client
import shutil
import sys
import urllib.request
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

FAILED, REFUSED_BY_SERVER = 4, 8  # exit codes of GNU wget: network failure, error response


def main() -> int:
    """Fetch the resource. Without `-q` an error is one line."""
    parser = argparse.ArgumentParser(prog="wget")
    parser.add_argument("-q", dest="quiet", action="store_true", help="say nothing")
    parser.add_argument("-O", dest="file", help="where to; - is the output")
    parser.add_argument("-T", dest="seconds", type=float, default=900, help="seconds until it gives up")
    parser.add_argument("-t", dest="tries", type=int, default=1, help="accepted; it is tried once")
    parser.add_argument("url")
    given = parser.parse_args()
    url = given.url if "://" in given.url else f"http://{given.url}"
    if urlsplit(url).scheme not in ("http", "https"):
        parser.error(f"{url}: http and https are fetched")
    # No proxies, because all addresses are on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=given.seconds) as answer:
            if given.file == "-":
                shutil.copyfileobj(answer, sys.stdout.buffer)
            else:
                with open(given.file or Path(urlsplit(url).path).name or "index.html", "wb") as file:
                    shutil.copyfileobj(answer, file)
    except (OSError, UnicodeError, http.client.HTTPException) as error:
        if not given.quiet:
            print(f"wget: {url}: {error}", file=sys.stderr)
        return REFUSED_BY_SERVER if isinstance(error, HTTPError) else FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
