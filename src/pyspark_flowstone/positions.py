"""Conversion of options to offsets: the subscribed partitions, and the offset of a bound in each of them.

The functions ask the broker and keep no state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flowstone.client import BadAddress, BadAnswer, ClientError, Cluster, GaveUp
from flowstone.types import TopicPartition
from pyspark_flowstone.connections import CLIENT_ID
from pyspark_flowstone.loss import LossRule
from pyspark_flowstone.offsets import EARLIEST, LATEST, Offsets, TopicIds, recreated
from pyspark_flowstone.options import (
    BOOTSTRAP,
    Assigned,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Everywhere,
    Pattern,
    SourceOptions,
    Subscription,
    Topics,
)
from pyspark_flowstone.values import OptionError

NAMES_SHOWN_MAX = 5


class Subscribed(NamedTuple):
    """The subscribed partitions that exist, the ids of their topics, and how many partitions each topic has."""

    partitions: set[TopicPartition]
    topic_ids: TopicIds
    partition_counts: dict[str, int]


def check_subscription(options: SourceOptions) -> None:
    """Raise OptionError if no broker answers, or a topic or partition that is named does not exist.

    With failOnDataLoss=false a missing topic is accepted here, because a query that resumes from a checkpoint can
    continue without it. A new query is refused when it starts.
    """
    try:
        with Cluster(options.bootstrap, client_id=CLIENT_ID, deadline_s=options.connect_timeout_s) as cluster:
            if options.fail_on_data_loss:
                starting_partitions(cluster, options)
            else:
                subscribed_now(cluster, options.subscription)
    except (GaveUp, BadAnswer, BadAddress) as error:
        raise unreachable(error) from error


def unreachable(error: ClientError) -> OptionError:
    """Return the OptionError for a broker that cannot be reached, with its address."""
    advice = "; check the address, and that the broker is running" if isinstance(error, GaveUp) else ""
    return OptionError(f"{BOOTSTRAP}: {error}{advice}")


def subscribed_now(cluster: Cluster, subscription: Subscription) -> Subscribed:
    """Return the subscribed partitions that currently exist."""
    if isinstance(subscription, Pattern):
        topics = cluster.describe_topics()
        topics = {name: topic for name, topic in topics.items() if re.fullmatch(subscription.regex, name)}
    elif isinstance(subscription, Topics):
        topics = cluster.describe_topics(subscription.names)
    else:
        topics = cluster.describe_topics(sorted({each.topic for each in subscription.partitions}))
    existing = {
        TopicPartition(name, number) for name, topic in topics.items() for number in range(topic.partition_count)
    }
    if isinstance(subscription, Assigned):
        existing &= set(subscription.partitions)
    read = {each.topic for each in existing}
    ids = {name: topic.topic_id for name, topic in topics.items() if name in read and topic.topic_id is not None}
    return Subscribed(existing, ids, {name: topic.partition_count for name, topic in topics.items()})


def starting_partitions(cluster: Cluster, options: SourceOptions) -> Subscribed:
    """Return the existing partitions for a new read. Raises OptionError if a named one is missing."""
    subscription, found = options.subscription, subscribed_now(cluster, options.subscription)
    if isinstance(subscription, Topics):
        missing = sorted(set(subscription.names) - {each.topic for each in found.partitions})
        if missing:
            raise OptionError(
                f"subscribe: there is no topic {' and no topic '.join(missing[:NAMES_SHOWN_MAX])} at "
                f"{options.bootstrap}; create it, or use subscribePattern for topics that come later"
            )
    elif not isinstance(subscription, Pattern):
        absent = sorted(set(subscription.partitions) - found.partitions)
        if absent:
            raise OptionError(f"assign: {_absent(absent[0], found.partition_counts)} at {options.bootstrap}")
    return found


def log_starts(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Offsets:
    return _listed(cluster, dict.fromkeys(partitions, EARLIEST), read_committed=False)


def log_ends(cluster: Cluster, partitions: Iterable[TopicPartition], options: SourceOptions) -> Offsets:
    """Return the high watermarks, or the last stable offsets for read_committed."""
    return _listed(cluster, dict.fromkeys(partitions, LATEST), read_committed=options.read_committed)


def offsets_at_time(cluster: Cluster, partitions: Iterable[TopicPartition], timestamp_ms: int) -> Offsets:
    """Return the first offset at or after the time per partition; partitions without one are absent."""
    listed = _listed(cluster, dict.fromkeys(partitions, timestamp_ms), read_committed=False)
    return {partition: offset for partition, offset in listed.items() if offset >= 0}


def starting_offsets(
    cluster: Cluster, bound: Bound, partitions: set[TopicPartition], topic_ids: TopicIds, options: SourceOptions
) -> Offsets:
    """Return the offsets of a starting bound. Raises OptionError if a time has no record at or after it.

    With startingOffsetsByTimestampStrategy=latest, the partition's end is used instead. Offsets that come with the id
    of a topic that was created again since are a loss; without failOnDataLoss the new topic's start is used instead.
    """
    offsets = _offsets_at(cluster, bound, partitions, options, "starting")
    again = recreated(bound.topic_ids, topic_ids) if isinstance(bound, AtOffsets) else set()
    for topic in sorted(again):
        named = {each: offset for each, offset in offsets.items() if each.topic == topic}
        LossRule(is_failure=options.fail_on_data_loss).recreated(topic, named)
        offsets |= log_starts(cluster, named)
    without = sorted(each for each, offset in offsets.items() if offset < 0)
    if without and not options.no_late_record_starts_at_latest:
        raise OptionError(
            f"startingTimestamp: {_shown(without)} has no record as late as that; take an earlier time, or set "
            "startingOffsetsByTimestampStrategy=latest to start with the next record"
        )
    return offsets | log_ends(cluster, without, options)


def ending_offsets(cluster: Cluster, bound: Bound, partitions: set[TopicPartition], options: SourceOptions) -> Offsets:
    offsets = _offsets_at(cluster, bound, partitions, options, "ending")
    return offsets | log_ends(cluster, [each for each, offset in offsets.items() if offset < 0], options)


def _offsets_at(
    cluster: Cluster, bound: Bound, partitions: set[TopicPartition], options: SourceOptions, which: str
) -> Offsets:
    """Return the offsets of a bound, -1 if a partition has no record at or after its time."""
    if isinstance(bound, Everywhere):
        return _listed(cluster, dict.fromkeys(partitions, bound.offset), read_committed=options.read_committed)
    if isinstance(bound, AtTimestamp):
        return _listed(cluster, dict.fromkeys(partitions, bound.timestamp_ms), read_committed=options.read_committed)
    if isinstance(bound, AtTimestamps):
        _check_named(bound.timestamps_ms, partitions, f"{which}OffsetsByTimestamp")
        return _listed(cluster, bound.timestamps_ms, read_committed=options.read_committed)
    assert isinstance(bound, AtOffsets)
    _check_named(bound.offsets, partitions, f"{which}Offsets")
    to_ask = {each: offset for each, offset in bound.offsets.items() if offset < 0}
    return bound.offsets | _listed(cluster, to_ask, read_committed=options.read_committed)


def _check_named(named: Mapping[TopicPartition, int], partitions: set[TopicPartition], option: str) -> None:
    """Raise OptionError unless the option names every partition, as the Kafka connector requires."""
    missing, extra = sorted(partitions - named.keys()), sorted(named.keys() - partitions)
    if missing:
        raise OptionError(f"{option}: it says nothing of {_shown(missing)}; name every partition of the subscription")
    if extra:
        raise OptionError(f"{option}: {_shown(extra)} is not subscribed to, or does not exist")


def _absent(partition: TopicPartition, counts: Mapping[str, int]) -> str:
    """Return that a partition does not exist, and what does."""
    count = counts.get(partition.topic, 0)
    if not count:
        return f"there is no topic {partition.topic}"
    has = "1 partition, 0" if count == 1 else f"{count} partitions, 0 to {count - 1}"
    return f"topic {partition.topic} has {has}, and no partition {partition.partition}"


def _listed(cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool) -> Offsets:
    if not wanted:
        return {}
    listed = cluster.list_offsets(wanted, read_committed=read_committed)
    return {partition: each.offset for partition, each in listed.items()}


def _shown(partitions: list[TopicPartition]) -> str:
    shown = ", ".join(map(str, partitions[:NAMES_SHOWN_MAX]))
    more = len(partitions) - NAMES_SHOWN_MAX
    return f"{shown} and {more} more" if more > 0 else shown
