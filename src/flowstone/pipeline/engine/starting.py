"""Where the topic sources of a query start: explicit offsets, resolved once and then stored.

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
from flowstone.types import TopicPartition

DEADLINE_S = 15.0


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
    partitions = _partitions(cluster, source, origin)
    known = {
        TopicPartition(topic, int(number)): int(offset)
        for topic, offsets in json.loads(stored or "{}").items()
        for number, offset in offsets.items()
    }
    new = partitions - known.keys()
    starting = origin.starting if stored is None else "earliest"
    at = {"earliest": EARLIEST, "latest": LATEST}.get(starting)
    if at is None:
        at = parse_start_ms(starting)
        assert at is not None
    listed = _listed(cluster, new, at)
    beyond = [each for each, offset in listed.items() if offset < 0]  # no record is as late as the time
    listed |= _listed(cluster, beyond, LATEST)
    document: dict[str, dict[str, int]] = {}
    for each, offset in sorted((known | listed).items()):
        document.setdefault(each.topic, {})[str(each.partition)] = offset
    return json.dumps(document, separators=(",", ":"))


def _listed(cluster: Cluster, partitions: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
    wanted = dict.fromkeys(partitions, at)
    listed = cluster.list_offsets(wanted, read_committed=True) if wanted else {}
    return {partition: each.offset for partition, each in listed.items()}


def _partitions(cluster: Cluster, source: Source, origin: TopicSource) -> set[TopicPartition]:
    counts = cluster.topics(None if origin.pattern else list(origin.topics))
    if origin.pattern:
        counts = {name: count for name, count in counts.items() if re.fullmatch(origin.pattern, name)}
    for each in origin.topics:
        if each not in counts:
            raise PipelineError(
                f"source {source.name}: there is no topic {each}; create it with `flowstone topic create {each}`",
                source.declared_at,
            )
    return {TopicPartition(name, number) for name, count in counts.items() for number in range(count)}
