"""Somebody who behaves: produces and reads back without pause while others misbehave, and must not notice.

Every round trip is a produce with acks=all and a fetch of what it wrote. Afterwards every acknowledged record must be
readable and no round trip may have taken longer than the limit. Time for which the bystander's thread or the broker's
main thread was ready and had no processor does not count: on a busy machine that is other processes' doing.
"""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

from flowstone.wire.record_batch import decode_records
from tests.support.broker_process import BrokerProcess
from tests.support.cpu_waits import CpuWaits
from tests.support.wire_client import Client, batch_of, whole_batches

ROUND_TRIP_MAX_S = 1.0
PAUSE_S = 0.005
JOIN_TIMEOUT_S = 30.0


class Bystander:
    def __init__(self, broker: BrokerProcess, topic: str, round_trip_max_s: float = ROUND_TRIP_MAX_S) -> None:
        self._broker, self._topic, self._round_trip_max_s = broker, topic, round_trip_max_s
        self._stopping = threading.Event()
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self.round_trips_s: list[float] = []
        self.served_s: list[float] = []  # the same without the time for which a thread had no processor
        self._thread = threading.Thread(target=self._run, name=f"bystander-{topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(JOIN_TIMEOUT_S), self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join(JOIN_TIMEOUT_S)
        if error is None:
            self.check()

    def check(self) -> None:
        """Fails if the bystander was harmed."""
        if self._failure is not None:
            raise AssertionError("a well-behaved client was harmed") from self._failure
        slowest_s = max(self.served_s)
        assert slowest_s < self._round_trip_max_s, f"a well-behaved client waited {slowest_s:.2f} s"
        with self._broker.connect() as client:
            assert self._read_all(client) == [self._value(number) for number in range(len(self.round_trips_s))]

    def _run(self) -> None:
        try:
            with self._broker.connect() as client:
                assert client.create_topic(self._topic) == 0
                broker = self._broker.pid
                self._cpu_waits = CpuWaits((os.getpid(), threading.get_native_id()), (broker, broker))
                while not self._stopping.is_set():
                    self._round_trip(client, len(self.round_trips_s))
                    self._started.set()
                    self._stopping.wait(PAUSE_S)
        except BaseException as failure:
            self._failure = failure
            self._started.set()

    def _round_trip(self, client: Client, number: int) -> None:
        started, waited_s = time.monotonic(), self._cpu_waits.total_s()
        produced = client.produce(self._topic, batch_of(self._value(number)))
        assert (produced.error_code, produced.base_offset) == (0, number)
        fetched = client.fetch(self._topic, number, max_wait_ms=1000)
        assert decode_records(bytes(fetched.records))[0].value == self._value(number)
        took_s = time.monotonic() - started
        self.round_trips_s.append(took_s)
        self.served_s.append(max(0.0, took_s - (self._cpu_waits.total_s() - waited_s)))

    def _read_all(self, client: Client) -> list[bytes | None]:
        values: list[bytes | None] = []
        while len(values) < len(self.round_trips_s):
            batches = list(whole_batches(bytes(client.fetch(self._topic, len(values)).records)))
            assert batches, "nothing to read where something was acknowledged"
            values += [record.value for batch in batches for record in decode_records(batch)]
        return values

    @staticmethod
    def _value(number: int) -> bytes:
        return b"value %d" % number
