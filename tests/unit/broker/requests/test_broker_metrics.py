from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flowstone.broker.metrics import scrape
from flowstone.broker.metrics.exposition import Exposition, label_text
from flowstone.broker.requests import broker_metrics
from flowstone.broker.requests.broker_metrics import Metrics, error_counter
from flowstone.counters import Histogram
from flowstone.errors import ErrorCode, StorageFault
from flowstone.types import TopicPartition
from flowstone.wire.messages import (
    DeleteTopicsRequest,
    DescribeClusterResponse,
    ProduceResponse,
    ProduceResponsePartition,
    ProduceResponseTopic,
)
from flowstone.wire.schema import load_api
from tests.support.group_commits import commit
from tests.support.running_app import RunningApp
from tests.support.transactional_topic import TransactionalTopic
from tests.support.wire_client import batch_of, fetch_request, frame, produce_request

PAGE = Path(__file__).parents[4] / "docs" / "monitoring.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \|([^|]*)\| ", re.MULTILINE)
NOT_LABELS = {"le"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningApp]:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0") as running:
        yield running


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Values by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scraped:
    def __init__(self, broker: RunningApp) -> None:
        status, self.text = broker.get("/metrics")
        assert status == 200
        self._samples = parse(self.text)

    def value(self, name: str, **labels: str) -> float:
        return self._samples[name, frozenset(labels.items())]

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(labels)[label] for each, labels in self._samples if each == name}


# The page for people

# Of metrics pushed by clients, and of members of share groups with records in flight: there are none in this test.
WITHOUT_SAMPLES = ("flowstone_client_metric", "flowstone_group_in_flight_records")


def test_the_page_lists_what_is_scraped_with_types_and_labels(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events")
        client.produce("events", batch_of(b"a"))
        client.produce("nowhere", batch_of(b"a"))
        TransactionalTopic(broker, "events").write(1, b"in a transaction")
        commit(client, "readers", "events", 0)
        broker.run(broker.app.survey.look())
        text = broker.get("/metrics")[1]
    scraped = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - NOT_LABELS
        scraped[name] = (family.type, labels)
    listed = {
        name: (kind, set(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(PAGE.read_text(encoding="utf-8"))
    }
    for name in WITHOUT_SAMPLES:
        assert scraped[name] == (listed[name][0], set())
        scraped[name] = listed[name]
    assert listed == scraped


# What is counted


def test_produced_records_and_batches_are_counted_by_topic(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events")
        first, second = batch_of(b"a", b"b", b"c"), batch_of(b"d")
        client.produce("events", first)
        client.produce("events", second, acks=1)
        client.fetch("events", 0)
    scraped = Scraped(broker)
    assert scraped.value("flowstone_produced_records_total", topic="events") == 4
    assert scraped.value("flowstone_produced_batches_total", topic="events") == 2
    assert scraped.value("flowstone_produced_bytes_total", topic="events") == len(first) + len(second)
    assert scraped.value("flowstone_fetched_bytes_total", topic="events") > 0


def test_a_repeated_batch_is_not_counted_again(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events")
        batch = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        assert client.produce("events", batch).error_code == 0
        assert client.produce("events", batch).error_code == 0
    assert Scraped(broker).value("flowstone_produced_records_total", topic="events") == 1


def test_requests_are_counted_by_api(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events")
        client.produce("events", batch_of(b"a"))
        client.produce("events", batch_of(b"b"))
    scraped = Scraped(broker)
    assert scraped.value("flowstone_requests_total", api="Produce") == 2
    assert scraped.value("flowstone_requests_total", api="CreateTopics") == 1
    assert scraped.value("flowstone_response_seconds_count", api="Produce") == 2
    assert scraped.value("flowstone_request_bytes_total", api="Produce") > 2 * len(batch_of(b"a"))
    assert scraped.value("flowstone_response_bytes_total", api="Produce") > 0


def test_requests_that_get_no_answer_are_counted(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events")
        client.send(frame(9, produce_request("events", batch_of(b"a"), acks=0)))
        client.end_offset("events")  # answered after it
    scraped = Scraped(broker)
    assert scraped.value("flowstone_requests_total", api="Produce") == 1
    assert scraped.value("flowstone_response_seconds_count", api="Produce") == 0


def test_errors_are_counted_by_api_and_code(broker: RunningApp) -> None:
    with broker.client() as client:
        client.produce("nowhere", batch_of(b"a"))
    labels = {"api": "Produce", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert Scraped(broker).value("flowstone_errors_total", **labels) == 1


def test_errors_are_found_in_every_part_of_a_response() -> None:
    count = error_counter(load_api("Produce").response)
    assert count is not None
    codes = (ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD)
    topics = [ProduceResponseTopic(partition_responses=[ProduceResponsePartition(error_code=code)]) for code in codes]
    errors: Counter[int] = Counter()
    count(ProduceResponse(responses=topics), errors)
    assert errors == {ErrorCode.CORRUPT_MESSAGE: 2, ErrorCode.INVALID_RECORD: 1}


def test_an_error_of_the_whole_response_is_found() -> None:
    count = error_counter(load_api("DescribeCluster").response)
    assert count is not None
    errors: Counter[int] = Counter()
    count(DescribeClusterResponse(error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE), errors)
    assert errors == {ErrorCode.MISMATCHED_ENDPOINT_TYPE: 1}


def test_flushes_are_counted(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events")
        client.produce("events", batch_of(b"a"))
    directory = broker.app.config.log_dirs
    assert Scraped(broker).value("flowstone_flush_seconds_count", directory=directory) >= 1


def test_open_accepted_and_dropped_connections_are_told(broker: RunningApp) -> None:
    with broker.client() as client, broker.client() as other:
        client.create_topic("events")
        other.send(b"GET / HTTP/1.1\r\n\r\n")
        other.closed_after_s()
        scraped = Scraped(broker)
        assert scraped.value("flowstone_connections") == 1
        assert scraped.value("flowstone_connections_accepted_total") == 2
        assert scraped.value("flowstone_connections_dropped_total") == 1


def test_refused_connections_are_told(tmp_path: Path) -> None:
    with RunningApp(str(tmp_path), http_listener="127.0.0.1:0", max_connections="1") as broker, broker.client() as one:
        one.create_topic("events")
        with broker.client() as other:
            other.closed_after_s()
        assert Scraped(broker).value("flowstone_connections_refused_total") == 1


def test_parked_fetches_are_told(broker: RunningApp) -> None:
    with broker.client() as client, broker.client() as consumer:
        client.create_topic("events")
        consumer.send(frame(11, fetch_request("events", 0, max_wait_ms=60_000)))
        consumer.send(frame(9, fetch_request("events", 0, max_wait_ms=60_000)))
        while Scraped(broker).value("flowstone_parked_requests", api="Fetch") < 2:
            pass
        client.produce("events", batch_of(b"a"))
        consumer.receive()
        assert Scraped(broker).value("flowstone_parked_requests", api="Fetch") < 2


# What is read off


def test_a_partitions_offsets_and_size_are_told(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events", partitions=2)
        batch = batch_of(b"a", b"b")
        client.produce("events", batch, partition=1)
    scraped = Scraped(broker)
    labels = {"topic": "events", "partition": "1"}
    assert scraped.value("flowstone_partition_log_start_offset", **labels) == 0
    assert scraped.value("flowstone_partition_log_end_offset", **labels) == 2
    assert scraped.value("flowstone_partition_high_watermark", **labels) == 2
    assert scraped.value("flowstone_partition_size_bytes", **labels) == len(batch)


def test_partitions_are_online_until_they_fail(broker: RunningApp) -> None:
    with broker.client() as client:
        client.create_topic("events", partitions=3)
    failing = broker.app.services.partitions.find(TopicPartition("events", 1))
    assert failing is not None
    broker.call(lambda: failing.local.fail(StorageFault("damaged")))
    scraped = Scraped(broker)
    assert scraped.value("flowstone_partitions", state="online") == 2
    assert scraped.value("flowstone_partitions", state="offline") == 1


# Bounds


def test_topics_beyond_the_limit_are_counted_together(broker: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "TOPIC_LABELS_MAX", 1)
    with broker.client() as client:
        for name in ("first", "second", "third"):
            client.create_topic(name)
            client.produce(name, batch_of(b"a"))
    scraped = Scraped(broker)
    assert scraped.labels("flowstone_produced_records_total", "topic") == {"first", "_other"}
    assert scraped.value("flowstone_produced_records_total", topic="_other") == 2


def test_a_deleted_topic_leaves_its_place_to_another(broker: RunningApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "TOPIC_LABELS_MAX", 1)
    with broker.client() as client:
        client.create_topic("first")
        client.create_topic("second")
        client.produce("first", batch_of(b"a"))
        client.ask(5, DeleteTopicsRequest(topic_names=["first"], timeout_ms=10_000))
        assert Scraped(broker).labels("flowstone_produced_records_total", "topic") == {"_other"}
        client.produce("second", batch_of(b"a"))
    assert Scraped(broker).value("flowstone_produced_records_total", topic="second") == 1


def test_partitions_beyond_the_limit_have_their_sizes_summed_up(
    broker: RunningApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "PARTITION_LABELS_MAX", 1)
    monkeypatch.setattr(scrape, "SLICE_PARTITIONS", 1)
    batch = batch_of(b"a")
    with broker.client() as client:
        client.create_topic("events", partitions=3)
        for partition in range(3):
            client.produce("events", batch, partition=partition)
    scraped = Scraped(broker)
    assert scraped.labels("flowstone_partition_log_end_offset", "topic") == {"events"}
    assert scraped.value("flowstone_partition_size_bytes", topic="_other", partition="") == 2 * len(batch)
    assert scraped.value("flowstone_partitions", state="online") == 3


def test_those_who_ask_at_once_share_one_scrape(broker: RunningApp) -> None:
    async def ask_at_once() -> tuple[bytes, ...]:
        broker.app._open_site()
        return tuple(await asyncio.gather(*(broker.app._pages.scrape.text() for _ in range(5))))

    scraped = broker.run(ask_at_once())
    assert all(page is scraped[0] for page in scraped)


def test_the_same_counters_serve_every_version_of_an_api() -> None:
    counted = Metrics()
    assert counted.request("Fetch") is counted.request("Fetch")


# The format


def test_a_histograms_buckets_add_up() -> None:
    histogram = Histogram((1, 2))
    for value in (0.5, 1, 1.5, 7):
        histogram.observe(value)
    page = Exposition()
    page.histogram("wait_seconds", "How long.", {label_text(api="Fetch"): histogram})
    samples = parse(page.text().decode())
    by_bound = {dict(labels).get("le"): value for (_, labels), value in samples.items() if dict(labels).get("le")}
    assert by_bound == {"1": 2, "2": 3, "+Inf": 4}
    assert samples["wait_seconds_sum", frozenset({("api", "Fetch")})] == 10
    assert samples["wait_seconds_count", frozenset({("api", "Fetch")})] == 4


def test_labels_may_hold_any_text() -> None:
    page = Exposition()
    page.gauge("info", "Text.", {label_text(text='a "quoted" \\ and\na line'): 1})
    ((_, labels),) = parse(page.text().decode())
    assert dict(labels) == {"text": 'a "quoted" \\ and\na line'}
