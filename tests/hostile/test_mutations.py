"""Mutated requests of real clients: no fault in the broker's log, flat memory, no other client harmed.

The requests are those that three clients sent to a broker once, recorded for the codec's tests. Each is changed by a
few bit flips, cuts, splices, repetitions and other versions, from a seed, and sent among unchanged ones over a few
connections at once, which are opened again when the broker closes them. They are 40,000 in `make test` and 100,000 with
FLOWSTONE_HOSTILE_LONG=1.
"""

from __future__ import annotations

import os
import random
import select
import socket
import struct
import time
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from flowstone.broker.dispatch.dispatcher import PRODUCE_KEY
from flowstone.errors import ProtocolError
from flowstone.wire.apis import API_VERSIONS_KEY
from flowstone.wire.codec import request_decoder
from flowstone.wire.frames import parse_request_header
from tests.support.wire_client import framed

MIB = 1 << 20
GOLDEN = Path(__file__).parents[1] / "unit" / "wire" / "golden"
HEADER_BYTES = 20  # API, version, correlation id, and a client id as the recorded ones are long
SEED = 20261115
FRAMES = 100_000 if os.environ.get("FLOWSTONE_HOSTILE_LONG") else 40_000
CONNECTIONS = 8
BURST_FRAMES = 50
UNREADABLE_KEPT = 0.12
WARM_UP_FRAMES = min(FRAMES // 2, 25_000)
# What the broker keeps by right: topics that mutated requests made, up to max.partitions, and their settings.
GROWTH_BYTES_MAX = 24 * MIB
SILENCE_S = 0.05
DEADLINE_S = 150.0  # 15 s is usual; it only keeps an attack without an end from going on


def golden_frames() -> list[bytes]:
    lines = [line for path in sorted(GOLDEN.glob("*.txt")) for line in path.read_text().splitlines()]
    return [bytes.fromhex(line.split()[2]) for line in lines if line.strip()]


class Mutator:
    """Endless bodies of requests, each a little wrong."""

    INTERESTING = (b"\0", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff", b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0" * 8)

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._bodies = golden_frames()

    def body(self) -> tuple[bytes, bool]:
        """A body, and whether it can be read: most of those that cannot are passed over, for they reach no handler."""
        while True:
            body = bytearray(self._chance.choice(self._bodies))
            for _ in range(self._chance.choice((1, 1, 1, 2, 3))):
                self._mutate(body)
            readable = is_readable(body)
            if readable or self._chance.random() < UNREADABLE_KEPT:
                return bytes(body), readable

    def _mutate(self, body: bytearray) -> None:
        chance = self._chance
        # Most changes spare the header and the structure: others only show that headers and lengths are read.
        first = HEADER_BYTES if len(body) > HEADER_BYTES and chance.random() < 0.95 else 0
        at = chance.randrange(first, len(body))
        match chance.randrange(12):
            case 0:
                del body[at : at + chance.choice((1, 2, 4, 16, len(body)))]
            case 1:
                donor = chance.choice(self._bodies)
                begin = chance.randrange(len(donor))
                body[at : at + chance.choice((0, 8, 64))] = donor[begin : begin + chance.choice((1, 8, 64))]
            case 2:
                body[at:at] = body[at : at + chance.choice((1, 4, 32))] * chance.choice((1, 2, 20))
            case 3:
                body[2:4] = struct.pack(">h", chance.randrange(-1, 20))
            case 4 | 5 | 6:
                patch = chance.choice(self.INTERESTING)
                body[at : at + len(patch)] = patch
            case _:
                body[at] ^= 1 << chance.randrange(8)
        if not body:
            body.append(0)


class Attacker:
    """One connection at a time: a burst of requests that can be read, ended by one that cannot, then the next burst.

    Only what the broker has dealt with counts: requests answered, and connections closed for the one that cannot be
    read. A fetch that waits for long holds up what comes after it: silence ends a burst too.
    """

    def __init__(self, address: tuple[str, int], mutator: Mutator) -> None:
        self._address, self._mutator = address, mutator
        self.answered = self.closed = self.silent = 0
        self._connect()

    def fileno(self) -> int:
        return self._socket.fileno()

    def write(self) -> None:
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._end_burst()

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent)

    def read(self) -> None:
        try:
            data = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end_burst()
            return
        self._heard = time.monotonic()
        self._count_answers(data)
        if not self._ends_badly and self._awaited <= 0:
            self._begin_burst()

    def check_silence(self, now: float) -> None:
        if now - self._heard > SILENCE_S:
            self.silent += 1
            self.close()
            self._connect()

    def close(self) -> None:
        self._socket.close()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address)
        self._socket.setblocking(False)
        self._unread = b""
        self._begin_burst()

    def _begin_burst(self) -> None:
        self._heard = time.monotonic()
        self._awaited, self._ends_badly = 0, False
        bodies = []
        while len(bodies) < BURST_FRAMES and not self._ends_badly:
            body, readable = self._mutator.body()
            bodies.append(framed(body))
            self._ends_badly = not readable
            self._awaited += readable and not is_unanswered(body)
        self._unsent = b"".join(bodies)
        if not self._awaited and not self._ends_badly:
            self._begin_burst()

    def _count_answers(self, data: bytes) -> None:
        stream = self._unread + data
        at = 0
        while len(stream) - at >= 4:
            (size,) = struct.unpack_from(">i", stream, at)
            if len(stream) - at - 4 < size:
                break
            at += 4 + size
            self.answered += 1
            self._awaited -= 1
        self._unread = stream[at:]

    def _end_burst(self) -> None:
        self.closed += 1
        self.close()
        self._connect()


def is_readable(body: bytes | bytearray) -> bool:
    """Whether the broker will take this for a request."""
    view = memoryview(body)
    try:
        header = parse_request_header(view, 0)
        if header.api_key != API_VERSIONS_KEY:
            request_decoder(header.api_key, header.api_version)(view, header.body_position)
    except ProtocolError:
        return False
    return True


def is_unanswered(body: bytes) -> bool:
    """Whether this is a produce that asks for no answer."""
    header = parse_request_header(memoryview(body), 0)
    if header.api_key != PRODUCE_KEY:
        return False
    request = request_decoder(header.api_key, header.api_version)(memoryview(body), header.body_position)
    return request.acks == 0  # type: ignore[attr-defined]


def attack(address, seed, frames):
    mutator = Mutator(seed)
    with ExitStack() as stack:
        attackers = [stack.enter_context(closing(Attacker(address, mutator))) for _ in range(CONNECTIONS)]
        deadline = time.monotonic() + DEADLINE_S
        while (dealt_with := sum(each.answered + each.closed for each in attackers)) < frames:
            assert time.monotonic() < deadline, f"only {dealt_with} requests in {DEADLINE_S} s"
            sending = [each for each in attackers if each.is_sending]
            readable, writable, _ = select.select(attackers, sending, [], SILENCE_S)
            for each in writable:
                each.write()
            for each in readable:
                each.read()
            now = time.monotonic()
            for each in attackers:
                each.check_silence(now)
    return attackers


@pytest.mark.timeout(2 * DEADLINE_S)
def test_mutated_requests_of_real_clients_find_no_fault_and_harm_nobody(start_broker, bystander):
    broker = start_broker(max_partitions="40", flush_messages=str(2**63 - 1))
    started = time.monotonic()
    with bystander(broker) as watched:
        attack(broker.address, SEED, WARM_UP_FRAMES)
        before = broker.rss_bytes()
        attackers = attack(broker.address, SEED + 1, FRAMES - WARM_UP_FRAMES)
        growth = broker.rss_bytes() - before
    print(
        f"{FRAMES} requests in {time.monotonic() - started:.1f} s; of the last {FRAMES - WARM_UP_FRAMES} "
        f"{sum(each.answered for each in attackers)} answered, {sum(each.closed for each in attackers)} refused, "
        f"{sum(each.silent for each in attackers)} waited; memory {growth / MIB:+.1f} MiB, bystander's slowest "
        f"{max(watched.round_trips_s) * 1000:.0f} ms"
    )
    assert broker.faults() == []
    assert growth < GROWTH_BYTES_MAX
