"""Ports of this machine, for processes that train together on it."""

import socket


def free_ports(count: int) -> list[int]:
    """Returns ports that nobody listened on a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
