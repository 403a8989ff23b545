"""One fetch of a share group's member: its acknowledgements, the records it gets, and its wait for both.

The response is made when the acknowledgements are durable and there are records, an error, or no more time. A fetch
that waits is in the queue of each share partition of its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from flowstone.broker.loop.cold_reads import COLD_READS_MAX, warm
from flowstone.broker.requests.parked import FETCH_WAIT_MS_MAX, Waiting
from flowstone.broker.sharing.led_share_partition import LedSharePartition
from flowstone.broker.sharing.share_partitions import SharePartitions
from flowstone.broker.sharing.share_services import Fetched
from flowstone.broker.sharing.share_sessions import Place, ShareSession
from flowstone.coordinator.share.records import ShareKey
from flowstone.errors import ApiError, ErrorCode
from flowstone.log.segments.cached_reads import NotCached
from flowstone.promise import Promise

# Partitions that a fetch looks at in one turn of the event loop.
PARTITIONS_AT_ONCE = 200


class Wanted(NamedTuple):
    """The limits of a fetch."""

    max_wait_ms: int
    max_bytes: int
    max_records: int
    strict: bool
    # Partitions with records in the response, because each keeps a file open.
    max_slices: int = 1


class Result:
    """The outcome for one partition."""

    __slots__ = ("acknowledge_error", "error", "fetched")

    def __init__(self) -> None:
        self.error: ApiError | None = None
        self.acknowledge_error: ApiError | None = None
        self.fetched: Fetched | None = None


class ShareFetching(Promise[Any]):
    """A fetch under way, as the promise of its response, which `respond` makes from the results."""

    __slots__ = (
        "_acknowledging",
        "_cold_reads",
        "_is_fetched",
        "_is_outdated",
        "_is_reading",
        "_led",
        "_partitions",
        "_respond",
        "_session",
        "_waiting",
        "_wanted",
        "member",
        "results",
    )

    def __init__(
        self,
        waiting: Waiting,
        partitions: SharePartitions,
        session: ShareSession | None,
        member: str,
        wanted: Wanted,
        respond: Callable[[dict[Place, Result]], Any],
    ) -> None:
        """Create the fetch of a session; without one only acknowledgements are waited for."""
        super().__init__()
        self._waiting, self._partitions, self._session = waiting, partitions, session
        self.member, self._wanted, self._respond = member, wanted, respond
        self.results: dict[Place, Result] = {}
        self._acknowledging = 0
        self._led: dict[LedSharePartition, None] = {}
        self._is_fetched = self._is_reading = False
        # Whether records were offered while the fetch looked at other partitions.
        self._is_outdated = False
        self._cold_reads = 0
        self.add_done_callback(ShareFetching._leave)

    def result_of(self, place: Place) -> Result:
        result = self.results.get(place)
        if result is None:
            result = self.results[place] = Result()
        return result

    def acknowledge(self, place: Place, durable: Promise[ErrorCode] | None) -> None:
        """Delay the response until the acknowledgements of a partition are durable."""
        result = self.result_of(place)
        if durable is not None:
            self._acknowledging += 1
            durable.add_done_callback(lambda done: self._acknowledged(result, done))

    def start(self) -> None:
        """Fetch what there is; wait if there is nothing."""
        wanted, session = self._wanted, self._session
        if session is None or wanted.max_records <= 0 or not session.places:
            self._end_fetch()
            return
        self._fetch()
        self._wait_if_nothing()

    def _wait_if_nothing(self) -> None:
        """If there is no result and the fetch is not running, wait for records, or respond if the request does not
        wait.
        """
        if self._is_outdated and not self._is_fetched and not self._is_reading:
            self._fetch()
        if self._is_fetched or self.is_done or self._is_reading or self in self._waiting.share_fetches:
            return
        if self._wanted.max_wait_ms <= 0 or not self._waiting.may_park_fetch(0):
            self._end_fetch()
            return
        self._park()

    def _park(self) -> None:
        assert self._session is not None
        self._session.parked = self
        self._waiting.share_fetches.add(self)
        self._waiting.deadlines.add(self, min(self._wanted.max_wait_ms, FETCH_WAIT_MS_MAX))
        for led in self._led:
            led.wait(self)

    # Events

    def offered(self, key: ShareKey) -> bool:
        """Try to acquire records of a share partition; return whether there were any, or another result."""
        if self._is_fetched or self._is_reading:
            self._is_outdated = True
            return False
        place = Place(key.topic_id, key.partition)
        if self._session is not None and place in self._session.places:
            self._fetch_from([place])
        return self._is_fetched

    def interrupted(self) -> None:
        """Answer now, with what there is."""
        if not self._is_fetched and not self._is_reading:
            self._fetch()
            self._end_fetch()

    def failed(self, key: ShareKey, error: ApiError) -> None:
        """Answer with the error of a share partition."""
        if not self._is_fetched:
            self.result_of(Place(key.topic_id, key.partition)).error = error
            self._end_fetch()

    def timed_out(self) -> None:
        self._end_fetch()

    def _acknowledged(self, result: Result, durable: Promise[ErrorCode]) -> None:
        code = durable.result()
        if code is not ErrorCode.NONE:
            result.acknowledge_error = ApiError(code)
        self._acknowledging -= 1
        self._answer()

    # Fetching

    def _fetch(self) -> None:
        """Acquire records of the session's partitions, within the limits."""
        assert self._session is not None
        self._led = {}
        self._is_outdated = False
        self._fetch_from(list(self._session.places))

    def _fetch_from(self, places: list[Place]) -> None:
        """Acquire records of some of these partitions; if there are none, continue in another iteration of the loop.

        Partitions with records or errors go to the end of the session, so that the next fetch begins with the others.
        """
        session, wanted = self._session, self._wanted
        assert session is not None
        left_bytes, left_records, left_slices = wanted.max_bytes, wanted.max_records, wanted.max_slices
        has_result, led_before = False, len(self._led)
        for place in places[:PARTITIONS_AT_ONCE]:
            if left_records <= 0 or left_bytes <= 0 or left_slices <= 0:
                break
            try:
                led = self._partitions.get(session.key.group_id, place)
                self._led[led] = None
                led.sessions.add(session.key)
                fetched = led.fetch(self.member, left_bytes, left_records, strict=wanted.strict)
            except ApiError as error:
                self.result_of(place).error = error
                has_result = True
                session.move_last(place)
                continue
            except NotCached as cold:
                if not has_result:
                    self._read_cold(led, cold)
                    return
                continue
            if fetched is not None:
                self.result_of(place).fetched = fetched
                has_result = True
                left_slices -= 1
                left_bytes -= len(fetched.records)
                left_records -= sum(last - first + 1 for first, last, _ in fetched.acquired)
                session.move_last(place)
        if has_result:
            self._end_fetch()
        elif len(places) > PARTITIONS_AT_ONCE:
            self._is_reading = True
            for led in islice(self._led, led_before, None):
                led.wait(self)  # records may come before the rest was looked at
            asyncio.get_running_loop().call_soon(self._go_on, places[PARTITIONS_AT_ONCE:])

    def _go_on(self, places: list[Place]) -> None:
        """Continue the fetch with the remaining partitions of the session."""
        self._is_reading = False
        if self.is_done or self._is_fetched:
            return
        self._fetch_from(places)
        self._wait_if_nothing()

    def _read_cold(self, led: LedSharePartition, cold: NotCached) -> None:
        """Let a worker read the bytes that the page cache lacks, and fetch again."""
        self._cold_reads += 1
        if self._cold_reads > COLD_READS_MAX:
            self._end_fetch()
            return
        self._is_reading = True
        reading = asyncio.ensure_future(warm(led.workers, led.partition, cold))
        reading.add_done_callback(self._has_read)

    def _has_read(self, reading: asyncio.Future[None]) -> None:
        self._is_reading = False
        if reading.cancelled() or reading.exception() is not None or self.is_done:
            self._end_fetch()
            return
        self.start()

    def _end_fetch(self) -> None:
        self._is_fetched = True
        self._stop_waiting()
        self._answer()

    def _answer(self) -> None:
        if self._is_fetched and not self._acknowledging and not self.is_done:
            self.set_result(self._respond(self.results))

    def _stop_waiting(self) -> None:
        self._waiting.share_fetches.discard(self)
        for led in self._led:
            led.stop_waiting(self)
        if self._session is not None and self._session.parked is self:
            self._session.parked = None

    def _leave(self) -> None:
        self._is_fetched = True
        self._stop_waiting()
