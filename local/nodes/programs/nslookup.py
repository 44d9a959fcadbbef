"""nslookup: look up a name in the pod's hosts file, which local/nodes writes in place of DNS."""

from __future__ import annotations

import argparse
import socket
import sys


def main() -> int:
    """Print the addresses of the name. Return 1 if it has none."""
    parser = argparse.ArgumentParser(
        prog="nslookup", description="There is no DNS server: a pod's hosts file answers."
    )
    parser.add_argument("name")
    name = parser.parse_args().name
    try:
        found = socket.getaddrinfo(
            name.rstrip("."), None, socket.AF_INET, socket.SOCK_STREAM, 0, socket.AI_CANONNAME
        )
    except (socket.gaierror, UnicodeError):
        print(f"** server can't find {name}: NXDOMAIN")
        return 1
    canonical = found[0][3] or name
    for _, _, _, _, address in found:
        print(f"Name:\t{canonical}\nAddress: {address[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
