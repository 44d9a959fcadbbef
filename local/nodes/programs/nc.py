"""nc: check whether a TCP port is open (`nc -zv HOST PORT`), or send lines and print the answers."""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading

CHUNK = 1 << 16


def send_input(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, CHUNK):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def main() -> int:
    """Return 1 if nothing listens or the name has no address."""
    parser = argparse.ArgumentParser(prog="nc")
    parser.add_argument("-z", dest="only_look", action="store_true", help="connect and send nothing")
    parser.add_argument("-v", dest="say", action="store_true", help="say how it went")
    parser.add_argument("-w", dest="seconds", type=float, default=None, help="seconds until it gives up")
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    place = f"{given.host} port {given.port} (tcp)"
    try:
        connection = socket.create_connection((given.host, given.port), given.seconds)
    # Python raises UnicodeError for a name with an empty label, such as .training.
    except (OSError, UnicodeError) as error:
        if given.say:
            why = "no such name" if isinstance(error, UnicodeError) else error.strerror or error
            print(f"nc: connect to {place} failed: {why}", file=sys.stderr)
        return 1
    if given.say:
        address = connection.getpeername()[0]
        print(f"Connection to {given.host} ({address}) {given.port} port [tcp/*] succeeded!", file=sys.stderr)
    with connection:
        if given.only_look:
            return 0
        threading.Thread(target=send_input, args=(connection,), daemon=True).start()
        with contextlib.suppress(OSError):
            while data := connection.recv(CHUNK):
                os.write(1, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
