"""Attacks on listeners with TLS and logins, as a program of its own, so that they take no time of the clients watched.

    python -m tests.hostile.tls.attacks KIND HOST PORT COUNT [TOPIC]

It prints `begun` once the attack is on, goes on until its input ends, and then prints how often it did what it does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import sys
import threading
from contextlib import suppress

from flowstone.authentication.plain import encode
from flowstone.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.hostile.tls.renegotiation import is_renegotiation_refused
from tests.support.wire_client import fetch_request, frame

# The beginning of a TLS record with a ClientHello of 512 bytes, of which nothing follows.
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
FETCH_BYTES = 8 << 20
# A slow reader takes this much of its response now and then.
READ_BYTES, READ_INTERVAL_S = 4 << 10, 0.1
LOGIN_TIMEOUT_S = 10.0
PLAIN_SHARE = 10  # every tenth password is one that the broker has to derive a key of


def begun() -> None:
    print("begun", flush=True)


def half_open(address: tuple[str, int], count: int) -> int:
    """Hold so many connections with half a handshake, and open one again for each that is closed."""
    held = [_half_open(address) for _ in range(count)]
    begun()
    sys.stdin.read()
    return len(held)


def _half_open(address: tuple[str, int]) -> socket.socket:
    connection = socket.create_connection(address)
    connection.sendall(HALF_HELLO)
    return connection


def slow_readers(address: tuple[str, int], count: int, topic: str) -> int:
    """Ask for megabytes over so many encrypted connections. Half of them read a little, the others nothing."""
    context, held = trusting_context(), []
    for number in range(count):
        connection = context.wrap_socket(socket.create_connection(address))
        request = fetch_request(topic, 0, max_bytes=FETCH_BYTES)
        connection.sendall(frame(11, request, number))
        held.append(connection)
    begun()
    stopping = stopping_with_input()
    while not stopping.wait(READ_INTERVAL_S):
        for connection in held[::2]:
            with suppress(OSError):  # the broker may close it
                connection.recv(READ_BYTES)
    return len(held)


def handshakes(address: tuple[str, int], count: int) -> int:
    """Complete handshakes without pause, so many at once; return how many."""
    stopping, context, done = stopping_with_input(), trusting_context(), 0
    begun()
    while not stopping.is_set():
        opened = [socket.create_connection(address) for _ in range(count)]
        for connection in opened:
            with suppress(OSError), context.wrap_socket(connection):
                done += 1
    return done


def renegotiations(address: tuple[str, int], count: int) -> int:
    """Connect again and again, so many at once, and ask for a renegotiation each time; return how many were refused."""
    stopping, refused = stopping_with_input(), [0] * count

    def attack(number: int) -> None:
        while not stopping.is_set():
            refused[number] += is_renegotiation_refused(address)

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(count)]
    begun()
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(refused)


def trusting_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def stopping_with_input() -> threading.Event:
    """Return an event that is set when the program's input ends."""
    stopping = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    return stopping


def failed_logins(address: tuple[str, int], per_second: int) -> int:
    """Try so many wrong passwords a second; return how many were refused."""
    return asyncio.run(_log_in_until(address, per_second, stopping_with_input()))


async def _log_in_until(address: tuple[str, int], per_second: int, stopping: threading.Event) -> int:
    refused, number = 0, 0
    running: set[asyncio.Task[bool]] = set()
    loop = asyncio.get_running_loop()
    started = loop.time()
    begun()
    while not stopping.is_set():
        due = int((loop.time() - started) * per_second)
        while number < due and len(running) < per_second:
            running.add(loop.create_task(_fail(address, is_plain=number % PLAIN_SHARE == 0)))
            number += 1
        done, running = await asyncio.wait(running, timeout=0.005) if running else (set(), running)
        refused += sum(task.result() for task in done)
        if not running:
            await asyncio.sleep(0.005)
    for task in running:
        task.cancel()
    return refused


async def _fail(address: tuple[str, int], *, is_plain: bool) -> bool:
    mechanism = "PLAIN" if is_plain else "SCRAM-SHA-512"
    messages = [encode("admin", "guess")] if is_plain else [b"n,,n=admin,r=nonce", b"c=biws,r=nonce,p=AAAA"]
    with suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection(*address)
        try:
            frames = [frame(1, SaslHandshakeRequest(mechanism=mechanism), 1)]
            frames += [frame(2, SaslAuthenticateRequest(auth_bytes=message), 2) for message in messages]
            for each in frames:
                writer.write(each)
                async with asyncio.timeout(LOGIN_TIMEOUT_S):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    answer = await reader.readexactly(size)
            return struct.unpack_from(">h", answer, 5) == (58,)
        finally:
            writer.close()
    return False


def main(kind: str, host: str, port: str, count: str, topic: str = "") -> None:
    address = host, int(port)
    if kind == "half-open":
        done = half_open(address, int(count))
    elif kind == "slow-readers":
        done = slow_readers(address, int(count), topic)
    elif kind == "handshakes":
        done = handshakes(address, int(count))
    elif kind == "renegotiations":
        done = renegotiations(address, int(count))
    else:
        done = failed_logins(address, int(count))
    print(done, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
