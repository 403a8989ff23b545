"""What strangers send before they are logged in: mutated frames, abandoned logins, floods of wrong passwords.

A million frames, which take ten minutes on an idle machine: set FLOWSTONE_LOGIN_FRAMES=1000000, and `--timeout 7200`.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import threading
import time
from contextlib import suppress

import pytest

from flowstone.broker.network.admission import LOGIN_BUFFERS_BYTES_MAX
from flowstone.broker.network.login_gate import LOGIN_FRAME_BYTES_MAX
from flowstone.wire.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from tests.support.running_app import RunningApp
from tests.support.security.secured import USER, authenticate, handshake, log_in, secured_app
from tests.support.wire_client import Closed, frame

LISTENER = "SASL_PLAINTEXT"
FRAMES = int(os.environ.get("FLOWSTONE_LOGIN_FRAMES", "8000"))
GROWTH_BYTES_MAX = 16 << 20
SEEDS = [
    frame(3, ApiVersionsRequest(client_software_name="client", client_software_version="1"), 1),
    frame(1, SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 2),
    frame(0, SaslHandshakeRequest(mechanism="PLAIN"), 3),
    frame(2, SaslAuthenticateRequest(auth_bytes=b"n,,n=admin,r=nonce"), 4),
    frame(9, MetadataRequest(topics=None), 5),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = {"connection.failed.authentication.delay.ms": "0", "idle.poll.us": "0"}
    with secured_app(tmp_path_factory.mktemp("broker"), f"{LISTENER}://127.0.0.1:0", **settings) as running:
        yield running


@pytest.fixture(autouse=True)
def few_log_lines():
    """The broker logs each failed login, and pytest would hold the lines of a million frames in memory."""
    logger = logging.getLogger("flowstone")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def mutated(rng: random.Random) -> tuple[bytes, int]:
    """Some frames, of which bits, lengths and ends are changed, and how many they were."""
    frames = rng.choices(SEEDS, k=rng.randint(1, 4))
    data = bytearray(b"".join(frames))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data))
        change = rng.randrange(4)
        if change == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            data[at : at + 4] = struct.pack(">i", rng.choice([-1, 0, 1, 524_288, 524_289, 2**31 - 1]))
        elif change == 2:
            del data[at:]
            data = data or bytearray(b"\0")
        else:
            data[at:at] = rng.randbytes(rng.randint(1, 40))
    return bytes(data), len(frames)


def send_frames(broker: RunningApp, rng: random.Random, count: int) -> None:
    sent = 0
    while sent < count:
        with broker.client(LISTENER) as client, suppress(Closed, ConnectionError):
            data, frames = mutated(rng)
            sent += frames
            client.send(data)
            client.socket.settimeout(0.0005)
            with suppress(TimeoutError, BlockingIOError):
                client.socket.recv(1 << 16)


def test_mutated_frames_do_no_harm_and_take_no_memory(broker):
    rng = random.Random(7)
    send_frames(broker, rng, FRAMES // 4)
    before = resident_bytes()
    send_frames(broker, rng, FRAMES)
    growth = resident_bytes() - before
    print(f"{FRAMES} frames: {growth >> 10} KiB more")
    assert growth < GROWTH_BYTES_MAX
    with broker.client(LISTENER) as client:
        assert not log_in(client).error_code
    deadline = time.monotonic() + 5
    while broker.call(lambda: broker.app._server.connection_count) > 0:
        assert time.monotonic() < deadline, "connections are left"
    assert broker.call(lambda: sum(len(each._logins) for each in broker.app._server._admissions.values())) == 0
    assert broker.app._server.buffers.taken_bytes == 0


def test_announced_frames_take_no_memory(broker):
    before = resident_bytes()
    clients = [broker.client(LISTENER) for _ in range(200)]
    try:
        for client in clients:
            client.send(struct.pack(">i", 524_288) + b"\0\x11")
        time.sleep(0.1)
        assert resident_bytes() - before < GROWTH_BYTES_MAX
        assert broker.app._server.buffers.taken_bytes == 0
        with broker.client(LISTENER) as client:
            assert not log_in(client).error_code
    finally:
        for client in clients:
            client.close()


def test_frames_that_strangers_do_not_finish_lock_nobody_out(broker):
    """They take all memory for incomplete frames, of which a login needs a little if it arrives in two pieces."""
    strangers = [broker.client(LISTENER) for _ in range(LOGIN_BUFFERS_BYTES_MAX // LOGIN_FRAME_BYTES_MAX)]
    try:
        for each in strangers:
            each.send(struct.pack(">i", LOGIN_FRAME_BYTES_MAX) + b"\0\x11")
        with broker.client(LISTENER) as client:
            hello = frame(1, SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
            client.send(hello[:10])
            time.sleep(0.05)
            client.send(hello[10:])
            assert client.receive()  # within ten seconds, and a stranger may stay for thirty
    finally:
        for each in strangers:
            each.close()


def test_a_flood_of_wrong_passwords_leaves_others_their_latency(broker):
    """PBKDF2 runs in worker threads, so that a client that is logged in waits for none of it."""
    stop = threading.Event()

    def attack() -> None:
        while not stop.is_set():
            with broker.client(LISTENER) as client, suppress(Closed, ConnectionError):
                handshake(client, "PLAIN")
                authenticate(client, f"\0{USER}\0guess".encode())

    attackers = [threading.Thread(target=attack) for _ in range(4)]
    with broker.client(LISTENER) as client:
        log_in(client)
        for each in attackers:
            each.start()
        took = []
        for _ in range(100):
            started = time.monotonic()
            client.ask(9, MetadataRequest(topics=None))
            took.append(time.monotonic() - started)
        stop.set()
        for each in attackers:
            each.join()
    assert sorted(took)[50] < 0.05, "the median of requests under a flood of failed logins"
