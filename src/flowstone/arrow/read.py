"""`flowstone.read`: reading a topic, or a range of it, as Arrow columns without Spark.

The range of offsets is determined when the call starts: later records are not read, and reading the same offsets again
returns the same rows. Partitions are returned one after the other, each in offset order. pandas, Polars and DuckDB
accept the Table or RecordBatchReader directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

try:
    import pyarrow as pa
except ImportError:
    raise ImportError("reading topics as Arrow columns needs pyarrow: run `pip install 'flowstone[arrow]'`") from None

from flowstone.arrow.decode import Decoder
from flowstone.arrow.schema import COLUMNS, schema
from flowstone.client import EARLIEST, LATEST, Cluster, UnknownTopic
from flowstone.types import TopicPartition

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
# Time until a wrong address, or a broker that is not running, is reported.
CONNECT_DEADLINE_S = 5.0
# After a broker has answered: long enough for a restart or a failover.
DEADLINE_S = 20.0
CLIENT_ID = "flowstone-read"

# A place in a partition: "earliest", "latest", an offset, or a time.
Place: TypeAlias = str | int | datetime
Places: TypeAlias = Place | Mapping[int, Place]


class Range(NamedTuple):
    """The offsets of one partition from `start` to `end`, exclusive, of the topic with an id; None: of any."""

    partition: TopicPartition
    start: int
    end: int
    topic_id: bytes | None = None


def read(
    topic: str,
    *,
    start: Places = "earliest",
    end: Places = "latest",
    columns: Sequence[str] = COLUMNS,
    partitions: Iterable[int] | None = None,
    read_committed: bool = False,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    connect_deadline_s: float = CONNECT_DEADLINE_S,
    deadline_s: float = DEADLINE_S,
) -> Any:
    """Return the records from `start` to `end`, exclusive, as a `pyarrow.Table`.

    `start` and `end` are "earliest", "latest", an offset, a `datetime` (the first record at or after it; local time
    without a time zone), or a dict of these by partition. A partition that is missing in a dict is read completely. An
    `end` beyond the log's end means the log's end. `columns` are those of Spark's Kafka source, plus "headers".
    `read_committed` omits records of open and aborted transactions.

    Raises ValueError if an argument is invalid, and a `flowstone.client.ClientError` if the cluster cannot return the
    records: an `OffsetsLost` if retention has deleted some of them, a `TopicRecreated` if the topic is deleted and
    created again while it is read, a `GaveUp` if no broker answers within `connect_deadline_s` or reading makes no
    progress for `deadline_s` afterwards.
    """
    return read_batches(
        topic,
        start=start,
        end=end,
        columns=columns,
        partitions=partitions,
        read_committed=read_committed,
        bootstrap=bootstrap,
        connect_deadline_s=connect_deadline_s,
        deadline_s=deadline_s,
    ).read_all()


def read_batches(
    topic: str,
    *,
    start: Places = "earliest",
    end: Places = "latest",
    columns: Sequence[str] = COLUMNS,
    partitions: Iterable[int] | None = None,
    read_committed: bool = False,
    bootstrap: str = DEFAULT_BOOTSTRAP,
    connect_deadline_s: float = CONNECT_DEADLINE_S,
    deadline_s: float = DEADLINE_S,
) -> Any:
    """Return a `pyarrow.RecordBatchReader` that fetches while it is read: `read` for topics larger than memory."""
    columns_schema = schema(columns)
    cluster = Cluster(bootstrap, client_id=CLIENT_ID, deadline_s=deadline_s)
    with cluster:  # closes the connection even if the caller stops reading
        cluster.topics([topic], deadline_s=min(connect_deadline_s, deadline_s))
        ranges = settle(cluster, topic, start, end, partitions, read_committed=read_committed)
    batches = read_ranges(cluster, ranges, columns, read_committed=read_committed)
    return pa.RecordBatchReader.from_batches(columns_schema, batches)


def read_ranges(
    cluster: Cluster, ranges: Iterable[Range], columns: Sequence[str], *, read_committed: bool = False
) -> Iterator[Any]:
    """Yield the RecordBatches of the ranges, one range after the other; close the cluster's connections at the end."""
    with cluster:
        for partition, start, end, topic_id in ranges:
            decoder = Decoder(partition, columns, start, end, read_committed=read_committed)
            for fetched in cluster.fetch(partition, start, end, read_committed=read_committed, topic_id=topic_id):
                yield from decoder.feed(fetched.records, fetched.aborted)
            yield from decoder.finish()


def settle(
    cluster: Cluster,
    topic: str,
    start: Places,
    end: Places,
    partitions: Iterable[int] | None = None,
    *,
    read_committed: bool = False,
) -> list[Range]:
    """Return the ranges that `start` and `end` currently stand for, without empty ones.

    Raises ValueError if a place is invalid, and UnknownTopic if the topic does not exist.
    """
    described = cluster.describe_topics([topic]).get(topic)
    if described is None:
        raise UnknownTopic(f"there is no topic {topic}: check the name, or create it first")
    count = described.partition_count
    wanted = sorted(set(range(count) if partitions is None else partitions))
    for index in (*wanted, *(each for places in (start, end) if isinstance(places, Mapping) for each in places)):
        if index not in range(count):
            raise ValueError(f"topic {topic} has {count} partitions, and no partition {index!r}")
    parts = [TopicPartition(topic, index) for index in wanted]
    latest = {
        part: found.offset
        for part, found in cluster.list_offsets(dict.fromkeys(parts, LATEST), read_committed=read_committed).items()
    }
    starts = _offsets(cluster, _places(parts, start, "earliest"), latest)
    ends = _offsets(cluster, _places(parts, end, "latest"), latest)
    ranges = [Range(part, starts[part], min(ends[part], latest[part]), described.topic_id) for part in parts]
    return [each for each in ranges if each.start < each.end]


def _places(parts: Sequence[TopicPartition], places: Places, default: str) -> dict[TopicPartition, Place]:
    if isinstance(places, Mapping):
        return {part: places.get(part.partition, default) for part in parts}
    return dict.fromkeys(parts, places)


def _offsets(
    cluster: Cluster, places: Mapping[TopicPartition, Place], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    offsets = {}
    asked = {}
    for part, place in places.items():
        if isinstance(place, datetime):
            asked[part] = max(0, int(place.timestamp() * 1000))
        elif isinstance(place, int) and not isinstance(place, bool) and place >= 0:
            offsets[part] = place
        elif place == "latest":
            offsets[part] = latest[part]
        elif place == "earliest":
            asked[part] = EARLIEST
        else:
            raise ValueError(
                f"{place!r} is no place in a partition: give 'earliest', 'latest', an offset, a datetime, "
                "or a dict of these by partition"
            )
    for part, found in cluster.list_offsets(asked).items():
        offsets[part] = latest[part] if found.offset < 0 else found.offset  # no record at or after the time
    return offsets
