"""Ports for servers that must be at a known one, now and after they were away.

Not of those that the system gives to outgoing connections: another's could take it between two lives of a server.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

HOST = "127.0.0.1"
FIRST_PORT, LAST_PORT = 10_000, 32_000  # Linux gives others from 32,768 on
TRIES_MAX = 100


def free_ports(count: int = 1) -> int:
    """The first of `count` free ports in a row. OSError if none are found."""
    chance = random.SystemRandom()
    for _ in range(TRIES_MAX):
        first = chance.randint(FIRST_PORT, LAST_PORT)
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            return first
    raise OSError(f"no {count} free ports in a row in {TRIES_MAX} tries")
