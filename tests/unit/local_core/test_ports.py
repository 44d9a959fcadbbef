"""Ports for programs that listen on a port of their command line."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from local import ports


def test_they_differ_and_are_none_that_is_taken() -> None:
    taken = ports.PORTS[: len(ports.PORTS) // 2]
    found = ports.free_ports(50, taken)
    assert len(set(found)) == 50
    assert not set(found) & set(taken)


def test_who_connects_is_given_none_of_them() -> None:
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert ports.PORTS.stop <= int(first)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.96.0.7", ""])
def test_one_that_a_socket_has_on_any_address_is_not_free(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine,) = ports.free_ports(1)
    monkeypatch.setattr(ports, "PORTS", range(mine, mine + 1))
    assert ports.free_ports(1) == [mine]
    with socket.socket() as holder:
        holder.bind((address, mine))
        holder.listen()
        with pytest.raises(RuntimeError, match=f"only 0 of 1 ports are free from {mine} to {mine}"):
            ports.free_ports(1)
