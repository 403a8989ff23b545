"""Start positions of a query's topic sources: explicit offsets, resolved once and then stored.

`latest` and times are resolved before the first micro-batch. A run that dies before it has written a checkpoint
therefore starts again where the first one would have, and skips nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence

from flowstone.client import EARLIEST, LATEST, ClientError, Cluster
from flowstone.pipeline.authoring.validation import parse_start_ms
from flowstone.pipeline.errors import PipelineError, TryLater
from flowstone.pipeline.model import PipelineModel, Source, TopicSource
from flowstone.types import TopicPartition, topic_id_keys, topic_ids_among

DEADLINE_S = 15.0
FAIL_ON_DATA_LOSS = "failOnDataLoss"


def start_positions(
    model: PipelineModel, sources: Sequence[Source], stored: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the JSON for startingOffsets of each topic source: what is stored, with partitions that came since.

    New partitions start at their first record. Raises PipelineError if a topic is missing, TryLater without a broker.
    """
    found = {}
    try:
        with Cluster(model.bootstrap, client_id="flowstone-pipeline", deadline_s=DEADLINE_S) as cluster:
            for source in sources:
                if isinstance(source.origin, TopicSource):
                    before = (stored or {}).get(source.name)
                    found[source.name] = _position(cluster, source, source.origin, before)
    except ClientError as error:
        raise TryLater(f"bootstrap: {error}; check that the broker is running") from error
    return found


def _position(cluster: Cluster, source: Source, origin: TopicSource, stored: str | None) -> str:
    """Return the source's start as JSON, with the ids of the topics: the Spark source compares them when it starts."""
    partitions, topic_ids = _partitions(cluster, source, origin)
    document = json.loads(stored or "{}")
    known = {
        TopicPartition(topic, int(number)): int(offset)
        for topic, offsets in document.items()
        for number, offset in offsets.items()
    }
    again = _recreated(source, origin, topic_ids_among(document), topic_ids)
    known = {each: offset for each, offset in known.items() if each.topic not in again}
    new = partitions - known.keys()
    starting = origin.starting if stored is None else "earliest"
    at = {"earliest": EARLIEST, "latest": LATEST}.get(starting)
    if at is None:
        at = parse_start_ms(starting)
        assert at is not None
    listed = _listed(cluster, new, at)
    beyond = [each for each, offset in listed.items() if offset < 0]  # no record is as late as the time
    listed |= _listed(cluster, beyond, LATEST)
    return position_json(known | listed, topic_ids)


def _recreated(source: Source, origin: TopicSource, before: Mapping[str, bytes], now: Mapping[str, bytes]) -> set[str]:
    """Return the topics with other ids than before. Raises PipelineError if the source must not lose records."""
    again = {topic for topic, topic_id in before.items() if now.get(topic, topic_id) != topic_id}
    if again and origin.options.get(FAIL_ON_DATA_LOSS, "true").strip().lower() != "false":
        raise PipelineError(
            f"source {source.name}: topic {min(again)} was deleted and created again since the source began in it, and "
            "records that were not read are gone: read the new topic with `flowstone pipeline reset --to earliest`, or "
            f"set the source's option {FAIL_ON_DATA_LOSS} to false",
            source.declared_at,
        )
    return again


def position_json(offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, bytes]) -> str:
    """Return offsets in the form of Spark's startingOffsets, with the ids of their topics."""
    document: dict[str, dict[str, int]] = {}
    for each, offset in sorted(offsets.items()):
        document.setdefault(each.topic, {})[str(each.partition)] = offset
    ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in document}
    return json.dumps(document | {key: {} for key in topic_id_keys(ids)}, separators=(",", ":"))


def _listed(cluster: Cluster, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys(partitions, at)
    listed = cluster.list_offsets(wanted, read_committed=True) if wanted else {}
    return {partition: each.offset for partition, each in listed.items()}


def _partitions(cluster: Cluster, source: Source, origin: TopicSource) -> tuple[set[TopicPartition], dict[str, bytes]]:
    """Return the source's partitions, and the ids of their topics. Raises PipelineError if a topic is missing."""
    topics = cluster.describe_topics(None if origin.pattern else list(origin.topics))
    if origin.pattern:
        topics = {name: topic for name, topic in topics.items() if re.fullmatch(origin.pattern, name)}
    for each in origin.topics:
        if each not in topics:
            raise PipelineError(
                f"source {source.name}: there is no topic {each}; create it with `flowstone topic create {each}`",
                source.declared_at,
            )
    partitions = {
        TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partition_count)
    }
    return partitions, {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}
