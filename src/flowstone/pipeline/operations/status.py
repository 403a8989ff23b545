"""`status`: the runs, lag, counters and errors of a pipeline, as its state on the broker and its groups have them.

Neither Spark nor a running pipeline is needed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from flowstone.client import LATEST, ClientError, Cluster, UnknownTopic
from flowstone.pipeline.errors import TryLater
from flowstone.pipeline.state import Lease, PipelineState, Positions, Progress, StateStore
from flowstone.types import TopicPartition
from flowstone.wire.record_batch import parse_header

DEADLINE_S = 15.0
# Partitions whose next record is looked up for the lag in seconds: those with the most records.
AGED_PARTITIONS_MAX = 20


@dataclass(frozen=True)
class QueryStatus:
    """A streaming query. The lag is None if it never ran, in seconds also if its next record cannot be read."""

    name: str
    lag_records: int | None
    lag_s: float | None
    progress: Progress | None
    checkpoint: str


@dataclass(frozen=True)
class Status:
    state: PipelineState
    live: Lease | None  # of the run that goes on now
    queries: tuple[QueryStatus, ...]


def status(bootstrap: str, pipeline: str) -> Status:
    """Return the status of a pipeline, of which the broker may know nothing. Raises TryLater without a broker."""
    with StateStore(bootstrap, pipeline, deadline_s=DEADLINE_S) as store:
        state = store.load()
    names = sorted({*state.positions, *state.checkpoints, *state.progress})
    try:
        with Cluster(bootstrap, client_id="flowstone-pipeline", deadline_s=DEADLINE_S) as cluster:
            queries = tuple(_query(cluster, state, name) for name in names)
    except ClientError as error:
        raise TryLater(f"bootstrap: {error}; check that the broker is running") from error
    return Status(state, state.live(int(time.time() * 1000)), queries)


def _query(cluster: Cluster, state: PipelineState, name: str) -> QueryStatus:
    checkpoint = state.checkpoints.get(name)
    starts = _offsets(state.positions.get(name))
    try:
        lag_records, lag_s = _lag(cluster, name, starts)
    except UnknownTopic:  # deleted meanwhile
        lag_records = lag_s = None
    return QueryStatus(name, lag_records, lag_s, state.progress.get(name), checkpoint.path if checkpoint else "")


def _offsets(positions: Positions | None) -> dict[TopicPartition, int]:
    found = {}
    for text in positions.sources.values() if positions is not None else ():
        for topic, offsets in json.loads(text).items():
            found.update({TopicPartition(topic, int(number)): int(offset) for number, offset in offsets.items()})
    return found


def _lag(cluster: Cluster, group: str, starts: Mapping[TopicPartition, int]) -> tuple[int | None, float | None]:
    """Return how far the group is behind in records, and the age of the oldest one that it has not processed."""
    if not starts:
        return None, None
    position = {**starts, **cluster.committed(group, starts)}
    ends = cluster.list_offsets(dict.fromkeys(position, LATEST), read_committed=True)
    behind = {each: ends[each].offset - at for each, at in position.items() if ends[each].offset > at}
    most = sorted(behind, key=lambda each: -behind[each])[:AGED_PARTITIONS_MAX]
    times = [at_ms for each in most if (at_ms := _time_of(cluster, each, position[each])) is not None]
    lag_s = max(0.0, round(time.time() - min(times) / 1000, 1)) if times else None
    return sum(behind.values()), (lag_s if behind else 0.0)


def _time_of(cluster: Cluster, partition: TopicPartition, offset: int) -> int | None:
    """Return the timestamp of the batch that has the next record from an offset on; None if it cannot be read."""
    try:
        for fetched in cluster.fetch(partition, offset, offset + 1, read_committed=True):
            at = 0
            while at < len(fetched.records):
                header = parse_header(fetched.records, at)
                if not header.is_control and header.last_offset >= offset:
                    return header.base_timestamp
                at += header.size_bytes
    except ClientError:
        return None
    return None
