"""What the broker counts about itself while it works: requests by API, traffic by topic, the loop's lag.

Plain attributes that the hot path adds to, per request or per batch and never per record; nothing here knows how or
when they are read. What can be read off the broker's state when asked (offsets, sizes, connections) is not counted.

Labels are bounded: the APIs and error codes by the protocol, the topics by `TOPIC_LABELS_MAX`. What further topics do
is counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from typing import Any

from flowstone.broker.requests.encoded_response import EncodedResponse
from flowstone.counters import Histogram
from flowstone.wire.schema import Struct, load_api

# From when on topics are counted together.
TOPIC_LABELS_MAX = 200
REQUEST_SECONDS_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
LAG_SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

# Adds a message's error codes to a counter.
ErrorCounter = Callable[[Any, Counter[int]], None]


class RequestMetrics:
    """The requests of one API."""

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
        # Time the loop was held, which nobody else could use.
        self.loop_seconds = 0.0
        # Time until the answer was made, waiting included.
        self.response_seconds = Histogram(REQUEST_SECONDS_BOUNDS)
        # Error code -> how often a response, or a part of one, had it.
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
    """What was written to and read from one topic."""

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
        if has_code:
            _count_code(message, errors)
        for name, is_array, count_inner in parts:
            value = getattr(message, name)
            if is_array:
                for each in value or ():
                    if count_inner is not _count_code:
                        count_inner(each, errors)
                    elif each.error_code:  # looked at here: there may be thousands, and hardly one has an error
                        errors[each.error_code] += 1
            elif value is not None:
                count_inner(value, errors)

    return count


def _count_code(message: Any, errors: Counter[int]) -> None:
    if message.error_code:
        errors[message.error_code] += 1
