"""ping without a raw socket.

Pods share one network. With a raw socket, a pod could read the packets of all pods. Instead it sends a UDP datagram to
a port that is not in use, as traceroute(8) does. The kernel answers with ICMP "port unreachable" for every address of
127.0.0.0/8, whether a pod has it or not.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import socket
import sys
import time

DATA = bytes(56)
# traceroute(8) begins with this port. A port in use gives no answer.
FIRST_PORT, PORTS = 33434, 1000


def send(address: str, number: int, seconds: float) -> float | None:
    """Return the seconds until the answer to one datagram, None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(seconds)
        started = time.monotonic()
        link.connect((address, FIRST_PORT + number % PORTS))
        try:
            link.send(DATA)
            link.recv(1)
        except ConnectionRefusedError:
            return time.monotonic() - started
        except TimeoutError:
            return None
    return None


def main() -> int:
    """Send `-c` requests, or until Ctrl-C. Return 1 if none was answered, 2 if none could be sent."""
    parser = argparse.ArgumentParser(prog="ping")
    parser.add_argument("-c", dest="count", type=int, help="send so many requests (default: until Ctrl-C)")
    parser.add_argument("-W", dest="seconds", type=float, default=10, help="wait so long for each answer")
    parser.add_argument("host")
    given = parser.parse_args()
    try:
        address = socket.gethostbyname(given.host)
    # Python raises UnicodeError for a name with an empty label, such as .training.
    except (OSError, UnicodeError) as error:
        why = "no such name" if isinstance(error, UnicodeError) else error.strerror or error
        print(f"ping: {given.host}: {why}", file=sys.stderr)
        return 2
    print(f"PING {given.host} ({address}): {len(DATA)} data bytes", flush=True)
    sent = answered = 0
    with contextlib.suppress(KeyboardInterrupt):
        for number in itertools.count() if given.count is None else range(given.count):
            if number:
                time.sleep(1)
            sent += 1
            taken = send(address, number, given.seconds)
            if taken is not None:
                answered += 1
                print(
                    f"{len(DATA)} bytes from {address}: seq={number} time={taken * 1000:.3f} ms",
                    flush=True,
                )
    print(f"--- {given.host} ping statistics ---\n{sent} packets transmitted, {answered} packets received")
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(main())
