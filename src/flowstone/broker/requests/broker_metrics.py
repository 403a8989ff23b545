"""The broker's counters: requests by API, traffic by topic, the loop's lag.

Plain attributes that the hot path adds to, per request or per batch and never per record; this module does not know how
or when they are read. Values that can be read from the broker's state (offsets, sizes, connections) are not counted.

The number of labels is bounded: APIs and error codes by the protocol, topics by `TOPIC_LABELS_MAX`. The traffic of all
further topics is counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.counters import Histogram
from flowstone.wire.schema import Struct, load_api

# Topics with counters of their own; further topics share one.
TOPIC_LABELS_MAX = 200
REQUEST_SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

# A function that adds a message's error codes to a counter.
ErrorCounter = Callable[[Any, Counter[int]], None]


class RequestMetrics:
    """The counters of one API's requests."""

    __slots__ = (
        "_count_errors",
        "errors",
        "loop_seconds",
        "received",
        "request_bytes",
        "response_bytes",
        "response_seconds",
        "slow",
    )

    def __init__(self, api_name: str) -> None:
        self._count_errors = error_counter(load_api(api_name).response)
        self.received = self.slow = 0
        self.request_bytes = self.response_bytes = 0
        # The time for which requests held the event loop.
        self.loop_seconds = 0.0
        # The time until the response was made, waiting included.
        self.response_seconds = Histogram(REQUEST_SECONDS_BOUNDS)
        # By error code, how often a response, or a part of one, had it.
        self.errors: Counter[int] = Counter()

    def errors_in(self, response: object) -> Counter[int]:
        """Return how often each error code occurs in a response."""
        errors: Counter[int] = Counter()
        if self._count_errors is not None:
            self._count_errors(response, errors)
        return errors

    def answered(self, response: object, size_bytes: int, took_s: float) -> None:
        self.response_bytes += size_bytes
        self.response_seconds.observe(took_s)
        if isinstance(response, EncodedResponse):
            if response.errors:
                self.errors += response.errors
        elif self._count_errors is not None:
            self._count_errors(response, self.errors)


class TopicMetrics:
    """The counters of one topic's produced and fetched batches and bytes."""

    __slots__ = ("fetched_bytes", "produced_batches", "produced_bytes", "produced_records")

    def __init__(self) -> None:
        self.produced_batches = self.produced_records = self.produced_bytes = self.fetched_bytes = 0


class Metrics:
    def __init__(self) -> None:
        self.requests: dict[str, RequestMetrics] = {}
        self.topics: dict[str, TopicMetrics] = {}
        self.other_topics = TopicMetrics()
        self.loop_lag_seconds = Histogram(LAG_SECONDS_BOUNDS)

    def request(self, api_name: str) -> RequestMetrics:
        found = self.requests.get(api_name)
        if found is None:
            found = self.requests[api_name] = RequestMetrics(api_name)
        return found

    def topic(self, name: str) -> TopicMetrics:
        """Return the topic's own counters, or the shared ones if `TOPIC_LABELS_MAX` topics have their own."""
        found = self.topics.get(name)
        if found is None:
            if len(self.topics) >= TOPIC_LABELS_MAX:
                return self.other_topics
            found = self.topics[name] = TopicMetrics()
        return found

    def forget_topics_but(self, names: Container[str]) -> None:
        """Drop the counters of all topics but these, so that other topics can have their own."""
        for name in [name for name in self.topics if name not in names]:
            del self.topics[name]


def error_counter(struct: Struct) -> ErrorCounter | None:
    """Return a function that counts the error codes in a message of this form, or None if the form has none."""
    has_code = any(field.name == "error_code" for field in struct.fields)
    parts = [
        (field.name, field.is_array, inner)
        for field in struct.fields
        if field.struct is not None and (inner := error_counter(field.struct)) is not None
    ]
    if not parts:
        return _count_code if has_code else None

    def count(message: Any, errors: Counter[int]) -> None:
        if has_code and message.error_code:
            errors[message.error_code] += 1
        for name, is_array, count_inner in parts:
            value = getattr(message, name)
            if is_array:
                for each in value or ():
                    if count_inner is not _count_code:
                        count_inner(each, errors)
                    elif each.error_code:  # inlined: there may be thousands of entries, and hardly any has an error
                        errors[each.error_code] += 1
            elif value is not None:
                count_inner(value, errors)

    return count


def _count_code(message: Any, errors: Counter[int]) -> None:
    if message.error_code:
        errors[message.error_code] += 1
