"""ping: ICMP echo (RFC 792). The kernel answers for every address of 127.0.0.0/8, whether a pod has it or not."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import socket
import struct
import sys
import time

REQUEST, REPLY = 8, 0
HEADER = "!BBHHH"
DATA = bytes(range(56))


def checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def request(identity: int, number: int) -> bytes:
    """An echo request."""
    empty = struct.pack(HEADER, REQUEST, 0, 0, identity, number) + DATA
    return struct.pack(HEADER, REQUEST, 0, checksum(empty), identity, number) + DATA


def is_reply(packet: bytes, identity: int, number: int) -> bool:
    """Whether an IP packet is the answer to one of our requests; the socket sees everybody's."""
    start = (packet[0] & 15) * 4
    kind, code, _, its, which = struct.unpack(HEADER, packet[start : start + 8])
    return (kind, code, its, which) == (REPLY, 0, identity, number)


def once(link: socket.socket, address: str, number: int, seconds: float) -> float | None:
    """Seconds until the answer, None without one."""
    identity, sent = os.getpid() & 0xFFFF, time.monotonic()
    link.sendto(request(identity, number), (address, 0))
    while (left := sent + seconds - time.monotonic()) > 0:
        link.settimeout(left)
        with contextlib.suppress(TimeoutError):
            if is_reply(link.recv(1024), identity, number):
                return time.monotonic() - sent
    return None


def main() -> int:
    """Until `-c` requests are sent or Ctrl-C; 1 where none was answered, 2 where none could be sent."""
    parser = argparse.ArgumentParser(prog="ping")
    parser.add_argument("-c", dest="count", type=int, help="send so many requests (default: until Ctrl-C)")
    parser.add_argument("-W", dest="seconds", type=float, default=10, help="wait so long for each answer")
    parser.add_argument("host")
    given = parser.parse_args()
    try:
        address = socket.gethostbyname(given.host)
        link = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    # A name with an empty label, such as .training, is no name for Python.
    except (OSError, UnicodeError) as error:
        why = "no such name" if isinstance(error, UnicodeError) else error.strerror or error
        print(f"ping: {given.host}: {why}", file=sys.stderr)
        return 2
    print(f"PING {given.host} ({address}): {len(DATA)} data bytes", flush=True)
    sent = answered = 0
    with link, contextlib.suppress(KeyboardInterrupt):
        for number in itertools.count() if given.count is None else range(given.count):
            if number:
                time.sleep(1)
            sent += 1
            taken = once(link, address, number & 0xFFFF, given.seconds)
            if taken is not None:
                answered += 1
                print(
                    f"{len(DATA) + 8} bytes from {address}: seq={number} time={taken * 1000:.3f} ms",
                    flush=True,
                )
    print(f"--- {given.host} ping statistics ---\n{sent} packets transmitted, {answered} packets received")
    return 0 if answered else 1


if __name__ == "__main__":
    sys.exit(main())
