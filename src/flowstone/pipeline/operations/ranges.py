"""Ranges of records that a command works on: from and to a named position, pinned to offsets before anything is read.

A position is "earliest", "latest", a time in ISO 8601, or the JSON of offsets as in Spark's startingOffsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from flowstone.client import EARLIEST, LATEST, ClientError, Cluster
from flowstone.pipeline.authoring.validation import parse_start_ms
from flowstone.pipeline.engine.sources import Range
from flowstone.pipeline.engine.starting import DEADLINE_S, position_json, start_positions
from flowstone.pipeline.errors import PipelineError, TryLater
from flowstone.pipeline.model import PipelineModel, Source, TopicSource
from flowstone.types import TopicPartition, topic_ids_among

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class Pinned:
    """The records of one source from `starting` up to and without `ending`, by partition, of topics with these ids."""

    starting: Mapping[TopicPartition, int]
    ending: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of offsets, of which compaction and transactions may have left fewer records."""
        return sum(max(0, end - self.starting[each]) for each, end in self.ending.items())

    def as_range(self) -> Range:
        """Return the range as options of the Spark source, which compares the ids with those that the topics have."""
        return Range(position_json(self.starting, self.topic_ids), to_json(self.ending))

    def chunks(self, offsets_max: int) -> list[Pinned]:
        """Return the range in parts of at most so many offsets in each partition, in order."""
        found, at = [], dict(self.starting)
        while any(at[each] < end for each, end in self.ending.items()):
            to = {each: min(at[each] + offsets_max, max(at[each], end)) for each, end in self.ending.items()}
            found.append(Pinned(at, to, self.topic_ids))
            at = to
        return found


def to_json(offsets: Mapping[TopicPartition, int]) -> str:
    return position_json(offsets, {})


def from_json(text: str) -> Offsets:
    """Return the offsets of a JSON text. Raises PipelineError if it is malformed."""
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, offsets in json.loads(text).items()
            for number, offset in offsets.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise PipelineError(f'{text[:80]} is not offsets, as in {{"orders": {{"0": 100}}}}') from error


def ids_from_json(text: str) -> dict[str, bytes]:
    """Return the ids of topics that a JSON text of offsets has."""
    return topic_ids_among(json.loads(text))


def is_position(text: str) -> bool:
    return text in ("earliest", "latest") or text.startswith("{") or parse_start_ms(text) is not None


def resolve(model: PipelineModel, sources: tuple[Source, ...], position: str) -> dict[str, Offsets]:
    """Return the offsets of a position, for each topic source. Raises PipelineError, or TryLater without a broker."""
    if not is_position(position):
        raise PipelineError(
            f"{position} is not a position: earliest, latest, a time such as 2026-01-31T12:00:00Z, or offsets "
            'as JSON, as in {"orders": {"0": 100}}'
        )
    topics = tuple(each for each in sources if isinstance(each.origin, TopicSource))
    if not position.startswith("{"):
        starting = tuple(_starting_at(each, position) for each in topics)
        return {name: from_json(text) for name, text in start_positions(model, starting, None).items()}
    given = from_json(position)
    whole = {name: from_json(text) for name, text in start_positions(model, topics, None).items()}
    known = {each for offsets in whole.values() for each in offsets}
    unknown = given.keys() - known
    if unknown:
        raise PipelineError(f"no source of the pipeline reads {min(unknown)}")
    _check_bounds(model, given)
    earliest = resolve(model, sources, "earliest")
    return {name: {each: given.get(each, at) for each, at in offsets.items()} for name, offsets in earliest.items()}


def ids_of_topics(model: PipelineModel, sources: Sequence[Source]) -> dict[str, dict[str, bytes]]:
    """Return the ids of the topics of each topic source; to be called before offsets of them are looked up."""
    topics = tuple(_starting_at(each, "earliest") for each in sources if isinstance(each.origin, TopicSource))
    return {name: ids_from_json(text) for name, text in start_positions(model, topics, None).items()}


def _starting_at(source: Source, position: str) -> Source:
    assert isinstance(source.origin, TopicSource)
    return replace(source, origin=replace(source.origin, starting=position))


def _check_bounds(model: PipelineModel, given: Mapping[TopicPartition, int]) -> None:
    try:
        with Cluster(model.bootstrap, client_id="flowstone-pipeline", deadline_s=DEADLINE_S) as cluster:
            first = cluster.list_offsets(dict.fromkeys(given, EARLIEST), read_committed=True)
            end = cluster.list_offsets(dict.fromkeys(given, LATEST), read_committed=True)
    except ClientError as error:
        raise TryLater(f"bootstrap: {error}; check that the broker is running") from error
    for each, offset in sorted(given.items()):
        if not first[each].offset <= offset <= end[each].offset:
            raise PipelineError(
                f"{each} has the offsets {first[each].offset} to {end[each].offset}, and {offset} is not one of them"
            )


def pin(model: PipelineModel, start: str, end: str, *, last_max: int | None = None) -> dict[str, Pinned]:
    """Return the pinned range of each topic source; with `last_max` at most the last so many of each partition."""
    ids = ids_of_topics(model, model.sources)
    starts, ends = (resolve(model, model.sources, each) for each in (start, end))
    found = {}
    for name, ending in ends.items():
        starting = {
            each: max(starts[name].get(each, 0), offset - last_max if last_max is not None else 0)
            for each, offset in ending.items()
        }
        ends_after = {each: max(offset, starting[each]) for each, offset in ending.items()}
        found[name] = Pinned(starting, ends_after, ids[name])
    return found
